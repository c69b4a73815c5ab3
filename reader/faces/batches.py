"""`Batches`: a `Dataset` as NumPy batches, one iterator that knows where it is."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.collating.form import Batch, Form
from recordmill.reader.faces.image_rows import ImageSize, decoded_rows, image_features
from recordmill.reader.fetching.fetcher import Fetcher, Rows
from recordmill.reader.fetching.order import Order, make_schedule
from recordmill.reader.fetching.readable import Readable
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
        image_size: ImageSize | None = None,
    ) -> None:
        form.check(dataset.schema)
        if order.pad_remainder and MASK in dataset.schema:
            raise UsageError(
                f"pad_remainder says in {MASK!r} which rows count, and a feature is called so: leave it out"
            )
        if memory_bytes < 1:
            raise UsageError(f"memory_bytes must be at least 1, not {memory_bytes}")
        self._schedule = make_schedule(dataset, batch_size, order)
        self._step = 0
        images = {} if image_size is None else dict.fromkeys(image_features(dataset), image_size)
        made_bytes = sum(size.row_bytes for size in images.values())
        schema = _required(dataset.schema, form.label)
        self._batches = _generate(Fetcher(dataset, self._schedule, schema, memory_bytes, made_bytes), form, images)

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._step += 1
        return batch

    def __len__(self) -> int:
        """How many batches are left.

        Raises:
            TypeError: there is no end.
        """
        left = self._schedule.remaining
        if left is None:
            raise TypeError("batches without end (epochs=None) have no number")
        return left - self._step

    @property
    def schedule(self) -> Schedule:
        """What is left of the schedule."""
        return self._schedule.after(self._step)

    def state(self) -> State:
        """Where the next batch stands, as JSON takes it: `ds.batches(..., state=...)` goes on there, also on another
        number of hosts.
        """
        return self.schedule.state()

    def close(self) -> None:
        """Stop reading ahead."""
        self._batches.close()


def _generate(fetcher: Fetcher, form: Form, images: Mapping[str, ImageSize]) -> Generator[Any, None, None]:
    dataset, schema = fetcher.dataset, fetcher.schema

    def finish(rows: Rows) -> tuple[Batch, list[int]]:
        return columns_of(dataset, rows, schema, images), rows.edges.tolist()

    for columns, edges in fetcher.fetch(finish):
        for begin, end in itertools.pairwise(edges):
            yield form.given({name: _part(column, begin, end) for name, column in columns.items()})


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
