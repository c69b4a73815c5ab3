"""The jobs of a read by whichever worker is free, and their end, for which every file is looked for.

The plan lies in the run's folder, and names travel. An attempt at a job makes files that have names of their own, so
one that was given up, and goes on writing, changes nothing that others read: outputs get their names from the process
that publishes, for the attempts that the engine accounted for.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from recordmill.base.errors import DataError, RecordmillError, Reject
from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.building.spread.place import MADE, SHARED, NotSharedError, Place, Shared, scratch
from recordmill.building.spread.tables import share_table
from recordmill.exporting.job import OutputAccount, output_name, run_job
from recordmill.exporting.jobs import Job
from recordmill.exporting.plan import ReadPlan
from recordmill.records.writers.outputs import find_output
from recordmill.shards.rejects import Rejected
from recordmill.storage.files import give_name, put_if_absent, read_range, stat
from recordmill.storage.folders import fetch_file, join, make_folder, rename

_RESULTS = "results.json"
JOBS_AT_ONCE = 64  # jobs of 512 MiB are about 200 KiB of pieces, or 20 KiB of spans
_LOOKS = 32  # files whose sizes are asked for at once: on a network's disk each is a wait
_NAME = re.compile(r"[0-9a-f]{12}-[^/\x00]+")


@dataclass(frozen=True)
class ReadRun:
    """What a worker needs. to: the jobs' format; threads: per job; at_once: jobs in one process."""

    plan: ReadPlan
    jobs: Sequence[Job]
    to: str
    threads: int
    at_once: int


SharedRun = Shared[ReadRun]


@dataclass(frozen=True)
class MadeFile:
    """A file of an attempt: its name in the folder of these, and its size."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class MadeJob:
    """What an attempt at a job came to: read = written + rejected + filtered. rejects: the file that lists them."""

    number: int
    output: MadeFile
    rejects: MadeFile | None
    read: int
    written: int
    filtered: int
    counts: dict[str, int]
    first: tuple[Reject, ...]
    notes: tuple[str, ...]


def begin(place: Place, run: ReadRun) -> SharedRun:
    """Make the folders that workers write to, and put there what they need; gives that as it travels: the files and the
    jobs are lists that workers read by slice, and the plan has none of the jobs.
    """
    for part in () if place.is_remote else (SHARED, MADE):
        make_folder(place.run(part), exist_ok=True)
    files = share_table(place, "files", tuple, run.plan.files)
    jobs = share_table(place, "jobs", tuple, run.jobs, JOBS_AT_ONCE)
    return place.share("read", replace(run, plan=replace(run.plan, files=files, jobs=(), wholes=()), jobs=jobs))


def make_job(run: SharedRun, number: int, progress: Progress) -> MadeJob:
    """Run a job.

    Raises:
        DataError, TooManyRejects, RecordmillError: as `run_job` does. NotSharedError: this worker doesn't see OUT.
    """
    known, place = run.load(), run.place
    with scratch(place) as folder:
        data, rejects = Path(folder, "data"), Path(folder, "rejects")
        make_folder(data)
        make_folder(rejects)
        job = known.jobs[number]
        result = run_job(
            known.plan, job, data, rejects, output=find_output(known.to), threads=known.threads, progress=progress
        )
        output = _hand_over(place, data / result.output)
        listed = [_hand_over(place, Path(path)) for path in result.rejected.files]
    return MadeJob(
        number,
        output,
        listed[0] if listed else None,
        result.read,
        result.written,
        result.filtered,
        dict(result.rejected.counts),
        result.rejected.first,
        result.notes,
    )


def _hand_over(place: Place, path: Path) -> MadeFile:
    size = stat(str(path)).size_bytes
    return MadeFile(Path(place.hand_over(str(path), MADE)).name, size)


def list_made(run: SharedRun, made: Iterable[MadeJob]) -> int:
    """Put the list of what the engine accounted for where the process that publishes finds it; gives how many they are.

    May be called again, and by several at once: each list names whole files, and the first one stays.
    """
    listed = sorted((asdict(one) for one in made), key=lambda one: int(one["number"]))
    text = json.dumps(listed).encode("utf-8", "backslashreplace")
    try:
        put_if_absent(run.place.run(SHARED, _RESULTS), text)
    except FileNotFoundError:
        raise NotSharedError(run.place.run(SHARED), run.place.out) from None
    return len(listed)


def take(run: SharedRun, data: Path, rejects: Path) -> list[OutputAccount]:
    """The results of all jobs, whose outputs then lie in `data`, and their rejects in `rejects`, under their own names:
    on this machine, whither those in a store are fetched.

    Raises:
        NotSharedError: what a worker says that it has written is not there. RecordmillError: it is there with another
        size, or a job is missing or was accounted for twice. Nothing has got its name then.
    """
    known, place = run.load(), run.place

    def move(file: MadeFile, target: str) -> None:
        (fetch_file if place.is_remote else rename)(place.run(MADE, file.name), target)

    def named(one: MadeJob) -> OutputAccount:
        return _named(one, known, str(data), f"{rejects}/", move)

    return list(thread_map(named, _all_made(run), _LOOKS if place.is_remote else 1))


def place_in_store(run: SharedRun) -> list[OutputAccount]:
    """As `take`, where OUT is in a store: outputs get their names below OUT/data-<id>/, by copies within the store."""
    known, place = run.load(), run.place

    def give(file: MadeFile, target: str) -> None:
        give_name(place.run(MADE, file.name), target, file.size_bytes)

    def named(one: MadeJob) -> OutputAccount:
        return _named(one, known, place.data(), join(place.out, f"rejects/{place.id}."), give)

    return list(thread_map(named, _all_made(run), _LOOKS))


def _all_made(run: SharedRun) -> list[MadeJob]:
    """What the engine accounted for, all of which is there."""
    made, jobs = _listed(run.place), run.load().jobs
    if [one.number for one in made] != list(range(len(jobs))):
        raise RecordmillError(f"{len(made)} results of {len(jobs)} jobs, or not one of each; nothing was kept")
    _look(run.place, [file for one in made for file in (one.output, one.rejects) if file is not None])
    return made


def _named(
    made: MadeJob, run: ReadRun, data: str, rejects: str, move: Callable[[MadeFile, str], None]
) -> OutputAccount:
    """rejects: what their names begin with."""
    job = run.jobs[made.number]
    output = output_name(job, find_output(run.to))
    move(made.output, f"{data}/{output}")
    rejected = Rejected(Counter(made.counts), made.first)
    if made.rejects is not None:
        path = f"{rejects}{job.name}.jsonl"
        move(made.rejects, path)
        rejected = replace(rejected, files=(path,))
    return OutputAccount(job.split, output, made.read, made.written, rejected, made.filtered, made.notes)


def _look(place: Place, wanted: Sequence[MadeFile]) -> None:
    def size(file: MadeFile) -> int | None:
        try:
            return stat(place.run(MADE, file.name)).size_bytes
        except FileNotFoundError:
            return None

    sizes = list(thread_map(size, wanted, _LOOKS))
    missing = [file for file, there in zip(wanted, sizes, strict=True) if there is None]
    if missing:
        path = place.run(MADE, missing[0].name)
        raise NotSharedError(f"{path} ({len(missing)} of {len(wanted)} files)", place.out, "this machine,")
    for file, there in zip(wanted, sizes, strict=True):
        if there != file.size_bytes:
            path = place.run(MADE, file.name)
            raise RecordmillError(f"{path}: {there} bytes, where {file.size_bytes} were written; nothing was kept")


def _listed(place: Place) -> list[MadeJob]:
    path = place.run(SHARED, _RESULTS)
    try:
        text = read_range(path).tobytes()
    except FileNotFoundError:
        raise NotSharedError(path, place.out, "this machine,") from None
    try:
        return [_made(one) for one in json.loads(text)]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DataError("is not what this read has written there", source=path) from None


def _made(one: dict[str, Any]) -> MadeJob:
    given = {**one, "first": tuple(Reject(**reject) for reject in one["first"]), "notes": tuple(one["notes"])}
    rejects = None if one["rejects"] is None else _file(one["rejects"])
    return MadeJob(**{**given, "output": _file(one["output"]), "rejects": rejects})


def _file(one: dict[str, Any]) -> MadeFile:
    file = MadeFile(**one)
    if _NAME.fullmatch(file.name) is None:
        raise ValueError(file.name)
    return file
