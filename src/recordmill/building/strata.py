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

from recordmill.base.arrays import Int64s
from recordmill.base.errors import DataError
from recordmill.base.option_names import option
from recordmill.base.siphash import U64
from recordmill.building.hash_rows import HashRows, Rows

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
    """Where the splits of each class begin.

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
            is_behind = hashes > at["hash"]
            if (is_equal := hashes == at["hash"]).any():
                where = (0, 0) if self.is_grouped else (file[is_equal], position[is_equal])
                is_behind[is_equal] = _is_from(where, at[is_equal])
            found += is_behind
        return found


def _is_from(where: tuple[Any, Any], at: Any) -> npt.NDArray[np.bool_]:
    """Whether (file, position) is that of `at`, or follows it."""
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


def begins_of_records(rows: HashRows, wanted: Int64s) -> npt.NDArray[np.void]:
    """BEGIN_DTYPE [classes, splits - 1], from all records, RECORD_DTYPE. wanted: as `due` gives it."""
    ranks = np.cumsum(wanted, axis=1)[:, :-1]
    begins = np.full(ranks.shape, _BEHIND)
    before = np.zeros((len(wanted), 1), np.int64)  # of each class, in ranges that were looked at
    for some in rows.ranges():
        some = some[np.lexsort((some["position"], some["file"], some["hash"], some["stratum"]))]
        edges = np.searchsorted(some["stratum"], np.arange(len(wanted) + 1))
        inside = ranks - before
        here = (inside >= 0) & (inside < np.diff(edges)[:, None])
        found = some[(edges[:-1, None] + inside)[here]]
        for name in BEGIN_DTYPE.names or ():
            begins[name][here] = found[name]
        before += np.diff(edges)[:, None]
    return begins


@dataclass(frozen=True)
class GroupCuts:
    """What cuts at edges of groups come to. begins: as of records. counts: [classes, splits] records. groups: how many
    there are; mixed: how many hold several classes.
    """

    begins: npt.NDArray[np.void]
    counts: Int64s
    groups: int
    mixed: int


def begins_of_groups(rows: HashRows, wanted: Int64s) -> GroupCuts:
    """The cuts from all groups, GROUP_DTYPE; each at the edge of a group that is nearest to where it is due, of two as
    near ones at the first.
    """
    ranks = np.cumsum(wanted, axis=1)[:, :-1]
    begins, edges_at = np.full(ranks.shape, _BEHIND), np.broadcast_to(wanted.sum(axis=1)[:, None], ranks.shape).copy()
    before = np.zeros((len(wanted), 1), np.int64)
    groups = mixed = 0
    for some in rows.ranges():
        hashes, classes = np.unique(some["hash"], return_counts=True)
        groups, mixed = groups + len(hashes), mixed + int(np.sum(classes > 1))
        some = some[np.lexsort((some["hash"], some["stratum"]))]
        edges = np.searchsorted(some["stratum"], np.arange(len(wanted) + 1))
        ends = np.cumsum(some["records"])
        passed = np.concatenate([[0], ends])
        inside = ranks - before + passed[edges[:-1], None]
        here = (ranks >= before) & (ranks < before + (passed[edges[1:]] - passed[edges[:-1]])[:, None])
        at = np.searchsorted(ends, inside[here], side="right")
        first, last = passed[at], ends[at]
        is_first = inside[here] - first <= last - inside[here]
        cut = np.empty(len(at), BEGIN_DTYPE)
        cut["hash"] = some["hash"][at]  # the group is the first of the next split, or the last of this one
        cut["file"], cut["position"] = (np.where(is_first, 0, _BEHIND[name]) for name in ("file", "position"))
        begins[here] = cut
        edges_at[here] = (np.where(is_first, first, last) - inside[here]) + ranks[here]
        before += (passed[edges[1:]] - passed[edges[:-1]])[:, None]
    edges_at = np.hstack([np.zeros((len(wanted), 1), np.int64), edges_at, wanted.sum(axis=1)[:, None]])
    return GroupCuts(begins, np.diff(edges_at, axis=1), groups, mixed)


def describe_counts(column: str, names: Sequence[str], splits: Sequence[str], counts: Int64s) -> list[str]:
    """What to say of so many records [classes, splits]. names: of the classes, the missing ones first."""
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
