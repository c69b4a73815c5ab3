"""Rows of different lengths are indexed, sliced, padded and converted."""

import numpy as np
import pyarrow as pa
import pytest

from recordmill.records.columns.numpy_arrays import (
    to_numpy,
)
from recordmill.records.columns.ragged import Ragged, Strings
from recordmill.schemas.feature import Feature


def test_ragged_and_strings_pad_truncate_and_slice() -> None:
    rows = Ragged(
        np.arange(6, dtype=np.int32), np.array([0, 3, 3, 6]), np.array([True, False, True])
    )
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
    words = Ragged(
        Strings(np.frombuffer(b"abc", np.uint8), np.array([0, 1, 3]), True), np.array([0, 2, 2])
    )
    assert words.to_padded(value="").tolist() == [["a", "bc"], ["", ""]]
    assert words.to_list() == [["a", "bc"], []]
    assert "2 rows of 0 to 2 items" in repr(words)


def test_strings_convert_to_arrays_and_lists() -> None:
    text = Strings(
        np.frombuffer("aü".encode(), np.uint8),
        np.array([0, 1, 1, 3]),
        True,
        np.array([True, False, True]),
    )
    assert np.asarray(text).tolist() == ["a", None, "ü"]
    assert text[1:].to_list() == [None, "ü"]
    assert repr(text) == "Strings(3 rows: 'a', None, 'ü')"


def test_ragged_converts_to_a_ragged_tensor() -> None:
    tf = pytest.importorskip("tensorflow")
    nested = to_numpy(
        pa.array([[[1], [2, 3]], [], [[]]], pa.large_list(pa.large_list(pa.int64()))),
        Feature("n", "int64", (None, None), True),
    )
    assert nested.to_tf().to_list() == [[[1], [2, 3]], [], [[]]]
    assert nested[1:].to_tf().to_list() == [[], [[]]]
    assert tf.RaggedTensor is type(nested.to_tf())
