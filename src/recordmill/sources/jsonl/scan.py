"""Lines of JSON in, a tape of values out, by one pass of a Numba kernel that checks the grammar as it goes.

The tape is int32 [values, 4], in the order of the text: node * 16 + kind; the ordinal of the object or array around the
value among its node's entries (of the record, at the top); where the value's text starts and stops. A node is a place
in the record (`a`, `a.b`, the elements of `a.c`): a trie over keys that grows as keys are met. A line that is no record
leaves nothing on the tape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.kernels import inlined, kernel
from recordmill.sources.jsonl.grammar import (
    ARRAY,
    CUT,
    DEEP,
    DUPLICATE,
    ESCAPED_TEXT,
    FALSE,
    FLOAT_TOKEN,
    GROW,
    INFINITY,
    MANY,
    NOT_OBJECT,
    NOT_UTF8_TEXT,
    NULL_TOKEN,
    OBJECT,
    OK,
    SYNTAX,
    TRAILING,
    TRUE,
    number_end,
    string_end,
    unescape,
    word_end,
)

DEPTH = 60  # levels of nesting: what a stack of fixed size holds; deeper records are rejected by name
# a line that starts with one of these bytes, which are in no UTF-8 text, was found not to be UTF-8, or to have too many
# values
UNREADABLE, TOO_MANY = 0xFF, 0xFE

# columns of the trie's nodes; node 0 is the record itself
# PLAIN: 1 if the key stands in a text as it is, since nothing in it needs an escape
PARENT, KEY_START, KEY_STOP, ELEMENT, FIRST, SCAN_NEXT, COUNT, LAST, PLAIN_STRING, SCAN_FIELDS = range(10)
# cells of the state that the kernel keeps between calls
AT, SCAN_LINE, SCAN_ROWS, ERRORS, TAPE, NODES, ARENA, SCAN_STATUS, SCAN_FULL, WANTED, MOST_IN_LINE, SCAN_STATES = range(
    12
)
# what is FULL where STATUS is GROW; of an arena, WANTED is how many bytes it needs
TAPE_FULL, NODES_FULL, ARENA_FULL = range(3)
_TRUE, _FALSE, _NULL = (np.frombuffer(word, np.uint8).copy() for word in (b"true", b"false", b"null"))
_NAN = np.frombuffer(b"NaN", np.uint8).copy()


@kernel
def scan_records(
    data: npt.NDArray[np.uint8],
    stop: int,
    nodes: npt.NDArray[np.int64],
    arena: npt.NDArray[np.uint8],
    table: npt.NDArray[np.int32],
    tape: npt.NDArray[np.int32],
    row_lines: npt.NDArray[np.int32],
    row_tape: npt.NDArray[np.int32],
    errors: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
    stack: npt.NDArray[np.int64],
) -> None:
    """Read lines from state[AT] on until stop, or rows, errors or tape are full,
    or a table must grow (state[STATUS] = GROW; state[FULL] says which).

    row_lines, row_tape: per record its line and its first entry on the tape. errors [*, 4]: line, what is wrong, where,
    line start. stack: [DEPTH, 4], to work in.
    """
    state[SCAN_STATUS] = OK
    while state[AT] < stop and state[SCAN_ROWS] < len(row_lines) and state[ERRORS] < len(errors):
        start = state[AT]
        at = skip_space(data, start, stop)
        if at < stop and data[at] != 10:
            first = state[TAPE]
            at, wrong = _scan_record(data, at, stop, nodes, arena, table, tape, state, stack)
            if wrong == GROW:
                _rewind(nodes, tape, first, state)
                state[SCAN_STATUS] = GROW
                return
            if wrong == OK and state[TAPE] - first > state[MOST_IN_LINE]:
                wrong = MANY
            if wrong == OK:
                row_lines[state[SCAN_ROWS]], row_tape[state[SCAN_ROWS]] = state[SCAN_LINE], first
                state[SCAN_ROWS] += 1
            else:
                _rewind(nodes, tape, first, state)
                _put_error(errors, state, wrong, at, start)
                while at < stop and data[at] != 10:
                    at += 1
        state[AT] = at + 1
        state[SCAN_LINE] += 1


@kernel
def _put_error(errors: npt.NDArray[np.int64], state: npt.NDArray[np.int64], wrong: int, at: int, start: int) -> None:
    row = state[ERRORS]
    errors[row, 0], errors[row, 1], errors[row, 2], errors[row, 3] = state[SCAN_LINE], wrong, at, start
    state[ERRORS] += 1


@kernel
def _rewind(
    nodes: npt.NDArray[np.int64], tape: npt.NDArray[np.int32], first: int, state: npt.NDArray[np.int64]
) -> None:
    """Take back the entries from first on, as if the line had not been there; the nodes that it made stay."""
    for entry in range(first, state[TAPE]):
        node = tape[entry, 0] >> 4
        nodes[node, COUNT] -= 1
        nodes[node, LAST] = -1
    state[TAPE] = first


@inlined
def skip_space(data: npt.NDArray[np.uint8], at: int, stop: int) -> int:
    """The first byte in [at, stop) that is no blank, tab or CR, or else stop."""
    while at < stop and (data[at] == 32 or data[at] == 9 or data[at] == 13):
        at += 1
    return at


@inlined
def _scan_record(
    data: Any, at: int, stop: int, nodes: Any, arena: Any, table: Any, tape: Any, state: Any, stack: Any
) -> tuple[int, int]:
    """(place behind the line's object, OK) or (place, what is wrong).
    stack rows: node, ordinal, tape entry, whether it is an array.
    """
    if data[at] != 123:  # {
        return at, NOT_UTF8_TEXT if data[at] == UNREADABLE else MANY if data[at] == TOO_MANY else NOT_OBJECT
    depth, before = 0, -1  # before: the member just read in this object, whose successor is guessed
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = 0, state[SCAN_ROWS], -1, 0
    at = skip_space(data, at + 1, stop)
    fresh = True  # nothing was read yet in the innermost object or array
    while True:
        if at >= stop or data[at] == 10:
            return at, CUT
        node, closes = stack[depth, 0], 93 if stack[depth, 3] else 125
        if data[at] == closes:
            at += 1
            if depth == 0:
                break
            tape[stack[depth, 2], 3] = at
            before = node
            depth -= 1
            fresh = False
            at = skip_space(data, at, stop)
            continue
        if not fresh:
            if data[at] != 44:  # comma
                return at, SYNTAX
            at = skip_space(data, at + 1, stop)
        if stack[depth, 3]:
            child = _element(node, nodes, state)
        else:
            at, child, wrong = _member(data, at, stop, node, -1 if fresh else before, nodes, arena, table, state)
            if wrong == OK and nodes[child, LAST] == stack[depth, 1]:
                wrong = DUPLICATE
            if wrong != OK:
                return at, wrong
        if child < 0:
            return at, GROW
        if state[TAPE] >= len(tape):
            state[SCAN_FULL] = TAPE_FULL
            return at, GROW
        at, kind, wrong = _scan_value(data, at, stop, tape, state, child, stack[depth, 1])
        if wrong != OK:
            return at, wrong
        nodes[child, COUNT] += 1
        nodes[child, LAST] = stack[depth, 1]  # only now that it is on the tape, from where _rewind can take it back
        before, fresh = child, False
        if kind >= OBJECT:
            depth += 1
            if depth == DEPTH:
                return at, DEEP
            stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3] = (
                child,
                nodes[child, COUNT] - 1,
                state[TAPE] - 1,
                kind == ARRAY,
            )
            fresh = True
        at = skip_space(data, at, stop)
    at = skip_space(data, at, stop)
    return at, OK if at >= stop or data[at] == 10 else TRAILING


@inlined
def _scan_value(data: Any, at: int, stop: int, tape: Any, state: Any, node: int, around: int) -> tuple[int, int, int]:
    """(place behind the scalar or the opening bracket, its kind, OK or what is wrong), with its entry on the tape."""
    if at >= stop:
        return at, NULL_TOKEN, CUT
    byte, start, end, wrong = data[at], at, at, OK
    if byte == 34:
        start += 1
        end, kind, wrong = string_end(data, start, stop)
        at = end + 1
    elif byte == 45 or 48 <= byte <= 57:
        at, kind, wrong = number_end(data, at, stop)
        end = at
    elif byte == 123 or byte == 91:
        kind, at = OBJECT if byte == 123 else ARRAY, skip_space(data, at + 1, stop)
    else:
        kind, at = _scan_word(data, at, stop)
        if at < 0:
            at, wrong = start, CUT if byte == 10 else SYNTAX
        end = at
    if wrong != OK:
        return end, kind, wrong
    entry = state[TAPE]
    tape[entry, 0], tape[entry, 1], tape[entry, 2], tape[entry, 3] = node * 16 + kind, around, start, end
    state[TAPE] += 1
    return at, kind, OK


@inlined
def _scan_word(data: Any, at: int, stop: int) -> tuple[int, int]:
    byte = data[at]
    if byte == 116:
        return TRUE, word_end(data, at, stop, _TRUE)
    if byte == 102:
        return FALSE, word_end(data, at, stop, _FALSE)
    if byte == 110:
        return NULL_TOKEN, word_end(data, at, stop, _NULL)
    return FLOAT_TOKEN, word_end(data, at, stop, INFINITY if byte == 73 else _NAN)


@inlined
def _element(node: int, nodes: Any, state: Any) -> int:
    """The node of the array's elements; -1 if there is no room for it."""
    if nodes[node, ELEMENT] < 0:
        if state[NODES] >= len(nodes):
            state[SCAN_FULL] = NODES_FULL
            return -1
        child = state[NODES]
        nodes[child] = -1
        nodes[child, PARENT], nodes[child, COUNT] = node, 0
        nodes[node, ELEMENT] = child
        state[NODES] += 1
    return int(nodes[node, ELEMENT])


@inlined
def _member(
    data: Any, at: int, stop: int, parent: int, before: int, nodes: Any, arena: Any, table: Any, state: Any
) -> tuple[int, int, int]:
    """(place of the value, node, OK or what is wrong) for the key at `at`."""
    if at >= stop or data[at] != 34:
        return at, 0, CUT if at >= stop or data[at] == 10 else SYNTAX
    start = at + 1
    guess = nodes[parent, FIRST] if before < 0 else nodes[before, SCAN_NEXT]
    if guess >= 0 and nodes[guess, PLAIN_STRING] == 1:  # mostly the key is the one that followed last time
        end = start + nodes[guess, KEY_STOP] - nodes[guess, KEY_START]
        if (
            end + 1 < stop
            and data[end] == 34
            and data[end + 1] == 58
            and _same(data, start, end, arena, nodes[guess, KEY_START], nodes[guess, KEY_STOP])
        ):
            return skip_space(data, end + 2, stop), guess, OK
    end, kind, wrong = string_end(data, start, stop)
    if wrong != OK:
        return end, 0, wrong
    at = skip_space(data, end + 1, stop)
    if at >= stop or data[at] != 58:  # colon
        return at, 0, CUT if at >= stop or data[at] == 10 else SYNTAX
    at = skip_space(data, at + 1, stop)
    if kind == ESCAPED_TEXT:
        if state[ARENA] + end - start > len(arena):
            state[SCAN_FULL], state[WANTED] = ARENA_FULL, end - start
            return at, 0, GROW
        length = unescape(data, start, end, arena, state[ARENA]) - state[ARENA]
        node = _find(arena, state[ARENA], state[ARENA] + length, parent, guess, nodes, arena, table, state)
    else:
        node = _find(data, start, end, parent, guess, nodes, arena, table, state)
    if node < 0:
        return at, 0, GROW
    if before < 0:
        nodes[parent, FIRST] = node
    else:
        nodes[before, SCAN_NEXT] = node
    return at, node, OK


@inlined
def _same(text: Any, start: int, stop: int, arena: Any, key_start: int, key_stop: int) -> bool:
    if stop - start != key_stop - key_start:
        return False
    for i in range(stop - start):  # noqa: SIM110 (all() over a generator does not compile)
        if text[start + i] != arena[key_start + i]:
            return False
    return True


@kernel
def _slot(text: Any, start: int, stop: int, parent: int, table: Any) -> int:
    """Where the search for a key begins: FNV-1a."""
    code = np.uint64(14695981039346656037) ^ np.uint64(parent)
    for i in range(start, stop):
        code = (code ^ np.uint64(text[i])) * np.uint64(1099511628211)
    return int(np.int64((code ^ (code >> np.uint64(29))) & np.uint64(len(table) - 1)))


@kernel
def rehash(
    nodes: npt.NDArray[np.int64], arena: npt.NDArray[np.uint8], table: npt.NDArray[np.int32], count: int
) -> None:
    """Enter the nodes into an empty table."""
    for node in range(1, count):
        if nodes[node, KEY_START] >= 0:
            slot = _slot(arena, nodes[node, KEY_START], nodes[node, KEY_STOP], nodes[node, PARENT], table)
            while table[slot] >= 0:
                slot = (slot + 1) & (len(table) - 1)
            table[slot] = node


@kernel
def _find(
    text: Any, start: int, stop: int, parent: int, guess: int, nodes: Any, arena: Any, table: Any, state: Any
) -> int:
    """The node of that key in that parent, a new one if it is new; -1 if a table is full."""
    if (
        guess >= 0
        and nodes[guess, PARENT] == parent
        and _same(text, start, stop, arena, nodes[guess, KEY_START], nodes[guess, KEY_STOP])
    ):
        return guess
    slot = _slot(text, start, stop, parent, table)
    while table[slot] >= 0:
        node = int(table[slot])
        if nodes[node, PARENT] == parent and _same(
            text, start, stop, arena, nodes[node, KEY_START], nodes[node, KEY_STOP]
        ):
            return node
        slot = (slot + 1) & (len(table) - 1)
    node = int(state[NODES])
    if node >= len(nodes) or 2 * node >= len(table):
        state[SCAN_FULL] = NODES_FULL
        return -1
    if state[ARENA] + stop - start > len(arena):
        state[SCAN_FULL], state[WANTED] = ARENA_FULL, stop - start
        return -1
    nodes[node] = -1
    key = state[ARENA]
    nodes[node, PLAIN_STRING] = 1
    for i in range(stop - start):
        arena[key + i] = text[start + i]
        if text[start + i] < 32 or text[start + i] == 34 or text[start + i] == 92:
            nodes[node, PLAIN_STRING] = 0
    nodes[node, PARENT], nodes[node, KEY_START], nodes[node, KEY_STOP], nodes[node, COUNT] = (
        parent,
        key,
        key + stop - start,
        0,
    )
    table[slot] = node
    state[ARENA] += stop - start
    state[NODES] += 1
    return node
