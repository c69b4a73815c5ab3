"""A JSON array of objects is read like Python's json module reads it.

Broken documents are refused with a remedy.
"""

import base64
import datetime
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.files import write_file
from kit.json_files import DOCUMENTS, ROWS
from kit.runs import in_flags
from kit.source_reading import input_files, read_all, values

import recordmill
from recordmill.base.errors import RecordmillError, UsageError
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.common.content import detect_kind, filter_kind
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.jsonl.columns import decode_base64
from recordmill.sources.jsonl.options import JsonlOptions
from recordmill.sources.jsonl.source import JsonlSource, plan_jsonl
from recordmill.storage.listing import list_inputs


def test_json_array_is_data_if_there_is_no_other_data(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps(ROWS))
    assert detect_kind(list_inputs([str(tmp_path)])) == (
        "jsonl",
        "jsonl: in.json is a JSON array of objects",
    )
    assert [file.name for file in filter_kind(list_inputs([str(tmp_path)]), "jsonl").files] == [
        "in.json"
    ]
    (tmp_path / "in.csv").write_text("a,b\n1,2\n3,4\n")
    assert detect_kind(list_inputs([str(tmp_path)]))[0] == "csv"


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
    "halves": pa.array(
        [np.array([0.1, 2], np.float16), np.array([], np.float16)], pa.list_(pa.float16())
    ),
    "parts": pa.array([[b"\xff", b""], None], pa.list_(pa.binary())),
    "moments": pa.array([[0, 1], []], pa.list_(pa.timestamp("us"))),
    "pair": pa.array([[0, 1], None], pa.list_(pa.timestamp("ns", tz="UTC"), 2)),
    "deep": pa.array([[[0], []], [[1, 2]]], pa.list_(pa.list_(pa.timestamp("s")))),
}


def make_round_trip(
    folder: Path, columns: dict[str, pa.Array], form: str = "jsonl", **options: Any
) -> tuple[Any, Any]:
    """Builds columns, exports them, and builds the export again.

    Returns:
        (the first data set, the second data set).
    """
    recordmill.build(pa.table(columns), folder / "first", shuffle=False, splits="all=1")
    recordmill.read(folder / "first", folder / "lines", to=form)
    (lines,) = (folder / "lines").rglob(f"*.{form}")
    recordmill.build(lines, folder / "second", shuffle=False, splits="all=1", **options)
    return recordmill.open(folder / "first"), recordmill.open(folder / "second")


def test_every_dtype_survives_a_round_trip_through_jsonl_with_the_schema(tmp_path: Path) -> None:
    first, second = make_round_trip(tmp_path, COLUMNS, schema=tmp_path / "first" / "schema.pbtxt")
    assert second.to_table().equals(first.to_table())


def test_every_scalar_survives_a_round_trip_through_csv_with_the_schema(tmp_path: Path) -> None:
    first, second = make_round_trip(
        tmp_path, SINGLE, "csv", schema=tmp_path / "first" / "schema.pbtxt", header=True
    )
    assert second.to_table().equals(first.to_table())


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_times_survive_a_round_trip_without_a_schema(tmp_path: Path, form: str) -> None:
    lists = {} if form == "csv" else {name: COLUMNS[name] for name in ("moments", "pair", "deep")}
    first, second = make_round_trip(
        tmp_path, TIMES | lists, form, **({"header": True} if form == "csv" else {})
    )
    assert second.to_table().to_pydict() == first.to_table().to_pydict()
    assert [feature.dtype for feature in second.schema] == [
        feature.dtype for feature in first.schema
    ]


def test_types_that_text_does_not_show_are_widened_or_rejected_without_a_schema(
    tmp_path: Path,
) -> None:
    """Half floats become wider, and bytes become their base64 text.

    A number beyond float32 is a reject with a remedy.
    """
    names = ("f16", "bytes", "f64")
    columns = {name: COLUMNS[name] for name in names}
    first, second = make_round_trip(tmp_path, columns, max_rejects=1)
    assert second.to_table()["f16"].to_pylist() == first.to_table()["f16"].to_pylist()[:1]
    assert second.to_table()["bytes"].to_pylist() == [base64.b64encode(b"\xff\x00\n").decode()]
    reject = json.loads(
        next((tmp_path / "second" / "rejects").iterdir()).read_text().splitlines()[0]
    )
    assert (
        reject["message"] == 'f64: 1e+300 does not fit float32; dtypes={"f64": "float64"} keeps it'
    )
    notes = recordmill.open(tmp_path / "second").records.catalog.manifest.statistics["notes"]
    assert any("1 of 2 values do not fit float32 and are rejected" in note for note in notes)
    dtypes = {"f16": "float16", "bytes": "base64", "f64": "float64"}
    (lines,) = (tmp_path / "lines").rglob("*.jsonl")
    recordmill.build(lines, tmp_path / "third", shuffle=False, splits="all=1", dtypes=dtypes)
    assert (
        recordmill.open(tmp_path / "third").to_table().to_pydict() == first.to_table().to_pydict()
    )


def plan_rows(path: Path, rows: list[Any], **common: Any) -> JsonlSource:
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
def test_iso_times_in_json_are_detected_and_noted(
    tmp_path: Path, texts: list[Any], dtype: str
) -> None:
    source = plan_rows(tmp_path / "a.jsonl", [{"t": text} for text in texts])
    assert source.schema["t"].dtype == dtype
    time_notes = [in_flags(note) for note in source.notes if "ISO 8601" in note]
    assert time_notes == (
        []
        if dtype == "string"
        else [f"t: all its text is ISO 8601, so it is {dtype}; --dtype t=string keeps the text"]
    )
    text_source = plan_rows(
        tmp_path / "b.jsonl", [{"t": text} for text in texts], dtypes={"t": "string"}
    )
    assert [row["t"] for row in values(read_all(text_source)[0])] == texts
    assert not any("ISO 8601" in note for note in text_source.notes)


BYTES = Schema((Feature("x", "bytes"),))


def test_bytes_of_a_schema_are_decoded_from_base64(tmp_path: Path) -> None:
    source = plan_rows(
        tmp_path / "a.jsonl", [{"x": "YQ=="}, {"x": "YWJj"}, {"x": None}, {"x": ""}], schema=BYTES
    )
    assert [row["x"] for row in values(read_all(source)[0])] == [b"a", b"abc", None, b""]
    assert "x: its text is decoded as base64; --dtype x=bytes keeps the text" in map(
        in_flags, source.notes
    )
    rows, rejects = read_all(
        plan_rows(tmp_path / "b.jsonl", [{"x": "data"}, {"x": "a text"}], schema=BYTES)
    )
    assert [row["x"] for row in values(rows)] == [base64.b64decode("data")]
    assert [in_flags(reject.message) for reject in rejects] == [
        "x: 'a text' is not base64; --dtype x=bytes keeps text as it is"
    ]


def test_bytes_declared_by_dtype_keep_text_or_decode_base64(tmp_path: Path) -> None:
    rows = [{"x": "data"}, {"x": "no base64"}, {"x": 1234}, {"x": ["data"]}]
    text_source = plan_rows(tmp_path / "a.jsonl", rows[:2], schema=BYTES, dtypes={"x": "bytes"})
    assert [row["x"] for row in values(read_all(text_source)[0])] == [b"data", b"no base64"]
    for common in ({}, {"schema": BYTES}):
        decoded = plan_rows(tmp_path / "b.jsonl", rows, dtypes={"x": "base64"}, **common)
        decoded_rows, rejects = read_all(decoded)
        assert [row["x"] for row in values(decoded_rows)] == [base64.b64decode("data")]
        assert [in_flags(reject.message) for reject in rejects] == [
            "x: 'no base64' is not base64; --dtype x=bytes keeps text as it is",
            "x: '1234' is not base64; --dtype x=bytes keeps text as it is",
            "x: a list where bytes is expected: '[\"data\"]'",
        ]
    lists = plan_rows(
        tmp_path / "c.jsonl", [{"x": ["YQ==", ""]}, {"x": []}], dtypes={"x": "base64[?]"}
    )
    assert [row["x"] for row in values(read_all(lists)[0])] == [[b"a", b""], []]


@given(
    st.lists(st.one_of(st.none(), st.text("AB9+/=ag\u00e9 ", max_size=9), st.binary(max_size=9)))
)
def test_base64_equals_that_of_python(texts: list[Any]) -> None:
    texts = [base64.b64encode(text).decode() if isinstance(text, bytes) else text for text in texts]
    decoded, is_wrong = decode_base64(pa.array(["x", *texts], pa.large_string()).slice(1))
    for text, value, is_bad in zip(texts, decoded.to_pylist(), is_wrong.tolist(), strict=True):
        if text is None:
            assert (value, is_bad) == (None, False)
            continue
        try:
            expected = base64.b64decode(text, validate=True)
        except ValueError:
            expected = None
        is_canonical = expected is not None and base64.b64encode(expected).decode() == text
        assert is_bad == (not is_canonical)
        assert is_bad or value == expected


@pytest.mark.parametrize("name", ["in.json", "in.json.gz"])
def test_json_array_is_detected_compressed_or_not(tmp_path: Path, name: str) -> None:
    path = write_file(tmp_path / name, json.dumps(ROWS))
    assert detect_kind(list_inputs([path]))[0] == "jsonl"
    recordmill.build(path, tmp_path / "out", shuffle=False)
    assert recordmill.open(tmp_path / "out").to_numpy()["a"].tolist() == list(range(50))


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ('{"a": [{"x": 1}]}', "data", r"in\.json: the JSON document has no member 'data'"),
        ('{"a": {"b": 1}}', "a.data", r"the member 'a' has no member 'data'"),
        ('{"data": {}}', "data", r"the member 'data' is not an array"),
        ('{"a": 1}', "a.data", r"the member 'a' is not an object"),
        ('[{"data": 1}]', "data", r"the JSON document is not an object"),
        ('{"data": [{"x": 1}], "data": [{"x": 2}]}', "data", r"two members are called 'data'"),
        ('{"data": [{"x": 1}], "b": [', "data", r"the JSON document has no end"),
        ('{"data": [{"x": 1}, {"x"', "data", r"element 1: the JSON array has no end"),
        ('{"data": [{"x": 1},]}', "data", r"a value is missing between commas"),
        ('{"data": [{"x": 1}]}', ".", r"^--record-path \.: write the key"),
        ("", "data", r"no member 'data'|holds no data|in\.json"),
    ],
)
def test_record_path_that_cannot_be_read_is_refused(
    tmp_path: Path, text: str, keys: str, message: str
) -> None:
    path = write_file(tmp_path / "in.json", text)
    with pytest.raises(RecordmillError) as error:
        recordmill.build(path, tmp_path / "out", kind="jsonl", record_path=keys)
    assert re.search(message, in_flags(error.value)), str(error.value)


@pytest.mark.parametrize(("document", "keys"), DOCUMENTS[:3])
@pytest.mark.parametrize("name", ["in.json", "in.json.gz"])
def test_json_document_is_refused_with_the_record_path_of_its_array(
    tmp_path: Path, document: Any, keys: str, name: str
) -> None:
    path = write_file(tmp_path / name, json.dumps(document))
    with pytest.raises(UsageError) as error:
        recordmill.build(path, tmp_path / "out")
    assert f"its member '{keys}' is an array of objects: `recordmill build jsonl`" in str(
        error.value
    )
    assert f"with --record-path {keys} reads it" in in_flags(error.value)


@pytest.mark.parametrize(
    ("document", "message", "rows"),
    [
        (
            {"a": [1, 2]},
            "its member 'a' is an array of values, not of objects: `recordmill build jsonl` reads it "
            "as one record, and recordmill.build(document, OUT) in Python reads the arrays as columns",
            [{"a": 1}, {"a": 2}],
        ),
        (
            {"columns": ["a", "b"], "data": [[1, "x"], [2, "y"]]},
            "if pandas has written it: in Python, recordmill.build(pandas.DataFrame(",
            [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}],
        ),
        ({"a": [1, 2], "b": ["x"]}, "`recordmill build jsonl` reads it as one record", None),
        (
            {"a": [1, 2], "b": ["x", "y"]},
            "its members 'a', 'b' are arrays of values, not of objects",
            [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}],
        ),
        (
            {"k": {"a": 1}, "l": {"a": 2}},
            "each of its members is an object",
            [{"a": 1}, {"a": 2}],
        ),
        ([7, 8], "its elements are not objects", [{"value": 7}, {"value": 8}]),
        ({"a": 1, "b": {"c": 2}}, "`recordmill build jsonl` reads it as one record", None),
        ([], "the array is empty", None),
    ],
)
def test_json_document_without_objects_is_refused_with_a_way_to_build_it(
    tmp_path: Path, document: Any, message: str, rows: list[dict[str, Any]] | None
) -> None:
    path = write_file(tmp_path / "in.json", json.dumps(document))
    with pytest.raises(UsageError) as error:
        recordmill.build(path, tmp_path / "out")
    assert message in str(error.value)
    if "build jsonl" in str(error.value):
        assert recordmill.build(path, tmp_path / "one", kind="jsonl").records == {"train": 1}
    if call := re.search(r"recordmill\.build\((.*), OUT\)", str(error.value)):
        pandas = pytest.importorskip("pandas") if "pandas" in call[1] else None
        data = eval(call[1], {"document": document, "pandas": pandas})
        recordmill.build(data, tmp_path / "out", shuffle=False)
        assert recordmill.open(tmp_path / "out").to_table().to_pylist() == rows


def test_json_document_on_several_lines_is_refused_with_a_way_to_build_it(tmp_path: Path) -> None:
    document = {"a": 1, "b": {"c": 2}}
    path = write_file(tmp_path / "in.json", json.dumps(document, indent=1))
    with pytest.raises(UsageError, match=r"recordmill\.build\(\[document\], OUT\) reads it as one"):
        recordmill.build(path, tmp_path / "out")
    assert recordmill.build([document], tmp_path / "out").records == {"train": 1}


def test_table_that_begins_like_json_is_refused_with_the_kind_that_reads_it(tmp_path: Path) -> None:
    path = write_file(tmp_path / "in.csv", '{"a":1},x\n{"a":2},y\n')
    with pytest.raises(UsageError, match="it is not valid JSON: `recordmill build csv` reads it"):
        recordmill.build(path, tmp_path / "out")
    recordmill.build(path, tmp_path / "out", kind="csv", header=False)
    assert len(recordmill.open(tmp_path / "out")) == 2


def test_object_with_an_empty_object_is_a_record_without_features(tmp_path: Path) -> None:
    path = write_file(tmp_path / "in.jsonl", '{"data": {}}\n{"data": {}}\n')
    assert recordmill.build(path, tmp_path / "out").records == {"train": 2}


def test_json_document_with_a_distant_array_is_refused_with_record_path(
    tmp_path: Path,
) -> None:
    path = write_file(tmp_path / "in.json", json.dumps({"about": "x" * 70_000, "data": ROWS}))
    with pytest.raises(UsageError) as error:
        recordmill.build(path, tmp_path / "out")
    assert "with --record-path KEY reads the member KEY" in in_flags(error.value)
    recordmill.build(path, tmp_path / "out", kind="jsonl", record_path="data")
    assert len(recordmill.open(tmp_path / "out")) == 50


def test_record_path_reads_a_document_without_the_kind(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text('{"version": 1, "data": [{"a": 1}, {"a": 2}]}')
    recordmill.build(path, tmp_path / "out", record_path="data", shuffle=False)
    assert [row["a"] for row in recordmill.open(tmp_path / "out")] == [1, 2]


def test_idx_files_in_gzip_are_named_before_their_remedy(tmp_path: Path) -> None:
    content = bytes([0, 0, 8, 1, 0, 0, 0, 4]) + b"abcd"
    (tmp_path / "labels-idx1-ubyte.gz").write_bytes(gzip.compress(content))
    with pytest.raises(UsageError, match="an idx file, as those of MNIST in gzip; in Python give"):
        detect_kind(list_inputs([str(tmp_path)]))
