"""Duplicate records and near pairs equal the results of simple algorithms.

Python's sets find the same duplicates. A comparison of all pairs finds the same near pairs.
"""

import os
from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.base.siphash import U64
from recordmill.checks import repeats
from recordmill.checks.repeats import ContentDigests, RepeatCounts, find_near_pairs
from recordmill.records.images.similarity import MAX_HASH_DISTANCE


def count_repeats(
    records: list[tuple[bytes, int]], splits: int, memory_bytes: int, expected: int | None = None
) -> RepeatCounts:
    """Returns the repeats of (content, split) records, which are added in small batches."""
    table = ContentDigests(splits, len(records) if expected is None else expected, memory_bytes)
    try:
        for split in range(splits):
            split_records = [
                (number, content)
                for number, (content, record_split) in enumerate(records)
                if record_split == split
            ]
            for first in range(0, len(split_records), 7):
                batch = split_records[first : first + 7]
                data = np.frombuffer(b"".join(content for _, content in batch) or b"\0", np.uint8)
                ends = np.cumsum([len(content) for _, content in batch])
                rows = table.digests(data, ends - [len(content) for _, content in batch], ends)
                table.add(rows, np.array([number for number, _ in batch]), split)
        return table.find_repeats()
    finally:
        table.close()


def count_with_sets(
    records: list[tuple[bytes, int]], splits: int
) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    contents = [
        [content for content, record_split in records if record_split == split]
        for split in range(splits)
    ]
    within_splits = {
        split: len(split_contents) - len(Counter(split_contents))
        for split, split_contents in enumerate(contents)
    }
    between_splits = {
        (first, second): sum(content in set(contents[first]) for content in contents[second])
        for first, second in permutations(range(splits), 2)
    }
    return {split: n for split, n in within_splits.items() if n}, {
        pair: n for pair, n in between_splits.items() if n
    }


CONTENTS = st.lists(
    st.tuples(st.binary(max_size=3) | st.integers(0, 20).map(lambda n: b"x" * n), st.integers(0, 2))
)


@given(CONTENTS, st.booleans())
def test_duplicates_equal_those_of_python_sets(
    records: list[tuple[bytes, int]], has_partitions: bool
) -> None:
    repeat_counts = count_repeats(records, 3, 400 if has_partitions else 1 << 20)
    assert (repeat_counts.within_splits, repeat_counts.between_splits) == count_with_sets(
        records, 3
    )
    for (first_split, second_split), pairs in repeat_counts.example_pairs.items():
        for first, second in pairs:
            assert records[first][0] == records[second][0]
            assert (records[first][1], records[second][1]) == (first_split, second_split)
            assert first_split != second_split or first < second


def test_digests_of_little_memory_are_in_files_without_names_until_the_table_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    records = [(b"%d" % (number % 900), number % 2) for number in range(1000)]
    table = ContentDigests(2, 1000, 4096)
    data = np.frombuffer(b"".join(content for content, _ in records), np.uint8)
    ends = np.cumsum([len(content) for content, _ in records])
    starts = ends - [len(content) for content, _ in records]
    open_files = len(os.listdir("/dev/fd"))
    table.add(table.digests(data, starts, ends), np.arange(1000), 0)
    assert len(os.listdir("/dev/fd")) > open_files + 8
    assert not list(tmp_path.iterdir())
    assert table.find_repeats().within_splits == {0: 100}
    table.close()
    assert len(os.listdir("/dev/fd")) == open_files
    assert count_repeats(records, 2, 1 << 20) == count_repeats(records, 2, 4096)


def test_digests_depend_on_a_secret_of_the_table() -> None:
    data, starts, ends = np.frombuffer(b"abc", np.uint8), np.array([0]), np.array([3])
    rows = [ContentDigests(1, 1, 1 << 20).digests(data, starts, ends) for _ in range(2)]
    assert rows[0]["low"] == rows[1]["low"]
    assert rows[0]["high"] != rows[1]["high"]


def near_pairs(hashes: U64) -> list[tuple[int, int]]:
    return [
        pair
        for first, second in find_near_pairs(hashes)
        for pair in zip(first.tolist(), second.tolist(), strict=True)
    ]


def compare_all_pairs(hashes: U64) -> set[tuple[int, int]]:
    bits = np.unpackbits(hashes.view(np.uint8), axis=1).astype(np.float32)
    distances = bits @ (1 - bits.T) + (1 - bits) @ bits.T
    return {
        (int(i), int(j))
        for i, j in zip(*np.nonzero(np.triu(distances <= MAX_HASH_DISTANCE, 1)), strict=True)
    }


def hashes_with_copies(
    count: int, copies: int, max_changed_bits: int, seed: int
) -> tuple[U64, set[tuple[int, int]]]:
    """Returns random hashes and the pairs of each copy with its original.

    The last `copies` hashes are copies of others with up to `max_changed_bits` changed bits.
    """
    random = np.random.default_rng(seed)
    hashes = random.integers(0, 2**64, (count, 4), dtype=np.uint64)
    sources = random.permutation(count - copies)[:copies]
    for source, copy in zip(sources.tolist(), range(count - copies, count), strict=True):
        hashes[copy] = hashes[source]
        for bit in random.choice(
            256, random.integers(0, max_changed_bits + 1), replace=False
        ).tolist():
            hashes[copy, bit >> 6] ^= np.uint64(1) << np.uint64(bit & 63)
    return hashes, set(zip(sources.tolist(), range(count - copies, count), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_near_pairs_equal_those_of_comparing_all_pairs(seed: int) -> None:
    hashes, _ = hashes_with_copies(600, 250, 32, seed)
    hashes[:40] &= np.uint64(0x8000000000000001)  # images with large plain areas
    hashes[40:44] = hashes[44]
    pairs = near_pairs(hashes)
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == compare_all_pairs(hashes)
    assert len(pairs) > 300


def test_near_pairs_are_yielded_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_PAIRS_PER_BLOCK", 7)
    hashes = np.zeros((50, 4), np.uint64)
    pairs = near_pairs(hashes)
    assert sorted(pairs) == [(i, j) for i in range(50) for j in range(i + 1, 50)]
    assert max(len(first) for first, _ in find_near_pairs(hashes)) == 7


def test_near_pairs_of_at_most_two_hashes() -> None:
    for count in range(3):
        assert near_pairs(np.zeros((count, 4), np.uint64)) == [(0, 1)] * (count == 2)


@pytest.mark.sweep
def test_near_pairs_of_fifty_thousand_hashes_are_the_planted_ones() -> None:
    hashes, copies = hashes_with_copies(50_000, 20_000, MAX_HASH_DISTANCE, 7)
    pairs = near_pairs(hashes)
    assert set(pairs) == copies  # random hashes are never near each other
