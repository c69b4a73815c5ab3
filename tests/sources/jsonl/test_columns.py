"""JSON values are cast to the dtypes of the schema, or become rejects."""

from pathlib import Path

import pytest
from kit.json_reading import plan, write
from kit.runs import in_flags
from kit.source_reading import features, read_all, values

from recordmill.base.errors import DataError, UsageError
from recordmill.schemas.feature import Feature, Schema


def test_json_values_that_do_not_fit_are_rejects(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        {"i": 1, "f": 0.5, "l": [1]},
        '{"i": 1.5, "f": 1, "l": []}',
        '{"i": 2, "f": 16777217, "l": []}',
        '{"i": 2, "f": 1e39, "l": []}',
        '{"i": 2, "f": 1e999, "l": []}',
        {"i": 3, "f": 1.0, "l": [1, None]},
        {"i": 4, "f": 16777216, "l": None},
    )
    source = plan(path, dtypes={"i": "int64"})
    assert features(source) == {"i": "int64!", "f": "float32!", "l": "int64 [?]"}
    rows, rejects = read_all(source)
    assert [row[1] for row in rows] == [0, 6]
    assert [(reject.place, reject.reason, in_flags(reject.message)) for reject in rejects] == [
        ("line 2", "range", "i: 1.5 does not fit int64; --dtype i=float64 keeps it"),
        ("line 3", "range", "f: 16777217 does not fit float32; --dtype f=float64 keeps it"),
        ("line 4", "range", "f: 1e+39 does not fit float32; --dtype f=float64 keeps it"),
        ("line 5", "range", "f: 1e999 does not fit float32; --dtype f=string keeps it"),
        ("line 6", "null", "l: a null inside a list, which an Example can't hold: [1, None]"),
    ]
    assert any("3 of 7 values do not fit float32" in note for note in source.notes)
    rows, rejects = read_all(plan(path, dtypes={"i": "string", "f": "float64"}))
    assert [row[2]["i"] for row in rows] == ["1", "1.5", "2", "2", "4"]
    assert [row[2]["f"] for row in rows][2:4] == [16777217.0, 1e39]
    digits = plan(write(tmp_path / "b.jsonl", {"x": 0.5}, {"x": 3.14159274101}))
    assert "x: 1 of 2 values lose digits as float32; --dtype x=float64 keeps them" in map(
        in_flags, digits.notes
    )


def test_declared_dtypes_cast_json_values(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        {"t": "2020-01-02T03:04:05", "n": 1.0, "v": [[1, 2], [3, 4]], "q": "12"},
        {"t": None, "n": 2.5, "v": [[1], [2]], "q": "x"},
    )
    source = plan(path, dtypes={"t": "timestamp[ms]", "n": "int8", "v": "uint8[2,2]", "q": "int32"})
    assert features(source) == {
        "t": "timestamp[ms]",
        "n": "int8!",
        "v": "uint8 [2, 2]!",
        "q": "int32!",
    }
    rows, rejects = read_all(source)
    assert values(rows)[0] | {"t": str(values(rows)[0]["t"])} == {
        "t": "2020-01-02 03:04:05",
        "n": 1,
        "v": [1, 2, 3, 4],
        "q": 12,
    }
    assert [(reject.place, reject.reason) for reject in rejects] == [("line 2", "range")]
    with pytest.raises(UsageError, match="--dtype z=int8: no such column; there are t, n, v, q"):
        plan(path, dtypes={"z": "int8"})
    with pytest.raises(UsageError, match="unknown dtype 'flaot'"):
        plan(path, dtypes={"t": "flaot"})
    with pytest.raises(DataError, match="but the schema has int64"):
        plan(path, dtypes={"v": "int64[]"})


def test_declared_schema_selects_and_casts_json_values(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"a": 1, "b": "x", "c": 2}, {"a": 300, "b": 5, "c": 2})
    schema = Schema(
        (Feature("b", "string", required=True), Feature("a", "uint8"), Feature("d", "float32")),
        label="a",
    )
    source = plan(path, schema=schema)
    assert source.schema == schema
    assert source.notes == (
        "d: in the schema but not in the files: missing in every record",
        "columns left out, since the schema does not name them: c",
    )
    rows, rejects = read_all(source)
    assert values(rows) == [{"b": "x", "a": 1, "d": None}]
    assert [in_flags(reject.message) for reject in rejects] == [
        "a: 300 does not fit uint8; --dtype a=int64 keeps it"
    ]
    with pytest.raises(DataError, match="the schema requires 'z'"):
        plan(path, schema=Schema((Feature("z", "string", required=True),)))
