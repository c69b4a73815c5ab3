"""The automaton of a CSV dialect as a table, and what a range of bytes does to each of its states:
the function that ranges compose.

A range of a file can't know whether it starts inside quotes. So all states it may start in are simulated together
(those that have become equal, as one) and the range is the function from the state at its start to the state at its
end. Composed in order, the functions say how each range starts, and the ranges give exactly the rows of a sequential
read. The states are those of Python's `_csv.c` (3.11), in non-strict mode.
"""

# mypy: disable-error-code="arg-type,assignment,return-value,no-any-return"
# In compiled code NumPy's scalars and Python's are the same.

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.byte_masks import LANES, byte_mask, first_bit, leading_zeros
from recordmill.base.kernels import kernel
from recordmill.sources.csv.dialect import Dialect

# START_RECORD, START_FIELD, IN_FIELD, IN_QUOTED_FIELD, QUOTE_IN_QUOTED_FIELD, ESCAPED_CHAR, ESCAPE_IN_QUOTED_FIELD; and
# the line of a comment.
RECORD, FIELD, IN_FIELD, INSIDE_STATE, CLOSED_STATE, ESCAPED_STATE, ESCAPED_INSIDE, COMMENT = range(8)
STATE_COUNT = 8
NOT_ENDED = -1

_CR, _LF = 13, 10
_LANE_BYTES = 64 << 10  # 64 KiB: all live states pass through it while it is in the second-level cache
_DELIMITER, _QUOTE, _ESCAPE, _COMMENT, _TRIM, _MAX_ROW = range(6)


@dataclass(frozen=True)
class Automaton:
    """table: [8 * 256] uint8, the next state by state and byte. about: the dialect for the kernels."""

    table: Bytes
    about: Int64s

    @classmethod
    def of(cls, dialect: Dialect) -> Automaton:
        table = np.empty((STATE_COUNT, 256), np.uint8)
        for state in range(STATE_COUNT):
            for byte in range(256):
                table[state, byte] = _next(state, byte, dialect)
        about = [dialect.delimiter, dialect.quote, dialect.escape, dialect.comment, dialect.trim, dialect.max_row_bytes]
        return cls(table.reshape(-1), np.array(about, np.int64))

    def transitions(self, data: Bytes) -> tuple[list[int], list[int]]:
        """([8] the state after data for each state before it, [8] the longest row in data by then).

        The longest row counts the bytes of data only, and is an upper bound: no row of the range is longer.
        """
        exits, longest = np.arange(STATE_COUNT, dtype=np.int64), np.zeros(STATE_COUNT, np.int64)
        _transitions(data, self.table, self.about, np.zeros((4, STATE_COUNT), np.int64), exits, longest)
        return exits.tolist(), longest.tolist()

    def follow(self, data: Bytes, state: int) -> tuple[int, int]:
        """The same for one state only: (state after data, longest row)."""
        state, row_start, longest = _follow(data, 0, len(data), state, 0, 0, self.table, self.about)
        return int(state), int(max(longest, len(data) - row_start))

    def row_end(self, data: Bytes, at: int, state: int) -> int:
        """Where the line behind the row (or comment) that is in this state at `at` starts;
        NOT_ENDED if the data ends first.
        """
        return at if state == RECORD else int(_row_end(data, at, state, self.table))


def _next(state: int, byte: int, dialect: Dialect) -> int:
    newline = byte in (_CR, _LF)
    if state in (RECORD, FIELD):
        return _at_field_start(state, byte, dialect)
    if state == IN_FIELD:
        return (
            RECORD
            if newline
            else ESCAPED_STATE
            if byte == dialect.escape
            else FIELD
            if byte == dialect.delimiter
            else IN_FIELD
        )
    if state == INSIDE_STATE:
        if byte == dialect.escape:
            return ESCAPED_INSIDE
        return INSIDE_STATE if byte != dialect.quote else CLOSED_STATE if dialect.doubled_quote else IN_FIELD
    if state == CLOSED_STATE:
        return (
            INSIDE_STATE
            if byte == dialect.quote
            else FIELD
            if byte == dialect.delimiter
            else RECORD
            if newline
            else IN_FIELD
        )
    if state == COMMENT:
        return RECORD if newline else COMMENT
    return IN_FIELD if state == ESCAPED_STATE else INSIDE_STATE


def _at_field_start(state: int, byte: int, dialect: Dialect) -> int:
    if byte in (_CR, _LF):
        return RECORD
    if byte == dialect.quote:
        return INSIDE_STATE
    if state == RECORD and byte == dialect.comment:
        return COMMENT
    if byte == dialect.escape:
        return ESCAPED_STATE
    blank = dialect.trim and (byte == 32 or (byte == 9 and dialect.delimiter != 9))
    return FIELD if byte == dialect.delimiter or blank else IN_FIELD


@kernel
def _transitions(
    data: Bytes, table: Bytes, about: Int64s, lanes: npt.NDArray[np.int64], exits: Int64s, longest: Int64s
) -> None:
    """lanes: [4, STATES] zeros, to work in."""
    lane_of, state, row_start, length = lanes[0], lanes[1], lanes[2], lanes[3]
    for lane in range(STATE_COUNT):
        lane_of[lane] = state[lane] = lane
    live = STATE_COUNT
    for base in range(0, len(data), _LANE_BYTES):
        stop = min(base + _LANE_BYTES, len(data))
        for lane in range(live):
            state[lane], row_start[lane], length[lane] = _follow(
                data, base, stop, state[lane], row_start[lane], length[lane], table, about
            )
        live = _merge(live, lane_of, state, row_start, length)
    for start in range(STATE_COUNT):
        lane = lane_of[start]
        exits[start], longest[start] = state[lane], max(length[lane], len(data) - row_start[lane])


@kernel
def _merge(live: int, lane_of: Int64s, state: Int64s, row_start: Int64s, length: Int64s) -> int:
    """Let lanes in the same state be one, with the earlier row start and the longer row,
    so that lengths stay upper bounds.
    """
    kept = 0
    for lane in range(live):
        into = 0
        while into < kept and state[into] != state[lane]:
            into += 1
        if into == kept:
            state[into], row_start[into], length[into] = state[lane], row_start[lane], length[lane]
            kept += 1
        else:
            row_start[into], length[into] = min(row_start[into], row_start[lane]), max(length[into], length[lane])
        for start in range(STATE_COUNT):
            if lane_of[start] == lane:
                lane_of[start] = into
    return kept


@kernel
def _follow(
    data: Bytes, base: int, stop: int, state: int, row_start: int, longest: int, table: Bytes, about: Int64s
) -> tuple[int, int, int]:
    """Run one state through data[base:stop)."""
    while base < stop:
        end = min(base + LANES, stop)
        special = (
            byte_mask(data, base, stop, about[_QUOTE])
            | byte_mask(data, base, stop, about[_ESCAPE])
            | byte_mask(data, base, stop, about[_COMMENT])
        )
        if special == np.uint64(0) and state != ESCAPED_STATE and state != ESCAPED_INSIDE and not about[_TRIM]:
            if state != INSIDE_STATE:
                newlines = byte_mask(data, base, stop, _LF) | byte_mask(data, base, stop, _CR)
                if newlines != np.uint64(0):
                    longest = max(longest, base + first_bit(newlines) - row_start, LANES)
                    row_start = base + LANES - leading_zeros(newlines)
                if newlines != np.uint64(0) or state != COMMENT:
                    last = data[end - 1]
                    state = RECORD if last in (_LF, _CR) else FIELD if last == about[_DELIMITER] else IN_FIELD
            base = end
            continue
        run = base  # where bytes that mean nothing may begin
        marks = (
            special
            | byte_mask(data, base, stop, about[_DELIMITER])
            | byte_mask(data, base, stop, _LF)
            | byte_mask(data, base, stop, _CR)
        )
        if about[_TRIM]:
            # blanks matter too: every byte is looked at
            marks = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(LANES - (end - base))
        while marks != np.uint64(0):
            at = base + first_bit(marks)
            marks &= marks - np.uint64(1)
            if at > run:
                # what stands before it, however much, is as one byte that means nothing
                state = np.int64(table[state << 8])
            run = at + 1
            state = np.int64(table[state << 8 | np.int64(data[at])])
            if state == RECORD:
                longest = max(longest, at - row_start)
                row_start = at + 1
        if end > run:
            state = np.int64(table[state << 8])
        base = end
    return state, row_start, longest


@kernel
def _row_end(data: Bytes, at: int, state: int, table: Bytes) -> int:
    while at < len(data):
        state = np.int64(table[state << 8 | np.int64(data[at])])
        at += 1
        if state == RECORD:
            if data[at - 1] == _CR:
                if at == len(data):
                    return NOT_ENDED
                if data[at] == _LF:
                    at += 1
            return at
    return NOT_ENDED
