"""Near pairs of hashes: all of those that comparing each with each finds, once."""

from __future__ import annotations

import numpy as np
import pytest

from recordmill.base.siphash import U64
from recordmill.checks import hamming
from recordmill.checks.hamming import near_pairs
from recordmill.records.images.similarity import NEAR_BITS


def found_in(hashes: U64) -> list[tuple[int, int]]:
    return [pair for one, other in near_pairs(hashes) for pair in zip(one.tolist(), other.tolist(), strict=True)]


def by_brute_force(hashes: U64) -> set[tuple[int, int]]:
    bits = np.unpackbits(hashes.view(np.uint8), axis=1).astype(np.float32)
    distances = bits @ (1 - bits.T) + (1 - bits) @ bits.T
    return {(int(i), int(j)) for i, j in zip(*np.nonzero(np.triu(distances <= NEAR_BITS, 1)), strict=True)}


def with_copies(count: int, copies: int, most_bits: int, seed: int) -> tuple[U64, set[tuple[int, int]]]:
    """Random hashes, of which the last ones are others of them with some bits changed; and these pairs."""
    random = np.random.default_rng(seed)
    hashes = random.integers(0, 2**64, (count, 4), dtype=np.uint64)
    sources = random.permutation(count - copies)[:copies]
    for source, at in zip(sources.tolist(), range(count - copies, count), strict=True):
        hashes[at] = hashes[source]
        for bit in random.choice(256, random.integers(0, most_bits + 1), replace=False).tolist():
            hashes[at, bit >> 6] ^= np.uint64(1) << np.uint64(bit & 63)
    return hashes, set(zip(sources.tolist(), range(count - copies, count), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_what_comparing_each_with_each_finds(seed: int) -> None:
    hashes, _ = with_copies(600, 250, 32, seed)
    hashes[:40] &= np.uint64(0x8000000000000001)  # images that are plain in most parts
    hashes[40:44] = hashes[44]
    found = found_in(hashes)
    assert len(found) == len(set(found))
    assert set(found) == by_brute_force(hashes)
    assert len(found) > 300


def test_pairs_come_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hamming, "_FOUND_AT_ONCE", 7)
    hashes = np.zeros((50, 4), np.uint64)
    found = found_in(hashes)
    assert sorted(found) == [(i, j) for i in range(50) for j in range(i + 1, 50)]
    assert max(len(one) for one, _ in near_pairs(hashes)) == 7


def test_of_few_hashes_there_are_few_pairs() -> None:
    for count in range(3):
        assert found_in(np.zeros((count, 4), np.uint64)) == [(0, 1)] * (count == 2)


@pytest.mark.sweep
def test_a_million_hashes() -> None:
    hashes, copies = with_copies(1_000_000, 20_000, NEAR_BITS, 7)
    found = found_in(hashes)
    assert set(found) == copies  # of random ones none is near another
