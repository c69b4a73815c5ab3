"""Columns as tf.Transform's adapter and the saved graph take them: what is missing, what is padded, and back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from recordmill.preprocessing.tensors import (
    PAD_ROWS,
    as_lists,
    flat_values,
    list_schema,
    padded_rows,
    representations,
    unfit,
)
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema

SCHEMA = Schema(
    (
        Feature("a", "int16", required=True),
        Feature("b", "float64"),
        Feature("c", "string"),
        Feature("d", "string", (None,)),
        Feature("e", "uint8", (2,), required=True),
        Feature("f", "bool"),
        Feature("g", "timestamp[us]", required=True),
    )
)


def batch(rows: int) -> pa.RecordBatch:
    """Every third value of b, c and f missing, every fourth d."""
    columns = [
        np.arange(rows),
        [None if i % 3 == 0 else i / 7 for i in range(rows)],
        [None if i % 3 == 1 else f"word {i}" for i in range(rows)],
        [None if i % 4 == 0 else ["x"] * (i % 4 - 1) for i in range(rows)],
        [[i % 256, 1] for i in range(rows)],
        [None if i % 3 == 2 else i % 2 == 0 for i in range(rows)],
        np.arange(rows),
    ]
    types = [to_arrow(SCHEMA).field(name).type for name in SCHEMA.names]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(SCHEMA.names))


@pytest.mark.parametrize("offset", [0, 5])
def test_every_column_becomes_a_list_with_an_empty_one_where_it_is_missing(offset: int) -> None:
    made = as_lists(batch(20).slice(offset), SCHEMA)
    assert made.schema == list_schema(SCHEMA)
    rows = made.slice(6, 1).to_pylist()[0]
    i = offset + 6
    assert rows == {
        "a": [i],
        "b": [] if i % 3 == 0 else [i / 7],
        "c": [] if i % 3 == 1 else [f"word {i}".encode()],
        "d": [] if i % 4 == 0 else [b"x"] * (i % 4 - 1),
        "e": [i, 1],
        "f": [] if i % 3 == 2 else [int(i % 2 == 0)],
        "g": [i],
    }


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 1000])
def test_rows_and_values_are_padded_to_multiples_of_a_vector(rows: int) -> None:
    records = batch(rows)
    assert padded_rows(rows) % PAD_ROWS == 0
    assert rows + PAD_ROWS <= padded_rows(rows) < rows + 2 * PAD_ROWS
    for feature in SCHEMA:
        found = flat_values(records.column(feature.name), feature)
        assert len(found.values) % PAD_ROWS == 0
        if found.splits is None:
            assert len(found.values) == padded_rows(rows) * feature.inner_size
            continue
        assert len(found.splits) == padded_rows(rows) + 1
        assert found.splits[-1] == len(found.values)
        assert np.diff(found.splits[rows:]).max() <= 1
        expected = [len(row) for row in as_lists(records, SCHEMA).column(feature.name).to_pylist()]
        assert np.diff(found.splits[: rows + 1]).tolist() == expected


def test_the_adapter_s_representations_name_every_feature() -> None:
    kinds = {name: one.WhichOneof("kind") for name, one in representations(SCHEMA).items()}
    dense, sparse = "dense_tensor", "varlen_sparse_tensor"
    assert kinds == {"a": dense, "b": sparse, "c": sparse, "d": "ragged_tensor", "e": dense, "f": sparse, "g": dense}


def test_what_no_tensor_can_be_is_said() -> None:
    assert "no lists of lists" in str(unfit(Feature("x", "int64", (None, None))))
    assert "only whole tensors" in str(unfit(Feature("x", "int64", (3,))))
    assert unfit(Feature("x", "int64", (3,), required=True)) is None
