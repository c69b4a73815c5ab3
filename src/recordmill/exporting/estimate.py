"""Estimate of the outputs of a read, for `--dry-run`.

Records are counted from the headers of their frames, so streams are read completely. The size of
the outputs is extrapolated from a few pieces. These are decoded, converted, and written to
temporary files in the output format.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from recordmill.base.errors import UsageError
from recordmill.base.messages import Message, join_messages
from recordmill.base.option_names import option
from recordmill.base.sizes import format_size
from recordmill.exporting.plan import ReadPlan, ReadTask
from recordmill.exporting.records import iter_plan_reads, salvage_reads
from recordmill.records.columns.numpy_arrays import numpy_dtype
from recordmill.records.writers.outputs import WriterSettings, find_output
from recordmill.schemas.feature import Feature
from recordmill.shards.cutting import resolve
from recordmill.shards.loading.decode import Salvaged
from recordmill.shards.pieces import Piece
from recordmill.shards.tfrecord_file import open_tfrecord
from recordmill.storage.files import stat
from recordmill.storage.folders import find_files, scratch_folder

# Number of decoded pieces of 8 MiB. With 32 MiB, the average length of texts and lists is known to
# a few percent.
_MAX_PIECES = 4
# Conversions to larger values divide a piece into many batches. 4 of them are at most 64 MiB.
_MAX_BATCHES_PER_PIECE = 4
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class ColumnEstimate:
    """Type and shape of one output column.

    Attributes:
        feature: The feature of the column.
        dtype: Name of the NumPy dtype, or "bytes" or "str" for a column of Python objects.
        shape: Shape of the column with all rows of all splits. For example, (1000, 28, 28) are
            1,000 images. None for a dimension that differs between rows.
    """

    feature: Feature
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class ReadEstimate:
    """Estimate of the outputs of a read.

    Attributes:
        to: Name of the output format.
        records: Number of rows of each split. It does not include damaged ranges of the files. It
            includes other rejects, because only decoding finds them.
        outputs: Number of output files, or of output folders for some formats.
        columns: The columns.
        disk_bytes: Estimated size of all outputs.
        sampled: Number of rows that were decoded for the estimate.
        memory_bytes: Peak memory of the read without the interpreter.
        notes: Messages for the user.
    """

    to: str
    records: dict[str, int]
    outputs: int
    columns: tuple[ColumnEstimate, ...]
    disk_bytes: int
    sampled: int
    memory_bytes: int
    notes: tuple[str, ...]

    @property
    def rows(self) -> int:
        return sum(self.records.values())

    def to_json(self) -> dict[str, Any]:
        """Returns the estimate in the form that `--json` prints."""
        return {
            "to": self.to,
            "records": self.records,
            "outputs": self.outputs,
            "columns": {
                column.feature.name: {
                    "what": column.feature.describe(),
                    "required": column.feature.required,
                    "dtype": column.dtype,
                    "shape": list(column.shape),
                }
                for column in self.columns
            },
            "disk_bytes": self.disk_bytes,
            "memory_bytes": self.memory_bytes,
            "sampled_rows": self.sampled,
            "notes": list(self.notes),
        }

    def check_memory_fits(self, memory_bytes: int) -> None:
        """Raises UsageError if users of the output would need more memory than is allowed.

        This concerns formats that users can only load completely.
        """
        if find_output(self.to).must_fit_memory and self.disk_bytes > memory_bytes:
            raise UsageError(
                "{to}: the arrays take about {disk_bytes}, more than the {memory_bytes} of "
                "{memory}; use {npy}",
                to=option("to", self.to),
                disk_bytes=format_size(self.disk_bytes),
                memory_bytes=format_size(memory_bytes),
                memory=option("memory"),
                npy=option("to", "npy"),
            )

    def describe(self) -> str:
        """Returns the estimate as readable lines, for `render`."""
        splits = (
            ", ".join(f"{name} {count:,}" for name, count in self.records.items()) or "no records"
        )
        noun = "folder" if find_output(self.to).needs_layout else "output"
        lines = [
            f"{self.rows:,} records ({splits}) would be written to {self.outputs} "
            f"{noun}{'s' if self.outputs != 1 else ''} of {self.to}"
        ]
        width = max((len(column.feature.name) for column in self.columns), default=0)
        for column in self.columns:
            shape = ", ".join("?" if size is None else f"{size:,}" for size in column.shape)
            missing = "" if column.feature.required else ", may be missing"
            lines.append(
                f"  {column.feature.name:{width}}  {column.feature.dtype} [{shape}]{missing}"
            )
        lines.append(
            f"disk: about {format_size(self.disk_bytes)} (estimated from "
            f"{self.sampled:,} records); memory: at most "
            f"{format_size(self.memory_bytes)}"
        )
        notes = [Message("note: {note}", note=note) for note in self.notes]
        return join_messages("\n", [*lines, *notes])


def estimate_read(plan: ReadPlan, memory_bytes: int) -> ReadEstimate:
    """Counts the records of a read, and estimates the size of its outputs.

    If the plan has a filter, the counts are estimates as well.

    Args:
        memory_bytes: Peak memory of the read, which becomes a part of the result.

    Raises:
        DataError: A decoded record is damaged and the plan is not lenient.
    """
    records = {
        split_task.split: _count_task_records(plan, split_task) for split_task in plan.split_tasks
    }
    salvaged = [decoded for piece in _choose_pieces(plan) for decoded in _decode_piece(plan, piece)]
    batches = [batch for decoded in salvaged for batch in decoded.batches]
    sampled = sum(batch.num_rows for batch in batches)
    notes = plan.notes
    if plan.options.has_filter:
        num_decoded = sum(decoded.records for decoded in salvaged)
        limit = plan.options.selection.limit
        # The filter is assumed to keep the same share of all records as of the decoded ones.
        records = {
            split: min(
                round(count * sampled / max(num_decoded, 1)), count if limit is None else limit
            )
            for split, count in records.items()
        }
        notes += (
            f"the numbers of records are estimates: {sampled:,} of {num_decoded:,} "
            "sampled records are kept",
        )
    rows = sum(records.values())
    size = round(_measure_output(plan, batches) * rows / max(sampled, 1))
    columns = tuple(_estimate_column(feature, rows) for feature in plan.schema)
    return ReadEstimate(
        plan.options.output.to,
        records,
        len(plan.tasks),
        columns,
        size,
        sampled,
        memory_bytes,
        notes,
    )


def _measure_output(plan: ReadPlan, batches: Sequence[pa.RecordBatch]) -> int:
    """Writes the batches to temporary files and returns their total size."""
    split = plan.split_tasks[0].split if plan.split_tasks else ""
    with scratch_folder("estimate-") as folder:
        settings = WriterSettings(plan.layout or plan.options.format_options, split)
        writer = plan.options.output_format.new_writer(
            Path(folder, "output"), plan.schema, settings
        )
        for batch in batches:
            writer.write(batch)
        writer.close()
        return sum(stat(file).size_bytes for file in find_files(folder).values())


def _count_task_records(plan: ReadPlan, task: ReadTask) -> int:
    total = sum(_count_piece_records(plan, piece) for piece in task.pieces)
    return total if task.limit is None or plan.options.has_filter else min(total, task.limit)


def _count_piece_records(plan: ReadPlan, piece: Piece) -> int:
    if piece.damage is not None:
        return 0
    return (
        open_tfrecord(plan.files[piece.file], piece.file).records
        if piece.records is None
        else piece.records
    )


def _choose_pieces(plan: ReadPlan) -> Sequence[Piece]:
    """Chooses at most _MAX_PIECES pieces, evenly spaced over all records.

    The first and the last piece are among them.
    """
    candidates = [
        piece
        for split_task in plan.split_tasks
        for piece in split_task.pieces
        if piece.damage is None
    ]
    pieces = [
        list(resolve(plan.files, [candidate], lenient=plan.options.lenient))
        for candidate in _choose_evenly(candidates)
    ]
    if len(candidates) <= _MAX_PIECES:
        return _choose_evenly([piece for resolved in pieces for piece in resolved])
    return [
        resolved[round(index * (len(resolved) - 1) / (_MAX_PIECES - 1))]
        for index, resolved in enumerate(pieces)
    ]


def _choose_evenly(items: Sequence[_Item]) -> Sequence[_Item]:
    if len(items) <= _MAX_PIECES:
        return items
    return [
        items[round(index * (len(items) - 1) / (_MAX_PIECES - 1))] for index in range(_MAX_PIECES)
    ]


def _decode_piece(plan: ReadPlan, piece: Piece) -> Iterator[Salvaged]:
    """Yields decoded and converted batches of a piece, at most _MAX_BATCHES_PER_PIECE.

    If the piece is a stream, only its first batch is decoded.
    """
    first_read = itertools.islice(iter_plan_reads(plan, [piece]), 1)
    return itertools.islice(salvage_reads(plan, first_read, 1), _MAX_BATCHES_PER_PIECE)


def _estimate_column(feature: Feature, rows: int) -> ColumnEstimate:
    dtype = (
        "bytes"
        if feature.dtype == "bytes"
        else "str"
        if feature.dtype == "string"
        else str(numpy_dtype(feature))
    )
    return ColumnEstimate(feature, dtype, (rows, *feature.shape))
