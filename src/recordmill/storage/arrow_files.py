"""Arrow's own ways to files: record batches to a local IPC file and back, memory-mapped or one after the other; and any
file as Arrow's C++ readers take it, which seek and read in it: from a disk as it is, from a store by ranges.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

import pyarrow as pa

from recordmill.storage.archives import is_archive_member
from recordmill.storage.files import find_storage, is_remote, map_file
from recordmill.storage.folders import remove_file
from recordmill.storage.stores.protocol import ReaderFile


class BatchWriter:
    """A new IPC file of batches that all have one schema; an existing file of that name is replaced."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self.path, self.schema, self.batches = path, schema, 0
        self._sink = pa.OSFile(path, "wb")
        self._writer = pa.ipc.new_file(
            self._sink,
            schema,
            options=pa.ipc.IpcWriteOptions(unify_dictionaries=False, emit_dictionary_deltas=False),
        )

    def write(self, batch: pa.RecordBatch) -> int:
        """Append the batch; gives its ordinal in the file."""
        self._writer.write_batch(batch)
        self.batches += 1
        return self.batches - 1

    def close(self) -> None:
        self._writer.close()
        self._sink.close()

    def __enter__(self) -> BatchWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def map_batches(path: str) -> pa.ipc.RecordBatchFileReader:
    """The batches of an IPC file, each a view of the mapped file."""
    return pa.ipc.open_file(pa.BufferReader(pa.py_buffer(map_file(path))))


def consume_batches(path: str) -> Iterator[pa.RecordBatch]:
    """The batches of an IPC file in order, each read into memory of its own; the file goes as soon as it is open."""
    with pa.OSFile(path) as source:
        remove_file(path)
        reader = pa.ipc.open_file(source)
        yield from map(reader.get_batch, range(reader.num_record_batches))


def open_arrow_file(path: str) -> pa.NativeFile:
    """The file, to be read here and there."""
    if is_remote(path) or is_archive_member(path):
        return pa.PythonFile(ReaderFile(find_storage(path).open(path)), mode="r")
    return pa.OSFile(path, "rb")
