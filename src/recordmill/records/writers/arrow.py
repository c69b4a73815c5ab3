"""Output to Arrow IPC files (Feather version 2)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from recordmill.records.writers.outputs import OutputWriter, WriterSettings
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.storage.files import create_file


class ArrowWriter(OutputWriter):
    """Writer of one Arrow IPC file.

    The file is not compressed, so `pa.ipc.open_file` can memory-map it.
    """

    def __init__(
        self, path: str | Path, schema: Schema, settings: WriterSettings | None = None
    ) -> None:
        self.rows = 0
        self._file = create_file(path)
        self._writer = pa.ipc.new_file(self._file, to_arrow(schema))

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def close(self) -> None:
        self._writer.close()
        self._file.close()

    def abort(self) -> None:
        self._file.close()  # readers refuse a file without a footer
