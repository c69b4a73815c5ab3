"""Interface between the kinds of input and a build.

The plan of each kind returns a `Source`, which lists its units. A build reads a unit as a sequence
of `Chunk`s. This module also packs small units together, so that all tasks have about the same
amount of work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import to_offsets
from recordmill.base.errors import Reject
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.schemas.feature import Schema
from recordmill.sources.common.scan_cache import ScanCache
from recordmill.storage.file_table import FileTable

# Names of the image feature in builds: of images alone, and of images with boxes of objects.
IMAGE_FEATURES = ("image", "image/encoded")
# 32 MiB: large enough to make the fixed costs of a unit negligible, small enough to balance two
# cores.
UNIT_BYTES = 32 << 20
# 8 MiB: a batch stays in the last-level cache from parsing to encoding.
BATCH_BYTES = 8 << 20
# 65,536 rows: bounds the arrays with one entry per row if the rows are tiny.
BATCH_ROWS = 1 << 16
# 256 files with one record each: opening a file can take milliseconds, and a build reacts to a
# stop only between two batches.
BATCH_FILES = 256
# A line may take an eighth of the memory: it exists up to four times (read, parsed, encoded, in a
# sorted run), on two threads at once.
_LINE_MEMORY_DIVISOR = 8


@dataclass(frozen=True, slots=True)
class Unit:
    """An input unit: the records that one task of a build reads.

    A unit consists of complete files, or of a range of one file.

    Attributes:
        begin_file: Index of the first file in `Source.files`.
        end_file: Index after the last file.
        start: Start of the range in bytes, row groups or batches, depending on the kind of input. 0
            for complete files.
        stop: End of the range, measured like `start`. 0 for complete files.
        first_row: Position of the first record in its file.
        rows: Number of records, including rejects. None if the plan does not know it.
        size_bytes: Approximate size of the records. It determines the memory of the sorted runs.
        first_line: Line number of the first record, for kinds that number lines differently from
            records.
        positions_per_file: Number of positions in the range, or in each file. It exceeds the number
            of records if some positions have no record, such as blank lines. None for a range means
            that it has as many positions as records. None for several files means that the files
            differ, or that the number is unknown.
    """

    begin_file: int
    end_file: int
    start: int = 0
    stop: int = 0
    first_row: int = 0
    rows: int | None = None
    size_bytes: int = 0
    first_line: int = 0
    positions_per_file: int | None = None

    @property
    def num_positions(self) -> int | None:
        """Number of positions in the range, or in each file. None if it is unknown."""
        if self.positions_per_file is None and self.end_file - self.begin_file == 1:
            return self.rows
        return self.positions_per_file


@dataclass(frozen=True)
class Payloads:
    """Serialized records that are not parsed, from a TFRecord input.

    Attributes:
        data: The payloads, one after the other.
        offsets: [rows + 1]. Record i is `data[offsets[i]:offsets[i + 1]]`.
    """

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]  # [rows + 1]

    def take(self, rows: npt.NDArray[np.int64]) -> Payloads:
        """Returns the records at `rows`, which must be ascending."""
        # The offsets of a slice of another array need not start at 0.
        lengths, data = np.diff(self.offsets), self.data[self.offsets[0] : self.offsets[-1]]
        is_selected = np.isin(np.arange(len(lengths)), rows)
        return Payloads(data[np.repeat(is_selected, lengths)], to_offsets(lengths[rows]))


@dataclass(frozen=True)
class Chunk:
    """Consecutive records of a unit, with the rejects among them.

    Attributes:
        records: A RecordBatch with the Arrow schema of the source, or Payloads.
        file_ids: [rows] uint32, indices into `Source.files`.
        positions: [rows] int64, the position of each record in its file: its number among all
            records of the file, including rejects, from 0.
        rejects: The records of this part of the unit that can't be used.
        note_counts: Number of records for each message to the user, such as `JPEG with CMYK`. The
            build adds them up over all chunks.
        pixel_sums: Sums over the pixels of each image, by feature, if a check has decoded the
            images. Each array is [rows, SUMS], see `records.images.pixels`.
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
        """Returns the chunk with only the records at `rows`, which must be ascending.

        All rejects and note counts are kept.
        """
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
    """A planned input: its schema, its units, and how to read them.

    Sources are immutable and can be pickled.
    """

    @property
    def kind(self) -> str:
        """Name of the kind in `sources.registry`, or `memory`."""

    @property
    def schema(self) -> Schema:
        """Features of every record.

        All chunks have the Arrow schema `schemas.arrow.to_arrow(schema)`.
        """

    @property
    def files(self) -> FileTable: ...

    @property
    def units(self) -> Sequence[Unit]:
        """Units in the order of file and position. Together they contain each record once."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages to the user, such as the number of ignored files."""

    @property
    def plan_rejects(self) -> Sequence[Reject]:
        """Rejects that the plan has found, such as a label row without a file."""

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the records of a unit in chunks.

        A chunk has about BATCH_BYTES and at most BATCH_ROWS records. It may contain rejects and no
        record.
        """


@runtime_checkable
class FileRecordSource(Protocol):
    """A source with exactly one record or one reject per file.

    The files can be read in any order. The record of each file has position 0.
    """

    @property
    def is_record_per_file(self) -> bool: ...

    def read_files(self, ordinals: Sequence[int]) -> Iterator[Chunk]:
        """Yields the records of some files, in the order of `ordinals`.

        The chunks have the same form as in `Source.read`. Their rejects are in the order of
        `ordinals`, too.

        Args:
            ordinals: Indices of the files in `Source.files`.
        """


@runtime_checkable
class RecordLocator(Protocol):
    """Optional interface of a Source that knows where its records are in their files."""

    def locate(self, file_ordinal: int, positions: Sequence[int]) -> list[str]:
        """Returns a readable place for each record, such as `line 7`.

        The places have the same form as in rejects. The file may be read again to find them.

        Args:
            file_ordinal: Index of the file in `Source.files`.
            positions: Positions of the records.
        """


@dataclass(frozen=True)
class PlanOptions:
    """Options that the plans of all kinds share.

    Attributes:
        schema: The schema that the user has declared. If None, the plan infers it.
        dtypes: Dtypes that the user has declared, by feature name. They override the inference.
        label: The label column, or None.
        threads: Maximum number of threads of the plan.
        memory_bytes: Memory limit of plan and build, in addition to the interpreter.
        droppable_features: Names of features in `schema` that the plan removes if the inputs lack
            them.
        parsed_cache_bytes: The share of `memory_bytes` for records that the plan has parsed.
        parsed_cache_folder: Folder for files with parsed records. If "", all of them stay in
            memory.
        collects_statistics: Whether the build will compute statistics of the records.
        columns: The columns of CSV and JSON Lines to read, in this order. None means all columns.
        unit_bytes: Approximate size of a unit of a table.
        find_new: Function that returns a mask of the files to read, [files]. Only the plans of
            images and text call it. The other files also determine classes and splits, but yield no
            records and no rejects. If None, all files are read.
        label_classes: Classes of the label in the data set that the records are appended to. They
            are used if no record has a label.
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
    find_new: Callable[[FileTable], npt.NDArray[np.bool_]] | None = None
    label_classes: tuple[str, ...] = ()

    def cap_line_bytes(self, max_line_bytes: int) -> int:
        """Returns `max_line_bytes`, or an eighth of the memory if that is less.

        Memory must have space for several copies of a line or row.

        Args:
            max_line_bytes: The maximum length from the options.
        """
        return min(max_line_bytes, self.memory_bytes // _LINE_MEMORY_DIVISOR)

    def drop_known(
        self, files: FileTable, rejects: Iterable[Reject]
    ) -> tuple[FileTable, tuple[Reject, ...]]:
        """Drops the files that `find_new` does not select, and the rejects of these files.

        Returns:
            (files to read, the other rejects).
        """
        if self.find_new is None:
            return files, tuple(rejects)
        is_new = self.find_new(files)
        known_names = {file.name for file in files.items_at(np.flatnonzero(~is_new).tolist())}
        return files.filter(is_new), tuple(
            reject for reject in rejects if reject.source not in known_names
        )

    def create_parsed_cache(self) -> ScanCache:
        """Creates an empty cache for the records that a plan parses."""
        return ScanCache(self.parsed_cache_bytes, self.parsed_cache_folder)

    def drop_absent_features(
        self, available: Collection[str], description: str
    ) -> tuple[PlanOptions, list[str]]:
        """Removes features from the schema that the inputs lack, if they are droppable.

        Args:
            available: Names of the features that the inputs have.
            description: Name of the inputs for the notes, such as "the images".

        Returns:
            (options with the smaller schema, a note for each removed feature). Without a schema, or
            if nothing is removed: (these options, []).
        """
        if self.schema is None or not (
            absent := [n for n in self.schema.names if n in self.droppable_features - {*available}]
        ):
            return self, []
        present = self.schema.select(name for name in self.schema.names if name not in absent)
        return replace(self, schema=present), [
            f"{name}: not in {description}, so it is left out" for name in absent
        ]


# 4,096 files per unit, so that many tiny files are spread over the threads.
MAX_UNIT_FILES = 4096


def pack_units(
    units: Iterable[Unit],
    max_bytes: int,
    max_files: int = MAX_UNIT_FILES,
    *,
    joins_parts: bool = False,
) -> tuple[Unit, ...]:
    """Joins neighbouring units as long as the result stays within both limits.

    The order of the units does not change. A single unit that exceeds a limit is not changed.

    Args:
        units: Units in the order of file and position.
        max_bytes: Maximum size of a joined unit.
        max_files: Maximum number of files of a joined unit.
        joins_parts: Whether consecutive ranges of one file are joined too. By default they stay
            separate, because their size was chosen to share the memory.
    """
    packed: list[Unit] = []
    for unit in units:
        if (
            packed
            and _can_join(packed[-1], unit, joins_parts)
            and packed[-1].size_bytes + unit.size_bytes <= max_bytes
        ):
            previous = packed[-1]
            # The number of rows of the joined unit is only known if it is known for both.
            rows = None if previous.rows is None or unit.rows is None else previous.rows + unit.rows
            size = previous.size_bytes + unit.size_bytes
            joined = replace(
                previous,
                end_file=unit.end_file,
                stop=unit.stop,
                rows=rows,
                size_bytes=size,
                positions_per_file=_join_positions(previous, unit),
            )
            if joined.end_file - joined.begin_file <= max_files:
                packed[-1] = joined
                continue
        packed.append(unit)
    return tuple(packed)


def list_group_units(ordinal: int, groups: Iterable[tuple[int, int]]) -> Iterator[Unit]:
    """Yields a unit for each group of rows of a file. Empty groups have none.

    Args:
        ordinal: Index of the file.
        groups: (rows, bytes) of each group.
    """
    first_row = 0
    for group, (rows, size) in enumerate(groups):
        if rows:
            yield Unit(
                ordinal,
                ordinal + 1,
                start=group,
                stop=group + 1,
                first_row=first_row,
                rows=rows,
                size_bytes=size,
            )
        first_row += rows


def pack_file_units(
    sizes: Iterable[int], max_bytes: int, max_files: int = MAX_UNIT_FILES
) -> tuple[Unit, ...]:
    """Returns units for files with one record each, packed as by `pack_units`.

    Args:
        sizes: Size of each file in bytes.
        max_bytes: Maximum size of a unit. A larger file is a unit of its own.
        max_files: Maximum number of files of a unit.
    """
    units: list[Unit] = []
    first = size = 0
    index = -1
    for index, file_bytes in enumerate(sizes):
        # A file larger than `max_bytes` still gets a unit, because a unit has at least one file.
        if index > first and (size + file_bytes > max_bytes or index - first == max_files):
            units.append(_file_unit(first, index, size))
            first, size = index, 0
        size += file_bytes
    return (*units, _file_unit(first, index + 1, size)) if index >= 0 else ()


def _file_unit(begin: int, end: int, size_bytes: int) -> Unit:
    return Unit(begin, end, rows=end - begin, size_bytes=size_bytes, positions_per_file=1)


def _join_positions(previous: Unit, unit: Unit) -> int | None:
    """Returns `Unit.positions_per_file` of two joined units."""
    first, second = previous.num_positions, unit.num_positions
    if first is None or second is None:
        return None
    if previous.stop:  # two ranges of one file
        return first + second
    return first if first == second else None


def _can_join(previous: Unit, unit: Unit, joins_parts: bool) -> bool:
    # Only units that cover ranges of a file have a stop.
    if previous.stop or unit.stop:
        return (
            joins_parts and previous.begin_file == unit.begin_file and previous.stop == unit.start
        )
    return previous.end_file == unit.begin_file
