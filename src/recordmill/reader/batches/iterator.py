"""`Batches`: a `Dataset` as NumPy batches, one iterator that knows where it is."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from recordmill.reader.batches.on_bad import Refill
from recordmill.reader.batches.plan import StepChunk, StepPlan
from recordmill.reader.batches.source import BatchSource
from recordmill.reader.options.training import BATCH_SIZE, Training
from recordmill.reader.prefetch.protocols import Fetchable
from recordmill.reader.sampling.schedule import Schedule, State


class Batches(Iterator[Any]):
    """The batches of a schedule, read ahead on threads. `state()` says where the next one stands.

    Its arrays are views of larger ones, which are there as long as one of them is. `cut` counts the records of each
    packed feature that were longer than a row, of this host, as far as they were read.
    """

    def __init__(self, dataset: Fetchable, options: Training) -> None:
        source = BatchSource.of(dataset, options)
        begin = source.plan(options.batch_size or BATCH_SIZE).at_open_step()
        self._plan = begin.iteration(0, options.order.epochs)
        self._refill = source.refill(self._plan)
        self._step = 0
        self._place: tuple[int, int] | None = None
        self.cut: dict[str, int] = {}
        self._batches = _generate(source, self._plan, self._refill, self.cut)

    def __next__(self) -> Any:
        batch, self._place = next(self._batches)
        self._step += 1
        return batch

    def __len__(self) -> int:
        """Returns how many batches are left.

        Raises:
            TypeError: there is no end, they are packed, or nobody can know.
        """
        if self._refill is not None:
            raise TypeError('how many batches on_bad="skip" leaves is known at the end only')
        left = self._plan.remaining
        if left is None:
            raise TypeError("batches without end (epochs=None) have no number")
        return left - self._step

    @property
    def schedule(self) -> Schedule:
        """Returns the steps that are left."""
        if self._refill is not None:
            return self._refill.schedule
        if self._plan.packs is None:
            return self._plan.after(self._step)
        if self._place is None:
            return self._plan.schedule
        return replace(self._plan.schedule, epoch=self._place[0], position=self._place[1])

    @property
    def skipped(self) -> int:
        """Number of records that `on_bad="skip"` has left out so far, those that were read ahead included."""
        return 0 if self._refill is None else self._refill.skipped

    def state(self) -> State:
        """Returns where the next batch stands, as JSON takes it.

        `ds.batches(..., state=...)` goes on there, also on another number of hosts (in the middle of steps that were
        bucketed together, on the same number). The state of the end begins the next epoch, and so the next iteration.
        """
        return self._plan.state(self.schedule)

    def __reduce__(self) -> Any:
        raise TypeError("batches are not pickled: save their state(), and give it as state= where they go on")

    def close(self) -> None:
        """Stops reading ahead."""
        self._batches.close()


def _generate(
    source: BatchSource, plan: StepPlan, refill: Refill | None, cut: dict[str, int]
) -> Generator[tuple[Any, tuple[int, int] | None], None, None]:
    """Yields each batch, and where the next one stands if its number does not say it."""

    def finish(chunk: StepChunk) -> tuple[list[Any], StepChunk]:
        return [source.collator.assemble(step) for step in source.steps(chunk)], chunk

    for batches, chunk in source.chunks(plan, finish, refill):
        count_cut(chunk.cut, cut)
        ends = chunk.ends or itertools.repeat(None)
        for batch, end, row_end in zip(batches, ends, chunk.rows.edges[1:].tolist(), strict=False):
            if refill is not None:
                refill.advance(chunk.rows, row_end)
            yield batch, end
    if refill is not None:
        refill.end()


def count_cut(more: Mapping[str, int], cut: dict[str, int]) -> None:
    """Adds to the records that were cut, and tells of the first ones."""
    for name, records in more.items():
        if name not in cut:
            warnings.warn(
                f"feature {name!r} has records that are longer than a packed row: they are cut to it, and `cut` of the "
                "iterator counts them",
                stacklevel=3,
            )
        cut[name] = cut.get(name, 0) + records
