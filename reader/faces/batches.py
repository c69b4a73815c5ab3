"""`Batches`: a `Dataset` as NumPy batches, one iterator that knows where it is."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.collating.course import Course, Lot, make_course
from recordmill.reader.collating.form import Batch, Form
from recordmill.reader.collating.ways import Way, refuse_packed_images
from recordmill.reader.faces.image_rows import ImageSize, decoded_rows, image_features
from recordmill.reader.fetching.fetcher import Fetcher, Rows
from recordmill.reader.fetching.order import Order
from recordmill.reader.fetching.readable import Readable
from recordmill.reader.sampling.schedule import Schedule, State
from recordmill.records.columns.parts import to_numpy
from recordmill.schemas.feature import Schema

MASK = "mask"  # [rows] bool beside the columns: which rows count, where batches are filled up


class Batches(Iterator[Any]):
    """The batches of a schedule, read ahead on threads. `state()` says where the next one stands.

    Its arrays are views of larger ones, which are there as long as one of them is. `cut` counts the records of each
    packed feature that were longer than a row, of this host, as far as they were read.
    """

    def __init__(
        self,
        dataset: Readable,
        batch_size: int,
        order: Order,
        memory_bytes: int,
        form: Form,
        image_size: ImageSize | None = None,
    ) -> None:
        ways = form.check(dataset.schema)
        if order.pad_remainder and MASK in dataset.schema:
            raise UsageError(
                f"pad_remainder says in {MASK!r} which rows count, and a feature is called so: leave it out"
            )
        if memory_bytes < 1:
            raise UsageError(f"memory_bytes must be at least 1, not {memory_bytes}")
        self._course = make_course(dataset, batch_size, order, ways)
        self._step = 0
        self._place: tuple[int, int] | None = None
        self.cut: dict[str, int] = {}
        if image_size is not None:
            refuse_packed_images(ways)
        images = {} if image_size is None else dict.fromkeys(image_features(dataset), image_size)
        made_bytes = sum(size.row_bytes for size in images.values())
        schema = _required(dataset.schema, form.label)
        fetcher = Fetcher(dataset, self._course.schedule, schema, memory_bytes, made_bytes)
        self._batches = _generate(self._course, fetcher, form, ways, images, self.cut)

    def __next__(self) -> Any:
        batch, self._place = next(self._batches)
        self._step += 1
        return batch

    def __len__(self) -> int:
        """How many batches are left.

        Raises:
            TypeError: there is no end, or they are packed.
        """
        left = self._course.remaining
        if left is None:
            raise TypeError("batches without end (epochs=None) have no number")
        return left - self._step

    @property
    def schedule(self) -> Schedule:
        """What is left of the schedule."""
        if self._course.packs is None:
            return self._course.after(self._step)
        if self._place is None:
            return self._course.schedule
        return replace(self._course.schedule, epoch=self._place[0], position=self._place[1])

    def state(self) -> State:
        """Where the next batch stands, as JSON takes it: `ds.batches(..., state=...)` goes on there, also on another
        number of hosts (in the middle of steps that were bucketed together, on the same number).
        """
        return self._course.state(self.schedule)

    def close(self) -> None:
        """Stop reading ahead."""
        self._batches.close()


def _generate(
    course: Course,
    fetcher: Fetcher,
    form: Form,
    ways: Mapping[str, Way],
    images: Mapping[str, ImageSize],
    cut: dict[str, int],
) -> Generator[tuple[Any, tuple[int, int] | None], None, None]:
    """Each batch, and where the next one stands if its number does not say it."""
    dataset, schema = fetcher.dataset, fetcher.schema

    def finish(lot: Lot) -> tuple[list[Any], Lot]:
        return form.batches(columns_of(dataset, lot.rows, schema, images), lot, ways), lot

    for batches, lot in course.lots(fetcher, finish):
        _count(lot.cut, cut)
        yield from zip(batches, lot.ends or itertools.repeat(None), strict=False)


def _count(more: Mapping[str, int], cut: dict[str, int]) -> None:
    """Add to the records that were cut, and tell of the first ones."""
    for name, records in more.items():
        if name not in cut:
            warnings.warn(
                f"feature {name!r} has records that are longer than a packed row: they are cut to it, and `cut` of the "
                "iterator counts them",
                stacklevel=3,
            )
        cut[name] = cut.get(name, 0) + records


def columns_of(dataset: Readable, rows: Rows, schema: Schema, images: Mapping[str, ImageSize]) -> Batch:
    """The columns by name, as `records.columns.parts` gives them, images decoded, and the mask where there is one.

    Raises:
        DataError: an image can't be decoded.
    """
    found: Batch = {}
    for feature, column in zip(schema, rows.batch.columns, strict=True):
        if feature.name not in images:
            found[feature.name] = to_numpy(column, feature)
            continue
        found[feature.name], bad = decoded_rows(column, feature, images[feature.name])
        if bad is not None:
            number = int(rows.numbers[bad[0]])
            at = int(np.searchsorted(dataset.ends, number, "right"))
            record = number - (int(dataset.ends[at - 1]) if at else 0)
            reason = f"feature {feature.name!r}: {bad[1]}"
            raise DataError(reason, source=dataset.files[at].file.path, place=f"record {record}")
    return found if rows.mask is None else {**found, MASK: rows.mask}


def _required(schema: Schema, label: str | None) -> Schema:
    """The schema in which a record without the label is an error."""
    features = (replace(f, required=True) if f.name == label and not f.ragged_rank else f for f in schema)
    return replace(schema, features=tuple(features))
