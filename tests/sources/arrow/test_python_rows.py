"""Python dicts of any values become Arrow columns with a common type."""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.memory_sources import plan
from kit.runs import in_flags
from kit.source_reading import features, read_all, values

from recordmill.base.errors import DataError
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.arrow import memory, python_rows
from recordmill.sources.arrow import python_rows as in_memory


def test_types_of_dicts_are_widened_over_all_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_rows, "_MAX_BATCH_ROWS", 2)
    rows = [
        {"a": 1},
        {"a": 2, "b": None},
        {"a": 3},
        {"b": "x", "a": None},
        {"a": 2.5, "c": [1]},
        {"c": []},
    ]
    source = plan(iter(rows), tmp_path)
    assert len(source.segments) == 3
    assert features(source) == {"a": "float64", "b": "string", "c": "int64 [?]"}
    assert values(read_all(source)[0]) == [{"a": None, "b": None, "c": None} | row for row in rows]


def test_dicts_of_arrays_become_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_rows, "_MAX_BATCH_ROWS", 3)
    rows = [
        {
            "t": np.full((2, 2), i, np.uint8),
            "v": np.arange(i, dtype=np.float32),
            "m": np.ones((i % 2 + 1, 3)),
            "z": np.int8(i),
        }
        for i in range(7)
    ]
    rows[4] = {"v": None}  # type: ignore[dict-item]
    source = plan(rows, tmp_path)
    assert features(source) == {
        "t": "uint8 [2, 2]",
        "v": "float32 [?]",
        "m": "float64 [?, 3]",
        "z": "int8",
    }
    for row, expected in zip(values(read_all(source)[0]), rows, strict=True):
        if "t" in expected:
            assert row["t"] == expected["t"].reshape(-1).tolist()
            assert row["m"] == expected["m"].tolist()
            assert row["z"] == int(expected["z"])
            assert row["v"] == expected["v"].tolist()
    assert values(read_all(source)[0])[4] == {"t": None, "v": None, "m": None, "z": None}


def test_dicts_of_bytes_times_and_objects_are_built(tmp_path: Path) -> None:
    moment = datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.timezone.utc)
    source = plan(
        [
            {
                "b": b"\x00",
                "d": datetime.date(2020, 1, 2),
                "t": moment,
                "u": 2**64 - 1,
                "o": {"x": [{"y": 1}, {"y": 2}]},
            }
        ],
        tmp_path,
        dtypes={"u": "string"},
    )
    assert features(source) == {
        "b": "bytes!",
        "d": "timestamp[s]!",
        "t": "timestamp[us, UTC]!",
        "u": "string!",
        "o.x.y": "int64 [?]!",
    }
    row = values(read_all(source)[0])[0]
    assert row | {"t": row["t"].timestamp()} == {
        "b": b"\x00",
        "d": datetime.datetime(2020, 1, 2),
        "t": moment.timestamp(),
        "u": "18446744073709551615",
        "o.x.y": [1, 2],
    }


def test_empty_dicts_are_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_rows, "_MAX_BATCH_ROWS", 2)
    assert values(read_all(plan([{}, {}, {}, {"a": 1}], tmp_path))[0]) == [{"a": None}] * 3 + [
        {"a": 1}
    ]
    assert len(read_all(plan([{}, {}, {}], tmp_path))[0]) == 3


def test_iterator_is_read_in_batches_of_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "UNIT_BYTES", 40_000)
    monkeypatch.setattr(python_rows, "BATCH_BYTES", 10_000)
    monkeypatch.setattr(in_memory, "BATCH_BYTES", 10_000)
    consumed: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        for i in range(100):
            consumed.append(i)
            yield {"i": i, "x": np.full(500, i, np.float32)}

    source = plan(rows(), tmp_path)
    assert len(consumed) == 100
    assert len(source.units) > 3
    result, _ = read_all(source)
    assert [row["i"] for row in values(result)] == list(range(100))
    table = {"x": np.arange(20_000.0)}
    assert [unit.rows for unit in plan(table, tmp_path).units] == [5000] * 4


row_strategy = st.fixed_dictionaries(
    {},
    optional={
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(allow_nan=False),
        "s": st.none() | st.text(alphabet=st.characters(exclude_categories=["Cs"])),
        "b": st.none() | st.binary(),
        "l": st.none() | st.lists(st.booleans()),
        "o": st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(0, 9)}),
    },
)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(row_strategy, min_size=1, max_size=20), st.integers(1, 7))
def test_arbitrary_rows_are_built_with_their_values(
    tmp_path: Path, rows: list[dict[str, Any]], batch_rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_rows, "_MAX_BATCH_ROWS", batch_rows)
        source = plan(iter(rows), tmp_path)
        records = values(read_all(source)[0])
    assert len(records) == len(rows)
    for row, input_row in zip(records, rows, strict=True):
        for feature in source.schema:
            value: Any = input_row
            for name in feature.name.split("."):
                value = None if value is None else value.get(name)
            assert row[feature.name] == value


def test_masked_values_in_lists_dicts_and_frames_are_missing_values(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    unmasked_array, masked_array = (
        np.ma.masked_array([1, 2]),
        np.ma.masked_array([3, 999], mask=True),
    )
    partly_masked_array = np.ma.masked_array([3, 999], mask=[False, True])
    makers = {
        "frame": lambda array: pandas.DataFrame({"t": [unmasked_array, array]}),
        "series": lambda array: {"t": pandas.Series([unmasked_array, array])},
        "dicts": lambda array: iter([{"d": {"t": unmasked_array}}, {"d": {"t": array}}]),
        "lists": lambda array: iter([{"t": [{"u": unmasked_array}]}, {"t": [{"u": array}]}]),
    }
    for name, make_data in makers.items():
        with pytest.raises(DataError, match="is an array of which some items are masked") as error:
            plan(make_data(partly_masked_array), tmp_path)
        assert error.value.place == "row 1"
        if name != "lists":
            (tmp_path / name).mkdir()
            records = values(read_all(plan(make_data(masked_array), tmp_path / name))[0])
            assert [list(row.values()) for row in records] == [[[1, 2]], [None]]
    scalars = iter([{"d": {"x": 1}, "l": [1]}, {"d": {"x": np.ma.masked}, "l": [np.ma.masked]}])
    (row,), (reject,) = read_all(plan(scalars, tmp_path))
    assert values([row]) == [{"d.x": 1, "l": [1]}]
    assert "a null inside a list" in reject.message


NAIVE = datetime.datetime(2020, 1, 2, 3)


AWARE = NAIVE.replace(tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize("pair", [(NAIVE, AWARE), (AWARE, NAIVE)])
def test_times_with_and_without_a_zone_are_not_mixed(tmp_path: Path, pair: tuple[Any, Any]) -> None:
    pandas = pytest.importorskip("pandas")
    inputs = [
        iter([{"t": first} for first in pair]),
        {"t": list(pair)},
        iter([{"t": [first]} for first in pair]),
        iter([{"t": {"u": first}} for first in pair]),
        {"t": pandas.Series(pair, dtype=object)},
        pandas.DataFrame({"t": pandas.Series(pair, dtype=object)}),
    ]
    for data in inputs:
        with pytest.raises(
            DataError,
            match=r"a time with a time zone in row \d and one without in row \d; give all of them",
        ):
            plan(data, tmp_path)
    times = [first.replace(tzinfo=datetime.timezone.utc) for first in pair]
    assert features(plan({"t": times}, tmp_path)) == {"t": "timestamp[us, UTC]!"}
    first, second = pair
    kinds = {NAIVE: "timestamp[us]", AWARE: "timestamp[us, UTC]"}
    schema = Schema((Feature("t", kinds[second]),))
    rows, (reject,) = read_all(plan({"t": [first]}, tmp_path, schema=schema))
    article = "a" if first.tzinfo else "no"
    assert not rows
    assert in_flags(reject.message).endswith(
        f"for it has {article} time zone; --dtype 't={kinds[first]}' keeps it"
    )
    assert (
        len(read_all(plan({"t": [first]}, tmp_path, schema=schema, dtypes={"t": kinds[first]}))[0])
        == 1
    )
    if first.tzinfo is None:
        day = plan({"t": [first.date()]}, tmp_path, schema=schema)
        assert len(read_all(day)[1]) == 1


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
def test_nat_in_rows_is_null(tmp_path: Path, unit: str) -> None:
    times = list(np.array(["2021-03-04", "NaT"], f"datetime64[{unit}]"))
    for number, column in enumerate((times, [*times, None])):
        spool = tmp_path / str(number)
        spool.mkdir()
        rows, rejects = read_all(plan({"a": column}, spool))
        assert [row["a"] is None for row in values(rows)] == [False, True, True][: len(column)]
        assert not rejects


def test_generator_may_use_its_containers_again() -> None:
    def yield_rows() -> Iterator[dict[str, Any]]:
        row: dict[str, Any] = {"nested": [np.zeros(2)], "data": bytearray(1)}
        array, numbers, buffer = np.zeros(2), [0], np.zeros((4, 2))
        for number in range(4):
            array[:], numbers[0], buffer[0] = number, number, number
            row["nested"][0][:], row["data"][0] = number, number
            row |= {"id": number, "array": array, "list": numbers, "view": buffer[0]}
            yield row

    (batch,) = python_rows.rows_to_batches(yield_rows())
    assert batch.to_pylist() == [
        {
            "nested": [[number, number]],
            "data": bytes([number]),
            "id": number,
            "array": [number, number],
            "list": [number],
            "view": [number, number],
        }
        for number in range(4)
    ]


def test_rows_with_other_keys_have_nulls() -> None:
    rows = [{"a": 1}, {"b": "x", "a": 2}, {"b": "y"}, {}, {"c": [1.5]}]
    (batch,) = python_rows.rows_to_batches(rows)
    assert batch.to_pylist() == [{name: row.get(name) for name in "abc"} for row in rows]
