"""How fast batches come, where the time goes, and what to turn: a data set and options in, `Measured` out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.reader.dataset import Dataset
from recordmill.reader.fetching.clock import measuring

_IDLE = 0.6  # of the threads' time: below it they wait for something else than the processor


@dataclass(frozen=True)
class Measured:
    """batches, records, framed_bytes: what came, in so many seconds; first: seconds to the first batch. stages: seconds
    of all threads, by stage. threads: how many there are. waited: seconds in which the consumer waited.
    """

    batches: int
    records: int
    framed_bytes: int
    seconds: float
    first: float
    stages: Mapping[str, float]
    threads: int
    waited: float

    @property
    def busy(self) -> float:
        """The share of the threads' time that the stages account for."""
        return sum(self.stages.values()) / max(self.seconds * self.threads, 1e-9)

    def to_json(self) -> dict[str, Any]:
        """A machine-readable summary."""
        return {
            "batches": self.batches,
            "records": self.records,
            "framed_bytes": self.framed_bytes,
            "seconds": round(self.seconds, 3),
            "first_seconds": round(self.first, 3),
            "stage_seconds": {stage: round(seconds, 3) for stage, seconds in self.stages.items()},
            "waited_seconds": round(self.waited, 3),
            "threads": self.threads,
            "busy": round(self.busy, 3),
            "advice": self.advice(),
        }

    def advice(self) -> str:
        """Which knob to turn."""
        if not self.batches:
            return "there are no batches: the data set is empty, or smaller than a batch"
        stage = max(self.stages, key=lambda name: self.stages[name])
        if self.busy < _IDLE and stage != "read":
            return "the threads wait for each other or for the processor: try fewer --threads, or larger --batch-size"
        return {
            "read": "reading takes the most: --shuffle window reads forwards where global reads single records; other "
            "files' gzip is inflated whole, `recordmill build` makes shards of it that are read in parts; a larger "
            "--memory-bytes reads further ahead",
            "check": "the checksums take the most, and are not to be left out: more --threads, fewer bytes a record",
            "decode": "decoding takes the most: leave features out with --columns, or give more --threads",
            "images": "decoding images takes the most: more --threads, or images that were stored at their size",
            "collate": "making arrays takes the most: pad to less, or keep lists ragged; text costs an object each",
        }[stage]


def measure(dataset: Dataset, seconds: float, **options: Any) -> Measured:
    """Take batches for so long, or for one epoch, and do nothing with them; options: those of `Dataset.batches`.

    Raises:
        UsageError: an option that `batches` has not, or that does not fit.
    """
    if seconds <= 0:
        raise UsageError(f"--seconds {seconds:g}: more than 0")
    framed = sum(file.framed_bytes for file in dataset.files)
    with measuring() as clock:
        begun = time.perf_counter()
        batches = dataset.batches(**options)
        records = count = 0
        first = waited = 0.0
        while time.perf_counter() - begun < seconds:
            asked = time.perf_counter()
            if next(batches, None) is None:
                break
            waited += time.perf_counter() - asked
            first = first or time.perf_counter() - begun
            count += 1
        records = min(count * int(options["batch_size"]), len(dataset))
        batches.close()
        took = time.perf_counter() - begun
    row_bytes = framed / max(sum(dataset.file_records), 1)
    return Measured(count, records, int(row_bytes * records), took, first, dict(clock.seconds), dataset.threads, waited)
