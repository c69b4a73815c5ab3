"""Reads data sets, or other TFRecord files, in Beam pipelines.

`ReadShards` is for users' own pipelines. `ReadTasks` contains the stages of `recordmill read` on an
engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from recordmill.base.arguments import suggest_fields
from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.exporting.plan import ReadOptions, ReadPlan, plan_read
from recordmill.exporting.records import read_task_records
from recordmill.exporting.worker_tasks import (
    FinishedTask,
    SharedReadRun,
    run_shared_task,
    write_finished_list,
)
from recordmill.options.read import ReadOutput, ReadSelection
from recordmill.schemas.feature import Schema
from recordmill.storage.files import parse_input_path, parse_input_paths
from recordmill.storage.folders import absolute_path, exists
from recordmill.transforms import beam_types
from recordmill.transforms.beam_types import (
    Create,
    FlatMap,
    Map,
    PCollection,
    PTransform,
    Reshuffle,
)
from recordmill.transforms.build_stages import increment_counters


def wrap_number(task_number: int) -> tuple[int, ...]:
    """Returns a tuple that contains only the number of this task."""
    return (task_number,)


def read_task_pack(
    task_numbers: Iterable[int], run: SharedReadRun, progress: Progress
) -> Iterator[FinishedTask]:
    """Runs several tasks of a read, and yields their results.

    The plan of the run determines how many tasks run at once.

    Args:
        task_numbers: The tasks.
        run: The handle of the run.
        progress: Receives the counts, and the error if a task fails.
    """

    def run_task(number: int) -> FinishedTask:
        try:
            return run_shared_task(run, number, progress)
        except BaseException as error:
            progress.fail(error)
            raise

    with run.job_folder.work():
        for finished in thread_map(run_task, task_numbers, run.load().concurrent_tasks):
            account = finished.account
            rejected = account.rejected.total
            increment_counters(
                files_written=1,
                records_read=account.read,
                records_written=account.written,
                records_rejected=rejected,
            )
            yield finished


def list_finished_tasks(_: None, finished_tasks: Iterable[FinishedTask], run: SharedReadRun) -> int:
    """Writes the list of all finished tasks, and returns their number."""
    run.job_folder.begin_step()
    return write_finished_list(run, finished_tasks)


@dataclass
class ReadTasks(PTransform):
    """Runs the tasks of a read, and outputs the number of files.

    The input elements are tuples of task numbers. The output is a single element.

    Attributes:
        run: The handle of the run.
        progress: The progress of the read.
    """

    run: SharedReadRun
    progress: Progress

    def expand(self, packs: PCollection) -> PCollection:  # tuple[int, ...] -> int
        finished = (
            packs
            | "Run" >> FlatMap(read_task_pack, self.run, self.progress)
            # From here on, the engine knows which attempt it has accepted.
            | "Account" >> Reshuffle()
        )
        # A single element, even without tasks. So the list is written once, when all results are
        # there.
        return (
            packs.pipeline
            | "Once" >> Create([None])
            | "List" >> Map(list_finished_tasks, beam_types.AsIter(finished), self.run)
        )


# 64 MiB of uncompressed shards per task, so that the work can be distributed evenly.
TASK_BYTES = 64 << 20


@suggest_fields
@beam_types.with_type_hints(input_type=None, output_type=pa.RecordBatch)
@dataclass
class ReadShards(PTransform):
    """Reads records as RecordBatches, with one column for each feature.

    The batches have no order, as usual in PCollections. A value that a record lacks is null. No
    file is opened while the graph is constructed. When the pipeline runs, a missing input, feature
    or split raises UsageError. A damaged record raises DataError with its file and number.

    Args:
        inputs: The output of a build, or files, folders, globs or `@list.txt`. They are on a disk
            that all workers see, or in a store (`s3://...`).
        columns: The features to read, in this order. None means all features.
        split: The split to read. None means all splits.
        schema: The schema of files that have none. If None, it is inferred when the pipeline runs.
    """

    inputs: str | Sequence[str]
    columns: Sequence[str] | None = None
    split: str | None = None
    schema: Schema | None = None

    def __post_init__(self) -> None:
        self.inputs = [_make_absolute(path) for path in parse_input_paths(self.inputs)]

    def expand(self, pipeline: Any) -> PCollection:  # Pipeline -> RecordBatch
        plan: PCollection = (
            pipeline
            | "Inputs" >> Create([self])
            | "Plan" >> Map(plan_inputs)
            | "Keep" >> Reshuffle()
        )
        parts = plan | "Parts" >> FlatMap(list_task_numbers) | "Spread" >> Reshuffle()
        return parts | "Read" >> FlatMap(
            read_task_batches, beam_types.AsSingleton(plan)
        ).with_output_types(pa.RecordBatch)


def _make_absolute(text: str) -> str:
    """Returns an input path that is valid on all workers.

    Workers have other working folders, so a local path becomes absolute.
    """
    path = parse_input_path(text)
    if path[:1] == "@" and not exists(path):
        return f"@{_make_absolute(path[1:])}"
    return absolute_path(path)


def plan_inputs(request: ReadShards) -> ReadPlan:
    """Plans a read: files, schema and tasks."""
    columns = None if request.columns is None else tuple(request.columns)
    options = ReadOptions(
        output=ReadOutput(to="arrow", file_size=TASK_BYTES),
        selection=ReadSelection(columns=columns, split=request.split),
    )
    return plan_read(request.inputs, options, schema=request.schema)


def list_task_numbers(plan: ReadPlan) -> Iterator[int]:
    """Yields the number of each task."""
    yield from range(len(plan.tasks))


def read_task_batches(task_number: int, plan: ReadPlan) -> Iterator[pa.RecordBatch]:
    """Yields the records of a task as RecordBatches."""
    for part in read_task_records(plan, plan.tasks[task_number], threads=1):
        increment_counters(records_read=part.records)
        yield from part.batches
