"""A table of feature names inside compiled code: key bytes in, slot number out; names are added as they turn up.

A name is told by its length and its first and last eight bytes, and only names of more than 16 bytes are compared further. In front of the
table stands a prediction: the name that followed the previous one last time, which in files written by one program is right nearly always.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from recordmill.records.wire import Bytes, Ints, copy, load64
from recordmill.schemas.kernels import kernel

_MIX1, _MIX2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)  # odd constants: the golden ratio, and one of rrmxmx's
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class Names(NamedTuple):
    """slots: int64 [capacity + 1, 4]: (position in text, bytes, part, slot predicted to follow). words: uint64 [capacity + 1, 2].

    table: int32 [power of two], open addressing, -1 is free. text: the names' bytes. used: int64 [2]: slots and bytes of text in use.
    """

    slots: Ints
    words: np.ndarray[tuple[int, int], np.dtype[np.uint64]]
    table: np.ndarray[tuple[int], np.dtype[np.int32]]
    text: Bytes
    used: Ints


def new_names(capacity: int, text_bytes: int) -> Names:
    """An empty table with room for that many names and bytes of names."""
    size = 64
    while size < 2 * capacity:
        size *= 2
    slots = np.zeros((capacity + 1, 4), np.int64)
    slots[0, 1] = -1  # slot 0 is the beginning of a record: no name
    return Names(slots, np.zeros((capacity + 1, 2), np.uint64), np.full(size, -1, np.int32), np.zeros(text_bytes + 16, np.uint8), np.array([1, 0]))


def copy_names(names: Names) -> Names:
    return Names(*(array.copy() for array in names))


@kernel
def edge_word(data: Bytes, at: int, size: int) -> np.uint64:
    """The first min(size, 8) bytes at data[at] as a little-endian number."""
    if size >= 8:
        return load64(data, at)
    if size == 0:
        return np.uint64(0)
    if at + 8 <= len(data):
        return load64(data, at) & (_ALL >> np.uint64(64 - 8 * size))
    word = np.uint64(0)
    for i in range(size):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@kernel
def is_name(names: Names, slot: int, data: Bytes, at: int, size: int, part: int, first: np.uint64, last: np.uint64) -> bool:
    """Whether slot has this name in this part of the message."""
    if names.slots[slot, 1] != size or names.words[slot, 0] != first or names.words[slot, 1] != last or names.slots[slot, 2] != part:
        return False
    begin = names.slots[slot, 0]
    for i in range(8, size - 8, 8):  # noqa: SIM110 - Numba compiles no generators; the last word overlaps what the loop leaves
        if load64(names.text, begin + i) != load64(data, at + i):
            return False
    return True


@kernel
def find_name(names: Names, data: Bytes, at: int, size: int, part: int) -> int:
    """The slot of the name, or -1 - (free place in the table)."""
    first = edge_word(data, at, size)
    last = load64(data, at + size - 8) if size > 8 else first
    mixed = (first * _MIX1) ^ (last * _MIX2) ^ (np.uint64(size * 2 + part) * _MIX1)
    mask = len(names.table) - 1
    place = np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(mask))
    while names.table[place] >= 0:
        if is_name(names, names.table[place], data, at, size, part, first, last):
            return np.int64(names.table[place])
        place = (place + 1) & mask
    return -1 - place


@kernel
def add_name(names: Names, data: Bytes, at: int, size: int, part: int) -> int:
    """The slot of the name, added if it is new; -1 if there is no room for it."""
    slot = find_name(names, data, at, size, part)
    if slot >= 0:
        return slot
    new, begin = names.used[0], names.used[1]
    if new >= len(names.slots) or begin + size + 16 > len(names.text):
        return -1
    copy(names.text, begin, data, at, size)
    names.slots[new, 0], names.slots[new, 1], names.slots[new, 2], names.slots[new, 3] = begin, size, part, new
    first = edge_word(data, at, size)
    names.words[new, 0] = first
    names.words[new, 1] = load64(data, at + size - 8) if size > 8 else first
    names.table[-1 - slot] = new
    names.used[0], names.used[1] = new + 1, begin + size
    return new


@kernel
def predicted(names: Names, previous: int, data: Bytes, at: int, size: int, part: int) -> int:
    """The slot predicted to follow previous if it has this name, else -1."""
    slot = names.slots[previous, 3]
    first = edge_word(data, at, size)
    last = load64(data, at + size - 8) if size > 8 else first
    return slot if is_name(names, slot, data, at, size, part, first, last) else -1
