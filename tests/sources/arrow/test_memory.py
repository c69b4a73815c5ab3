"""Objects in memory are built with their own types and values.

These are Arrow and pandas objects, arrays, and iterators of dicts.
"""

import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.memory_sources import plan
from kit.runs import in_flags, run_python
from kit.source_reading import features, read_all, values

from recordmill.base.errors import DataError, UsageError
from recordmill.sources.arrow import python_rows


def test_dict_of_arrays_is_built_with_its_dtypes(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    columns = {
        "image": rng.integers(256, size=(7, 4, 3), dtype=np.uint8),
        "x": rng.normal(size=7),
        "y": np.arange(7, dtype=np.int16),
        "flag": np.array([True, False] * 3 + [True]),
        "half": np.arange(7, dtype=np.float16),
        "name": np.array(list("abcdefg")),
        "when": np.arange(7).astype("datetime64[ms]"),
        "steps": np.arange(7).astype("datetime64[25s]"),
        "big": np.arange(7, dtype=">i4"),
        "words": ["u", None, "w", "x", "y", "z", "ü"],
        "lists": [[1], [], None, [2, 3], [4], [5], [6]],
    }
    source = plan(columns, tmp_path)
    assert features(source) == {
        "image": "uint8 [4, 3]!",
        "x": "float64!",
        "y": "int16!",
        "flag": "bool!",
        "half": "float16!",
        "name": "string!",
        "when": "timestamp[ms]!",
        "steps": "timestamp[s]!",
        "big": "int32!",
        "words": "string",
        "lists": "int64 [?]",
    }
    rows, rejects = read_all(source)
    assert rejects == []
    assert [row[1] for row in rows] == list(range(7))
    for index, row in enumerate(values(rows)):
        assert row["image"] == columns["image"][index].reshape(-1).tolist()
        assert [
            row[name] for name in ("x", "y", "flag", "half", "name", "big", "words", "lists")
        ] == [
            columns[name][index].item()
            if isinstance(columns[name], np.ndarray)
            else columns[name][index]
            for name in ("x", "y", "flag", "half", "name", "big", "words", "lists")
        ]
        assert [row[name] for name in ("when", "steps")] == [
            columns[name][index].item() for name in ("when", "steps")
        ]


def test_bfloat16_arrays_are_built(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    source = plan(
        {"x": np.arange(3).astype(ml_dtypes.bfloat16), "t": np.ones((3, 2), ml_dtypes.bfloat16)},
        tmp_path,
    )
    assert features(source) == {"x": "bfloat16!", "t": "bfloat16 [2]!"}
    assert values(read_all(source)[0])[2] == {"x": 2.0, "t": [1.0, 1.0]}


def test_arrow_objects_of_every_form_are_built(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a": [1, 2, None],
            "s": pa.array(["x", "y", "x"]).dictionary_encode(),
            "o": [{"p": 1.5}, None, {"p": None}],
        }
    )
    expected = [
        {"a": 1, "s": "x", "o.p": 1.5},
        {"a": 2, "s": "y", "o.p": None},
        {"a": None, "s": "x", "o.p": None},
    ]
    sources: list[Any] = [
        table,
        table.to_batches()[0],
        table.to_reader(),
        iter(table.to_batches()),
        OnlyStream(table),
    ]
    for data in sources:
        assert values(read_all(plan(data, tmp_path))[0]) == expected


class OnlyStream:
    """An object that has no interface except the stream of Arrow."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


def test_pandas_data_frames_are_built(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "f": [1.5, np.nan],
            "i": [1, 2],
            "s": ["a", None],
            "c": pd.Categorical(["u", "v"]),
            "n": pd.array([1, None], dtype="Int64"),
        }
    )
    assert values(read_all(plan(frame, tmp_path))[0]) == [
        {"f": 1.5, "i": 1, "s": "a", "c": "u", "n": 1},
        {"f": None, "i": 2, "s": None, "c": "v", "n": None},
    ]
    indexed = frame[["i"]].set_index(pd.Index(["k1", "k2"], name="key"))
    assert values(read_all(plan(indexed, tmp_path))[0]) == [
        {"i": 1, "key": "k1"},
        {"i": 2, "key": "k2"},
    ]
    assert values(read_all(plan(frame[["i"]][frame.i > 1], tmp_path))[0]) == [{"i": 2}]
    with pytest.raises(DataError, match="give the column one type"):
        plan(pd.DataFrame({"m": [1, "x"]}), tmp_path)
    assert values(read_all(plan({"f": frame["f"]}, tmp_path))[0]) == [{"f": 1.5}, {"f": None}]


def test_duckdb_relation_is_built(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    relation = duckdb.sql("select range as n, 'r' || range as s from range(5)")
    assert values(read_all(plan(relation, tmp_path))[0]) == [
        {"n": n, "s": f"r{n}"} for n in range(5)
    ]


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (
        [{"a": 1}, {"a": "x"}],
        DataError,
        "memory: 'a' is int in row 0 and str in row 1; give it one type",
    ),
    ([{"a": True}, {"a": 1}], DataError, "memory: 'a' is bool in row 0 and int in row 1"),
    ([{"a": "x"}, {"a": b"x"}], DataError, "memory: 'a' is str in row 0 and bytes in row 1"),
    (
        [{"a": 1}, [1]],
        DataError,
        "memory: row 1: is of type list, not a dict of column names to values",
    ),
    (
        [{"a": 1}, {"a": 2**70}],
        DataError,
        "memory: row 1: 'a' is 1180591620717411303424, which does not fit the rows before it",
    ),
    ([{"a": [1]}, {"a": ["x"]}], DataError, r"memory: row 1: 'a' is \['x'\]"),
    ([{"a": object()}], DataError, "memory: row 0: 'a' is <object object"),
    (
        [{"a": np.zeros(2)}, {"a": np.zeros((2, 2))}],
        DataError,
        r"'a' holds arrays of float64 of rank 1 in row 0 and float64 of rank 2 in row 1",
    ),
    ([{1: 2}], DataError, "column names are text, but one is 1"),
    (
        [{"a": decimal.Decimal("1.5")}],
        DataError,
        r"decimal128\(2, 1\), which no feature can hold; .* declare its type: --dtype a=string",
    ),
    ({"a": [1, 2], "b": [1]}, DataError, "memory: columns of different length: 'a' 2, 'b' 1"),
    ({"a": 1}, UsageError, "column 'a' is of type int; a dict of columns holds arrays or lists"),
    ({"a": "text"}, UsageError, "column 'a' is of type str"),
    (
        {"a": np.zeros(2, np.complex64)},
        DataError,
        "column 'a': no feature can hold NumPy's complex64",
    ),
    ({"a": np.zeros(2, np.longdouble)}, DataError, "column 'a': no feature can hold NumPy's"),
    (
        {"a": [np.zeros((2, rows), np.longdouble) for rows in (1, 2)]},
        DataError,
        "column 'a': no feature can hold",
    ),
    (
        {"a": np.array([1], "datetime64[ps]")},
        DataError,
        "column 'a': no feature can hold NumPy's datetime64",
    ),
    (
        7,
        UsageError,
        "can't build from an object of type int: give paths, a pyarrow Table or reader",
    ),
    (np.zeros(3), UsageError, "can't build from an object of type ndarray"),
    ([], DataError, "memory: there are no rows"),
    ({}, DataError, "memory: there are no rows"),
    (pa.table({"a": pa.array([], pa.int64())}), DataError, "memory: there are no rows"),
    (pa.table({"a.b": [1], "a": [{"b": 2}]}), DataError, "two columns are named 'a.b'"),
]


@pytest.mark.parametrize(
    ("data", "kind", "message"), REFUSED, ids=[case[2][:40] for case in REFUSED]
)
def test_unsupported_data_in_memory_is_refused(
    tmp_path: Path, data: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        plan(data, tmp_path)


def test_batches_of_different_types_are_refused_until_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_rows, "_MAX_BATCH_ROWS", 1)
    with pytest.raises(
        DataError,
        match="rows 1 to 1: 'a' is string here, but int64 in rows 0 to 0; declare its type, such as "
        "--dtype a=string",
    ):
        plan([{"a": 1}, {"a": "x"}], tmp_path)
    assert values(read_all(plan([{"a": 1}, {"a": "x"}], tmp_path, dtypes={"a": "string"}))[0]) == [
        {"a": "1"},
        {"a": "x"},
    ]
    rows, rejects = read_all(plan([{"a": 1}, {"a": "x"}], tmp_path, dtypes={"a": "int8"}))
    assert values(rows) == [{"a": 1}]
    assert [(reject.source, reject.place, in_flags(reject.message)) for reject in rejects] == [
        ("memory", "row 1", "a: 'x' does not fit int8; --dtype a=string keeps it")
    ]


def test_data_in_memory_does_not_need_pandas() -> None:
    code = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Without())
from recordmill.sources.arrow.python_rows import to_batches
print(sum(b.num_rows for b in to_batches({"a": [1, 2]})))
"""
    assert run_python("-c", code).stdout == "2\n"


def test_masked_arrays_are_missing_values(tmp_path: Path) -> None:
    tensors = np.ma.masked_array(
        np.full((3, 2, 2), 999), mask=[[[0, 0], [0, 0]], [[1, 1], [1, 1]], [[0, 0], [0, 0]]]
    )
    scalars = np.ma.masked_array([1, 999, 3], mask=[0, 1, 0])
    rows = [{"t": tensor, "x": scalar} for tensor, scalar in zip(tensors, scalars, strict=True)]
    for name, data in (("columns", {"t": tensors, "x": scalars}), ("rows", iter(rows))):
        (tmp_path / name).mkdir()
        source = plan(data, tmp_path / name)
        assert features(source) == {"t": "int64 [2, 2]", "x": "int64"}
        records = values(read_all(source)[0])
        assert [row["x"] for row in records] == [1, None, 3]
        assert [row["t"] for row in records] == [[999] * 4, None, [999] * 4]
    tensors[2, 0, 1] = np.ma.masked
    for data in ({"t": tensors}, iter({"t": tensor} for tensor in tensors)):
        with pytest.raises(
            DataError,
            match=r"row 2: 't' is an array of which some items are masked.*fill them, or mask",
        ):
            plan(data, tmp_path)
    for data in ({"t": tensors.filled(0)}, iter({"t": tensor.filled(0)} for tensor in tensors)):
        assert len(read_all(plan(data, tmp_path))[0]) == 3
    tensors[2] = np.ma.masked
    assert values(read_all(plan({"t": tensors}, tmp_path))[0])[2] == {"t": None}


def test_data_frame_with_duplicate_column_names_is_refused(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError, match="two columns are named 'a'"):
        plan(pandas.DataFrame([[1, "x"]], columns=["a", "a"]), tmp_path)


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms"])
def test_numpy_times_of_any_unit_are_built(tmp_path: Path, unit: str) -> None:
    times = np.array(["2021-03-04T05:06", "NaT"], f"datetime64[{unit}]")
    rows, rejects = read_all(plan({"a": times}, tmp_path))
    assert (values(rows)[0]["a"], rejects) == (times.astype("datetime64[ms]")[0].item(), [])
