"""JSON lines have every value of a batch in a portable form."""

import base64
import json
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
from kit.data_sets import MIXED, mixed_rows

from recordmill.records.writers import jsonl
from recordmill.records.writers.jsonl import JsonLineEncoder, JsonWriter
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema


def make_batch(rows: int) -> pa.RecordBatch:
    (batch,) = mixed_rows(rows).combine_chunks().to_batches()
    return batch


def test_written_lines_hold_the_rows(tmp_path: Path) -> None:
    writer = JsonWriter(tmp_path / "a.jsonl", MIXED)
    batch = make_batch(50)
    writer.write(batch.slice(0, 20))
    writer.write(batch.slice(20))
    writer.close()
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert writer.rows == len(lines) == 50
    for line, row in zip(lines, batch.to_pylist(), strict=True):
        assert list(line) == list(MIXED.names)
        for name in ("id", "name", "maybe", "small", "flag", "tokens", "words", "nested", "exact"):
            assert line[name] == row[name], name
        payload = row["payload"]
        assert line["payload"] == (None if payload is None else base64.b64encode(payload).decode())
        assert line["matrix"] == [row["matrix"][:3], row["matrix"][3:]]
        assert line["boxes"] == row["boxes"]
        if row["when"] is None:
            assert line["when"] is None
        else:
            assert line["when"].endswith("Z")
            time = datetime.fromisoformat(line["when"].removesuffix("Z"))
            assert time.replace(tzinfo=timezone.utc) == row["when"]


def test_number_of_rows_converted_together_does_not_change_the_file(tmp_path: Path) -> None:
    files = []
    for rows in (1, 7, 1000):
        jsonl.JSON_BATCH_ROWS, original = rows, jsonl.JSON_BATCH_ROWS
        try:
            writer = JsonWriter(tmp_path / f"{rows}.jsonl", MIXED)
            writer.write(make_batch(20))
            writer.close()
        finally:
            jsonl.JSON_BATCH_ROWS = original
        files.append((tmp_path / f"{rows}.jsonl").read_bytes())
    assert files[0] == files[1] == files[2]


def test_encoder_selects_and_renames_features_after_leading_columns() -> None:
    encoder = JsonLineEncoder(MIXED, {"name": "title", "id": "id"})
    text = encoder.encode(make_batch(2), file=["a", "b"])
    assert [json.loads(line) for line in text.splitlines()] == [
        {"file": "a", "id": 0, "title": "row 0 ü"},
        {"file": "b", "id": 1, "title": "row 1 ü"},
    ]
    assert "ü".encode() in text
    assert encoder.encode(make_batch(2).slice(0, 0), file=[]) == b""


def test_numbers_of_numpy_and_times_without_a_zone_are_json(tmp_path: Path) -> None:
    schema = Schema((Feature("h", "float16", (2,)), Feature("t", "timestamp[ms]", (None,))))
    columns = [
        pa.FixedSizeListArray.from_arrays(pa.array([1.5, 2.0], pa.float16()), 2),
        pa.array([[0, None, 86_400_000]], to_arrow(schema).field("t").type),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=to_arrow(schema))
    (line,) = JsonLineEncoder(schema).encode(batch).splitlines()
    assert json.loads(line) == {
        "h": [1.5, 2.0],
        "t": ["1970-01-01T00:00:00.000", None, "1970-01-02T00:00:00.000"],
    }
