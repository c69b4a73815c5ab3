"""A read as a Beam pipeline, for inputs too large for one machine.

Every worker must be able to read the inputs and to write to the output folder. Workers write
complete files of about `--file-size`, also to a store.

Some formats need all records of a split in one output: `.npy` has one file for each feature, and
`--to files` needs unique names. For these formats, workers write Arrow files, and this process
combines them in order. All outputs have the same bytes as in a read on threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from recordmill.base.progress import Progress
from recordmill.building.workers.shared_files import JobFolder
from recordmill.exporting.plan import ReadPlan, ReadTask, divide_tasks, share_memory
from recordmill.exporting.resume import FinishedOutputs
from recordmill.exporting.task import OutputCounts, output_file_name, write_output
from recordmill.exporting.worker_tasks import (
    FinishedTask,
    ReadRun,
    collect_outputs,
    find_finished_tasks,
    share_read_run,
)
from recordmill.options.calls import is_local
from recordmill.pipelines.beam_run import run_pipeline
from recordmill.records.writers.outputs import Output, find_output
from recordmill.shards.catalog import ShardFile
from recordmill.shards.rejects import RejectSummary
from recordmill.shards.run import RunFolder
from recordmill.storage.files import map_file
from recordmill.storage.folders import absolute_path, join, remove_file

if TYPE_CHECKING:
    from recordmill.pipelines.read_options import ReadSettings
    from recordmill.transforms.beam_types import Pipeline

_WORKER_OUTPUT = "arrow"  # the format of workers if an output consists of a whole split


def run_on_beam(
    plan: ReadPlan,
    settings: ReadSettings,
    folder: RunFolder,
    progress: Progress,
    job_folder: JobFolder,
    finished: FinishedOutputs | None = None,
) -> list[OutputCounts]:
    """Runs the tasks of a plan on a Beam runner.

    Args:
        plan: The plan of the read.
        settings: The checked options.
        folder: The run folder, which receives the outputs. It does not receive outputs that the
            workers write directly to the store of `job_folder`. They do this if the outputs are not
            one per split.
        progress: Receives the counts.
        job_folder: The folder for the files of workers.
        finished: The outputs that an earlier read has finished. None means that this read can't be
            continued later, so workers save nothing for that.

    Returns:
        The counts of each output.

    Raises:
        NotSharedError: A worker can't see the folder, or this process can't see the files of a
            worker.
    """
    from recordmill.transforms.beam_types import Create, Map
    from recordmill.transforms.build_stages import ElementNumbers
    from recordmill.transforms.read_shards import ReadTasks, wrap_number

    # A worker has another working folder, so relative paths would name other files.
    plan = replace(plan, files=tuple(map(_with_absolute_paths, plan.files)))
    per_split = plan.options.output_format.per_split
    tasks, output = _plan_worker_tasks(plan)
    is_local_run = is_local(settings.run.runner)
    # On an engine, each element is one task, which gets all memory of its worker.
    plan, concurrent_tasks = share_memory(
        plan, len(tasks) if is_local_run else 1, settings.threads, settings.run.memory
    )
    threads, finished_tasks = (
        max(1, settings.threads // concurrent_tasks),
        () if finished is None else finished.worker_tasks,
    )
    run = ReadRun(
        plan, tasks, output.name, threads, concurrent_tasks, finished is not None, finished_tasks
    )
    shared = share_read_run(job_folder, run)

    def construct(pipeline: Pipeline) -> None:
        # One element with all tasks keeps them in one process, which runs them on threads.
        if is_local_run:
            task_tuples = pipeline | "All" >> Create([tuple(range(len(tasks)))])
        else:
            task_tuples = (
                pipeline | "Jobs" >> ElementNumbers(len(tasks)) | "Alone" >> Map(wrap_number)
            )
        _ = task_tuples | "Read" >> ReadTasks(shared, progress)

    run_pipeline(
        construct,
        settings.run.runner,
        settings.run.beam_args,
        shared.job_folder.run_path(),
        progress,
        kind="read",
    )
    if job_folder.is_remote and not per_split:
        return collect_outputs(
            shared, job_folder.data_path(), join(job_folder.out, f"rejects/{job_folder.id}.")
        )
    results = collect_outputs(
        shared, str(folder.intermediate if per_split else folder.data), f"{folder.rejects}/"
    )
    return (
        [_combine_outputs(plan, task, folder, results) for task in plan.tasks]
        if per_split
        else results
    )


def _plan_worker_tasks(plan: ReadPlan) -> tuple[Sequence[ReadTask], Output]:
    """Returns (the tasks of workers, the output format that workers write).

    If the plan's format needs all records of a split, they are smaller tasks that write Arrow
    files.
    """
    if plan.options.output_format.per_split:
        return divide_tasks(
            plan.split_tasks, plan.files, plan.options.output.file_size
        ), find_output(_WORKER_OUTPUT)
    return plan.tasks, plan.options.output_format


def find_worker_tasks(
    plan: ReadPlan, folder: RunFolder, job_folder: JobFolder
) -> list[FinishedTask | None]:
    """Returns the tasks that workers of an earlier read have finished.

    Returns:
        One element for each task of workers, None if it is not finished.
    """
    return find_finished_tasks(job_folder, folder, *_plan_worker_tasks(plan))


def _with_absolute_paths(file: ShardFile) -> ShardFile:
    index, members = (path and absolute_path(path) for path in (file.index_path, file.members_path))
    return replace(file, path=absolute_path(file.path), index_path=index, members_path=members)


def _combine_outputs(
    plan: ReadPlan, task: ReadTask, folder: RunFolder, results: Sequence[OutputCounts]
) -> OutputCounts:
    """Combines the Arrow files of one split into its output, in order.

    Args:
        plan: The plan of the read.
        task: The task of the split.
        folder: The run folder.
        results: The counts of all Arrow files.

    Returns:
        The counts of the output.
    """
    split_results = [result for result in results if result.split == task.split]
    output = plan.options.output_format
    name = output_file_name(task, output)
    batches = _iter_batches([folder.intermediate / result.output for result in split_results])
    writer = write_output(folder.data / name, batches, output, plan, task.split, "join")
    rejected = sum((result.rejected for result in split_results), RejectSummary.empty())
    read, filtered = (
        sum(result.read for result in split_results),
        sum(result.filtered for result in split_results),
    )
    return OutputCounts(task.split, name, read, writer.rows, rejected, filtered, writer.notes)


def _iter_batches(paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        reader = pa.ipc.open_file(pa.py_buffer(map_file(str(path))))
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        remove_file(path)
