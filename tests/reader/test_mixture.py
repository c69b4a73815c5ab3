"""A mixture of data sets has exact proportions, the order of each set, one state, and shares for
hosts.
"""

import gzip
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit.batches import check_resumes, ids
from kit.data_sets import MIXED, mixed_rows, write_data_set

import recordmill
from recordmill.base.errors import UsageError
from recordmill.reader.dataset import Dataset, open
from recordmill.reader.mixture import Mixture, mixture
from recordmill.reader.sampling.sampler import Proportions
from recordmill.schemas.feature import Feature, Schema

SIZES = {"a": 90, "b": 50, "c": 40}
FIRSTS = dict(
    zip(SIZES, accumulate(SIZES.values(), initial=0), strict=False)
)  # ids tell where a record is from


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    folder = tmp_path_factory.mktemp("ds")
    found = {}
    for at, (name, size) in enumerate(SIZES.items()):
        rows = mixed_rows(size, FIRSTS[name])
        out = write_data_set(
            folder / name, {"train": rows}, shards=at + 1, compression="gzip" if at == 1 else "none"
        )
        found[name] = open(out, columns=["id", "tokens", "maybe"], threads=2)
    return found


@pytest.fixture
def mixed(sets: dict[str, Dataset]) -> Mixture:
    return mixture([(sets["a"], 3), (sets["b"], 1), (sets["c"], 2)])


def flat(batches: Any) -> list[int]:
    return list(chain.from_iterable(ids(batches)))


def source_of(number: int) -> str:
    return [name for name, first in FIRSTS.items() if number >= first][-1]


@pytest.mark.parametrize("shuffle", [False, "window", "global"])
def test_mixture_has_exact_proportions_and_the_order_of_each_set(
    sets: dict[str, Dataset], mixed: Mixture, shuffle: Any
) -> None:
    assert len(mixed) == 20 * 6  # c is used up: 20 cycles of 2
    epochs = 3
    found = flat(mixed.batches(32, shuffle=shuffle, seed=4, epochs=epochs))
    assert len(found) == epochs * len(mixed)
    assert Counter(map(source_of, found)) == {"a": 180, "b": 60, "c": 120}
    for name, ds in sets.items():
        own = [number for number in found if source_of(number) == name]
        if shuffle is False:
            assert own == flat(ds.batches(7, shuffle=False, epochs=3))[: len(own)]
        assert sorted(own) == sorted(
            flat(ds.batches(7, shuffle=shuffle, seed=4, epochs=3))[: len(own)]
        )
    for cycle in range(0, len(found), 6):
        assert Counter(map(source_of, found[cycle : cycle + 6])) == {"a": 3, "b": 1, "c": 2}
    assert max(Counter(found[: len(mixed)]).values()) == 1


def test_mixture_with_stop_all_yields_every_record(sets: dict[str, Dataset]) -> None:
    mixed = mixture([(sets["a"], 0.5), (sets["b"], 0.5)], stop="all")
    found = Counter(flat(mixed.batches(32, shuffle="global")))
    assert len(mixed) == 180
    assert set(range(90)) <= set(found)
    assert all(found[number] == 1 for number in range(90))
    assert sorted(Counter(found[number] for number in range(90, 140)).items()) == [(1, 10), (2, 40)]


@pytest.mark.parametrize("shuffle", [False, "window", "global"])
def test_mixture_resumes_at_every_step_with_one_state(mixed: Mixture, shuffle: Any) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 2, "epochs": 2}
    whole = check_resumes(partial(mixed.batches, 25), ids, options)
    assert len(mixed.batches(25, **options)) == len(whole)


def test_hosts_share_a_mixture_and_fewer_hosts_resume(mixed: Mixture) -> None:
    options: dict[str, Any] = {"shuffle": "global", "seed": 1, "pad_remainder": True}
    hosts = [mixed.batches(8, **options, num_hosts=4, host_index=host) for host in range(4)]
    seen = [i for host in hosts for _ in range(2) for i in next(host)["id"].tolist()]
    state = hosts[0].state()
    rest = [
        mixed.batches(8, **options, num_hosts=3, host_index=host, state=state) for host in range(3)
    ]
    seen += [i for host in rest for batch in host for i in batch["id"][batch["mask"]].tolist()]
    assert sorted(seen) == sorted(flat(mixed.batches(8, shuffle="global", seed=1)))


def test_rows_of_a_mixture_keep_their_values_and_identity(
    sets: dict[str, Dataset], mixed: Mixture
) -> None:
    seen = 0
    for batch in mixed.batches(32, shuffle=True, ids=True):
        for row, number in enumerate(batch["id"].tolist()):
            assert batch["maybe"].tolist()[row] == (None if number % 3 == 0 else number / 4)
            name = source_of(number)
            file = mixed.files[batch["record/shard"][row]]
            assert file in sets[name].files
            first = FIRSTS[name] + sum(
                f.records for f in sets[name].files[: sets[name].files.index(file)]
            )
            assert first + batch["record/index"][row] == number
            seen += 1
    assert seen == len(mixed)


def test_state_of_another_mixture_is_refused(sets: dict[str, Dataset], mixed: Mixture) -> None:
    state = mixed.batches(8, shuffle=False).state()
    other = mixture([(sets["a"], 2), (sets["b"], 1), (sets["c"], 2)])
    with pytest.raises(UsageError, match="another data set"):
        other.batches(8, state=state)


def test_filtered_and_streamed_data_sets_are_mixed(
    sets: dict[str, Dataset], tmp_path: Path
) -> None:
    shard = sets["c"].files[0].file.path
    (tmp_path / "c.tfrecord.gz").write_bytes(gzip.compress(Path(shard).read_bytes()))
    streamed = open(
        tmp_path / "c.tfrecord.gz", schema=sets["c"].full_schema, columns=["id", "tokens", "maybe"]
    )
    a = sets["a"]
    odd = open(
        [file.file.path for file in a.files],
        schema=a.full_schema,
        columns=["id", "tokens", "maybe"],
        where="id % 2 = 1",
    )
    mixed = mixture([(odd, 2), (streamed, 1)])
    found = flat(mixed.batches(10, shuffle="window", epochs=2))
    assert len(mixed) == 3 * min(45 // 2, streamed.files[0].records)
    assert all(number % 2 == 1 or number >= FIRSTS["c"] for number in found)
    assert len(flat(mixed.batches(10, shuffle="global", drop_remainder=False))) == len(mixed)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([], "needs data sets"),
        ([1, 0], "above 0, not 0"),
        ([1, float("nan")], "above 0"),
        ([1, 999], "repeat after 1,000"),
        ([1, 0.0000001], "rounder"),
    ],
)
def test_invalid_weights_are_refused(
    sets: dict[str, Dataset], weights: list[float], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        mixture(list(zip(sets.values(), weights, strict=False)))
    with pytest.raises(UsageError, match=r"takes \[\(data set, weight\), ...\], .* not \('x', 1\)"):
        mixture([("x", 1)])  # type: ignore[list-item]


def test_data_sets_that_do_not_fit_together_are_refused(
    sets: dict[str, Dataset], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="do not all have the same features: maybe"):
        mixture([(sets["a"], 1), (sets["b"].select(["id", "tokens"]), 1)])
    with pytest.raises(UsageError, match="twice"):
        mixture([(sets["a"], 1), (sets["a"], 1)])
    with pytest.raises(UsageError, match="stop is"):
        mixture([(sets["a"], 1)], stop="never")  # type: ignore[arg-type]
    schema = replace(
        MIXED, features=tuple(replace(f, shape=(3, 2)) if f.name == "matrix" else f for f in MIXED)
    )
    other = open(sets["b"].files[0].file.path, schema=schema, columns=["matrix"])
    a = open([file.file.path for file in sets["a"].files], schema=MIXED, columns=["matrix"])
    with pytest.raises(UsageError, match="differ in a feature"):
        mixture([(a, 1), (other, 1)])
    empty = open(
        write_data_set(tmp_path / "none", {"train": mixed_rows(0)}, shards=1),
        columns=["id", "tokens", "maybe"],
    )
    with pytest.raises(UsageError, match="data set 1 of the mixture has no records"):
        mixture([(sets["a"], 1), (empty, 1)])


def test_feature_that_may_be_missing_in_one_set_may_be_missing_in_the_mixture(
    sets: dict[str, Dataset],
) -> None:
    strict, loose = Schema((Feature("id", "int64", (), True),)), Schema((Feature("id", "int64"),))
    paths = {name: [file.file.path for file in ds.files] for name, ds in sets.items()}
    mixed = mixture(
        [
            (open(paths["a"], schema=strict, columns=["id"]), 1),
            (open(paths["c"], schema=loose, columns=["id"]), 1),
        ]
    )
    assert isinstance(next(mixed.batches(8, shuffle=False))["id"], np.ma.MaskedArray)


def test_to_tf_of_a_mixture_equals_batches(mixed: Mixture) -> None:
    tf = pytest.importorskip("tensorflow")
    options: dict[str, Any] = {"shuffle": "global", "seed": 3, "epochs": 2, "ids": True}
    truth = list(mixed.batches(32, **options))
    found = mixed.to_tf(32, **options)
    assert int(found.cardinality()) == len(truth)
    for one, other in zip(found, truth, strict=True):
        for name in ("id", "record/shard", "record/index"):
            assert one[name].numpy().tolist() == other[name].tolist()
        assert isinstance(one["tokens"], tf.RaggedTensor)


def test_repr_of_a_mixture_shows_sets_and_proportions(mixed: Mixture) -> None:
    assert repr(mixed) == "<Mixture of 3 data sets, 3 : 1 : 2: 120 records per epoch>"
    assert recordmill.mixture is mixture


@given(
    weights=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    key=st.integers(0, 2**64 - 1),
    first=st.integers(0, 10**12),
)
@example(weights=[1, 1, 1, 9], key=0, first=0)
def test_proportions_hold_in_every_cycle(weights: list[int], key: int, first: int) -> None:
    proportions = Proportions.from_weights(weights)
    first -= first % proportions.cycle_records
    positions = np.arange(first, first + 3 * proportions.cycle_records)
    which, nth = proportions.assign_positions(positions, key)
    share = np.array(proportions.counts) / proportions.cycle_records
    for at, count in enumerate(proportions.counts):
        own = nth[which == at]
        begin = first // proportions.cycle_records * count
        assert sorted(own.tolist()) == list(range(begin, begin + 3 * count))
        given_so_far = np.cumsum(which == at)
        # each one's own count is off by less than 1 at any time, and so is what the others count
        # together
        most = 1 + share[at] * (len(weights) - 2)
        assert (
            np.abs(given_so_far - share[at] * np.arange(1, len(positions) + 1)).max() <= most + 1e-6
        )
    some = positions[:: max(len(positions) // 7, 1)]
    again, ranks = proportions.assign_positions(some, key)
    assert again.tolist() == which[some - first].tolist()
    assert ranks.tolist() == nth[some - first].tolist()


def test_order_of_a_mixture_is_pinned() -> None:
    """Saved states rely on it."""
    which, nth = Proportions.from_weights([3, 1, 2]).assign_positions(np.arange(14), 7)
    assert (which.tolist(), nth.tolist()) == PINNED


PINNED = ([2, 0, 0, 2, 0, 1, 1, 2, 0, 0, 2, 0, 0, 2], [0, 0, 1, 1, 2, 0, 1, 2, 3, 4, 3, 5, 6, 4])
