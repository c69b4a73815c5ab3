"""A table of any length as Arrow record batches: in memory, or in a file of Arrow's IPC stream format whose batches are
read as they are asked for, so that memory does not grow with the table but by some KiB a batch that is looked into.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

FILE_ROWS = 1 << 13  # of a batch in a file of this process's own: 8,192 input files are 800 KiB
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of a stream


class Batches:
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


class FileBatches(Batches):
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
