"""A table of feature names inside compiled code: key bytes in, slot number out; names are added as they turn up.

A name is found by a hash of all its bytes, and told by its length and its first and last eight bytes; only names of
more than 16 bytes are compared further. In front of the table stands a prediction: the name that followed the previous
one last time, which in files written by one program is right nearly always.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.base.kernels import inlined, kernel
from recordmill.base.pointers import address_of, copy, load8, load64, store64
from recordmill.records.protobuf.wire import is_utf8_text

SLOT_INTS = 8  # a slot is 64 bytes, one cache line: the fields below and two spare ones
# address of the name, its bytes, part of the message, predicted next slot, edge words
_TEXT, _SIZE, _PART, _NEXT, _FIRST, _LAST = range(6)
# the head: addresses, the table's size - 1, slots there are and in use
_SLOTS, _TABLE, _MASK, _CAPACITY, _FREE_TEXT, _TEXT_END, _USED = range(7)
# odd constants: 2^64 / golden ratio, and one more of no structure
_MIX1, _MIX2 = (-0x61C8864680B583EB, -0x29A79F5B38FA6C4F)


@dataclass(frozen=True)
class Names:
    """The memory of a table. Kernels get `address()`, the address of its head,
    and this object must live as long as they run.

    slots: int64 [capacity + 1, SLOT_INTS], slot 0 standing for the beginning of a record. table: int64 [power of two],
    -1 is free.
    """

    head: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    table: npt.NDArray[np.int64]
    text: npt.NDArray[np.uint8]

    def address(self) -> int:
        return address_of(self.head)

    def copy(self) -> Names:
        slots, text = self.slots.copy(), self.text.copy()
        slots[:, _TEXT] += address_of(text) - address_of(self.text)
        return _assembled(
            slots, self.table.copy(), text, int(self.head[_USED]), int(self.head[_FREE_TEXT]) - address_of(self.text)
        )

    def names(self) -> list[tuple[bytes, int]]:
        """(name, part) of the slots from 1 on."""
        base = address_of(self.text)
        return [
            (self.text[at - base : at - base + size].tobytes(), int(part))
            for at, size, part in self.slots[1 : self.head[_USED], :3].tolist()
        ]


def _assembled(
    slots: npt.NDArray[np.int64], table: npt.NDArray[np.int64], text: npt.NDArray[np.uint8], used: int, text_bytes: int
) -> Names:
    base = address_of(text)
    head = [address_of(slots), address_of(table), len(table) - 1, len(slots), base + text_bytes, base + len(text), used]
    return Names(np.array(head), slots, table, text)


def new_names(capacity: int, text_bytes: int) -> Names:
    """An empty table with room for that many names and bytes of names."""
    size = 64
    while size < 2 * capacity:
        size *= 2
    slots = np.zeros((capacity + 1, SLOT_INTS), np.int64)
    slots[0, _SIZE] = -1  # no name has this length
    return _assembled(slots, np.full(size, -1, np.int64), np.zeros(text_bytes, np.uint8), 1, 0)


@inlined
def first_word(at: int, size: int, limit: int) -> int:
    """The first min(size, 8) bytes at the address, zeros behind them; nothing at or behind limit is read."""
    if size >= 8:
        return int(load64(at))
    if at + 8 <= limit:
        return int(load64(at) & ((1 << (8 * size)) - 1))
    word = 0
    for i in range(size):
        word |= load8(at + i) << (8 * i)
    return word


@inlined
def is_name(slot: int, at: int, size: int, part: int, first: int, last: int) -> bool:
    """Whether the slot at the address has this name in this part of the message."""
    if (
        load64(slot + 8 * _SIZE) != size
        or load64(slot + 8 * _FIRST) != first
        or load64(slot + 8 * _LAST) != last
        or load64(slot + 8 * _PART) != part
    ):
        return False
    return size <= 16 or same_middle(load64(slot), at, size)


@kernel
def same_middle(text: int, at: int, size: int) -> bool:
    """Whether two names of more than 16 bytes agree between their first and last eight."""
    for i in range(8, size - 8, 8):  # noqa: SIM110 - Numba compiles no generators
        if load64(text + i) != load64(at + i):
            return False
    return True


@kernel
def find_name(names: int, at: int, size: int, part: int, first: int, last: int) -> int:
    """The slot of the name, or -1 - (free place in the table)."""
    slots, table, mask = load64(names + 8 * _SLOTS), load64(names + 8 * _TABLE), load64(names + 8 * _MASK)
    mixed = (first * _MIX1) ^ ((last * _MIX2) >> 7) ^ ((2 * size + part) * _MIX1)
    for i in range(8, size - 8, 8):  # of names of more than 16 bytes
        mixed = (mixed ^ (mixed >> 31) ^ load64(at + i)) * _MIX2
    place = int((mixed ^ (mixed >> 29)) & mask)
    while True:
        slot = int(load64(table + 8 * place))
        if slot < 0:
            return -1 - place
        if is_name(slots + 8 * SLOT_INTS * slot, at, size, part, first, last):
            return slot
        place = (place + 1) & mask


@kernel
def add_name(names: int, at: int, size: int, part: int, limit: int) -> int:
    """The slot of the name, added if it is new; -1 if there is no room for it."""
    first = first_word(at, size, limit)
    last = load64(at + size - 8) if size > 8 else first
    slot = find_name(names, at, size, part, first, last)
    if slot >= 0:
        return slot
    new, text = int(load64(names + 8 * _USED)), load64(names + 8 * _FREE_TEXT)
    if new >= load64(names + 8 * _CAPACITY) or text + size > load64(names + 8 * _TEXT_END):
        return -1
    copy(text, at, size)
    about = load64(names + 8 * _SLOTS) + 8 * SLOT_INTS * new
    store64(about + 8 * _TEXT, text)
    store64(about + 8 * _SIZE, size)
    store64(about + 8 * _PART, part)
    store64(about + 8 * _FIRST, first)
    store64(about + 8 * _LAST, last)
    store64(load64(names + 8 * _TABLE) + 8 * (-1 - slot), new)
    store64(names + 8 * _USED, new + 1)
    store64(names + 8 * _FREE_TEXT, text + size)
    return new


@inlined
def predicted(names: int, previous: int, at: int, size: int, part: int, limit: int) -> int:
    """The slot predicted to follow previous if it has this name, else -1."""
    slots = load64(names + 8 * _SLOTS)
    slot = int(load64(slots + 8 * (SLOT_INTS * previous + _NEXT)))
    first = first_word(at, size, limit)
    last = load64(at + size - 8) if size > 8 else first
    return slot if is_name(slots + 8 * SLOT_INTS * slot, at, size, part, first, last) else -1


@kernel
def predict(names: int, previous: int, slot: int) -> None:
    """Let slot be predicted to follow previous from now on."""
    store64(load64(names + 8 * _SLOTS) + 8 * (SLOT_INTS * previous + _NEXT), slot)


@kernel
def find_slot(names: int, previous: int, key: int, key_end: int, part: int, limit: int) -> int:
    """The slot of the key, 0 if there is no room for it, -1 if it is not UTF-8; the prediction having failed."""
    if not is_utf8_text(key, key_end):
        return -1
    slot = max(add_name(names, key, key_end - key, part, limit), 0)
    predict(names, previous, slot)
    return slot
