"""Records that a plan has parsed while it scanned its files, kept until the build reads them: in files of the run,
which the system mostly has in its cache, and what is too little for a file in memory, as long as there is room. (Large
pieces that stayed in memory among all that goes and comes in a plan took three times their size of it.)

A plan looks at every record before the schema is known, since any record may change it. It parses them meanwhile by
the schema that was right so far; where that is the schema in the end, what it parsed is what reading would give, and
nothing is parsed twice. What turned out otherwise, or found no room, is read again from its input.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.storage.arrow_files import BatchWriter, consume_batches
from recordmill.storage.folders import join, remove_file

CachedPlace = tuple[int, int]  # (ordinal of the file, byte at which the records begin)

_REJECT_BYTES = 512  # of memory: the texts of one reject, and what holds them
_COLUMN_BYTES = 512  # of memory: an array of any length, beside its values
_PIECE_BYTES = 2048
_LEAST_FILE_BYTES = 64 << 10  # 64 KiB: less is parsed again as quickly as it is written and read


@dataclass(frozen=True)
class CachedReject:
    """ordinal: of the record, counted from its piece's first. line: as the kind counts it, where that is another."""

    ordinal: int
    line: int
    reason: str
    message: str


@dataclass(frozen=True)
class CachedPiece:
    """Consecutive records, as they were parsed by some schema.

    ordinals: int64 [rows], each record's number counted from the first of the piece; None: 0, 1, 2, ... rejects: those
    that can't be used, in order. count: how many there are, rejects included, or as lines are counted.
    """

    batch: pa.RecordBatch
    ordinals: npt.NDArray[np.int64] | None
    rejects: tuple[CachedReject, ...]
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


@dataclass(frozen=True)
class Stored:
    """A piece whose batch is the next one of a file. absent: int64, the ordinals that its records don't have."""

    absent: npt.NDArray[np.int64]
    rejects: tuple[CachedReject, ...]
    count: int

    @classmethod
    def of(cls, piece: CachedPiece) -> Stored:
        absent = np.empty(0, np.int64)
        if piece.ordinals is not None:
            absent = np.setdiff1d(np.arange(piece.count), piece.ordinals, assume_unique=True)
        return cls(absent, piece.rejects, piece.count)

    @property
    def size_bytes(self) -> int:
        """What it takes of the memory, roughly."""
        return int(self.absent.nbytes) + _REJECT_BYTES * len(self.rejects) + _PIECE_BYTES

    def piece(self, batch: pa.RecordBatch) -> CachedPiece:
        """The piece again."""
        ordinals = None if batch.num_rows == self.count else np.delete(np.arange(self.count), self.absent)
        return CachedPiece(batch, ordinals, self.rejects, self.count)


class Sized(Protocol):
    """What can be kept, and tells roughly what it takes of the memory."""

    @property
    def size_bytes(self) -> int: ...


_Part = TypeVar("_Part", bound=Sized)


@dataclass(frozen=True)
class CachedRecords(Generic[_Part]):
    """The pieces of consecutive records in order, and the schema that they were parsed by. path: the file of those that
    are stored, or "".
    """

    schema: Hashable
    pieces: Sequence[_Part | Stored]
    path: str = ""

    def __iter__(self) -> Iterator[_Part]:
        """The pieces; the file goes as soon as it is open."""
        batches = consume_batches(self.path) if self.path else iter(())
        for piece in self.pieces:
            yield piece.piece(next(batches)) if isinstance(piece, Stored) else piece  # type: ignore[misc]

    def drop(self) -> None:
        """Remove the file, if there is one."""
        if self.path:
            remove_file(self.path, missing_ok=True)


class Room:
    """So many bytes, of which several threads take some."""

    def __init__(self, most_bytes: int) -> None:
        self._left, self._lock = most_bytes, threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether any are left."""
        return self._left > 0

    def take(self, size_bytes: int) -> bool:
        """Take so many, if they are left."""
        with self._lock:
            if size_bytes > self._left:
                return False
            self._left -= size_bytes
            return True

    def give(self, size_bytes: int) -> None:
        """Give them back."""
        with self._lock:
            self._left += size_bytes

    def close(self) -> None:
        """Have none left."""
        self._left = 0


class ScanCache(Generic[_Part]):
    """What is kept, of at most so many bytes in memory; where it is `Piece`s mostly in files of a folder ("": nowhere),
    of which an eighth of that memory says what is in them. A copy of it, in another process, has nothing.
    """

    def __init__(self, most_bytes: int = 0, folder: str = "") -> None:
        self.folder, beside_bytes = folder, most_bytes // 8 if folder else 0
        self.memory, self.beside = Room(most_bytes - beside_bytes), Room(beside_bytes)
        self._found: dict[CachedPlace, CachedRecords[_Part]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (ScanCache, ())

    @property
    def is_open(self) -> bool:
        """Whether anything can be kept."""
        return self.memory.is_open or self.beside.is_open

    def put(self, place: CachedPlace, found: CachedRecords[_Part]) -> None:
        """Keep the pieces of the records that begin at that place."""
        self._found[place] = found

    def settle(self, is_right: Callable[[Any], bool]) -> None:
        """Forget what was parsed by a schema that is not right; nothing is kept from here on."""
        for place, found in list(self._found.items()):
            if not is_right(found.schema):
                self._found.pop(place).drop()
        self.memory.close()
        self.beside.close()

    def has(self, place: CachedPlace) -> bool:
        """Whether the records that begin there are kept."""
        return place in self._found

    def take(self, place: CachedPlace) -> Iterable[_Part] | None:
        """The pieces of the records that begin there, which are forgotten by that; None if they are to be read."""
        return self._found.pop(place, None)


class RecordKeeper(Generic[_Part]):
    """The pieces of consecutive records on their way into `ScanCache`; given up together when one can't be kept."""

    def __init__(self, kept: ScanCache[_Part]) -> None:
        self._kept, self._pieces = kept, list[_Part | Stored]()
        self._schema: Hashable = None
        self._held = self._beside = 0  # bytes of the two rooms
        self._writer: BatchWriter | None = None
        self.goes_on = kept.is_open

    def add(self, piece: _Part, schema: Hashable = None) -> None:
        """The next piece; one that was parsed by another schema than those before ends it."""
        try:
            if (self._pieces and schema != self._schema) or not (self._store(piece) or self._hold(piece)):
                self.give_up()
        except OSError:  # a full disk is told where it is needed
            self.give_up()
        self._schema = schema

    def give_up(self) -> None:
        """Keep nothing of these records."""
        self._kept.memory.give(self._held)
        self._kept.beside.give(self._beside)
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
            remove_file(self._writer.path, missing_ok=True)
        self._pieces, self._held, self._beside, self._writer, self.goes_on = [], 0, 0, None, False

    def put(self, place: CachedPlace) -> None:
        """That was all; they begin there."""
        try:
            if self._writer is not None:
                self._writer.close()
        except OSError:  # what there is room for is known when the file is closed
            self.give_up()
        if self._pieces:
            path = "" if self._writer is None else self._writer.path
            self._kept.put(place, CachedRecords(self._schema, self._pieces, path))

    def _hold(self, piece: _Part) -> bool:
        """Keep it in memory, if there is room."""
        if not self._kept.memory.take(piece.size_bytes):
            return False
        self._held += piece.size_bytes
        self._pieces.append(piece)
        return True

    def _store(self, piece: _Part) -> bool:
        """Keep it in the file of those before, or in a new one if it is worth one, if what of it stays in memory finds
        room.

        Raises:
            OSError: the disk does not take it.
        """
        if not isinstance(piece, CachedPiece):
            return False
        stored = Stored.of(piece)
        worth_it = self._writer is not None or piece.batch.nbytes >= _LEAST_FILE_BYTES
        if not worth_it or not self._kept.beside.take(stored.size_bytes):
            return False
        self._beside += stored.size_bytes
        if self._writer is None:
            self._writer = BatchWriter(join(self._kept.folder, f"kept-{uuid.uuid4().hex}"), piece.batch.schema)
        self._writer.write(piece.batch)
        self._pieces.append(stored)
        return True
