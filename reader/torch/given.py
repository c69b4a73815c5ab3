"""`Given`: what the tensors of a data set hold, whichever order they come in. Rows in, tensors out."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np

from recordmill.base.errors import UsageError
from recordmill.base.room import let_go
from recordmill.reader.collating.course import Course, Lot
from recordmill.reader.collating.form import Form
from recordmill.reader.collating.ways import Way, refuse_packed_images
from recordmill.reader.collating.weight import padded_row_bytes
from recordmill.reader.faces.batches import columns_of, count_cut, required
from recordmill.reader.faces.found import Find, OnBad, Refill, finder
from recordmill.reader.fetching.beside import Beside
from recordmill.reader.fetching.clock import spent
from recordmill.reader.fetching.fetcher import Fetcher, records_of
from recordmill.reader.fetching.readable import Fetchable
from recordmill.reader.images.features import images_by_feature
from recordmill.reader.images.options import Images, Wanted
from recordmill.reader.images.rows import ImageDecoder
from recordmill.reader.torch.tensors import filled, tensors_of
from recordmill.schemas.feature import Schema

Place = tuple[int, int] | None  # (epoch, position)


@dataclass(frozen=True)
class Given:
    """ways: of the features that are collated. images: what becomes of those that are decoded. seed: of random crops.
    beside: what rows have beside their features. memory_bytes: what may be under way. on_bad: "skip" leaves out what
    can't be used.
    """

    dataset: Fetchable
    form: Form
    ways: Mapping[str, Way]
    images: Mapping[str, Images]
    beside: Beside
    seed: int
    memory_bytes: int
    on_bad: OnBad = "error"

    @classmethod
    def of(
        cls,
        dataset: Fetchable,
        form: Form,
        wanted: Wanted | None,
        beside: Beside,
        seed: int,
        memory_bytes: int,
        on_bad: OnBad = "error",
    ) -> Given:
        """Raises:
        UsageError: an option does not fit the data.
        """
        ways = form.check(dataset.schema)
        beside.check(dataset.schema)
        if memory_bytes < 1:
            raise UsageError(f"memory_bytes must be at least 1, not {memory_bytes}")
        images = images_by_feature(dataset, wanted)
        if images:
            refuse_packed_images(ways)
        return cls(dataset, form, ways, images, beside, seed, memory_bytes, on_bad)

    @property
    def schema(self) -> Schema:
        """What is decoded: in it a record without the label is an error."""
        return required(self.dataset.schema, self.form.label)

    def batches(self, course: Course, workers: int, had: int, drop: bool) -> Generator[tuple[Any, Place], None, None]:
        """The tensors of the steps of one worker of so many that share memory, and where the next step stands if its
        number does not say it. had, drop: where bad records are skipped, the positions below it were had, and an
        epoch's last records that fill no batch are left out.
        """
        memory_bytes, skip = max(self.memory_bytes // workers, 1), self.on_bad == "skip"
        decoder = ImageDecoder(self.images, self.dataset.threads, self.seed, memory_bytes)
        left_bytes = max(memory_bytes - decoder.work_bytes, 1)
        made_bytes = decoder.row_bytes + padded_row_bytes(self.dataset, self.ways)
        fetcher = Fetcher(self.dataset, course.schedule, self.schema, left_bytes, made_bytes, skip)
        find = finder(self.dataset, self.schema, decoder, self.on_bad)
        try:
            if skip:
                yield from self._refilled(replace(fetcher, every=workers, had=had), find, drop)
            else:
                yield from self._in_course(course, fetcher, find)
        finally:
            decoder.close()
            let_go()

    def _in_course(self, course: Course, fetcher: Fetcher, find: Find) -> Iterator[tuple[Any, Place]]:
        cut: dict[str, int] = {}
        for steps, ends, more in course.lots(fetcher, lambda lot: (self._steps(find(lot)), lot.ends, lot.cut)):
            count_cut(more, cut)
            for step, end in zip(steps, ends or repeat(None), strict=False):
                yield tensors_of(step, self.schema, self.form), end

    def _refilled(self, fetcher: Fetcher, find: Find, drop: bool) -> Iterator[tuple[Any, Place]]:
        refill = Refill(self.dataset, fetcher.schedule, drop)
        for lot in refill.refilled(fetcher.fetch(lambda rows: find(Lot(rows)))):
            assert lot.rows.positions is not None
            ends = lot.rows.positions[lot.rows.edges[1:] - 1] + 1
            for step, end in zip(self._steps(lot), ends.tolist(), strict=True):
                yield tensors_of(step, self.schema, self.form), (lot.rows.stretch.epoch, end)

    def records(self, numbers: list[int]) -> Any:
        """The tensors of the records of these numbers.

        Raises:
            IndexError: there is no such record.
        """
        find = finder(self.dataset, self.schema, ImageDecoder(self.images, 1, self.seed, self.memory_bytes), "error")
        rows = records_of(self.dataset, np.asarray(numbers, np.int64), self.schema)
        (step,) = self._steps(find(Lot(rows)))
        return tensors_of(step, self.schema, self.form)

    def _steps(self, lot: Lot) -> list[Any]:
        """Columns by name of each step, collated."""
        with spent("collate"):
            columns = columns_of(lot, self.schema, self.beside, self.dataset)
            return Form(self.form.collate).batches(filled(columns, self.schema, self.ways), lot, self.ways)
