"""The order of an epoch is a reproducible, well mixed permutation in every mode.

It can be computed from any position.
"""

import pickle
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.data_sets import mixed_rows, write_data_set
from kit.samplers import make_sampler

from recordmill.options.parsers import SHUFFLE_MODES, parse_shuffle
from recordmill.reader.dataset import Dataset, open
from recordmill.reader.prefetch.prefetcher import Fetcher
from recordmill.reader.sampling.sampler import (
    EpochLayout,
    FileExtent,
    Sampler,
    find_ranges,
    permute_indices,
    permute_ranges,
)
from recordmill.storage.codecs import SHARD_SUFFIXES

PINNED: dict[object, list[int]] = {
    False: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    "window": [98, 72, 73, 95, 74, 76, 79, 83, 85, 82, 93, 80],
    "global": [82, 27, 0, 77, 45, 50, 54, 48, 42, 69, 86, 68],
}
extents = st.lists(
    st.builds(FileExtent, st.integers(0, 200), st.integers(0, 5000)),
    min_size=1,
    max_size=6,
)


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_permutation_yields_each_number_once(size: int, key: int) -> None:
    assert sorted(permute_indices(np.arange(size), size, key).tolist()) == list(range(size))


def test_small_permutations_are_equally_likely() -> None:
    counts = Counter(
        tuple(permute_indices(np.arange(4), 4, key * 7919).tolist()) for key in range(12_000)
    )
    assert len(counts) == 24
    assert 400 < min(counts.values()) <= max(counts.values()) < 600


def test_huge_permutation_is_computed_without_storing_it() -> None:
    size = (1 << 45) + 12_345
    numbers = permute_indices(np.arange(size - 10_000, size), size, 3)
    assert len(np.unique(numbers)) == 10_000
    assert 0 <= numbers.min() <= numbers.max() < size
    assert abs(numbers.mean() / size - 0.5) < 0.02


def test_ranges_are_permuted_within_their_edges() -> None:
    edges = np.array([0, 5, 5, 6, 300])
    numbers = permute_ranges(np.arange(300), edges, 9)
    for begin, end in pairwise(edges):
        assert sorted(numbers[begin:end].tolist()) == list(range(begin, end))


@given(st.lists(st.integers(-50, 50), min_size=2).map(sorted), st.data())
def test_ranges_of_numbers_are_those_of_searchsorted(edges: list[int], data: st.DataObject) -> None:
    begin, end = edges[0], edges[-1]
    numbers = data.draw(st.lists(st.integers(begin, end - 1))) if begin < end else []
    ranges = find_ranges(np.array(numbers, np.int64), np.array(edges))
    assert ranges.tolist() == (np.searchsorted(edges, numbers, "right") - 1).tolist()
    for outside in (begin - 1, end):
        with pytest.raises(IndexError):
            find_ranges(np.array([*numbers, outside]), np.array(edges))


@settings(max_examples=80)
@given(files=extents, seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 3), data=st.data())
@pytest.mark.parametrize("mode", SHUFFLE_MODES)
def test_epoch_has_each_record_once_from_any_position(
    mode: object, files: list[FileExtent], seed: int, epoch: int, data: st.DataObject
) -> None:
    sampler = make_sampler(mode, files, seed)
    order = sampler.record_numbers(epoch, np.arange(sampler.records))
    assert sorted(order.tolist()) == list(range(sampler.records))
    if sampler.records:
        positions = np.array(
            data.draw(st.lists(st.integers(0, sampler.records - 1), max_size=30)), np.int64
        )
        assert (
            make_sampler(mode, files, seed).record_numbers(epoch, positions).tolist()
            == order[positions].tolist()
        )


def test_orders_of_all_modes_are_pinned() -> None:
    """Saved states rely on these orders. A change here needs a new format of the state."""
    files = [FileExtent(40, 2000), FileExtent(25, 900), FileExtent(35, 1500)]
    orders = {
        mode: make_sampler(mode, files, 7).record_numbers(1, np.arange(12)).tolist()
        for mode in SHUFFLE_MODES
    }
    assert orders == PINNED


def test_order_depends_on_mode_seed_epoch_and_data() -> None:
    files = [FileExtent(500, 5000)] * 4

    def order(
        mode: object = "global", seed: int = 0, epoch: int = 0, data: str = "data"
    ) -> list[int]:
        sampler = Sampler(
            parse_shuffle(mode, "shuffle"),
            2000,
            EpochLayout.from_files(files, 300),
            seed,
            data,
            900,
        )  # type: ignore[arg-type]
        return sampler.record_numbers(epoch, np.arange(2000)).tolist()

    for mode in ("window", "global"):
        orders = [order(mode), order(mode, seed=1), order(mode, epoch=1), order(mode, data="other")]
        assert len({tuple(numbers) for numbers in orders}) == 4
        assert order(mode) == orders[0]
    assert order(False, seed=1, epoch=5) == list(range(2000))


def test_shuffle_mixes_well() -> None:
    """Compares the orders with a true permutation. A window has 1,200 records.

    The measures are the rank correlation, the mean displacement and the share of neighbours that
    stay together.
    """
    size = 20_000
    files = [FileExtent(size // 8, size * 10 // 8)] * 8

    def quality(order: np.ndarray) -> tuple[float, float, float]:
        positions = np.arange(size)
        return (
            abs(float(np.corrcoef(order, positions)[0, 1])),
            float(np.abs(order - positions).mean() / size),
            float(np.mean(np.abs(np.diff(order)) == 1)),
        )

    for seed in range(3):
        reference = quality(np.random.default_rng(seed).permutation(size))
        global_quality = quality(
            make_sampler("global", files, seed).record_numbers(0, np.arange(size))
        )
        window_quality = quality(
            make_sampler("window", files, seed, window=12_000, piece=750).record_numbers(
                0, np.arange(size)
            )
        )
        assert global_quality[0] < 0.03
        assert abs(global_quality[1] - reference[1]) < 0.01
        assert global_quality[2] < 0.0006
        assert window_quality[0] < 0.4
        assert window_quality[1] > 0.2
        assert window_quality[2] < 0.004


ROWS = 2000


@pytest.fixture(scope="module", params=list(SHARD_SUFFIXES))
def ds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    out = write_data_set(
        tmp_path_factory.mktemp("ds") / "out",
        {"train": mixed_rows(ROWS)},
        shards=3,
        compression=request.param,
    )
    return open(out, columns=["id", "name", "tokens", "maybe"], threads=2)


def test_pickling_batches_is_refused_with_a_remedy(ds: Dataset) -> None:
    with pytest.raises(TypeError, match=r"save their state\(\)"):
        pickle.dumps(ds.batches(64))


def test_batches_of_one_record_are_fetched_together(ds: Dataset) -> None:
    step_ranges = Fetcher(
        ds.records, ds.batches(1, shuffle=False).schedule, ds.schema, 2
    )._step_ranges(1)
    assert [step_range.num_steps for step_range in step_ranges] == [256] * (ROWS // 256) + [
        ROWS % 256
    ]
