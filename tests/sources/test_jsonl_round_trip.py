"""What `read --to jsonl` and `--to csv` write is built again, value for value: by the schema of the first data set, and
without it as far as JSON's values tell.
"""

from __future__ import annotations

import base64
import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_reading import input_files, read_all, values

import recordmill
from recordmill.base.errors import DataError
from recordmill.base.option_names import in_flags
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.jsonl.binary import decode_base64
from recordmill.sources.jsonl.source import JsonlOptions, JsonlSource, plan_jsonl

TIMES = {
    "date": pa.array([datetime.date(2020, 1, 1)] * 2),
    **{unit: pa.array([0, 1], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")},
    "utc": pa.array([0, None], pa.timestamp("us", tz="UTC")),
}
SINGLE = {
    **{f"i{bits}": pa.array([1, -2], f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": pa.array([1, 200], f"uint{bits}") for bits in (8, 16, 32)},
    "u64": pa.array([1, (1 << 63) - 1], pa.uint64()),
    "f16": pa.array(np.array([1, 65504], np.float16)),
    "f32": pa.array([0.1, 1.1754944e-38], pa.float32()),
    "f64": pa.array([0.1, 1e300]),
    "bool": pa.array([True, False]),
    "text": pa.array(["a", "é"]),
    "null": pa.array([None, 1]),
    **TIMES,
}
COLUMNS = {
    **SINGLE,
    "bytes": pa.array([b"\xff\x00\n", b"a"]),
    "list": pa.array([[1], [2, 3]]),
    "floats": pa.array([[1.5, 1e300], []]),
    "halves": pa.array([np.array([0.1, 2], np.float16), np.array([], np.float16)], pa.list_(pa.float16())),
    "parts": pa.array([[b"\xff", b""], None], pa.list_(pa.binary())),
    "moments": pa.array([[0, 1], []], pa.list_(pa.timestamp("us"))),
    "pair": pa.array([[0, 1], None], pa.list_(pa.timestamp("ns", tz="UTC"), 2)),
    "deep": pa.array([[[0], []], [[1, 2]]], pa.list_(pa.list_(pa.timestamp("s")))),
}


def there_and_back(folder: Path, columns: dict[str, pa.Array], to: str = "jsonl", **options: Any) -> tuple[Any, Any]:
    """The data sets before and after."""
    recordmill.build(pa.table(columns), folder / "first", shuffle=False, splits="all=1")
    recordmill.read(folder / "first", folder / "lines", to=to)
    (lines,) = (folder / "lines").rglob(f"*.{to}")
    recordmill.build(lines, folder / "second", shuffle=False, splits="all=1", **options)
    return recordmill.open(folder / "first"), recordmill.open(folder / "second")


def test_every_dtype_comes_back_by_the_schema(tmp_path: Path) -> None:
    first, second = there_and_back(tmp_path, COLUMNS, schema=tmp_path / "first" / "schema.pbtxt")
    assert second.to_table().equals(first.to_table())


def test_every_single_value_comes_back_from_csv_by_the_schema(tmp_path: Path) -> None:
    first, second = there_and_back(tmp_path, SINGLE, "csv", schema=tmp_path / "first" / "schema.pbtxt", header=True)
    assert second.to_table().equals(first.to_table())


@pytest.mark.parametrize("to", ["jsonl", "csv"])
def test_times_keep_their_type_without_a_schema(tmp_path: Path, to: str) -> None:
    first, second = there_and_back(tmp_path, TIMES, to, **({"header": True} if to == "csv" else {}))
    assert second.to_table().cast(first.to_table().schema).equals(first.to_table())
    assert [feature.dtype for feature in second.schema] == [feature.dtype for feature in first.schema]


def test_lists_of_times_keep_their_type_without_a_schema(tmp_path: Path) -> None:
    names = ("moments", "pair", "deep")
    first, second = there_and_back(tmp_path, {name: COLUMNS[name] for name in names})
    assert [feature.dtype for feature in second.schema] == [feature.dtype for feature in first.schema]
    for name in names:
        assert second.to_table()[name].to_pylist() == first.to_table()[name].to_pylist()


def test_what_no_value_tells_without_a_schema_is_exact_or_said(tmp_path: Path) -> None:
    """Half floats are wider, bytes are their base64, a number beyond float32 is a reject with its remedy."""
    names = ("f16", "bytes", "f64")
    columns = {name: COLUMNS[name] for name in names}
    first, second = there_and_back(tmp_path, columns, max_rejects=1)
    assert second.to_table()["f16"].to_pylist() == first.to_table()["f16"].to_pylist()[:1]
    assert second.to_table()["bytes"].to_pylist() == [base64.b64encode(b"\xff\x00\n").decode()]
    rejected = json.loads(next((tmp_path / "second" / "rejects").iterdir()).read_text().splitlines()[0])
    assert "f64: 1e+300 does not fit float32; --dtype f64=float64 keeps it" in rejected["message"]
    notes = recordmill.open(tmp_path / "second").catalog.manifest.statistics["notes"]
    assert any("1 of 2 values can't be held by float32 and are rejected" in note for note in notes)
    dtypes = {"f16": "float16", "bytes": "base64", "f64": "float64"}
    (lines,) = (tmp_path / "lines").rglob("*.jsonl")
    recordmill.build(lines, tmp_path / "third", shuffle=False, splits="all=1", dtypes=dtypes)
    assert recordmill.open(tmp_path / "third").to_table().to_pydict() == first.to_table().to_pydict()


def plan(path: Path, rows: list[Any], **common: Any) -> JsonlSource:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return plan_jsonl(input_files(path), JsonlOptions(), PlanOptions(**common))


ISO = [
    (["2020-01-01", None], "timestamp[s]"),
    (["2020-01-01T10:00", "2020-01-01 10:00:00.5"], "timestamp[ms]"),
    (["2020-01-01T10:00:00Z", "2020-01-01T10:00:00.000001+01:00"], "timestamp[us, UTC]"),
    (["2020-01-01T10:00:00Z", "2020-01-01T10:00:00"], "string"),
    (["2020-01-01", ""], "string"),
    (["2020-01-01", "2020-02-30"], "string"),
    (["2020-01-01", "20200101"], "string"),
    (["0001-01-01", "2020-01-01T00:00:00.000000001"], "string"),
]


@pytest.mark.parametrize(("texts", "dtype"), ISO)
def test_times_are_told_as_in_csv_and_that_is_said(tmp_path: Path, texts: list[Any], dtype: str) -> None:
    source = plan(tmp_path / "a.jsonl", [{"t": text} for text in texts])
    assert source.schema["t"].dtype == dtype
    said = [in_flags(note) for note in source.notes if "ISO 8601" in note]
    assert said == (
        [] if dtype == "string" else [f"t: all its text is ISO 8601, so it is {dtype}; --dtype t=string keeps the text"]
    )
    kept = plan(tmp_path / "b.jsonl", [{"t": text} for text in texts], dtypes={"t": "string"})
    assert [row["t"] for row in values(read_all(kept)[0])] == texts
    assert not any("ISO 8601" in note for note in kept.notes)


BYTES = Schema((Feature("x", "bytes"),))


def test_bytes_of_a_schema_are_base64_where_the_strings_tell(tmp_path: Path) -> None:
    padded = plan(tmp_path / "a.jsonl", [{"x": "YQ=="}, {"x": "YWJj"}, {"x": None}, {"x": ""}], schema=BYTES)
    assert [row["x"] for row in values(read_all(padded)[0])] == [b"a", b"abc", None, b""]
    assert "x: all its text is base64, so it is decoded; --dtype x=bytes keeps the text" in map(in_flags, padded.notes)
    text = plan(tmp_path / "b.jsonl", [{"x": "data"}, {"x": "a text"}], schema=BYTES)
    assert [row["x"] for row in values(read_all(text)[0])] == [b"data", b"a text"]
    assert "x: its text is taken as it is, as UTF-8: 1 of 2 values are no base64" in text.notes
    with pytest.raises(DataError, match=r"'x' is bytes by the schema, .* --dtype x=base64 .* --dtype x=bytes"):
        plan(tmp_path / "c.jsonl", [{"x": "data"}], schema=BYTES)


def test_bytes_as_they_are_declared(tmp_path: Path) -> None:
    rows = [{"x": "data"}, {"x": "no base64"}, {"x": 1234}, {"x": ["data"]}]
    as_text = plan(tmp_path / "a.jsonl", rows[:2], schema=BYTES, dtypes={"x": "bytes"})
    assert [row["x"] for row in values(read_all(as_text)[0])] == [b"data", b"no base64"]
    for common in ({}, {"schema": BYTES}):
        decoded = plan(tmp_path / "b.jsonl", rows, dtypes={"x": "base64"}, **common)
        found, rejects = read_all(decoded)
        assert [row["x"] for row in values(found)] == [base64.b64decode("data")]
        assert [in_flags(reject.message) for reject in rejects] == [
            "x: 'no base64' is no base64; --dtype x=bytes keeps text as it is",
            "x: '1234' is no base64; --dtype x=bytes keeps text as it is",
            "x: a list where bytes is expected: '[\"data\"]'",
        ]
    lists = plan(tmp_path / "c.jsonl", [{"x": ["YQ==", ""]}, {"x": []}], dtypes={"x": "base64[?]"})
    assert [row["x"] for row in values(read_all(lists)[0])] == [[b"a", b""], []]


@given(st.lists(st.one_of(st.none(), st.text("AB9+/=ag\u00e9 ", max_size=9), st.binary(max_size=9))))
def test_base64_is_what_python_takes_and_gives_back(texts: list[Any]) -> None:
    texts = [base64.b64encode(text).decode() if isinstance(text, bytes) else text for text in texts]
    found, wrong = decode_base64(pa.array(["x", *texts], pa.large_string()).slice(1))
    for text, value, bad in zip(texts, found.to_pylist(), wrong.tolist(), strict=True):
        if text is None:
            assert (value, bad) == (None, False)
            continue
        try:
            wanted = base64.b64decode(text, validate=True)
        except ValueError:
            wanted = None
        right = wanted is not None and base64.b64encode(wanted).decode() == text
        assert bad == (not right)
        assert bad or value == wanted


def test_random_bytes_come_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    column = pa.array([rng.bytes(size) for size in range(60)])
    first, second = there_and_back(tmp_path, {"x": column}, schema=tmp_path / "first" / "schema.pbtxt")
    assert second.to_table().equals(first.to_table())
