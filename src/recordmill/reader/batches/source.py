"""`BatchSource`: a data set and the options of training, to the chunks of steps that all outputs make their batches of,
read, decoded and with images on threads ahead of the consumer.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import drop_reusable
from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.base.threads import close_at_exit
from recordmill.reader.batches.collate import Batch, Collator, fill_missing, padded_row_bytes
from recordmill.reader.batches.plan import StepChunk, StepPlan, plan_steps
from recordmill.reader.images.columns import ImageDecoder, images_by_feature
from recordmill.reader.options.collation import Bucketed, Packed
from recordmill.reader.options.images import Images
from recordmill.reader.options.training import BATCH_SIZE, Training
from recordmill.reader.prefetch.prefetcher import Fetcher, StepRows, record_location
from recordmill.reader.prefetch.protocols import Fetchable, timed
from recordmill.reader.sampling.schedule import Schedule, State
from recordmill.schemas.feature import Schema

DecodeStepImages = Callable[[StepChunk], StepChunk]


def image_step(
    dataset: Fetchable, schema: Schema, decoder: ImageDecoder, on_bad: str
) -> DecodeStepImages:
    """A function for the fetcher's threads: a chunk to one with images.

    It raises DataError where an image can't be decoded, with "skip" it leaves that row out.
    """

    def find(chunk: StepChunk) -> StepChunk:
        with timed("images"):
            images, batch, bad = decoder.decode(chunk.rows, schema)
        chunk = replace(chunk, rows=replace(chunk.rows, batch=batch), images=images)
        if not bad:
            return chunk
        if on_bad == "error":
            row, name, reason = bad[0]
            own = next((part for part in dataset.zip_parts if name in part.schema), dataset)
            path, place = record_location(own.files, own.ends, int(chunk.rows.numbers[row]))
            raise DataError(reason, source=path, place=place)
        return _without(chunk, [(row, reason) for row, _, reason in bad])

    return find


def _without(chunk: StepChunk, bad: list[tuple[int, str]]) -> StepChunk:
    rows = chunk.rows
    named = tuple((int(rows.numbers[row]), reason) for row, reason in bad)
    good = np.delete(np.arange(len(rows.numbers)), [row for row, _ in bad])
    left = chunk.chosen(good, np.array([0, len(good)], np.int64))
    return replace(left, rows=replace(left.rows, bad=rows.bad + named))


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
            size = self._begin.epoch_steps.batch_size
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
        self.schedule = self._begin.skip_all()

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
    images = {
        name: np.concatenate([one.images[name] for one in chunks]) for name in chunks[0].images
    }
    return StepChunk(
        StepRows(rows[0].step_range, batch, edges, numbers, None, positions), images=images
    )


def _cut(chunk: StepChunk, begin: int, end: int, size: int) -> StepChunk:
    """Rows [begin, end) in steps of so many."""
    edges = np.append(np.arange(0, end - begin, size), end - begin).astype(np.int64)
    return chunk.chosen(slice(begin, end), edges)


_Result = TypeVar("_Result")


@dataclass(frozen=True)
class BatchSource:
    """Source of batches.

    Attributes:
        dataset: with its images as they are stored.
        images: what becomes of those that are decoded.
        schema: what is fetched; in it a record without the label is an error.
        defaults: of images, the encoded one that stands for one that is missing.
    """

    dataset: Fetchable
    options: Training
    collator: Collator
    images: Mapping[str, Images]
    schema: Schema
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, dataset: Fetchable, options: Training) -> BatchSource:
        """Creates the source of batches of a data set.

        Raises:
            UsageError: an option does not fit the data.
        """
        wanted = options.images.targets
        if options.memory.on_bad == "skip":
            dataset = dataset.lenient_view
        if dataset.images:
            dataset, wanted = dataset.encoded_view, dataset.images if wanted is None else wanted
        if options.form.matrix is not None:
            beside = (options.form.label_of(dataset.schema), options.form.weights)
            dataset = dataset.select([*options.form.matrix, *filter(None, beside)])
        defaults = options.graph.defaults
        collator = Collator.of(options.form, dataset.schema, options.order.pad_remainder, defaults)
        images = images_by_feature(dataset, wanted)
        gathered = [
            name for name, how in collator.collations.items() if isinstance(how, Bucketed | Packed)
        ]
        if images and gathered and isinstance(collator.collations[gathered[0]], Packed):
            raise UsageError(
                f"decode_images has no meaning where {gathered[0]!r} is packed: leave one of them out"
            )
        if options.memory.on_bad == "skip" and gathered:
            raise UsageError(
                f'on_bad="skip" fills batches up with the records that come next, and {gathered[0]!r} as '
                f"{collator.collations[gathered[0]]} gathers them otherwise: leave one of them out"
            )
        return cls(dataset, options, collator, images, collator.required(dataset.schema), {})

    @property
    def skips(self) -> bool:
        """True if records that can't be used are left out."""
        return self.options.memory.on_bad == "skip"

    def plan(self, batch_size: int) -> StepPlan:
        """The steps of this host, without end.

        Raises:
            UsageError: an option does not fit the data, or a state is one of something else.
        """
        order = self.options.order
        if self.skips:  # records that fill no step may fill one up
            order = replace(order, drop_remainder=False)
        return plan_steps(self.dataset, batch_size, order, self.collator.collations)

    def refill(self, plan: StepPlan) -> Refill | None:
        """Returns what fills batches up, where records are left out."""
        return (
            Refill(self.dataset, plan.schedule, self.options.order.drop_remainder)
            if self.skips
            else None
        )

    @close_at_exit
    def chunks(
        self,
        plan: StepPlan,
        finish: Callable[[StepChunk], _Result],
        refill: Refill | None = None,
        *,
        workers: int = 1,
        skip_below: int = 0,
    ) -> Iterator[_Result]:
        """Yields finish(chunk) of all chunks, in order.

        Args:
            plan: the steps.
            finish: the conversion.
            refill: fills batches up where records are left out.
            workers: how many processes share memory, and the steps where records are left out.
            skip_below: where records are left out, those of the first epoch below this position are too.

        Raises:
            DataError: a record is damaged, does not fit the schema, or holds an image that can't be decoded.
        """
        dataset, order = self.dataset, self.options.order
        memory_bytes = max(self.options.memory.limit_bytes // workers, 1)
        decoder = ImageDecoder(
            self.images, dataset.threads, order.seed, memory_bytes, self.defaults
        )
        offset_bytes = sum(file.offset_bytes for file in dataset.files)
        left_bytes = max(memory_bytes - decoder.work_bytes - offset_bytes, 1)
        made_bytes = decoder.row_bytes + padded_row_bytes(dataset, self.collator.collations)
        fetcher = Fetcher(
            dataset, plan.schedule, self.schema, left_bytes, made_bytes, refill is not None
        )
        decoded = image_step(dataset, self.schema, decoder, self.options.memory.on_bad)
        try:
            if refill is None:
                yield from plan.chunks(fetcher, lambda chunk: finish(decoded(chunk)))
            else:
                fetcher = replace(fetcher, every=workers, skip_below=skip_below)
                yield from map(
                    finish, refill.chunks(fetcher.fetch(lambda rows: decoded(StepChunk(rows))))
                )
        finally:
            decoder.close()
            drop_reusable()

    def steps(self, chunk: StepChunk, *, nulls: bool = True) -> list[Batch]:
        """Columns by name of each step, collated. nulls: columns may have some; else `name/valid` says where."""
        with timed("collate"):
            columns = self.collator.columns(chunk, self.schema, self.dataset)
            if not nulls:
                columns = fill_missing(columns, self.schema, self.collator.collations)
            return self.collator.steps(columns, chunk)

    def mapped(self, batch: Any) -> Any:
        """Returns what `map` makes of a batch, or that it failed."""
        function = self.options.form.map
        try:
            return batch if function is None else function(batch)
        except Exception as error:
            return _Failed(error)


@dataclass(frozen=True)
class _Failed:
    """A batch that `map` failed for, until it is asked for."""

    error: Exception


def unfailed(batch: Any, number: int) -> Any:
    """Returns the batch.

    Raises:
        RecordmillError: `map` failed for it.
    """
    if isinstance(batch, _Failed):
        error = batch.error
        raise RecordmillError(
            f"map: batch {number} of this iteration: {type(error).__name__}: {error}"
        ) from error
    return batch


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
        batch, place = next(self._batches)
        batch = unfailed(batch, self._step)
        self._step, self._place = self._step + 1, place
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
        raise TypeError(
            "batches are not pickled: save their state(), and give it as state= where they go on"
        )

    def close(self) -> None:
        """Stops reading ahead."""
        self._batches.close()


def _generate(
    source: BatchSource, plan: StepPlan, refill: Refill | None, cut: dict[str, int]
) -> Generator[tuple[Any, tuple[int, int] | None], None, None]:
    """Yields each batch, and where the next one stands if its number does not say it."""

    nulls = source.options.arrays.nulls == "masked"

    def finish(chunk: StepChunk) -> tuple[list[Any], StepChunk]:
        return [
            source.mapped(source.collator.assemble(step))
            for step in source.steps(chunk, nulls=nulls)
        ], chunk

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
