"""`Form`: how batches are given: each feature in the way asked for, a label and weights beside the rest."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.collating.course import Lot
from recordmill.reader.collating.packing import packed_rows, segments
from recordmill.reader.collating.padding import padded_steps, part
from recordmill.reader.collating.ways import Bucketed, Collate, OneHot, Packed, Padded, Way, ways_of
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.schemas.feature import Schema

LENGTH = "/length"  # behind the name of a feature that is padded
SEGMENT, POSITION = "/segment", "/position"  # behind the name of one that is packed
Batch = dict[str, Any]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Form:
    """How a batch is given. collate: feature to way, see `ways`. label, weights: the features that are y and the sample
    weights of `(x, y)` or `(x, y, weights)`.
    """

    collate: Mapping[str, Collate]
    label: str | None = None
    weights: str | None = None

    def check(self, schema: Schema) -> dict[str, Way]:
        """The ways of the features.

        Raises:
            UsageError: a name or a way to collate that the schema does not have, or that a feature of it takes.
        """
        ways = ways_of(self.collate, schema)
        for option, wanted in (("label", self.label), ("weights", self.weights)):
            if wanted is not None and wanted not in schema:
                raise UsageError(f"{option} {wanted!r} is no feature that is read; there are {', '.join(schema.names)}")
        if self.weights is not None and self.label is None:
            raise UsageError("weights go with a label: (x, y, weights)")
        for name, way in ways.items():
            for made in made_names(name, way):
                if made in schema:
                    raise UsageError(f"collate: {name!r} as {way} gives {made!r}, and a feature is called so")
        return ways

    def given(self, batch: Batch) -> Any:
        """A collated batch as it is wanted; with a label, x is the column itself where it is the only one."""
        if self.label is None:
            return batch
        rest = [batch.pop(name) for name in (self.label, self.weights) if name is not None]
        return (batch.popitem()[1] if len(batch) == 1 else batch, *rest)

    def batches(self, columns: Batch, lot: Lot, ways: Mapping[str, Way]) -> list[Any]:
        """The steps of a lot, of which the columns are by name.

        Raises:
            DataError: a list that should be dense is not, or a number is no class.
        """
        parts: dict[str, list[Any]] = {}
        for name, column in columns.items():
            parts |= steps_of(name, column, lot, ways.get(name))
        names = list(parts)
        return [self.given(dict(zip(names, step, strict=True))) for step in zip(*parts.values(), strict=True)]


def made_names(name: str, way: Way) -> tuple[str, ...]:
    """What a way gives beside the feature itself."""
    if isinstance(way, Packed):
        return (name + SEGMENT, name + POSITION)
    return (name + LENGTH,) if isinstance(way, Padded | Bucketed) else ()


def steps_of(name: str, column: Any, lot: Lot, way: Way | None) -> dict[str, list[Any]]:
    """The column of a lot, a part for each step, and what its way gives beside it."""
    edges = lot.rows.edges
    if isinstance(way, Packed):
        assert lot.bins is not None
        return _packed(name, column, lot.bins, edges, way)
    if isinstance(way, Padded | Bucketed):
        lengths = column.lengths
        padded = padded_steps(column, edges, step_lengths(lengths, lot, way), way.value)
        return {name: padded, name + LENGTH: _parts(lengths, edges)}
    if isinstance(way, OneHot):
        column = one_hot(name, column, way)
    elif way == "dense":
        check_dense(name, column.lengths, edges)
        return {name: padded_steps(column, edges, column.lengths[edges[:-1]], 0)}
    if lot.bins is not None:
        column = Ragged(column, lot.bins)
    return {name: _parts(column, edges)}


def step_lengths(lengths: Int64s, lot: Lot, way: Padded | Bucketed) -> Int64s:
    """[steps] what each step is padded to."""
    if isinstance(way, Bucketed):
        assert lot.lengths is not None
        return lot.lengths
    edges = lot.rows.edges
    if way.length is not None:
        return np.full(len(edges) - 1, way.length, np.int64)
    longest = np.maximum.reduceat(np.append(lengths, 0), edges[:-1]) if len(edges) > 1 else np.zeros(0, np.int64)
    found: Int64s = -(-longest // way.multiple) * way.multiple
    return found


def one_hot(name: str, column: Array, way: OneHot) -> npt.NDArray[np.float32]:
    """[rows, depth]; a missing number is no class.

    Raises:
        DataError: a number is no class.
    """
    assert way.depth is not None
    rows = check_classes(name, column, way)
    out = np.zeros((len(column), way.depth), np.float32)
    out[rows, np.ma.getdata(column)[rows]] = 1
    return out


def check_classes(name: str, column: Array, way: OneHot) -> Int64s:
    """The rows that have a number.

    Raises:
        DataError: a number is no class.
    """
    assert way.depth is not None
    rows = np.flatnonzero(~np.ma.getmaskarray(column))
    values = np.ma.getdata(column)[rows]
    outside = (values < 0) | (values >= way.depth)
    if outside.any():
        raise DataError(f"feature {name!r} is {values[outside][0]}, and there are {way.depth} classes, from 0")
    return rows


def check_dense(name: str, lengths: Int64s, edges: Int64s) -> None:
    """Raises:
    DataError: rows of one step have other lengths than each other.
    """
    for step in _parts(lengths, edges):
        if step.min() != step.max():
            raise DataError(
                f"feature {name!r} has rows of {step.min()} to {step.max()} items in one batch, which are not "
                'dense: collate it as "padded" or "ragged"'
            )


def _packed(name: str, column: Ragged, bins: Int64s, edges: Int64s, way: Packed) -> dict[str, list[Any]]:
    rows = packed_rows(column, bins)
    padded = padded_steps(rows, edges, np.full(len(edges) - 1, way.length, np.int64), way.value)
    numbers, positions = segments(column, bins, way.length)
    return {name: padded, name + SEGMENT: _parts(numbers, edges), name + POSITION: _parts(positions, edges)}


def _parts(column: Array | Ragged | Strings, edges: Int64s) -> list[Any]:
    return [part(column, begin, end) for begin, end in itertools.pairwise(edges.tolist())]
