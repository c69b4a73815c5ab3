"""Tokenized rows in, what was seen in each column out: `ColumnsSeen`, which adds up over batches, ranges, files and
threads; and `Stray`, the value that makes text of a column.
"""

# mypy: disable-error-code="arg-type,no-any-return,return-value"
# In compiled code NumPy's scalars and Python's are the same.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from recordmill.base.byte_masks import Bytes
from recordmill.base.kernels import kernel
from recordmill.base.room import room
from recordmill.schemas.feature import Feature
from recordmill.schemas.lattice import BEYOND_NANOS, FLOAT32, INT64, TEXT, Seen
from recordmill.sources.csv.fields import Rows
from recordmill.sources.csv.parse import Ready, text_column
from recordmill.sources.values import field_kernels as kernels
from recordmill.sources.values.field_kernels import LENGTH
from recordmill.sources.values.labels import MAX_CLASSES
from recordmill.sources.values.null_tokens import NullTokens, null_index
from recordmill.sources.values.text_columns import NANOS
from recordmill.sources.values.text_values import (
    INEXACT_DECIMAL,
    NO_LOSS,
    NOT_A_NUMBER,
    OVERFLOW,
    WHOLE,
    classify,
    decimal_loss,
    exact_float32,
    fits_int64,
    magnitude,
    scan_number,
    word_number,
)
from recordmill.sources.values.timestamp_text import scan_timestamp, timestamp_bits

_SHOWN_BYTES = 256  # of a value
NUMBERS = ("int64", "float32")  # the dtypes of numbers that inference gives


@dataclass(frozen=True)
class Stray:
    """The first value that makes text of a column, in the batch of rows where it stands.

    line: its row's physical line, counted as the batch's are. texts, values: how many values of the batch are text, and
    how many there are. classes: what the others are.
    """

    line: int
    value: bytes
    texts: int
    values: int
    classes: int


class ColumnsSeen:
    """Collects, for one file's columns, classes and counts (schemas.lattice), and the label's distinct values.

    typed: for each column whether its class matters; else only nulls and values are counted. label: the label's place
    among them, or None.
    """

    def __init__(self, null_tokens: Sequence[str], typed: Sequence[bool], label: int | None) -> None:
        self._names, self._tokens, self._label = tuple(null_tokens), NullTokens.of(null_tokens), label
        self._counts = np.zeros((len(typed), kernels.COUNTS + len(self._names)), np.int64)
        self._counts[~np.array(typed, np.bool_), kernels.CLASSES] = TEXT
        self._typed = tuple(typed)
        self.labels: set[str] = set()
        self.strays: dict[int, Stray] = {}

    def add(self, data: Bytes, rows: Rows, wanted: Mapping[int, Feature] = MappingProxyType({})) -> dict[int, Ready]:
        """The next rows. wanted: by place, columns whose values are to be read as well; gives those of which every
        value is one of the feature.
        """
        ready: dict[int, Ready] = {}
        for place, counts in enumerate(self._counts):
            before, done = counts[kernels.CLASSES] & TEXT, 0
            starts, infos = rows.starts[place], rows.infos[place]
            if not before and place in wanted:
                done, found = _read(data, starts, infos, self._tokens, wanted[place], counts)
                if done == len(starts):
                    ready[place] = found
            if done < len(starts):
                kernels.infer_column(data, starts[done:], infos[done:], self._tokens, counts)
            if not before and counts[kernels.CLASSES] & TEXT:
                self.strays[place] = self._stray(data, rows, place)
        self._add_labels(data, rows)
        return ready

    def _add_labels(self, data: Bytes, rows: Rows) -> None:
        if self._label is not None and len(self.labels) <= MAX_CLASSES:
            values, fault = text_column(data, rows.starts[self._label], rows.infos[self._label], self._tokens)
            if fault.any():
                values = values.filter(fault == 0)
            self.labels.update(values.drop_null().unique().to_pylist())

    def classes(self) -> list[int]:
        """The classes of each column so far; of those that are not typed none."""
        return np.where(self._typed, self._counts[:, kernels.CLASSES], 0).tolist()

    def _stray(self, data: Bytes, rows: Rows, place: int) -> Stray:
        starts, infos = rows.starts[place], rows.infos[place]
        row, texts, values, classes = (int(found) for found in _texts_among(data, starts, infos, self._tokens))
        value = kernels.field(data, starts, infos, row)[:_SHOWN_BYTES]
        return Stray(int(rows.lines[row]), value, texts, values, classes)

    def seen(self) -> list[Seen]:
        """One for each column; for those that are not typed without classes."""
        result = []
        for counts, typed in zip(self._counts.tolist(), self._typed, strict=True):
            head, nulls = counts[: kernels.COUNTS], counts[kernels.COUNTS :]
            names = {name: count for name, count in zip(self._names, nulls, strict=True) if count}
            result.append(
                Seen(
                    head[kernels.CLASSES] if typed else 0,
                    *(head[kernels.VALUES], names, head[kernels.SOFT_NULLS]),
                    *(head[kernels.DECIMALS], head[kernels.INTEGERS], head[kernels.OVERFLOWS]),
                )
            )
        return result


def _read(
    data: Bytes, starts: kernels.Spans, infos: kernels.Spans, tokens: NullTokens, feature: Feature, counts: kernels.Ints
) -> tuple[int, Ready]:
    """(how many fields from the first on are values of the feature, or null, their values): they are counted as
    `infer_column` does. What comes behind them may be of another class, or is no value of the feature.
    """
    rows = len(starts)
    valid = np.ones(rows, np.uint8)
    if feature.timestamp is not None:
        unit, zone = feature.timestamp
        moments = room(rows, np.int64)
        done, nulls = _moments(data, starts, infos, tokens, NANOS[unit], zone is not None, counts, moments, valid)
        return done, Ready(moments, valid, nulls)
    if feature.dtype == "int64":
        wholes = room(rows, np.int64)
        done, nulls = _wholes(data, starts, infos, tokens, counts, wholes, valid)
        return done, Ready(wholes, valid, nulls)
    reals = room(rows, np.float64)
    done, nulls = _reals(data, starts, infos, tokens, counts, reals, valid)
    return done, Ready(reals, valid, nulls)


@kernel
def _is_null(
    data: Bytes, starts: kernels.Spans, infos: kernels.Spans, row: int, tokens: NullTokens, counts: kernels.Ints
) -> bool:
    """Whether a field is null in a column of numbers or times; it is counted, as a value too if it isn't."""
    null = null_index(data, np.int64(starts[row]), np.int64(infos[row] & LENGTH), tokens)
    if null >= 0 and not infos[row] & kernels.QUOTED:
        counts[kernels.COUNTS + null] += 1
        return True
    counts[kernels.VALUES] += 1
    if null >= 0:
        counts[kernels.SOFT_NULLS] += 1
    return null >= 0


@kernel
def _wholes(
    data: Bytes,
    starts: kernels.Spans,
    infos: kernels.Spans,
    tokens: NullTokens,
    counts: kernels.Ints,
    out: kernels.Ints,
    valid: Bytes,
) -> tuple[int, int]:
    """(fields before the first that is no whole number of int64, nulls among them)."""
    nulls = 0
    for row in range(len(starts)):
        if _is_null(data, starts, infos, row, tokens, counts):
            out[row], valid[row] = 0, 0
            nulls += 1
            continue
        start = np.int64(starts[row])
        kind, odd, negative, digits, _, long, _ = scan_number(data, start, start + np.int64(infos[row] & LENGTH))
        if kind != WHOLE or odd or not fits_int64(negative, digits, long):
            counts[kernels.VALUES] -= 1
            return row, nulls
        counts[kernels.CLASSES] |= INT64
        if not _is_exact(digits):
            counts[kernels.INTEGERS] += 1
        out[row] = -np.int64(digits) if negative else np.int64(digits)
    return len(starts), nulls


@kernel
def _is_exact(digits: np.uint64) -> bool:
    """Whether float32 holds the whole number."""
    return digits <= np.uint64(1 << 24) or exact_float32(digits)


@kernel
def _reals(
    data: Bytes,
    starts: kernels.Spans,
    infos: kernels.Spans,
    tokens: NullTokens,
    counts: kernels.Ints,
    out: npt.NDArray[np.float64],
    valid: Bytes,
) -> tuple[int, int]:
    """(fields before the first that is no number, or none that float32 holds, or undecided, nulls among them)."""
    nulls = 0
    for row in range(len(starts)):
        if _is_null(data, starts, infos, row, tokens, counts):
            out[row], valid[row] = 0.0, 0
            nulls += 1
            continue
        start = np.int64(starts[row])
        stop = start + np.int64(infos[row] & LENGTH)
        kind, odd, negative, digits, power, long, cut = scan_number(data, start, stop)
        is_number, value = word_number(data, start, stop) if kind == NOT_A_NUMBER else (not odd, 0.0)
        loss, classes = NO_LOSS, FLOAT32
        if kind != NOT_A_NUMBER and is_number:
            value, is_number = magnitude(digits, power, cut)
            if kind == WHOLE:
                classes = INT64
                is_number = is_number and fits_int64(negative, digits, long) and _is_exact(digits)
            elif is_number:
                loss = decimal_loss(digits, power, cut)
            value = -value if negative else value
        if not is_number or loss == OVERFLOW:
            counts[kernels.VALUES] -= 1
            return row, nulls
        counts[kernels.CLASSES] |= classes
        if loss == INEXACT_DECIMAL:
            counts[kernels.DECIMALS] += 1
        out[row] = value
    return len(starts), nulls


@kernel
def _moments(
    data: Bytes,
    starts: kernels.Spans,
    infos: kernels.Spans,
    tokens: NullTokens,
    nanos_per_unit: int,
    aware: bool,
    counts: kernels.Ints,
    out: kernels.Ints,
    valid: Bytes,
) -> tuple[int, int]:
    """(fields before the first that is no such time, nulls among them)."""
    nulls, units_per_second = 0, 1_000_000_000 // nanos_per_unit
    for row in range(len(starts)):
        if _is_null(data, starts, infos, row, tokens, counts):
            out[row], valid[row] = 0, 0
            nulls += 1
            continue
        start = np.int64(starts[row])
        unit, has_zone, seconds, nanos = scan_timestamp(data, start, start + np.int64(infos[row] & LENGTH))
        bits = timestamp_bits(unit, has_zone, seconds)
        beyond = nanos_per_unit == 1 and bits & BEYOND_NANOS != 0
        if bits == 0 or has_zone != aware or nanos % nanos_per_unit != 0 or beyond:
            counts[kernels.VALUES] -= 1
            return row, nulls
        counts[kernels.CLASSES] |= bits
        out[row] = seconds * units_per_second + nanos // nanos_per_unit
    return len(starts), nulls


@kernel
def _texts_among(
    data: Bytes, starts: kernels.Spans, infos: kernels.Spans, tokens: NullTokens
) -> tuple[int, int, int, int]:
    """(the first row whose value is text, how many are, how many values there are, the classes of the others)."""
    first, texts, values, classes = -1, 0, 0, 0
    for row in range(len(starts)):
        start, size = np.int64(starts[row]), np.int64(infos[row] & LENGTH)
        if null_index(data, start, size, tokens) >= 0:
            continue
        values += 1
        bits, _ = classify(data, start, start + size)
        if bits == TEXT:
            texts += 1
            first = row if first < 0 else first
        else:
            classes |= bits
    return first, texts, values, classes
