"""Distinct values and their counts are exact while all are kept, and then estimated."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kit.sketches import INTS

from recordmill.statistics.value_sketch import ValueSketch, hash_numbers, hash_texts, unhash_numbers


@given(INTS)
def test_hash_of_a_number_is_invertible(values: list[int]) -> None:
    hashes = hash_numbers(np.array(values, np.int64))
    assert unhash_numbers(hashes).tolist() == values


def _hashes(texts: list[bytes]) -> list[int]:
    ends = np.cumsum([len(text) for text in texts])
    data = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
    return hash_texts(data, np.concatenate([[0], ends[:-1]]), ends).tolist()


def test_text_hashes_differ_for_each_flipped_bit_and_equal_the_pinned_ones() -> None:
    texts = [bytes(range(size)) for size in range(70)]
    flipped = [
        bytes([*text[:at], text[at] ^ (1 << bit), *text[at + 1 :]])
        for text in texts
        for at in range(len(text))
        for bit in range(8)
    ]
    every = {*texts, *flipped}
    assert len(set(_hashes(sorted(every)))) == len(every)
    assert _hashes([b"", b"a", b"train", b"sixteen letters.", b"seventeen letters"]) == PINNED


PINNED = [
    12794620562993754531,
    15955319866196376629,
    10941426773787512755,
    9926879065517379603,
    16228828315313090698,
]


def test_distinct_count_is_exact_up_to_the_limit_and_estimated_above() -> None:
    for count in (0, 1, 300, 4096, 4097, 200_000):
        sketch = ValueSketch(4096)
        hashes = hash_numbers(np.arange(count) * 7919)
        for some in np.array_split(hashes, 5):
            sketch.add(np.ascontiguousarray(some))
        assert sketch.is_complete == (count <= 4096)
        assert abs(sketch.distinct() - count) <= (0 if sketch.is_complete else 4 * count / 64)
        assert len(sketch.smallest()[0]) == min(count, 4096)


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 40), st.integers(0, 200))
def test_counts_of_kept_values_are_exact(values: list[int], most: int, at: int) -> None:
    hashes = hash_numbers(np.array(values, np.int64))
    whole, one, other = ValueSketch(most), ValueSketch(most), ValueSketch(most)
    for sketch, some in ((whole, hashes), (one, hashes[:at]), (other, hashes[at:])):
        sketch.add(np.ascontiguousarray(some))
    one.merge(other)
    expected = Counter(hashes.tolist())
    for sketch in (whole, one):
        kept, counts = sketch.smallest()
        assert kept.tolist() == sorted(expected)[:most]
        assert counts.tolist() == [expected[each] for each in kept.tolist()]
        assert sketch.is_complete == (len(expected) <= most)
