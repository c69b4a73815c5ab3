"""Defines what every kind of input gives to a build: a `Source` made by a plan, whose units give `Chunk`s of typed
rows. Small units are packed to units of the usual size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import Reject
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.schemas.feature import Schema
from recordmill.sources.common.scan_cache import ScanCache
from recordmill.storage.file_table import FileTable

IMAGE_FEATURES = (
    "image",
    "image/encoded",
)  # what builds call an image: by itself, and with boxes of objects
UNIT_BYTES = (
    32 << 20
)  # 32 MiB: large enough that a unit's fixed costs vanish, small enough to balance two cores
BATCH_BYTES = 8 << 20  # 8 MiB: a batch that stays in the last-level cache from parsing to encoding
BATCH_ROWS = 1 << 16  # 65,536 rows: bounds the per-row arrays beside a batch of tiny rows
# files that are one record each: opening one takes up to milliseconds, and between two batches a stop is heard
BATCH_FILES = 256
_LINE_MEMORY_DIVISOR = 8  # an eighth of the memory: a line is there read, parsed, encoded and in a run, of two threads at once


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of work: files [begin_file, end_file) whole, or one file's part [start, stop) in the kind's own terms
    (bytes, row groups, batches).

    Attributes:
        first_row: The position of the unit's first record in its file.
        rows: How many records, rejects included, if the plan knows.
        size_bytes: Roughly how many bytes of records it gives; runs are planned by it.
        first_line: Where kinds count lines beside records, that of the part's first record in its file.
    """

    begin_file: int
    end_file: int
    start: int = 0
    stop: int = 0
    first_row: int = 0
    rows: int | None = None
    size_bytes: int = 0
    first_line: int = 0


@dataclass(frozen=True)
class Payloads:
    """Serialized records that are not to be parsed: record i is data[offsets[i]:offsets[i + 1]]."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]  # [rows + 1]

    def take(self, rows: npt.NDArray[np.int64]) -> Payloads:
        """Returns these records, ascending."""
        lengths, data = np.diff(self.offsets), self.data[self.offsets[0] : self.offsets[-1]]
        is_selected = np.isin(np.arange(len(lengths)), rows)
        return Payloads(
            data[np.repeat(is_selected, lengths)], np.concatenate([[0], np.cumsum(lengths[rows])])
        )


@dataclass(frozen=True)
class Chunk:
    """Consecutive records of a unit, and what could not be read between them.

    Attributes:
        records: A RecordBatch of the source's Arrow schema, or Payloads.
        file_ids: [rows] uint32, ordinals into Source.files.
        positions: [rows] int64, row number in the decoded file, from 0; rejected rows count.
        rejects: The records between them that can't be used.
        note_counts: What a user should know of these records (`JPEG with CMYK`), to be added up over all chunks.
        pixel_sums: Feature to [rows, `SUMS`] as `records.images.pixels` adds them up, of images that were decoded for a
            check.
    """

    records: pa.RecordBatch | Payloads
    file_ids: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.int64]
    rejects: tuple[Reject, ...] = ()
    note_counts: Mapping[str, int] = field(default_factory=dict)
    pixel_sums: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.positions)

    def take(self, rows: npt.NDArray[np.int64]) -> Chunk:
        """Returns these records, ascending, with all rejects and counts."""
        pixels = {name: sums[rows] for name, sums in self.pixel_sums.items()}
        records = self.records.take(rows if isinstance(self.records, Payloads) else pa.array(rows))
        return replace(
            self,
            records=records,
            file_ids=self.file_ids[rows],
            positions=self.positions[rows],
            pixel_sums=pixels,
        )


@runtime_checkable
class Source(Protocol):
    """Immutable and picklable: what a plan found out about the inputs, and how to read them."""

    @property
    def kind(self) -> str:
        """images, csv, jsonl, text, parquet, numpy, tfrecord, webdataset or memory."""

    @property
    def schema(self) -> Schema:
        """The features of every record; all chunks have the Arrow schema schemas.arrow.to_arrow(schema)."""

    @property
    def files(self) -> FileTable: ...

    @property
    def units(self) -> Sequence[Unit]:
        """Units in order of file and position; together they cover every record once."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user: files that are ignored, nulls per column, values that lose digits."""

    @property
    def plan_rejects(self) -> Sequence[Reject]:
        """Rejects of the plan (a label row without a file, a file without a label row)."""

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the unit's records in chunks of about BATCH_BYTES, at most BATCH_ROWS; one may have rejects alone."""


@runtime_checkable
class FileRecordSource(Protocol):
    """Source of which each file is one record, at position 0, or one reject, and can be read in any order."""

    @property
    def is_record_per_file(self) -> bool: ...

    def read_files(self, ordinals: Sequence[int]) -> Iterator[Chunk]:
        """Yields the records of these files in this order, in chunks like those of `Source.read`; rejects, too, stand
        in that order.
        """


@runtime_checkable
class RecordLocator(Protocol):
    """Optional part of a Source: where people find its records, as its own rejects say it."""

    def locate(self, file_ordinal: int, positions: Sequence[int]) -> list[str]:
        """Returns the places of the records at these positions of a file, which may be read for it."""


@dataclass(frozen=True)
class PlanOptions:
    """Options that all kinds share.

    Attributes:
        schema: Given by the user, else inferred.
        dtypes: Feature name to dtype, over the inference.
        label: The label column.
        threads: How many the plan may use.
        memory_bytes: What plan and build may hold at once, beside the interpreter.
        parsed_cache_bytes: Of them, for records that it parses; others wait in files of parsed_folder, unless that is "".
        droppable_features: Features of the schema that are left out where the inputs have none of them.
        collects_statistics: The records will be counted for them.
        columns: Only these of CSV and JSON Lines, in this order; None is all.
        unit_bytes: Of a unit of a table, about.
    """

    schema: Schema | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    label: str | None = None
    threads: int = 1
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    droppable_features: frozenset[str] = frozenset()
    parsed_cache_bytes: int = 0
    parsed_cache_folder: str = ""
    collects_statistics: bool = False
    columns: tuple[str, ...] | None = None
    unit_bytes: int = UNIT_BYTES

    def cap_line_bytes(self, max_line_bytes: int) -> int:
        """Returns how long a line or row may be: as allowed, and as there is memory for what becomes of it."""
        return min(max_line_bytes, self.memory_bytes // _LINE_MEMORY_DIVISOR)

    def create_parsed_cache(self) -> ScanCache:
        """Returns an empty cache for parsed records."""
        return ScanCache(self.parsed_cache_bytes, self.parsed_cache_folder)

    def drop_absent_features(
        self, available: Collection[str], description: str
    ) -> tuple[PlanOptions, list[str]]:
        """Returns (the same with a schema that names none of `may_lack` but those that are there, what to note)."""
        if self.schema is None or not (
            absent := [n for n in self.schema.names if n in self.droppable_features - {*available}]
        ):
            return self, []
        present = self.schema.select(name for name in self.schema.names if name not in absent)
        return replace(self, schema=present), [
            f"{name}: not in {description}, so it is left out" for name in absent
        ]


@dataclass(frozen=True)
class TableOptions:
    """Options of CSV, JSON Lines and Parquet alike.

    Attributes:
        columns: Only these, by the files' own names; None is all.
        parse: Columns that are spelled in another way, `price=decimal(",")`: see `sources.values.text_formats`.
        file_columns: Columns that name files, `photo=image`: see `sources.images.file_columns`.
    """

    columns: tuple[str, ...] | None = None
    parse: tuple[str, ...] = ()
    file_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("columns", "parse", "file_columns"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))


MAX_UNIT_FILES = 4096  # so that many tiny files spread over threads too


def pack_units(
    units: Iterable[Unit],
    max_bytes: int,
    max_files: int = MAX_UNIT_FILES,
    *,
    joins_parts: bool = False,
) -> tuple[Unit, ...]:
    """Returns the units in their order, neighbours as one as long as they hold no more than most_bytes and most_files.

    parts: parts of one file are put together too; else they stay, since memory was shared out by their size.
    """
    packed: list[Unit] = []
    for unit in units:
        if (
            packed
            and _can_join(packed[-1], unit, joins_parts)
            and packed[-1].size_bytes + unit.size_bytes <= max_bytes
        ):
            previous = packed[-1]
            rows = None if previous.rows is None or unit.rows is None else previous.rows + unit.rows
            size = previous.size_bytes + unit.size_bytes
            joined = replace(
                previous, end_file=unit.end_file, stop=unit.stop, rows=rows, size_bytes=size
            )
            if joined.end_file - joined.begin_file <= max_files:
                packed[-1] = joined
                continue
        packed.append(unit)
    return tuple(packed)


def pack_file_units(
    sizes: Iterable[int], max_bytes: int, max_files: int = MAX_UNIT_FILES
) -> tuple[Unit, ...]:
    """Returns units of files that are a record each, of these sizes, as `pack_units` puts units of one file together."""
    units: list[Unit] = []
    first = size = 0
    index = -1
    for index, file_bytes in enumerate(sizes):
        if index > first and (size + file_bytes > max_bytes or index - first == max_files):
            units.append(Unit(first, index, rows=index - first, size_bytes=size))
            first, size = index, 0
        size += file_bytes
    return (
        (*units, Unit(first, index + 1, rows=index + 1 - first, size_bytes=size))
        if index >= 0
        else ()
    )


def _can_join(previous: Unit, unit: Unit, joins_parts: bool) -> bool:
    if previous.stop or unit.stop:
        return (
            joins_parts and previous.begin_file == unit.begin_file and previous.stop == unit.start
        )
    return previous.end_file == unit.begin_file
