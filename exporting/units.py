"""A `Job` of a read whose finished units are noted:
what an earlier process of the same read finished is kept, the rest is read.

The note of a growing output is written by a thread of its own, behind the reading: its files are flushed while they
already grow on, since the note says where they are to be cut off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from recordmill.base.errors import RecordmillError
from recordmill.base.progress import Progress
from recordmill.exporting.job import KEPT, JobResult, Keeping, output_name, run_job
from recordmill.exporting.jobs import Job
from recordmill.exporting.notes import Note, Notes, grows, read_identity, units_of
from recordmill.exporting.parts import read_parts
from recordmill.exporting.plan import ReadPlan
from recordmill.records.writers.npy import COLUMNS_NAME, NpyWriter
from recordmill.shards.pieces import Piece, Span
from recordmill.shards.rejects import RejectWriter
from recordmill.storage.files import stat, sync_file
from recordmill.storage.folders import exists, make_folder, paths_in, rename


def run_noted(
    plan: ReadPlan,
    job: Job,
    data: Path,
    rejects: Path,
    notes: Notes,
    *,
    threads: int,
    progress: Progress,
    keeping: Keeping = KEPT,
) -> JobResult:
    """As `run_job`, with notes of what is finished; nothing is done again that a note says.

    Raises:
        DataError: a record is damaged and the plan is not lenient.
    """
    if grows(plan.options):
        return _Growing(plan, job, data, rejects, notes).run(threads, progress)
    if notes.of(job):
        return notes.of(job)[0].result(job, plan.options.to, rejects)
    result = run_job(plan, job, data, rejects, to=plan.options.to, threads=threads, progress=progress, keeping=keeping)
    reject_bytes = sum(stat(path).size_bytes for path in result.rejected.files)
    for path in result.rejected.files:
        sync_file(path)
    account = Note(
        result.digest,
        result.read,
        result.written,
        result.filtered,
        result.rejected,
        reject_bytes,
        None,
        read_identity(data / result.output),
        result.notes,
    )
    notes.save(plan, job, 0, job.pieces, account)
    return result


class _Growing:
    """A split's folder of `.npy` files, with a note behind each unit."""

    def __init__(self, plan: ReadPlan, job: Job, data: Path, rejects: Path, notes: Notes) -> None:
        self.plan, self.job, self.notes, self.units = plan, job, notes, units_of(plan, job)
        self.folder, self.rejects = data / output_name(job, plan.options.to), rejects
        self.growing, self.growing_rejects = data / growing_name(job), rejects / growing_name(job)
        self.final_rejects = rejects / f"{job.name}.jsonl"

    def run(self, threads: int, progress: Progress) -> JobResult:
        kept = list(self.notes.of(self.job))
        if kept and exists(self.folder / COLUMNS_NAME) and self._ended(len(kept), kept[-1]):
            return kept[-1].result(self.job, self.plan.options.to, self.rejects)
        writer, reject_writer = self._open(kept)
        last = kept[-1] if kept else Note(identity=read_identity(self.growing))
        try:
            last = self._read(len(kept), last, writer, reject_writer, threads, progress)
            writer.close()
        except BaseException:
            writer.abort()
            raise
        finally:
            reject_writer.close()
        if last.read != last.written + last.rejected.total + last.filtered:
            raise RecordmillError(
                f"{self.folder.name}: {last.read} records were read, which is not what became of them: "
                f"{last}; nothing was kept"
            )
        for path in paths_in(self.growing):
            sync_file(path)
        rename(self.growing, self.folder)
        if last.rejected.total:
            rename(self.growing_rejects, self.final_rejects)
        return last.result(self.job, self.plan.options.to, self.rejects)

    def _open(self, kept: list[Note]) -> tuple[NpyWriter, RejectWriter]:
        """Writers that stand behind the last unit that is kept."""
        most, work = self.plan.most_rejects, self.job.name
        if not kept:
            make_folder(self.growing)
            return NpyWriter(self.growing, self.plan.schema), RejectWriter(self.growing_rejects, most=most, work=work)
        for done, growing in (self.folder, self.growing), (self.final_rejects, self.growing_rejects):
            if exists(done):
                rename(done, growing)
        last = kept[-1]
        return NpyWriter(self.growing, self.plan.schema, last.written, last.lengths), RejectWriter(
            self.growing_rejects, last.rejected, last.reject_bytes, most=most, work=work
        )

    def _read(
        self, first: int, last: Note, writer: NpyWriter, rejects: RejectWriter, threads: int, progress: Progress
    ) -> Note:
        """The units from the first one on; gives the account of the whole job."""
        with ThreadPoolExecutor(1, thread_name_prefix="recordmill-note") as pool:
            saving: Future[None] | None = None
            for unit in range(first, len(self.units)):
                if self._ended(unit, last):
                    break
                last = self._unit(self.units[unit], last, writer, rejects, threads, progress)
                if saving is not None:
                    saving.result()
                saving = pool.submit(self._save, unit, last)
            if saving is not None:
                saving.result()
        return last

    def _unit(
        self,
        pieces: Sequence[Piece | Span],
        last: Note,
        writer: NpyWriter,
        rejects: RejectWriter,
        threads: int,
        progress: Progress,
    ) -> Note:
        read, filtered, seen = last.read, last.filtered, hashlib.sha256()
        for part in read_parts(self.plan, replace(self.job, pieces=pieces, limit=self._left(last)), threads):
            read += part.records
            filtered += part.filtered
            seen.update(part.seen)
            rejects.write(part.rejects)
            progress.advance(records=part.records, rejects=len(part.rejects))
            for batch in part.batches:
                writer.write(batch)
        rejected, size = rejects.mark()
        digest = seen.hexdigest() if self.plan.options.checks_all else ""
        return Note(digest, read, writer.rows, filtered, rejected, size, writer.lengths, last.identity)

    def _save(self, unit: int, note: Note) -> None:
        for name in note.lengths or ():
            sync_file(self.growing / name)
        if note.reject_bytes:
            sync_file(self.growing_rejects)
        self.notes.save(self.plan, self.job, unit, self.units[unit], note)

    def _left(self, last: Note) -> int | None:
        """How many records the job still takes."""
        if self.job.limit is None:
            return None
        return max(self.job.limit - (last.written if self.plan.options.filters else last.read), 0)

    def _ended(self, units: int, last: Note) -> bool:
        """Whether nothing comes behind so many units."""
        return units > 0 and (units == len(self.units) or self._left(last) == 0)


def growing_name(job: Job) -> str:
    """The name of a job's output, and of its rejects, while they grow."""
    return f".{job.name}.growing"
