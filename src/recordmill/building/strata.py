"""Classes divided among the splits to one record: which split a record of a class is in, by its hash and where the
class's splits begin; and where they begin, from the hashes of all records.

A class's records in the order of (hash, file, position) are cut behind as many as are due to each split, by largest
remainders (Hare and Niemeyer). So the cut is an order statistic: it depends on the records and the seed of the splits,
and on nothing else. Where groups must stay together, the cut lies at that edge of a group which is nearest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError
from recordmill.base.option_names import option
from recordmill.base.siphash import U64

Rows = npt.NDArray[np.void]
# a record, where each has a place of its own; groups: records of a class whose column has one value
RECORD_DTYPE = np.dtype([("hash", "<u8"), ("position", "<i8"), ("file", "<u4"), ("stratum", "<u4")])
GROUP_DTYPE = np.dtype([("hash", "<u8"), ("records", "<i8"), ("stratum", "<u4")])
# Where a split begins: at this record of its class. One behind all: the split is empty.
BEGIN_DTYPE = np.dtype([("hash", "<u8"), ("position", "<i8"), ("file", "<u4")])
_BEHIND = np.array((2**64 - 1, 2**63 - 1, 2**32 - 1), BEGIN_DTYPE)
MISSING = 0  # the class of records without a value; the others are numbered from 1 on
_LISTED = 12  # classes whose counts are said one by one


@dataclass(frozen=True, eq=False)
class Strata:
    """The places where the splits of each class begin.

    column: whose values are the classes. values: of class 1, 2, ...; ascending. begins: BEGIN_DTYPE [classes + 1,
    splits - 1], first the missing ones. is_grouped: records of equal hashes stay together. notes: what to say of it.
    """

    column: str
    values: pa.Array
    begins: npt.NDArray[np.void]
    is_grouped: bool
    notes: tuple[str, ...] = ()

    def splits(
        self, batch: pa.RecordBatch | None, hashes: U64, file: npt.NDArray[np.uint32], position: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint16]:
        """[records] the number of the split of each record.

        Raises:
            DataError: a record is of a class that was not there when all were counted.
        """
        assert batch is not None, "these records are not parsed"
        column = batch.column(self.column)
        numbers = class_numbers(column, self.values)
        if (unknown := numbers < 0).any():
            value = column[int(np.argmax(unknown))].as_py()
            raise DataError(
                f"{self.column!r} is {value!r:.99}, which was not there when its classes were counted: the input has "
                "changed meanwhile; build again",
                source="inputs",
            )
        found = np.zeros(len(hashes), np.uint16)
        for begins in self.begins.T:
            at: Any = begins[numbers]
            is_after = hashes > at["hash"]
            if (is_equal := hashes == at["hash"]).any():
                where = (0, 0) if self.is_grouped else (file[is_equal], position[is_equal])
                is_after[is_equal] = _is_from(where, at[is_equal])
            found += is_after
        return found


def _is_from(where: tuple[Any, Any], at: Any) -> npt.NDArray[np.bool_]:
    """Returns whether (file, position) is that of `at`, or follows it."""
    file, position = where
    found: npt.NDArray[np.bool_] = (file > at["file"]) | ((file == at["file"]) & (position >= at["position"]))
    return found


def class_numbers(column: pa.Array, values: pa.Array) -> Int64s:
    """[rows] the class of each value: MISSING of a null, -1 of one that is not among the values."""
    found = pc.index_in(column, value_set=values) if len(values) else pa.nulls(len(column), pa.int32())
    numbers = np.asarray(pc.fill_null(found, -2).cast(pa.int64())) + 1
    numbers[np.asarray(pc.is_null(column))] = MISSING
    return numbers


def add_groups(rows: Rows) -> Rows:
    """GROUP_DTYPE: rows of equal hash and class as one, ascending."""
    rows = rows[np.lexsort((rows["stratum"], rows["hash"]))]
    is_first = np.append(True, (np.diff(rows["hash"]) != 0) | (np.diff(rows["stratum"]) != 0))[: len(rows)]
    firsts = np.flatnonzero(is_first)
    groups = rows[firsts]
    if len(rows):
        groups["records"] = np.add.reduceat(rows["records"], firsts)
    return groups


def due(records: Sequence[int], fractions: Sequence[float]) -> Int64s:
    """[classes, splits] how many records of each class each split is to have: all of them, and of each split less than
    one more or fewer than its exact share. What is left of the whole numbers goes to the largest remainders, of equal
    ones to the first split.

    >>> due([10, 3], [0.8, 0.2]).tolist()
    [[8, 2], [2, 1]]
    """
    exact = [Fraction(repr(float(fraction))) for fraction in fractions]
    whole = math.lcm(*(share.denominator for share in exact))
    parts = [int(share * whole) for share in exact]
    total = sum(parts)
    found = np.zeros((len(records), len(parts)), np.int64)
    for at, count in enumerate(records):
        shares = [divmod(int(count) * part, total) for part in parts]
        rest = int(count) - sum(share for share, _ in shares)
        most = sorted(range(len(parts)), key=lambda split: (-shares[split][1], split))[:rest]
        found[at] = [share + (split in most) for split, (share, _) in enumerate(shares)]
    return found


def begins_of_records(rows: Rows, wanted: Int64s) -> npt.NDArray[np.void]:
    """BEGIN_DTYPE [classes, splits - 1], from all records, RECORD_DTYPE. wanted: as `due` gives it."""
    order = np.lexsort((rows["position"], rows["file"], rows["hash"], rows["stratum"]))
    sizes = wanted.sum(axis=1, keepdims=True)
    ranks = np.cumsum(wanted, axis=1)[:, :-1]
    is_there = ranks < sizes
    found = rows[order[(np.cumsum(sizes)[:, None] - sizes + ranks)[is_there]]]
    begins = np.full(ranks.shape, _BEHIND)
    for name in BEGIN_DTYPE.names or ():
        begins[name][is_there] = found[name]
    return begins


@dataclass(frozen=True)
class GroupCuts:
    """The result of cuts at the edges of groups. begins: as of records. counts: [classes, splits] records. groups: how
    many there are; mixed: how many hold several classes.
    """

    begins: npt.NDArray[np.void]
    counts: Int64s
    groups: int
    mixed: int


def begins_of_groups(rows: Rows, wanted: Int64s) -> GroupCuts:
    """Returns the cuts of all groups, GROUP_DTYPE, each at the edge nearest to where it is due, of two the first."""
    _, classes = np.unique(rows["hash"], return_counts=True)
    rows = rows[np.lexsort((rows["hash"], rows["stratum"]))]
    ends = np.cumsum(rows["records"])
    sizes = wanted.sum(axis=1, keepdims=True)
    before = np.cumsum(sizes)[:, None] - sizes  # records of the classes before each
    ranks = np.cumsum(wanted, axis=1)[:, :-1]
    is_there = ranks < sizes
    due_at = (before + ranks)[is_there]
    at = np.searchsorted(ends, due_at, side="right")
    first, last = ends[at] - rows["records"][at], ends[at]
    is_first = due_at - first <= last - due_at
    cuts = np.empty(len(at), BEGIN_DTYPE)
    cuts["hash"] = rows["hash"][at]  # the group is the first of the next split, or the last of this one
    cuts["file"], cuts["position"] = (np.where(is_first, 0, _BEHIND[name]) for name in ("file", "position"))
    begins, edges = np.full(ranks.shape, _BEHIND), np.broadcast_to(sizes, ranks.shape).copy()
    begins[is_there] = cuts
    edges[is_there] = (np.where(is_first, first, last) - due_at) + ranks[is_there]
    counts = np.diff(np.hstack([np.zeros_like(sizes), edges, sizes]), axis=1)
    return GroupCuts(begins, counts, len(classes), int(np.sum(classes > 1)))


def describe_counts(column: str, names: Sequence[str], splits: Sequence[str], counts: Int64s) -> list[str]:
    """Describes so many records [classes, splits] in words. names: of the classes, the missing ones first."""
    there = sorted(np.flatnonzero(counts.sum(axis=1)).tolist(), key=lambda at: (at == MISSING, at))
    said, ways = option("stratify", column), " / ".join(splits)
    if len(there) <= _LISTED:
        each = (f"{names[at]} {' / '.join(f'{count:,}' for count in counts[at].tolist())}" for at in there)
        lines = [f"{said}: records of each class in {ways}: {', '.join(each)}"]
    else:
        sizes = counts[there].sum(axis=1)
        lines = [
            f"{said}: {len(there):,} classes of {int(sizes.min()):,} to {int(sizes.max()):,} records, each divided "
            f"among {ways}"
        ]
    for split, name in enumerate(splits):
        if lacking := [names[at] for at in there if not counts[at, split]]:
            more = f" and {len(lacking) - 3:,} more" if len(lacking) > 3 else ""
            lines.append(f"split {name!r} has no record of {', '.join(lacking[:3])}{more}: too few for its share")
    return lines
