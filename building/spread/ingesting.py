"""A group of units to runs where all workers find them: what `building.ingest` does, and the account of it, small
enough for any number of them to meet in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from recordmill.base.progress import Progress
from recordmill.building.ingest import Ingested, ingest
from recordmill.building.run_file import Histogram
from recordmill.building.spread.digests import DigestPart, put_digests
from recordmill.building.spread.place import REJECTS, Place, SharedPlan, workbench
from recordmill.building.spread.runs import Runs, hand_over_run, no_runs
from recordmill.shards.rejects import Rejected
from recordmill.shards.sums import add_sums


@dataclass(frozen=True)
class Account:
    """What became of a group: records read = those in `runs` + rejected. sum: of the records in runs. runs: as they are
    listed. digests: of the files that were read whole. counts: as `Ingested` has them.
    """

    group: int
    runs: Runs
    sum: int
    read: int
    rejected: Rejected
    digests: DigestPart | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return int(self.runs["records"].sum())


def ingest_group(plan: SharedPlan, group: int, progress: Progress) -> tuple[Account, Histogram]:
    """Read the units of a group into runs; gives what became of them, and where their keys lie.

    Raises:
        DataError, TooManyRejects: as `ingest` does. NotSharedError: this worker does not see OUT.
    """
    with workbench(plan) as bench:
        ingested, histogram = ingest(bench, group, progress, bench.arena_bytes)
        return handed_over(plan.place, ingested), histogram


def handed_over(place: Place, ingested: Ingested) -> Account:
    """What this worker has written goes to where all workers find it."""
    runs, sums = no_runs(), 0
    for run in ingested.runs:
        sums = add_sums(sums, run.sum)
        runs = np.concatenate([runs, hand_over_run(place, run)])
    files = tuple(place.hand_over(path, REJECTS) for path in ingested.rejected.files)
    rejected = replace(ingested.rejected, files=files)
    digests = put_digests(place, ingested.digests)
    return Account(ingested.group, runs, sums, ingested.read, rejected, digests, ingested.counts)
