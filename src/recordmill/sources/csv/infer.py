"""Tokenized rows in, what was seen in each column out: `ColumnCounts`, which adds up over batches, ranges, files and
threads; and the rows that the scan has looked at, parsed by the schema that is expected, for what is kept until the
build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Bytes, Int32s, Int64s
from recordmill.base.buffers import room
from recordmill.base.kernels import kernel
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.type_lattice import BEYOND_NANOS, FLOAT32, INT64_TYPE, TEXT_TYPE, TextCounts
from recordmill.sources.common.scan_cache import CachedPiece, CachedReject, RecordKeeper, ScanCache
from recordmill.sources.csv.fields import TokenizedRows
from recordmill.sources.csv.messages import explain_row, first_line
from recordmill.sources.csv.parse import Parsed, ParsedRows, Parser, text_column
from recordmill.sources.values import field_kernels as kernels
from recordmill.sources.values.field_kernels import LENGTH_COLUMN, NullTokens, null_index
from recordmill.sources.values.labels import ClassNames
from recordmill.sources.values.text_columns import NANOS_PER
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

# mypy: disable-error-code="arg-type,no-any-return,return-value"
# In compiled code NumPy's scalars and Python's are the same.


_SHOWN_BYTES = 256  # of a value
_FEW_STRAYS = 10  # a column of ten times as many other values is text by accident
_MOST_WORDS = 4  # different ones that may all stand for no value, as -, N/A and ? do
NUMBERS = ("int64", "float32")  # the dtypes of numbers that inference gives


@dataclass(frozen=True)
class UnexpectedValue:
    """The first value that makes text of a column, in the batch of rows where it stands.

    line: its row's physical line, counted as the batch's are. texts, values: how many values are text, and how many
    there are. classes: what the others are. words: the different texts, and how many are that; None: more than
    _MOST_WORDS.
    """

    line: int
    value: bytes
    texts: int
    values: int
    classes: int
    words: Mapping[bytes, int] | None

    def __add__(self, later: UnexpectedValue) -> UnexpectedValue:
        """With what comes later; the first value stands for all."""
        texts, values = self.texts + later.texts, self.values + later.values
        words = None
        if self.words is not None and later.words is not None:
            counts = {word: self.words.get(word, 0) + later.words.get(word, 0) for word in (*self.words, *later.words)}
            words = counts if len(counts) <= _MOST_WORDS else None
        return replace(self, texts=texts, values=values, classes=self.classes | later.classes, words=words)

    @property
    def is_odd(self) -> bool:
        """Whether the column is text by a few words, or by a few values among ten times as many others."""
        return self.words is not None or _FEW_STRAYS * self.texts <= self.values


class ColumnCounts:
    """Collects, for one file's columns, classes and counts (schemas.lattice), and the label's distinct values.

    typed: for each column whether its class matters; else only nulls and values are counted. label: the label's place
    among them, or None.
    """

    def __init__(self, null_tokens: Sequence[str], typed: Sequence[bool], label: int | None) -> None:
        self._names, self._tokens, self._label = tuple(null_tokens), NullTokens.of(null_tokens), label
        self._counts = np.zeros((len(typed), kernels.FIELD_COUNTS + len(self._names)), np.int64)
        self._counts[~np.array(typed, np.bool_), kernels.VALUE_CLASSES] = TEXT_TYPE
        self._typed = tuple(typed)
        self.labels = ClassNames("")
        self.unexpected: dict[int, UnexpectedValue] = {}

    def add(
        self, data: Bytes, rows: TokenizedRows, wanted: Mapping[int, Feature] = MappingProxyType({})
    ) -> dict[int, ParsedRows]:
        """The next rows. wanted: by place, columns whose values are to be read as well; gives those of which every
        value is one of the feature.
        """
        ready: dict[int, ParsedRows] = {}
        for place, counts in enumerate(self._counts):
            before, done = counts[kernels.VALUE_CLASSES] & TEXT_TYPE, 0
            starts, infos = rows.starts[place], rows.infos[place]
            if not before and place in wanted:
                done, found = _read(data, starts, infos, self._tokens, wanted[place], counts)
                if done == len(starts):
                    ready[place] = found
            if done < len(starts):
                kernels.infer_column(data, starts[done:], infos[done:], self._tokens, counts)
            if not before and counts[kernels.VALUE_CLASSES] & TEXT_TYPE:
                self.unexpected[place] = self._unexpected(data, rows, place)
            elif (
                place in self.unexpected and self.unexpected[place].is_odd
            ):  # what is text for good is not looked at again
                self.unexpected[place] += self._unexpected(data, rows, place)
        self._add_labels(data, rows)
        return ready

    def _add_labels(self, data: Bytes, rows: TokenizedRows) -> None:
        if self._label is not None:
            values, fault = text_column(data, rows.starts[self._label], rows.infos[self._label], self._tokens)
            self.labels.add(values.filter(fault == 0) if fault.any() else values)

    def classes(self) -> list[int]:
        """The classes of each column so far; of those that are not typed none."""
        return np.where(self._typed, self._counts[:, kernels.VALUE_CLASSES], 0).tolist()

    def _unexpected(self, data: Bytes, rows: TokenizedRows, place: int) -> UnexpectedValue:
        starts, infos = rows.starts[place], rows.infos[place]
        at, counts = np.zeros(_MOST_WORDS, np.int64), np.zeros(_MOST_WORDS, np.int64)
        texts, values, classes, different = map(int, _texts_among(data, starts, infos, self._tokens, at, counts))
        first = zip(at[:different].tolist(), counts.tolist(), strict=False)
        words = {kernels.field(data, starts, infos, row)[:_SHOWN_BYTES]: count for row, count in first}
        line, value = (int(rows.lines[at[0]]), next(iter(words))) if texts else (0, b"")
        return UnexpectedValue(line, value, texts, values, classes, words if different <= _MOST_WORDS else None)

    def seen(self) -> list[TextCounts]:
        """One for each column; for those that are not typed without classes."""
        result = []
        for counts, typed in zip(self._counts.tolist(), self._typed, strict=True):
            head, nulls = counts[: kernels.FIELD_COUNTS], counts[kernels.FIELD_COUNTS :]
            names = {name: count for name, count in zip(self._names, nulls, strict=True) if count}
            result.append(
                TextCounts(
                    head[kernels.VALUE_CLASSES] if typed else 0,
                    *(head[kernels.FIELD_VALUES], names, head[kernels.SOFT_NULLS]),
                    *(head[kernels.DECIMALS], head[kernels.INTEGERS], head[kernels.OVERFLOWS]),
                )
            )
        return result


def _read(
    data: Bytes, starts: Int32s, infos: Int32s, tokens: NullTokens, feature: Feature, counts: Int64s
) -> tuple[int, ParsedRows]:
    """(how many fields from the first on are values of the feature, or null, their values): they are counted as
    `infer_column` does. What comes behind them may be of another class, or is no value of the feature.
    """
    rows = len(starts)
    valid = np.ones(rows, np.uint8)
    if feature.timestamp is not None:
        unit, zone = feature.timestamp
        moments = room(rows, np.int64)
        done, nulls = _moments(data, starts, infos, tokens, NANOS_PER[unit], zone is not None, counts, moments, valid)
        return done, ParsedRows(moments, valid, nulls)
    if feature.dtype == "int64":
        wholes = room(rows, np.int64)
        done, nulls = _wholes(data, starts, infos, tokens, counts, wholes, valid)
        return done, ParsedRows(wholes, valid, nulls)
    reals = room(rows, np.float64)
    done, nulls = _reals(data, starts, infos, tokens, counts, reals, valid)
    return done, ParsedRows(reals, valid, nulls)


@kernel
def _is_null(data: Bytes, starts: Int32s, infos: Int32s, row: int, tokens: NullTokens, counts: Int64s) -> bool:
    """Whether a field is null in a column of numbers or times; it is counted, as a value too if it isn't."""
    null = null_index(data, np.int64(starts[row]), np.int64(infos[row] & LENGTH_COLUMN), tokens)
    if null >= 0 and not infos[row] & kernels.QUOTED:
        counts[kernels.FIELD_COUNTS + null] += 1
        return True
    counts[kernels.FIELD_VALUES] += 1
    if null >= 0:
        counts[kernels.SOFT_NULLS] += 1
    return null >= 0


@kernel
def _wholes(
    data: Bytes,
    starts: Int32s,
    infos: Int32s,
    tokens: NullTokens,
    counts: Int64s,
    out: Int64s,
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
        kind, odd, negative, digits, _, long, _ = scan_number(data, start, start + np.int64(infos[row] & LENGTH_COLUMN))
        if kind != WHOLE or odd or not fits_int64(negative, digits, long):
            counts[kernels.FIELD_VALUES] -= 1
            return row, nulls
        counts[kernels.VALUE_CLASSES] |= INT64_TYPE
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
    starts: Int32s,
    infos: Int32s,
    tokens: NullTokens,
    counts: Int64s,
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
        stop = start + np.int64(infos[row] & LENGTH_COLUMN)
        kind, odd, negative, digits, power, long, cut = scan_number(data, start, stop)
        is_number, value = word_number(data, start, stop) if kind == NOT_A_NUMBER else (not odd, 0.0)
        loss, classes = NO_LOSS, FLOAT32
        if kind != NOT_A_NUMBER and is_number:
            value, is_number = magnitude(digits, power, cut)
            if kind == WHOLE:
                classes = INT64_TYPE
                is_number = is_number and fits_int64(negative, digits, long) and _is_exact(digits)
            elif is_number:
                loss = decimal_loss(digits, power, cut)
            value = -value if negative else value
        if not is_number or loss == OVERFLOW:
            counts[kernels.FIELD_VALUES] -= 1
            return row, nulls
        counts[kernels.VALUE_CLASSES] |= classes
        if loss == INEXACT_DECIMAL:
            counts[kernels.DECIMALS] += 1
        out[row] = value
    return len(starts), nulls


@kernel
def _moments(
    data: Bytes,
    starts: Int32s,
    infos: Int32s,
    tokens: NullTokens,
    nanos_per_unit: int,
    aware: bool,
    counts: Int64s,
    out: Int64s,
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
        unit, has_zone, seconds, nanos = scan_timestamp(data, start, start + np.int64(infos[row] & LENGTH_COLUMN))
        bits = timestamp_bits(unit, has_zone, seconds)
        beyond = nanos_per_unit == 1 and bits & BEYOND_NANOS != 0
        if bits == 0 or has_zone != aware or nanos % nanos_per_unit != 0 or beyond:
            counts[kernels.FIELD_VALUES] -= 1
            return row, nulls
        counts[kernels.VALUE_CLASSES] |= bits
        out[row] = seconds * units_per_second + nanos // nanos_per_unit
    return len(starts), nulls


@kernel
def _texts_among(
    data: Bytes, starts: Int32s, infos: Int32s, tokens: NullTokens, first: Int64s, counts: Int64s
) -> tuple[int, int, int, int]:
    """(how many values are text, how many values there are, the classes of the others, how many different texts: up to
    one more than there is room for). Writes of each of these the row where it stands first, and how many are that.
    """
    texts, values, classes, different = 0, 0, 0, 0
    for row in range(len(starts)):
        start, size = np.int64(starts[row]), np.int64(infos[row] & LENGTH_COLUMN)
        if null_index(data, start, size, tokens) >= 0:
            continue
        values += 1
        bits, _ = classify(data, start, start + size)
        if bits != TEXT_TYPE:
            classes |= bits
            continue
        texts += 1
        word = 0
        while word < min(different, len(first)):
            same = size == np.int64(infos[first[word]] & LENGTH_COLUMN)
            other = np.int64(starts[first[word]])
            for at in range(size if same else 0):
                same = same and data[start + at] == data[other + at]
            if same:
                counts[word] += 1
                break
            word += 1
        if word == different:
            different += 1
            if word < len(first):
                first[word], counts[word] = row, 1
    return texts, values, classes, different


# by what columns were seen to be (their classes, by name), the schema that is expected, or None where none fits yet
Expects = Callable[[Mapping[str, int]], Schema | None]


class RowKeeper:
    """Parses the rows of one range, or file, by the schema that is expected after each look at them, and keeps them.

    names: of the file's columns.
    """

    def __init__(
        self,
        expects: Expects,
        kept: ScanCache[CachedPiece],
        names: Sequence[str],
        null_tokens: Sequence[str],
        max_row_bytes: int,
    ) -> None:
        self._expects, self._names, self._max_row_bytes = expects, tuple(names), max_row_bytes
        self._tokens, self._keeping = NullTokens.of(null_tokens), RecordKeeper(kept)
        self._parser: Parser | None = None
        self._schema: Schema | None = None
        self._asked: Schema | None = None  # whose columns are wanted
        self._wanted: Mapping[int, Feature] = {}

    def wanted(self) -> Mapping[int, Feature]:
        """By place, the columns of numbers and times whose values will be asked for, if they stay what they are."""
        if not self._keeping.goes_on:
            return {}
        schema = self._schema or self._expects({})
        if schema is not self._asked:
            features = {} if schema is None else {f.name: f for f in schema if f.dtype in NUMBERS or f.timestamp}
            self._wanted = {at: features[name] for at, name in enumerate(self._names) if name in features}
            self._asked = schema
        return self._wanted

    def add(self, data: Bytes, rows: TokenizedRows, classes: Sequence[int], ready: Mapping[int, ParsedRows]) -> None:
        """The next rows; classes: what the columns were seen to be. ready: of what was wanted, what was read."""
        if not self._keeping.goes_on:
            return
        schema = self._expects(dict(zip(self._names, classes, strict=True)))
        if schema is None or (self._schema is not None and schema is not self._schema):
            self._keeping.give_up()
            return
        if self._parser is None:
            self._parser, self._schema = Parser.of(schema, self._names, self._tokens), schema
        parsed = self._parser.parse(data, rows, ready if schema is self._asked else {})
        self._keeping.add(_piece(data, rows, parsed, self._max_row_bytes, len(self._names)), schema)

    def give_up(self) -> None:
        """Keep nothing of these rows."""
        self._keeping.give_up()

    def put(self, file: int, start: int) -> None:
        """That was all."""
        self._keeping.put((file, start))


def parse_piece(data: Bytes, rows: TokenizedRows, parser: Parser, max_row_bytes: int, columns: int) -> CachedPiece:
    """Some rows, parsed; columns: how many the file has."""
    return _piece(data, rows, parser.parse(data, rows), max_row_bytes, columns)


def _piece(data: Bytes, rows: TokenizedRows, parsed: Parsed, max_row_bytes: int, columns: int) -> CachedPiece:
    found = [
        CachedReject(int(rows.ordinals[row]), int(rows.lines[row]), reason, message)
        for row, reason, message in parsed.rejects
    ]
    for row, line, _, width, at, _ in rows.bad.tolist():
        found.append(CachedReject(row, line, *explain_row(width, columns, first_line(data[at:]), max_row_bytes)))
    all_there = len(rows.ordinals) == rows.count and parsed.kept is None
    ordinals = None if all_there else rows.ordinals.copy() if parsed.kept is None else rows.ordinals[parsed.kept]
    return CachedPiece(parsed.batch, ordinals, tuple(sorted(found, key=lambda one: one.ordinal)), rows.count)
