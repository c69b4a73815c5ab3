"""Boundaries of the shards in the global order of the records.

The boundaries follow from a histogram of the record keys. They depend only on the records and the options, so the
number of units, threads or workers never changes the bytes of a shard.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Int64s
from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import DEFAULT_SHARD_BYTES, parse_size
from recordmill.base.threads import thread_map
from recordmill.building.sorted_run import INDEX_STRIDE, Histogram, SortedRun

BY_RECORDS, BY_BYTES = "records", "bytes"
MAX_SHARDS = (
    100_000  # per split: names have five digits, and a folder with more files is impractical
)
MAX_DEFAULT_SHARDS = (
    1 << 15
)  # half the number of key buckets, so the slices of a shard hold about 1.5 times its size


@dataclass(frozen=True)
class ShardOptions:
    """Options that determine the number and the size of the shards.

    Attributes:
        shard_bytes: Size of a shard in bytes, before compression.
        num_shards: Number of shards of each split. None divides by `shard_bytes`.
        grows: `scaled_to` may raise `shard_bytes` for large inputs.
    """

    shard_bytes: int = DEFAULT_SHARD_BYTES
    num_shards: int | None = None
    is_default: bool = False

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise UsageError(f"{option('shard_size', self.shard_bytes)}: at least one byte")
        if self.num_shards is not None and self.num_shards < 1:
            raise UsageError(f"{option('num_shards', self.num_shards)}: at least one")
        if self.num_shards is not None and self.num_shards > MAX_SHARDS:
            raise UsageError(f"{option('num_shards', self.num_shards)}: at most {MAX_SHARDS}")

    @classmethod
    def from_options(cls, shard_size: str | int | None, num_shards: int | None) -> ShardOptions:
        """Creates the options from the command-line options of the same names.

        Args:
            shard_size: A size such as "64MiB" or a number of bytes. None selects the default size, which grows with the
                inputs.
            num_shards: The number of shards of each split, or None.

        Raises:
            UsageError: Both options are set, or a value is out of range.
        """
        if shard_size is None:
            return cls(num_shards=num_shards, is_default=True)
        if num_shards is not None:
            raise UsageError(
                f"{option('num_shards')} and {option('shard_size')} exclude each other: give one of them"
            )
        return cls(parse_size(shard_size, "shard_size"))

    def scaled_to(self, input_bytes: int) -> ShardOptions:
        """Returns the options with a shard size that suits the inputs.

        The default size is raised, in steps of 1 MiB, so that `input_bytes` fill at most MAX_DEFAULT_SHARDS shards. A size or
        number that the user has set is kept.

        >>> ShardOptions(is_default=True).scaled_to(10**14).shard_bytes >> 20
        2911
        """
        if not self.is_default or self.num_shards is not None:
            return self
        least = (
            -(-input_bytes // (MAX_DEFAULT_SHARDS << 20)) << 20
        )  # rounded up to a MiB, to be readable in messages
        return replace(self, shard_bytes=max(self.shard_bytes, least), is_default=False)


# One row per shard. `index` and `of`: its number within the split, and their count.
# first, last: the buckets [first, last) that contain its records. Bucket numbers continue from one split to the next.
# start, stop: its records, or the first bytes of their frames, counted from the start of bucket `first`.
# low, high: places (`sorted_run.SPARSE_INDEX_DTYPE`) at or before its first record, and at or after its end. b"" if not known.
BOUNDARY_DTYPE = np.dtype(
    [
        ("split_id", "<u2"),
        ("index", "<u4"),
        ("num_shards", "<u4"),
        ("begin_bucket", "<u4"),
        ("end_bucket", "<u4"),
        ("begin", "<i8"),
        ("end", "<i8"),
        ("lower_key", "S20"),
        ("upper_key", "S20"),
    ]
)


@dataclass(frozen=True)
class ShardRange:
    """Consecutive shards of one split, as ranges in the merged order of their slices.

    Attributes:
        split_id: Ordinal of the split.
        index: Index of the first shard in its split.
        num_shards: Number of shards of the split.
        edges: The i-th shard covers [edges[i], edges[i + 1]). Edges count from the start of the slices.
        measure: Unit of the edges: BY_RECORDS, or BY_BYTES for the bytes of the frames. A record belongs to the shard that
            contains its first byte.
    """

    split_id: int
    index: int
    num_shards: int
    edges: tuple[int, ...]
    measure: str

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def size(self) -> int:
        """Total size of the shards, in the unit of `measure`."""
        return self.edges[-1] - self.edges[0]

    def shift_left(self, skipped: int) -> ShardRange:
        """Returns this range shifted left by `skipped`, for slices that start `skipped` later."""
        return replace(self, edges=tuple(edge - skipped for edge in self.edges))


@dataclass(frozen=True)
class ShardBoundaries:
    """Boundaries of the shards of all splits.

    Attributes:
        table: BOUNDARY_DTYPE [shards], ordered by split and index.
        measure: Unit of `start` and `stop`: BY_RECORDS or BY_BYTES.
    """

    table: npt.NDArray[np.void]
    measure: str

    def __len__(self) -> int:
        return len(self.table)

    def shard_range(self, begin: int, end: int) -> ShardRange:
        """Returns shards [begin, end) as one range.

        All of them must belong to one split. The edges count from the start of the first shard's first bucket.
        """
        split_id, index, num_shards = (
            int(self.table[begin][name]) for name in ("split_id", "index", "num_shards")
        )
        sizes = self.table["end"][begin:end] - self.table["begin"][begin:end]
        edges = int(self.table["begin"][begin]) + np.cumsum([0, *sizes.tolist()])
        return ShardRange(split_id, index, num_shards, tuple(edges.tolist()), self.measure)

    def merge_rows(self, edges: Sequence[int]) -> npt.NDArray[np.void]:
        """Returns one row for each group of consecutive shards.

        Args:
            edges: Group i consists of shards [edges[i], edges[i + 1]).

        Returns:
            BOUNDARY_DTYPE [groups]. Only `split`, `first`, `last`, `low` and `high` hold for the group. The other columns
            are copies of its first shard's.
        """
        joined = self.table[list(edges[:-1])]
        last = self.table[np.array(edges[1:], np.int64) - 1]
        joined["end_bucket"], joined["upper_key"] = last["end_bucket"], last["upper_key"]
        return joined

    def group_edges(self, max_shards: int) -> list[int]:
        """Returns the edges of groups of at most `max_shards` shards, each within one split."""
        splits = (np.flatnonzero(np.diff(self.table["split_id"])) + 1).tolist()
        begins = [0, *splits, len(self)]
        return [
            at
            for first, last in itertools.pairwise(begins)
            for at in range(first, last, max_shards)
        ] + [len(self)]


def compute_boundaries(
    histogram: Histogram, options: ShardOptions, names: Sequence[str]
) -> ShardBoundaries:
    """Computes the boundaries of all shards.

    With `shard_bytes`, shard i contains the records that begin in [i, i + 1) * shard_bytes. A record longer than a
    shard can leave the next ones empty. `reconcile` removes these after writing. A split without records gets no shard.

    The result has no `low` and `high` yet, see `add_key_bounds`.

    Args:
        histogram: The records and bytes in each bucket.
        options: The number or size of the shards.
        names: The names of the splits, for error messages.

    Raises:
        UsageError: A split has fewer records than shards, or would get more than MAX_SHARDS shards.
    """
    cuts = [np.empty(0, BOUNDARY_DTYPE)]
    by, weights = (
        (BY_BYTES, histogram.bytes)
        if options.num_shards is None
        else (BY_RECORDS, histogram.records)
    )
    for split, name in enumerate(names):
        total = int(weights[split].sum())
        if total == 0:
            continue
        if options.num_shards is not None:
            edges = np.array(divide_records(total, options.num_shards, name), np.int64)
        else:
            check_shard_count(total, options, name)
            edges = np.append(np.arange(0, total, options.shard_bytes), total)
        cuts.append(_make_rows(split, weights[split], edges))
    return ShardBoundaries(np.concatenate(cuts), by)


def divide_records(total: int, num_shards: int, name: str) -> list[int]:
    """Returns edges that divide `total` records evenly among the shards.

    >>> divide_records(10, 4, "train")
    [0, 2, 5, 7, 10]

    Args:
        total: The number of records of the split.
        name: The name of the split, for error messages.

    Raises:
        UsageError: There are fewer records than shards.
    """
    if num_shards > total:
        raise UsageError(
            f"{option('num_shards', num_shards)}: split {name!r} has only {total} records; ask for at most as many "
            "shards"
        )
    return [i * total // num_shards for i in range(num_shards + 1)]


def check_shard_count(size: int, options: ShardOptions, name: str) -> None:
    """Raises UsageError if a split of `size` bytes needs more than MAX_SHARDS shards."""
    if size > MAX_SHARDS * options.shard_bytes:
        least = -(-size // MAX_SHARDS)
        raise UsageError(
            f"{option('shard_size', options.shard_bytes)}: split {name!r} has {size} bytes, too many shards; "
            f"give at least {least}"
        )


def _make_rows(
    split: int, weights: npt.NDArray[np.int64], edges: npt.NDArray[np.int64]
) -> npt.NDArray[np.void]:  # BOUNDARY_DTYPE [edges - 1]
    before = np.concatenate([[0], np.cumsum(weights)])
    # side="right" skips empty buckets in front of a shard
    first = np.searchsorted(before, edges[:-1], side="right") - 1
    last = np.searchsorted(before, edges[1:], side="left")
    cuts = np.zeros(len(first), BOUNDARY_DTYPE)
    cuts["split_id"], cuts["index"], cuts["num_shards"] = split, np.arange(len(first)), len(first)
    cuts["begin_bucket"], cuts["end_bucket"] = (
        first + split * len(weights),
        last + split * len(weights),
    )
    cuts["begin"], cuts["end"] = edges[:-1] - before[first], edges[1:] - before[first]
    return cuts


_MAX_INDEX_ROWS = (
    1 << 20
)  # sorted at once, in about 80 MiB. For a larger bucket, only every n-th is used


def add_key_bounds(
    cuts: ShardBoundaries, histogram: Histogram, runs: Sequence[SortedRun], requests: int = 1
) -> ShardBoundaries:
    """Returns the cuts with `low` and `high` set for shards inside of large buckets.

    Without them, each shard of a frequent key would read the entire bucket of that key from every run.

    Args:
        cuts: The boundaries of all shards.
        histogram: The records and bytes in each bucket.
        runs: All sorted runs.
        requests: The number of runs that are read concurrently.

    Raises:
        OSError: A run is missing.
        DataError: A run is too short.
    """
    table = cuts.table.copy()
    buckets = histogram.records.shape[1]
    weights = (histogram.records if cuts.measure == BY_RECORDS else histogram.bytes).reshape(-1)
    before = np.concatenate([[0], np.cumsum(weights)])
    first, last, size = (
        table["begin_bucket"],
        table["end_bucket"].astype(np.int64) - 1,
        table["end"] - table["begin"],
    )
    starts, stops = before[first] + table["begin"], before[first] + table["end"]
    # only a shard that begins, or ends, inside of a bucket larger than itself is worth a search
    is_low = (table["begin"] > 0) & (weights[first] > size)
    is_high = (stops < before[last + 1]) & (weights[last] > size)
    records = np.concatenate([[0], np.cumsum(histogram.records.reshape(-1))])
    for split in np.unique(table["split_id"][is_low | is_high]).tolist():
        # groups of buckets with about _MAX_INDEX_ROWS marks each, to bound the memory
        begin, end = split * buckets, (split + 1) * buckets
        numbers = (records[begin:end] - records[begin]) // (_MAX_INDEX_ROWS * INDEX_STRIDE)
        firsts = [begin + int(at) for at in np.flatnonzero(np.diff(numbers, prepend=-1))]
        for group, upto in zip(firsts, [*firsts[1:], end], strict=True):
            lows = np.flatnonzero(is_low & (group <= first) & (first < upto))
            highs = np.flatnonzero(is_high & (group <= last) & (last < upto))
            if not len(lows) and not len(highs):
                continue
            every = -(-int(records[upto] - records[group]) // (_MAX_INDEX_ROWS * INDEX_STRIDE))
            places, least, most = _merge_sparse_indexes(
                runs, group, upto, every, cuts.measure, requests
            )
            # the last mark with certainly no more than `start` before it, and the first with at least `stop`
            found = np.searchsorted(most, starts[lows] - before[group], side="right") - 1
            table["lower_key"][lows[found >= 0]] = places[found[found >= 0]]
            found = np.searchsorted(least, stops[highs] - before[group], side="left")
            there = found < len(places)
            table["upper_key"][highs[there]] = places[found[there]]
    return replace(cuts, table=table)


def _merge_sparse_indexes(
    runs: Sequence[SortedRun], first: int, last: int, every: int, by: str, requests: int
) -> tuple[npt.NDArray[np.bytes_], Int64s, Int64s]:
    """Returns the marks of all runs in some buckets, with bounds on their ranks.

    Args:
        runs: All sorted runs.
        first: The first bucket.
        last: The bucket after the last one.
        every: Only every n-th mark is used.
        measure: Unit of the bounds, BY_RECORDS or BY_BYTES.
        requests: The number of runs that are read concurrently.

    Returns:
        (places, at least, at most): The distinct places in ascending order. At least and at most this much of all runs
        is before each place, counted from the start of bucket `first`.
    """

    def read(run: SortedRun) -> tuple[npt.NDArray[np.bytes_], Int64s]:
        (begin, begin_byte), (end, end_byte) = run.count_before(np.array([first, last])).tolist()
        number, marks = run.read_sparse_index(begin, end)
        places = marks["sort_key"][::every].copy()
        inside = (
            number + INDEX_STRIDE * every * np.arange(len(places))
            if by == BY_RECORDS
            else marks["bytes"][::every]
        )
        edges = (begin, end) if by == BY_RECORDS else (begin_byte, end_byte)
        return places, np.concatenate([[edges[0]], inside, [edges[1]]])

    # Between two marks of a run, up to all records of the gap may be before a place of another run. So each mark
    # adds the gap in front of it to the lower bound, and the gap after it to the upper bound.
    near = [run for run in runs if run.begin_bucket < last and run.end_bucket > first]
    places, least, most = [np.empty(0, "S20")], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    already = 0
    for found, weights in thread_map(read, near, requests):
        steps = np.diff(weights)
        already += int(steps[0])
        places.append(found)
        least.append(steps[:-1])
        most.append(steps[1:])
    together = np.concatenate(places)
    order = np.argsort(together, kind="stable")
    together = together[order]
    at_least = np.cumsum(np.concatenate(least)[order])
    limit_fan_in = already + np.cumsum(np.concatenate(most)[order])
    once = np.append(together[1:] != together[:-1], True)[: len(together)]
    return together[once], at_least[once], limit_fan_in[once]
