"""Conversions apply in every output, from threads and Beam.

Bad values are counted as rejects.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.batches import table_of
from kit.data_sets import write_data_set
from kit.runs import read_in_each_way, rejects_of

from recordmill.base.errors import DataError, UsageError
from recordmill.exporting import records as read_parts
from recordmill.options.read import ReadConversions
from recordmill.pipelines.read import read
from recordmill.pipelines.read_options import parse_steps
from recordmill.records.writers.npy import open_columns
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards import cutting

SCHEMA = Schema(
    (
        Feature("id", "int64", (), True),
        Feature("depth", "bytes", (), True),
        Feature("boxes", "float32", (None,), True),
        Feature("tokens", "int64", (None,)),
        Feature("tensor", "bytes"),
    )
)
OPTIONS: dict[str, Any] = {
    "decode_raw": "depth=float32[4,2]",
    "reshape": ["boxes=[-1,4]"],
    "pad": "tokens=5:-1",
    "decode_tensor": "tensor",
}
ROWS = 200


def tensor(row: int) -> bytes:
    return b"\x08\x03\x12\x04\x12\x02\x08\x02\x22\x08" + np.array([row, -row], "<i4").tobytes()


def table(rows: int = ROWS) -> pa.Table:
    columns = {
        "id": list(range(rows)),
        "depth": [np.arange(i, i + 8, dtype="<f4").tobytes() for i in range(rows)],
        "boxes": [[float(i)] * (4 * (i % 3)) for i in range(rows)],
        "tokens": [None if i % 7 == 3 else list(range(i % 6)) for i in range(rows)],
        "tensor": [None if i % 5 == 0 else tensor(i) for i in range(rows)],
    }
    return table_of(columns, SCHEMA)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts small data into many pieces and slices."""
    monkeypatch.setattr(cutting, "PIECE_BYTES", 5_000)
    monkeypatch.setattr(read_parts, "_SLICE_BYTES", 1_000)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(
        tmp_path_factory.mktemp("ds") / "out", {"train": table()}, SCHEMA, shards=3
    )


def test_every_conversion_is_applied_to_npy(out: Path, tmp_path: Path) -> None:
    result = read(out, tmp_path / "to", to="npy", **OPTIONS)
    assert (result.read, result.written, result.rejected) == (ROWS, ROWS, 0)
    columns = open_columns(result.paths[0])
    assert np.load(result.paths[0] / "depth.npy", mmap_mode="r").shape == (ROWS, 4, 2)
    assert np.array_equal(
        columns["depth"], [np.arange(i, i + 8).reshape(4, 2) for i in range(ROWS)]
    )
    assert [row.shape for row in columns["boxes"]] == [(i % 3, 4) for i in range(ROWS)]
    assert columns["tokens"][:5].tolist() == [
        [-1] * 5,
        [0, -1, -1, -1, -1],
        [0, 1, -1, -1, -1],
        [None] * 5,
        [0, 1, 2, 3, -1],
    ]
    assert columns["tensor"][3].tolist() == [3, -3]
    assert columns["tensor"][5].tolist() == [None, None]
    assert result.schema["tensor"].describe() == "int32 [2]"


@pytest.mark.parametrize("to", ["parquet", "npy", "arrow"])
def test_converted_files_are_the_same_from_threads_and_beam(
    out: Path, tmp_path: Path, to: str
) -> None:
    read_in_each_way(out, tmp_path, to=to, file_size=10_000, **OPTIONS)


def test_values_that_cannot_be_converted_are_counted_rejects(tmp_path: Path) -> None:
    rows = table(60).to_pylist()
    rows[17]["depth"] = b"short"
    rows[41]["boxes"] = [1.0] * 6
    rows[42]["tensor"] = b"no tensor"
    out = write_data_set(
        tmp_path / "out", {"train": pa.Table.from_pylist(rows, to_arrow(SCHEMA))}, SCHEMA, shards=2
    )
    index = np.load(out / "data-test" / "index" / "train-00000.npy")
    with pytest.raises(
        DataError,
        match=rf"train-00000.*: record 17, byte {index['offset'][17]}: feature 'depth': 5 bytes, which is not "
        r"float32 \[4, 2\] of 32 bytes",
    ):
        read(out, tmp_path / "to", **OPTIONS)
    assert not (tmp_path / "to").exists()
    for number, extra in enumerate([{}, {"runner": "FnApiRunner"}, {"to": "npy"}]):
        result = read(out, tmp_path / str(number), max_rejects=3, **OPTIONS, **extra)
        assert (result.read, result.written, result.rejected, result.reject_reasons) == (
            60,
            57,
            3,
            {"convert": 3},
        )
        rejects = rejects_of(result)
        assert [reject["place"].split(",")[0] for reject in rejects] == [
            "record 17",
            "record 11",
            "record 12",
        ]
        assert rejects[0]["place"] == f"record 17, byte {index['offset'][17]}"
    assert pq.read_table(tmp_path / "0" / "train-00000-of-00001.parquet")["id"].to_pylist() == [
        i for i in range(60) if i not in (17, 41, 42)
    ]


def test_conversions_work_with_limit_and_columns(out: Path, tmp_path: Path) -> None:
    result = read(out, tmp_path / "to", columns="depth", limit=9, decode_raw="depth=float32[8]")
    assert pq.read_table(result.paths[0])["depth"].to_pylist() == [
        list(range(i, i + 8)) for i in range(9)
    ]
    with pytest.raises(
        UsageError, match='decode_tensor="tensor": no such feature; there are depth'
    ):
        read(out, tmp_path / "x", columns="depth", decode_tensor="tensor")


def test_tensor_that_no_record_has_needs_a_type(tmp_path: Path) -> None:
    rows = [{**row, "tensor": None} for row in table(5).to_pylist()]
    out = write_data_set(
        tmp_path / "out", {"train": pa.Table.from_pylist(rows, to_arrow(SCHEMA))}, SCHEMA, shards=1
    )
    with pytest.raises(
        UsageError,
        match=r"no record has this feature; give its dtype and shape, as in tensor=float32\[28,28\]",
    ):
        read(out, tmp_path / "to", decode_tensor="tensor")
    assert read(out, tmp_path / "to", decode_tensor="tensor=float32[28,28]").written == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode_raw": "depth"}, 'decode_raw="depth": write FEATURE=DTYPE'),
        ({"decode_raw": "depth=string[4]"}, "a dtype is one of bool"),
        ({"decode_raw": "depth=float32[4,-1]"}, "if it is the first"),
        ({"decode_raw": "depth=float32[0]"}, "dimensions are 1 or more"),
        ({"reshape": "boxes=4"}, r'reshape="boxes=4": write FEATURE=\[SHAPE\]'),
        ({"reshape": "boxes=[-1,-1]"}, "one may be -1"),
        ({"pad": "tokens=0:1"}, 'pad="tokens=0:1": write FEATURE=LENGTH:VALUE'),
        ({"pad_or_cut": "tokens=3"}, 'pad_or_cut="tokens=3"'),
        ({"decode_raw": ["a=int8", "a=int8"]}, "feature 'a' is to be decoded twice"),
        ({"decode_tensor": ">a=>int8"}, "decode_tensor="),
    ],
)
def test_malformed_conversion_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_steps(ReadConversions(**options))


def test_conversions_accept_names_with_special_characters() -> None:
    (raw, shape, pad) = parse_steps(
        ReadConversions(decode_raw="a=b/c=>float32[2]", reshape="x=[1]=[-1,4]", pad="t:1=5:=:")
    )
    assert (raw.feature, raw.is_big_endian, shape.feature, pad.feature, pad.value) == (
        "a=b/c",
        True,
        "x=[1]",
        "t:1",
        "=:",
    )  # type: ignore[union-attr]
