"""Casts values of an Arrow type to a feature's type, with a mask of those that would not survive the change.

Nothing is bent: an integer that a float can't hold, a float beyond the target's range, a fraction on its way to an
integer, a time without a zone where one is wanted, and a text that doesn't parse are marked, never rounded, wrapped or
turned into infinity. Only the rounding of a
decimal to the declared float is allowed, and counted. Everything is done on whole columns; nothing here knows about
lists or rows (see conform).
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
_MAX_TEXT_BYTES = (1 << 31) - 1  # what the 32 bits of a text's start can say
EXAMPLE_LIMIT = (
    " (tf.train.Example holds whole numbers up to 2^63 - 1)"  # after what does not fit uint64
)


class CastResult(NamedTuple):
    """Values of the feature's type, anything where bad. bad: None if all fit; lost: how many were rounded."""

    values: pa.Array
    bad_mask: Bools | None = None
    rounded_count: int = 0


def cast_values(values: pa.Array, feature: Feature) -> CastResult:
    """Casts values, none of them a list, to the feature's value type; `labels.fit_values` casts names of classes."""
    values = to_plain_array(values)
    target = value_type(feature)
    if pa.types.is_null(values.type):
        return CastResult(pa.nulls(len(values), target))
    if is_text_type(values.type) and feature.dtype not in ("string", "bytes"):
        return _from_text(values, feature)
    if feature.dtype in text_columns.MANTISSA_BITS:
        return _to_float(values, feature.dtype)
    cast = _to_other_type(values, target)
    if feature.dtype == "uint64" and not feature.raw:
        is_too_large = pc.greater(cast.values, pa.scalar(INT64_MAX, pa.uint64()))
        return cast._replace(bad_mask=merge_masks(cast.bad_mask, _to_mask(is_too_large)))
    return cast


def to_plain_array(values: pa.Array) -> pa.Array:
    """Returns the values without dictionary, extension or view types around them."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        values = values if isinstance(values, pa.Array) else pa.concat_arrays(values.chunks)
    if isinstance(values.type, pa.BaseExtensionType):
        return to_plain_array(values.storage)
    if pa.types.is_dictionary(values.type):
        return to_plain_array(values.dictionary_decode())
    if pa.types.is_string_view(values.type):
        return pc.cast(values, pa.large_string())
    if pa.types.is_binary_view(values.type) or pa.types.is_fixed_size_binary(values.type):
        return pc.cast(values, pa.large_binary())
    return values


def is_text_type(kind: pa.DataType) -> bool:
    """Returns whether it is string or large_string, whose values the text kernels read as they lie."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def merge_masks(first: Bools | None, second: Bools | None) -> Bools | None:
    """Marked in one or the other."""
    if first is None or second is None:
        return second if first is None else first
    return first | second


def _to_mask(bad: pa.Array) -> Bools | None:
    """Returns a boolean Arrow array as a NumPy mask, nulls being fine; None if nothing is marked."""
    mask: Bools = pc.fill_null(bad, False).to_numpy(zero_copy_only=False)
    return mask if mask.any() else None


def _to_numpy(values: pa.Array) -> npt.NDArray[Any]:
    """Returns numbers as NumPy, nulls as 0."""
    result: npt.NDArray[Any] = (
        pc.fill_null(values, pa.scalar(0, values.type)) if values.null_count else values
    ).to_numpy(zero_copy_only=False)
    return result


def _to_arrow(numbers: npt.NDArray[Any], like: pa.Array) -> pa.Array:
    """NumPy numbers as an Arrow array that is null where like is."""
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
    bad: Bools | None = None
    if not pa.types.is_floating(kind):
        cast = _arrow_cast(values, pa.float64())
        values, bad = cast.values, cast.bad_mask
    numbers = _to_numpy(values)
    narrow, rounded_count = text_columns.narrow_floats(numbers, dtype)
    is_overflow = np.isinf(narrow) & ~np.isinf(numbers)
    return CastResult(
        values if narrow is numbers else _to_arrow(narrow, values),
        merge_masks(bad, is_overflow if is_overflow.any() else None),
        rounded_count,
    )


def _from_text(values: pa.Array, feature: Feature) -> CastResult:
    """Parses numbers, truth values and times in texts, by the grammar of native/numbers.h."""
    present_texts = pc.cast(values.drop_null(), pa.large_string())
    offsets = np.frombuffer(
        present_texts.buffers()[1], np.int64, len(present_texts) + 1, present_texts.offset * 8
    )
    if len(present_texts) and offsets[-1] - offsets[0] > _MAX_TEXT_BYTES:
        return CastResult(pa.nulls(len(values), value_type(feature)), _to_mask(values.is_valid()))
    data = present_texts.buffers()[2]
    texts = (
        np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    )
    lengths = np.minimum(np.diff(offsets), native.FIELD_LENGTH).astype(np.int32)
    starts = (offsets[:-1] - offsets[0]).astype(np.int32)
    fields = text_columns.TextFields.create(
        texts[offsets[0] :], starts, lengths, text_columns.NullTokens.from_texts(())
    )
    rounded_count = 0
    if feature.dtype in text_columns.MANTISSA_BITS:
        wide, faults = text_columns.parse_floats(fields, feature.dtype)
        narrow, rounded_count = text_columns.narrow_floats(wide, feature.dtype)
        column = pa.array(narrow)
    else:
        column, faults = text_columns.parse_values(fields, feature)
    present = ~values.is_null().to_numpy(zero_copy_only=False)
    if len(present_texts) < len(values):
        column = column.take(pa.array(np.cumsum(present) - 1, mask=~present))
    bad = np.zeros(len(values), np.bool_)
    bad[present] = fields.fault != 0
    return CastResult(column, bad if faults else None, rounded_count)


def _to_other_type(values: pa.Array, target: pa.DataType) -> CastResult:
    kind = values.type
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
        other_zone = is_time and (getattr(kind, "tz", None) is None) != (target.tz is None)
        if other_zone or pa.types.is_floating(kind):
            return CastResult(pa.nulls(len(values), target), _to_mask(values.is_valid()))
    return _arrow_cast(values, target)


def _float_to_int(values: pa.Array, target: pa.DataType) -> CastResult:
    numbers = _to_numpy(values).astype(np.float64, copy=False)
    dtype = np.dtype(str(target))  # not to_pandas_dtype(), which imports pandas in older pyarrow
    limits = np.iinfo(dtype)
    # As floats the limits of 64-bit types round up to the first value that does not fit,
    # so the upper bound is exclusive.
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
    """Arrow's own safe cast of the whole column; only if that fails, one value's failure is told from the others'."""
    try:
        return CastResult(_safe_cast(values, target))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        bad = np.zeros(len(values), np.bool_)
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
    if len(values) == 0:
        return
    try:
        _safe_cast(values, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(values) == 1:
            bad[rows[0]] = True
            return
        half = len(values) // 2
        _mark_failures(values.slice(0, half), rows[:half], target, bad)
        _mark_failures(values.slice(half), rows[half:], target, bad)


def _safe_cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    if values.type == target:
        if is_text_type(target):
            values.validate(full=True)  # Parquet and JSON readers pass bytes that are no UTF-8
        return values
    if is_text_type(values.type) and is_text_type(target):
        values.validate(full=True)
    return pc.cast(values, target, safe=True)
