"""Stratified splits: each class is divided by the fractions, to the record.

The records of a class are ordered by (hash, file, position). Each split gets the next ones, and the method of largest
remainders determines their number. So the result depends only on the records and the seed. If groups must stay
together, a boundary moves to the nearest edge of a group.
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
# One row per record, or, with groups, one per group and class. A group is the records with one hash.
RECORD_DTYPE = np.dtype(
    [("hash", "<u8"), ("position", "<i8"), ("file", "<u4"), ("class_id", "<u4")]
)
GROUP_DTYPE = np.dtype([("hash", "<u8"), ("records", "<i8"), ("class_id", "<u4")])
# The first record of a split within a class. It is after all records if the split is empty.
START_DTYPE = np.dtype([("hash", "<u8"), ("position", "<i8"), ("file", "<u4")])
_AFTER_ALL = np.array((2**64 - 1, 2**63 - 1, 2**32 - 1), START_DTYPE)
MISSING_CLASS = 0  # the class of null; the others are numbered from 1
_MAX_LISTED_CLASSES = 12  # classes: with more, the message has only their number and range


@dataclass(frozen=True, eq=False)
class StratifiedSplits:
    """The boundaries of the splits in each class.

    Classes are numbered: MISSING_CLASS for null, and i + 1 for values[i].

    Attributes:
        column: The column that contains the class.
        values: Its distinct values, ascending.
        split_starts: START_DTYPE [classes, splits - 1], the first record of each split. The first split begins with the
            class.
        is_grouped: Records with the same hash are a group that stays in one split.
        notes: Messages for the user about the size of the splits.
    """

    column: str
    values: pa.Array
    split_starts: npt.NDArray[np.void]
    is_grouped: bool
    notes: tuple[str, ...] = ()

    def assign(
        self,
        batch: pa.RecordBatch | None,
        hashes: U64,
        file: npt.NDArray[np.uint32],
        position: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint16]:
        """Returns the split of each record, [rows] uint16.

        Args:
            batch: The records, with at least the class column.
            hashes: [rows] from `KeyAssigner.split_hashes`.
            file: [rows] indices into the source's files.
            position: [rows] row numbers in the files.

        Raises:
            DataError: A class is unknown, because an input has changed since the classes were counted.
        """
        assert batch is not None, "these records are not parsed"
        column = batch.column(self.column)
        numbers = find_class_ids(column, self.values)
        if (unknown := numbers < 0).any():
            value = column[int(np.argmax(unknown))].as_py()
            raise DataError(
                f"{self.column!r} is {value!r:.99}, which was not there when its classes were counted: the input has "
                "changed meanwhile; build again",
                source="inputs",
            )
        found = np.zeros(len(hashes), np.uint16)
        for begins in self.split_starts.T:
            at: Any = begins[numbers]
            is_after = hashes > at["hash"]
            # equal hashes are rare without groups, so file and position are compared for these alone
            if (is_equal := hashes == at["hash"]).any():
                where = (0, 0) if self.is_grouped else (file[is_equal], position[is_equal])
                is_after[is_equal] = _is_at_or_after(where, at[is_equal])
            found += is_after
        return found


def _is_at_or_after(where: tuple[Any, Any], at: Any) -> npt.NDArray[np.bool_]:
    """Returns whether (file, position) is at or after the one in `at`."""
    file, position = where
    found: npt.NDArray[np.bool_] = (file > at["file"]) | (
        (file == at["file"]) & (position >= at["position"])
    )
    return found


def find_class_ids(column: pa.Array, values: pa.Array) -> Int64s:
    """Returns the class of each value, [rows] int64.

    It is MISSING_CLASS for null, i + 1 for values[i], and -1 for other values.
    """
    found = (
        pc.index_in(column, value_set=values) if len(values) else pa.nulls(len(column), pa.int32())
    )
    numbers = np.asarray(pc.fill_null(found, -2).cast(pa.int64())) + 1
    numbers[np.asarray(pc.is_null(column))] = MISSING_CLASS
    return numbers


def combine_rows(rows: Rows) -> Rows:
    """Combines rows of the same group and class. Returns them sorted by hash and class."""
    rows = rows[np.lexsort((rows["class_id"], rows["hash"]))]
    is_first = np.append(True, (np.diff(rows["hash"]) != 0) | (np.diff(rows["class_id"]) != 0))[
        : len(rows)
    ]
    firsts = np.flatnonzero(is_first)
    groups = rows[firsts]
    if len(rows):
        groups["records"] = np.add.reduceat(rows["records"], firsts)
    return groups


def target_counts(records: Sequence[int], fractions: Sequence[float]) -> Int64s:
    """Returns the number of records of each class that each split should get.

    Uses the method of largest remainders: each number differs from the exact share by less than 1. If remainders are
    equal, the earlier split gets the record.

    >>> target_counts([10, 3], [0.8, 0.2]).tolist()
    [[8, 2], [2, 1]]

    Args:
        records: Number of records of each class.
        fractions: The share of each split. They may have any sum.

    Returns:
        int64 [classes, splits]. Rows add up to `records`.
    """
    # 0.1 becomes 1/10, not the nearest binary number, so that no share is off by one
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


def starts_by_record(rows: Rows, wanted: Int64s) -> npt.NDArray[np.void]:
    """Returns the first record of each split but the first, within each class.

    Args:
        rows: RECORD_DTYPE, all records.
        wanted: [classes, splits] number of records, from `target_counts`.

    Returns:
        START_DTYPE [classes, splits - 1].
    """
    order = np.lexsort((rows["position"], rows["file"], rows["hash"], rows["class_id"]))
    sizes = wanted.sum(axis=1, keepdims=True)
    ranks = np.cumsum(wanted, axis=1)[:, :-1]
    is_there = ranks < sizes
    found = rows[order[(np.cumsum(sizes)[:, None] - sizes + ranks)[is_there]]]
    begins = np.full(ranks.shape, _AFTER_ALL)
    for name in START_DTYPE.names or ():
        begins[name][is_there] = found[name]
    return begins


@dataclass(frozen=True)
class GroupedStarts:
    """Boundaries of splits between groups.

    Attributes:
        split_starts: START_DTYPE [classes, splits - 1].
        counts: [classes, splits] number of records that the splits really get.
        num_groups: Number of groups.
        mixed_groups: Number of groups that contain more than one class.
    """

    split_starts: npt.NDArray[np.void]
    counts: Int64s
    num_groups: int
    mixed_groups: int


def starts_by_group(rows: Rows, wanted: Int64s) -> GroupedStarts:
    """Returns boundaries of the splits that divide no group.

    Each boundary of `wanted` moves to the nearer end of the group that contains it, or to its start if both are as
    near.

    Args:
        rows: GROUP_DTYPE, one row per group and class, from `combine_rows`.
        wanted: [classes, splits] number of records, from `target_counts`.
    """
    _, classes = np.unique(rows["hash"], return_counts=True)
    rows = rows[np.lexsort((rows["hash"], rows["class_id"]))]
    ends = np.cumsum(rows["records"])
    sizes = wanted.sum(axis=1, keepdims=True)
    before = np.cumsum(sizes)[:, None] - sizes  # records in the classes before each one
    ranks = np.cumsum(wanted, axis=1)[:, :-1]
    is_there = ranks < sizes
    due_at = (before + ranks)[is_there]
    at = np.searchsorted(ends, due_at, side="right")
    first, last = ends[at] - rows["records"][at], ends[at]
    is_first = due_at - first <= last - due_at
    cuts = np.empty(len(at), START_DTYPE)
    cuts["hash"] = rows["hash"][
        at
    ]  # the group is the first of the next split, or the last of this one
    cuts["file"], cuts["position"] = (
        np.where(is_first, 0, _AFTER_ALL[name]) for name in ("file", "position")
    )
    begins, edges = np.full(ranks.shape, _AFTER_ALL), np.broadcast_to(sizes, ranks.shape).copy()
    begins[is_there] = cuts
    edges[is_there] = (np.where(is_first, first, last) - due_at) + ranks[is_there]
    counts = np.diff(np.hstack([np.zeros_like(sizes), edges, sizes]), axis=1)
    return GroupedStarts(begins, counts, len(classes), int(np.sum(classes > 1)))


def describe_class_sizes(
    column: str, names: Sequence[str], splits: Sequence[str], counts: Int64s
) -> list[str]:
    """Returns messages about the size of each class in each split.

    Args:
        column: The column that contains the class.
        names: The name of each class, MISSING_CLASS first.
        splits: The names of the splits.
        counts: [classes, splits] number of records.
    """
    there = sorted(
        np.flatnonzero(counts.sum(axis=1)).tolist(), key=lambda at: (at == MISSING_CLASS, at)
    )
    said, ways = option("stratify", column), " / ".join(splits)
    if len(there) <= _MAX_LISTED_CLASSES:
        each = (
            f"{names[at]} {' / '.join(f'{count:,}' for count in counts[at].tolist())}"
            for at in there
        )
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
            lines.append(
                f"split {name!r} has no record of {', '.join(lacking[:3])}{more}: too few for its share"
            )
    return lines
