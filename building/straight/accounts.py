"""What is counted while stripes are read: records, their sum, rejects with their files, digests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from recordmill.base.errors import Reject
from recordmill.base.progress import Progress
from recordmill.base.siphash import U64
from recordmill.building.ingest import Ingested
from recordmill.building.plan import BuildPlan
from recordmill.building.run_file import Run
from recordmill.building.straight.in_order import Ready
from recordmill.records.tfrecord.frames import FRAME_BYTES, Frames
from recordmill.shards.rejects import Rejected, RejectWriter
from recordmill.shards.sums import add_sums, record_sum


class Accounts:
    """Adds up stripes as they are read."""

    def __init__(self, plan: BuildPlan, progress: Progress) -> None:
        self._plan, self._progress = plan, progress
        self._rejects: list[tuple[int, Reject]] = []  # (ordinal of the file, why); the budget bounds them
        self._lost: Counter[int] = Counter()  # by split
        self._read, self._records, self._bytes, self._sum = 0, 0, 0, 0
        self._digests: dict[int, str] = {}
        self._counts: Counter[str] = Counter()

    def take(self, ready: Ready) -> Iterator[tuple[int, Frames, U64]]:
        """Count a stripe, and give its pieces on.

        Raises:
            TooManyRejects: so many that the build need not go on. Cancelled: the user stopped it.
        """
        self._read += len(ready.stripe.ordinals)
        self._digests.update(ready.digests)
        self._counts.update(ready.counts)
        if ready.rejects:
            self._rejects += ready.rejects
            self._lost[ready.stripe.split] += len(ready.rejects)
            if self._plan.most_rejects is not None:
                self._rejected().check_so_far(self._plan.most_rejects)
        for frames, keys in ready.pieces:
            self._records += len(frames)
            self._bytes += int(np.sum(frames.lengths)) + FRAME_BYTES * len(frames)
            self._sum = add_sums(self._sum, record_sum(keys, frames.crcs))
            self._progress.advance(len(frames))
            yield ready.stripe.split, frames, keys
        self._progress.advance(0, len(ready.rejects))

    def rejects_by_split(self) -> Counter[int]:
        """How many files of each split are rejects."""
        return self._lost

    def ingested(self) -> Ingested:
        """The accounts as any other build has them; the rejects are listed in the order of their files."""
        writer = RejectWriter(Path(self._plan.folder, "rejects", "files.jsonl"))
        writer.write(reject for _, reject in sorted(self._rejects, key=lambda one: one[0]))
        run = Run("", self._records, self._bytes, 0, 0, self._sum)
        return Ingested(0, (run,), self._read, writer.close(), self._digests, self._counts)

    def _rejected(self) -> Rejected:
        counts = Counter(reject.reason for _, reject in self._rejects)
        return Rejected(counts, tuple(reject for _, reject in self._rejects[:5]))
