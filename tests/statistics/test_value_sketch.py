"""Distinct values and their counts are exact below a limit, and estimated above it."""

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
    flipped_texts = [
        bytes([*text[:position], text[position] ^ (1 << bit), *text[position + 1 :]])
        for text in texts
        for position in range(len(text))
        for bit in range(8)
    ]
    all_texts = {*texts, *flipped_texts}
    assert len(set(_hashes(sorted(all_texts)))) == len(all_texts)
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
        for part in np.array_split(hashes, 5):
            sketch.add(np.ascontiguousarray(part))
        assert sketch.is_complete == (count <= 4096)
        assert abs(sketch.distinct() - count) <= (0 if sketch.is_complete else 4 * count / 64)
        assert len(sketch.smallest()[0]) == min(count, 4096)


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 40), st.integers(0, 200))
def test_counts_of_kept_values_are_exact(values: list[int], max_values: int, cut: int) -> None:
    hashes = hash_numbers(np.array(values, np.int64))
    total_sketch, first, second = (
        ValueSketch(max_values),
        ValueSketch(max_values),
        ValueSketch(max_values),
    )
    for sketch, part in ((total_sketch, hashes), (first, hashes[:cut]), (second, hashes[cut:])):
        sketch.add(np.ascontiguousarray(part))
    first.merge(second)
    expected = Counter(hashes.tolist())
    for sketch in (total_sketch, first):
        value_hashes, counts = sketch.smallest()
        assert value_hashes.tolist() == sorted(expected)[:max_values]
        assert counts.tolist() == [expected[value_hash] for value_hash in value_hashes.tolist()]
        assert sketch.is_complete == (len(expected) <= max_values)
