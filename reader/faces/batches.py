"""`Batches`: a `Dataset` as NumPy batches, one iterator that knows where it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.faces.collate import Batch, Form
from recordmill.reader.faces.image_rows import ImageSize, decoded_rows, image_features
from recordmill.reader.fetching.beside import Beside
from recordmill.reader.fetching.fetcher import Fetcher, Rows
from recordmill.reader.fetching.order import Order, make_schedule
from recordmill.reader.fetching.readable import Fetchable
from recordmill.reader.sampling.schedule import Schedule, State
from recordmill.records.columns.parts import to_numpy
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.schemas.feature import Schema


@dataclass(frozen=True)
class Given:
    """What batches of a data set hold, whichever their order. images: the features that are decoded, and to what. ids:
    whether rows say which record they are.
    """

    dataset: Fetchable
    form: Form
    images: Mapping[str, ImageSize]
    memory_bytes: int
    ids: bool = False

    @classmethod
    def of(
        cls, dataset: Fetchable, order: Order, memory_bytes: int, form: Form, image_size: ImageSize | None, ids: bool
    ) -> Given:
        """Raises:
        UsageError: an option does not fit the data.
        """
        form.check(dataset.schema)
        Beside(order.pad_remainder, ids).check(dataset.schema)
        if memory_bytes < 1:
            raise UsageError(f"memory_bytes must be at least 1, not {memory_bytes}")
        images = {} if image_size is None else dict.fromkeys(image_features(dataset), image_size)
        return cls(dataset, form, images, memory_bytes, ids)

    @property
    def schema(self) -> Schema:
        """What is decoded: in it a record without the label is an error."""
        return _required(self.dataset.schema, self.form.label)

    def batches(self, schedule: Schedule, give: Callable[[Batch], Any], every: int = 1) -> Generator[Any, None, None]:
        """give(columns) of each step, or of the first one and every so many-th one behind it."""
        made_bytes = sum(size.row_bytes for size in self.images.values())
        fetcher = Fetcher(self.dataset, schedule, self.schema, self.memory_bytes, made_bytes, every, self.ids)

        def finish(rows: Rows) -> tuple[Batch, list[int]]:
            return columns_of(self.dataset, rows, self.images), rows.edges.tolist()

        for columns, edges in fetcher.fetch(finish):
            for begin, end in itertools.pairwise(edges):
                yield give({name: _part(column, begin, end) for name, column in columns.items()})


class Batches(Iterator[Any]):
    """The batches of a schedule, read ahead on threads. `state()` says where the next one stands.

    Its arrays are views of larger ones, which are there as long as one of them is.
    """

    def __init__(
        self,
        dataset: Fetchable,
        batch_size: int,
        order: Order,
        memory_bytes: int,
        form: Form,
        image_size: ImageSize | None = None,
        ids: bool = False,
    ) -> None:
        given = Given.of(dataset, order, memory_bytes, form, image_size, ids)
        self._schedule = make_schedule(dataset, batch_size, order)
        self._step = 0
        self._batches = given.batches(self._schedule, form.given)

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


def columns_of(dataset: Fetchable, rows: Rows, images: Mapping[str, ImageSize]) -> Batch:
    """The columns by name, as `records.columns.parts` gives them, images decoded.

    Raises:
        DataError: an image can't be decoded.
    """
    found: Batch = {}
    for feature, column in zip(rows.schema, rows.batch.columns, strict=True):
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
    return found


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
