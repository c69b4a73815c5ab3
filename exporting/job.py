"""One `Job` of a read, from its pieces to its output: decode on threads, write in order, account for every record.

The same function runs in this process and on a Beam worker. An output appears under its final name only when it is
whole; a second attempt at the same job replaces it with the same bytes.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from recordmill.base.errors import RecordmillError
from recordmill.base.progress import Progress
from recordmill.exporting.jobs import Job
from recordmill.exporting.parts import read_parts
from recordmill.exporting.plan import ARROW, CSV, FILES, FOLDERS, JSONL, PARQUET, ReadPlan
from recordmill.records.writers.arrow import ArrowWriter
from recordmill.records.writers.files import FilesWriter
from recordmill.records.writers.npy import NpyWriter
from recordmill.records.writers.parquet import ParquetWriter
from recordmill.records.writers.text import CsvWriter, JsonWriter
from recordmill.shards.rejects import RejectBudget, Rejected, RejectWriter
from recordmill.storage.files import sync_file
from recordmill.storage.folders import is_folder, make_folder, paths_in, remove_file, remove_tree, rename

GROWING = (PARQUET, ARROW, JSONL, CSV)  # formats of one file, whose writers never change what they have written


class Writer(Protocol):
    """What takes batches to one output."""

    rows: int

    def write(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


@dataclass(frozen=True)
class JobResult:
    """What a job made: output is a name in the data folder; read = written + rejected.total + filtered.
    notes: for people. digest: of what was read, where all of it was checked, else "".
    """

    split: str
    index: int
    output: str
    read: int
    written: int
    rejected: Rejected
    filtered: int = 0
    notes: tuple[str, ...] = ()
    digest: str = ""


def _nobody(path: Path, name: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Keeping:
    """What becomes of outputs. is_durable: they are to outlast a loss of power. follow: gives the context within which
    an output of GROWING, of that name, is written to a path of its own.
    """

    is_durable: bool = True
    follow: Callable[[Path, str], AbstractContextManager[None]] = _nobody


KEPT = Keeping()


@dataclass(frozen=True)
class Accounts:
    """What became of the records: read = written + rejected + filtered. records: split to rows written."""

    read: int
    records: Mapping[str, int]
    filtered: int
    rejected: Rejected

    @classmethod
    def of(cls, results: Sequence[JobResult]) -> Accounts:
        splits = dict.fromkeys(result.split for result in results)
        return cls(
            sum(result.read for result in results),
            {split: sum(result.written for result in results if result.split == split) for split in splits},
            sum(result.filtered for result in results),
            sum((result.rejected for result in results), Rejected.zero()),
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
        self.rejected.check(budget, self.read)
        if rejected:
            self.rejected.check_some_left(self.read)

    def summary(self, plan: ReadPlan) -> dict[str, Any]:
        """What is written beside the outputs."""
        return {
            "to": plan.options.to,
            "records": dict(self.records),
            "read": self.read,
            "rejected": self.rejected.total,
            "filtered": self.filtered,
            "reject_reasons": dict(sorted(self.rejected.counts.items())),
            "features": {feature.name: feature.describe() for feature in plan.schema},
        }


def output_name(job: Job, to: str) -> str:
    """The name of the job's output: a file, or the folder of a split."""
    return job.split if to in FOLDERS else f"{job.name}.{to}"


def open_writer(path: Path, to: str, plan: ReadPlan, split: str) -> Writer:
    """A writer of that format to a path that is not there yet."""
    schema = plan.schema
    if to == PARQUET:
        return ParquetWriter(path, schema, plan.options.parquet)
    if to == ARROW:
        return ArrowWriter(path, schema)
    if to == JSONL:
        return JsonWriter(path, schema)
    if to == CSV:
        return CsvWriter(path, schema)
    if to == FILES:
        assert plan.layout is not None
        return FilesWriter(path, schema, plan.layout, split)
    make_folder(path)
    return NpyWriter(path, schema)


def run_job(
    plan: ReadPlan,
    job: Job,
    data: Path,
    rejects: Path,
    *,
    to: str,
    threads: int,
    progress: Progress,
    keeping: Keeping = KEPT,
) -> JobResult:
    """Read the job's records and write its output of format `to` into data, its rejects into a file of their own.

    Raises:
        DataError: a record is damaged and the plan is not lenient.
        TooManyRejects: so many records can't be used that the read need not go on.
        RecordmillError: the account does not add up.
    """
    attempt = uuid.uuid4().hex
    reject_file = rejects / f"{job.name}.jsonl"
    reject_writer = RejectWriter(rejects / f".{job.name}.{attempt}.tmp", most=plan.most_rejects, work=job.name)
    read = filtered = 0
    seen = hashlib.sha256()

    def good() -> Iterator[pa.RecordBatch]:
        nonlocal read, filtered
        for part in read_parts(plan, job, threads):
            read += part.records
            filtered += part.filtered
            seen.update(part.seen)
            reject_writer.write(part.rejects)
            progress.advance(records=part.records, rejects=len(part.rejects))
            yield from part.batches

    name = output_name(job, to)
    try:
        writer = write_output(data / name, good(), to, plan, job.split, attempt, keeping)
    finally:
        rejected = reject_writer.close()
    if rejected.files:
        rename(rejected.files[0], reject_file)
        rejected = Rejected(rejected.counts, rejected.first, (str(reject_file),))
    if read != writer.rows + rejected.total + filtered:
        written = writer.rows
        raise RecordmillError(
            f"{name}: {read} records were read, but {written} written, {rejected.total} rejected and "
            f"{filtered} filtered; nothing was kept"
        )
    digest = seen.hexdigest() if plan.options.checks_all else ""
    return JobResult(job.split, job.index, name, read, writer.rows, rejected, filtered, notes_of(writer), digest)


def write_output(
    path: Path,
    batches: Iterable[pa.RecordBatch],
    to: str,
    plan: ReadPlan,
    split: str,
    attempt: str,
    keeping: Keeping = KEPT,
) -> Writer:
    """Write all batches to path, under another name until it is whole; gives the writer, which is closed."""
    temporary = path.with_name(f".{path.name}.{attempt}.tmp")
    writer = open_writer(temporary, to, plan, split)
    try:
        with keeping.follow(temporary, path.name) if to in GROWING else nullcontext():
            for batch in batches:
                writer.write(batch)
            writer.close()
        if keeping.is_durable and to != FILES:  # a writer of many files has done it for all of them
            for written in paths_in(temporary) if is_folder(temporary) else [temporary]:
                sync_file(written)
    except BaseException:
        writer.abort()
        _remove(temporary)
        raise
    if is_folder(path):
        remove_tree(path)
    rename(temporary, path)
    return writer


def notes_of(writer: Writer) -> tuple[str, ...]:
    """What it has to say of the records that it wrote."""
    return writer.notes if isinstance(writer, FilesWriter) else ()


def _remove(path: Path) -> None:
    if is_folder(path):
        remove_tree(path, ignore_errors=True)
    else:
        remove_file(path, missing_ok=True)
