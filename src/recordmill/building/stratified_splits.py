"""Stratified splits, which divide each class by the fractions, to the record.

The records of a class are ordered by (hash, file, position). The first ones belong to the first
split, the next ones to the second split, and so on. The method of largest remainders determines how
many records each split gets. So the result depends only on the records and the seed. If split
groups must stay together, a boundary moves to the nearest edge of a split group.
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
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.siphash import U64

Rows = npt.NDArray[np.void]
# One row per record or, with split groups, one per split group and class. A split group consists of
# the records with the same hash.
RECORD_DTYPE = np.dtype(
    [("hash", "<u8"), ("position", "<i8"), ("file", "<u4"), ("class_id", "<u4")]
)
GROUP_DTYPE = np.dtype([("hash", "<u8"), ("records", "<i8"), ("class_id", "<u4")])
# The first record of a split within a class. It is after all records if the split is empty.
START_DTYPE = np.dtype([("hash", "<u8"), ("position", "<i8"), ("file", "<u4")])
_AFTER_ALL = np.array((2**64 - 1, 2**63 - 1, 2**32 - 1), START_DTYPE)
# The class of null. The others are numbered from 1.
MISSING_CLASS = 0
# With more classes, the message names none of them, only their number and the range of their sizes.
_MAX_LISTED_CLASSES = 12


@dataclass(frozen=True, eq=False)
class StratifiedSplits:
    """The boundaries of the splits in each class.

    Classes are numbered: MISSING_CLASS for null, and i + 1 for values[i].

    Attributes:
        column: The column that contains the class.
        values: Its distinct values, ascending.
        split_starts: START_DTYPE [classes, splits - 1], the first record of each split but the
            first, which begins with the class.
        is_grouped: True if records with the same hash are a split group, which stays in one split.
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
        file_ids: npt.NDArray[np.uint32],
        positions: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint16]:
        """Returns the split id of each record, [rows] uint16.

        Args:
            batch: The records, with at least the class column.
            hashes: [rows] from `KeyAssigner.split_hashes`.
            file_ids: [rows] indices into the source's files.
            positions: [rows] row numbers in the files.

        Raises:
            DataError: A class is unknown, because an input has changed since the classes were
                counted.
        """
        assert batch is not None, "these records are not parsed"
        column = batch.column(self.column)
        class_ids = find_class_ids(column, self.values)
        if (is_unknown := class_ids < 0).any():
            value = column[int(np.argmax(is_unknown))].as_py()
            raise DataError(
                f"{self.column!r} is {value!r:.99}, a value that did not occur when "
                "the classes were counted: the input has changed; build again",
                source="inputs",
            )
        split_ids = np.zeros(len(hashes), np.uint16)
        for starts in self.split_starts.T:
            starts_of_rows: Any = starts[class_ids]
            is_after = hashes > starts_of_rows["hash"]
            # Equal hashes are rare without split groups, so file and position are compared for
            # these alone.
            if (is_equal := hashes == starts_of_rows["hash"]).any():
                row_position = (
                    (0, 0) if self.is_grouped else (file_ids[is_equal], positions[is_equal])
                )
                is_after[is_equal] = _is_at_or_after(row_position, starts_of_rows[is_equal])
            split_ids += is_after
        return split_ids


def _is_at_or_after(row_position: tuple[Any, Any], bound: Any) -> npt.NDArray[np.bool_]:
    """Returns whether each (file, position) is equal to or greater than the one in `bound`."""
    file, position = row_position
    return (file > bound["file"]) | ((file == bound["file"]) & (position >= bound["position"]))


def find_class_ids(column: pa.Array, values: pa.Array) -> Int64s:
    """Returns the class of each value, [rows] int64.

    The class is MISSING_CLASS for null, i + 1 for values[i], and -1 for a value that is not in
    `values`.
    """
    indices = (
        pc.index_in(column, value_set=values) if len(values) else pa.nulls(len(column), pa.int32())
    )
    # Unknown values get -1 here, and null is set below.
    class_ids = np.asarray(pc.fill_null(indices, -2).cast(pa.int64())) + 1
    class_ids[np.asarray(pc.is_null(column))] = MISSING_CLASS
    return class_ids


def combine_rows(rows: Rows) -> Rows:
    """Combines the rows of each split group and class into one row.

    The new row has the sum of their records.

    Args:
        rows: GROUP_DTYPE, in any order.

    Returns:
        GROUP_DTYPE, sorted by hash and class.
    """
    rows = rows[np.lexsort((rows["class_id"], rows["hash"]))]
    is_first = np.append(True, (np.diff(rows["hash"]) != 0) | (np.diff(rows["class_id"]) != 0))[
        : len(rows)
    ]
    firsts = np.flatnonzero(is_first)
    groups = rows[firsts]
    if len(rows):
        groups["records"] = np.add.reduceat(rows["records"], firsts)
    return groups


def compute_targets(class_sizes: Sequence[int], fractions: Sequence[float]) -> Int64s:
    """Returns the number of records of each class that each split should get.

    Uses the method of largest remainders: each number differs from the exact share by less than 1.
    If remainders are equal, the earlier split gets the record.

    >>> compute_targets([10, 3], [0.8, 0.2]).tolist()
    [[8, 2], [2, 1]]

    Args:
        class_sizes: Number of records of each class.
        fractions: The share of each split. They may have any sum.

    Returns:
        int64 [classes, splits]. Rows add up to `class_sizes`.
    """
    # 0.1 becomes 1/10 and not the nearest binary number, so that no share is off by one.
    exact_shares = [Fraction(repr(float(fraction))) for fraction in fractions]
    denominator = math.lcm(*(share.denominator for share in exact_shares))
    weights = [int(share * denominator) for share in exact_shares]
    total = sum(weights)
    targets = np.zeros((len(class_sizes), len(weights)), np.int64)
    for i, class_size in enumerate(class_sizes):
        shares = [divmod(int(class_size) * weight, total) for weight in weights]
        remainder = int(class_size) - sum(share for share, _ in shares)
        # The splits with the largest remainders get one more record each.
        winners = sorted(range(len(weights)), key=lambda split: (-shares[split][1], split))[
            :remainder
        ]
        targets[i] = [share + (split in winners) for split, (share, _) in enumerate(shares)]
    return targets


def compute_added_targets(
    stored: Int64s, added: Sequence[int] | Int64s, fractions: Sequence[float]
) -> Int64s:
    """Returns the number of added records of each class that each split should get.

    All records together have the shares of `compute_targets`, as far as the added records allow.
    So the small splits get their share even if a few records are added at a time.

    >>> compute_added_targets(np.array([[8, 1]]), [1], [0.8, 0.2]).tolist()
    [[0, 1]]
    >>> compute_added_targets(np.array([[8, 5]]), [2], [0.8, 0.2]).tolist()
    [[2, 0]]

    Args:
        stored: [classes, splits] number of records that are in the splits already.
        added: [classes] number of added records.
        fractions: The share of each split. They may have any sum.

    Returns:
        int64 [classes, splits]. Rows add up to `added`.
    """
    totals = [int(count) for count in stored.sum(axis=1) + np.asarray(added)]
    lacking = np.maximum(compute_targets(totals, fractions) - stored, 0)
    return np.concatenate(
        [
            np.zeros((0, len(fractions)), np.int64),
            *(
                compute_targets([int(count)], row.tolist() if row.any() else fractions)
                for count, row in zip(added, lacking, strict=True)
            ),
        ]
    )


def find_starts_by_record(rows: Rows, targets: Int64s) -> npt.NDArray[np.void]:
    """Returns the first record of each split but the first, within each class.

    Args:
        rows: RECORD_DTYPE, all records, in any order.
        targets: [classes, splits] number of records, from `compute_targets`.

    Returns:
        START_DTYPE [classes, splits - 1].
    """
    order = np.lexsort((rows["position"], rows["file"], rows["hash"], rows["class_id"]))
    sizes = targets.sum(axis=1, keepdims=True)
    split_ranks = np.cumsum(targets, axis=1)[:, :-1]
    is_non_empty = split_ranks < sizes
    start_records = rows[order[(np.cumsum(sizes)[:, None] - sizes + split_ranks)[is_non_empty]]]
    split_starts = np.full(split_ranks.shape, _AFTER_ALL)
    for name in START_DTYPE.names or ():
        split_starts[name][is_non_empty] = start_records[name]
    return split_starts


@dataclass(frozen=True)
class GroupedStarts:
    """Boundaries of splits that divide no split group.

    Attributes:
        split_starts: START_DTYPE [classes, splits - 1].
        counts: [classes, splits] number of records that the splits actually get.
        num_groups: Number of split groups.
        num_mixed_groups: Number of split groups that contain more than one class.
    """

    split_starts: npt.NDArray[np.void]
    counts: Int64s
    num_groups: int
    num_mixed_groups: int


def find_starts_by_group(rows: Rows, targets: Int64s) -> GroupedStarts:
    """Returns boundaries of the splits that divide no split group.

    If a boundary of `targets` is inside of a split group, it moves to the nearer edge of that split
    group. If both edges are equally near, it moves to the start.

    Args:
        rows: GROUP_DTYPE, one row per split group and class, from `combine_rows`.
        targets: [classes, splits] number of records, from `compute_targets`.
    """
    _, classes_per_group = np.unique(rows["hash"], return_counts=True)
    rows = rows[np.lexsort((rows["hash"], rows["class_id"]))]
    ends = np.cumsum(rows["records"])
    sizes = targets.sum(axis=1, keepdims=True)
    # Records in the classes before each one.
    class_starts = np.cumsum(sizes)[:, None] - sizes
    split_ranks = np.cumsum(targets, axis=1)[:, :-1]
    is_non_empty = split_ranks < sizes
    target_ranks = (class_starts + split_ranks)[is_non_empty]
    group_rows = np.searchsorted(ends, target_ranks, side="right")
    group_begins, group_ends = ends[group_rows] - rows["records"][group_rows], ends[group_rows]
    moves_back = target_ranks - group_begins <= group_ends - target_ranks
    starts = np.empty(len(group_rows), START_DTYPE)
    # The split group around the boundary goes to the next split (moves_back), or stays in this one.
    starts["hash"] = rows["hash"][group_rows]
    # All records of a split group have one hash. A start before or after all of them keeps them
    # together.
    starts["file"], starts["position"] = (
        np.where(moves_back, 0, _AFTER_ALL[name]) for name in ("file", "position")
    )
    split_starts = np.full(split_ranks.shape, _AFTER_ALL)
    split_edges = np.broadcast_to(sizes, split_ranks.shape).copy()
    split_starts[is_non_empty] = starts
    split_edges[is_non_empty] = (
        np.where(moves_back, group_begins, group_ends) - target_ranks
    ) + split_ranks[is_non_empty]
    counts = np.diff(np.hstack([np.zeros_like(sizes), split_edges, sizes]), axis=1)
    return GroupedStarts(
        split_starts=split_starts,
        counts=counts,
        num_groups=len(classes_per_group),
        num_mixed_groups=int(np.sum(classes_per_group > 1)),
    )


def describe_class_sizes(
    column: str, class_names: Sequence[str], split_names: Sequence[str], class_counts: Int64s
) -> list[str]:
    """Returns messages about the size of each class in each split.

    Args:
        column: The column that contains the class.
        class_names: The name of each class, MISSING_CLASS first.
        split_names: The names of the splits.
        class_counts: [classes, splits] number of records.
    """
    class_ids = sorted(
        np.flatnonzero(class_counts.sum(axis=1)).tolist(),
        key=lambda class_id: (class_id == MISSING_CLASS, class_id),
    )
    option_text, ways = option("stratify", column), " / ".join(split_names)
    if len(class_ids) <= _MAX_LISTED_CLASSES:
        parts = (
            f"{class_names[class_id]} {' / '.join(f'{count:,}' for count in class_counts[class_id].tolist())}"
            for class_id in class_ids
        )
        lines: list[str] = [
            Message(
                "{option_text}: records of each class in {ways}: {parts}",
                option_text=option_text,
                ways=ways,
                parts=", ".join(parts),
            )
        ]
    else:
        sizes = class_counts[class_ids].sum(axis=1)
        lines = [
            Message(
                "{option_text}: {class_ids_count} classes of {min} to {max} records, each "
                "divided among {ways}",
                option_text=option_text,
                class_ids_count=f"{len(class_ids):,}",
                min=f"{int(sizes.min()):,}",
                max=f"{int(sizes.max()):,}",
                ways=ways,
            )
        ]
    for split_id, split_name in enumerate(split_names):
        if missing_classes := [
            class_names[class_id] for class_id in class_ids if not class_counts[class_id, split_id]
        ]:
            more_text = (
                f" and {len(missing_classes) - 3:,} more" if len(missing_classes) > 3 else ""
            )
            lines.append(
                f"split {split_name!r} has no record of {', '.join(missing_classes[:3])}{more_text}: too few for its share"
            )
    return lines
