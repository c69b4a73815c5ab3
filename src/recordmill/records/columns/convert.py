"""Conversions of columns, after records were decoded and before they are written.

A `ConversionStep` converts one feature of a batch:

* `DecodeRaw`: bytes to a tensor of numbers, as `tf.io.decode_raw` does.
* `DecodeTensor`: serialized TensorProtos to a tensor, as `tf.io.parse_tensor` does.
* `Reshape`: a list or a tensor to another shape.
* `Pad`: a list of variable length to a fixed length.
* `MakeRagged`: a tensor or a single value to a list of variable length.
* `NameClasses`: class numbers to the names of their classes.

A step is a pure function of a column. Its output schema follows from its input schema, never from
the values. If a value can't be converted, its record is bad, and a reason is reported. Missing
values stay missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from recordmill.base import native
from recordmill.base.buffers import Bools, Int64s, to_offsets
from recordmill.base.errors import DataError, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import available_names, option
from recordmill.records.columns.numpy_arrays import (
    extract_arrays,
    list_lengths,
    numpy_dtype,
    valid_mask,
)
from recordmill.records.columns.ragged import Array
from recordmill.records.example.locate import BadRecord
from recordmill.records.protobuf import tensor_proto
from recordmill.schemas.arrow import arrow_type, to_arrow, value_type
from recordmill.schemas.feature import EXAMPLE, ITEM_BYTES, Feature, Schema

# 67 million values, as many as an image may have pixels. One value can stand for all values of a
# tensor, so a small record could otherwise request any amount of memory.
MAX_REPEATED_VALUES = 1 << 26
# (row of the column, error message) of each value that can't be converted
BadValues = Sequence[tuple[int, str]]
Shape = tuple[int | None, ...]


class ConversionStep(Protocol):
    """A conversion of one feature."""

    @property
    def feature(self) -> str:
        """Name of the feature."""

    def output_feature(self, feature: Feature) -> Feature:
        """Returns the converted feature.

        Raises:
            UsageError: The feature can't be converted.
        """

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, BadValues]:
        """Converts a column.

        Args:
            column: The column, with the Arrow type of `feature`.
            feature: The feature before the conversion.

        Returns:
            (converted column without the bad rows, (row, error message) of each bad row).
        """


@dataclass(frozen=True)
class ConvertedBatch:
    """Result of `convert_columns`.

    Attributes:
        batch: The converted rows.
        rows: The row number in the input of each converted row.
        bad_records: The records that can't be converted, in order.
    """

    batch: pa.RecordBatch
    rows: Int64s
    bad_records: tuple[BadRecord, ...]


def output_schema(steps: Sequence[ConversionStep], schema: Schema) -> Schema:
    """Returns the schema of batches after the steps.

    Raises:
        UsageError: The schema lacks the feature of a step, or the step can't convert it.
    """
    for step in steps:
        if step.feature not in schema:
            raise UsageError(
                f"no feature {step.feature!r} to convert; {available_names(step.feature, schema.names)}"
            )
        features = tuple(
            step.output_feature(feature) if feature.name == step.feature else feature
            for feature in schema
        )
        schema = Schema(
            features, schema.label, EXAMPLE if schema.message == "bytes" else schema.message
        )
    return schema


def convert_columns(
    steps: Sequence[ConversionStep], batch: pa.RecordBatch, schema: Schema
) -> ConvertedBatch:
    """Applies the steps one after the other to a batch.

    Args:
        steps: The conversions.
        batch: Columns with the Arrow types of the schema.
        schema: The features before the conversions.
    """
    rows = np.arange(batch.num_rows)
    bad: list[BadRecord] = []
    columns = list(batch.columns)
    for step in steps:
        index = schema.names.index(step.feature)
        columns[index], bad_values = step.convert(columns[index], schema[step.feature])
        if bad_values:
            bad += [BadRecord(int(rows[row]), step.feature, text) for row, text in bad_values]
            # The other columns lose the bad rows as well, so that all columns keep the same rows.
            kept_rows = np.delete(np.arange(len(rows)), [row for row, _ in bad_values])
            columns = [
                column if position == index else column.take(pa.array(kept_rows))
                for position, column in enumerate(columns)
            ]
            rows = rows[kept_rows]
        schema = output_schema([step], schema)
    return ConvertedBatch(
        pa.RecordBatch.from_arrays(columns, schema=to_arrow(schema)),
        rows,
        tuple(sorted(bad, key=lambda record: record.row)),
    )


@dataclass(frozen=True)
class DecodeRaw:
    """Decodes bytes that are the memory of an array in row-major order.

    Attributes:
        feature: Name of the feature.
        dtype: A key of ITEM_BYTES.
        shape: The shape of the array. None as the first size means that this size varies between
            records.
        is_big_endian: Whether the most significant byte of a number comes first.
    """

    feature: str
    dtype: str
    shape: Shape
    is_big_endian: bool = False

    def output_feature(self, feature: Feature) -> Feature:
        _check_bytes(feature, "decode_raw")
        return replace(feature, dtype=self.dtype, shape=self.shape, classes=None)

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, BadValues]:
        out = self.output_feature(feature)
        item_bytes = ITEM_BYTES[self.dtype] * out.inner_size
        arrays = extract_arrays(column, feature)
        lengths = np.diff(arrays.splits[0])
        present = valid_mask(column)
        is_bad = present & (
            (lengths % item_bytes != 0) if out.ragged_rank else (lengths != item_bytes)
        )
        description = (
            f"{self.dtype} [{', '.join('?' if size is None else str(size) for size in self.shape)}]"
        )
        bad_values = [
            (
                int(row),
                f"{lengths[row]} bytes, which is not {description} of {item_bytes} "
                f"bytes{' an item' if out.ragged_rank else ''}",
            )
            for row in np.flatnonzero(is_bad)
        ]
        # The good rows are converted again without the bad ones.
        if bad_values:
            return self.convert(column.filter(pa.array(~is_bad)), feature)[0], bad_values
        return build_column(
            _view_numbers(arrays.values, self.dtype, self.is_big_endian),
            counts=lengths // item_bytes,
            present=present,
            out=out,
        ), ()


@dataclass(frozen=True)
class DecodeTensor:
    """Decodes serialized TensorProtos, which must all have one dtype and one shape.

    Attributes:
        feature: Name of the feature.
        dtype: The dtype of all tensors.
        shape: The shape of all tensors. None as the first size means that this size varies between
            records.
    """

    feature: str
    dtype: str
    shape: Shape

    def output_feature(self, feature: Feature) -> Feature:
        _check_bytes(feature, "decode_tensor")
        if len(self.shape) > tensor_proto.MAX_TENSOR_RANK:
            limit = f"of at most {tensor_proto.MAX_TENSOR_RANK} dimensions, not {len(self.shape)}"
            raise UsageError(
                "{decode_tensor}: a TensorProto may be {limit}",
                decode_tensor=option("decode_tensor", feature.name),
                limit=limit,
            )
        return replace(feature, dtype=self.dtype, shape=self.shape, classes=None)

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, BadValues]:
        out = self.output_feature(feature)
        arrays = extract_arrays(column, feature)
        splits, present = arrays.splits[0], valid_mask(column)
        headers = tensor_proto.read_tensor_headers(arrays.values, splits)
        sizes, value_bytes = self._valid_sizes(headers), ITEM_BYTES[self.dtype]
        is_plain = headers.status == tensor_proto.TensorStatus.IN_CONTENT
        is_bad = present & (sizes < 0)
        bad_values = [
            (int(row), self._describe_fault(headers, int(row))) for row in np.flatnonzero(is_bad)
        ]
        sizes = np.where(present & ~is_bad, sizes, 0)
        # All tensors share one buffer. `offsets` is the first byte of each.
        values = np.empty(int(sizes.sum()) * value_bytes, np.uint8)
        offsets = (np.cumsum(sizes) - sizes) * value_bytes
        is_copied = present & ~is_bad & is_plain
        spans = headers.starts[is_copied], headers.lengths[is_copied], offsets[is_copied]
        # Most protos contain the bytes of the tensor, which are copied. The others have typed
        # lists, which protobuf parses.
        native.copy_spans([np.ascontiguousarray(arrays.values)], None, *spans, values)
        for row in np.flatnonzero(present & ~is_bad & ~is_plain):
            try:
                value_content = tensor_proto.decode_typed_list(
                    arrays.values[splits[row] : splits[row + 1]].tobytes(),
                    self.dtype,
                    int(sizes[row]),
                )
            except DataError as error:
                bad_values.append((int(row), error.reason))
                continue
            values[offsets[row] : offsets[row] + len(value_content)] = np.frombuffer(
                value_content, np.uint8
            )
        if bad_values:
            # Faults of typed lists are found later than those of headers, so they are sorted by
            # row.
            is_good = np.ones(len(column), np.bool_)
            is_good[[row for row, _ in bad_values]] = False
            return self.convert(column.filter(pa.array(is_good)), feature)[0], sorted(bad_values)
        return build_column(
            _view_numbers(values, self.dtype),
            counts=sizes // max(out.inner_size, 1),
            present=present,
            out=out,
        ), ()

    def estimate_bytes(self, column: pa.Array, feature: Feature) -> tuple[Int64s, Int64s]:
        """Returns the memory that decoding each row needs, from the headers alone.

        A small TensorProto can become a large tensor, because it can store one value that is
        repeated for all.

        Returns:
            (bytes of each tensor, bytes that are needed in addition while it is decoded). Both are
            int64 [rows], and 0 for missing or invalid values.
        """
        arrays = extract_arrays(column, feature)
        sizes = self._valid_sizes(tensor_proto.read_tensor_headers(arrays.values, arrays.splits[0]))
        result = np.where(valid_mask(column) & (sizes > 0), sizes, 0) * ITEM_BYTES[self.dtype]
        return result, result

    def _valid_sizes(self, headers: tensor_proto.TensorHeaders) -> Int64s:
        """Returns the number of values of each tensor, or -1 for an invalid tensor.

        A tensor is invalid if its dtype or shape is wrong, or if its values are incomplete.
        """
        sizes = self._matching_sizes(headers)
        is_plain = headers.status == tensor_proto.TensorStatus.IN_CONTENT
        # Bytes of content must have the exact size. A typed list may have one value for all.
        fits = np.where(
            is_plain,
            headers.lengths == sizes * ITEM_BYTES[self.dtype],
            sizes <= MAX_REPEATED_VALUES,
        )
        return np.where(
            fits & (headers.status != tensor_proto.TensorStatus.NOT_A_TENSOR), sizes, -1
        )

    def _matching_sizes(self, headers: tensor_proto.TensorHeaders) -> Int64s:
        """Returns the number of values of each tensor, according to its header.

        The number is -1 if the dtype or shape is wrong.
        """
        # A table of all numbers of dtypes compares the dtypes of all rows at once.
        is_match = np.array(
            [tensor_proto.TENSOR_DTYPES.get(number) == self.dtype for number in range(64)]
        )[np.clip(headers.dtype, 0, 63)] & (headers.rank == len(self.shape))
        sizes = np.ones(len(is_match), np.int64)
        for axis, size in enumerate(self.shape):
            is_match &= (
                (headers.dims[:, axis] < 2**31) if size is None else (headers.dims[:, axis] == size)
            )
            sizes *= np.where(is_match, headers.dims[:, axis], 1)
        return np.where(is_match, sizes, -1)

    def _describe_fault(self, headers: tensor_proto.TensorHeaders, row: int) -> str:
        if headers.status[row] == tensor_proto.TensorStatus.NOT_A_TENSOR:
            return "not a TensorProto"
        number = int(headers.dtype[row])
        dims = ", ".join(map(str, headers.dims[row, : headers.rank[row]].tolist()))
        expected = ", ".join("?" if size is None else str(size) for size in self.shape)
        size = int(self._matching_sizes(headers)[row])
        is_plain = headers.status[row] == tensor_proto.TensorStatus.IN_CONTENT
        if not is_plain and size > MAX_REPEATED_VALUES:
            return f"a tensor of {size} values that repeat one; {MAX_REPEATED_VALUES} at most may"
        tensor = (
            f"a tensor {tensor_proto.TENSOR_DTYPES.get(number, f'of DataType {number}')} [{dims}]"
        )
        if is_plain and size >= 0:
            return f"{tensor} with {headers.lengths[row]} bytes of content"
        # The message suggests -1 only if a first dimension that varies would make the tensor fit.
        same_rank_and_dtype = (
            self.shape
            and headers.rank[row] == len(self.shape)
            and tensor_proto.TENSOR_DTYPES.get(number) == self.dtype
            and None not in self.shape
        )
        only_first_differs = same_rank_and_dtype and headers.dims[
            row, 1 : len(self.shape)
        ].tolist() == list(self.shape[1:])
        hint = (
            "; if the first dimension varies: "
            f"{self.feature}={self.dtype}[{', '.join(['-1', *map(str, self.shape[1:])])}]"
            if only_first_differs
            else ""
        )
        return f"{tensor} where {self.dtype} [{expected}] is expected{hint}"


@dataclass(frozen=True)
class Reshape:
    """Changes the shape of a feature and keeps its values.

    Attributes:
        feature: Name of the feature.
        shape: The new shape. One size may be None. It then follows from the number of values.
    """

    feature: str
    shape: Shape

    def output_feature(self, feature: Feature) -> Feature:
        if feature.ragged_rank > 1:
            raise UsageError(
                "{reshape}: it is {feature}, lists of lists, which do not have one shape",
                reshape=option("reshape", feature.name),
                feature=feature.describe(),
            )
        return replace(feature, shape=self._output_shape(feature), per_step=False)

    def _output_shape(self, feature: Feature) -> Shape:
        fixed_size = 1
        for size in self.shape:
            fixed_size *= 1 if size is None else size
        # The number of values of a list is only known for each record, so `convert` checks it.
        if feature.ragged_rank:
            if None in self.shape[1:]:
                raise UsageError(
                    "{reshape}: its length varies, so only the first dimension can be -1",
                    reshape=option("reshape", feature.name),
                )
            return self.shape
        if None in self.shape and feature.inner_size % fixed_size == 0:
            return tuple(
                feature.inner_size // fixed_size if size is None else size for size in self.shape
            )
        if None in self.shape or fixed_size != feature.inner_size:
            raise UsageError(
                "{reshape}: it is {feature}, which does not fit {shape}",
                reshape=option("reshape", feature.name),
                feature=feature.describe(),
                shape=[-1 if size is None else size for size in self.shape],
            )
        return self.shape

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, BadValues]:
        out = self.output_feature(feature)
        present = valid_mask(column)
        counts = _count_values(column, feature, present)
        is_bad = present & (
            (counts % out.inner_size != 0) if out.ragged_rank else (counts != out.inner_size)
        )
        shape = ", ".join("-1" if size is None else str(size) for size in self.shape)
        bad_values = [
            (int(row), f"{counts[row]} values, which do not fit [{shape}]")
            for row in np.flatnonzero(is_bad)
        ]
        if bad_values:
            return self.convert(column.filter(pa.array(~is_bad)), feature)[0], bad_values
        return build_column(
            _flat_values(column, feature), counts=counts // out.inner_size, present=present, out=out
        ), ()


@dataclass(frozen=True)
class Pad:
    """Pads a list to a fixed length.

    Attributes:
        feature: Name of the feature.
        length: The new number of items.
        value: The padding value, as a number or as text.
        cuts_longer: Whether longer lists are cut at their end. Otherwise their records are bad.
    """

    feature: str
    length: int
    value: Any
    cuts_longer: bool = False

    def output_feature(self, feature: Feature) -> Feature:
        if feature.ragged_rank > 1:
            raise UsageError(
                "{option}: it is {feature}, lists of lists, which do not have one length",
                option=option("pad_or_cut" if self.cuts_longer else "pad", feature.name),
                feature=feature.describe(),
            )
        self._padding_value(feature)  # raises UsageError for an invalid value
        return replace(feature, shape=(self.length, *feature.shape[1:]), per_step=False)

    def _padding_value(self, feature: Feature) -> pa.Scalar:
        """Returns the padding value as a scalar of the feature's Arrow type."""
        arrow = value_type(feature)
        try:
            is_number_text = isinstance(self.value, str) and not (
                pa.types.is_large_string(arrow) or pa.types.is_large_binary(arrow)
            )
            value = (
                (float(self.value) if pa.types.is_floating(arrow) else int(self.value))
                if is_number_text
                else self.value
            )
            if pa.types.is_boolean(arrow):
                # any other number is refused by the KeyError below
                value = {0: False, 1: True}[int(value)]
            return pa.scalar(np.float16(value) if pa.types.is_float16(arrow) else value, arrow)
        except (ValueError, KeyError, TypeError, OverflowError, pa.ArrowException):
            raise UsageError(
                "{pad}: {value} is not {dtype}",
                pad=option("pad", feature.name),
                value=repr(self.value),
                dtype=feature.dtype,
            ) from None

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, BadValues]:
        out, present = self.output_feature(feature), valid_mask(column)
        column, feature = to_list_column(column, feature)
        lengths = np.where(present, list_lengths(column), 0)
        is_bad = lengths > self.length if not self.cuts_longer else np.zeros(len(lengths), np.bool_)
        bad_values = [
            (
                int(row),
                Message(
                    "{lengths} items, more than the length of {length} (to cut "
                    "longer lists: {pad_or_cut})",
                    lengths=lengths[row],
                    length=self.length,
                    pad_or_cut=option("pad_or_cut"),
                ),
            )
            for row in np.flatnonzero(is_bad)
        ]
        if bad_values:
            return self.convert(column.filter(pa.array(~is_bad)), feature)[0], bad_values
        width = feature.inner_size
        steps = np.arange(self.length * width)
        starts = (np.cumsum(lengths) - lengths) * width
        is_filled = steps < (lengths * width)[:, None]
        # `take` returns a null for each masked index, and each null becomes the padding value.
        indices = pa.array((starts[:, None] + steps).ravel(), mask=~is_filled.ravel())
        values = (
            _flat_values(column, feature).take(indices).fill_null(self._padding_value(feature))
            if len(indices)
            else pa.array([], value_type(feature))
        )
        return _tensor_column(values, present, out), ()


@dataclass(frozen=True)
class MakeRagged:
    """Makes the first dimension of a feature variable.

    The dimension becomes variable even if all lists have the same length.

    Attributes:
        feature: Name of the feature.
    """

    feature: str

    def output_feature(self, feature: Feature) -> Feature:
        return _as_ragged(feature)

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, BadValues]:
        return to_list_column(column, feature)[0], ()


@dataclass(frozen=True)
class NameClasses:
    """Replaces class numbers by the names of the classes.

    If a number has no class, its record is bad.

    Attributes:
        feature: Name of the feature.
    """

    feature: str

    def output_feature(self, feature: Feature) -> Feature:
        return replace(feature, dtype="string", classes=None)

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, BadValues]:
        out, present = self.output_feature(feature), valid_mask(column)
        names = feature.classes or ()
        counts, flat = _count_values(column, feature, present), _flat_values(column, feature)
        numbers = flat.to_numpy(zero_copy_only=False)
        unknown = np.flatnonzero((numbers < 0) | (numbers >= len(names)))
        rows = np.repeat(np.arange(len(counts)), counts)[unknown]
        if len(rows):
            # The values are iterated backwards, so that the first unknown number of a row is the
            # one that stays.
            first_numbers = dict(
                zip(rows[::-1].tolist(), numbers[unknown[::-1]].tolist(), strict=True)
            )
            bad_values = [
                (row, f"no class has the number {first_numbers[row]}")
                for row in sorted(first_numbers)
            ]
            return self.convert(
                column.take(np.delete(np.arange(len(column)), [*first_numbers])), feature
            )[0], bad_values
        texts = pa.array(names, value_type(out)).take(flat)
        return build_column(texts, counts=counts // out.inner_size, present=present, out=out), ()


def make_class_name_steps(schema: Schema) -> tuple[NameClasses, ...]:
    """Returns a `NameClasses` step for each feature that has classes.

    Raises:
        UsageError: No feature has classes.
    """
    steps = tuple(NameClasses(feature.name) for feature in schema if feature.classes is not None)
    if not steps:
        raise UsageError(
            "{class_names}: no feature of the schema has class names",
            class_names=option("class_names"),
        )
    return steps


def _as_ragged(feature: Feature) -> Feature:
    return feature if feature.ragged_rank else replace(feature, shape=(None, *feature.shape[1:]))


def to_list_column(column: pa.Array, feature: Feature) -> tuple[pa.Array, Feature]:
    """Converts a column to lists along the first dimension.

    A scalar becomes a list of one item. A column of lists is returned as it is.

    Returns:
        (the column, its feature).
    """
    out, present = _as_ragged(feature), valid_mask(column)
    if out == feature:
        return column, feature
    return build_column(
        _flat_values(column, feature),
        counts=np.where(present, feature.inner_size // out.inner_size, 0),
        present=present,
        out=out,
    ), out


def build_column(flat_values: pa.Array, counts: Int64s, present: Bools, out: Feature) -> pa.Array:
    """Builds the Arrow column of a feature from flat values.

    Args:
        flat_values: The values of the rows that are not missing, one after the other.
        counts: int64 [rows], the number of items of each row. Ignored if the feature has a fixed
            shape.
        present: bool [rows], False for a missing row.
        out: The feature of the column.
    """
    flat_values = flat_values.cast(value_type(out))
    if not out.ragged_rank:
        if not present.all():
            # The values under a missing row are never used, but a fixed-size list needs memory for
            # them.
            tensor_index = np.cumsum(present) - 1
            flat_values = flat_values.take(
                pa.array(
                    (tensor_index[:, None] * out.inner_size + np.arange(out.inner_size)).ravel(),
                    mask=np.repeat(~present, out.inner_size),
                )
            )
        return _tensor_column(flat_values, present, out)
    offsets = to_offsets(np.where(present, counts, 0))
    items = flat_values
    if out.inner_shape:
        items = pa.Array.from_buffers(
            arrow_type(out).value_type, int(offsets[-1]), [None], children=[flat_values]
        )
    return pa.Array.from_buffers(
        arrow_type(out),
        len(present),
        [_validity_bitmap(present), pa.py_buffer(offsets)],
        children=[items],
    )


def _tensor_column(flat_values: pa.Array, present: Bools, out: Feature) -> pa.Array:
    """Builds a column with one tensor or scalar per row. Missing rows become null."""
    if out.shape:
        return pa.Array.from_buffers(
            arrow_type(out), len(present), [_validity_bitmap(present)], children=[flat_values]
        )
    return (
        flat_values
        if present.all()
        else flat_values.take(pa.array(np.arange(len(flat_values)), mask=~present))
    )


def _validity_bitmap(present: Bools) -> pa.Buffer | None:
    return None if present.all() else pa.array(present).buffers()[1]


def _count_values(column: pa.Array, feature: Feature, present: Bools) -> Int64s:
    """Returns the number of values of each row, int64 [rows]."""
    if not feature.ragged_rank:
        return np.where(present, feature.inner_size, 0)
    return list_lengths(column) * feature.inner_size


def _flat_values(column: pa.Array, feature: Feature) -> pa.Array:
    """Returns the values of all rows that are not missing, one after the other."""
    if not feature.shape:
        return column.drop_null()
    for _ in range(feature.ragged_rank + bool(feature.inner_shape)):
        column = column.flatten()
    return column


def _view_numbers(data: Array, dtype: str, is_big_endian: bool = False) -> pa.Array:
    """Returns the bytes `data` as an array of numbers."""
    order: Literal["<", ">"] = ">" if is_big_endian else "<"
    if dtype == "bool":
        return pa.array(data != 0)
    # A bfloat16 is the upper half of a float32.
    if dtype == "bfloat16":
        return pa.array((data.view(f"{order}u2").astype(np.uint32) << 16).view(np.float32))
    numbers = data.view(np.dtype(dtype).newbyteorder(order))
    return pa.array(np.require(numbers, numpy_dtype(Feature("", dtype)), "A"))


def _check_bytes(feature: Feature, keyword: str) -> None:
    if feature.shape or feature.dtype not in ("bytes", "string"):
        raise UsageError(
            "{option}: it is {feature}; only a single bytes value is decoded",
            option=option(keyword, feature.name),
            feature=feature.describe(),
        )
