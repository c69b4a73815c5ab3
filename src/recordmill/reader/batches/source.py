"""`BatchSource`: a data set with the options of training.

It reads and decodes blocks of steps on threads, ahead of the consumer. All outputs make their
batches of these blocks. `Batches` is the iterator of NumPy batches.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import drop_reusable, to_offsets
from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.base.stages import time_stage
from recordmill.base.threads import close_at_exit
from recordmill.options.shared import BATCH_SIZE
from recordmill.reader.batches.collate import (
    Batch,
    Collator,
    estimate_padded_row_bytes,
    fill_missing,
)
from recordmill.reader.batches.plan import (
    StepBlock,
    StepPlan,
    count_iteration_steps,
    plan_steps,
)
from recordmill.reader.images.columns import (
    ImageDecoder,
    estimate_row_bytes,
    resolve_image_targets,
)
from recordmill.reader.options.collation import Bucketed, Packed
from recordmill.reader.options.images import Images, make_pixel_schema
from recordmill.reader.options.training import Training
from recordmill.reader.prefetch.prefetcher import Fetcher, StepRows
from recordmill.reader.prefetch.protocols import Fetchable
from recordmill.reader.sampling.schedule import Schedule, State
from recordmill.records.columns.ragged import Array, Ragged
from recordmill.records.example.locate import BadRecord
from recordmill.schemas.feature import Feature, Schema

DecodeStepImages = Callable[[StepBlock], StepBlock]


def make_image_decoder(
    dataset: Fetchable, schema: Schema, decoder: ImageDecoder, on_bad: str
) -> DecodeStepImages:
    """Returns a function that adds the decoded images to a block.

    The threads of the fetcher call it.

    Args:
        schema: Features of the rows.
        on_bad: If an image can't be decoded, "error" raises DataError, and "skip" leaves out the
            row.
    """

    def decode_images(block: StepBlock) -> StepBlock:
        with time_stage("images"):
            images, batch, bad = decoder.decode(block.rows, schema)
        block = replace(block, rows=replace(block.rows, batch=batch), images=images)
        if not bad:
            return block
        if on_bad == "error":
            first_bad = bad[0]
            # a zip has several data sets: the error names the file with this image
            owner = next(part for part in dataset.parts if first_bad.feature in part.schema)
            path, place = owner.files.location(int(block.rows.numbers[first_bad.row]))
            raise DataError(first_bad.describe(), source=path, place=place)
        return _drop_bad_rows(block, bad)

    return decode_images


def _drop_bad_rows(block: StepBlock, bad: Sequence[BadRecord]) -> StepBlock:
    rows = block.rows
    # A record may have several bad images, and counts once.
    first_bad = {record.row: record for record in reversed(bad)}
    reasons_by_number = tuple(
        (int(rows.numbers[row]), record.describe()) for row, record in sorted(first_bad.items())
    )
    good_rows = np.delete(np.arange(len(rows.numbers)), [record.row for record in bad])
    # one step with all rows; the refiller divides them into batches
    good_block = block.select_rows(good_rows, np.array([0, len(good_rows)], np.int64))
    return replace(good_block, rows=replace(good_block.rows, bad=rows.bad + reasons_by_number))


class BatchRefiller:
    """Fills up batches after unusable records are left out.

    Each batch takes the next good records of the epoch, so that only the last batch is shorter.

    Args:
        dataset: The data set, for messages.
        schedule: The steps to read.
        drop_remainder: If True, the incomplete last batch of an epoch is left out.

    Attributes:
        schedule: The steps after the last batch that was returned.
        skipped: Number of records that were left out so far.
    """

    def __init__(self, dataset: Fetchable, schedule: Schedule, drop_remainder: bool) -> None:
        self._dataset, self._first_schedule, self._drop_remainder = (
            dataset,
            schedule,
            drop_remainder,
        )
        self.schedule = schedule
        self.skipped = 0
        self._epoch_bad_records: list[tuple[int, str]] = []
        self._first_bad_record: tuple[int, str] | None = None

    def refill_blocks(
        self, blocks: Iterable[StepBlock], max_empty_epochs: int = 1
    ) -> Iterator[StepBlock]:
        """Yields the rows in complete batches, except the last batch of an epoch.

        At the end of an epoch, a warning reports the number of records that were left out.

        Args:
            blocks: The rows that were read.
            max_empty_epochs: Number of consecutive epochs without a batch after which an endless
                schedule is an error.

        Raises:
            DataError: The schedule is endless, and this number of epochs had no batch.
        """
        pending: list[StepBlock] = []
        empty_epochs, has_batch = 0, self._first_schedule.position > 0
        for block_read in blocks:
            if pending and pending[0].rows.step_range.epoch != block_read.rows.step_range.epoch:
                for last_block in self._finish_epoch(pending):
                    yield last_block
                    has_batch = True
                empty_epochs, has_batch = 0 if has_batch else empty_epochs + 1, False
                if empty_epochs >= max_empty_epochs and self._first_schedule.end_epoch is None:
                    raise self._no_batch_error()
                pending = []
            self._epoch_bad_records += block_read.rows.bad
            self.skipped += len(block_read.rows.bad)
            # at most one incomplete batch waits here
            pending = [_concatenate_blocks([*pending, block_read])]
            size = self._first_schedule.epoch_steps.batch_size
            complete_rows = len(pending[0].rows.numbers) // size * size
            if complete_rows:
                yield _select_range(pending[0], 0, complete_rows, size)
                has_batch = True
                pending = [
                    _select_range(pending[0], complete_rows, len(pending[0].rows.numbers), size)
                ]
        yield from self._finish_epoch(pending)

    def advance(self, rows: StepRows, row_end: int) -> None:
        """Updates `schedule` after a batch is returned.

        Args:
            rows: The rows of the block with the batch.
            row_end: End of the batch in these rows.
        """
        assert rows.positions is not None
        # positions, not numbers of batches, because records were left out in between
        position = int(rows.positions[row_end - 1]) + 1
        self.schedule = replace(
            self._first_schedule, epoch=rows.step_range.epoch, position=position
        )

    def finish(self) -> None:
        """Sets `schedule` to its end, also if the last records were left out."""
        self.schedule = self._first_schedule.skip_all()

    def _finish_epoch(self, pending: list[StepBlock]) -> Iterator[StepBlock]:
        if pending and len(pending[0].rows.numbers) and not self._drop_remainder:
            yield pending[0]
        if pending and self._epoch_bad_records:
            self._warn_skipped(pending[0].rows.step_range.epoch)
            self._first_bad_record = self._first_bad_record or self._epoch_bad_records[0]
        self._epoch_bad_records = []

    def _no_batch_error(self) -> DataError:
        size = self._first_schedule.epoch_steps.batch_size
        if self._first_bad_record is None:
            return DataError(f"an epoch has fewer good records than a batch of {size}")
        number, reason = self._first_bad_record
        path, place = self._dataset.files.location(number)
        return DataError(
            f'{reason}; on_bad="skip" left out so many records that an epoch had no '
            f"batch of {size}, and epochs=None would never end",
            source=path,
            place=place,
        )

    def _warn_skipped(self, epoch: int) -> None:
        number, reason = self._epoch_bad_records[0]
        path, place = self._dataset.files.location(number)
        count = len(self._epoch_bad_records)
        warnings.warn(
            f"epoch {epoch}: {count} of {len(self._dataset)} records {'was' if count == 1 else 'were'} skipped "
            f'(on_bad="skip"); the first: {path}: {place}: {reason}',
            stacklevel=2,
        )


def _concatenate_blocks(blocks: list[StepBlock]) -> StepBlock:
    """Joins blocks of one epoch."""
    if len(blocks) == 1:
        return blocks[0]
    step_rows = [block.rows for block in blocks]
    numbers = np.concatenate([rows.numbers for rows in step_rows])
    positions = np.concatenate([rows.positions for rows in step_rows if rows.positions is not None])
    edges = np.array([0, len(numbers)], np.int64)
    batch = pa.concat_batches([rows.batch for rows in step_rows])
    images = {
        name: _concatenate_images([block.images[name] for block in blocks])
        for name in blocks[0].images
    }
    return StepBlock(
        StepRows(
            step_range=step_rows[0].step_range,
            batch=batch,
            edges=edges,
            numbers=numbers,
            mask=None,
            positions=positions,
        ),
        images=images,
    )


def _concatenate_images(columns: list[Array | Ragged]) -> Array | Ragged:
    """Joins images, or lists of images."""
    arrays = [column.values if isinstance(column, Ragged) else column for column in columns]
    joined = np.concatenate([array for array in arrays if isinstance(array, np.ndarray)])
    lists = [column for column in columns if isinstance(column, Ragged)]
    if not lists:
        return joined
    return Ragged(joined, to_offsets(np.concatenate([column.lengths for column in lists])))


def _select_range(block: StepBlock, begin: int, end: int, size: int) -> StepBlock:
    """Returns rows [begin, end) of a block as steps of `size` rows."""
    edges = np.append(np.arange(0, end - begin, size), end - begin).astype(np.int64)
    return block.select_rows(slice(begin, end), edges)


def _require_all(schema: Schema) -> Schema:
    features = tuple(
        replace(feature, required=True) if _may_be_missing(feature) else feature
        for feature in schema
    )
    return replace(schema, features=features)


def _may_be_missing(feature: Feature) -> bool:
    # a missing list is an empty list
    return not feature.required and not feature.ragged_rank


_Result = TypeVar("_Result")


@dataclass(frozen=True)
class BatchSource:
    """A data set with its training options, as a source of blocks of steps.

    Attributes:
        dataset: The data set, with images as stored bytes.
        options: The options.
        collator: Conversion of columns to batches.
        images: Targets of the images that are decoded, by feature name.
        schema: The features to read. A record without the label is an error.
        image_defaults: Encoded images that replace missing ones, by feature name.
    """

    dataset: Fetchable
    options: Training
    collator: Collator
    images: Mapping[str, Images]
    schema: Schema
    image_defaults: Mapping[str, Any]

    @classmethod
    def from_options(cls, dataset: Fetchable, options: Training) -> BatchSource:
        """Creates the source of batches of a data set.

        Raises:
            UsageError: An option does not fit the data or the other options.
        """
        targets = options.images.targets
        if options.memory.on_bad == "skip":
            dataset = dataset.lenient_view
        if dataset.images:
            # images of `open` are decoded with the batches, not with the records
            dataset, targets = dataset.encoded_view, dataset.images if targets is None else targets
        if options.form.matrix is not None:
            other_features = (options.form.label_of(dataset.schema), options.form.weights)
            dataset = dataset.select([*options.form.matrix, *filter(None, other_features)])
        if options.drops_nulls:
            names = [feature.name for feature in dataset.schema if _may_be_missing(feature)]
            dataset = dataset.drop_missing(names) if names else dataset
        defaults = options.graph.defaults
        images = resolve_image_targets(dataset, targets)
        collator = Collator.from_form(
            options.form,
            # lists of images are padded as numbers
            make_pixel_schema(dataset.schema, images, lists_only=True),
            has_mask=options.order.pad_remainder,
            defaults=defaults,
        )
        gathered_features = [
            name
            for name, collation in collator.collations.items()
            if isinstance(collation, Bucketed | Packed)
        ]
        if (
            images
            and gathered_features
            and isinstance(collator.collations[gathered_features[0]], Packed)
        ):
            raise UsageError(
                f"decode_images does not work if {gathered_features[0]!r} is packed: "
                "leave one of them out"
            )
        if options.memory.on_bad == "skip" and gathered_features:
            raise UsageError(
                f'on_bad="skip" does not work with {gathered_features[0]!r} as '
                f"{collator.collations[gathered_features[0]]}: leave one of them out"
            )
        return cls(
            dataset=dataset,
            options=options,
            collator=collator,
            images=images,
            schema=(
                _require_all(dataset.schema)
                if options.drops_nulls
                else collator.require_label(dataset.schema)
            ),
            image_defaults={},
        )

    @property
    def skips_bad_records(self) -> bool:
        """True if unusable records are left out."""
        return self.options.memory.on_bad == "skip"

    def plan(self, batch_size: int) -> StepPlan:
        """Returns an endless plan of the steps of this host.

        Args:
            batch_size: Number of rows of a batch of this host.

        Raises:
            UsageError: An option does not fit the data, or the state belongs to other data or
                options.
            RecordmillError: The folder for temporary files has too little space.
        """
        order = self.options.order
        if self.skips_bad_records:
            # Records after the last complete step may fill up batches that lack records. The
            # refiller drops the remainder instead.
            order = replace(order, drop_remainder=False)
        # The workers of a loader start after this, and share the files that are inflated here.
        for part in self.dataset.parts:
            part.files.spool_all(part.threads)
        return plan_steps(self.dataset, batch_size, order, self.collator.collations)

    def make_refiller(self, plan: StepPlan) -> BatchRefiller | None:
        """Returns a refiller for a plan, or None if unusable records are errors."""
        return (
            BatchRefiller(self.dataset, plan.schedule, self.options.order.drop_remainder)
            if self.skips_bad_records
            else None
        )

    @close_at_exit
    def map_blocks(
        self,
        plan: StepPlan,
        finish: Callable[[StepBlock], _Result],
        refiller: BatchRefiller | None = None,
        *,
        num_workers: int = 1,
        skip_below: int = 0,
    ) -> Iterator[_Result]:
        """Yields `finish(block)` for all blocks of a plan, in order.

        Args:
            plan: The steps.
            finish: The conversion of a block.
            refiller: Fills batches if unusable records are left out. `finish` then runs in the
                thread of the consumer.
            num_workers: Number of processes that share the threads and the memory limit. If records
                are left out, they also take the steps in turn.
            skip_below: If records are left out, positions of the first epoch below this one are
                left out, too.

        Raises:
            DataError: A record is damaged or does not fit the schema, or an image can't be decoded.
        """
        dataset, order = self.dataset, self.options.order
        threads = max(dataset.threads // num_workers, 1)
        memory_bytes = max(self.options.memory.memory_bytes // num_workers, 1)
        decoder = ImageDecoder(
            self.images,
            threads=threads,
            seed=order.seed,
            memory_bytes=memory_bytes,
            defaults=self.image_defaults,
        )
        # The offsets of records and the images in progress take their share of the memory first.
        offset_bytes = sum(file.table_bytes for file in dataset.files)
        fetch_bytes = max(memory_bytes - decoder.work_bytes - offset_bytes, 1)
        output_row_bytes = estimate_row_bytes(dataset, self.images) + estimate_padded_row_bytes(
            dataset, self.collator.collations
        )
        fetcher = Fetcher(
            dataset,
            plan.schedule,
            self.schema,
            threads=threads,
            memory_bytes=fetch_bytes,
            output_row_bytes=output_row_bytes,
            skip_bad=refiller is not None,
        )
        decode_images = make_image_decoder(
            dataset, self.schema, decoder, self.options.memory.on_bad
        )
        try:
            if refiller is None:
                yield from plan.map_blocks(fetcher, lambda block: finish(decode_images(block)))
            else:
                # plan.map_blocks is not used, because blocks are refilled before they are collated
                fetcher = replace(fetcher, step_stride=num_workers, skip_below=skip_below)
                yield from map(
                    finish,
                    refiller.refill_blocks(
                        fetcher.fetch(lambda rows: decode_images(StepBlock(rows))),
                        # The share of one worker may have no good record in an unlucky epoch.
                        max_empty_epochs=1 if num_workers == 1 else 3,
                    ),
                )
        finally:
            # this also runs if the consumer stops early
            decoder.close()
            drop_reusable()

    def collate_block(self, block: StepBlock, *, nulls: bool = True) -> list[Batch]:
        """Returns the columns of each step by name.

        Args:
            nulls: If True, the arrays are masked, and arrays of text contain None. If False,
                missing values are filled, and `name/valid` is added.
        """
        with time_stage("collate"):
            columns = self.collator.convert_columns(block, self.schema, self.dataset)
            if not nulls:
                columns = fill_missing(columns, self.schema, self.collator.collations)
            return self.collator.split_steps(columns, block)

    def apply_map(self, batch: Any) -> Any:
        """Applies the function of the option `map` to a batch.

        Returns:
            The result, or the error for `unwrap_mapped`, which raises it when the batch is
            requested.
        """
        function = self.options.form.map
        try:
            return batch if function is None else function(batch)
        # the batch may be made ahead, so the error must wait until it is requested
        except Exception as error:
            return _MapFailure(error)


@dataclass(frozen=True)
class _MapFailure:
    """Error of `map` for a batch that has not been requested yet."""

    error: Exception


def unwrap_mapped(batch: Any, number: Callable[[], int]) -> Any:
    """Returns the batch, unless it is an error of `map`.

    A batch with an error counts as done. So the caller moves on to the next batch before it calls
    this function.

    Args:
        batch: Result of `BatchSource.apply_map`.
        number: Returns the number of the batch in its iteration, for the message.

    Raises:
        RecordmillError: `map` failed for this batch.
    """
    if isinstance(batch, _MapFailure):
        error = batch.error
        raise RecordmillError(
            f"map: batch {number()} of this iteration: {type(error).__name__}: {error}"
        ) from error
    return batch


class Batches(Iterator[Any]):
    """Iterator of batches, which are read ahead on threads.

    The arrays of a batch are views of larger arrays. The memory of these is freed when none of
    their views is in use. If `map` fails for a batch, the error names its number, the batch counts
    as done, and the iterator continues with the next one.

    Attributes:
        cut: For each packed feature, the number of records that were cut because they are longer
            than a row. It counts the records of this host that were read so far.
    """

    def __init__(self, dataset: Fetchable, options: Training) -> None:
        source = BatchSource.from_options(dataset, options)
        first_plan = source.plan(options.batch_size or BATCH_SIZE).skip_finished_epoch()
        self._plan = first_plan.select_iteration(0, options.order.epochs)
        self._refiller = source.make_refiller(self._plan)
        self._step, self._epochs = 0, options.order.epochs
        self._end_position: tuple[int, int] | None = None
        self.cut: dict[str, int] = {}
        self._batches = _generate_batches(source, self._plan, self._refiller, self.cut)

    def __repr__(self) -> str:
        # Keras prints this text in its error for data of an unknown type.
        return "<Batches of NumPy arrays, for your own loops; for model.fit use ds.to_keras(...)>"

    def __next__(self) -> Any:
        batch, end_position = next(self._batches)
        step = self._step
        self._step, self._end_position = step + 1, end_position
        return unwrap_mapped(batch, lambda: self._iteration_number(step))

    def _iteration_number(self, step: int) -> int:
        """Returns the number of a batch in its iteration.

        If batches are packed or records skipped, batches before a state are not counted, because
        their number is unknown.
        """
        if self._refiller is not None or self._plan.packing is not None:
            return step
        return count_iteration_steps(self._plan.schedule_after(step), self._epochs)

    def __len__(self) -> int:
        """Returns the number of remaining batches.

        Raises:
            TypeError: The number is infinite or unknown, because batches are packed or records
                skipped.
        """
        if self._refiller is not None:
            raise TypeError('with on_bad="skip" the number of batches is known only at the end')
        remaining_steps = self._plan.remaining_steps
        if remaining_steps is None:
            raise TypeError("with epochs=None there is no number of batches")
        return remaining_steps - self._step

    @property
    def schedule(self) -> Schedule:
        """The steps that remain."""
        if self._refiller is not None:
            return self._refiller.schedule
        if self._plan.packing is None:
            return self._plan.schedule_after(self._step)
        if self._end_position is None:
            return self._plan.schedule
        return replace(
            self._plan.schedule, epoch=self._end_position[0], position=self._end_position[1]
        )

    @property
    def skipped(self) -> int:
        """Number of records that `on_bad="skip"` has left out, including records read ahead."""
        return 0 if self._refiller is None else self._refiller.skipped

    def state(self) -> State:
        """Returns the position of the next batch, as a JSON object.

        `ds.batches(..., state=...)` continues there. The number of hosts may differ, except between
        steps that are bucketed together. A state at the end begins the next epoch, and with it the
        next iteration.
        """
        return self._plan.state(self.schedule)

    def __reduce__(self) -> Any:
        raise TypeError(
            "batches can't be pickled: save their state(), and pass it as state= to continue"
        )

    def close(self) -> None:
        """Stops reading ahead."""
        self._batches.close()


def _generate_batches(
    source: BatchSource, plan: StepPlan, refiller: BatchRefiller | None, cut: dict[str, int]
) -> Generator[tuple[Any, tuple[int, int] | None], None, None]:
    """Yields (batch, position after it).

    The position is (epoch, position in the epoch) for packed batches. For others it is None,
    because the number of the batch determines it.

    Args:
        cut: Receives the number of records that packing has cut, by feature.
    """
    nulls = source.options.arrays.nulls == "masked"

    def finish(block: StepBlock) -> tuple[list[Any], StepBlock]:
        return [
            source.apply_map(source.collator.assemble(step))
            for step in source.collate_block(block, nulls=nulls)
        ], block

    for batches, block in source.map_blocks(plan, finish, refiller):
        count_truncated(block.truncated_counts, cut)
        # only packed blocks have end positions
        end_positions = block.end_positions or itertools.repeat(None)
        for batch, end_position, row_end in zip(
            batches, end_positions, block.rows.edges[1:].tolist(), strict=False
        ):
            if refiller is not None:
                refiller.advance(block.rows, row_end)
            yield batch, end_position
    if refiller is not None:
        refiller.finish()


def count_truncated(new_counts: Mapping[str, int], total_counts: dict[str, int]) -> None:
    """Adds the numbers of records that packing has cut.

    The first cut record of a feature causes a warning.

    Args:
        new_counts: Number of cut records by feature.
        total_counts: Totals by feature. `new_counts` is added to them.
    """
    for name, records in new_counts.items():
        if name not in total_counts:
            warnings.warn(
                f"feature {name!r} has records that are longer than a packed row: they are cut to it, and `cut` of the "
                "iterator counts them",
                stacklevel=3,
            )
        total_counts[name] = total_counts.get(name, 0) + records
