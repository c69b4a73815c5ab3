"""Records that can't be used: an error, or left out and the batches filled up with the records that come next."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.reader.batches.plan import StepChunk
from recordmill.reader.images.columns import ImageDecoder
from recordmill.reader.prefetch.prefetcher import StepRows, record_location
from recordmill.reader.prefetch.protocols import Fetchable, timed
from recordmill.reader.sampling.schedule import Schedule
from recordmill.schemas.feature import Schema

DecodeStepImages = Callable[[StepChunk], StepChunk]


def image_step(dataset: Fetchable, schema: Schema, decoder: ImageDecoder, on_bad: str) -> DecodeStepImages:
    """A function for the fetcher's threads: a chunk to one with images.

    It raises DataError where an image can't be decoded, with "skip" it leaves that row out.
    """

    def find(chunk: StepChunk) -> StepChunk:
        with timed("images"):
            images, bad = decoder.decode(chunk.rows, schema)
        if not bad:
            return replace(chunk, images=images)
        if on_bad == "error":
            path, place = record_location(dataset.files, dataset.ends, int(chunk.rows.numbers[bad[0][0]]))
            raise DataError(bad[0][1], source=path, place=place)
        return _without(replace(chunk, images=images), bad)

    return find


def _without(chunk: StepChunk, bad: list[tuple[int, str]]) -> StepChunk:
    rows = chunk.rows
    assert rows.positions is not None
    named = tuple((int(rows.numbers[row]), reason) for row, reason in bad)
    good = np.delete(np.arange(len(rows.numbers)), [row for row, _ in bad])
    left = StepRows(
        rows.step_range,
        rows.batch.take(pa.array(good)),
        np.array([0, len(good)], np.int64),
        rows.numbers[good],
        None,
        rows.positions[good],
        rows.bad + named,
    )
    return StepChunk(left, images={name: array[good] for name, array in chunk.images.items()})


class Refill:
    """Batches of what can be used. skipped: how many records were left out so far."""

    def __init__(self, dataset: Fetchable, schedule: Schedule, drop_remainder: bool) -> None:
        self._dataset, self._begin, self._drop = dataset, schedule, drop_remainder
        self.schedule = schedule  # what is left of it after the batch that was given last
        self.skipped = 0
        self._of_epoch: list[tuple[int, str]] = []

    def chunks(self, chunks_read: Iterable[StepChunk]) -> Iterator[StepChunk]:
        """Yields the same rows in batches of one size but for an epoch's last one; a warning at an epoch's end says
        how many were left out.
        """
        pending: list[StepChunk] = []
        for one in chunks_read:
            if pending and pending[0].rows.step_range.epoch != one.rows.step_range.epoch:
                yield from self._ended(pending)
                pending = []
            self._of_epoch += one.rows.bad
            self.skipped += len(one.rows.bad)
            pending = [_joined([*pending, one])]
            size = self._begin.steps.batch_size
            whole = len(pending[0].rows.numbers) // size * size
            if whole:
                yield _cut(pending[0], 0, whole, size)
                pending = [_cut(pending[0], whole, len(pending[0].rows.numbers), size)]
        yield from self._ended(pending)

    def advance(self, rows: StepRows, row_end: int) -> None:
        """Notes that the batch was given that ends with this row."""
        assert rows.positions is not None
        position = int(rows.positions[row_end - 1]) + 1
        self.schedule = replace(self._begin, epoch=rows.step_range.epoch, position=position)

    def end(self) -> None:
        """Notes that nothing is left, also where the last records were left out."""
        self.schedule = self._begin.end()

    def _ended(self, pending: list[StepChunk]) -> Iterator[StepChunk]:
        if pending and len(pending[0].rows.numbers) and not self._drop:
            yield pending[0]
        if pending and self._of_epoch:
            self._tell(pending[0].rows.step_range.epoch)
        self._of_epoch = []

    def _tell(self, epoch: int) -> None:
        number, reason = self._of_epoch[0]
        path, place = record_location(self._dataset.files, self._dataset.ends, number)
        count = len(self._of_epoch)
        warnings.warn(
            f"epoch {epoch}: {count} of {len(self._dataset)} records {'was' if count == 1 else 'were'} skipped "
            f'(on_bad="skip"); the first: {path}: {place}: {reason}',
            stacklevel=2,
        )


def _joined(chunks: list[StepChunk]) -> StepChunk:
    """The rows of these, which are of one epoch, as one."""
    if len(chunks) == 1:
        return chunks[0]
    rows = [one.rows for one in chunks]
    numbers = np.concatenate([one.numbers for one in rows])
    positions = np.concatenate([one.positions for one in rows if one.positions is not None])
    edges = np.array([0, len(numbers)], np.int64)
    batch = pa.concat_batches([one.batch for one in rows])
    images = {name: np.concatenate([one.images[name] for one in chunks]) for name in chunks[0].images}
    return StepChunk(StepRows(rows[0].step_range, batch, edges, numbers, None, positions), images=images)


def _cut(chunk: StepChunk, begin: int, end: int, size: int) -> StepChunk:
    """Rows [begin, end) in steps of so many."""
    rows = chunk.rows
    assert rows.positions is not None
    edges = np.append(np.arange(0, end - begin, size), end - begin).astype(np.int64)
    part = slice(begin, end)
    cut = StepRows(
        rows.step_range, rows.batch.slice(begin, end - begin), edges, rows.numbers[part], None, rows.positions[part]
    )
    return StepChunk(cut, images={name: array[part] for name, array in chunk.images.items()})
