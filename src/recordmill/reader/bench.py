"""Benchmark of reading batches, with advice about the options."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.machine import count_cores
from recordmill.base.messages import Message, join_messages
from recordmill.base.option_names import option
from recordmill.base.stages import measure_stages
from recordmill.reader.batches.source import Batches
from recordmill.reader.dataset import Dataset

# If the stages take less than this share of the time of all threads, the threads mostly wait.
_MIN_BUSY_SHARE = 0.6
BENCH_OUTPUTS = {"numpy": "batches", "tf": "to_tf", "torch": "to_torch"}
_FRAMEWORKS = {"tf": "tensorflow", "torch": "torch"}
_WAIT_ADVICE = {
    "numpy": Message(
        "the threads wait for each other or for the processor: use fewer {threads}, "
        "or a larger {batch_size}",
        threads=option("threads"),
        batch_size=option("batch_size"),
    ),
    "tf": Message(
        "the threads wait for TensorFlow, which slices the batches: use a larger "
        "{batch_size}, or leave out features with {columns}, above all text; "
        "{consumer} measures the reader without TensorFlow",
        batch_size=option("batch_size"),
        columns=option("columns"),
        consumer=option("consumer", "numpy"),
    ),
    "torch": Message(
        "the threads wait for the program, which takes one batch at a time: use a "
        "DataLoader with workers, which takes them in several processes; {consumer} "
        "measures the reader without PyTorch",
        consumer=option("consumer", "numpy"),
    ),
}


@dataclass(frozen=True)
class BenchResult:
    """Result of a benchmark.

    Attributes:
        batches: Number of batches that were taken.
        records: Number of records in these batches.
        framed_bytes: Estimated size of these records in their files.
        seconds: Duration of the measurement.
        first_seconds: Time to the first batch, including the opening of the data set.
        stages: Time that all threads together spent on each stage, in seconds.
        threads: Number of threads of the reader.
        waited_seconds: Time that the consumer waited for batches.
        consumer: The output, one of BENCH_OUTPUTS.
        shuffle: The option `shuffle` of the batches.
        features: Number of features that were decoded.
        has_foreign_compression: True if a file is compressed and has no manifest. Such a file can
            only be decompressed from its start.
    """

    batches: int
    records: int
    framed_bytes: int
    seconds: float
    first_seconds: float
    stages: Mapping[str, float]
    threads: int
    waited_seconds: float
    consumer: str = "numpy"
    shuffle: str | bool = "global"
    features: int = 2
    has_foreign_compression: bool = False

    @property
    def busy_share(self) -> float:
        """Share of the threads' time that the stages took, from 0 to 1."""
        return sum(self.stages.values()) / max(self.seconds * self.threads, 1e-9)

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON values."""
        return {
            "as": self.consumer,
            "batches": self.batches,
            "records": self.records,
            "framed_bytes": self.framed_bytes,
            "seconds": round(self.seconds, 3),
            "first_seconds": round(self.first_seconds, 3),
            "stage_seconds": {stage: round(seconds, 3) for stage, seconds in self.stages.items()},
            "waited_seconds": round(self.waited_seconds, 3),
            "threads": self.threads,
            "busy": round(self.busy_share, 3),
            "advice": self.advice(),
        }

    def advice(self) -> str:
        """Returns a sentence about the slowest stage and the option to change."""
        if not self.batches:
            return "there are no batches: the data set is empty, or smaller than a batch"
        stage = max(self.stages, key=lambda name: self.stages[name])
        if self.busy_share < _MIN_BUSY_SHARE and stage != "read":
            return _WAIT_ADVICE[self.consumer]
        threads = (
            Message("use more {threads}", threads=option("threads"))
            if self.threads < count_cores()
            else "use more cores"
        )
        fewer = (
            Message("leave out features with {columns}, or ", columns=option("columns"))
            if self.features > 1
            else ""
        )
        read = [
            Message(
                "{shuffle} reads long ranges, and global reads single records",
                shuffle=option("shuffle", "window"),
            )
            if self.shuffle == "global"
            else "",
            "these compressed files are decompressed completely; `recordmill build` "
            "makes shards of them, which are read in parts"
            if self.has_foreign_compression
            else "",
            Message(
                "a larger {memory_bytes} reads further ahead", memory_bytes=option("memory_bytes")
            ),
        ]
        advice: dict[str, str] = {
            "read": Message(
                "most time goes into reading: {remedies}",
                remedies=join_messages("; ", filter(None, read)),
            ),
            "check": Message(
                "most time goes into checksums, which can't be turned off: "
                "{threads}, or smaller records",
                threads=threads,
            ),
            "decode": Message(
                "most time goes into decoding: {fewer}{threads}", fewer=fewer, threads=threads
            ),
            "images": Message(
                "most time goes into decoding images: {threads}, or store them at "
                "the size of the training (`recordmill build --resize`)",
                threads=threads,
            ),
            "collate": "most time goes into making arrays: pad to a smaller length, "
            "or keep lists ragged; each text is a Python object",
        }
        return advice[stage]


def import_framework(consumer: str) -> None:
    """Imports the framework of a consumer, before its time is measured.

    A missing framework is ignored here. The output itself reports it.
    """
    if consumer in _FRAMEWORKS:
        with contextlib.suppress(ImportError):
            import_module(_FRAMEWORKS[consumer])


def measure(
    dataset: Dataset,
    max_seconds: float,
    *,
    consumer: str = "numpy",
    open_seconds: float = 0.0,
    **options: Any,
) -> BenchResult:
    """Measures how fast an output of a data set delivers batches.

    Takes batches and discards them, until the time is over or the epoch ends.

    Args:
        dataset: The data set to read.
        max_seconds: Limit of the measurement.
        consumer: The output, one of BENCH_OUTPUTS.
        open_seconds: Time that opening the data set took. It counts as part of the time to the
            first batch.
        **options: Options of `Dataset.batches` that all outputs have. `batch_size` is required.

    Raises:
        UsageError: `max_seconds` is not above 0.
    """
    import_framework(consumer)
    if max_seconds <= 0:
        raise UsageError(
            "{seconds}: must be more than 0", seconds=option("seconds", f"{max_seconds:g}")
        )
    framed_bytes = sum(file.framed_bytes for file in dataset.files)
    # the sizes are read before the clock starts
    with measure_stages() as clock:
        start = time.perf_counter()
        batches: Iterator[Any] = iter(getattr(dataset, BENCH_OUTPUTS[consumer])(**options))
        records = num_batches = 0
        first_seconds = waited_seconds = 0.0
        while time.perf_counter() - start < max_seconds:
            wait_start = time.perf_counter()
            if next(batches, None) is None:
                break
            waited_seconds += time.perf_counter() - wait_start
            first_seconds = first_seconds or open_seconds + time.perf_counter() - start
            num_batches += 1
        # The last batch of an epoch may be shorter.
        records = min(num_batches * int(options["batch_size"]), len(dataset))
        if isinstance(batches, Batches):
            batches.close()
        elapsed = time.perf_counter() - start
    row_bytes = framed_bytes / max(sum(file.records for file in dataset.files), 1)
    has_foreign_compression = dataset.records.catalog.manifest is None and not all(
        file.codec.is_plain for file in dataset.records.catalog.files
    )
    return BenchResult(
        batches=num_batches,
        records=records,
        framed_bytes=int(row_bytes * records),
        seconds=elapsed,
        first_seconds=first_seconds,
        stages=dict(clock.seconds),
        threads=dataset.records.threads,
        waited_seconds=waited_seconds,
        consumer=consumer,
        shuffle=options.get("shuffle", False),
        features=len(dataset.schema),
        has_foreign_compression=has_foreign_compression,
    )
