"""`Given`: what the tensors of a data set hold, whichever order they come in. Rows in, tensors out."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recordmill.base.errors import UsageError
from recordmill.reader.collating.course import Lot
from recordmill.reader.collating.form import Form
from recordmill.reader.collating.ways import Bucketed, Packed, Way
from recordmill.reader.faces.batches import columns_of, required
from recordmill.reader.faces.found import Find, finder
from recordmill.reader.fetching.beside import Beside
from recordmill.reader.fetching.clock import spent
from recordmill.reader.fetching.fetcher import Fetcher, records_of
from recordmill.reader.fetching.readable import Fetchable
from recordmill.reader.images.features import images_by_feature
from recordmill.reader.images.options import Images, Wanted
from recordmill.reader.images.rows import ImageDecoder
from recordmill.reader.sampling.schedule import Schedule
from recordmill.reader.torch.tensors import filled, tensors_of
from recordmill.schemas.feature import Schema


@dataclass(frozen=True)
class Given:
    """ways: of the features that are collated. images: what becomes of those that are decoded. seed: of random crops.
    beside: what rows have beside their features. memory_bytes: what may be under way.
    """

    dataset: Fetchable
    form: Form
    ways: Mapping[str, Way]
    images: Mapping[str, Images]
    beside: Beside
    seed: int
    memory_bytes: int

    @classmethod
    def of(
        cls, dataset: Fetchable, form: Form, wanted: Wanted | None, beside: Beside, seed: int, memory_bytes: int
    ) -> Given:
        """Raises:
        UsageError: an option does not fit the data.
        """
        ways = form.check(dataset.schema)
        for name, way in ways.items():
            if isinstance(way, Bucketed | Packed):
                raise UsageError(
                    f"{name!r} as {way} gathers the records of several steps, which workers share here: use batches()"
                )
        beside.check(dataset.schema)
        if memory_bytes < 1:
            raise UsageError(f"memory_bytes must be at least 1, not {memory_bytes}")
        return cls(dataset, form, ways, images_by_feature(dataset, wanted), beside, seed, memory_bytes)

    @property
    def schema(self) -> Schema:
        """What is decoded: in it a record without the label is an error."""
        return required(self.dataset.schema, self.form.label)

    def batches(self, schedule: Schedule, workers: int) -> Generator[Any, None, None]:
        """The tensors of every so many-th step, for one worker of so many that share memory."""
        memory_bytes = max(self.memory_bytes // workers, 1)
        decoder = ImageDecoder(self.images, self.dataset.threads, self.seed, memory_bytes)
        left_bytes = max(memory_bytes - decoder.work_bytes, 1)
        fetcher = Fetcher(self.dataset, schedule, self.schema, left_bytes, decoder.row_bytes, every=workers)
        find = finder(self.dataset, self.schema, decoder, "error")
        try:
            for steps in fetcher.fetch(lambda rows: self._steps(find, Lot(rows))):
                for step in steps:
                    yield tensors_of(step, self.schema, self.form)
        finally:
            decoder.close()

    def records(self, numbers: list[int]) -> Any:
        """The tensors of the records of these numbers.

        Raises:
            IndexError: there is no such record.
        """
        find = finder(self.dataset, self.schema, ImageDecoder(self.images, 1, self.seed, self.memory_bytes), "error")
        rows = records_of(self.dataset, np.asarray(numbers, np.int64), self.schema)
        (step,) = self._steps(find, Lot(rows))
        return tensors_of(step, self.schema, self.form)

    def _steps(self, find: Find, lot: Lot) -> list[Any]:
        """Columns by name of each step, collated."""
        found = find(lot)
        with spent("collate"):
            columns = columns_of(found, self.schema, self.beside, self.dataset)
            return Form(self.form.collate).batches(filled(columns, self.schema, self.ways), lot, self.ways)
