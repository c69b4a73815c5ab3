"""`BatchSource`: a data set and the options of training, to the chunks of steps that all outputs make their batches of,
read, decoded and with images on threads ahead of the consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from recordmill.base.buffers import let_go
from recordmill.base.errors import UsageError
from recordmill.base.threads import closed_at_exit
from recordmill.reader.batches.collate import Batch, Collator, padded_row_bytes
from recordmill.reader.batches.on_bad import Refill, image_step
from recordmill.reader.batches.plan import StepChunk, StepPlan, plan_steps
from recordmill.reader.images.columns import ImageDecoder, images_by_feature
from recordmill.reader.options.collation import Bucketed, Packed, refuse_packed_images
from recordmill.reader.options.images import Images
from recordmill.reader.options.training import Training
from recordmill.reader.prefetch.prefetcher import Fetcher
from recordmill.reader.prefetch.protocols import Fetchable, timed
from recordmill.schemas.feature import Schema

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
        wanted = options.images.wanted
        if options.memory.on_bad == "skip":
            dataset = dataset.lenient
        if dataset.images:
            dataset, wanted = dataset.encoded, dataset.images if wanted is None else wanted
        collator = Collator.of(options.form, dataset.schema, options.order.pad_remainder)
        images = images_by_feature(dataset, wanted)
        if images:
            refuse_packed_images(collator.collations)
        gathered = [name for name, how in collator.collations.items() if isinstance(how, Bucketed | Packed)]
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
        return Refill(self.dataset, plan.schedule, self.options.order.drop_remainder) if self.skips else None

    @closed_at_exit
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
        decoder = ImageDecoder(self.images, dataset.threads, order.seed, memory_bytes, self.defaults)
        offset_bytes = sum(file.offset_bytes for file in dataset.files)
        left_bytes = max(memory_bytes - decoder.work_bytes - offset_bytes, 1)
        made_bytes = decoder.row_bytes + padded_row_bytes(dataset, self.collator.collations)
        fetcher = Fetcher(dataset, plan.schedule, self.schema, left_bytes, made_bytes, refill is not None)
        decoded = image_step(dataset, self.schema, decoder, self.options.memory.on_bad)
        try:
            if refill is None:
                yield from plan.chunks(fetcher, lambda chunk: finish(decoded(chunk)))
            else:
                fetcher = replace(fetcher, every=workers, skip_below=skip_below)
                yield from map(finish, refill.chunks(fetcher.fetch(lambda rows: decoded(StepChunk(rows)))))
        finally:
            decoder.close()
            let_go()

    def steps(self, chunk: StepChunk) -> list[Batch]:
        """Columns by name of each step, collated."""
        with timed("collate"):
            return self.collator.steps(self.columns(chunk), chunk)

    def columns(self, chunk: StepChunk) -> Batch:
        """Columns by name of the whole chunk."""
        return self.collator.columns(chunk, self.schema, self.dataset)
