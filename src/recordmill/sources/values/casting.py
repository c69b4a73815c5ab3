"""Casts of Arrow values to the type of a feature, without loss.

A value that would change is marked as bad. It is never rounded, wrapped or turned into infinity.
Examples of bad values are an integer that a float can't hold exactly, a float out of range, and a
fraction for an integer. A time without the required zone and text that does not parse are bad, too.
Floats and decimals are the exception: if they have more digits than the float dtype of the feature,
they are rounded and counted.

All functions take complete columns of scalars. `conform` handles lists and rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base import native
from recordmill.base.buffers import Bools
from recordmill.schemas.arrow import value_type
from recordmill.schemas.feature import Feature
from recordmill.sources.values import text_columns

INT64_MAX = (1 << 63) - 1
_MAX_TEXT_BYTES = (1 << 31) - 1  # native functions store the start of a text in 32 bits
_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
# In messages, after a value that does not fit a uint64 feature.
EXAMPLE_LIMIT = " (tf.train.Example holds whole numbers up to 2^63 - 1)"


class CastResult(NamedTuple):
    """Result of a cast.

    Attributes:
        values: Array of the feature's type. The value in a bad row is arbitrary.
        bad_mask: [rows] True where a value can't be cast. None if all values fit.
        rounded_count: Number of floats that lost digits.
    """

    values: pa.Array
    bad_mask: Bools | None = None
    rounded_count: int = 0


def cast_values(values: pa.Array, feature: Feature) -> CastResult:
    """Casts a column of scalars to the value type of a feature.

    Class names are not looked up here. Use `labels.fit_values` for them.
    """
    values = to_plain_array(values)
    if values.type == pa.uuid():
        is_bytes = feature.dtype == "bytes"
        values = to_plain_array(values.storage) if is_bytes else _to_uuid_texts(values.storage)
    target = value_type(feature)
    if pa.types.is_null(values.type):
        return CastResult(pa.nulls(len(values), target))
    if is_text_type(values.type) and feature.dtype not in ("string", "bytes"):
        return _from_text(values, feature)
    if feature.dtype in text_columns.MANTISSA_BITS:
        return _to_float(values, feature.dtype)
    cast = _to_other_type(values, target)
    # the int64_list of an Example has no values above INT64_MAX; raw features are stored as bytes
    if feature.dtype == "uint64" and not feature.raw:
        is_too_large = pc.greater(cast.values, pa.scalar(INT64_MAX, pa.uint64()))
        return cast._replace(bad_mask=merge_masks(cast.bad_mask, _to_mask(is_too_large)))
    return cast


def to_plain_array(values: pa.Array) -> pa.Array:
    """Returns the values without dictionary, extension or view types.

    Chunks are combined. Binary values of a fixed size become large_binary. Other arrays are
    returned as they are. So are UUIDs, because `cast_values` casts them to texts or to bytes.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        values = values if isinstance(values, pa.Array) else pa.concat_arrays(values.chunks)
    if isinstance(values.type, pa.BaseExtensionType) and values.type != pa.uuid():
        return to_plain_array(values.storage)
    if pa.types.is_dictionary(values.type):
        return to_plain_array(values.dictionary_decode())
    if pa.types.is_string_view(values.type):
        return pc.cast(values, pa.large_string())
    if pa.types.is_binary_view(values.type) or pa.types.is_fixed_size_binary(values.type):
        return pc.cast(values, pa.large_binary())
    return values


def _to_uuid_texts(values: pa.Array) -> pa.Array:
    """Converts UUIDs of 16 bytes to their canonical texts, with the nulls of `values`."""
    start = values.offset * 16
    data = np.frombuffer(values.buffers()[1], np.uint8)[start : start + len(values) * 16]
    digits = _HEX_DIGITS[np.stack([data >> 4, data & 15], -1)].reshape(-1, 32)
    texts = np.insert(digits, (8, 12, 16, 20), ord("-"), axis=1)
    array = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(36), len(values), [None, pa.py_buffer(texts)]
    )
    is_present = values.is_valid()
    return pc.if_else(
        is_present, pc.cast(pc.cast(array, pa.large_binary()), pa.large_string()), None
    )


def is_text_type(kind: pa.DataType) -> bool:
    """Returns whether a type is string or large_string."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def merge_masks(first: Bools | None, second: Bools | None) -> Bools | None:
    """Returns the union of two masks of rows. None is a mask that marks no row."""
    if first is None or second is None:
        return second if first is None else first
    return first | second


def _to_mask(bad: pa.Array) -> Bools | None:
    """Converts a boolean array to a mask, or to None if nothing is True.

    Nulls become False.
    """
    mask: Bools = pc.fill_null(bad, False).to_numpy(zero_copy_only=False)
    return mask if mask.any() else None


def _to_numpy(values: pa.Array) -> npt.NDArray[Any]:
    """Converts numbers to NumPy, with 0 for nulls."""
    return (
        pc.fill_null(values, pa.scalar(0, values.type)) if values.null_count else values
    ).to_numpy(zero_copy_only=False)


def _to_arrow(numbers: npt.NDArray[Any], like: pa.Array) -> pa.Array:
    """Converts NumPy numbers to Arrow, with the nulls of `like`."""
    return pa.array(
        numbers, mask=like.is_null().to_numpy(zero_copy_only=False) if like.null_count else None
    )


def _to_float(values: pa.Array, dtype: str) -> CastResult:
    kind = values.type
    if pa.types.is_boolean(kind):
        values = pc.cast(values, pa.uint8())
    if pa.types.is_integer(values.type):
        numbers = _to_numpy(values)
        narrow, _ = text_columns.narrow_floats(numbers, dtype)
        is_inexact = text_columns.find_inexact(numbers, dtype)
        return CastResult(_to_arrow(narrow, values), is_inexact if is_inexact.any() else None)
    if pa.types.is_decimal(kind):
        # Arrow's cast is often wrong in the last bit, and would be rounded again for float32.
        texts = pc.cast(values, pa.large_string())
        return _from_text(texts, Feature("", dtype), rounds_integers=True)
    bad: Bools | None = None
    if not pa.types.is_floating(kind):
        cast = _arrow_cast(values, pa.float64())
        values, bad = cast.values, cast.bad_mask
    numbers = _to_numpy(values)
    narrow, rounded_count = text_columns.narrow_floats(numbers, dtype)
    if narrow is numbers:
        return CastResult(values, bad, rounded_count)
    is_overflow = np.isinf(narrow) & ~np.isinf(numbers)
    return CastResult(
        _to_arrow(narrow, values),
        merge_masks(bad, is_overflow if is_overflow.any() else None),
        rounded_count,
    )


def _from_text(values: pa.Array, feature: Feature, *, rounds_integers: bool = False) -> CastResult:
    """Parses numbers, booleans and times from texts, by the grammar of native/numbers.h.

    Args:
        values: string or large_string.
        feature: The feature of the result.
        rounds_integers: Whether whole numbers that a float can't hold are rounded. Otherwise they
            are bad.
    """
    present_texts = pc.cast(values.drop_null(), pa.large_string())
    offsets = np.frombuffer(
        present_texts.buffers()[1], np.int64, len(present_texts) + 1, present_texts.offset * 8
    )
    # starts in 32 bits can't address that much text, so no value is parsed
    if len(present_texts) and offsets[-1] - offsets[0] > _MAX_TEXT_BYTES:
        return CastResult(pa.nulls(len(values), value_type(feature)), _to_mask(values.is_valid()))
    data = present_texts.buffers()[2]
    texts = (
        np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    )
    lengths = np.minimum(np.diff(offsets), native.FIELD_LENGTH_MASK).astype(np.int32)
    starts = (offsets[:-1] - offsets[0]).astype(np.int32)
    fields = text_columns.TextFields.create(
        texts[offsets[0] :], starts, lengths, text_columns.NullTokens.from_texts(())
    )
    rounded_count = 0
    if feature.dtype in text_columns.MANTISSA_BITS:
        wide, faults = text_columns.parse_floats(fields, feature.dtype)
        if rounds_integers:
            fields.fault[fields.fault == native.FieldFault.INEXACT] = native.FieldFault.NONE
            faults = int(np.count_nonzero(fields.fault))
        narrow, rounded_count = text_columns.narrow_floats(wide, feature.dtype)
        column = pa.array(narrow)
    else:
        column, faults = text_columns.parse_values(fields, feature)
    present = ~values.is_null().to_numpy(zero_copy_only=False)
    # the native functions saw no nulls, so each value moves to its original row
    if len(present_texts) < len(values):
        column = column.take(pa.array(np.cumsum(present) - 1, mask=~present))
    bad = np.zeros(len(values), np.bool_)
    bad[present] = fields.fault != 0
    return CastResult(column, bad if faults else None, rounded_count)


def _to_other_type(values: pa.Array, target: pa.DataType) -> CastResult:
    kind = values.type
    # text is cast even if it has the right type, because the cast checks the encoding
    if kind == target and not is_text_type(kind):
        return CastResult(values)
    if pa.types.is_integer(target) and pa.types.is_floating(kind):
        return _float_to_int(values, target)
    if pa.types.is_integer(target) and pa.types.is_integer(kind):
        return _int_to_int(values, target)
    if pa.types.is_boolean(target) and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        numbers = _to_numpy(values)
        bad = (numbers != 0) & (numbers != 1)
        return CastResult(_to_arrow(numbers != 0, values), bad if bad.any() else None)
    if pa.types.is_timestamp(target):
        is_time = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        # a time with a zone never becomes one without, or the reverse; a float is never a time
        other_zone = is_time and (getattr(kind, "tz", None) is None) != (target.tz is None)
        if other_zone or pa.types.is_floating(kind):
            return CastResult(pa.nulls(len(values), target), _to_mask(values.is_valid()))
    return _arrow_cast(values, target)


def _float_to_int(values: pa.Array, target: pa.DataType) -> CastResult:
    numbers = _to_numpy(values).astype(np.float64, copy=False)
    dtype = np.dtype(str(target))  # not to_pandas_dtype(), which imports pandas in older pyarrow
    limits = np.iinfo(dtype)
    # As a float, the upper limit of a 64-bit type rounds up to the first value that does not fit.
    # So the upper bound is exclusive.
    bad = ~(
        (numbers >= float(limits.min))
        & (numbers < float(limits.max) + 1.0)
        & (np.trunc(numbers) == numbers)
    )
    integers = np.where(bad, 0, numbers).astype(dtype)
    return CastResult(_to_arrow(integers, values), bad if bad.any() else None)


def _int_to_int(values: pa.Array, target: pa.DataType) -> CastResult:
    numbers = _to_numpy(values)
    dtype = np.dtype(str(target))
    limits, source_limits = np.iinfo(dtype), np.iinfo(numbers.dtype)
    low, high = (
        numbers.dtype.type(max(limits.min, source_limits.min)),
        numbers.dtype.type(min(limits.max, source_limits.max)),
    )
    bad = (numbers < low) | (numbers > high)
    return CastResult(_to_arrow(numbers.astype(dtype), values), bad if bad.any() else None)


def _arrow_cast(values: pa.Array, target: pa.DataType) -> CastResult:
    """Casts with Arrow's safe cast. If that fails, finds the values that can't be cast."""
    try:
        return CastResult(_safe_cast(values, target))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        bad = np.zeros(len(values), np.bool_)
    # if Arrow has no cast between the types, the search below would try each value in vain
    if not _can_cast(values.type, target):
        return CastResult(pa.nulls(len(values), target), _to_mask(values.is_valid()))
    _mark_failures(values, np.arange(len(values)), target, bad)
    castable = (
        pc.if_else(pa.array(bad), pa.scalar(None, values.type), values) if bad.any() else values
    )
    return CastResult(_safe_cast(castable, target), bad if bad.any() else None)


def _can_cast(kind: pa.DataType, target: pa.DataType) -> bool:
    try:
        _safe_cast(pa.nulls(0, kind), target)
    except pa.ArrowNotImplementedError:
        return False
    return True


def _mark_failures(
    values: pa.Array, rows: npt.NDArray[np.int64], target: pa.DataType, bad: Bools
) -> None:
    """Sets `bad` to True for the values that Arrow can't cast.

    Args:
        values: The values.
        rows: The row of each value in `bad`.
        target: The type of the cast.
        bad: The mask. Changed in place.
    """
    if len(values) == 0:
        return
    try:
        _safe_cast(values, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(values) == 1:
            bad[rows[0]] = True
            return
        # halves without a bad value need one cast only, so few bad values are found quickly
        half = len(values) // 2
        _mark_failures(values.slice(0, half), rows[:half], target, bad)
        _mark_failures(values.slice(half), rows[half:], target, bad)


def _safe_cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    if values.type == target:
        if is_text_type(target):
            values.validate(full=True)  # Parquet and JSON readers pass invalid UTF-8
        return values
    if is_text_type(values.type) and is_text_type(target):
        values.validate(full=True)
    return pc.cast(values, target, safe=True)
