"""`Fetchable`, by which the outputs of training (NumPy batches, tf.data, PyTorch) use a data set or a mixture, and the
time that a reader spends, by stage.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.reader.sampling.sampler import Proportions, RecordSubset
from recordmill.records.columns.conversions import Decoding
from recordmill.schemas.feature import Schema
from recordmill.shards.access import FileAccess

STAGES = ("read", "check", "decode", "images", "collate")


class StageClock:
    """Seconds of all threads together, by stage."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._lock = threading.Lock()

    def add(self, stage: str, seconds: float) -> None:
        """Counts what a thread spent on a stage."""
        with self._lock:
            self.seconds[stage] += seconds


_active_clocks: list[StageClock] = []


@contextlib.contextmanager
def measure_stages() -> Iterator[StageClock]:
    """Measures what this process's readers spend within the context."""
    clock = StageClock()
    _active_clocks.append(clock)
    try:
        yield clock
    finally:
        _active_clocks.remove(clock)


@contextlib.contextmanager
def time_stage(stage: str) -> Iterator[None]:
    """Counts the time of the context as that stage."""
    if not _active_clocks:
        yield
        return
    start = time.perf_counter()
    try:
        yield
    finally:
        for clock in tuple(_active_clocks):
            clock.add(stage, time.perf_counter() - start)


class Fetchable(Protocol):
    """Records that are read by number on threads.

    Attributes:
        threads: how many read and decode.
        schema: the features that are read.
        file_records: the records of each file, with those that a predicate leaves out.
        matching: which of all records there are; None: all.
        files: [files] the open files.
        ends: [files] the number of records up to and with each file.
        fingerprint: identity of the data set.
        mixed: what it is mixed of; None: it is one data set.
        zipped: the data sets that have its features; (): it has them itself.
    """

    threads: int
    files: list[FileAccess]

    @property
    def mixture_parts(self) -> MixtureParts | None: ...

    @property
    def zip_parts(self) -> Sequence[Fetchable]: ...

    @property
    def ends(self) -> Int64s: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def schema(self) -> Schema: ...

    @property
    def file_records(self) -> list[int]: ...

    @property
    def record_subset(self) -> RecordSubset | None: ...

    def __len__(self) -> int: ...

    def select(self, columns: Sequence[str]) -> Fetchable:
        """Returns the same records with these features only."""

    def make_decoding(self, schema: Schema) -> Decoding:
        """Returns how payloads become these features of `schema`, under the names that the records have for them."""

    @property
    def images(self) -> Mapping[str, Any]:
        """Encoded images of the data set (`reader.options.images`), by feature, where it was opened so; they are
        tensors in `schema` then.
        """

    @property
    def encoded_view(self) -> Fetchable:
        """Returns the data set with these images as they are stored."""

    @property
    def lenient_view(self) -> Fetchable:
        """Returns the data set in a form in which damaged records are no error but can't be read."""

    def head(self, records: int = 5) -> pa.Table:
        """The first records."""

    def record_batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Records [start, stop) in order as they come."""


@dataclass(frozen=True)
class MixtureParts:
    """Parts of a mixture: data sets whose files follow each other, and the records of an epoch of all of them."""

    datasets: tuple[Fetchable, ...]
    proportions: Proportions
    records: int
