"""Conversion of columns of records to batches.

Each feature gets the form that `collate` specifies. Extra columns (ids, mask, matrix) are added,
and label and weights are separated from the other features.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base import native
from recordmill.base.buffers import Int64s, allocate_reusable, to_offsets
from recordmill.base.errors import DataError, UsageError
from recordmill.reader.batches.grouping import compute_segments, join_packed_lists
from recordmill.reader.batches.plan import StepBlock
from recordmill.reader.options.collation import (
    Bucketed,
    Collation,
    OneHot,
    Packed,
    Padded,
    cast_fill_value,
    resolve_collations,
)
from recordmill.reader.options.training import Form
from recordmill.reader.prefetch.prefetcher import StepRows
from recordmill.reader.prefetch.protocols import Fetchable
from recordmill.records.columns.numpy_arrays import (
    extract_arrays,
    is_bytes,
    list_lengths,
    numpy_dtype,
    to_numpy,
)
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.schemas.feature import Feature, Schema


def pad_steps(column: Ragged, edges: Int64s, lengths: Int64s, value: Any) -> list[Array]:
    """Pads the rows of each step to one length. Longer rows are cut.

    Args:
        column: One list per row.
        edges: int64 [steps + 1]. First row of each step, and the number of rows.
        lengths: int64 [steps]. Length of the rows of each step.
        value: The value that fills up shorter rows.

    Returns:
        For each step, an array [rows, length, ...].
    """
    # text and nested lists have no fixed item size, so they are padded step by step
    if not isinstance(column.values, np.ndarray) or column.values.dtype.hasobject:
        return [
            slice_column(column, begin, end).to_padded(length, value)
            for begin, end, length in zip(
                edges[:-1].tolist(), edges[1:].tolist(), lengths.tolist(), strict=True
            )
        ]
    # one copy for all steps; each step is a view of it
    flat, starts = pad_flat(column, edges, lengths, value)
    inner = column.values.shape[1:]
    return [
        flat[begin:end].reshape(rows, length, *inner)
        for begin, end, length, rows in zip(
            starts[:-1].tolist(),
            starts[1:].tolist(),
            lengths.tolist(),
            np.diff(edges).tolist(),
            strict=True,
        )
    ]


def pad_flat(column: Ragged, edges: Int64s, lengths: Int64s, value: Any) -> tuple[Array, Int64s]:
    """Pads the rows of all steps into one array, for columns of numbers.

    For the arguments see `pad_steps`.

    Returns:
        The items of all steps, [items, ...]. Then int64 [steps + 1]: the index of the first item
        of each step, and the number of items.
    """
    values = np.ascontiguousarray(column.values)
    step_starts = to_offsets(np.diff(edges) * lengths)
    out = allocate_reusable((int(step_starts[-1]), *values.shape[1:]), values.dtype)
    # all items get the fill value first, and the lists are copied over it
    out[...] = cast_fill_value(value, values.dtype)
    if out.size:
        item = values.dtype.itemsize * int(np.prod(values.shape[1:]))
        splits = column.row_splits[edges[0] : edges[-1] + 1]
        widths = np.repeat(lengths, np.diff(edges))
        # a list is cut to the width of its step
        sizes, targets = np.minimum(np.diff(splits), widths), np.cumsum(widths) - widths
        native.copy_spans(
            [values],
            None,
            splits[:-1] * item,
            sizes * item,
            targets * item,
            out.reshape(-1).view(np.uint8),
        )
    return out, step_starts


def slice_column(column: Any, begin: int, end: int) -> Any:
    """Returns rows [begin, end) of a column. Row splits start at 0.

    Args:
        column: An array, `Ragged` or `Strings`.
    """
    if isinstance(column, np.ndarray):
        return column[begin:end]
    splits: Int64s = column.row_splits[begin : end + 1]
    first, last = int(splits[0]), int(splits[-1])
    valid = None if column.valid is None else column.valid[begin:end]
    if isinstance(column, Strings):
        return Strings(column.values[first:last], splits - first, column.text, valid)
    return Ragged(slice_column(column.values, first, last), splits - first, valid)


# A feature `tokens` that may be missing has an extra column `tokens/valid`. Padded features have
# `tokens/length`, and packed ones `tokens/segment` and `tokens/position`.
VALID_SUFFIX = "/valid"
LENGTH_SUFFIX = "/length"
SEGMENT_SUFFIX = "/segment"
POSITION_SUFFIX = "/position"
Batch = dict[str, Any]


def name_extra_columns(name: str, collation: Collation) -> tuple[str, ...]:
    """Returns the names of the columns that a collation adds to the feature itself.

    >>> name_extra_columns("tokens", Packed(8))
    ('tokens/segment', 'tokens/position')
    """
    if isinstance(collation, Packed):
        return (name + SEGMENT_SUFFIX, name + POSITION_SUFFIX)
    return (
        (name + LENGTH_SUFFIX,)
        if isinstance(collation, Padded | Bucketed) and collation.lengths
        else ()
    )


def split_column(
    name: str, column: Any, block: StepBlock, collation: Collation | None
) -> dict[str, list[Any]]:
    """Collates one column of a block and divides it into steps.

    Args:
        name: Name of the feature.
        column: Its values in all rows of the block.
        collation: Collation of the feature. If None, the feature stays as it is.

    Returns:
        Column name to its values in each step. The columns are the feature itself and the extra
        columns of the collation. All arrays are writable, and no two steps share memory.

    Raises:
        DataError: A list is not dense, or a number is not a class.
    """
    edges = block.rows.edges
    if isinstance(collation, Packed):
        assert block.row_edges is not None
        return _pack_column(name, column, block.row_edges, edges, collation)
    if isinstance(collation, Padded | Bucketed):
        lengths = column.lengths
        padded = pad_steps(
            column, edges, compute_step_lengths(lengths, block, collation), collation.value
        )
        return {
            name: padded,
            **{
                extra: _split_steps(lengths, edges) for extra in name_extra_columns(name, collation)
            },
        }
    if isinstance(collation, OneHot):
        column = encode_one_hot(name, column, collation)
    elif collation == "dense":
        check_dense(name, column.lengths, edges)
        return {name: pad_steps(column, edges, column.lengths[edges[:-1]], 0)}
    if block.row_edges is not None:
        # features that are not packed become lists with one value per record of a packed row
        column = Ragged(column, block.row_edges)
    # Arrow's arrays are copied once for the whole block, because a copy for each step takes longer.
    return {name: _split_steps(own_column(column), edges)}


def compute_step_lengths(lengths: Int64s, block: StepBlock, collation: Padded | Bucketed) -> Int64s:
    """Returns the padded length of each step, int64 [steps].

    Args:
        lengths: int64 [rows]. Lengths of the lists.
        collation: Collation of the feature.
    """
    if isinstance(collation, Bucketed):
        assert block.padded_lengths is not None
        return block.padded_lengths
    edges = block.rows.edges
    if collation.length is not None:
        return np.full(len(edges) - 1, collation.length, np.int64)
    # The appended element is for a last step without rows, because reduceat checks its index.
    longest = (
        np.maximum.reduceat(np.append(lengths, 0), edges[:-1])
        if len(edges) > 1
        else np.zeros(0, np.int64)
    )
    return -(-longest // collation.multiple) * collation.multiple


def encode_one_hot(name: str, column: Array, collation: OneHot) -> npt.NDArray[np.float32]:
    """Returns one-hot vectors, float32 [rows, depth]. A missing number becomes zeros.

    Args:
        column: Integers [rows], masked if a number is missing.
        collation: The collation, with a depth.

    Raises:
        DataError: A number is not a class.
    """
    assert collation.depth is not None
    class_rows = check_classes(name, column, collation)
    out = np.zeros((len(column), collation.depth), np.float32)
    out[class_rows, np.ma.getdata(column)[class_rows]] = 1
    return out


def check_classes(name: str, column: Array, collation: OneHot) -> Int64s:
    """Checks the class numbers of a column, and returns the rows that have one.

    Args:
        column: Integers [rows], masked if a number is missing.
        collation: The collation, with a depth.

    Raises:
        DataError: A class number is not in [0, depth).
    """
    assert collation.depth is not None
    rows = np.flatnonzero(~np.ma.getmaskarray(column))
    values = np.ma.getdata(column)[rows]
    outside = (values < 0) | (values >= collation.depth)
    if outside.any():
        raise DataError(
            f"feature {name!r} is {values[outside][0]}, and there are {collation.depth} classes, from 0"
        )
    return rows


def check_dense(name: str, lengths: Int64s, edges: Int64s) -> None:
    """Raises DataError if the rows of a step differ in length.

    Args:
        lengths: int64 [rows]. Lengths of the lists.
        edges: int64 [steps + 1]. First row of each step, and the number of rows.
    """
    for step in _split_steps(lengths, edges):
        if step.min() != step.max():
            raise DataError(
                f"feature {name!r} has rows of {step.min()} to {step.max()} items in "
                'one batch, so they are not dense: use collate="padded" or "ragged"'
            )


def _pack_column(
    name: str, column: Ragged, row_edges: Int64s, edges: Int64s, collation: Packed
) -> dict[str, list[Any]]:
    packed_lists = join_packed_lists(column, row_edges)
    padded = pad_steps(
        packed_lists, edges, np.full(len(edges) - 1, collation.length, np.int64), collation.value
    )
    segment_ids, positions = compute_segments(column, row_edges, collation.length)
    return {
        name: padded,
        name + SEGMENT_SUFFIX: _split_steps(segment_ids, edges),
        name + POSITION_SUFFIX: _split_steps(positions, edges),
    }


def _split_steps(column: Array | Ragged | Strings, edges: Int64s) -> list[Any]:
    return [slice_column(column, begin, end) for begin, end in itertools.pairwise(edges.tolist())]


def own_column(column: Any) -> Any:
    """Returns a column with arrays that a consumer may change.

    Arrays that were made for the consumer are returned as they are. Arrow's arrays are read-only,
    so they are copied. The rows of `Strings` become objects when they are accessed, so its buffer
    stays read-only.
    """
    if isinstance(column, Ragged):
        splits = _own_array(column.row_splits)
        return Ragged(own_column(column.values), splits, column.valid)
    if isinstance(column, Strings):
        return column
    if isinstance(column, np.ma.MaskedArray):
        # setting an item also sets its flag in the mask
        return np.ma.MaskedArray(_own_array(column.data), _own_array(np.ma.getmaskarray(column)))
    return _own_array(column)


def _own_array(array: Array) -> Array:
    if array.flags.writeable:
        return array
    if array.dtype == object:
        return array.copy()
    owned = allocate_reusable(array.shape, array.dtype)
    owned[...] = array
    return owned


# About one batch: the longest list of a batch determines the padded length of all of its rows.
_SAMPLE_RECORDS = 256


def estimate_padded_row_bytes(dataset: Fetchable, collations: Mapping[str, Collation]) -> int:
    """Estimates the memory of a row in padded arrays of numbers.

    If a collation has no fixed length, the longest list among the first `_SAMPLE_RECORDS` records
    determines the length.
    """
    features = {feature.name: feature for feature in dataset.schema}
    numeric_collations = {
        name: collation for name, collation in collations.items() if not is_bytes(features[name])
    }
    padded_collations = {
        name: collation
        for name, collation in numeric_collations.items()
        if isinstance(collation, Padded | Bucketed) or collation == "dense"
    }
    # reading the sample would cost an unnecessary access to the files
    if not padded_collations:
        return 0
    head = dataset.select(list(padded_collations)).head(_SAMPLE_RECORDS)
    total = 0
    for name, collation in padded_collations.items():
        length = collation.length if isinstance(collation, Padded | Bucketed) else None
        if length is None:
            length = max(
                (int(list_lengths(block).max(initial=0)) for block in head[name].chunks), default=0
            )
        inner = math.prod(features[name].inner_shape)
        total += length * inner * numpy_dtype(features[name]).itemsize
    return total


def fill_missing(columns: Batch, schema: Schema, collations: Mapping[str, Collation]) -> Batch:
    """Fills missing values, and adds `name/valid` for features that may be missing.

    One-hot features are returned unchanged, because they encode missing numbers as zeros.

    Args:
        columns: Collated columns by name.
        collations: Collations of the features that have one.
    """
    features = {feature.name: feature for feature in schema}
    filled: Batch = {}
    for name, column in columns.items():
        is_one_hot = isinstance(collations.get(name), OneHot)
        filled |= {name: column} if is_one_hot else _fill_missing(name, column, features.get(name))
    return filled


def _fill_missing(name: str, column: Array | Ragged | Strings, feature: Feature | None) -> Batch:
    if isinstance(column, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(column)
        return {
            name: column.data,
            # a value is missing completely or not at all, so the first item of each row decides
            name + VALID_SUFFIX: ~mask.reshape(len(mask), -1)[:, 0] if mask.size else ~mask[:0],
        }
    if (
        not isinstance(column, np.ndarray)
        or column.dtype != object
        or feature is None
        or feature.required
    ):
        return {name: column}
    valid = np.array([value is not None for value in column.tolist()], np.bool_)
    return {
        name: np.where(valid, column, "" if feature.dtype == "string" else b""),
        name + VALID_SUFFIX: valid,
    }


MATRIX_COLUMN = "matrix"  # [rows, numbers] of several features
MASK_COLUMN = "mask"  # [rows] bool: False for rows that only fill up a batch
# [rows] int64: index of the file in the data set, and number of the record in the file
SHARD_COLUMN = "record/shard"
INDEX_COLUMN = "record/index"


@dataclass(frozen=True)
class ExtraColumns:
    """Columns that the reader adds to a batch.

    Attributes:
        has_mask: True to add "mask", which is False in rows that only fill up a batch.
        has_ids: True to add the file and the record number of each record.
        matrix: Features that are combined into one column. Empty for none.
        defaults: By feature, the value that replaces missing ones in the matrix. Missing values of
            other features become NaN.
    """

    has_mask: bool = False
    has_ids: bool = False
    matrix: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def features(self) -> tuple[Feature, ...]:
        """Features of the mask and the ids."""
        ids = (
            (Feature(SHARD_COLUMN, "int64", (), True), Feature(INDEX_COLUMN, "int64", (), True))
            if self.has_ids
            else ()
        )
        return (*ids, Feature(MASK_COLUMN, "bool", (), True)) if self.has_mask else ids

    def schema(self, schema: Schema) -> Schema:
        """Returns a schema with the extra columns. The matrix replaces its features."""
        width = sum(schema[name].inner_size for name in self.matrix)
        matrix = (Feature(MATRIX_COLUMN, "float32", (width,), True),) if self.matrix else ()
        rest = (feature for feature in schema if feature.name not in self.matrix)
        label = None if schema.label in self.matrix else schema.label
        return replace(schema, features=(*matrix, *rest, *self.features), label=label)

    def check(self, schema: Schema) -> None:
        """Raises UsageError if the extra columns do not fit a schema.

        There are three reasons: a feature already has the name of an extra column, no column would
        be left in a batch, or a feature of the matrix is not numeric.
        """
        for feature in (schema[name] for name in self.matrix):
            if is_bytes(feature) or feature.ragged_rank or feature.timestamp:
                raise UsageError(
                    f"matrix: {feature.name!r} is {feature.describe()}, not a number "
                    "or a tensor of numbers"
                )
        if not schema.names and not self.features:
            raise UsageError(
                "no feature is selected, so batches would be empty: select at least one"
            )
        names = [*(feature.name for feature in self.features), *[MATRIX_COLUMN] * bool(self.matrix)]
        for name, option in (
            (MASK_COLUMN, "pad_remainder"),
            (SHARD_COLUMN, "ids"),
            (INDEX_COLUMN, "ids"),
            (MATRIX_COLUMN, "matrix"),
        ):
            # a feature of the matrix is not a column of its own any more
            if name in names and name in schema and name not in self.matrix:
                raise UsageError(
                    f"{option} adds the feature {name!r}, but there already is one: leave it out"
                )

    def add_to_rows(self, rows: StepRows, schema: Schema, file_ends: Int64s) -> StepRows:
        """Returns the rows with the extra columns.

        Args:
            schema: Features of the rows.
            file_ends: int64 [files]. Number of records up to the end of each file.
        """
        if not self.features and not self.matrix:
            return rows
        columns_by_name = dict(zip(schema.names, rows.batch.columns, strict=True))
        matrix = (
            [_build_matrix([columns_by_name.pop(name) for name in self.matrix], schema, self)]
            if self.matrix
            else []
        )
        columns = [*matrix, *columns_by_name.values()]
        if self.has_ids:
            file_ids = np.searchsorted(file_ends, rows.numbers, "right")
            columns += [
                pa.array(file_ids),
                pa.array(rows.numbers - np.concatenate([[0], file_ends])[file_ids]),
            ]
        if self.has_mask:
            columns.append(pa.array(rows.mask))
        return replace(
            rows, batch=pa.RecordBatch.from_arrays(columns, names=self.schema(schema).names)
        )


def _build_matrix(columns: list[pa.Array], schema: Schema, extras: ExtraColumns) -> pa.Array:
    """Combines numeric columns into one column of float32 tensors."""
    parts = []
    for name, column in zip(extras.matrix, columns, strict=True):
        arrays = extract_arrays(column, schema[name])
        parts.append(arrays.values.reshape(len(column), schema[name].inner_size).astype(np.float32))
        if arrays.valid is not None:
            parts[-1][~arrays.valid] = extras.defaults.get(name, np.nan)
    joined = np.concatenate(parts, axis=1)
    return pa.FixedSizeListArray.from_arrays(pa.array(joined.reshape(-1)), joined.shape[1])


@dataclass(frozen=True)
class Collator:
    """Conversion of the columns of a data set to batches.

    Attributes:
        collations: Collations of the features that have one.
        label: The feature that is y in `(x, y)`, or None.
        weights: The feature that is w in `(x, y, w)`, or None.
        extras: Columns to add.
    """

    collations: Mapping[str, Collation]
    label: str | None
    weights: str | None
    extras: ExtraColumns

    @classmethod
    def from_form(
        cls, form: Form, schema: Schema, has_mask: bool, defaults: Mapping[str, Any] | None = None
    ) -> Collator:
        """Creates a collator from the options.

        Args:
            form: Options that determine the form of a batch.
            schema: Features of the data set.
            has_mask: True if batches are filled up, and therefore need a mask.
            defaults: By feature, the value that replaces missing ones.

        Raises:
            UsageError: A feature is unknown, a collation does not fit its feature, or a column of a
                collation has the name of a feature.
        """
        collations = resolve_collations(form.collate or {}, schema)
        if form.label is True and schema.label is None:
            raise UsageError(
                "label=True needs a label in the schema, and this one has none: pass "
                "the name of a feature"
            )
        label = form.label_of(schema)
        for option, feature_name in (("label", label), ("weights", form.weights)):
            if feature_name is not None and feature_name not in schema:
                raise UsageError(
                    f"{option} {feature_name!r} is not a selected feature; there are "
                    f"{', '.join(schema.names)}"
                )
        for name, collation in collations.items():
            for extra_name in name_extra_columns(name, collation):
                if extra_name in schema:
                    raise UsageError(
                        f"collate: {name!r} as {collation} adds the feature "
                        f"{extra_name!r}, but there already is one"
                    )
        extras = ExtraColumns(
            has_mask=has_mask,
            has_ids=form.ids,
            matrix=tuple(form.matrix or ()),
            defaults=defaults or {},
        )
        extras.check(schema)
        return cls(collations, label=label, weights=form.weights, extras=extras)

    def require_label(self, schema: Schema) -> Schema:
        """Returns the schema in which a record without the label is an error."""
        features = (
            # a missing list is an empty list, so a label that is a list is never missing
            replace(f, required=True) if f.name == self.label and not f.ragged_rank else f
            for f in schema
        )
        return replace(schema, features=tuple(features))

    def assemble(self, batch: Batch) -> Any:
        """Converts a collated batch to its final form.

        Without a label, this is the dict of columns. With one, it is `(x, y)` or `(x, y, weights)`.
        If x has only one column, x is that column.

        Args:
            batch: The columns by name. The function removes the label and the weights from it.
        """
        if self.label is None:
            return batch
        rest = [batch.pop(name) for name in (self.label, self.weights) if name is not None]
        return (batch.popitem()[1] if len(batch) == 1 else batch, *rest)

    def split_steps(self, columns: Batch, block: StepBlock) -> list[Batch]:
        """Collates the columns of a block and divides them into steps.

        Args:
            columns: The columns by name, for all rows of the block.

        Returns:
            The columns of each step. Their arrays are writable.

        Raises:
            DataError: A list is not dense, or a number is not a class.
        """
        parts: dict[str, list[Any]] = {}
        for name, column in columns.items():
            parts |= split_column(name, column, block, self.collations.get(name))
        names = list(parts)
        return [dict(zip(names, step, strict=True)) for step in zip(*parts.values(), strict=True)]

    def convert_columns(self, block: StepBlock, schema: Schema, dataset: Fetchable) -> Batch:
        """Converts the rows of a block to columns by name.

        Images are decoded, and the extra columns are added.

        Args:
            schema: Features of the rows of the block.
            dataset: The data set. If `has_ids` is set, its files are counted.

        Returns:
            The columns in the types of `records.columns.numpy_arrays`.
        """
        rows, images = self.extras.add_to_rows(block.rows, schema, dataset.files.ends), block.images
        return {
            feature.name: images[feature.name]
            if feature.name in images
            else to_numpy(column, feature)
            for feature, column in zip(self.extras.schema(schema), rows.batch.columns, strict=True)
        }
