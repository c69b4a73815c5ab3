"""Columns become padded lists that tf.Transform's adapter accepts.

Features that do not fit a tensor are refused.
"""

import numpy as np
import pyarrow as pa
import pytest

from recordmill.preprocessing.tensors import (
    PAD_ROWS,
    count_padded_rows,
    explain_unfit,
    flatten_values,
    make_list_schema,
    make_representations,
    to_list_columns,
)
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema

SCHEMA_OF_TENSORS = Schema(
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
    """Returns rows of SCHEMA_OF_TENSORS.

    Every third value of b, c and f is missing, and every fourth value of d.
    """
    columns = [
        np.arange(rows),
        [None if i % 3 == 0 else i / 7 for i in range(rows)],
        [None if i % 3 == 1 else f"word {i}" for i in range(rows)],
        [None if i % 4 == 0 else ["x"] * (i % 4 - 1) for i in range(rows)],
        [[i % 256, 1] for i in range(rows)],
        [None if i % 3 == 2 else i % 2 == 0 for i in range(rows)],
        np.arange(rows),
    ]
    types = [to_arrow(SCHEMA_OF_TENSORS).field(name).type for name in SCHEMA_OF_TENSORS.names]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(SCHEMA_OF_TENSORS.names))


@pytest.mark.parametrize("offset", [0, 5])
def test_every_column_becomes_a_list_and_missing_values_become_empty_lists(offset: int) -> None:
    list_batch = to_list_columns(batch(20).slice(offset), SCHEMA_OF_TENSORS)
    assert list_batch.schema == make_list_schema(SCHEMA_OF_TENSORS)
    row = list_batch.slice(6, 1).to_pylist()[0]
    i = offset + 6
    assert row == {
        "a": [i],
        "b": [] if i % 3 == 0 else [i / 7],
        "c": [] if i % 3 == 1 else [f"word {i}".encode()],
        "d": [] if i % 4 == 0 else [b"x"] * (i % 4 - 1),
        "e": [i, 1],
        "f": [] if i % 3 == 2 else [int(i % 2 == 0)],
        "g": [i],
    }


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 1000])
def test_rows_and_values_are_padded_to_multiples_of_16(rows: int) -> None:
    records = batch(rows)
    assert count_padded_rows(rows) % PAD_ROWS == 0
    assert rows + PAD_ROWS <= count_padded_rows(rows) < rows + 2 * PAD_ROWS
    for feature in SCHEMA_OF_TENSORS:
        flat = flatten_values(records.column(feature.name), feature)
        assert len(flat.values) % PAD_ROWS == 0
        if flat.splits is None:
            assert len(flat.values) == count_padded_rows(rows) * feature.inner_size
            continue
        assert len(flat.splits) == count_padded_rows(rows) + 1
        assert flat.splits[-1] == len(flat.values)
        assert np.diff(flat.splits[rows:]).max() <= 1
        expected = [
            len(row)
            for row in to_list_columns(records, SCHEMA_OF_TENSORS).column(feature.name).to_pylist()
        ]
        assert np.diff(flat.splits[: rows + 1]).tolist() == expected


def test_tensor_representations_cover_every_feature() -> None:
    kinds = {
        name: representation.WhichOneof("kind")
        for name, representation in make_representations(SCHEMA_OF_TENSORS).items()
    }
    dense, sparse = "dense_tensor", "varlen_sparse_tensor"
    assert kinds == {
        "a": dense,
        "b": sparse,
        "c": sparse,
        "d": "ragged_tensor",
        "e": dense,
        "f": sparse,
        "g": dense,
    }


def test_feature_that_no_tensor_can_hold_is_explained() -> None:
    assert "no lists of lists" in str(explain_unfit(Feature("x", "int64", (None, None))))
    assert "only tensors that are never missing" in str(explain_unfit(Feature("x", "int64", (3,))))
    assert explain_unfit(Feature("x", "int64", (3,), required=True)) is None
