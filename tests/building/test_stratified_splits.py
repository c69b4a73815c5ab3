"""Classes are divided among the splits as precisely as records or groups allow."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recordmill.base.errors import DataError
from recordmill.building.stratified_splits import (
    GROUP_DTYPE,
    RECORD_DTYPE,
    StratifiedSplits,
    combine_rows,
    compute_targets,
    describe_class_sizes,
    find_starts_by_group,
    find_starts_by_record,
)


def records(random: np.random.Generator, count: int, classes: int, hashes: int) -> Any:
    """Returns rows with random classes and hashes, in random order.

    No two rows have the same file and position.

    Args:
        hashes: Number of different hashes. With a small number, many rows have equal hashes.
    """
    rows = np.zeros(count, RECORD_DTYPE)
    rows["hash"] = random.integers(0, hashes, count, np.uint64) * np.uint64(2**64 // hashes)
    rows["class_id"] = np.where(random.random(count) < 0.1, 0, random.integers(0, classes, count))
    places = random.permutation(count)
    rows["file"], rows["position"] = places // 7, places % 7
    return rows


def splits_of(begins: Any, rows: Any, is_grouped: bool) -> np.ndarray:
    """Returns the splits that a build assigns to rows with a column of classes.

    Class 0 is a missing value.
    """
    values = pa.array(np.arange(1, len(begins)))
    column = pa.array(rows["class_id"].astype(np.int64), mask=rows["class_id"] == 0)
    batch = pa.record_batch({"class": column})
    places = [np.zeros(len(rows), dtype) for dtype in (np.uint32, np.int64)]
    if not is_grouped:
        places = [rows["file"], rows["position"]]
    return StratifiedSplits("class", values, begins, is_grouped).assign(
        batch, rows["hash"], *places
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), hashes=st.sampled_from([2, 3, 2**20]))
def test_each_class_is_divided_to_one_record_in_the_order_of_hashes(seed: int, hashes: int) -> None:
    random = np.random.default_rng(seed)
    rows = records(random, int(random.integers(1, 300)), 5, hashes)
    fractions = [0.7, 0.2, 0.1]
    counts = np.bincount(rows["class_id"], minlength=5)
    targets = compute_targets(counts.tolist(), fractions)
    splits = splits_of(find_starts_by_record(rows, targets), rows, is_grouped=False)
    for stratum in range(5):
        class_rows = np.flatnonzero(rows["class_id"] == stratum)
        shares = np.bincount(splits[class_rows], minlength=3)
        assert shares.tolist() == targets[stratum].tolist()
        assert (np.abs(shares - counts[stratum] * np.array(fractions)) < 1).all()
        rows_by_hash = class_rows[
            np.lexsort(
                (rows["position"][class_rows], rows["file"][class_rows], rows["hash"][class_rows])
            )
        ]
        assert (np.diff(splits[rows_by_hash].astype(int)) >= 0).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000))
def test_split_groups_are_divided_at_the_nearest_edge(seed: int) -> None:
    random = np.random.default_rng(seed)
    hashes = random.integers(0, 2**64, 40, np.uint64)
    groups = random.integers(0, 40, 300)
    rows = np.zeros(300, GROUP_DTYPE)
    rows["hash"], rows["records"], rows["class_id"] = hashes[groups], 1, groups % 3
    targets = compute_targets(
        np.bincount(rows["class_id"], minlength=3).tolist(), [0.6, 0.25, 0.15]
    )
    boundaries = find_starts_by_group(combine_rows(rows), targets)
    assert (boundaries.num_groups, boundaries.num_mixed_groups) == (len(np.unique(groups)), 0)
    splits = splits_of(boundaries.split_starts, rows, is_grouped=True)
    for stratum in range(3):
        is_in_class = rows["class_id"] == stratum
        assert (
            np.bincount(splits[is_in_class], minlength=3).tolist()
            == boundaries.counts[stratum].tolist()
        )
        _, sizes = np.unique(rows["hash"][is_in_class], return_counts=True)
        edges = np.concatenate([[0], np.cumsum(sizes)])
        nearest = [
            edges[np.argmin(np.abs(edges - rank))] for rank in np.cumsum(targets[stratum])[:-1]
        ]
        assert np.cumsum(boundaries.counts[stratum])[:-1].tolist() == nearest
    assert all(len(set(splits[groups == group])) == 1 for group in set(groups))


@given(
    st.lists(st.integers(0, 10**9), max_size=5),
    st.lists(st.integers(1, 100), min_size=1, max_size=4),
)
def test_split_targets_are_within_one_record_of_the_fractions(
    counts: list[int], parts: list[int]
) -> None:
    fractions = [part / sum(parts) for part in parts]
    targets = compute_targets(counts, fractions)
    assert targets.sum(axis=1).tolist() == counts
    assert (np.abs(targets - np.outer(counts, fractions)) < 1 + 1e-6).all()


def test_split_targets_of_decimal_fractions_are_exact() -> None:
    assert compute_targets([100, 1000], [0.29, 0.71]).tolist() == [[29, 71], [290, 710]]
    assert compute_targets([10], [0.1, 0.2, 0.7]).tolist() == [[1, 2, 7]]
    assert compute_targets([1, 1, 2], [0.5, 0.5]).tolist() == [[1, 0], [1, 0], [1, 1]]


def test_class_that_was_not_counted_is_an_error() -> None:
    strata = StratifiedSplits(
        "class", pa.array(["a"]), np.zeros((2, 1), compute_targets([0], [1.0]).dtype), False
    )
    with pytest.raises(
        DataError, match="'b', a value that did not occur when the classes were counted"
    ):
        strata.assign(
            pa.record_batch({"class": ["a", "b"]}), np.zeros(2, np.uint64), np.zeros(2), np.zeros(2)
        )


def test_description_of_many_classes_is_short_and_names_missing_ones() -> None:
    counts = np.array([[0, 0], *([[4, 1]] * 20), *([[1, 0]] * 5)])
    names = ["(missing)", *(f"c{number}" for number in range(25))]
    lines = describe_class_sizes("y", names, ("train", "test"), counts)
    assert "25 classes of 1 to 5 records, each divided among train / test" in lines[0]
    assert lines[1:] == [
        "split 'test' has no record of c20, c21, c22 and 2 more: too few for its share"
    ]
