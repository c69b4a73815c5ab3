"""A stream of RecordBatches to one `.npz` file, of the arrays that `npy` writes to a folder; np.load holds each of them
in memory.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow as pa

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import show_size
from recordmill.records.writers.npy import open_npy
from recordmill.records.writers.outputs import OutputWriter, WriterSettings
from recordmill.schemas.feature import Schema
from recordmill.storage.files import open_file, stat
from recordmill.storage.folders import files_below, paths_in, remove_tree

_BLOCK_BYTES = 1 << 20  # 1 MiB: what is copied at once


class NpzWriter(OutputWriter):
    """Append batches to the files of a folder beside path, which `close` packs into path."""

    def __init__(self, path: Path, schema: Schema, settings: WriterSettings) -> None:
        self._path, self._split, self._most = path, settings.split, settings.memory_bytes
        self._folder = path.with_name(f"{path.name}.columns")
        self._columns = open_npy(self._folder, schema, settings)
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._columns.write(batch)
        self.rows = self._columns.rows

    def close(self) -> None:
        """Pack the arrays, uncompressed.

        Raises:
            UsageError: np.load would need more than --memory for them.
        """
        self._columns.close()
        size = sum(stat(file).size_bytes for file in files_below(self._folder).values())
        if self._most and size > self._most:
            raise UsageError(
                f"{option('to', 'npz')}: {self._split} takes {show_size(size)}, more than the "
                f"{show_size(self._most)} of {option('memory')}, and np.load would need it all at once; use "
                f"{option('to', 'npy')}, which np.load(..., mmap_mode='r') opens"
            )
        with zipfile.ZipFile(self._path, "w", zipfile.ZIP_STORED) as archive:
            for path in paths_in(self._folder, "*.npy"):
                entry = zipfile.ZipInfo(path.name)  # its date is that of 1980: the same columns give the same bytes
                with open_file(path) as source, archive.open(entry, "w", force_zip64=True) as member:
                    while block := source.read(_BLOCK_BYTES):
                        member.write(block)
        remove_tree(self._folder)

    def abort(self) -> None:
        self._columns.abort()
        remove_tree(self._folder, ignore_errors=True)


def open_npz(path: Path, schema: Schema, settings: WriterSettings) -> NpzWriter:
    """A writer of an `.npz` to a new file."""
    return NpzWriter(path, schema, settings)
