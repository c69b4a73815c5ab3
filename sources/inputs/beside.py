"""What is known of each file beside what it is, its class for one: columns, of which each row that files share is there
once, with a narrow number for each file. On an engine the numbers, and rows of a file's own, are lists of which workers
read slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.integer[Any]]


class FarList(Protocol):
    """A list that lies elsewhere, in blocks of so many rows."""

    @property
    def rows(self) -> int: ...

    def block(self, number: int) -> Any: ...


Share = Callable[[Any], FarList]


@dataclass(frozen=True, eq=False)
class Part:
    """Some columns. numbers: [files] each one's row in values; None: values has a row for each file."""

    values: pa.RecordBatch | FarList
    numbers: Numbers | FarList | None = None

    @property
    def here(self) -> tuple[pa.RecordBatch, Numbers | None]:
        """Both, before they are shared."""
        assert isinstance(self.values, pa.RecordBatch)
        assert self.numbers is None or isinstance(self.numbers, np.ndarray)
        return self.values, self.numbers

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Part):
            return NotImplemented
        return bool(self.values == other.values) and np.array_equal(self.numbers, other.numbers)  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash(type(self))

    def take(self, files: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """A row for each of these files."""
        if self.numbers is None:
            return _rows(self.values, files)
        numbers = self.numbers[files] if isinstance(self.numbers, np.ndarray) else _far_numbers(self.numbers, files)
        return _rows(self.values, numbers)

    def filter(self, keep: npt.NDArray[np.bool_]) -> Part:
        """Of those files only, and without the rows that none of them has."""
        values, numbers = self.here
        if numbers is None:
            return Part(values.filter(pa.array(keep)))
        left = numbers[keep]
        used = np.bincount(left, minlength=values.num_rows) > 0
        return Part(values.filter(pa.array(used)), narrow(np.maximum(np.cumsum(used) - 1, 0))[left])

    def shared(self, share: Share) -> Part:
        if self.numbers is None:
            return replace(self, values=share(self.values))
        return replace(self, numbers=share(self.numbers))


@dataclass(frozen=True)
class Beside:
    """All columns; no two parts have one of the same name."""

    parts: tuple[Part, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns())

    def columns(self) -> Iterator[tuple[str, pa.Array]]:
        """(name, the values that files have), before they are shared."""
        for part in self.parts:
            values, _ = part.here
            yield from zip(values.schema.names, values.columns, strict=True)

    def take(self, files: Sequence[int]) -> dict[str, pa.Array]:
        """Column by column the values of these files."""
        ordinals = np.asarray(files, np.int64)
        taken = (part.take(ordinals) for part in self.parts)
        return {name: rows.column(name) for rows in taken for name in rows.schema.names}

    def filter(self, keep: npt.NDArray[np.bool_]) -> Beside:
        """Of the files where keep says so: [files]."""
        return Beside(tuple(part.filter(keep) for part in self.parts))

    def shared(self, share: Share) -> Beside:
        """The same with what there is of each file as lists that lie elsewhere. share: puts one there."""
        return Beside(tuple(part.shared(share) for part in self.parts))


def narrow(numbers: npt.NDArray[Any]) -> Numbers:
    """The same numbers, none of which is negative, in as few bytes as they need."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def block_of(items: pa.RecordBatch | Numbers) -> pa.RecordBatch | Numbers:
    """A part of a list on its own, without what it was cut from."""
    if isinstance(items, np.ndarray):
        return items.copy()
    return items.take(pa.array(np.arange(items.num_rows)))


def _rows(values: pa.RecordBatch | FarList, rows: npt.NDArray[Any]) -> pa.RecordBatch:
    if isinstance(values, pa.RecordBatch):
        return values.take(pa.array(rows))
    found = [(where, block.take(pa.array(at))) for where, block, at in _blocks(values, rows)]
    if not found:
        return values.block(0).slice(0, 0)
    places = np.concatenate([where for where, _ in found])
    together = pa.Table.from_batches([batch for _, batch in found]).combine_chunks().to_batches()[0]
    return together.take(pa.array(np.argsort(places)))


def _far_numbers(numbers: FarList, files: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    found = np.empty(len(files), np.int64)
    for where, block, at in _blocks(numbers, files):
        found[where] = block[at]
    return found


def _blocks(far: FarList, rows: npt.NDArray[Any]) -> Iterator[tuple[npt.NDArray[np.int64], Any, npt.NDArray[np.int64]]]:
    """(which of the rows, the block that has them, where in it they are)"""
    numbers = rows // far.rows
    for number in np.unique(numbers).tolist():
        where = np.flatnonzero(numbers == number)
        yield where, far.block(number), rows[where] - number * far.rows
