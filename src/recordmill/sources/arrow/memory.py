"""Source for rows in the memory of this process.

`plan_memory` writes the rows once to local Arrow files, and workers map these files into memory. So
an iterator of any length needs a bounded amount of memory. The source can be pickled, and its units
can be read repeatedly and in any order. The position of a record is its row number in the original
order.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError, Reject
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.sources.arrow.python_rows import to_batches
from recordmill.sources.common.contract import UNIT_BYTES, Chunk, PlanOptions, Unit, pack_units
from recordmill.sources.values.conform import conform_chunk
from recordmill.sources.values.flatten import flatten, media_names
from recordmill.sources.values.schema_unifier import (
    SchemaUnifier,
    declared_dtypes,
    finish_unified_schema,
)
from recordmill.storage.arrow_files import BatchWriter, open_batches
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import Stat, stat
from recordmill.storage.folders import join

# Used where inputs on a disk have a file name: in record keys, rejects and the manifest.
MEMORY_NAME = "memory"


@dataclass(frozen=True)
class MemorySource:
    """A source with rows that are stored as batches in local Arrow files.

    Attributes:
        files: A table with a single row, which represents all Arrow files together.
        units: The units. `start` and `stop` of a unit are batch numbers, counted over all Arrow
            files.
        segments: Paths of the Arrow files. All batches of a file have the same schema, but files
            may differ.
        first_batches: The number of the first batch of each Arrow file, counted over all files.
        plan_rejects: Always empty, since rows are checked when they are read.
        text_label: Name of the label feature if its class names are the distinct texts in its
            column, else None.
        media: Columns with the images and sounds of Hugging Face.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    segments: tuple[str, ...]
    first_batches: tuple[int, ...]
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    text_label: str | None = None
    media: tuple[str, ...] = ()
    kind: str = MEMORY_NAME

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields each batch of a unit as a chunk."""
        row = unit.first_row
        for batch in self._batches(unit.start, unit.stop):
            yield conform_chunk(
                batch,
                self.schema,
                text_label=self.text_label,
                file_id=0,
                file_name=MEMORY_NAME,
                first_row=row,
                media_remedies=dict.fromkeys(self.media, "store the bytes of that file"),
            )
            row += batch.num_rows

    def with_folder(self, folder: str) -> MemorySource:
        """Returns the source after its Arrow files have been moved to another folder."""
        names = map(os.path.basename, self.segments)
        return replace(self, segments=tuple(join(folder, name) for name in names))

    def _batches(self, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        for number in range(begin, end):
            segment = bisect_right(self.first_batches, number) - 1
            yield open_batches(self.segments[segment]).get_batch(
                number - self.first_batches[segment]
            )


class SegmentWriter:
    """Writes batches to numbered Arrow files.

    A new file begins whenever the schema changes, since an Arrow file has only one schema. The
    writer also counts the rows and bytes of each batch.

    Args:
        prefix: The files are called `PREFIX-00000.arrow`, `PREFIX-00001.arrow` and so on.

    Attributes:
        segments: Paths of the files.
        schemas: Schema of each file.
        first_batches: The number of the first batch of each file, counted over all files.
        rows: Number of rows of each batch.
        sizes: Size of each batch in bytes.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.segments: list[str] = []
        self.schemas: list[pa.Schema] = []
        self.first_batches: list[int] = []
        self.rows: list[int] = []
        self.sizes: list[int] = []
        self._writer: BatchWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None or not self._writer.schema.equals(
            batch.schema, check_metadata=True
        ):
            self.close()
            self.segments.append(f"{self.prefix}-{len(self.segments):05d}.arrow")
            self.schemas.append(batch.schema)
            self.first_batches.append(len(self.rows))
            self._writer = BatchWriter(self.segments[-1], batch.schema)
        self._writer.write(batch)
        self.rows.append(batch.num_rows)
        self.sizes.append(batch.nbytes)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def units(self) -> tuple[Unit, ...]:
        first_rows = np.cumsum([0, *self.rows]).tolist()
        batch_sizes = zip(first_rows[:-1], self.rows, self.sizes, strict=True)
        batches = (
            Unit(
                0, 1, start=number, stop=number + 1, first_row=first_row, rows=rows, size_bytes=size
            )
            for number, (first_row, rows, size) in enumerate(batch_sizes)
        )
        return pack_units(batches, UNIT_BYTES, joins_parts=True)


def plan_memory(source: Any, folder: str | os.PathLike[str], common: PlanOptions) -> MemorySource:
    """Writes the rows of a Python object to Arrow files, and plans these.

    Args:
        source: Any object that `to_batches` accepts.
        folder: An existing folder for the Arrow files. The caller removes it after the build.
        common: Options that all kinds of input share.

    Raises:
        UsageError: The object is not supported, or an option names a column that does not exist.
        DataError: There are no rows, or a column can't be a feature.
        Exception: Any error that the iterator of `source` raises.
    """
    writer = SegmentWriter(os.path.join(folder, MEMORY_NAME))
    unifier = SchemaUnifier(declared_dtypes(common))
    rows, media = 0, dict[str, None]()
    try:
        for batch in to_batches(source):
            flat = flatten(batch)
            media |= dict.fromkeys(media_names(batch.schema))
            check_feature_count(flat.num_columns, common.memory_bytes, MEMORY_NAME)
            null_counts = {
                name: column.null_count
                for name, column in zip(flat.schema.names, flat.columns, strict=True)
            }
            unifier.add(flat.schema, f"rows {rows} to {rows + batch.num_rows - 1}", null_counts)
            rows += batch.num_rows
            writer.write(flat)
    finally:
        writer.close()
    if not writer.rows:
        raise DataError("there are no rows", source=MEMORY_NAME)
    schema, notes, text_label = finish_unified_schema(
        unifier, _all_batches(writer.segments), common, "the data"
    )
    state = Stat(sum(stat(path).size_bytes for path in writer.segments), 0)
    inputs = FileTable.from_files([InputFile(0, MEMORY_NAME, writer.segments[0], state)])
    return MemorySource(
        schema=schema,
        files=inputs,
        units=writer.units(),
        segments=tuple(writer.segments),
        first_batches=tuple(writer.first_batches),
        notes=notes,
        text_label=text_label,
        media=tuple(name for name in media if name in schema),
    )


def _all_batches(segments: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for segment in segments:
        reader = open_batches(segment)
        yield from map(reader.get_batch, range(reader.num_record_batches))
