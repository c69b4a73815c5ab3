"""One `ReadTask` of a read, from its pieces to its output: decode on threads, write in order, account for every record.

The same function runs in this process and on a Beam worker. An output appears under its final name only when it is
whole; a second attempt at the same job replaces it with the same bytes.
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
    """The account of the records of a job: read = written + rejected.total + filtered; its file is JSON of it.

    output: its name in the data folder. notes: for people.
    """

    split: str
    output: str
    read: Count
    written: Count
    rejected: RejectSummary
    filtered: Count = 0
    notes: tuple[str, ...] = ()


class Publication(Protocol):
    """The place for the outputs of a read, and the one step that makes them its result."""

    def on_output(self, path: Path, name: str) -> None:
        """Is told of each output that this machine has made, when it is whole."""
        return

    @property
    def is_complete(self) -> bool:
        """True if the step was taken."""
        return False

    def publish(
        self, summary: Mapping[str, Any], results: Sequence[OutputCounts]
    ) -> tuple[Path | str, tuple[Path | str, ...]]:
        """Take the step; gives where the outputs are then, and the files that list rejects.

        Raises:
            RecordmillError: another read was first.
            OSError: nothing was published, or it can't be known, and nothing was removed.
        """


@dataclass(frozen=True)
class ReadCounts:
    """The account of all records: read = written + rejected + filtered. records: split to rows written."""

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
        """Hold them against the plan and against each other.

        Raises:
            RecordmillError: they do not add up. TooManyRejects: more than the budget allows, or nothing else.
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
        """Returns the summary that is written beside the outputs."""
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
    """The file that says what a result consists of."""
    document = {"format": "recordmill read", "version": 1, **summary}
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode(
        "utf-8", "backslashreplace"
    )


def output_file_name(task: ReadTask, output: Output) -> str:
    """The name of the job's output: a file, or the folder of a split."""
    return output.file_name(task.split if output.per_split else task.name)


def reject_file_name(task: ReadTask) -> str:
    """The name of the file that lists the job's rejects."""
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
    """Read the job's records and write its output into data, its rejects into a file of their own.

    Raises:
        DataError: a record is damaged and the plan is not lenient.
        TooManyRejects: so many records can't be used that the read need not go on.
        RecordmillError: the account does not add up.
    """
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
    """Write all batches to path, under another name until it is whole; gives the writer, which is closed."""
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
