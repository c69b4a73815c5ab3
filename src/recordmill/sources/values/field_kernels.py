"""One column of texts in, one NumPy column out: values, validity and faults, in Numba kernels, with the texts that
stand for a null; with `text_values` the one grammar of scalars for CSV fields, JSON strings and text columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Bytes, Int32s, Int64s
from recordmill.base.kernels import kernel
from recordmill.schemas.type_lattice import SECONDS, TEXT_TYPE
from recordmill.sources.values.text_values import (
    DECIMAL,
    INEXACT_DECIMAL,
    INEXACT_INTEGER,
    NOT_A_NUMBER,
    OVERFLOW,
    WHOLE,
    classify,
    fits_int64,
    magnitude,
    scan_number,
    truth,
    whole_value,
    word_number,
)
from recordmill.sources.values.timestamp_text import scan_timestamp

# mypy: disable-error-code="arg-type,assignment,return-value,no-any-return"
# In compiled code NumPy's scalars and Python's are the same.


class NullTokens(NamedTuple):
    """data[ends[i - 1]:ends[i]] is token i; longest: the length of the longest, -1 if there are none."""

    data: Bytes
    ends: npt.NDArray[np.int64]
    longest: int

    @classmethod
    def of(cls, tokens: Sequence[str]) -> NullTokens:
        encoded = [token.encode() for token in tokens]
        data = np.frombuffer(bytearray(b"".join(encoded) or b"\0"), np.uint8)
        return cls(
            data,
            np.cumsum([len(token) for token in encoded], dtype=np.int64),
            max((len(token) for token in encoded), default=-1),
        )


@kernel
def null_index(data: Bytes, start: int, size: int, tokens: NullTokens) -> int:
    """Which token the field is; -1 if it is a value."""
    if size > tokens.longest:
        return -1
    first = 0
    for index in range(len(tokens.ends)):
        stop = tokens.ends[index]
        if stop - first == size:
            same = True
            for at in range(size):
                if data[start + at] != tokens.data[first + at]:
                    same = False
                    break
            if same:
                return index
        first = stop
    return -1


# mypy: disable-error-code="arg-type,assignment,return-value,no-any-return"
# In compiled code NumPy's scalars and Python's are the same.


QUOTED = 1 << 29  # bit in an info: the field was quoted
LENGTH_COLUMN = (1 << 28) - 1  # the other bits: its length in bytes


# faults
FITS, WRONG_TYPE, BEYOND_RANGE, INEXACT, UNDECIDED, NO_ZONE, HAS_ZONE, TOO_FINE, FIELD_NOT_UTF8, NO_CLASS, NO_VALUE = (
    range(11)
)

# what infer counts; the null tokens' counts follow
VALUE_CLASSES, FIELD_VALUES, SOFT_NULLS, DECIMALS, INTEGERS, OVERFLOWS = range(6)
FIELD_COUNTS = 6


@kernel
def infer_column(data: Bytes, starts: Int32s, infos: Int32s, tokens: NullTokens, counts: Int64s) -> None:
    """Join what the column's fields are into counts [COUNTS + tokens];
    nothing is classified once the column is known as text.
    """
    text = counts[VALUE_CLASSES] & TEXT_TYPE != 0
    for row in range(len(starts)):
        start, size = np.int64(starts[row]), np.int64(infos[row] & LENGTH_COLUMN)
        null = null_index(data, start, size, tokens)
        if null >= 0:
            if not infos[row] & QUOTED:
                counts[FIELD_COUNTS + null] += 1
                continue
            counts[SOFT_NULLS] += 1
        counts[FIELD_VALUES] += 1
        if text or null >= 0:
            continue
        bits, loss = classify(data, start, start + size)
        counts[VALUE_CLASSES] |= bits
        text = bits == TEXT_TYPE
        if loss == INEXACT_DECIMAL:
            counts[DECIMALS] += 1
        elif loss == INEXACT_INTEGER:
            counts[INTEGERS] += 1
        elif loss == OVERFLOW:
            counts[OVERFLOWS] += 1


@kernel
def whole_number(
    data: Bytes,
    starts: Int32s,
    infos: Int32s,
    tokens: NullTokens,
    low: int,
    high: int,
    out: Int64s,
    valid: Bytes,
    fault: Bytes,
) -> tuple[int, int]:
    """Whole numbers in [low, high], however they are written: 5, 5.0, 5e0."""
    nulls, faults = 0, 0
    for row in range(len(starts)):
        start, size = np.int64(starts[row]), np.int64(infos[row] & LENGTH_COLUMN)
        out[row] = 0
        if null_index(data, start, size, tokens) >= 0:
            valid[row] = 0
            nulls += 1
            continue
        kind, _, negative, digits, power, long, cut = scan_number(data, start, start + size)
        if kind == DECIMAL:
            digits, power = whole_value(digits, power)
        if kind == NOT_A_NUMBER or power < 0 or (kind == DECIMAL and cut):
            fault[row] = WRONG_TYPE
            faults += 1
            continue
        value = -np.int64(digits) if negative else np.int64(digits)
        if not fits_int64(negative, digits, long or power > 0) or value < low or value > high:
            fault[row] = BEYOND_RANGE
            faults += 1
            continue
        out[row] = value
    return nulls, faults


@kernel
def real(
    data: Bytes,
    starts: Int32s,
    infos: Int32s,
    tokens: NullTokens,
    bits: int,
    beyond: float,
    out: npt.NDArray[np.float64],
    valid: Bytes,
    fault: Bytes,
) -> tuple[int, int]:
    """Decimals, rounded to float64. A whole number needs at most `bits` significant bits;
    values from `beyond` on are out of range.
    """
    nulls, faults = 0, 0
    for row in range(len(starts)):
        start, size = np.int64(starts[row]), np.int64(infos[row] & LENGTH_COLUMN)
        out[row] = 0.0
        if null_index(data, start, size, tokens) >= 0:
            valid[row] = 0
            nulls += 1
            continue
        kind, _, negative, digits, power, long, cut = scan_number(data, start, start + size)
        if kind == NOT_A_NUMBER:
            is_word, value = word_number(data, start, start + size)
            if not is_word:
                fault[row] = WRONG_TYPE
                faults += 1
            out[row] = value
            continue
        value, decided = magnitude(digits, power, cut)
        out[row] = -value if negative else value
        wrong = FITS
        if not decided or (kind == WHOLE and long):
            wrong = UNDECIDED
        elif value >= beyond:
            wrong = BEYOND_RANGE
        elif kind == WHOLE and not _fits_bits(digits, bits):
            wrong = INEXACT
        if wrong != FITS:
            fault[row] = wrong
            faults += 1
    return nulls, faults


@kernel
def _fits_bits(digits: np.uint64, bits: int) -> bool:
    most = np.uint64(1) << np.uint64(bits)
    while digits > most and digits & np.uint64(1) == np.uint64(0):
        digits >>= np.uint64(1)
    return digits <= most


@kernel
def boolean(
    data: Bytes, starts: Int32s, infos: Int32s, tokens: NullTokens, out: Bytes, valid: Bytes, fault: Bytes
) -> tuple[int, int]:
    """Truth values, and 1 and 0."""
    nulls, faults = 0, 0
    for row in range(len(starts)):
        start, size = np.int64(starts[row]), np.int64(infos[row] & LENGTH_COLUMN)
        out[row] = 0
        if null_index(data, start, size, tokens) >= 0:
            valid[row] = 0
            nulls += 1
            continue
        value = truth(data, start, start + size)
        if value < 0 and size == 1 and np.uint8(data[start] - 48) <= 1:
            value = np.int64(data[start] - 48)
        if value < 0:
            fault[row] = WRONG_TYPE
            faults += 1
        else:
            out[row] = value
    return nulls, faults


@kernel
def moment(
    data: Bytes,
    starts: Int32s,
    infos: Int32s,
    tokens: NullTokens,
    nanos_per_unit: int,
    aware: bool,
    out: Int64s,
    valid: Bytes,
    fault: Bytes,
) -> tuple[int, int]:
    """Timestamps, in units since 1970."""
    nulls, faults = 0, 0
    units_per_second = 1_000_000_000 // nanos_per_unit
    last = 9_223_372_036 if nanos_per_unit == 1 else np.int64(1) << 53
    for row in range(len(starts)):
        start, size = np.int64(starts[row]), np.int64(infos[row] & LENGTH_COLUMN)
        out[row] = 0
        if null_index(data, start, size, tokens) >= 0:
            valid[row] = 0
            nulls += 1
            continue
        unit, has_zone, seconds, nanos = scan_timestamp(data, start, start + size)
        wrong = FITS
        if unit < SECONDS:
            wrong = WRONG_TYPE
        elif has_zone != aware:
            wrong = HAS_ZONE if has_zone else NO_ZONE
        elif nanos % nanos_per_unit != 0:
            wrong = TOO_FINE
        elif seconds < -last or seconds >= last:
            wrong = BEYOND_RANGE
        if wrong != FITS:
            fault[row] = wrong
            faults += 1
        else:
            out[row] = seconds * units_per_second + nanos // nanos_per_unit
    return nulls, faults


@kernel
def text_bytes(infos: Int32s) -> int:
    """The bytes of all fields together."""
    total = 0
    for row in range(len(infos)):
        total += np.int64(infos[row] & LENGTH_COLUMN)
    return total


@kernel
def text(
    data: Bytes, starts: Int32s, infos: Int32s, tokens: NullTokens, offsets: Int64s, out: Bytes, valid: Bytes
) -> tuple[int, bool]:
    """Texts as Arrow holds them: out[offsets[i]:offsets[i + 1]]; gives (nulls, whether all bytes are ASCII)."""
    nulls, into, high = 0, 0, np.uint8(0)
    offsets[0] = 0
    for row in range(len(starts)):
        start, size = np.int64(starts[row]), np.int64(infos[row] & LENGTH_COLUMN)
        if not infos[row] & QUOTED and null_index(data, start, size, tokens) >= 0:
            valid[row] = 0
            nulls += 1
            size = 0
        for at in range(size):
            byte = data[start + at]
            out[into + at] = byte
            high |= byte
        into += size
        offsets[row + 1] = into
    return nulls, high < 128


@kernel
def check_field_utf8(offsets: Int64s, values: Bytes, fault: Bytes) -> int:
    """Mark the texts that are no UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF)."""
    faults = 0
    for row in range(len(offsets) - 1):
        if not _is_utf8(values, offsets[row], offsets[row + 1]):
            fault[row] = FIELD_NOT_UTF8
            faults += 1
    return faults


@kernel
def _is_utf8(values: Bytes, at: int, stop: int) -> bool:
    while at < stop:
        first = values[at]
        at += 1
        if first < 0x80:
            continue
        if first < 0xC2 or first > 0xF4:
            return False
        more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        if at + more > stop:
            return False
        second = values[at]
        low = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
        high = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
        if second < low or second > high:
            return False
        for index in range(1, more):
            if values[at + index] & 0xC0 != 0x80:
                return False
        at += more
    return True


def field(data: Bytes, starts: Int32s, infos: Int32s, row: int) -> bytes:
    """The text of one field, for messages and the rare value that Python has to read."""
    start = int(starts[row])
    return data[start : start + int(infos[row] & LENGTH_COLUMN)].tobytes()


def real_by_python(text_bytes: bytes, bits: int, beyond: float) -> tuple[float, int]:
    """(value, fault) of a decimal that the kernel left undecided."""
    value = float(text_bytes)
    if abs(value) >= beyond:
        return value, BEYOND_RANGE
    digits = text_bytes.lstrip(b"+-")
    if digits.isdigit():
        number = int(digits)
        if number and (number // (number & -number)).bit_length() > bits:
            return value, INEXACT
    return value, FITS
