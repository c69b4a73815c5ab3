"""Arrow columns to arrays, Ragged and Strings:
missing, empty and zero stay three things, whatever slice of a column it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_data_set import MIXED, mixed_rows

from recordmill.records.columns.numpy_arrays import gather_columns, joined_columns, numpy_dtype, take_apart, to_numpy
from recordmill.records.columns.ragged import Ragged, Strings
from recordmill.schemas.arrow import arrow_type
from recordmill.schemas.feature import Feature

FEATURES = [
    Feature("f", "int64"), Feature("f", "float16"), Feature("f", "bfloat16"), Feature("f", "bool", (2,)),
    Feature("f", "uint64", (2,)), Feature("f", "string"), Feature("f", "bytes", (2,)), Feature("f", "float32", (None,)),
    Feature("f", "string", (None,)), Feature("f", "int8", (None, None)), Feature("f", "float64", (None, 2)),
    Feature("f", "timestamp[ms]"), Feature("f", "timestamp[s]", (None,)), Feature("f", "string", (None, None)),
]  # fmt: skip


def one(feature: Feature, shape: tuple[int | None, ...], draw: st.DrawFn) -> Any:
    if shape:
        if shape[0] is not None:
            return [item for _ in range(feature.inner_size) for item in [one(feature, (), draw)]]
        return [one(feature, shape[1:], draw) for _ in range(draw(st.integers(0, 3)))]
    if feature.dtype == "bool":
        return draw(st.booleans())
    if feature.dtype == "string":
        return draw(st.text(max_size=3))
    if feature.dtype == "bytes":
        return draw(st.binary(max_size=3))
    small = draw(st.integers(0, 100))
    return np.float16(small) if feature.dtype == "float16" else float(small) if "float" in feature.dtype else small


def as_python(value: Any, feature: Feature) -> Any:
    """A row of what to_numpy gives as nested lists, tensors flat."""
    if (
        value is None
        or value is np.ma.masked
        or (isinstance(value, np.ma.MaskedArray) and value.mask.all() and value.size)
    ):
        return None
    if isinstance(value, Ragged | Strings):
        return [as_python(item, feature) for item in value]
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "M":
            value = value.astype(np.int64)
        items = value.tolist()
        return [as_python(item, feature) for item in items] if isinstance(items, list) else items
    if isinstance(value, np.datetime64):
        return int(value.astype(np.int64))
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.describe())
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_values_come_back(feature: Feature, data: st.DataObject) -> None:
    rows = [
        None if data.draw(st.booleans()) else data.draw(st.composite(lambda draw: one(feature, feature.shape, draw))())
        for _ in range(4)
    ]
    column = pa.array(rows, arrow_type(feature)).slice(1)
    found = to_numpy(column, feature)
    shown = [as_python(row, feature) for row in found]
    expected = [
        None if row is None else [float(v) for v in row] if feature.dtype == "bfloat16" and feature.shape else row
        for row in rows[1:]
    ]
    assert shown == expected
    halves = joined_columns([take_apart(column.slice(0, 1), feature), take_apart(column.slice(1), feature)], feature)
    whole = take_apart(column, feature)
    assert halves.values.tolist() == whole.values.tolist()
    assert [a.tolist() for a in halves.splits] == [a.tolist() for a in whole.splits]
    assert halves.valid.tolist() == whole.valid.tolist()


def test_gathered_columns_equal_those_of_the_whole_table() -> None:
    table = mixed_rows(50).combine_chunks()
    (batch,) = table.to_batches()
    gathered = gather_columns([batch.slice(0, 7), batch.slice(7, 0), batch.slice(7)], MIXED, 50)
    for feature in MIXED:
        whole = to_numpy(batch.column(feature.name), feature)
        assert type(gathered[feature.name]) is type(whole)
        assert [as_python(row, feature) for row in gathered[feature.name]] == [as_python(row, feature) for row in whole]
        assert not isinstance(whole, np.ndarray) or whole.dtype == numpy_dtype(feature)


def test_gather_counts() -> None:
    (batch,) = mixed_rows(5).combine_chunks().to_batches()
    with pytest.raises(ValueError, match="5 rows where 6"):
        gather_columns([batch], MIXED, 6)
    with pytest.raises(ValueError, match="more than the 4"):
        gather_columns([batch], MIXED, 4)


def test_masks_leave_statistics_right() -> None:
    feature = Feature("x", "float32")
    found = to_numpy(pa.array([1.0, None, 3.0], pa.float32()), feature)
    assert found.mean() == 2.0
    assert found.filled(-1).tolist() == [1.0, -1.0, 3.0]


def test_ragged_pads_cuts_and_slices() -> None:
    rows = Ragged(np.arange(6, dtype=np.int32), np.array([0, 3, 3, 6]), np.array([True, False, True]))
    assert rows.to_padded(2, -1).tolist() == [[0, 1], [-1, -1], [3, 4]]
    assert rows.to_padded(5, 9).tolist() == [[0, 1, 2, 9, 9], [9] * 5, [3, 4, 5, 9, 9]]
    assert rows[1] is None
    assert rows[-1].tolist() == [3, 4, 5]
    assert rows[1:][1].tolist() == [3, 4, 5]
    assert rows[2:].to_padded().tolist() == [[3, 4, 5]]
    assert rows.lengths.tolist() == [3, 0, 3]
    with pytest.raises(IndexError, match="row 3 of 3"):
        rows[3]
    with pytest.raises(IndexError, match="consecutive"):
        rows[::2]
    words = Ragged(Strings(np.frombuffer(b"abc", np.uint8), np.array([0, 1, 3]), True), np.array([0, 2, 2]))
    assert words.to_padded(value="").tolist() == [["a", "bc"], ["", ""]]
    assert words.to_list() == [["a", "bc"], []]
    assert "2 rows of 0 to 2 items" in repr(words)


def test_strings_are_arrays_when_asked() -> None:
    text = Strings(np.frombuffer("aü".encode(), np.uint8), np.array([0, 1, 1, 3]), True, np.array([True, False, True]))
    assert np.asarray(text).tolist() == ["a", None, "ü"]
    assert text[1:].to_list() == [None, "ü"]
    assert repr(text) == "Strings(3 rows: 'a', None, 'ü')"


def test_ragged_is_tensorflows_ragged() -> None:
    tf = pytest.importorskip("tensorflow")
    nested = to_numpy(
        pa.array([[[1], [2, 3]], [], [[]]], pa.large_list(pa.large_list(pa.int64()))),
        Feature("n", "int64", (None, None), True),
    )
    assert nested.to_tf().to_list() == [[[1], [2, 3]], [], [[]]]
    assert nested[1:].to_tf().to_list() == [[], [[]]]
    assert tf.RaggedTensor is type(nested.to_tf())
