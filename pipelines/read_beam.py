"""A read as a Beam pipeline, for sets of files too big for one machine;
every worker must see the inputs and the output folder.

Parquet and Arrow files are written whole by the workers. What is a folder per split (`.npy` files, which are one per
feature, and the files of `--to files`, whose names must not meet) is written from the workers' Arrow parts by this
process, in order. All of it is byte for byte what threads write.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from recordmill.base.progress import Progress
from recordmill.exporting.job import JobResult, notes_of, output_name, write_output
from recordmill.exporting.plan import ARROW, FILES, FOLDERS, NPY, Job, ReadPlan, shared_out, split_job
from recordmill.pipelines.beam_run import is_local, run_pipeline
from recordmill.shards.rejects import Rejected
from recordmill.shards.run_folder import RunFolder
from recordmill.storage.files import map_file, read_range
from recordmill.storage.folders import remove_file

if TYPE_CHECKING:
    from recordmill.pipelines.read_options import ReadSettings
    from recordmill.transforms.beam_types import Pipeline


def run_on_beam(plan: ReadPlan, settings: ReadSettings, folder: RunFolder, progress: Progress) -> list[JobResult]:
    """Run every job of the plan on the runner that was named; the outputs then lie in folder.data."""
    from recordmill.transforms.beam_types import Create
    from recordmill.transforms.read import ReadJobs, ReadRun

    parts = plan.options.to in FOLDERS
    jobs = (
        tuple(part for job in plan.jobs for part in split_job(job, plan.files, plan.options.file_bytes))
        if parts
        else plan.jobs
    )
    local = is_local(settings.runner)
    plan, at_once = shared_out(plan, len(jobs) if local else 1, settings.threads, settings.memory_bytes)
    run = ReadRun(
        plan=plan,
        jobs=jobs,
        data=str((folder.runs if parts else folder.data).absolute()),
        rejects=str(folder.rejects.absolute()),
        results=str(folder.spool.absolute()),
        to=ARROW if parts else plan.options.to,
        threads=max(1, settings.threads // at_once),
        at_once=at_once,
    )
    path = run.save(folder.path.absolute() / "read_run.pickle")

    def construct(pipeline: Pipeline) -> None:
        numbers = range(len(jobs))
        packs = [tuple(numbers)] if local else [(number,) for number in numbers]
        _ = pipeline | "Packs" >> Create(packs) | "Read" >> ReadJobs(path)

    run_pipeline(construct, settings.runner, settings.beam_args, path, progress)
    results: list[JobResult] = [
        pickle.loads(read_range(str(folder.spool / f"{number:08d}.result")).tobytes()) for number in range(len(jobs))
    ]
    return [_join(plan, job, folder, results) for job in plan.jobs] if parts else results


def _join(plan: ReadPlan, job: Job, folder: RunFolder, results: Sequence[JobResult]) -> JobResult:
    """The folder of one split, from its Arrow parts in order."""
    mine = [result for result in results if result.split == job.split]
    name, to = output_name(job, plan.options.to), FILES if plan.options.to == FILES else NPY
    writer = write_output(
        folder.data / name, _batches([folder.runs / result.output for result in mine]), to, plan, job.split, "join"
    )
    rejected = sum((result.rejected for result in mine), Rejected.zero())
    read, filtered = sum(result.read for result in mine), sum(result.filtered for result in mine)
    return JobResult(job.split, 0, name, read, writer.rows, rejected, filtered, notes_of(writer))


def _batches(paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        reader = pa.ipc.open_file(pa.py_buffer(map_file(str(path))))
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        remove_file(path)
