"""`Batches`: a `Dataset` as NumPy batches, one iterator that knows where it is."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import UsageError
from recordmill.reader.collating.form import Batch, Form
from recordmill.reader.faces.found import Found, OnBad, Refill, finder, order_of
from recordmill.reader.fetching.fetcher import Fetcher
from recordmill.reader.fetching.order import Order, make_schedule
from recordmill.reader.fetching.readable import Readable
from recordmill.reader.images.features import images_by_feature
from recordmill.reader.images.options import Wanted
from recordmill.reader.images.rows import ImageDecoder
from recordmill.reader.sampling.schedule import Schedule, State
from recordmill.records.columns.parts import to_numpy
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.schemas.feature import Schema

MASK = "mask"  # [rows] bool beside the columns: which rows count, where batches are filled up


class Batches(Iterator[Any]):
    """The batches of a schedule, read ahead on threads. `state()` says where the next one stands.

    Its arrays are views of larger ones, which are there as long as one of them is.
    """

    def __init__(
        self,
        dataset: Readable,
        batch_size: int,
        order: Order,
        memory_bytes: int,
        form: Form,
        images: Wanted | None = None,
        on_bad: OnBad = "error",
    ) -> None:
        form.check(dataset.schema)
        if order.pad_remainder and MASK in dataset.schema:
            raise UsageError(
                f"pad_remainder says in {MASK!r} which rows count, and a feature is called so: leave it out"
            )
        if memory_bytes < 1:
            raise UsageError(f"memory_bytes must be at least 1, not {memory_bytes}")
        self._schedule = make_schedule(dataset, batch_size, order_of(order, on_bad))
        self._refill = Refill(dataset, self._schedule, order.drop_remainder) if on_bad == "skip" else None
        self._step = 0
        decoder = ImageDecoder(images_by_feature(dataset, images), dataset.threads, order.seed, memory_bytes)
        schema = _required(dataset.schema, form.label)
        fetcher = Fetcher(
            dataset,
            self._schedule,
            schema,
            max(memory_bytes - decoder.work_bytes, 1),
            decoder.row_bytes,
            self._refill is not None,
        )
        self._batches = _generate(fetcher, form, decoder, self._refill)

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._step += 1
        return batch

    def __len__(self) -> int:
        """How many batches are left.

        Raises:
            TypeError: there is no end, or nobody can know.
        """
        if self._refill is not None:
            raise TypeError('how many batches on_bad="skip" leaves is known at the end only')
        left = self._schedule.remaining
        if left is None:
            raise TypeError("batches without end (epochs=None) have no number")
        return left - self._step

    @property
    def schedule(self) -> Schedule:
        """What is left of the schedule."""
        return self._schedule.after(self._step) if self._refill is None else self._refill.schedule

    @property
    def skipped(self) -> int:
        """How many records `on_bad="skip"` has left out so far, those that were read ahead included."""
        return 0 if self._refill is None else self._refill.skipped

    def state(self) -> State:
        """Where the next batch stands, as JSON takes it: `ds.batches(..., state=...)` goes on there, also on another
        number of hosts.
        """
        return self.schedule.state()

    def close(self) -> None:
        """Stop reading ahead."""
        self._batches.close()


def _generate(fetcher: Fetcher, form: Form, decoder: ImageDecoder, refill: Refill | None) -> Generator[Any, None, None]:
    schema = fetcher.schema
    find = finder(fetcher.dataset, schema, decoder, "error" if refill is None else "skip")
    fetched: Iterator[tuple[Found, Batch]]
    if refill is None:
        fetched = fetcher.fetch(lambda rows: _with_columns(find(rows), schema))
    else:
        fetched = (_with_columns(found, schema) for found in refill.refilled(fetcher.fetch(find)))
    try:
        for found, columns in fetched:
            for begin, end in itertools.pairwise(found.rows.edges.tolist()):
                if refill is not None:
                    refill.given(found, end)
                yield form.given({name: _part(column, begin, end) for name, column in columns.items()})
    finally:
        decoder.close()


def _with_columns(found: Found, schema: Schema) -> tuple[Found, Batch]:
    return found, columns_of(found, schema)


def columns_of(found: Found, schema: Schema) -> Batch:
    """The columns by name, as `records.columns.parts` gives them, images decoded, and the mask where there is one."""
    rows, images = found.rows, found.images
    columns: Batch = {
        feature.name: images[feature.name] if feature.name in images else to_numpy(column, feature)
        for feature, column in zip(schema, rows.batch.columns, strict=True)
    }
    return columns if rows.mask is None else {**columns, MASK: rows.mask}


def _required(schema: Schema, label: str | None) -> Schema:
    """The schema in which a record without the label is an error."""
    features = (replace(f, required=True) if f.name == label and not f.ragged_rank else f for f in schema)
    return replace(schema, features=tuple(features))


def _part(column: Array | Ragged | Strings, begin: int, end: int) -> Array | Ragged | Strings:
    """Rows [begin, end), the splits from 0."""
    if isinstance(column, np.ndarray):
        return column[begin:end]
    splits: npt.NDArray[np.int64] = column.row_splits[begin : end + 1]
    first, last = int(splits[0]), int(splits[-1])
    valid = None if column.valid is None else column.valid[begin:end]
    if isinstance(column, Strings):
        return Strings(column.values[first:last], splits - first, column.text, valid)
    return Ragged(_part(column.values, first, last), splits - first, valid)
