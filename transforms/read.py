"""The stage of a read as a PTransform: packs of job numbers to what each job made.
It calls `exporting.job.run_job` and nothing else.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from recordmill.base.progress import progress_of
from recordmill.base.threads import thread_map
from recordmill.exporting.job import JobResult, run_job
from recordmill.exporting.plan import Job, ReadPlan
from recordmill.storage.files import atomic_write, read_range, write_all
from recordmill.transforms.beam_types import FlatMap, PCollection, PTransform, Reshuffle


@dataclass(frozen=True)
class ReadRun:
    """What a worker needs: the plan, its jobs, and where outputs and rejects go; to: the jobs' format;
    threads: per job; at_once: jobs.
    """

    plan: ReadPlan
    jobs: tuple[Job, ...]
    data: str
    rejects: str
    results: str
    to: str
    threads: int
    at_once: int

    def save(self, path: Path) -> str:
        """Pickle it where every worker can read it; gives the path, by which progress is found too."""
        with atomic_write(path) as file:
            write_all(file, pickle.dumps(self))
        return str(path)


@lru_cache(1)
def load_run(path: str) -> ReadRun:
    """The run that was saved there; only recordmill writes that file, in the run's own folder."""
    loaded: ReadRun = pickle.loads(read_range(path).tobytes())
    return loaded


def run_pack(numbers: Iterable[int], path: str) -> Iterator[JobResult]:
    """Run the jobs of a pack; each leaves its result beside the outputs,
    where the process that commits finds it on every runner.
    """
    run = load_run(path)
    progress = progress_of(path)

    def work(number: int) -> JobResult:
        job = run.jobs[number]
        try:
            result = run_job(
                run.plan, job, Path(run.data), Path(run.rejects), to=run.to, threads=run.threads, progress=progress
            )
        except BaseException as error:
            progress.fail(error)
            raise
        with atomic_write(Path(run.results, f"{number:08d}.result")) as file:
            write_all(file, pickle.dumps(result))
        return result

    yield from thread_map(work, numbers, run.at_once)


@dataclass
class ReadJobs(PTransform):
    """Packs of job numbers to JobResults. path: of the saved ReadRun."""

    path: str

    def expand(self, packs: PCollection) -> PCollection:
        return packs | "Spread" >> Reshuffle() | "Run" >> FlatMap(run_pack, self.path)
