"""A sequence whose items are made when they are asked for, by themselves or some neighbours together; and a table of
any length as Arrow record batches: in memory, or in a file of Arrow's IPC stream format whose batches are read as they
are asked for.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.threads import ProcessLock

Item = TypeVar("Item")
_BLOCK, _KEPT = 256, 8  # items that are made together, and how many such blocks stay
_keeping = ProcessLock()


class Table(Sequence[Item]):
    """What tables have in common: slices, and comparison with any sequence of such items."""

    def _item(self, at: int) -> Item:
        raise NotImplementedError

    def some(self, places: Sequence[int]) -> Sequence[Item]:
        """The items at these places."""
        return [self._item(at) for at in places]

    @overload
    def __getitem__(self, at: int) -> Item: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Item, ...]: ...

    def __getitem__(self, at: int | slice) -> Item | tuple[Item, ...]:
        if isinstance(at, slice):
            return tuple(self.some(range(*at.indices(len(self)))))
        number = at + len(self) if at < 0 else at
        if not 0 <= number < len(self):
            raise IndexError(f"{at}: there are {len(self)}")
        return self._item(number)

    def __iter__(self) -> Iterator[Item]:
        return map(self._item, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash((type(self), len(self)))


class BlockTable(Table[Item]):
    """A table whose `some` makes many items in little more time than one: neighbours of one that was asked for stay."""

    def _item(self, at: int) -> Item:
        block = at // _BLOCK
        kept = self._kept
        with _keeping:
            items = kept.get(block)
        if items is None:
            items = self.some(range(block * _BLOCK, min((block + 1) * _BLOCK, len(self))))
            with _keeping:
                kept[block] = items
                if len(kept) > _KEPT:
                    kept.popitem(last=False)
        return items[at - block * _BLOCK]

    @property
    def _kept(self) -> OrderedDict[int, Sequence[Item]]:
        found: OrderedDict[int, Sequence[Item]] = self.__dict__.setdefault("_blocks", OrderedDict())
        return found

    def some(self, places: Sequence[int]) -> Sequence[Item]:
        """The items at these places."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_blocks"}


FILE_ROWS = 1 << 13  # of a batch in a file of this process's own: 8,192 input files are 800 KiB
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of a stream


class TableBatches:
    """A table in memory, as one batch."""

    def __init__(self, held: pa.RecordBatch) -> None:
        self._held, self.schema = held, held.schema
        self.length, self.rows = int(held.num_rows), max(int(held.num_rows), 1)

    def batch(self, number: int) -> pa.RecordBatch:
        """The rows from number * rows on, which are at most `rows`."""
        return self._held

    def passed(self) -> Iterator[pa.RecordBatch]:
        """All batches in order, none of which is kept."""
        yield self._held

    def take(self, places: Sequence[int] | npt.NDArray[np.integer[Any]]) -> pa.RecordBatch:
        """The rows at these places, in this order."""
        if isinstance(places, range) and places.step == 1 and len(places):
            number, last = places.start // self.rows, (places.stop - 1) // self.rows
            if number == last:  # a part of a batch, as it is
                return self.batch(number).slice(places.start - number * self.rows, len(places))
        wanted = np.asarray(places, np.int64)
        numbers = wanted // self.rows
        used = np.unique(numbers).tolist()
        if len(used) < 2:
            number = used[0] if used else 0
            return self.batch(number).take(pa.array(wanted - number * self.rows))
        where = [np.flatnonzero(numbers == number) for number in used]
        parts = (
            self.batch(number).take(pa.array(wanted[at] - number * self.rows))
            for number, at in zip(used, where, strict=True)
        )
        return pa.concat_batches(list(parts)).take(pa.array(np.argsort(np.concatenate(where))))


class FileBatches(TableBatches):
    """A table in a file. starts: [batches + 1] where in it each batch begins. Another process that unpickles it reads
    the file while it is there.
    """

    def __init__(self, path: str, schema: pa.Schema, starts: npt.NDArray[np.int64], length: int, rows: int) -> None:
        self.path, self.schema, self.starts, self.length, self.rows = path, schema, starts, length, rows
        self._open()

    def _open(self) -> None:
        self._mapped: npt.NDArray[np.uint8] | None = None
        self._views = dict[int, pa.RecordBatch]()  # of the mapped file, which hold nothing but where it is

    @classmethod
    def write(cls, schema: pa.Schema, batches: Iterable[pa.RecordBatch], rows: int, folder: str | None) -> FileBatches:
        """Put batches of so many rows, the last of which may have fewer, into a new file in that folder, or among the
        system's temporary ones; it goes when nobody holds the table any more.
        """
        descriptor, path = tempfile.mkstemp(prefix="table-", dir=folder)
        starts, length = array("q"), 0
        try:
            with os.fdopen(descriptor, "wb") as file:
                for data, count in messages(schema, batches):
                    starts.append(file.tell())
                    file.write(data)
                    length += count
        except BaseException:
            _remove(path)
            raise
        found = cls(path, schema, np.array(starts[1:], np.int64), length, rows)
        weakref.finalize(found, _remove, path)
        return found

    def batch(self, number: int) -> pa.RecordBatch:
        if self._mapped is None:
            self._mapped = np.memmap(self.path, np.uint8, "r")
        if (found := self._views.get(number)) is None:
            start, stop = self.starts[number : number + 2].tolist()
            found = pa.ipc.read_record_batch(pa.py_buffer(self._mapped[start:stop]), self.schema)
            self._views[number] = found
        return found

    def passed(self) -> Iterator[pa.RecordBatch]:
        with open(self.path, "rb", buffering=0) as file:  # mapped pages would be counted as this process's memory
            for start, stop in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True):
                yield pa.ipc.read_record_batch(pa.py_buffer(os.pread(file.fileno(), stop - start, start)), self.schema)

    def __getstate__(self) -> Any:
        return self.path, self.schema, self.starts, self.length, self.rows

    def __setstate__(self, state: Any) -> None:
        self.path, self.schema, self.starts, self.length, self.rows = state
        self._open()


def messages(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[memoryview, int]]:
    """A stream of Arrow's IPC format, piece by piece: (bytes, how many rows they hold), of the schema first, then of
    each batch, then its end.
    """
    yield memoryview(schema.serialize()), 0
    for batch in batches:
        yield memoryview(batch.serialize()), batch.num_rows
    yield memoryview(_END), 0


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # the folder that it lay in may have gone first
        os.unlink(path)
