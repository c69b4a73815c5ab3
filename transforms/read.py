"""The stages of a read as a PTransform: packs of job numbers to the list of what was made, each a function of
`exporting.spread`. What is written lies in files, and names travel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from recordmill.base.progress import progress_of
from recordmill.base.threads import thread_map
from recordmill.exporting.spread.jobs import MadeJob, SharedRun, list_made, make_job
from recordmill.transforms.beam_types import (
    AsIter,
    Create,
    FlatMap,
    Map,
    PCollection,
    PTransform,
    Reshuffle,
)
from recordmill.transforms.spread import count


def alone(number: int) -> tuple[int, ...]:
    """A pack of this one job."""
    return (number,)


def make_pack(numbers: Iterable[int], run: SharedRun) -> Iterator[MadeJob]:
    """The jobs of a pack, as many at once as the run says."""
    progress = progress_of(run.place.run())

    def work(number: int) -> MadeJob:
        try:
            return make_job(run, number, progress)
        except BaseException as error:
            progress.fail(error)
            raise

    for made in thread_map(work, numbers, run.load().at_once):
        account = made.account
        rejected = account.rejected.total
        count(files_written=1, records_read=account.read, records_written=account.written, records_rejected=rejected)
        yield made


def list_all(_: None, made: Iterable[MadeJob], run: SharedRun) -> int:
    """All results, to one list."""
    return list_made(run, made)


@dataclass
class ReadJobs(PTransform):
    """Packs of job numbers, spread over the workers, to files of a run: a PCollection with their number. run: as it
    lies in the run's folder.
    """

    run: SharedRun

    def expand(self, packs: PCollection) -> PCollection:  # tuple[int, ...] -> int
        made = (
            packs
            | "Run" >> FlatMap(make_pack, self.run)
            | "Account" >> Reshuffle()  # from here on the engine knows which attempt counts
        )
        # One element, also of no jobs: with it the list is made once, when all of it is there.
        return packs.pipeline | "Once" >> Create([None]) | "List" >> Map(list_all, AsIter(made), self.run)
