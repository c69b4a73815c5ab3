"""Records that a plan has parsed while it scanned its files, kept in memory until the build reads them.

A plan looks at every record before the schema is known, since any record may change it. It parses them meanwhile by
the schema that was right so far; where that is the schema in the end, what it parsed is what reading would give, and
nothing is parsed twice. What turned out otherwise, or found no room, is read again from the file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Place = tuple[int, int]  # (ordinal of the file, byte at which the records begin)

_REJECT_BYTES = 512  # of memory: the texts of one reject, and what holds them
_COLUMN_BYTES = 512  # of memory: an array of any length, beside its values
_PIECE_BYTES = 2048


@dataclass(frozen=True)
class KeptReject:
    """ordinal: of the record, counted from its piece's first. line: as the kind counts it, where that is another."""

    ordinal: int
    line: int
    reason: str
    message: str


@dataclass(frozen=True)
class Piece:
    """Consecutive records, as they were parsed by some schema.

    ordinals: int64 [rows], each record's number counted from the first of the piece; None: 0, 1, 2, ... rejects: those
    that can't be used, in order. count: how many there are, rejects included, or as lines are counted.
    """

    batch: pa.RecordBatch
    ordinals: npt.NDArray[np.int64] | None
    rejects: tuple[KeptReject, ...]
    count: int

    @property
    def size_bytes(self) -> int:
        """What it takes of the memory, roughly."""
        held = _COLUMN_BYTES * int(self.batch.num_columns) + _REJECT_BYTES * len(self.rejects)
        ordinals = 0 if self.ordinals is None else int(self.ordinals.nbytes)
        return int(self.batch.nbytes + ordinals + held + _PIECE_BYTES)

    def positions(self, first: int) -> npt.NDArray[np.int64]:
        """int64 [rows], where the piece's first record has that position."""
        ordinals = np.arange(self.batch.num_rows, dtype=np.int64) if self.ordinals is None else self.ordinals
        return first + ordinals


class Sized(Protocol):
    """What can be kept, and tells roughly what it takes of the memory."""

    @property
    def size_bytes(self) -> int: ...


Part = TypeVar("Part", bound=Sized)


class Kept(Generic[Part]):
    """What is kept, of at most so many bytes; a copy of it, in another process, has nothing."""

    def __init__(self, most_bytes: int = 0) -> None:
        self._left, self._lock = most_bytes, threading.Lock()
        self._found: dict[Place, tuple[Hashable, Sequence[Part], int]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (Kept, ())

    @property
    def is_open(self) -> bool:
        """Whether anything can be kept."""
        return self._left > 0

    def take_room(self, size_bytes: int) -> bool:
        """Take so many bytes, if they are left."""
        with self._lock:
            if size_bytes > self._left:
                return False
            self._left -= size_bytes
            return True

    def give_room(self, size_bytes: int) -> None:
        """Give them back."""
        with self._lock:
            self._left += size_bytes

    def put(self, place: Place, schema: Hashable, pieces: Sequence[Part], size_bytes: int) -> None:
        """Keep the pieces of the records that begin at that place; schema: what they were parsed by."""
        with self._lock:
            self._found[place] = schema, pieces, size_bytes

    def settle(self, is_right: Callable[[Any], bool]) -> None:
        """Forget what was parsed by a schema that is not right; nothing is kept from here on."""
        for place, (schema, _, _) in list(self._found.items()):
            if not is_right(schema):
                del self._found[place]
        self._left = 0

    def has(self, place: Place) -> bool:
        """Whether the records that begin there are kept."""
        return place in self._found

    def take(self, place: Place) -> Sequence[Part] | None:
        """The pieces of the records that begin there, which are forgotten by that; None if they are to be read."""
        found = self._found.pop(place, None)
        return None if found is None else found[1]


class Keeping(Generic[Part]):
    """The pieces of consecutive records on their way into `Kept`; given up together as soon as one can't be kept."""

    def __init__(self, kept: Kept[Part]) -> None:
        self._kept, self._pieces = kept, list[Part]()
        self._schema: Hashable = None
        self._size = 0
        self.goes_on = kept.is_open

    def add(self, piece: Part, schema: Hashable = None) -> None:
        """The next piece; one that was parsed by another schema than those before ends it."""
        size = piece.size_bytes
        if (self._pieces and schema != self._schema) or not self._kept.take_room(size):
            self.give_up()
            return
        self._pieces.append(piece)
        self._schema, self._size = schema, self._size + size

    def give_up(self) -> None:
        """Keep nothing of these records."""
        self._kept.give_room(self._size)
        self._pieces, self._size, self.goes_on = [], 0, False

    def put(self, place: Place) -> None:
        """That was all; they begin there."""
        if self.goes_on and self._pieces:
            self._kept.put(place, self._schema, self._pieces, self._size)
