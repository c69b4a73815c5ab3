"""Tasks of a read in the workers of an engine.

The plan is in a file of the run folder. Messages contain names only. The files of each attempt have
names of their own, so an attempt that the engine has given up can't change files that others read.
The process that publishes the result assigns final names to the files of the attempts that the
engine has accepted.

Each attempt may save its record counts next to its files. So the same read can use them after its
driver or its job was killed.
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

# Number of files whose sizes are requested at once. On a network disk each request waits.
_CONCURRENT_REQUESTS = 32
_ATTEMPT_FILE_NAME = r"[0-9a-f]{12}-[^/\x00]+"


@dataclass(frozen=True, slots=True)
class AttemptFile:
    """File of an attempt.

    Attributes:
        name: Name in the folder of attempts.
        size_bytes: Size of the file.
    """

    name: Annotated[str, matches(_ATTEMPT_FILE_NAME, "the name of a file")]
    size_bytes: Count


@dataclass(frozen=True, slots=True)
class FinishedTask:
    """Result of an attempt at a task. Saved as JSON.

    Attributes:
        number: Index of the task in the plan.
        output: The output file.
        rejects: The file with the rejects. None without rejects.
        account: Record counts of the output.
    """

    number: Count
    output: AttemptFile
    rejects: AttemptFile | None
    account: OutputCounts

    @property
    def files(self) -> tuple[AttemptFile, ...]:
        """All files of the attempt."""
        return (self.output,) if self.rejects is None else (self.output, self.rejects)

    @classmethod
    def from_json(cls, value: Any, source: str, tasks: Sequence[ReadTask]) -> FinishedTask:
        """Checks parsed JSON and converts it.

        Args:
            value: The parsed JSON.
            source: Path of the file, for error messages.
            tasks: The tasks of the read.

        Raises:
            DataError: The value is invalid.
        """
        task: FinishedTask = convert_json(cls, value, source)
        if task.number >= len(tasks):
            raise DataError(
                f"is {task.number}, not from 0 to {len(tasks) - 1}", source=source, place="number"
            )
        return task


@dataclass(frozen=True)
class ReadRun:
    """Settings of a read that its workers need.

    Attributes:
        plan: The plan, without tasks.
        tasks: The tasks.
        output_format: Output format of the tasks.
        threads: Number of threads per task.
        concurrent_tasks: Number of concurrent tasks per process.
        saves_progress: Each attempt saves its record counts.
        finished_tasks: For each task the result of an earlier attempt, or None. Empty without
            earlier attempts.
        results_name: Name of the list of accepted attempts in the shared folder.
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
        """Output format of the tasks."""
        return find_output(self.output_format)


SharedReadRun = SharedValue[ReadRun]


def share_read_run(job_folder: JobFolder, run: ReadRun) -> SharedReadRun:
    """Creates the folders for the workers and writes the settings of the read there."""
    for subfolder in () if job_folder.is_remote else (SHARED_VALUES_FOLDER, ATTEMPTS_FOLDER):
        make_folder(job_folder.run_path(subfolder), exist_ok=True)
    # An earlier attempt at the read may have left a list with another name.
    results = f"results-{uuid.uuid4().hex}.json"
    # The tasks are in `run`, so the plan does not repeat them.
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
    """Loads the results of earlier attempts at the tasks of this read.

    The caller must check that their files still exist. On a disk, files that already have their
    final names get the names of their attempts back. All other files of `run` are removed.

    Returns:
        The result of each task, or None.
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
    """Runs a task in a worker, unless an earlier attempt has finished it.

    Raises:
        DataError: See `run_task`.
        TooManyRejects: See `run_task`.
        RecordmillError: See `run_task`.
        NotSharedError: This worker does not see the output folder.
    """
    settings, job_folder = run.load(), run.job_folder
    task, finished = (
        settings.tasks[number],
        settings.finished_tasks[number] if settings.finished_tasks else None,
    )
    # The files of an earlier attempt may have been removed since.
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
    # The output of a changed input must not be used by a later read.
    if settings.saves_progress and are_inputs_unchanged(settings.plan, task):
        path = job_folder.run_path(ATTEMPTS_FOLDER, f"{output.name}{COUNTS_SUFFIX}")
        put_bytes(path, json.dumps(asdict(result)).encode())
    return result


def _move_to_shared(job_folder: JobFolder, path: Path) -> AttemptFile:
    size = stat(str(path)).size_bytes
    return AttemptFile(Path(job_folder.move_in(str(path), ATTEMPTS_FOLDER)).name, size)


def write_finished_list(run: SharedReadRun, finished: Iterable[FinishedTask]) -> int:
    """Writes the list of accepted attempts for the process that publishes them.

    The call may be repeated, even by several processes at once. The first list stays. This is safe
    because every list names complete files.

    Returns:
        The number of attempts.

    Raises:
        NotSharedError: This process does not see the output folder.
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
    """Moves the outputs of all tasks to their final names.

    Files in a store are downloaded, or copied within the store if the target is there.

    Args:
        run: The settings of the read.
        data: Folder or URL for the outputs.
        rejects: Prefix of the names of the reject files.

    Returns:
        The record counts of all outputs.

    Raises:
        NotSharedError: A file that a worker has written is not visible here. Nothing was moved.
        RecordmillError: A file has another size, a task is missing, or a task was accepted twice.
            Nothing was moved.
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
        # The paths from the worker are not trusted. Only the moved file is listed.
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
    """Loads the list of accepted attempts and checks that it is complete.

    Each task must have one attempt, and all files must exist.
    """
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
    """Returns the files that are missing, and then the files of another size.

    Returns:
        (file, its actual size). None if it is missing.
    """

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
