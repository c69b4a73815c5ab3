"""Execution of read tasks by the workers of an engine.

The plan is in a file of the run folder, which all workers see. An engine may run several attempts
at the same task. Each attempt writes files with names of its own, so it never changes the files of
another one. Finally the engine accepts one attempt for each task. The process that publishes the
result moves the files of these attempts to their final names.

An attempt may also save its record counts next to its output. If the engine or its job is killed, a
later read with the same plan can use the output.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from recordmill.base.documents import Count, matches
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
from recordmill.storage.json_fields import MAX_JSON_BYTES, convert_json, parse_json

# Number of requests to a store or network disk at the same time. Each thread only waits.
_CONCURRENT_REQUESTS = 32
_ATTEMPT_FILE_NAME = r"[0-9a-f]{12}-[^/\x00]+"


@dataclass(frozen=True, slots=True)
class AttemptFile:
    """A file that an attempt has written.

    Attributes:
        name: Name of the file in the folder of all attempts.
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
        rejects: The reject file. None if there are no rejects.
        account: Number of records read, written, rejected and filtered out.
    """

    number: Count
    output: AttemptFile
    rejects: AttemptFile | None
    account: OutputCounts

    @property
    def files(self) -> tuple[AttemptFile, ...]:
        """The output file and, if it exists, the reject file."""
        return (self.output,) if self.rejects is None else (self.output, self.rejects)

    @classmethod
    def from_json(cls, value: Any, source: str, tasks: Sequence[ReadTask]) -> FinishedTask:
        """Converts parsed JSON and checks it.

        Args:
            value: The parsed JSON.
            source: Path of the JSON file, for messages.
            tasks: The tasks of the read.

        Raises:
            DataError: The value is not the JSON of a `FinishedTask`, or no task has its number.
        """
        task: FinishedTask = convert_json(cls, value, source)
        if task.number >= len(tasks):
            raise DataError(
                f"is {task.number}, not from 0 to {len(tasks) - 1}", source=source, place="number"
            )
        return task


@dataclass(frozen=True)
class ReadRun:
    """Everything that workers need to know about a read.

    Attributes:
        plan: The plan, without its tasks.
        tasks: The tasks for the workers.
        output_format: Name of the format that the workers write.
        threads: Number of threads that decode the records of a task.
        concurrent_tasks: Number of tasks that a worker runs at the same time.
        saves_progress: True if the record counts of each attempt are saved.
        finished_tasks: For each task, the result of an earlier read that was killed, or None. Empty
            if there was no such read.
        results_name: Name of the file that lists the accepted attempts.
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
        """The format that the workers write."""
        return find_output(self.output_format)


SharedReadRun = SharedValue[ReadRun]


def share_read_run(job_folder: JobFolder, run: ReadRun) -> SharedReadRun:
    """Writes the settings of a read to the run folder, for its workers.

    Also creates the folders that workers write to.

    Args:
        job_folder: The run folder, as workers see it.
        run: The settings.

    Returns:
        A reference to the written settings, small enough for the messages of an engine.
    """
    for subfolder in () if job_folder.is_remote else (SHARED_VALUES_FOLDER, ATTEMPTS_FOLDER):
        make_folder(job_folder.run_path(subfolder), exist_ok=True)
    # A resumed run folder may contain the list of the killed read, so each list has its own name.
    results = f"results-{uuid.uuid4().hex}.json"
    # The tasks are a field of `run`, so the plan does not contain them again.
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
    """Loads the results that workers of a killed read have saved.

    The killed read may have moved a file of a result to its final name. The file then gets its old
    name in the run folder again. All other files of the run are removed. The function does not
    check that the files of a result still exist.

    Args:
        job_folder: The run folder, as workers see it.
        run: The run folder on this machine.
        tasks: The tasks for the workers.
        output: The format that the workers write.

    Returns:
        For each task, its result or None.
    """
    folder = job_folder.run_path(ATTEMPTS_FOLDER)
    names = [name for name in list_names_if_present(folder) if name.endswith(COUNTS_SUFFIX)]

    def load(name: str) -> FinishedTask | None:
        with contextlib.suppress(OSError, DataError):
            path = join(folder, name)
            return FinishedTask.from_json(
                parse_json(read_range(path, max_bytes=MAX_JSON_BYTES).tobytes(), path), path, tasks
            )
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
    """Renames files of a finished task from their final names to their attempt names.

    Does nothing in a store, where files are copied and not renamed.
    """
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
    """Runs a task in a worker, unless an earlier read has finished it.

    Args:
        run: The settings of the read.
        number: Index of the task.
        progress: Receives the numbers of records and rejects.

    Raises:
        NotSharedError: This worker does not see the run folder.
        RecordmillError: The task failed. See `run_task` for the subclasses.
    """
    settings, job_folder = run.load(), run.job_folder
    task, finished = (
        settings.tasks[number],
        settings.finished_tasks[number] if settings.finished_tasks else None,
    )
    # The files of an earlier read may have been removed since its results were loaded.
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
    # If an input has changed since the plan, a later read must not use this output.
    if settings.saves_progress and are_inputs_unchanged(settings.plan, task):
        path = job_folder.run_path(ATTEMPTS_FOLDER, f"{output.name}{COUNTS_SUFFIX}")
        put_bytes(path, json.dumps(asdict(result)).encode())
    return result


def _move_to_shared(job_folder: JobFolder, path: Path) -> AttemptFile:
    """Moves a file to the folder of all attempts, under a new unique name."""
    size = stat(str(path)).size_bytes
    return AttemptFile(Path(job_folder.move_in(str(path), ATTEMPTS_FOLDER)).name, size)


def write_finished_list(run: SharedReadRun, finished: Iterable[FinishedTask]) -> int:
    """Writes the list of the attempts that the engine has accepted.

    The call may be repeated, even by several processes at once. Then the list from the first call
    is kept. This is safe because the files in each list are complete.

    Args:
        run: The settings of the read.
        finished: The accepted attempts, one for each task.

    Returns:
        The number of attempts.

    Raises:
        NotSharedError: This process does not see the run folder.
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
    """Moves the files of all accepted attempts to their final names.

    If the attempts are in a store, files are copied within the store, or downloaded if the target
    is on this machine.

    Args:
        run: The settings of the read.
        data: Folder or URL for the outputs.
        rejects: Prefix of the paths or URLs of the reject files. The name of each file is appended.

    Returns:
        The record counts of all outputs, in the order of the tasks.

    Raises:
        NotSharedError: This machine does not see a file that a worker has written. Nothing was
            moved.
        RecordmillError: A file has another size than the worker has written, or some task does not
            have exactly one attempt. Nothing was moved.
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
        # A path in the counts of a worker is not trusted. The path of the moved file replaces it.
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
    """Loads the list of accepted attempts, and checks that all their files exist.

    Raises:
        NotSharedError: A file is not visible here.
        RecordmillError: A file has another size than the worker has written, or some task does not
            have exactly one attempt.
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
    """Returns the files that are missing or have another size.

    Returns:
        (file, its actual size or None if it is missing). Missing files come first.
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
    """Loads the list of accepted attempts.

    Raises:
        NotSharedError: The list is not visible here.
        DataError: The list is damaged.
    """
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
        raise DataError("was changed after this read had written it", source=path) from None
