"""`Batches`: a `Dataset` as NumPy batches, one iterator that knows where it is."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from recordmill.base.room import let_go
from recordmill.base.sizes import bytes_of
from recordmill.reader.collating.course import Course, Lot, make_course
from recordmill.reader.collating.form import Batch, Form
from recordmill.reader.collating.ways import Way, refuse_packed_images
from recordmill.reader.collating.weight import padded_row_bytes
from recordmill.reader.faces.found import OnBad, Refill, finder, order_of
from recordmill.reader.fetching.beside import Beside
from recordmill.reader.fetching.clock import spent
from recordmill.reader.fetching.fetcher import Fetcher
from recordmill.reader.fetching.order import Order
from recordmill.reader.fetching.readable import Fetchable
from recordmill.reader.images.features import images_by_feature
from recordmill.reader.images.options import Wanted
from recordmill.reader.images.rows import ImageDecoder
from recordmill.reader.sampling.schedule import Schedule, State
from recordmill.records.columns.parts import to_numpy
from recordmill.schemas.feature import Schema


class Batches(Iterator[Any]):
    """The batches of a schedule, read ahead on threads. `state()` says where the next one stands.

    Its arrays are views of larger ones, which are there as long as one of them is. `cut` counts the records of each
    packed feature that were longer than a row, of this host, as far as they were read.
    """

    def __init__(
        self,
        dataset: Fetchable,
        batch_size: int,
        order: Order,
        memory: int | str,
        form: Form,
        images: Wanted | None = None,
        on_bad: OnBad = "error",
        ids: bool = False,
    ) -> None:
        ways = form.check(dataset.schema)
        beside = Beside(order.pad_remainder, ids)
        beside.check(dataset.schema)
        memory_bytes = bytes_of(memory, "memory_bytes")
        self._course = make_course(dataset, batch_size, order_of(order, on_bad, ways), ways)
        schedule = self._course.schedule
        self._refill = Refill(dataset, schedule, order.drop_remainder) if on_bad == "skip" else None
        self._step = 0
        self._place: tuple[int, int] | None = None
        self.cut: dict[str, int] = {}
        decoder = ImageDecoder(images_by_feature(dataset, images), dataset.threads, order.seed, memory_bytes)
        if decoder.images:
            refuse_packed_images(ways)
        schema = required(dataset.schema, form.label)
        left_bytes, around = max(memory_bytes - decoder.work_bytes, 1), self._refill is not None
        made_bytes = decoder.row_bytes + padded_row_bytes(dataset, ways)
        fetcher = Fetcher(dataset, schedule, schema, left_bytes, made_bytes, around)
        self._batches = _generate(self._course, fetcher, form, ways, decoder, self._refill, self.cut, beside)

    def __next__(self) -> Any:
        batch, self._place = next(self._batches)
        self._step += 1
        return batch

    def __len__(self) -> int:
        """How many batches are left.

        Raises:
            TypeError: there is no end, they are packed, or nobody can know.
        """
        if self._refill is not None:
            raise TypeError('how many batches on_bad="skip" leaves is known at the end only')
        left = self._course.remaining
        if left is None:
            raise TypeError("batches without end (epochs=None) have no number")
        return left - self._step

    @property
    def schedule(self) -> Schedule:
        """What is left of the schedule."""
        if self._refill is not None:
            return self._refill.schedule
        if self._course.packs is None:
            return self._course.after(self._step)
        if self._place is None:
            return self._course.schedule
        return replace(self._course.schedule, epoch=self._place[0], position=self._place[1])

    @property
    def skipped(self) -> int:
        """How many records `on_bad="skip"` has left out so far, those that were read ahead included."""
        return 0 if self._refill is None else self._refill.skipped

    def state(self) -> State:
        """Where the next batch stands, as JSON takes it: `ds.batches(..., state=...)` goes on there, also on another
        number of hosts (in the middle of steps that were bucketed together, on the same number).
        """
        return self._course.state(self.schedule)

    def __reduce__(self) -> Any:
        raise TypeError("batches are not pickled: save their state(), and give it as state= where they go on")

    def close(self) -> None:
        """Stop reading ahead."""
        self._batches.close()


def _generate(
    course: Course,
    fetcher: Fetcher,
    form: Form,
    ways: Mapping[str, Way],
    decoder: ImageDecoder,
    refill: Refill | None,
    cut: dict[str, int],
    beside: Beside,
) -> Generator[tuple[Any, tuple[int, int] | None], None, None]:
    """Each batch, and where the next one stands if its number does not say it."""
    schema = fetcher.schema
    find = finder(fetcher.dataset, schema, decoder, "error" if refill is None else "skip")

    def finish(lot: Lot) -> tuple[list[Any], Lot]:
        with spent("collate"):
            return form.batches(columns_of(lot, schema, beside, fetcher.dataset), lot, ways), lot

    lots: Iterator[tuple[list[Any], Lot]]
    if refill is None:
        lots = course.lots(fetcher, lambda lot: finish(find(lot)))
    else:
        lots = map(finish, refill.refilled(fetcher.fetch(lambda rows: find(Lot(rows)))))
    try:
        for batches, lot in lots:
            count_cut(lot.cut, cut)
            ends = lot.ends or itertools.repeat(None)
            for batch, end, behind in zip(batches, ends, lot.rows.edges[1:].tolist(), strict=False):
                if refill is not None:
                    refill.given(lot.rows, behind)
                yield batch, end
    finally:
        decoder.close()
        let_go()


def count_cut(more: Mapping[str, int], cut: dict[str, int]) -> None:
    """Add to the records that were cut, and tell of the first ones."""
    for name, records in more.items():
        if name not in cut:
            warnings.warn(
                f"feature {name!r} has records that are longer than a packed row: they are cut to it, and `cut` of the "
                "iterator counts them",
                stacklevel=3,
            )
        cut[name] = cut.get(name, 0) + records


def columns_of(lot: Lot, schema: Schema, beside: Beside, dataset: Fetchable) -> Batch:
    """The columns by name, as `records.columns.parts` gives them, images decoded, and what stands beside them."""
    rows, images = beside.added(lot.rows, dataset.ends), lot.images
    return {
        feature.name: images[feature.name] if feature.name in images else to_numpy(column, feature)
        for feature, column in zip(beside.schema(schema), rows.batch.columns, strict=True)
    }


def required(schema: Schema, label: str | None) -> Schema:
    """The schema in which a record without the label is an error."""
    features = (replace(f, required=True) if f.name == label and not f.ragged_rank else f for f in schema)
    return replace(schema, features=tuple(features))
