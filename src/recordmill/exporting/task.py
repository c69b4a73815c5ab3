"""Execution of one `ReadTask`: reads and decodes records, and writes one output.

Records are decoded on several threads and written in order. This process and the workers of an
engine call the same function. An output gets its final name when it is complete. If a task runs
again, its new output replaces the old one and has the same bytes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from recordmill.base.documents import Count
from recordmill.base.errors import RecordmillError
from recordmill.base.progress import Progress
from recordmill.exporting.plan import ReadPlan, ReadTask
from recordmill.exporting.records import read_task_records
from recordmill.records.writers.outputs import Output, OutputWriter, WriterSettings
from recordmill.shards.lengths import compare_length
from recordmill.shards.rejects import RejectBudget, RejectSummary, RejectWriter
from recordmill.storage.files import sync_file
from recordmill.storage.folders import is_folder, list_paths, remove, rename


@dataclass(frozen=True, slots=True)
class OutputCounts:
    """Record counts of one output.

    `read` is always the sum of `written`, `rejected.total` and `filtered`. The counts are saved as
    JSON, so that a killed read can be resumed.

    Attributes:
        split: Name of the split.
        output: Name of the output file or folder in the data folder.
        read: Number of records that were read.
        written: Number of records in the output.
        rejected: The rejects.
        filtered: Number of undamaged records that a filter has left out.
        notes: Messages for the user.
    """

    split: str
    output: str
    read: Count
    written: Count
    rejected: RejectSummary
    filtered: Count = 0
    notes: tuple[str, ...] = ()


class Publication(Protocol):
    """Final location of the outputs of a read.

    The location is on a disk or in a store. Outputs are first collected in a run folder, and
    `publish` then makes them visible.
    """

    def on_output(self, path: Path, name: str) -> None:
        """Receives each output on this machine as soon as it is complete.

        Several threads may call this at once. The default does nothing.

        Args:
            path: Path of the output.
            name: Name of the output in the data folder.
        """
        return

    @property
    def is_complete(self) -> bool:
        """True after `publish` has made the result visible."""
        return False

    def publish(
        self, summary: Mapping[str, Any], results: Sequence[OutputCounts]
    ) -> tuple[Path | str, tuple[Path | str, ...]]:
        """Makes all outputs visible at once, with a summary file and the reject files.

        Args:
            summary: Content of the summary file, see `ReadCounts.summary`.
            results: Record counts of all outputs.

        Returns:
            The folder or URL of the outputs, and the paths or URLs of the reject files.

        Raises:
            RecordmillError: Another read has published its result in the meantime.
            OSError: The result was not published, or it is unknown whether it was. The outputs
                still exist.
        """


@dataclass(frozen=True)
class ReadCounts:
    """Record counts of a complete read.

    `read` is the sum of all written, rejected and filtered records.

    Attributes:
        read: Number of records that were read.
        records: Number of records that were written, by split.
        filtered: Number of undamaged records that a filter has left out.
        rejected: The rejects of all outputs.
    """

    read: int
    records: Mapping[str, int]
    filtered: int
    rejected: RejectSummary

    @classmethod
    def from_outputs(cls, results: Sequence[OutputCounts]) -> ReadCounts:
        """Adds up the counts of all outputs of a read."""
        splits = dict.fromkeys(result.split for result in results)
        return cls(
            sum(result.read for result in results),
            {
                split: sum(result.written for result in results if result.split == split)
                for split in splits
            },
            sum(result.filtered for result in results),
            sum((result.rejected for result in results), RejectSummary.empty()),
        )

    def check(self, plan: ReadPlan, budget: RejectBudget) -> None:
        """Compares the counts with the plan and with each other.

        Args:
            plan: The plan of the read.
            budget: The number of rejects that the user accepts.

        Raises:
            RecordmillError: The counts do not add up, or differ from the plan.
            TooManyRejects: The rejects exceed the budget, or all records were rejected.
        """
        written, rejected = sum(self.records.values()), self.rejected.total
        if plan.records not in (None, self.read) or self.read != written + rejected + self.filtered:
            raise RecordmillError(
                f"{self.read} records were read of {plan.records} planned, {written} written, {rejected} "
                f"rejected, {self.filtered} filtered; nothing was kept"
            )
        self.rejected.check_budget(budget, self.read)
        if rejected:
            self.rejected.check_any_left(self.read)

    @staticmethod
    def compare_stated(plan: ReadPlan, results: Sequence[OutputCounts]) -> list[str]:
        """Compares the number of records in each split with the stated number.

        Returns a note for each split that has another number of records than its files state.
        Splits are compared, because several outputs may share a file.
        """
        if plan.options.selection.limit is not None:
            return []
        notes = []
        for split in dict.fromkeys(file.split for file in plan.files):
            files = [file for file in plan.files if file.split == split]
            stated = [file.stated_records for file in files if file.stated_records is not None]
            read = sum(result.read for result in results if result.split == split)
            problem = compare_length(
                f"split {split!r}", read, sum(stated) if len(stated) == len(files) else None
            )
            notes += [] if problem is None else [str(problem)]
        return notes

    def summary(self, plan: ReadPlan) -> dict[str, Any]:
        """Returns the content of the summary file, without the names of the outputs."""
        return {
            "to": plan.options.output.to,
            "records": dict(self.records),
            "read": self.read,
            "rejected": self.rejected.total,
            "filtered": self.filtered,
            "reject_reasons": dict(sorted(self.rejected.counts.items())),
            "features": {feature.name: feature.describe() for feature in plan.schema},
        }


def format_summary(summary: Mapping[str, Any]) -> bytes:
    """Returns a summary as the bytes of the summary file `_read.json`."""
    document = {"format": "recordmill read", "version": 1, **summary}
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode(
        "utf-8", "backslashreplace"
    )


def output_file_name(task: ReadTask, output: Output) -> str:
    """Returns the name of the output of a task, with its extension.

    For formats with one output per split, the name contains the split only.
    """
    return output.file_name(task.split if output.per_split else task.name)


def reject_file_name(task: ReadTask) -> str:
    """Returns the name of the file with the rejects of a task."""
    return f"{task.name}.jsonl"


def run_task(
    plan: ReadPlan,
    task: ReadTask,
    data: Path,
    rejects: Path,
    *,
    output: Output,
    threads: int,
    progress: Progress,
    on_output: Callable[[Path, str], None] | None = None,
) -> OutputCounts:
    """Runs a task: writes its output, and a reject file if necessary.

    Args:
        data: Folder for the output.
        rejects: Folder for the reject file.
        output: Output format.
        threads: Number of threads that decode records.
        progress: Receives the numbers of records and rejects.
        on_output: Function that receives the path and the name of the finished output, or None.

    Returns:
        The record counts of the output.

    Raises:
        DataError: A record is damaged and the plan is not lenient.
        TooManyRejects: There are more rejects than the read allows.
        RecordmillError: The counts do not add up.
        OSError: The output or the reject file can't be written.
    """
    # An engine may run two attempts at a task at once, so each has its own temporary names.
    attempt = uuid.uuid4().hex
    reject_file = rejects / reject_file_name(task)
    reject_writer = RejectWriter(
        rejects / f".{task.name}.{attempt}.tmp", max_rejects=plan.max_rejects, task_name=task.name
    )
    read = filtered = 0

    def read_batches() -> Iterator[pa.RecordBatch]:
        nonlocal read, filtered
        for part in read_task_records(plan, task, threads):
            read += part.records
            filtered += part.filtered
            reject_writer.write(part.rejects)
            progress.advance(records=part.records, rejects=len(part.rejects))
            yield from part.batches

    name = output_file_name(task, output)
    try:
        writer = write_output(
            data / name, read_batches(), output, plan, task.split, attempt, on_output
        )
    finally:
        rejected = reject_writer.close()
    if rejected.files:
        rename(rejected.files[0], reject_file)
        rejected = replace(rejected, files=(str(reject_file),))
    if read != writer.rows + rejected.total + filtered:
        written = writer.rows
        raise RecordmillError(
            f"{name}: {read} records were read, but {written} written, {rejected.total} rejected and "
            f"{filtered} filtered; nothing was kept"
        )
    return OutputCounts(task.split, name, read, writer.rows, rejected, filtered, writer.notes)


def write_output(
    path: Path,
    batches: Iterable[pa.RecordBatch],
    output: Output,
    plan: ReadPlan,
    split: str,
    attempt: str,
    on_output: Callable[[Path, str], None] | None = None,
) -> OutputWriter:
    """Writes batches to an output, and renames it when it is complete.

    After an error, the incomplete output is removed.

    Args:
        path: Final path of the output. A file or folder that exists there is replaced.
        batches: The records, in order.
        output: Output format.
        plan: The plan, which contains the schema of the batches and the memory limit.
        split: Name of the split.
        attempt: Id of this attempt at the task. It is a part of the temporary name.
        on_output: Function that receives the path and the name of the finished output, or None.

    Returns:
        The writer, which is closed. It contains the number of rows.
    """
    temporary = path.with_name(f".{path.name}.{attempt}.tmp")
    settings = WriterSettings(plan.layout or plan.options.format_options, split, plan.memory_bytes)
    writer = output.new_writer(temporary, plan.schema, settings)
    try:
        for batch in batches:
            writer.write(batch)
        writer.close()
        if not output.is_durable:
            for file in list_paths(temporary) if is_folder(temporary) else [temporary]:
                sync_file(file)
    except BaseException:
        writer.abort()
        remove(temporary, ignore_errors=True)
        raise
    # `rename` replaces a file, but not a folder with files. So such a folder is removed first.
    if is_folder(path):
        remove(path)
    rename(temporary, path)
    if on_output is not None:
        on_output(path, path.name)
    return writer
