"""Records that stand there twice, by their digests: what Python's sets find, in memory and parted among files."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.checks.repeats import ContentDigests, Repeated


def repeated(records: list[tuple[bytes, int]], splits: int, memory_bytes: int, expected: int | None = None) -> Repeated:
    """Of (content, split) in order, added in portions."""
    table = ContentDigests(splits, len(records) if expected is None else expected, memory_bytes)
    try:
        for split in range(splits):
            own = [(number, content) for number, (content, at) in enumerate(records) if at == split]
            for first in range(0, len(own), 7):
                some = own[first : first + 7]
                data = np.frombuffer(b"".join(content for _, content in some) or b"\0", np.uint8)
                ends = np.cumsum([len(content) for _, content in some])
                rows = table.digests(data, ends - [len(content) for _, content in some], ends)
                table.add(rows, np.array([number for number, _ in some]), split)
        return table.repeated()
    finally:
        table.close()


def by_sets(records: list[tuple[bytes, int]], splits: int) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    contents = [[content for content, at in records if at == split] for split in range(splits)]
    within = {split: len(own) - len(Counter(own)) for split, own in enumerate(contents)}
    between = {
        (one, other): sum(content in set(contents[one]) for content in contents[other])
        for one, other in permutations(range(splits), 2)
    }
    return {at: n for at, n in within.items() if n}, {at: n for at, n in between.items() if n}


CONTENTS = st.lists(st.tuples(st.binary(max_size=3) | st.integers(0, 20).map(lambda n: b"x" * n), st.integers(0, 2)))


@given(CONTENTS, st.booleans())
def test_it_is_what_sets_find(records: list[tuple[bytes, int]], is_parted: bool) -> None:
    found = repeated(records, 3, 400 if is_parted else 1 << 20)
    assert (found.within, found.between) == by_sets(records, 3)
    for (one, other), pairs in found.pairs.items():
        for first, second in pairs:
            assert records[first][0] == records[second][0]
            assert (records[first][1], records[second][1]) == (one, other)
            assert one != other or first < second


def test_files_lie_in_a_scratch_folder_and_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    records = [(b"%d" % (number % 900), number % 2) for number in range(1000)]
    table = ContentDigests(2, 1000, 4096)
    data = np.frombuffer(b"".join(content for content, _ in records), np.uint8)
    ends = np.cumsum([len(content) for content, _ in records])
    starts = ends - [len(content) for content, _ in records]
    table.add(table.digests(data, starts, ends), np.arange(1000), 0)
    assert len(list(tmp_path.glob("*/*"))) > 8
    assert table.repeated().within == {0: 100}
    table.close()
    assert not list(tmp_path.iterdir())
    assert repeated(records, 2, 1 << 20) == repeated(records, 2, 4096)


def test_digests_are_of_a_secret_of_the_table() -> None:
    data, starts, ends = np.frombuffer(b"abc", np.uint8), np.array([0]), np.array([3])
    rows = [ContentDigests(1, 1, 1 << 20).digests(data, starts, ends) for _ in range(2)]
    assert rows[0]["low"] == rows[1]["low"]
    assert rows[0]["high"] != rows[1]["high"]
