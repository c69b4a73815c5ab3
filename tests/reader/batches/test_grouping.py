"""Records are grouped by length or packed, and each one is used once.

Packing has the result of the textbook algorithm first fit.
"""

from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.batches import ids
from kit.token_sets import LENGTHS, MODES, PACKED, ROWS, tokens, unpack_batch

from recordmill.reader import Bucketed, Packed
from recordmill.reader.batches.grouping import PackingLayout, compute_length_boundaries
from recordmill.reader.dataset import Dataset


def test_bucket_boundaries_follow_the_lengths(token_set: Dataset) -> None:
    boundaries = compute_length_boundaries([pa.array([[0] * n for n in LENGTHS])], 4)
    counts = np.bincount(np.searchsorted(boundaries, LENGTHS))
    assert len(boundaries) == 4
    assert boundaries[-1] == max(LENGTHS)
    assert counts.max() - counts.min() < 0.2 * ROWS
    for batch in token_set.batches(16, shuffle=True, collate={"tokens": Bucketed(buckets=4)}):
        assert batch["tokens"].shape[1] in boundaries
    assert compute_length_boundaries([], 4) == (1,)
    (tag_batch,) = token_set.select(["tags"]).batches(
        ROWS, shuffle=False, collate={"tags": "bucketed"}
    )
    assert tag_batch["tags"][1].tolist() == ["t", "", ""]


@pytest.mark.filterwarnings("ignore:feature")
@pytest.mark.parametrize("mode", MODES)
def test_packed_rows_hold_every_record_once(token_set: Dataset, mode: Any) -> None:
    iterator = token_set.batches(8, shuffle=mode, seed=3, **PACKED)
    batches = list(iterator)
    rows_by_record: dict[int, list[int]] = {}
    for batch in batches:
        assert batch["tokens"].shape == (8, 24)
        assert batch["weight"].shape == (8, 30)
        assert [list(names) for names in batch["name"]] == [
            [f"n{i}" for i in row] for row in batch["id"]
        ]
        batch_rows = unpack_batch(batch)
        assert rows_by_record.keys().isdisjoint(batch_rows)
        rows_by_record |= batch_rows
    assert rows_by_record == {i: tokens(i)[:24] for i in range(ROWS)}
    assert iterator.cut == {
        "tokens": sum(length > 24 for length in LENGTHS),
        "weight": sum(length > 30 for length in LENGTHS),
    }
    used_places = sum(int((batch["tokens/segment"] > 0).sum()) for batch in batches[:-1])
    assert used_places > 0.75 * 24 * 8 * (len(batches) - 1)
    order = ids(token_set.batches(1, shuffle=mode, seed=3))
    # A batch consists of consecutive records of the order.
    for batch in batches:
        group, order = order[: len(unpack_batch(batch))], order[len(unpack_batch(batch)) :]
        assert sorted(chain.from_iterable(group)) == sorted(unpack_batch(batch))


def test_packing_warns_about_truncated_records(token_set: Dataset) -> None:
    with pytest.warns(
        UserWarning, match="feature 'tokens' has records that are longer than a packed row"
    ):
        next(token_set.batches(8, shuffle=False, collate={"tokens": Packed(4)}))


@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=60),
    rows=st.integers(1, 5),
    limit=st.integers(1, 10),
)
def test_packing_equals_textbook_first_fit(lengths: list[int], rows: int, limit: int) -> None:
    batch = pa.record_batch(
        [pa.array([[0] * n for n in lengths], pa.large_list(pa.int64()))], ["a"]
    )
    places, ends = PackingLayout(("a",), (0,), (limit,), rows, 0, rows).pack_records(batch, True)
    expected, free, step, starts = [], [limit] * rows, 0, []
    for number, length in enumerate(lengths):
        size = min(max(length, 1), limit)
        if all(space < size for space in free):
            starts.append(number)
            free, step = [limit] * rows, step + 1
        row = next(i for i, space in enumerate(free) if space >= size)
        free[row] -= size
        expected.append(step * rows + row)
    assert places.tolist() == expected
    assert ends.tolist() == [*starts, len(lengths)]
