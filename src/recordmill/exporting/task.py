"""Runs one `ReadTask`: decodes on threads, writes in order, counts all records.

This process and the workers of an engine call the same function. An output gets its final name when
it is complete. A second attempt at a task replaces it with the same bytes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from recordmill.base.errors import RecordmillError
from recordmill.base.progress import Progress
from recordmill.exporting.plan import ReadPlan, ReadTask
from recordmill.exporting.records import read_task_records
from recordmill.records.writers.outputs import Output, OutputWriter, WriterSettings
from recordmill.shards.rejects import RejectBudget, RejectSummary, RejectWriter
from recordmill.storage.files import sync_file
from recordmill.storage.folders import is_folder, list_paths, remove_file, remove_tree, rename
from recordmill.storage.json_fields import Count


@dataclass(frozen=True, slots=True)
class OutputCounts:
    """Record counts of one output, where read = written + rejected.total + filtered.

    Saved as JSON for resuming a read.

    Attributes:
        split: Name of the split.
        output: Name of the output in the data folder.
        read: Number of records that were read.
        written: Number of records that were written.
        rejected: The rejects.
        filtered: Number of good records that were filtered out.
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
    """Place for the outputs of a read, and the step that publishes them."""

    def on_output(self, path: Path, name: str) -> None:
        """Called with the path and the name of each finished output on this machine."""
        return

    @property
    def is_complete(self) -> bool:
        """True if the result was published."""
        return False

    def publish(
        self, summary: Mapping[str, Any], results: Sequence[OutputCounts]
    ) -> tuple[Path | str, tuple[Path | str, ...]]:
        """Publishes the result in one step.

        Returns:
            The folder of the outputs, and the files that list rejects.

        Raises:
            RecordmillError: Another read was faster.
            OSError: Nothing was published, or this is unknown. Nothing was removed.
        """


@dataclass(frozen=True)
class ReadCounts:
    """Record counts of a read, where read = written + rejected + filtered.

    Attributes:
        read: Number of records that were read.
        records: Number of records that were written, by split.
        filtered: Number of good records that were filtered out.
        rejected: The rejects.
    """

    read: int
    records: Mapping[str, int]
    filtered: int
    rejected: RejectSummary

    @classmethod
    def from_outputs(cls, results: Sequence[OutputCounts]) -> ReadCounts:
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

        Raises:
            RecordmillError: The counts do not add up.
            TooManyRejects: There are more rejects than the limit allows, or there are only rejects.
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

    def summary(self, plan: ReadPlan) -> dict[str, Any]:
        """Returns the summary that is written next to the outputs."""
        return {
            "to": plan.options.to,
            "records": dict(self.records),
            "read": self.read,
            "rejected": self.rejected.total,
            "filtered": self.filtered,
            "reject_reasons": dict(sorted(self.rejected.counts.items())),
            "features": {feature.name: feature.describe() for feature in plan.schema},
        }


def format_summary(summary: Mapping[str, Any]) -> bytes:
    """Returns the content of the summary file of a result."""
    document = {"format": "recordmill read", "version": 1, **summary}
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode(
        "utf-8", "backslashreplace"
    )


def output_file_name(task: ReadTask, output: Output) -> str:
    """Returns the name of the output of a task.

    It is the name of a file, or of the folder of a split.
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
    """Reads the records of a task and writes its output and its rejects.

    Args:
        data: Folder for the output.
        rejects: Folder for the reject file.
        output: Output format.
        threads: Number of threads for decoding.
        progress: Counts the records.
        on_output: See `write_output`.

    Raises:
        DataError: A record is damaged and the plan is not lenient.
        TooManyRejects: The rejects exceed the limit, so the read must fail.
        RecordmillError: The counts do not add up.
    """
    # Attempts at the same task may run at once, so their temporary names differ.
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
    """Writes batches to an output.

    The file or folder gets its final name when it is complete.

    Args:
        path: Path of the output. An earlier attempt is replaced.
        batches: The records.
        output: Output format.
        split: Name of the split.
        attempt: Id of the attempt, part of the temporary name.
        on_output: Called with the path and the name of the finished output.

    Returns:
        The closed writer.
    """
    temporary = path.with_name(f".{path.name}.{attempt}.tmp")
    settings = WriterSettings(plan.layout or plan.options.output_options, split, plan.memory_bytes)
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
        _remove_output(temporary)
        raise
    # A rename replaces a file, but not a folder that is not empty.
    if is_folder(path):
        remove_tree(path)
    rename(temporary, path)
    if on_output is not None:
        on_output(path, path.name)
    return writer


def _remove_output(path: Path) -> None:
    if is_folder(path):
        remove_tree(path, ignore_errors=True)
    else:
        remove_file(path, missing_ok=True)
