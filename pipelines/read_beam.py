"""A read as a Beam pipeline, for sets of files too big for one machine;
every worker must see the inputs and the output folder.

Files of about --file-size are written whole by the workers, into a store, too. An output of a whole split (`.npy`
files, which are one per feature, and the files of `--to files`, whose names must not meet) is written from the workers'
Arrow parts by this process, in order. All of it is byte for byte what threads write.
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
from recordmill.options.option import is_local
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

_PART_OUTPUT = "arrow"  # what workers write where an output is made of a whole split


def run_on_beam(
    plan: ReadPlan,
    settings: ReadSettings,
    folder: RunFolder,
    progress: Progress,
    job_folder: JobFolder,
    finished: FinishedOutputs | None = None,
) -> list[OutputCounts]:
    """Run every job of the plan on the runner that was named; the outputs then lie in folder.data, or, where workers
    write files into a store, in its data folder there (`writes_to_store`). job_folder: where workers have their files.
    finished: what earlier ones have left; None: nobody is to leave accounts.

    Raises:
        NotSharedError: a worker doesn't see the folder, or this process doesn't see what a worker has written there.
    """
    from recordmill.transforms.beam_types import Create, Map
    from recordmill.transforms.build_stages import ElementNumbers
    from recordmill.transforms.read_shards import ReadTasks, wrap_number

    # workers have working folders of their own
    plan = replace(plan, files=tuple(map(_with_absolute_paths, plan.files)))
    parts = plan.options.output.per_split
    tasks, output = _worker_tasks(plan)
    local = is_local(settings.runner)
    plan, at_once = share_memory(
        plan, len(tasks) if local else 1, settings.threads, settings.memory_bytes
    )
    threads, finished_tasks = (
        max(1, settings.threads // at_once),
        () if finished is None else finished.worker_tasks,
    )
    run = ReadRun(plan, tasks, output.name, threads, at_once, finished is not None, finished_tasks)
    shared = share_read_run(job_folder, run)

    def construct(pipeline: Pipeline) -> None:
        if local:
            packs = pipeline | "All" >> Create([tuple(range(len(tasks)))])
        else:
            packs = pipeline | "Jobs" >> ElementNumbers(len(tasks)) | "Alone" >> Map(wrap_number)
        _ = packs | "Read" >> ReadTasks(shared)

    run_pipeline(
        construct,
        settings.runner,
        settings.beam_args,
        shared.job_folder.run_path(),
        progress,
        kind="read",
    )
    if writes_to_store(plan, job_folder):
        return collect_outputs(
            shared, job_folder.data_path(), join(job_folder.out, f"rejects/{job_folder.id}.")
        )
    results = collect_outputs(
        shared, str(folder.intermediate if parts else folder.data), f"{folder.rejects}/"
    )
    return [_join_parts(plan, job, folder, results) for job in plan.tasks] if parts else results


def _worker_tasks(plan: ReadPlan) -> tuple[Sequence[ReadTask], Output]:
    """(what workers do, what they write)."""
    if plan.options.output.per_split:
        return divide_tasks(plan.split_tasks, plan.files, plan.options.file_bytes), find_output(
            _PART_OUTPUT
        )
    return plan.tasks, plan.options.output


def find_worker_tasks(
    plan: ReadPlan, folder: RunFolder, job_folder: JobFolder
) -> list[FinishedTask | None]:
    """Returns what an earlier attempt at the read has left of each job of workers."""
    return find_finished_tasks(job_folder, folder, *_worker_tasks(plan))


def writes_to_store(plan: ReadPlan, job_folder: JobFolder) -> bool:
    """Returns whether workers write the outputs into the store, and this process none of their bytes."""
    return job_folder.is_remote and not plan.options.output.per_split


def _with_absolute_paths(file: ShardFile) -> ShardFile:
    index, members = (path and absolute_path(path) for path in (file.index_path, file.members_path))
    return replace(file, path=absolute_path(file.path), index_path=index, members_path=members)


def _join_parts(
    plan: ReadPlan, job: ReadTask, folder: RunFolder, results: Sequence[OutputCounts]
) -> OutputCounts:
    """The folder of one split, from its Arrow parts in order."""
    mine = [result for result in results if result.split == job.split]
    output = plan.options.output
    name = output_file_name(job, output)
    batches = _batches([folder.intermediate / result.output for result in mine])
    writer = write_output(folder.data / name, batches, output, plan, job.split, "join")
    rejected = sum((result.rejected for result in mine), RejectSummary.empty())
    read, filtered = sum(result.read for result in mine), sum(result.filtered for result in mine)
    return OutputCounts(job.split, name, read, writer.rows, rejected, filtered, writer.notes)


def _batches(paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        reader = pa.ipc.open_file(pa.py_buffer(map_file(str(path))))
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        remove_file(path)
