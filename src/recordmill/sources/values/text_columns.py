"""Parsing of columns of text to numbers, booleans, times or text, as Arrow arrays.

native/fields.cpp does the work. A text that has no value of the type gets a fault code. This module
also casts numbers to narrower float dtypes, counts the rounded ones, and finds integers that a
float dtype can't hold exactly.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base import native
from recordmill.base.buffers import Bools, Bytes, Int32s, Int64s, allocate
from recordmill.schemas.arrow import value_type
from recordmill.schemas.feature import Feature

MANTISSA_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}


def narrow_floats(numbers: npt.NDArray[Any], dtype: str) -> tuple[npt.NDArray[Any], int]:
    """Casts numbers to a float dtype, and counts the floats that were rounded.

    Returns:
        (numbers, number of rounded floats). bfloat16 values are returned as float32, because NumPy
        has no such dtype. Integers are never counted.
    """
    narrow = to_float_dtype(numbers, dtype)
    if narrow is numbers or numbers.dtype.kind != "f":
        return narrow, 0
    return narrow, int(np.count_nonzero((narrow != numbers) & ~np.isnan(numbers)))


def to_float_dtype(numbers: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Casts numbers to a float dtype, with one rounding. bfloat16 is returned as float32."""
    with np.errstate(over="ignore"):
        narrow = numbers.astype("float32" if dtype == "bfloat16" else dtype, copy=False)
    if dtype != "bfloat16":
        return narrow
    return _round_bfloat16(
        _round_to_odd(numbers, narrow) if numbers.dtype == np.float64 else narrow
    )


def _round_to_odd(numbers: npt.NDArray[Any], narrow: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Makes the mantissa of each rounded float32 odd.

    So the next rounding, to bfloat16, has the result of a single one.

    Args:
        numbers: float64.
        narrow: The numbers, rounded to float32.
    """
    bits = np.ascontiguousarray(narrow).view(np.uint32)
    is_even = (narrow != numbers) & ~np.isnan(numbers) & (bits & np.uint32(1) == 0)
    step = np.where(np.abs(narrow) < np.abs(numbers), 1, -1)
    return (bits + np.where(is_even, step, 0).astype(np.uint32)).view(np.float32)


def _round_bfloat16(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rounds float32 to the precision of bfloat16, to nearest with ties to even.

    The lower 16 bits become 0. NaN stays NaN.
    """
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(
            0xFFFF0000
        )
    result: npt.NDArray[np.float32] = np.where(
        np.isfinite(numbers), rounded, bits & np.uint32(0xFFFF0000)
    ).view(np.float32)
    result[np.isnan(numbers)] = np.nan
    return result


def find_inexact(numbers: npt.NDArray[Any], dtype: str) -> Bools:
    """Returns a mask of the integers that a float dtype can't hold exactly.

    Such integers have too many significant bits, or are too large.

    >>> find_inexact(np.array([2048, 2049]), "float16").tolist()
    [False, True]
    """
    if numbers.dtype.kind == "u":
        magnitude = numbers.astype(np.uint64)
    else:
        wide = numbers.astype(np.int64)
        # -2**63 wraps to itself, and its bits read as uint64 are 2**63
        magnitude = np.where(wide < 0, -wide, wide).view(np.uint64)
    bits = MANTISSA_BITS[dtype]
    bad: Bools = magnitude > np.uint64(1 << bits)
    if bad.any():
        large = magnitude[bad]
        # x & -x is the lowest set bit; divided by it, only the significant bits are left
        bad[bad] = large // (large & (~large + np.uint64(1))) >= np.uint64(1 << bits)
    if dtype == "float16":
        # the largest float16
        bad |= magnitude > np.uint64(65504)
    return bad


_INT_LIMITS = {
    **{f"int{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32)},
    "uint64": (0, (1 << 63) - 1),  # an Example's int64_list holds no larger values
}
# For each dtype: its significant bits, and the smallest number that rounds to infinity. This number
# is half a step above the largest value.
_FLOAT_LIMITS = {
    "float16": (11, 65520.0),
    "bfloat16": (8, 2.0**128 - 2.0**119),
    "float32": (24, 2.0**128 - 2.0**103),
    "float64": (53, np.inf),
}
_NANOS_PER = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}


class NullTokens(NamedTuple):
    """The texts that mean null, in the form that native functions need.

    Attributes:
        data: The bytes of all tokens. Token i is `data[ends[i - 1]:ends[i]]`.
        ends: [tokens] The end of each token in `data`.
    """

    data: Bytes
    ends: Int64s

    @classmethod
    def from_texts(cls, tokens: Sequence[str]) -> NullTokens:
        encoded = [token.encode() for token in tokens]
        data = np.frombuffer(bytearray(b"".join(encoded) or b"\0"), np.uint8)
        return cls(data, np.cumsum([len(token) for token in encoded], dtype=np.int64))

    def fields(self, data: Bytes, starts: Int32s, infos: Int32s) -> native.TextFields:
        """Combines a column of texts with these null tokens, for a native function.

        Args:
            data: The buffer.
            starts: [rows] The offset of each text in `data`.
            infos: [rows] The length of each text and its flag, see `TextFields`.
        """
        return native.TextFields(
            data=data, starts=starts, infos=infos, tokens=self.data, token_ends=self.ends
        )


@dataclass(frozen=True)
class TextFields:
    """A column of texts in one buffer, with the results of parsing it.

    Attributes:
        data: The buffer.
        starts: [rows] The offset of each text in `data`.
        infos: [rows] The length in bytes of each text, with the flag FIELD_QUOTED_BIT.
        tokens: The texts that mean null.
        valid: [rows] 1 for each text. Parsing sets the entry to 0 if the text means null.
        fault: [rows] 0 for each text. Parsing sets the entry to a native.FieldFault if the text has
            no value of the type.
    """

    data: Bytes
    starts: Int32s
    infos: Int32s
    tokens: NullTokens
    valid: Bytes
    fault: Bytes

    @classmethod
    def create(cls, data: Bytes, starts: Int32s, infos: Int32s, tokens: NullTokens) -> TextFields:
        """Creates the column before it is parsed."""
        rows = len(starts)
        return cls(data, starts, infos, tokens, np.ones(rows, np.uint8), np.zeros(rows, np.uint8))

    @property
    def rows(self) -> int:
        return len(self.starts)

    @property
    def native_fields(self) -> native.TextFields:
        """The texts and null tokens, in the form that native functions need."""
        return self.tokens.fields(self.data, self.starts, self.infos)

    def parse(self, kind: native.FieldType, values: npt.NDArray[Any]) -> int:
        """Parses the texts into `values`, and sets `valid` and `fault`.

        Args:
            kind: The type to parse.
            values: [rows] Receives the values. Its dtype must have the width of this type.

        Returns:
            The number of faults.
        """
        outputs = values.view(np.uint8), self.valid, self.fault
        native.read_fields(self.native_fields, kind, *outputs, native.ColumnCounts(), None)
        return int(np.count_nonzero(self.fault))

    def text(self, row: int) -> bytes:
        """Returns the bytes of one text."""
        return text_at(self.data, self.starts, self.infos, row)


def text_at(data: Bytes, starts: Int32s, infos: Int32s, row: int) -> bytes:
    """Returns the bytes of one text of a column, from the arrays of `TextFields`."""
    start = int(starts[row])
    return data[start : start + int(infos[row] & native.FIELD_LENGTH_MASK)].tobytes()


def parse_values(fields: TextFields, feature: Feature) -> tuple[pa.Array, int]:
    """Parses a column of texts to numbers, booleans or times.

    Returns:
        (column of the feature's type, number of faults). Faults are marked in `fields.fault`, and
        their values are arbitrary.
    """
    if feature.dtype in _FLOAT_LIMITS:
        floats, faults = parse_floats(fields, feature.dtype)
        return build_number_column(fields, feature, floats), faults
    is_bool = feature.dtype == "bool"
    values = allocate(fields.rows, np.uint8 if is_bool else np.int64)
    faults = fields.parse(native_field_type(feature), values)
    if is_bool:
        return build_array(
            value_type(feature), fields, np.packbits(values, bitorder="little")
        ), faults
    return build_number_column(fields, feature, values.view(np.int64)), faults


def native_field_type(feature: Feature) -> native.FieldType:
    """Returns the native type of a feature of numbers, booleans or times."""
    if feature.timestamp:
        unit, zone = feature.timestamp
        return native.FieldType(
            kind=native.FieldKind.TIMESTAMPS,
            nanos_per_unit=_NANOS_PER[unit],
            is_aware=zone is not None,
        )
    if feature.dtype in _FLOAT_LIMITS:
        bits, overflow_limit = _FLOAT_LIMITS[feature.dtype]
        return native.FieldType(
            kind=native.FieldKind.FLOATS, mantissa_bits=bits, overflow_limit=overflow_limit
        )
    if feature.dtype == "bool":
        return native.FieldType(kind=native.FieldKind.BOOLEANS)
    low, high = _INT_LIMITS[feature.dtype]
    return native.FieldType(kind=native.FieldKind.INTEGERS, low=low, high=high)


def build_array(
    kind: pa.DataType, fields: TextFields, *buffers: npt.NDArray[np.generic]
) -> pa.Array:
    """Creates an Arrow array from buffers, without a copy.

    Args:
        kind: The type.
        fields: The column of texts, which determines the number of rows and the nulls.
        *buffers: The buffers of the type after the validity bitmap.
    """
    nulls = fields.rows - int(np.count_nonzero(fields.valid))
    validity = pa.py_buffer(np.packbits(fields.valid, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(
        kind, fields.rows, [validity, *(pa.py_buffer(buffer) for buffer in buffers)], nulls
    )


def build_number_column(
    fields: TextFields, feature: Feature, values: npt.NDArray[np.int64] | npt.NDArray[np.float64]
) -> pa.Array:
    """Converts parsed values to the column of a feature of numbers or times.

    Args:
        fields: The column of texts, which determines the nulls.
        feature: The feature.
        values: [rows] int64 or float64.
    """
    if feature.dtype in _FLOAT_LIMITS:
        return build_array(value_type(feature), fields, to_float_dtype(values, feature.dtype))
    narrow = values if feature.timestamp else values.astype(feature.dtype, copy=False)
    return build_array(value_type(feature), fields, narrow)


def build_text_column(fields: TextFields, *, is_utf8: bool = True) -> tuple[pa.Array, int]:
    """Copies the texts to an Arrow column. Unquoted null tokens become null.

    Args:
        fields: The texts.
        is_utf8: Whether the column is large_string, and a text that is not UTF-8 gets a fault.
            Otherwise the column is large_binary.

    Returns:
        (column, number of faults).
    """
    counts = native.ColumnCounts(classes=native.TextClass.TEXT)
    native.read_fields(
        fields.native_fields, native.FieldType(), None, fields.valid, fields.fault, counts, None
    )
    # a quoted text is never a null token
    fields.valid[:] |= (fields.infos & native.FIELD_QUOTED_BIT) != 0
    sizes = fields.infos & native.FIELD_LENGTH_MASK
    offsets, data_out = (
        allocate(fields.rows + 1, np.int64),
        allocate(int(sizes.sum(dtype=np.int64)), np.uint8),
    )
    written = native.join_texts(
        fields.data, fields.starts, sizes, None, fields.valid == 0, data_out, offsets
    )
    faults = 0
    if is_utf8:
        bad_bytes = allocate(fields.rows, np.int64)
        if faults := native.find_bad_lines(
            data_out[:written], offsets[:-1], offsets[1:], bad_bytes
        ):
            fields.fault[bad_bytes >= 0] = native.FieldFault.NOT_UTF8
    return build_array(
        pa.large_string() if is_utf8 else pa.large_binary(), fields, offsets, data_out
    ), faults


def classify_texts(fields: TextFields) -> Int64s:
    """Returns the type that each text could have, as a bit of `schemas.type_lattice`.

    A null has 0.
    """
    classes = allocate(fields.rows, np.int64)
    fields.parse(native.FieldType(), classes)
    return classes


def parse_floats(fields: TextFields, dtype: str) -> tuple[npt.NDArray[np.float64], int]:
    """Parses a column of texts to float64, for a cast to the float dtype.

    The cast rounds each value as it would round the number in the text. A number that the float
    dtype can't hold is a fault, too.

    Args:
        fields: The texts.
        dtype: The float dtype of the feature, for this check.

    Returns:
        (values, number of faults).
    """
    values, (bits, overflow_limit) = allocate(fields.rows, np.float64), _FLOAT_LIMITS[dtype]
    if not fields.parse(
        native.FieldType(
            kind=native.FieldKind.FLOATS, mantissa_bits=bits, overflow_limit=overflow_limit
        ),
        values,
    ):
        return values, 0
    # the native parser leaves numbers of more than 19 digits to Python
    for row in np.flatnonzero(fields.fault == native.FieldFault.UNDECIDED).tolist():
        values[row], fields.fault[row] = parse_undecided(fields.text(row), bits, overflow_limit)
    return values, int(np.count_nonzero(fields.fault))


def _round_float_to_odd(text: bytes) -> float:
    """Rounds a number to float64 by the rule "round to odd".

    If float64 can represent the number, the result is exact. Otherwise it is the one of its two
    neighbours that has an odd mantissa. A later cast to a smaller dtype then rounds correctly.
    """
    value = float(text)
    if value == 0 or not math.isfinite(value):
        return value
    exact = Decimal(text.decode())
    if exact == value or struct.unpack("<q", struct.pack("<d", value))[0] & 1:
        return value
    return math.nextafter(value, math.inf if exact > value else -math.inf)


def parse_undecided(text: bytes, bits: int, overflow_limit: float) -> tuple[float, int]:
    """Rounds a number that the native parser left undecided.

    Args:
        text: The number.
        bits: Significant bits of the float dtype.
        overflow_limit: The smallest magnitude that is out of range for the dtype.

    Returns:
        (value, native.FieldFault). The value is a float64. If the dtype has fewer bits, a cast of
        the value has the same result as rounding the text once. The fault is NONE if the dtype can
        hold the value.
    """
    value = _round_float_to_odd(text) if bits < MANTISSA_BITS["float64"] else float(text)
    if abs(value) >= overflow_limit:
        return value, native.FieldFault.OUT_OF_RANGE
    digits = text.lstrip(b"+-")
    if digits.isdigit():
        number = int(digits)
        if number and (number // (number & -number)).bit_length() > bits:
            return value, native.FieldFault.INEXACT
    return value, native.FieldFault.NONE
