"""The jobs of a read by whichever worker is free, and their end, for which every file is looked for.

The plan lies in the run's folder, and names travel. An attempt at a job makes files that have names of their own, so
one that was given up, and goes on writing, changes nothing that others read: outputs get their names from the process
that publishes, for the attempts that the engine accounted for.

Beside its files an attempt leaves its account, so that the same read, when its driver or its job was killed, takes them
for its own.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from recordmill.base.errors import DataError, RecordmillError
from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.building.workers.shared_files import (
    ATTEMPTS_FOLDER,
    SHARED_VALUES_FOLDER,
    JobFolder,
    NotSharedError,
    SharedValue,
    scratch,
)
from recordmill.exporting.plan import ReadPlan, ReadTask
from recordmill.exporting.resume import COUNTS_SUFFIX, are_inputs_unchanged, remove_unfinished
from recordmill.exporting.task import OutputCounts, output_file_name, reject_file_name, run_task
from recordmill.records.writers.outputs import Output, find_output
from recordmill.shards.run import RunFolder
from recordmill.storage.files import (
    is_remote,
    move_to_final,
    put_bytes,
    put_if_absent,
    read_range,
    stat,
)
from recordmill.storage.folders import (
    exists,
    fetch_file,
    join,
    list_names_if_present,
    make_folder,
    rename,
)
from recordmill.storage.json_fields import Count, convert_json, matches, parse_json, read_bounded

_CONCURRENT_REQUESTS = (
    32  # files whose sizes are asked for at once: on a network's disk each is a wait
)
_ATTEMPT_FILE_NAME = r"[0-9a-f]{12}-[^/\x00]+"


@dataclass(frozen=True, slots=True)
class AttemptFile:
    """A file of an attempt: its name in the folder of these, and its size."""

    name: Annotated[str, matches(_ATTEMPT_FILE_NAME, "the name of a file")]
    size_bytes: Count


@dataclass(frozen=True, slots=True)
class FinishedTask:
    """The result of an attempt at a job. rejects: the file that lists them."""

    number: Count
    output: AttemptFile
    rejects: AttemptFile | None
    account: OutputCounts

    @property
    def files(self) -> tuple[AttemptFile, ...]:
        """All that it has written."""
        return (self.output,) if self.rejects is None else (self.output, self.rejects)

    @classmethod
    def from_json(cls, value: Any, source: str, tasks: Sequence[ReadTask]) -> FinishedTask:
        """Raises DataError for what no read writes."""
        task: FinishedTask = convert_json(cls, value, source)
        if task.number >= len(tasks):
            raise DataError(
                f"is {task.number}, not from 0 to {len(tasks) - 1}", source=source, place="number"
            )
        return task


@dataclass(frozen=True)
class ReadRun:
    """The settings of a read that a worker needs. to: what the jobs write; threads: per job; at_once: jobs in one
    process. noted: whether accounts are left. finished: of each job what an earlier attempt has made; empty: nothing.
    results: the name of the list of what is made.
    """

    plan: ReadPlan
    tasks: Sequence[ReadTask]
    output_format: str
    threads: int
    concurrent_tasks: int
    saves_progress: bool = False
    finished_tasks: Sequence[FinishedTask | None] = ()
    results_name: str = "results.json"

    @property
    def output(self) -> Output:
        """The format that the jobs write."""
        return find_output(self.output_format)


SharedReadRun = SharedValue[ReadRun]


def share_read_run(job_folder: JobFolder, run: ReadRun) -> SharedReadRun:
    """Makes the folders that workers write to, and puts there what they need; the plan has none of the jobs."""
    for subfolder in () if job_folder.is_remote else (SHARED_VALUES_FOLDER, ATTEMPTS_FOLDER):
        make_folder(job_folder.run_path(subfolder), exist_ok=True)
    results = f"results-{uuid.uuid4().hex}.json"  # an earlier attempt at the read may have left another list
    plan = replace(
        run.plan,
        files=[file.for_other_hosts() for file in run.plan.files],
        tasks=(),
        split_tasks=(),
    )
    return job_folder.share_value("read", replace(run, plan=plan, results_name=results))


def find_finished_tasks(
    job_folder: JobFolder, run: RunFolder, tasks: Sequence[ReadTask], output: Output
) -> list[FinishedTask | None]:
    """Returns what an earlier attempt at the read has left of each job, by its account. Its files are to be looked for;
    on a disk those that had got their names already, in run, have their attempt's again.
    """
    folder = job_folder.run_path(ATTEMPTS_FOLDER)
    names = [name for name in list_names_if_present(folder) if name.endswith(COUNTS_SUFFIX)]

    def load(name: str) -> FinishedTask | None:
        with contextlib.suppress(OSError, DataError):
            path = join(folder, name)
            return FinishedTask.from_json(parse_json(read_bounded(path), path), path, tasks)
        return None

    finished: list[FinishedTask | None] = [None] * len(tasks)
    for task in thread_map(load, sorted(names), _CONCURRENT_REQUESTS):
        if task is not None:
            finished[task.number] = task
            _move_back(job_folder, run, tasks[task.number], output, task)
    remove_unfinished(run)
    return finished


def _move_back(
    job_folder: JobFolder, run: RunFolder, task: ReadTask, output: Output, finished: FinishedTask
) -> None:
    final_paths = [
        (finished.output, final_path / output_file_name(task, output))
        for final_path in (run.data, run.intermediate)
    ]
    final_paths += (
        [(finished.rejects, run.rejects / reject_file_name(task))]
        if finished.rejects is not None
        else []
    )
    for file, final_path in [] if job_folder.is_remote else final_paths:
        if exists(final_path) and not exists(job_folder.run_path(ATTEMPTS_FOLDER, file.name)):
            rename(final_path, job_folder.run_path(ATTEMPTS_FOLDER, file.name))


def run_shared_task(run: SharedReadRun, number: int, progress: Progress) -> FinishedTask:
    """Run a job, unless an earlier attempt at the read has done so.

    Raises:
        DataError, TooManyRejects, RecordmillError: as `run_task` does. NotSharedError: this worker doesn't see OUT.
    """
    settings, job_folder = run.load(), run.job_folder
    task, finished = (
        settings.tasks[number],
        settings.finished_tasks[number] if settings.finished_tasks else None,
    )
    if finished is not None and not _find_missing(job_folder, finished.files):
        return finished
    with scratch(job_folder) as folder:
        data, rejects = Path(folder, "data"), Path(folder, "rejects")
        make_folder(data)
        make_folder(rejects)
        counts = run_task(
            settings.plan,
            task,
            data,
            rejects,
            output=settings.output,
            threads=settings.threads,
            progress=progress,
        )
        output = _move_to_shared(job_folder, data / counts.output)
        reject_files = [_move_to_shared(job_folder, Path(path)) for path in counts.rejected.files]
    result = FinishedTask(number, output, reject_files[0] if reject_files else None, counts)
    if settings.saves_progress and are_inputs_unchanged(settings.plan, task):
        path = job_folder.run_path(ATTEMPTS_FOLDER, f"{output.name}{COUNTS_SUFFIX}")
        put_bytes(path, json.dumps(asdict(result)).encode())
    return result


def _move_to_shared(job_folder: JobFolder, path: Path) -> AttemptFile:
    size = stat(str(path)).size_bytes
    return AttemptFile(Path(job_folder.move_in(str(path), ATTEMPTS_FOLDER)).name, size)


def write_finished_list(run: SharedReadRun, finished: Iterable[FinishedTask]) -> int:
    """Put the list of what the engine accounted for where the process that publishes finds it; gives how many they are.

    May be called again, and by several at once: each list names whole files, and the first one stays.
    """
    entries = [asdict(task) for task in sorted(finished, key=lambda task: task.number)]
    path = run.job_folder.run_path(SHARED_VALUES_FOLDER, run.load().results_name)
    try:
        put_if_absent(path, json.dumps(entries).encode())
    except FileNotFoundError:
        raise NotSharedError(
            run.job_folder.run_path(SHARED_VALUES_FOLDER), run.job_folder.out
        ) from None
    return len(entries)


def collect_outputs(run: SharedReadRun, data: str, rejects: str) -> list[OutputCounts]:
    """The results of all jobs, whose outputs then lie in `data`, and their rejects where the names begin with
    `rejects`: of this machine, whither those in a store are fetched, or of the store, by copies within it.

    Raises:
        NotSharedError: what a worker says that it has written is not there. RecordmillError: it is there with another
        size, or a job is missing or was accounted for twice. Nothing has got its name then.
    """
    settings, job_folder = run.load(), run.job_folder

    def move(file: AttemptFile, target: str) -> None:
        path = job_folder.run_path(ATTEMPTS_FOLDER, file.name)
        if is_remote(path) and not is_remote(target):
            fetch_file(path, target)
        else:
            move_to_final(path, target, file.size_bytes)

    def move_outputs(finished: FinishedTask) -> OutputCounts:
        task = settings.tasks[finished.number]
        counts = replace(
            finished.account, split=task.split, output=output_file_name(task, settings.output)
        )
        move(finished.output, f"{data}/{counts.output}")
        path = f"{rejects}{reject_file_name(task)}"
        if finished.rejects is not None:
            move(finished.rejects, path)
        # whatever files the account of a worker names
        return replace(
            counts,
            rejected=replace(counts.rejected, files=() if finished.rejects is None else (path,)),
        )

    return list(
        thread_map(
            move_outputs,
            _load_all_finished(run),
            _CONCURRENT_REQUESTS if job_folder.is_remote else 1,
        )
    )


def _load_all_finished(run: SharedReadRun) -> list[FinishedTask]:
    """Returns what the engine accounted for, all of which is there."""
    settings, job_folder = run.load(), run.job_folder
    finished = _load_finished_list(job_folder, settings)
    if [task.number for task in finished] != list(range(len(settings.tasks))):
        raise RecordmillError(
            f"{len(finished)} results of {len(settings.tasks)} jobs, or not one of each; nothing was kept"
        )
    files = [file for task in finished for file in task.files]
    if missing := _find_missing(job_folder, files):
        file, size = missing[0]
        path = job_folder.run_path(ATTEMPTS_FOLDER, file.name)
        if size is None:
            raise NotSharedError(
                f"{path} ({len(missing)} of {len(files)} files)", job_folder.out, "this machine,"
            )
        raise RecordmillError(
            f"{path}: {size} bytes, where {file.size_bytes} were written; nothing was kept"
        )
    return finished


def _find_missing(
    job_folder: JobFolder, files: Sequence[AttemptFile]
) -> list[tuple[AttemptFile, int | None]]:
    """Returns the files that are not there, and then those that have another size, with that."""

    def size(file: AttemptFile) -> int | None:
        try:
            return stat(job_folder.run_path(ATTEMPTS_FOLDER, file.name)).size_bytes
        except FileNotFoundError:
            return None

    sizes = zip(files, thread_map(size, files, _CONCURRENT_REQUESTS), strict=True)
    mismatches = [
        (file, actual_size) for file, actual_size in sizes if actual_size != file.size_bytes
    ]
    return sorted(mismatches, key=lambda mismatch: mismatch[1] is not None)


def _load_finished_list(job_folder: JobFolder, run: ReadRun) -> list[FinishedTask]:
    path = job_folder.run_path(SHARED_VALUES_FOLDER, run.results_name)
    try:
        entries = parse_json(read_range(path).tobytes(), path)
    except FileNotFoundError:
        raise NotSharedError(path, job_folder.out, "this machine,") from None
    except DataError:
        entries = None
    try:
        return [FinishedTask.from_json(entry, path, run.tasks) for entry in entries]
    except (TypeError, DataError):
        raise DataError("is not what this read has written there", source=path) from None
