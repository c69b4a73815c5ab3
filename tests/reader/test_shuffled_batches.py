"""NumPy batches for training: every record once an epoch, in an order that the seed alone decides,
far from where it was.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from made_data_set import mixed_rows, write_data_set

from recordmill.base.errors import UsageError
from recordmill.reader.dataset import Dataset, open
from recordmill.reader.prefetch.prefetcher import Fetcher
from recordmill.storage.codecs import SHARD_SUFFIXES

ROWS = 2000


@pytest.fixture(scope="module", params=list(SHARD_SUFFIXES))
def ds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    out = write_data_set(
        tmp_path_factory.mktemp("ds") / "out", {"train": mixed_rows(ROWS)}, shards=3, compression=request.param
    )
    return open(out, columns=["id", "name", "tokens", "maybe"], threads=2)


def ids(ds: Dataset, **options: object) -> list[list[int]]:
    return [batch["id"].tolist() for batch in ds.batches(64, **options)]


def test_without_shuffle_the_order_is_that_of_the_shards(ds: Dataset) -> None:
    batches = ids(ds, shuffle=False)
    assert [i for batch in batches for i in batch] == list(range(ROWS))
    assert {len(batch) for batch in batches[:-1]} == {64}
    assert len(batches[-1]) == ROWS % 64


@pytest.mark.parametrize(
    "window_bytes", [pytest.param(1, marks=pytest.mark.sweep), 20_000, pytest.param(1 << 26, marks=pytest.mark.sweep)]
)
def test_each_record_once_per_epoch_in_another_order(ds: Dataset, window_bytes: int) -> None:
    batches = ids(ds, shuffle=True, seed=3, epochs=2, window_bytes=window_bytes)
    per_epoch = -(-ROWS // 64)
    first, second = ([i for batch in part for i in batch] for part in (batches[:per_epoch], batches[per_epoch:]))
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != second
    assert batches == ids(ds, shuffle=True, seed=3, epochs=2, window_bytes=window_bytes)
    assert batches != ids(ds, shuffle=True, seed=4, epochs=2, window_bytes=window_bytes)


def test_the_order_does_not_depend_on_threads(ds: Dataset) -> None:
    other = Dataset(ds.catalog, ds.full_schema, ["id"], threads=1)
    assert ids(other, shuffle=True, seed=1, window_bytes=30_000) == ids(ds, shuffle=True, seed=1, window_bytes=30_000)


def test_the_shuffle_is_one(ds: Dataset) -> None:
    order = [i for batch in ids(ds, shuffle=True, seed=5) for i in batch]
    assert abs(np.corrcoef(order, np.arange(ROWS))[0, 1]) < 0.1
    assert np.mean(np.diff(order) == 1) < 0.02


def test_rows_stay_together(ds: Dataset) -> None:
    for batch in ds.batches(64, shuffle=True, seed=1):
        for i, name, tokens, maybe in zip(
            batch["id"].tolist(), batch["name"], batch["tokens"], batch["maybe"].tolist(), strict=True
        ):
            assert name == f"row {i} ü"
            assert (None if tokens is None else tokens.tolist()) == (None if i % 11 == 3 else list(range(i % 4)))
            assert maybe == (None if i % 3 == 0 else i / 4)


def test_the_remainder_can_be_dropped(ds: Dataset) -> None:
    assert {len(batch) for batch in ids(ds, drop_remainder=True)} == {64}
    assert sum(len(batch) for batch in ids(ds, drop_remainder=True, epochs=2, shuffle=True)) == 2 * (ROWS // 64) * 64


def test_without_end(ds: Dataset) -> None:
    batches = ds.batches(1000, shuffle=True, epochs=None)
    seen = [next(batches)["id"] for _ in range(6)]
    assert sorted(np.concatenate(seen[4:]).tolist()) == list(range(ROWS))


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda ds: ds.batches(0, shuffle=False), "batch_size must be at least 1, not 0"),
        (lambda ds: ds.batches(64.0, shuffle=False), "batch_size is a whole number, not 64.0"),
        (lambda ds: ds.batches("64", shuffle=False), "batch_size is a whole number, not '64'"),
        (lambda ds: ds.batches(True, shuffle=False), "batch_size is a whole number, not True"),
        (lambda ds: ds.batches(64, shuffle=False, seed=1.5), "seed is a whole number, not 1.5"),
        (lambda ds: ds.batches(64, shuffle=True, seed=None), "seed is a whole number, not None"),
        (lambda ds: ds.batches(1, shuffle=False, epochs=-1), "epochs"),
        (lambda ds: ds.batches(64, shuffle=False, epochs=2.5), "epochs is a whole number, not 2.5"),
        (lambda ds: ds.batches(64, shuffle=False, num_hosts=2.0), "num_hosts is a whole number"),
        (lambda ds: ds.batches(64, shuffle=False, collate=["tokens"]), "collate is a way by feature name"),
        (lambda ds: ds.select([]).batches(64, shuffle=False), "no feature is read"),
    ],
)
def test_wrong_options_are_named(ds: Dataset, use: Callable[[Dataset], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        use(ds)


def test_numbers_may_be_those_of_numpy(ds: Dataset) -> None:
    batches = ds.batches(np.int32(64), shuffle=True, seed=np.int64(3))
    assert json.loads(json.dumps(batches.state())) == ds.batches(64, shuffle=True, seed=3).state()


def test_an_iterator_says_how_it_is_saved(ds: Dataset) -> None:
    with pytest.raises(TypeError, match=r"save their state\(\)"):
        pickle.dumps(ds.batches(64))


def test_batches_of_one_record_come_as_soon_as_others(ds: Dataset) -> None:
    """A stretch is no more steps than can be made at once, however small they are."""
    stretches = Fetcher(ds, ds.batches(1, shuffle=False).schedule, ds.schema)._step_ranges(1)
    assert [stretch.steps for stretch in stretches] == [256] * (ROWS // 256) + [ROWS % 256]
