"""What inspect says of files whose records differ, and of samples of them;
each place is the one where the difference was put.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from made_data_set import mixed_rows, write_data_set

from recordmill.__main__ import main
from recordmill.base.errors import DataError, UsageError
from recordmill.reader.dataset import open
from recordmill.reader.inspect.findings import conflicting_features, findings
from recordmill.reader.inspect.summary import summarise
from recordmill.records.example.encode import encode
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.loading.sample import Sample, sample_loads
from recordmill.storage.codecs import SHARD_SUFFIXES

INTS = Schema((Feature("n", "int64"), Feature("x", "int64", (), True), Feature("xs", "float32", (None,), True)))
TEXTS = Schema((Feature("n", "int64"), Feature("x", "string", (), True), Feature("xs", "float32", (None,), True)))


def write(path: Path, schema: Schema, columns: Mapping[str, list[Any]]) -> None:
    arrow = to_arrow(schema)
    batch = pa.record_batch([pa.array(columns[field.name], field.type) for field in arrow], schema=arrow)
    path.write_bytes(encode(batch, schema).data.tobytes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """x is a number in a and text in b; n is missing in record 1 of b;
    xs has 2 values but for record 2 of a, with 5.
    """
    into = tmp_path / "in"
    into.mkdir()
    write(
        into / "a.tfrecord",
        INTS,
        {"n": [1, 2, 3, 4], "x": [1, 2, 3, 4], "xs": [[1, 2], [1, 2], [1, 2, 3, 4, 5], [1, 2]]},
    )
    write(into / "b.tfrecord", TEXTS, {"n": [5, None, None], "x": ["a", "b", "c"], "xs": [[1, 2]] * 3})
    return into


def test_conflicts_are_named_with_their_places(folder: Path) -> None:
    ds = open(folder)
    assert ds.inference is not None
    assert conflicting_features(ds.inference) == {"x"}
    kinds, lengths = findings(ds.inference)
    assert (
        str(kinds) == "x: int64 in 4 records, first a.tfrecord record 0; bytes in 3 records, first b.tfrecord record 0"
    )
    assert kinds.conflict
    assert str(lengths) == "xs: 2 values in a.tfrecord record 0, 5 values in a.tfrecord record 2"
    assert not lengths.conflict
    with pytest.raises(DataError, match="no schema fits"):
        ds.to_table()


def test_inspect_shows_what_can_be_read_and_what_differs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--quiet"]) == 0
    text = capsys.readouterr().out
    assert ["x", "conflict", "int64,", "bytes", "see", "below"] in [line.split() for line in text.splitlines()]
    assert (
        "no schema fits all records:\n  x: int64 in 4 records, first a.tfrecord record 0; bytes in 3 "
        "records, first b.tfrecord record 0\n" in text
    )
    assert "  n: missing in 2 of 7 records, first b.tfrecord record 1\n" in text
    assert "length 2 to 5" in text
    assert main(["inspect", str(folder), "--quiet", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["conflicts"] == {"x": {"int64": 4, "bytes": 3}}
    assert [feature["name"] for feature in about["features"]] == ["n", "xs"]
    places = {(finding["feature"], finding["what"]): finding["places"] for finding in about["findings"]}
    assert places == {
        ("x", "kinds"): [{"file": "a.tfrecord", "record": 0}, {"file": "b.tfrecord", "record": 0}],
        ("xs", "lengths"): [{"file": "a.tfrecord", "record": 0}, {"file": "a.tfrecord", "record": 2}],
        ("n", "presence"): [{"file": "b.tfrecord", "record": 1}],
    }


def test_nothing_differs_and_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.tfrecord", INTS, {"n": [1, 2], "x": [1, 2], "xs": [[1], [2]]})
    assert main(["inspect", str(tmp_path), "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "no schema fits" not in text
    assert "differs" not in text


def test_a_sample_sees_its_records_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not findings(open(folder, infer_from="1file").inference)[0].conflict  # type: ignore[arg-type]
    assert findings(open(folder, infer_from=2).inference)[0].conflict  # type: ignore[arg-type]
    ds = open(folder / "a.tfrecord", infer_from=2)
    assert ds.schema["xs"].shape == (2,)
    with pytest.raises(DataError, match="record 2"):  # which the sample's schema does not fit
        ds.to_table()
    summary = summarise(open(folder, infer_from=3))
    assert (summary.looked_at, summary.records, summary.sampled) == (3, 7, "the first records of each of 2 files")
    assert main(["inspect", str(folder), "--infer-from", "1files", "--quiet"]) == 0
    assert "all of this is of 4 records only (--infer-from): 1 of 2 files, evenly spaced\n" in capsys.readouterr().out


@pytest.mark.parametrize("compression", SHARD_SUFFIXES)
def test_samples_are_the_first_records_of_each_file(tmp_path: Path, compression: str) -> None:
    files = open(
        write_data_set(tmp_path / "out", {"train": mixed_rows(40)}, shards=4, compression=compression)
    ).catalog.files

    def seen(sample: Sample) -> list[tuple[str, int, int]]:
        loads = sample_loads(files, sample)
        return [(load.file.name[-26:], load.piece.first_record, load.piece.records or 0) for load in loads]

    assert [(first, records) for _, first, records in seen(Sample(6))] == [(0, 2), (0, 2), (0, 1), (0, 1)]
    assert sum(records for _, _, records in seen(Sample(1000))) == 40
    assert sum(records for _, _, records in seen(Sample(2, whole_files=True))) == 20


@pytest.mark.parametrize("text", ["0", "-1", "a", "1.5", "3 folders", ""])
def test_no_sample_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="infer_from="):
        Sample.parse(text)
