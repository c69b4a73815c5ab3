"""Arrow IPC files, and access to any file as an Arrow file."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from recordmill.storage.archives import is_archive_member
from recordmill.storage.files import find_storage, is_remote, map_file
from recordmill.storage.folders import remove_file
from recordmill.storage.stores.protocol import ReaderFile


class BatchWriter:
    """Writer of a new Arrow IPC file. Replaces an existing file.

    Args:
        path: A path on a local disk.
        schema: The schema of all batches.
    """

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self.path, self.schema = path, schema
        self._sink = pa.OSFile(path, "wb")
        self._writer = pa.ipc.new_file(
            self._sink,
            schema,
            options=pa.ipc.IpcWriteOptions(unify_dictionaries=False, emit_dictionary_deltas=False),
        )

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()
        self._sink.close()


def open_batches(path: str) -> pa.ipc.RecordBatchFileReader:
    """Opens an IPC file for random access to its batches.

    On a disk nothing is copied: the batches are views of the mapped file. An object in a store is
    read in ranges, so one batch does not need all of it.
    """
    return pa.ipc.open_file(open_arrow_file(path) if is_remote(path) else map_arrow_file(path))


def consume_batches(path: str) -> Iterator[pa.RecordBatch]:
    """Yields the batches of an IPC file, and removes the file.

    The file is removed as soon as it is open. Each batch has memory of its own.
    """
    with pa.OSFile(path) as source:
        remove_file(path)  # the open descriptor keeps the content until the generator ends
        reader = pa.ipc.open_file(source)
        yield from map(reader.get_batch, range(reader.num_record_batches))


def open_arrow_file(path: str) -> pa.NativeFile:
    """Opens a file for random access by Arrow's readers.

    A file of a store or an archive is read in ranges, on demand.
    """
    if is_remote(path) or is_archive_member(path):
        return pa.PythonFile(ReaderFile(find_storage(path).open(path)), mode="r")
    return pa.OSFile(path, "rb")


def map_arrow_file(path: str) -> pa.NativeFile:
    """Maps a file into memory for Arrow's readers.

    The results of the readers are views of the mapped file. A member of an archive is read in
    ranges instead, on demand. An object in a store is first copied to an unnamed file in the folder
    for temporary files.
    """
    if is_archive_member(path):
        return open_arrow_file(path)
    return pa.BufferReader(pa.py_buffer(map_file(path)))
