"""Going on with a read that was killed: its run folder, if it was the same read, becomes that of this one, with every
unit that still holds.

A unit holds if the digest of its input is what it was, its output is there as it was, and so are all units before it
that grew into the same files. What else the folder holds is removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from recordmill.base.errors import RecordmillError
from recordmill.base.threads import thread_map
from recordmill.exporting.job import output_name
from recordmill.exporting.jobs import Job
from recordmill.exporting.notes import (
    NOTES,
    Note,
    Notes,
    digest_inputs,
    fingerprint,
    fingerprint_of,
    grows,
    is_noted,
    note_name,
    noted_in,
    read_identity,
    units_of,
)
from recordmill.exporting.plan import ReadPlan
from recordmill.exporting.units import growing_name
from recordmill.shards.manifest import RUN_PREFIX
from recordmill.shards.run_folder import RunFolder
from recordmill.storage.files import stat
from recordmill.storage.folders import exists, is_link, paths_in
from recordmill.storage.removal import Folder


def is_resumable(run: Path) -> bool:
    """Whether a run folder is that of a read that has finished something."""
    return fingerprint_of(run) is not None and bool(noted_in(run))


def may_go_on(out: Path) -> bool:
    """Whether a read into OUT was stopped, and has finished something."""
    return any(map(is_resumable, paths_in(out, f"{RUN_PREFIX}*")))


def go_on(folder: RunFolder, plan: ReadPlan, threads: int, *, noted: bool = True) -> tuple[RunFolder, Notes | None]:
    """The run folder of a dead read of the same plan, where there is one, else `folder`; and the notes that stand, None
    if the read is too small for them.

    Dead reads of other plans are removed. noted: False for a read that can neither write notes nor go on.
    """
    mark = fingerprint(plan) if noted and is_noted(plan) else None
    taken = _take(folder.out, mark)
    if mark is None:
        return folder, None
    if taken is None:
        return folder, Notes.begin(folder.path, mark)
    try:
        notes = _checked(taken, plan, threads)
    except BaseException:
        taken.release()  # what is finished there stays
        raise
    folder.close()
    return taken, notes


def keep_finished(folder: RunFolder) -> int:
    """Leave the run folder of a read that ends early where it is, if it has finished something;
    gives how many units that is.
    """
    count = len(noted_in(folder.path)) if is_resumable(folder.path) else 0
    if count:
        folder.release()
    return count


def _take(out: Path, mark: str | None) -> RunFolder | None:
    """The dead read with that fingerprint that has come farthest, locked; all other dead ones are removed."""
    found: RunFolder | None = None
    for run in sorted(
        filter(is_resumable, paths_in(out, f"{RUN_PREFIX}*")),
        key=lambda run: (-len(noted_in(run)), run),
    ):
        taken = RunFolder.take_over(run)
        if taken is None:  # it is at work
            continue
        if found is None and mark is not None and fingerprint_of(run) == mark and taken.is_sound:
            found = taken
        else:
            taken.close()
    return found


def _checked(run: RunFolder, plan: ReadPlan, threads: int) -> Notes:
    """The notes that hold; everything that they do not speak of is removed,
    the notes of what is to be done again first.
    """
    notes = Notes(run.path / NOTES)
    found = [(job, unit, note) for job in plan.jobs for unit, note in enumerate(_found(run, plan, job, notes))]

    def holds(item: tuple[Job, int, Note]) -> bool:
        job, unit, note = item
        with contextlib.suppress(OSError, RecordmillError):
            return digest_inputs(plan, units_of(plan, job)[unit]) == note.digest
        return False

    finished: dict[str, list[Note]] = {}
    for (job, unit, note), good in zip(found, thread_map(holds, found, threads), strict=True):
        if good and len(finished.setdefault(job.name, [])) == unit:
            finished[job.name].append(note)
    result = replace(notes, finished={name: tuple(kept) for name, kept in finished.items() if kept})
    _clean(run, plan, result)
    return result


def _found(run: RunFolder, plan: ReadPlan, job: Job, notes: Notes) -> Iterator[Note]:
    """The notes of the job's first units whose output is there."""
    for unit in range(len(units_of(plan, job))):
        note = notes.load(job, unit)
        if note is None or not _is_there(run, plan, job, note):
            return
        yield note


def _is_there(run: RunFolder, plan: ReadPlan, job: Job, note: Note) -> bool:
    """Whether what the note speaks of is there as it was, or more of it if it grows."""
    output, rejects = run.data / output_name(job, plan.options.to), run.rejects / f"{job.name}.jsonl"
    growing = grows(plan.options)
    if growing and not exists(output):
        output = run.data / growing_name(job)
    if growing and not exists(rejects):
        rejects = run.rejects / growing_name(job)
    if is_link(output) or is_link(rejects):
        return False
    with contextlib.suppress(OSError):
        size = stat(str(rejects)).size_bytes if note.reject_bytes else 0
        whole = all(exists(output / name) for name in note.lengths or ())
        return (
            whole
            and read_identity(output) == note.identity
            and (size >= note.reject_bytes if growing else size == note.reject_bytes)
        )
    return False


def _clean(run: RunFolder, plan: ReadPlan, notes: Notes) -> None:
    """Remove all but what the notes speak of; the other notes go first,
    so that none is left that speaks of what is gone.
    """
    kept = [job for job in plan.jobs if notes.of(job)]
    wanted = {
        notes.path: {note_name(job, unit) for job in kept for unit in range(len(notes.of(job)))},
        run.data: {*(output_name(job, plan.options.to) for job in kept), *map(growing_name, kept)},
        run.rejects: {f"{job.name}.jsonl" for job in kept} | set(map(growing_name, kept)),
        run.runs: set[str](),
        run.spool: set[str](),
    }
    with Folder.open(run.path) as above:
        for path, names in wanted.items():
            with above.enter(path.name) as folder:
                for name in folder.names():
                    if name not in names:
                        folder.remove(name)
