"""Shard boundaries depend only on the histogram and the options."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.base.buffers import to_offsets
from recordmill.base.errors import UsageError
from recordmill.base.sizes import DEFAULT_SHARD_BYTES
from recordmill.building.shard_boundaries import (
    MAX_DEFAULT_SHARDS,
    MAX_SHARDS,
    ShardOptions,
    check_shard_count,
    compute_boundaries,
)
from recordmill.building.sorted_run import Histogram


def test_more_shards_than_records_of_a_split_is_refused() -> None:
    with pytest.raises(UsageError, match=r"num_shards=4: split 'test' has only 3 records"):
        compute_boundaries(
            Histogram(np.array([[9], [3]]), np.array([[90], [30]])),
            ShardOptions(num_shards=4),
            ["train", "test"],
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard_bytes": 0}, "shard_size=0: must be at least one byte"),
        ({"num_shards": 0}, "num_shards=0: must be at least one"),
        ({"num_shards": MAX_SHARDS + 1}, "num_shards=100001: must be at most 100000"),
    ],
)
def test_impossible_shard_option_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError) as error:
        ShardOptions(**options)
    assert str(error.value) == message


@given(st.integers(0, 1 << 60))
def test_default_shard_size_grows_in_mebibytes_so_that_the_shards_are_few(input_bytes: int) -> None:
    options = ShardOptions.from_options(None, None).scaled_to(input_bytes)
    assert options.shard_bytes >= DEFAULT_SHARD_BYTES
    assert options.shard_bytes % (1 << 20) == 0
    assert -(-input_bytes // options.shard_bytes) <= MAX_DEFAULT_SHARDS
    if options.shard_bytes > DEFAULT_SHARD_BYTES:
        smaller = options.shard_bytes - (1 << 20)
        assert -(-input_bytes // smaller) > MAX_DEFAULT_SHARDS


def test_shard_size_or_number_of_the_user_is_kept_for_large_inputs() -> None:
    for options in (ShardOptions.from_options(700, None), ShardOptions.from_options(None, 3)):
        assert options.scaled_to(1 << 60) == options


counts = st.lists(st.tuples(st.integers(0, 30), st.integers(16, 50)), min_size=1, max_size=12)


@given(st.lists(counts, min_size=1, max_size=3), st.integers(1, 200), st.none() | st.integers(1, 9))
def test_boundaries_divide_each_split_and_are_in_their_buckets(
    splits: list[list[tuple[int, int]]], shard_bytes: int, num_shards: int | None
) -> None:
    buckets = max(map(len, splits))
    histogram = Histogram.zeros(len(splits), buckets)
    for split_id, split in enumerate(splits):
        for bucket, (records, size) in enumerate(split):
            histogram.records[split_id, bucket] = records
            histogram.bytes[split_id, bucket] = records * size
    if num_shards is not None:
        num_shards = min(num_shards, *(int(n) or 9 for n in histogram.records.sum(1)))
    boundaries = compute_boundaries(
        histogram, ShardOptions(shard_bytes, num_shards), [str(i) for i in range(len(splits))]
    )
    sizes = histogram.bytes if num_shards is None else histogram.records
    for split_id in range(len(splits)):
        rows = boundaries.table[boundaries.table["split_id"] == split_id]
        bucket_starts = to_offsets(sizes[split_id])
        if bucket_starts[-1] == 0:
            assert len(rows) == 0
            continue
        first = rows["begin_bucket"].astype(int) - split_id * buckets
        last = rows["end_bucket"].astype(int) - split_id * buckets
        begins, ends = bucket_starts[first] + rows["begin"], bucket_starts[first] + rows["end"]
        # The shards cover all records without a gap.
        assert begins.tolist() == [0, *ends[:-1].tolist()]
        assert ends[-1] == bucket_starts[-1]
        # The buckets of a shard contain it, and its first and last bucket are necessary.
        assert ((bucket_starts[first] <= begins) & (begins < bucket_starts[first + 1])).all()
        assert ((bucket_starts[last - 1] < ends) & (ends <= bucket_starts[last])).all()
        assert rows["index"].tolist() == list(range(len(rows)))
        assert set(rows["num_shards"].tolist()) == {len(rows)}
        lengths = (ends - begins).tolist()
        if num_shards is None:
            assert lengths[:-1] == [shard_bytes] * (len(rows) - 1)
            assert 0 < lengths[-1] <= shard_bytes
        else:
            assert len(rows) == num_shards
            assert max(lengths) - min(lengths) <= 1


def test_split_that_needs_too_many_shards_names_a_size_that_is_enough() -> None:
    split_bytes = 7 * MAX_SHARDS + 1
    with pytest.raises(UsageError, match=r"split 'train' has 700001 bytes .* use at least (8)$"):
        check_shard_count(split_bytes, ShardOptions(7), "train")
    check_shard_count(split_bytes, ShardOptions(8), "train")
    check_shard_count(split_bytes - 1, ShardOptions(7), "train")


def test_blocks_of_shards_stay_within_their_split() -> None:
    histogram = Histogram(np.array([[50, 50], [0, 30]]), np.array([[500, 500], [0, 300]]))
    boundaries = compute_boundaries(histogram, ShardOptions(100), ["train", "test"])
    assert len(boundaries) == 13
    edges = boundaries.block_edges(4)
    assert edges == [0, 4, 8, 10, 13]
    rows = boundaries.merge_rows(edges)
    assert rows["split_id"].tolist() == [0, 0, 0, 1]
    assert rows["begin_bucket"].tolist() == [0, 0, 1, 3]
    assert rows["end_bucket"].tolist() == [1, 2, 2, 4]


def test_range_of_shards_counts_from_the_bucket_of_its_first_shard() -> None:
    histogram = Histogram(np.array([[50, 50]]), np.array([[500, 500]]))
    boundaries = compute_boundaries(histogram, ShardOptions(300), ["train"])
    shards = boundaries.shard_range(2, 4)
    assert (shards.split_id, shards.index, shards.num_shards) == (0, 2, 4)
    assert (shards.edges, len(shards), shards.size) == ((100, 400, 500), 2, 400)
    assert shards.shift_left(100).edges == (0, 300, 400)
    assert boundaries.shard_range(1, 2).edges == (300, 600)
