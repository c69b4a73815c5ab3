"""`finder`: lots with their images decoded, or without what can't be; `Refill` makes batches of one size of such lots
again, and knows where the next one stands.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.collating.course import Lot
from recordmill.reader.collating.ways import Bucketed, Packed, Way
from recordmill.reader.faces.rebatch import joined_batches
from recordmill.reader.fetching.around import place_of
from recordmill.reader.fetching.clock import spent
from recordmill.reader.fetching.fetcher import Rows
from recordmill.reader.fetching.order import Order
from recordmill.reader.fetching.readable import Fetchable
from recordmill.reader.images.rows import ImageDecoder
from recordmill.reader.sampling.schedule import Schedule
from recordmill.schemas.feature import Schema

OnBad = Literal["error", "skip"]


Find = Callable[[Lot], Lot]


def order_of(order: Order, on_bad: str, ways: Mapping[str, Way]) -> Order:
    """The order in which records are fetched: with "skip", also those that fill no step, since they may fill one up.

    Raises:
        UsageError: an option of no meaning, or that does not go with another.
    """
    if on_bad not in ("error", "skip"):
        raise UsageError(f'on_bad is "error" or "skip", not {on_bad!r}')
    if on_bad == "error":
        return order
    if order.num_hosts != 1 or order.pad_remainder:
        raise UsageError(
            'on_bad="skip" makes batches of what is left, and hosts (or ranks of torch.distributed) that skip other '
            "records would not have equally many: it goes with neither num_hosts nor pad_remainder. ds.filter leaves "
            "records out by number, and `recordmill build` makes a data set without those that are damaged"
        )
    if gathered := [name for name, way in ways.items() if isinstance(way, Bucketed | Packed)]:
        raise UsageError(
            f'on_bad="skip" fills batches up with the records that come next, and {gathered[0]!r} as '
            f"{ways[gathered[0]]} gathers them otherwise: leave one of them out"
        )
    return replace(order, drop_remainder=False)


def finder(dataset: Fetchable, schema: Schema, decoder: ImageDecoder, on_bad: str) -> Find:
    """A function for the fetcher's threads: a lot to one with images.

    It raises DataError where an image can't be decoded, with "skip" it leaves that row out.
    """

    def find(lot: Lot) -> Lot:
        with spent("images"):
            images, bad = decoder.decode(lot.rows, schema)
        if not bad:
            return replace(lot, images=images)
        if on_bad == "error":
            path, place = place_of(dataset.files, dataset.ends, int(lot.rows.numbers[bad[0][0]]))
            raise DataError(bad[0][1], source=path, place=place)
        return _without(replace(lot, images=images), bad)

    return find


def _without(found: Lot, bad: list[tuple[int, str]]) -> Lot:
    rows = found.rows
    assert rows.positions is not None
    named = tuple((int(rows.numbers[row]), reason) for row, reason in bad)
    kept = np.delete(np.arange(len(rows.numbers)), [row for row, _ in bad])
    left = Rows(
        rows.stretch,
        rows.batch.take(pa.array(kept)),
        np.array([0, len(kept)], np.int64),
        rows.numbers[kept],
        None,
        rows.positions[kept],
        rows.bad + named,
    )
    return Lot(left, images={name: array[kept] for name, array in found.images.items()})


class Refill:
    """Batches of what can be used. skipped: how many records were left out so far."""

    def __init__(self, dataset: Fetchable, schedule: Schedule, drop_remainder: bool) -> None:
        self._dataset, self._begin, self._drop = dataset, schedule, drop_remainder
        self.schedule = schedule  # what is left of it behind the batch that was given last
        self.skipped = 0
        self._of_epoch: list[tuple[int, str]] = []

    def refilled(self, found: Iterable[Lot]) -> Iterator[Lot]:
        """The same rows, in batches of one size but for an epoch's last one; a warning at an epoch's end says how many
        were left out.
        """
        held: list[Lot] = []
        for one in found:
            if held and held[0].rows.stretch.epoch != one.rows.stretch.epoch:
                yield from self._ended(held)
                held = []
            self._of_epoch += one.rows.bad
            self.skipped += len(one.rows.bad)
            held = [_joined([*held, one])]
            size = self._begin.steps.batch_size
            whole = len(held[0].rows.numbers) // size * size
            if whole:
                yield _cut(held[0], 0, whole, size)
                held = [_cut(held[0], whole, len(held[0].rows.numbers), size)]
        yield from self._ended(held)

    def given(self, rows: Rows, behind: int) -> None:
        """Note that the batch was given that ends behind this row."""
        assert rows.positions is not None
        position = int(rows.positions[behind - 1]) + 1
        self.schedule = replace(self._begin, epoch=rows.stretch.epoch, position=position)

    def _ended(self, held: list[Lot]) -> Iterator[Lot]:
        if held and len(held[0].rows.numbers) and not self._drop:
            yield held[0]
        if held and self._of_epoch:
            self._tell(held[0].rows.stretch.epoch)
        self._of_epoch = []

    def _tell(self, epoch: int) -> None:
        number, reason = self._of_epoch[0]
        path, place = place_of(self._dataset.files, self._dataset.ends, number)
        count = len(self._of_epoch)
        warnings.warn(
            f"epoch {epoch}: {count} of {len(self._dataset)} records {'was' if count == 1 else 'were'} skipped "
            f'(on_bad="skip"); the first: {path}: {place}: {reason}',
            stacklevel=2,
        )


def _joined(found: list[Lot]) -> Lot:
    """The rows of these, which are of one epoch, as one."""
    if len(found) == 1:
        return found[0]
    rows = [one.rows for one in found]
    numbers = np.concatenate([one.numbers for one in rows])
    positions = np.concatenate([one.positions for one in rows if one.positions is not None])
    edges = np.array([0, len(numbers)], np.int64)
    batch = joined_batches([one.batch for one in rows])
    images = {name: np.concatenate([one.images[name] for one in found]) for name in found[0].images}
    return Lot(Rows(rows[0].stretch, batch, edges, numbers, None, positions), images=images)


def _cut(found: Lot, begin: int, end: int, size: int) -> Lot:
    """Rows [begin, end) in steps of so many."""
    rows = found.rows
    assert rows.positions is not None
    edges = np.append(np.arange(0, end - begin, size), end - begin).astype(np.int64)
    part = slice(begin, end)
    cut = Rows(
        rows.stretch, rows.batch.slice(begin, end - begin), edges, rows.numbers[part], None, rows.positions[part]
    )
    return Lot(cut, images={name: array[part] for name, array in found.images.items()})
