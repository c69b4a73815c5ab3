"""Boundaries of the shards in the global order of the records.

The boundaries follow from a histogram of the record keys. They depend only on the records and the
options. So the number of units, threads or workers never changes the bytes of a shard.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Int64s, to_offsets
from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import DEFAULT_SHARD_BYTES, MAX_DEFAULT_SHARDS
from recordmill.base.threads import thread_map
from recordmill.building.sorted_run import INDEX_STRIDE, Histogram, SortedRun

# Units of positions in the order of the records: records, or bytes of their frames.
BY_RECORDS, BY_BYTES = "records", "bytes"
# Maximum number of shards of a split. Their names have five digits, and a folder with more files is
# impractical.
MAX_SHARDS = 100_000


@dataclass(frozen=True)
class ShardOptions:
    """Options that determine the number and the size of the shards.

    Attributes:
        shard_bytes: Size of a shard in bytes, before compression. It is ignored if `num_shards` is
            set.
        num_shards: Number of shards of each split, or None.
        is_default: True if the user has set neither option, so `scaled_to` may raise `shard_bytes`
            for large inputs.

    Raises:
        UsageError: A value is out of range.
    """

    shard_bytes: int = DEFAULT_SHARD_BYTES
    num_shards: int | None = None
    is_default: bool = False

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise UsageError(
                "{shard_size}: must be at least one byte",
                shard_size=option("shard_size", self.shard_bytes),
            )
        if self.num_shards is not None and self.num_shards < 1:
            raise UsageError(
                "{num_shards}: must be at least one",
                num_shards=option("num_shards", self.num_shards),
            )
        if self.num_shards is not None and self.num_shards > MAX_SHARDS:
            raise UsageError(
                "{num_shards}: must be at most {max_shards}",
                num_shards=option("num_shards", self.num_shards),
                max_shards=MAX_SHARDS,
            )

    @classmethod
    def from_options(cls, shard_size: int | None, num_shards: int | None) -> ShardOptions:
        """Creates the options from the values of `shard_size` and `num_shards`.

        If neither is set, the default size grows with the inputs.
        """
        if shard_size is None:
            return cls(num_shards=num_shards, is_default=True)
        return cls(shard_size)

    def scaled_to(self, input_bytes: int) -> ShardOptions:
        """Returns the options with a shard size that suits the inputs.

        The default size is raised, in steps of 1 MiB, so that `input_bytes` fill at most
        MAX_DEFAULT_SHARDS shards. A size or number that the user has set is kept.

        >>> ShardOptions(is_default=True).scaled_to(10**14).shard_bytes >> 20
        2911
        """
        if not self.is_default or self.num_shards is not None:
            return self
        # Rounded up to a MiB, to be readable in messages.
        min_bytes = -(-input_bytes // (MAX_DEFAULT_SHARDS << 20)) << 20
        return replace(self, shard_bytes=max(self.shard_bytes, min_bytes), is_default=False)


# One row per shard.
# index, num_shards: its number within the split, and the number of shards of the split.
# begin_bucket, end_bucket: the buckets [begin_bucket, end_bucket) that contain its records. Bucket
#     numbers continue from one split to the next.
# begin, end: the range [begin, end) of its records, or of the first bytes of their frames. Both
#     count from the start of `begin_bucket`.
# lower_key: a sort key (`sorted_run.SPARSE_INDEX_DTYPE`) that is not greater than that of its first
#     record. b"" if it is unknown.
# upper_key: a sort key that no record of the shard reaches. b"" if it is unknown.
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
    """Consecutive shards of one split, as ranges in a merged sequence of records.

    The sequence is the merge of all slices of these shards. It may have records of other shards
    before the first edge and after the last one.

    Attributes:
        split_id: Ordinal of the split.
        index: Index of the first shard in its split.
        num_shards: Number of shards of the split.
        edges: The i-th shard covers [edges[i], edges[i + 1]), counted from the start of the
            sequence.
        measure: Unit of the edges: BY_RECORDS, or BY_BYTES for the bytes of the frames. With
            BY_BYTES, a record belongs to the shard that contains its first byte.
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
        """Total size of the shards: records or bytes, as `measure` specifies."""
        return self.edges[-1] - self.edges[0]

    def shift_left(self, skipped: int) -> ShardRange:
        """Returns the same shards, with `skipped` subtracted from each edge.

        Args:
            skipped: The records or bytes that the slices skip at their start, from
                `measure_skipped`.
        """
        return replace(self, edges=tuple(edge - skipped for edge in self.edges))


@dataclass(frozen=True)
class ShardBoundaries:
    """Boundaries of the shards of all splits.

    Attributes:
        table: BOUNDARY_DTYPE [shards], ordered by split and index.
        measure: Unit of `begin` and `end` in the table: BY_RECORDS or BY_BYTES.
    """

    table: npt.NDArray[np.void]
    measure: str

    def __len__(self) -> int:
        return len(self.table)

    def shard_range(self, begin: int, end: int) -> ShardRange:
        """Returns shards [begin, end) of the table as one range. All must belong to one split.

        The edges count from the start of the first shard's `begin_bucket`.
        """
        split_id, index, num_shards = (
            int(self.table[begin][name]) for name in ("split_id", "index", "num_shards")
        )
        sizes = self.table["end"][begin:end] - self.table["begin"][begin:end]
        edges = int(self.table["begin"][begin]) + to_offsets(sizes)
        return ShardRange(
            split_id=split_id,
            index=index,
            num_shards=num_shards,
            edges=tuple(edges.tolist()),
            measure=self.measure,
        )

    def merge_rows(self, edges: Sequence[int]) -> npt.NDArray[np.void]:
        """Returns one row for each block of consecutive shards.

        A row describes its block as if it were one shard.

        Args:
            edges: Block i consists of shards [edges[i], edges[i + 1]).

        Returns:
            BOUNDARY_DTYPE [blocks]. Only `split_id`, `begin_bucket`, `end_bucket`, `lower_key` and
            `upper_key` describe the block. The other columns are copies from its first shard.
        """
        joined = self.table[list(edges[:-1])]
        last_rows = self.table[np.array(edges[1:], np.int64) - 1]
        joined["end_bucket"], joined["upper_key"] = last_rows["end_bucket"], last_rows["upper_key"]
        return joined

    def block_edges(self, max_shards: int) -> list[int]:
        """Divides the shards into blocks of at most `max_shards` shards, each within one split.

        Returns:
            The index of the first shard of each block, in order. The last item is the number of all
            shards, so block i consists of the shards `edges[i]` to `edges[i + 1] - 1`.
        """
        split_changes = (np.flatnonzero(np.diff(self.table["split_id"])) + 1).tolist()
        begins = [0, *split_changes, len(self)]
        return [
            begin
            for split_begin, split_end in itertools.pairwise(begins)
            for begin in range(split_begin, split_end, max_shards)
        ] + [len(self)]


def compute_boundaries(
    histogram: Histogram, options: ShardOptions, split_names: Sequence[str]
) -> ShardBoundaries:
    """Computes the boundaries of all shards.

    With `num_shards`, the numbers of records in the shards of a split differ by at most one. With
    `shard_bytes`, shard i contains the records that begin in [i, i + 1) * shard_bytes. A record
    longer than a shard can leave the next shards empty. These get boundaries here, and are removed
    in the last step of the build. A split without records gets no shard.

    Args:
        histogram: The records and bytes in each bucket.
        options: The number or size of the shards.
        split_names: The names of the splits, for error messages.

    Returns:
        The boundaries, without `lower_key` and `upper_key`. `add_key_bounds` adds these.

    Raises:
        UsageError: A split has fewer records than shards, or would get more than MAX_SHARDS shards.
    """
    tables = [np.empty(0, BOUNDARY_DTYPE)]
    measure, sizes = (
        (BY_BYTES, histogram.bytes)
        if options.num_shards is None
        else (BY_RECORDS, histogram.records)
    )
    for split_id, split_name in enumerate(split_names):
        split_size = int(sizes[split_id].sum())
        # Without this, the split would get one empty shard, or divide_records would fail.
        if split_size == 0:
            continue
        if options.num_shards is not None:
            edges = np.array(divide_records(split_size, options.num_shards, split_name), np.int64)
        else:
            check_shard_count(split_size, options, split_name)
            # The last shard may be smaller than the others.
            edges = np.append(np.arange(0, split_size, options.shard_bytes), split_size)
        tables.append(_make_rows(split_id, sizes[split_id], edges))
    return ShardBoundaries(np.concatenate(tables), measure)


def divide_records(num_records: int, num_shards: int, split_name: str) -> list[int]:
    """Returns edges that divide `num_records` records evenly among the shards.

    >>> divide_records(10, 4, "train")
    [0, 2, 5, 7, 10]

    Args:
        num_records: The number of records of the split.
        num_shards: The number of shards of the split.
        split_name: The name of the split, for error messages.

    Raises:
        UsageError: There are fewer records than shards.
    """
    if num_shards > num_records:
        raise UsageError(
            "{num_shards}: split {split_name} has only {num_records} records; use at "
            "most as many shards",
            num_shards=option("num_shards", num_shards),
            split_name=repr(split_name),
            num_records=num_records,
        )
    return [i * num_records // num_shards for i in range(num_shards + 1)]


def check_shard_count(split_bytes: int, options: ShardOptions, split_name: str) -> None:
    """Raises UsageError if a split of `split_bytes` needs more than MAX_SHARDS shards."""
    if split_bytes > MAX_SHARDS * options.shard_bytes:
        min_bytes = -(-split_bytes // MAX_SHARDS)
        raise UsageError(
            "{shard_size}: split {split_name} has {split_bytes} bytes and would get "
            "too many shards; use at least {min_bytes}",
            shard_size=option("shard_size", options.shard_bytes),
            split_name=repr(split_name),
            split_bytes=split_bytes,
            min_bytes=min_bytes,
        )


def _make_rows(
    split_id: int, sizes: npt.NDArray[np.int64], edges: npt.NDArray[np.int64]
) -> npt.NDArray[np.void]:  # BOUNDARY_DTYPE [edges - 1]
    sizes_before = to_offsets(sizes)
    # side="right" skips empty buckets in front of a shard.
    begin_bucket = np.searchsorted(sizes_before, edges[:-1], side="right") - 1
    end_bucket = np.searchsorted(sizes_before, edges[1:], side="left")
    rows = np.zeros(len(begin_bucket), BOUNDARY_DTYPE)
    rows["split_id"] = split_id
    rows["index"] = np.arange(len(begin_bucket))
    rows["num_shards"] = len(begin_bucket)
    rows["begin_bucket"] = begin_bucket + split_id * len(sizes)
    rows["end_bucket"] = end_bucket + split_id * len(sizes)
    rows["begin"] = edges[:-1] - sizes_before[begin_bucket]
    rows["end"] = edges[1:] - sizes_before[begin_bucket]
    return rows


# Maximum number of rows of all sparse indexes that are sorted at once. They need about 80 MiB. In a
# bucket with more rows, only every n-th is used.
_MAX_INDEX_ROWS = 1 << 20


def add_key_bounds(
    boundaries: ShardBoundaries,
    histogram: Histogram,
    sorted_runs: Sequence[SortedRun],
    concurrency: int = 1,
) -> ShardBoundaries:
    """Adds sort keys for shards that begin or end inside of large buckets.

    The sort keys bound the part of a bucket that a shard reads. Without them, if a key is frequent,
    each of its shards would read the entire bucket of that key from every sorted run.

    Args:
        boundaries: The boundaries of all shards.
        histogram: The records and bytes in each bucket.
        sorted_runs: All sorted runs.
        concurrency: The number of sorted runs that are read at once.

    Returns:
        The boundaries with `lower_key` and `upper_key` set if the shard begins or ends inside of a
        bucket larger than itself.

    Raises:
        OSError: A sorted run is missing.
        DataError: A sorted run is too short.
    """
    table = boundaries.table.copy()
    num_buckets = histogram.records.shape[1]
    sizes = (histogram.records if boundaries.measure == BY_RECORDS else histogram.bytes).reshape(-1)
    sizes_before = to_offsets(sizes)
    first_bucket = table["begin_bucket"]
    last_bucket = table["end_bucket"].astype(np.int64) - 1
    shard_sizes = table["end"] - table["begin"]
    shard_begins = sizes_before[first_bucket] + table["begin"]
    shard_ends = sizes_before[first_bucket] + table["end"]
    # Only a shard that begins or ends inside of a bucket larger than itself is worth a search.
    needs_lower = (table["begin"] > 0) & (sizes[first_bucket] > shard_sizes)
    needs_upper = (shard_ends < sizes_before[last_bucket + 1]) & (sizes[last_bucket] > shard_sizes)
    records = to_offsets(histogram.records.reshape(-1))
    for split_id in np.unique(table["split_id"][needs_lower | needs_upper]).tolist():
        # Blocks of buckets with about _MAX_INDEX_ROWS rows of the sparse indexes each, to bound the
        # memory.
        begin, end = split_id * num_buckets, (split_id + 1) * num_buckets
        block_ids = (records[begin:end] - records[begin]) // (_MAX_INDEX_ROWS * INDEX_STRIDE)
        begins = [begin + int(i) for i in np.flatnonzero(np.diff(block_ids, prepend=-1))]
        for begin_bucket, end_bucket in zip(begins, [*begins[1:], end], strict=True):
            lower_rows = np.flatnonzero(
                needs_lower & (begin_bucket <= first_bucket) & (first_bucket < end_bucket)
            )
            upper_rows = np.flatnonzero(
                needs_upper & (begin_bucket <= last_bucket) & (last_bucket < end_bucket)
            )
            if not len(lower_rows) and not len(upper_rows):
                continue
            # A single bucket can have more rows than fit, because a block has at least one bucket.
            step = -(
                -int(records[end_bucket] - records[begin_bucket])
                // (_MAX_INDEX_ROWS * INDEX_STRIDE)
            )
            sort_keys, min_before, max_before = _merge_sparse_indexes(
                sorted_runs,
                begin_bucket=begin_bucket,
                end_bucket=end_bucket,
                step=step,
                measure=boundaries.measure,
                concurrency=concurrency,
            )
            # The lower key is the last sort key that certainly comes no later than the begin of the
            # shard. The upper key is the first that certainly comes no earlier than its end.
            index_rows = (
                np.searchsorted(
                    max_before, shard_begins[lower_rows] - sizes_before[begin_bucket], side="right"
                )
                - 1
            )
            table["lower_key"][lower_rows[index_rows >= 0]] = sort_keys[index_rows[index_rows >= 0]]
            index_rows = np.searchsorted(
                min_before, shard_ends[upper_rows] - sizes_before[begin_bucket], side="left"
            )
            has_row = index_rows < len(sort_keys)
            table["upper_key"][upper_rows[has_row]] = sort_keys[index_rows[has_row]]
    return replace(boundaries, table=table)


def _merge_sparse_indexes(
    sorted_runs: Sequence[SortedRun],
    begin_bucket: int,
    end_bucket: int,
    step: int,
    measure: str,
    concurrency: int,
) -> tuple[npt.NDArray[np.bytes_], Int64s, Int64s]:
    """Merges the sparse indexes of all sorted runs, within some buckets.

    Args:
        sorted_runs: All sorted runs.
        begin_bucket: The first bucket.
        end_bucket: The bucket after the last one.
        step: Only every `step`-th row of each sparse index is used.
        measure: The unit of the counts, BY_RECORDS or BY_BYTES.
        concurrency: The number of sorted runs that are read at once.

    Returns:
        (sort_keys, min_before, max_before). The sort keys are distinct and ascend. The other arrays
        bound how many records or bytes of all sorted runs come before each sort key, counted from
        the start of `begin_bucket`: at least `min_before` and at most `max_before`.
    """

    def read(run: SortedRun) -> tuple[npt.NDArray[np.bytes_], Int64s]:
        (begin_record, begin_byte), (end_record, end_byte) = run.count_before(
            np.array([begin_bucket, end_bucket])
        ).tolist()
        first_record, sparse_index = run.read_sparse_index(begin_record, end_record)
        # A copy, because a view would keep the skipped rows in memory.
        keys = sparse_index["sort_key"][::step].copy()
        values = (
            first_record + INDEX_STRIDE * step * np.arange(len(keys))
            if measure == BY_RECORDS
            else sparse_index["bytes"][::step]
        )
        bounds = (begin_record, end_record) if measure == BY_RECORDS else (begin_byte, end_byte)
        return keys, np.concatenate([[bounds[0]], values, [bounds[1]]])

    # Between two rows of a sparse index, up to all records of the gap may be before a key of
    # another sorted run. So each row adds the gap in front of it to the lower bound, and the gap
    # after it to the upper bound.
    runs_in_range = [
        run
        for run in sorted_runs
        if run.begin_bucket < end_bucket and run.end_bucket > begin_bucket
    ]
    key_parts = [np.empty(0, "S20")]
    min_parts = [np.empty(0, np.int64)]
    max_parts = [np.empty(0, np.int64)]
    num_before = 0
    for keys, counts in thread_map(read, runs_in_range, concurrency):
        gaps = np.diff(counts)
        num_before += int(gaps[0])
        key_parts.append(keys)
        min_parts.append(gaps[:-1])
        max_parts.append(gaps[1:])
    all_keys = np.concatenate(key_parts)
    order = np.argsort(all_keys, kind="stable")
    all_keys = all_keys[order]
    min_before = np.cumsum(np.concatenate(min_parts)[order])
    max_before = num_before + np.cumsum(np.concatenate(max_parts)[order])
    # The last of several equal keys has counted the gaps of all of them. The final slice keeps an
    # empty array empty.
    is_last = np.append(all_keys[1:] != all_keys[:-1], True)[: len(all_keys)]
    return all_keys[is_last], min_before[is_last], max_before[is_last]
