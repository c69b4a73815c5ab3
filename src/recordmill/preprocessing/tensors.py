"""Conversion of features to the tensors of a transform, and of tensors to columns.

A feature that every record has is a dense tensor of its shape. A feature that may be missing is a
SparseTensor with at most one value per row. A list is a RaggedTensor, and a missing list is empty.
Integers are int64, except that tensors of uint8 stay uint8. Text and bytes are strings.

During the analysis, tf.Transform makes the tensors with an adapter that takes only lists, so the
analysis uses `to_list_columns`. The saved graph gets the tensors of this module. These tensors are
padded to a multiple of 16 rows and 16 values. Otherwise, the last bits of log and exp would depend
on the position of a value in its batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tensorflow_metadata.proto.v0 import schema_pb2

from recordmill.base.buffers import to_offsets
from recordmill.schemas.arrow import arrow_type, value_type
from recordmill.schemas.feature import Feature, Schema

# Rows and values of a batch are padded to multiples of 16, because no vector unit computes more
# values at once.
PAD_ROWS = 16
DENSE_LAYOUT, SPARSE_LAYOUT, RAGGED_LAYOUT = "dense", "sparse", "ragged"

_ARROW = {
    "float32": pa.float32(),
    "float64": pa.float64(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
}


def explain_unfit(feature: Feature) -> str | None:
    """Returns why a transform can't take a feature, or None if it can."""
    if feature.ragged_rank > 1 or (feature.ragged_rank and feature.inner_shape):
        return f"it is {feature.describe()}, and a transform takes no lists of lists"
    if feature.shape and not feature.required and not feature.ragged_rank:
        return (
            f"it is {feature.describe()} and may be missing, and a transform takes "
            "only tensors that are never missing"
        )
    return None


def choose_tensor_layout(feature: Feature) -> str:
    """Returns the kind of tensor for a feature: DENSE_LAYOUT, SPARSE_LAYOUT or RAGGED_LAYOUT."""
    return (
        RAGGED_LAYOUT
        if feature.ragged_rank
        else DENSE_LAYOUT
        if feature.required
        else SPARSE_LAYOUT
    )


def tensor_dtype(feature: Feature) -> str:
    """Returns the dtype of a feature's tensor: int64, uint8, float32, float64 or string."""
    if feature.dtype in ("string", "bytes"):
        return "string"
    if feature.dtype in ("float16", "bfloat16", "float32"):
        return "float32"
    return (
        feature.dtype
        if feature.dtype == "float64" or (feature.dtype == "uint8" and feature.raw)
        else "int64"
    )


def to_list_columns(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """Converts a batch to the form that tf.Transform's adapter takes.

    Each column is a large_list with the dtype of its tensor. A missing value is an empty list.
    """
    columns = [_to_lists(batch.column(feature.name), feature) for feature in schema]
    return pa.RecordBatch.from_arrays(columns, schema=make_list_schema(schema))


def make_list_schema(schema: Schema) -> pa.Schema:
    """Returns the Arrow schema of the batches from `to_list_columns`."""
    return pa.schema(
        [(feature.name, pa.large_list(_tensor_arrow_type(feature))) for feature in schema]
    )


def make_representations(schema: Schema) -> dict[str, Any]:
    """Returns the TensorRepresentation of each feature, by name.

    With these, tf.Transform's adapter (tfx-bsl) produces the same tensors as this module.
    """
    by_name = {}
    for feature in schema:
        representation = schema_pb2.TensorRepresentation()
        if choose_tensor_layout(feature) == DENSE_LAYOUT:
            representation.dense_tensor.column_name = feature.name
            representation.dense_tensor.shape.SetInParent()
            representation.dense_tensor.shape.dim.extend(
                schema_pb2.FixedShape.Dim(size=size) for size in feature.inner_shape
            )
        elif choose_tensor_layout(feature) == SPARSE_LAYOUT:
            representation.varlen_sparse_tensor.column_name = feature.name
        else:
            representation.ragged_tensor.feature_path.step.append(feature.name)
            representation.ragged_tensor.row_partition_dtype = (
                schema_pb2.TensorRepresentation.RowPartitionDType.INT64
            )
        by_name[feature.name] = representation
    return by_name


@dataclass(frozen=True)
class TensorValues:
    """The values of a feature in a batch, as flat arrays.

    Attributes:
        values: For a dense feature, [rows * values per row]. Otherwise only the values that are not
            missing.
        splits: [rows + 1]. The values of row r are `values[splits[r]:splits[r + 1]]`. None for a
            dense feature.
    """

    values: npt.NDArray[Any]
    splits: npt.NDArray[np.int64] | None = None


def count_padded_rows(rows: int) -> int:
    """Returns the number of rows of a batch after padding.

    It is a multiple of PAD_ROWS, and at least PAD_ROWS more than `rows`. The added rows contain the
    values that sparse and ragged features are padded with.

    >>> count_padded_rows(1), count_padded_rows(16), count_padded_rows(17)
    (32, 32, 48)
    """
    return rows + (-rows) % PAD_ROWS + PAD_ROWS


def flatten_values(column: pa.Array, feature: Feature) -> TensorValues:
    """Converts a column to flat values, padded to `count_padded_rows` rows.

    The number of values of a sparse or ragged feature is padded to a multiple of PAD_ROWS.
    """
    lists = _to_lists(column, feature)
    offsets = np.asarray(lists.offsets)
    flat = _to_numpy(lists.values.slice(offsets[0], offsets[-1] - offsets[0]))
    rows, offsets = len(column), offsets - offsets[0]
    num_padding = count_padded_rows(rows) - rows
    if choose_tensor_layout(feature) == DENSE_LAYOUT:
        size = feature.inner_size
        return TensorValues(np.concatenate([flat, np.tile(flat[:size], num_padding)]))
    num_extra = (-len(flat)) % PAD_ROWS
    # The additional rows contain the additional values, one each.
    ends = offsets[-1] + np.minimum(np.arange(1, num_padding + 1), num_extra)
    return TensorValues(
        np.concatenate([flat, np.repeat(flat[:1], num_extra)]),
        np.concatenate([offsets, ends]).astype(np.int64),
    )


def make_tensors(batch: pa.RecordBatch, schema: Schema) -> dict[str, Any]:
    """Converts a batch to the padded tensors that the graph takes, by feature name.

    If the batch lacks the column of a feature, its values are missing. For a dense feature they are
    0 or "".
    """
    column_names = {*batch.schema.names}
    columns = {
        f.name: batch.column(f.name)
        if f.name in column_names
        else _make_missing_column(f, batch.num_rows)
        for f in schema
    }
    return {f.name: _make_tensor(flatten_values(columns[f.name], f), f) for f in schema}


def _make_missing_column(feature: Feature, rows: int) -> pa.Array:
    """Returns the column for a feature that the batch lacks."""
    if choose_tensor_layout(feature) != DENSE_LAYOUT:
        return pa.nulls(rows, arrow_type(feature))
    values, count = value_type(feature), rows * feature.inner_size
    if feature.dtype in ("string", "bytes"):
        flat = pa.repeat(pa.scalar(b"").cast(values), count)
    else:
        flat = pa.array(np.zeros(count, np.uint8)).cast(_tensor_arrow_type(feature)).cast(values)
    return (
        flat if not feature.shape else pa.FixedSizeListArray.from_arrays(flat, feature.inner_size)
    )


def _make_tensor(flat: TensorValues, feature: Feature) -> Any:
    import tensorflow as tf

    values = tf.constant(flat.values, dtype=tensor_dtype(feature))
    if flat.splits is None:
        return tf.reshape(values, [-1, *feature.inner_shape])
    if choose_tensor_layout(feature) == RAGGED_LAYOUT:
        return tf.RaggedTensor.from_row_splits(values, tf.constant(flat.splits), validate=False)
    rows = np.repeat(np.arange(len(flat.splits) - 1), np.diff(flat.splits))
    indices = np.stack([rows, np.zeros_like(rows)], 1)
    return tf.SparseTensor(indices, values, np.array([len(flat.splits) - 1, 1]))


def column_from_tensor(tensor: Any, feature: Feature, rows: int) -> pa.Array:
    """Converts a tensor that the graph returned to the column of its feature.

    Args:
        tensor: The tensor, with padding rows at its end.
        rows: The number of rows without padding.

    Raises:
        ValueError: The dimensions do not fit the feature, or a sparse tensor has gaps between its
            values.
    """
    values, splits = _flatten_tensor(tensor, rows)
    flat = _arrow_values(values, feature)
    if splits is None:
        if values.size != rows * feature.inner_size:
            raise ValueError(f"{values.size} values for {rows} rows of {feature.describe()}")
        return (
            flat
            if not feature.shape
            else pa.FixedSizeListArray.from_arrays(flat, feature.inner_size)
        )
    if feature.ragged_rank:
        return pa.LargeListArray.from_arrays(pa.array(splits), flat)
    counts = np.diff(splits)
    if counts.size and counts.max() > 1:
        raise ValueError(f"{counts.max()} values in a row of {feature.describe()}")
    return flat.take(pa.array(splits[:-1], mask=counts == 0))


def _flatten_tensor(
    tensor: Any, rows: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64] | None]:
    """Returns the flat values and the splits of the first rows of a tensor.

    Returns:
        (values, splits), as in `TensorValues`.

    Raises:
        ValueError: A sparse tensor has gaps between the values of a row.
    """
    import tensorflow as tf

    if isinstance(tensor, tf.SparseTensor):
        indices, values = tensor.indices.numpy(), tensor.values.numpy()
        if (np.diff(indices[:, 0]) < 0).any():
            # The indices of a SparseTensor may have any order.
            order = np.lexsort((indices[:, 1], indices[:, 0]))
            indices, values = indices[order], values[order]
        splits = np.searchsorted(indices[:, 0], np.arange(rows + 1))
        columns = indices[: splits[-1], 1]
        if (
            gaps := np.flatnonzero(
                columns != np.arange(len(columns)) - np.repeat(splits[:-1], np.diff(splits))
            )
        ).size:
            row = int(indices[gaps[0], 0])
            columns_of_row = columns[splits[row] : splits[row + 1]].tolist()
            raise ValueError(
                f"a SparseTensor with values in the columns {columns_of_row!s:.60} of a row, and a list has no columns; return "
                "tf.sparse.to_dense of it, or a list of its values and one of its columns"
            )
        return values[: splits[-1]], splits
    if isinstance(tensor, tf.RaggedTensor):
        splits = tensor.row_splits.numpy()[: rows + 1].astype(np.int64)
        return tensor.flat_values.numpy()[: splits[-1]], splits
    return tensor.numpy()[:rows].reshape(-1), None


def _arrow_values(values: npt.NDArray[Any], feature: Feature) -> pa.Array:
    arrow_array = (
        pa.array(values, pa.large_binary())
        if values.dtype == object
        else pa.array(np.ascontiguousarray(values))
    )
    return arrow_array.cast(value_type(feature))


def _tensor_arrow_type(feature: Feature) -> pa.DataType:
    return _ARROW.get(tensor_dtype(feature), pa.large_binary())


def _to_lists(array: pa.Array, feature: Feature) -> pa.LargeListArray:
    """Converts a column to lists with the dtype of its tensor.

    A missing value becomes an empty list.
    """
    if feature.ragged_rank:
        lists = array.fill_null([]) if array.null_count else array
        offsets = np.asarray(lists.offsets, np.int64)
        values = lists.values
    elif feature.shape:
        offsets = np.arange(len(array) + 1, dtype=np.int64) * feature.inner_size
        values = array.flatten()
    else:
        present = np.asarray(pc.is_valid(array)).astype(np.int64)
        offsets = to_offsets(present)
        values = array.drop_null() if array.null_count else array
    return pa.LargeListArray.from_arrays(
        pa.array(offsets), _cast(values, _tensor_arrow_type(feature))
    )


def _cast(values: pa.Array, target_type: pa.DataType) -> pa.Array:
    if pa.types.is_floating(values.type) and values.null_count:
        values = values.fill_null(float("nan"))
    return values.cast(target_type, safe=not pa.types.is_floating(values.type))


def _to_numpy(values: pa.Array) -> npt.NDArray[Any]:
    if pa.types.is_large_binary(values.type):
        result = np.empty(len(values), object)
        result[:] = values.to_pylist()
        return result
    return np.asarray(values)


def make_batch(arrays: Mapping[str, pa.Array], schema: Schema) -> pa.RecordBatch:
    """Returns a batch of columns, in the order of the schema.

    Args:
        arrays: The columns by feature name. Additional ones are ignored.
        schema: The schema, for the names and their order.
    """
    return pa.RecordBatch.from_arrays(
        [arrays[name] for name in schema.names], names=list(schema.names)
    )
