"""Converts columns, between the decoder and the writers, by `ConversionStep`s that turn one feature of a batch into
what people work with.

    DecodeRaw     bytes to a tensor of numbers (`tf.io.decode_raw`)
    DecodeTensor  serialized TensorProtos to a tensor (`tf.io.parse_tensor`)
    Reshape       a list or a tensor to another shape
    Pad           a variable-length list to a fixed length
    NameClasses   class numbers to the names of their classes

Each is a pure function of a column: the schema that comes out follows from the schema that goes in, never from the
values. A value that does not fit makes its record a bad one, named with the reason. What is missing stays missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from recordmill.base import native
from recordmill.base.buffers import Bools, Int64s
from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import available_names, option
from recordmill.records.columns.numpy_arrays import lengths_of, numpy_dtype, take_apart
from recordmill.records.columns.ragged import Array
from recordmill.records.example.locate import BadRecord
from recordmill.records.protobuf import tensor_proto
from recordmill.schemas.arrow import arrow_type, to_arrow, value_type
from recordmill.schemas.feature import EXAMPLE, ITEM_BYTES, Feature, Schema

# 67 million, as many as an image may have pixels: a tensor of one value that stands for all must not ask for more
MAX_REPEATED = 1 << 26
Faults = Sequence[tuple[int, str]]  # (row of the column, reason)
Shape = tuple[int | None, ...]


class ConversionStep(Protocol):
    """One conversion of one feature."""

    @property
    def feature(self) -> str:
        """The name of the feature that is converted."""

    def output(self, feature: Feature) -> Feature:
        """Returns the converted feature; UsageError if it can't be converted."""

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, Faults]:
        """Returns the column of output(feature), without the rows of the faults, and these."""


@dataclass(frozen=True)
class Converted:
    """batch: what was converted; rows: the row of the input that each of its rows was; bad: the others."""

    batch: pa.RecordBatch
    rows: Int64s
    bad: tuple[BadRecord, ...]


def output_schema(steps: Sequence[ConversionStep], schema: Schema) -> Schema:
    """Returns the schema after these steps; UsageError: a feature is not there, or the step does not take it."""
    for step in steps:
        if step.feature not in schema:
            raise UsageError(
                f"no feature {step.feature!r} to convert; {available_names(step.feature, schema.names)}"
            )
        features = tuple(
            step.output(feature) if feature.name == step.feature else feature for feature in schema
        )
        schema = Schema(
            features, schema.label, EXAMPLE if schema.message == "bytes" else schema.message
        )
    return schema


def convert_column(
    steps: Sequence[ConversionStep], batch: pa.RecordBatch, schema: Schema
) -> Converted:
    """Returns the batch, of the schema's Arrow types, after these steps."""
    rows = np.arange(batch.num_rows)
    bad: list[BadRecord] = []
    columns = list(batch.columns)
    for step in steps:
        at = schema.names.index(step.feature)
        columns[at], faults = step.convert(columns[at], schema[step.feature])
        if faults:
            bad += [BadRecord(int(rows[row]), step.feature, reason) for row, reason in faults]
            kept = np.delete(np.arange(len(rows)), [row for row, _ in faults])
            columns = [
                column if i == at else column.take(pa.array(kept))
                for i, column in enumerate(columns)
            ]
            rows = rows[kept]
        schema = output_schema([step], schema)
    return Converted(
        pa.RecordBatch.from_arrays(columns, schema=to_arrow(schema)),
        rows,
        tuple(sorted(bad, key=lambda record: record.row)),
    )


@dataclass(frozen=True)
class DecodeRaw:
    """Bytes that are an array's memory, row-major: dtype of ITEM_BYTES; None: a first dimension that varies."""

    feature: str
    dtype: str
    shape: Shape
    big_endian: bool = False

    def output(self, feature: Feature) -> Feature:
        _check_bytes(feature, "decode_raw")
        return replace(feature, dtype=self.dtype, shape=self.shape, classes=None)

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, Faults]:
        out = self.output(feature)
        unit = ITEM_BYTES[self.dtype] * out.inner_size
        parts = take_apart(column, feature)
        lengths = np.diff(parts.splits[0])
        present = _present(column)
        wrong = present & ((lengths % unit != 0) if out.ragged_rank else (lengths != unit))
        what = (
            f"{self.dtype} [{', '.join('?' if size is None else str(size) for size in self.shape)}]"
        )
        faults = [
            (
                int(row),
                f"{lengths[row]} bytes, which are no {what} of {unit} bytes{' an item' if out.ragged_rank else ''}",
            )
            for row in np.flatnonzero(wrong)
        ]
        if faults:
            return self.convert(column.filter(pa.array(~wrong)), feature)[0], faults
        return build_steps(
            _numbers(parts.values, self.dtype, self.big_endian), lengths // unit, present, out
        ), ()


@dataclass(frozen=True)
class DecodeTensor:
    """Serialized TensorProtos, all of this dtype and shape (None for a first dimension that varies)."""

    feature: str
    dtype: str
    shape: Shape

    def output(self, feature: Feature) -> Feature:
        _check_bytes(feature, "decode_tensor")
        if len(self.shape) > tensor_proto.MAX_RANK:
            most = f"of at most {tensor_proto.MAX_RANK} dimensions, not {len(self.shape)}"
            raise UsageError(
                f"{option('decode_tensor', feature.name)}: TensorProtos are read {most}"
            )
        return replace(feature, dtype=self.dtype, shape=self.shape, classes=None)

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, Faults]:
        out = self.output(feature)
        parts = take_apart(column, feature)
        splits, present = parts.splits[0], _present(column)
        found = tensor_proto.read_headers(parts.values, splits)
        sizes, unit = self._sound_sizes(found), ITEM_BYTES[self.dtype]
        plain = found.status == tensor_proto.PLAIN_DTYPES
        wrong = present & (sizes < 0)
        faults = [(int(row), self._reason(found, int(row))) for row in np.flatnonzero(wrong)]
        sizes = np.where(present & ~wrong, sizes, 0)
        values = np.empty(int(sizes.sum()) * unit, np.uint8)
        places = (np.cumsum(sizes) - sizes) * unit
        whole = present & ~wrong & plain
        spans = found.starts[whole], found.lengths[whole], places[whole]
        native.copy_spans([np.ascontiguousarray(parts.values)], None, *spans, values)
        for row in np.flatnonzero(present & ~wrong & ~plain):
            try:
                content = tensor_proto.typed_values(
                    parts.values[splits[row] : splits[row + 1]].tobytes(),
                    self.dtype,
                    int(sizes[row]),
                )
            except DataError as error:
                faults.append((int(row), error.reason))
                continue
            values[places[row] : places[row] + len(content)] = np.frombuffer(content, np.uint8)
        if faults:
            keep = np.ones(len(column), np.bool_)
            keep[[row for row, _ in faults]] = False
            return self.convert(column.filter(pa.array(keep)), feature)[0], sorted(faults)
        return build_steps(
            _numbers(values, self.dtype), sizes // max(out.inner_size, 1), present, out
        ), ()

    def costs(self, column: pa.Array, feature: Feature) -> tuple[Int64s, Int64s]:
        """Returns ([rows] bytes of each tensor, [rows] bytes that are needed beside it), which a proto of one value
        that stands for all makes as large as it likes; 0 for what is none or is missing. Only headers are looked at.
        """
        parts = take_apart(column, feature)
        sizes = self._sound_sizes(tensor_proto.read_headers(parts.values, parts.splits[0]))
        result = np.where(_present(column) & (sizes > 0), sizes, 0) * ITEM_BYTES[self.dtype]
        return result, result

    def _sound_sizes(self, found: tensor_proto.Headers) -> Int64s:
        """[rows] how many values each tensor has; -1 for what is none, or has too few bytes of content."""
        sizes, plain = self._sizes(found), found.status == tensor_proto.PLAIN_DTYPES
        fits = np.where(
            plain, found.lengths == sizes * ITEM_BYTES[self.dtype], sizes <= MAX_REPEATED
        )
        return np.where(fits & (found.status != tensor_proto.BROKEN), sizes, -1)

    def _sizes(self, found: tensor_proto.Headers) -> Int64s:
        """[rows] how many values each tensor has; -1 for another dtype or shape."""
        right = np.array(
            [tensor_proto.TENSOR_DTYPES.get(number) == self.dtype for number in range(64)]
        )[np.clip(found.dtype, 0, 63)] & (found.rank == len(self.shape))
        sizes = np.ones(len(right), np.int64)
        for axis, size in enumerate(self.shape):
            right &= (
                (found.dims[:, axis] < 2**31) if size is None else (found.dims[:, axis] == size)
            )
            sizes *= np.where(right, found.dims[:, axis], 1)
        return np.where(right, sizes, -1)

    def _reason(self, found: tensor_proto.Headers, row: int) -> str:
        if found.status[row] == tensor_proto.BROKEN:
            return "no TensorProto"
        number = int(found.dtype[row])
        dims = ", ".join(map(str, found.dims[row, : found.rank[row]].tolist()))
        wanted = ", ".join("?" if size is None else str(size) for size in self.shape)
        size, plain = int(self._sizes(found)[row]), found.status[row] == tensor_proto.PLAIN_DTYPES
        if not plain and size > MAX_REPEATED:
            return f"a tensor of {size} values that repeat one; {MAX_REPEATED} at most may"
        said = (
            f"a tensor {tensor_proto.TENSOR_DTYPES.get(number, f'of DataType {number}')} [{dims}]"
        )
        if plain and size >= 0:
            return f"{said} with {found.lengths[row]} bytes of content"
        first = (
            self.shape
            and found.rank[row] == len(self.shape)
            and tensor_proto.TENSOR_DTYPES.get(number) == self.dtype
            and None not in self.shape
        )
        varies = first and found.dims[row, 1 : len(self.shape)].tolist() == list(self.shape[1:])
        hint = (
            "; if the first dimension varies: "
            f"{self.feature}={self.dtype}[{', '.join(['-1', *map(str, self.shape[1:])])}]"
            if varies
            else ""
        )
        return f"{said} where {self.dtype} [{wanted}] is expected{hint}"


@dataclass(frozen=True)
class Reshape:
    """Keeps the values, in another shape; None: the dimension that follows from the others."""

    feature: str
    shape: Shape

    def output(self, feature: Feature) -> Feature:
        if feature.ragged_rank > 1:
            raise UsageError(
                f"{option('reshape', feature.name)}: it is {feature.describe()}, lists of lists, which have no one "
                "shape"
            )
        return replace(feature, shape=self._shape(feature), per_step=False)

    def _shape(self, feature: Feature) -> Shape:
        known = 1
        for size in self.shape:
            known *= 1 if size is None else size
        if feature.ragged_rank:
            if None in self.shape[1:]:
                raise UsageError(
                    f"{option('reshape', feature.name)}: its length varies, so only the first dimension can be -1"
                )
            return self.shape
        if None in self.shape and feature.inner_size % known == 0:
            return tuple(
                feature.inner_size // known if size is None else size for size in self.shape
            )
        if None in self.shape or known != feature.inner_size:
            raise UsageError(
                f"{option('reshape', feature.name)}: it is {feature.describe()}, which does not go into "
                f"{list(self.shape)}".replace("None", "-1")
            )
        return self.shape

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, Faults]:
        out = self.output(feature)
        present = _present(column)
        counts = _counts(column, feature, present)
        wrong = present & (
            (counts % out.inner_size != 0) if out.ragged_rank else (counts != out.inner_size)
        )
        shape = ", ".join("-1" if size is None else str(size) for size in self.shape)
        faults = [
            (int(row), f"{counts[row]} values, which do not go into [{shape}]")
            for row in np.flatnonzero(wrong)
        ]
        if faults:
            return self.convert(column.filter(pa.array(~wrong)), feature)[0], faults
        return build_steps(_flat(column, feature), counts // out.inner_size, present, out), ()


@dataclass(frozen=True)
class Pad:
    """Fills a list up to `length` items; a longer one is a bad record or, with cut, loses its end."""

    feature: str
    length: int
    value: Any
    cut: bool = False

    def output(self, feature: Feature) -> Feature:
        if feature.ragged_rank > 1:
            raise UsageError(
                f"{option('pad_or_cut' if self.cut else 'pad', feature.name)}: it is {feature.describe()}, lists of "
                "lists, which have no one length"
            )
        self._fill(feature)
        return replace(feature, shape=(self.length, *feature.shape[1:]), per_step=False)

    def _fill(self, feature: Feature) -> pa.Scalar:
        """Returns the padding value, as text or as the number that it is."""
        arrow = value_type(feature)
        try:
            text = isinstance(self.value, str) and not (
                pa.types.is_large_string(arrow) or pa.types.is_large_binary(arrow)
            )
            value = (
                (float(self.value) if pa.types.is_floating(arrow) else int(self.value))
                if text
                else self.value
            )
            if pa.types.is_boolean(arrow):
                value = {0: False, 1: True}[int(value)]
            return pa.scalar(np.float16(value) if pa.types.is_float16(arrow) else value, arrow)
        except (ValueError, KeyError, TypeError, OverflowError, pa.ArrowException):
            raise UsageError(
                f"{option('pad', feature.name)}: {self.value!r} is no {feature.dtype}"
            ) from None

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, Faults]:
        out, present = self.output(feature), _present(column)
        column, feature = as_list(column, feature)
        lengths = np.where(present, lengths_of(column), 0)
        wrong = lengths > self.length if not self.cut else np.zeros(len(lengths), np.bool_)
        faults = [
            (
                int(row),
                f"{lengths[row]} items, more than the {self.length} to pad to ({option('pad_or_cut')} drops the "
                "others)",
            )
            for row in np.flatnonzero(wrong)
        ]
        if faults:
            return self.convert(column.filter(pa.array(~wrong)), feature)[0], faults
        width = feature.inner_size
        steps = np.arange(self.length * width)
        starts = (np.cumsum(lengths) - lengths) * width
        filled = steps < (lengths * width)[:, None]
        at = pa.array((starts[:, None] + steps).ravel(), mask=~filled.ravel())
        values = (
            _flat(column, feature).take(at).fill_null(self._fill(feature))
            if len(at)
            else pa.array([], value_type(feature))
        )
        return _with_missing(values, present, out), ()


@dataclass(frozen=True)
class MakeRagged:
    """A list of variable length, also where all records happen to hold equally many items."""

    feature: str

    def output(self, feature: Feature) -> Feature:
        return _as_ragged(feature)

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, Faults]:
        return as_list(column, feature)[0], ()


@dataclass(frozen=True)
class NameClasses:
    """Class numbers to the names of their classes; a number that no class has is a bad record."""

    feature: str

    def output(self, feature: Feature) -> Feature:
        return replace(feature, dtype="string", classes=None)

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, Faults]:
        out, present, names = self.output(feature), _present(column), feature.classes or ()
        counts, flat = _counts(column, feature, present), _flat(column, feature)
        numbers = flat.to_numpy(zero_copy_only=False)
        unknown = np.flatnonzero((numbers < 0) | (numbers >= len(names)))
        rows = np.repeat(np.arange(len(counts)), counts)[unknown]
        if len(rows):
            first = dict(zip(rows[::-1].tolist(), numbers[unknown[::-1]].tolist(), strict=True))
            faults = [(row, f"no class has the number {first[row]}") for row in sorted(first)]
            return self.convert(column.take(np.delete(np.arange(len(column)), [*first])), feature)[
                0
            ], faults
        texts = pa.array(names, value_type(out)).take(flat)
        return build_steps(texts, counts // out.inner_size, present, out), ()


def class_names_of(schema: Schema) -> tuple[NameClasses, ...]:
    """Returns the steps for all features that have class names.

    Raises:
        UsageError: none has.
    """
    steps = tuple(NameClasses(feature.name) for feature in schema if feature.classes is not None)
    if not steps:
        raise UsageError(f"{option('class_names')}: the schema has class names for no feature")
    return steps


def _as_ragged(feature: Feature) -> Feature:
    return feature if feature.ragged_rank else replace(feature, shape=(None, *feature.shape[1:]))


def as_list(column: pa.Array, feature: Feature) -> tuple[pa.Array, Feature]:
    """Returns a column of a fixed shape as lists along its first dimension (a scalar: of one), lists as they are."""
    out, present = _as_ragged(feature), _present(column)
    if out == feature:
        return column, feature
    return build_steps(
        _flat(column, feature),
        np.where(present, feature.inner_size // out.inner_size, 0),
        present,
        out,
    ), out


def build_steps(flat: pa.Array, counts: Int64s, present: Bools, out: Feature) -> pa.Array:
    """Returns the column of `out`: flat, the values of the rows that are there; counts: [rows] items of each."""
    flat = flat.cast(value_type(out))
    if not out.ragged_rank:
        if not present.all():
            # What stands under a missing row is never looked at, but a fixed-size list needs it to be there.
            at = np.cumsum(present) - 1
            flat = flat.take(
                pa.array(
                    (at[:, None] * out.inner_size + np.arange(out.inner_size)).ravel(),
                    mask=np.repeat(~present, out.inner_size),
                )
            )
        return _with_missing(flat, present, out)
    offsets = np.zeros(len(present) + 1, np.int64)
    np.cumsum(np.where(present, counts, 0), out=offsets[1:])
    items = flat
    if out.inner_shape:
        items = pa.Array.from_buffers(
            arrow_type(out).value_type, int(offsets[-1]), [None], children=[flat]
        )
    return pa.Array.from_buffers(
        arrow_type(out), len(present), [_bitmap(present), pa.py_buffer(offsets)], children=[items]
    )


def _with_missing(flat: pa.Array, present: Bools, out: Feature) -> pa.Array:
    """Returns tensors (or scalars) of one size, one per row."""
    if out.shape:
        return pa.Array.from_buffers(
            arrow_type(out), len(present), [_bitmap(present)], children=[flat]
        )
    return flat if present.all() else flat.take(pa.array(np.arange(len(flat)), mask=~present))


def _bitmap(present: Bools) -> pa.Buffer | None:
    return None if present.all() else pa.array(present).buffers()[1]


def _present(column: pa.Array) -> Bools:
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    mask: Bools = column.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _counts(column: pa.Array, feature: Feature, present: Bools) -> Int64s:
    """[rows] how many values each row has."""
    if not feature.ragged_rank:
        return np.where(present, feature.inner_size, 0)
    return lengths_of(column) * feature.inner_size


def _flat(column: pa.Array, feature: Feature) -> pa.Array:
    """Returns the values of all rows that are there, one after the other."""
    if not feature.shape:
        return column.drop_null()
    for _ in range(feature.ragged_rank + bool(feature.inner_shape)):
        column = column.flatten()
    return column


def _numbers(data: Array, dtype: str, big_endian: bool = False) -> pa.Array:
    """Returns the values whose memory the bytes are."""
    order: Literal["<", ">"] = ">" if big_endian else "<"
    if dtype == "bool":
        return pa.array(data != 0)
    if dtype == "bfloat16":  # the upper half of a float32
        return pa.array((data.view(f"{order}u2").astype(np.uint32) << 16).view(np.float32))
    numbers = data.view(np.dtype(dtype).newbyteorder(order))
    return pa.array(np.require(numbers, numpy_dtype(Feature("", dtype)), "A"))


def _check_bytes(feature: Feature, keyword: str) -> None:
    if feature.shape or feature.dtype not in ("bytes", "string"):
        raise UsageError(
            f"{option(keyword, feature.name)}: it is {feature.describe()}; only a single bytes value is decoded"
        )
