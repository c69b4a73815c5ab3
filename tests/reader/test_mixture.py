"""A mixture has exact proportions, and keeps the order of each data set.

One state resumes the mixture, and hosts can share it.
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
# The id of a record shows its data set.
FIRST_IDS = dict(zip(SIZES, accumulate(SIZES.values(), initial=0), strict=False))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    folder = tmp_path_factory.mktemp("ds")
    data_sets = {}
    for index, (name, size) in enumerate(SIZES.items()):
        rows = mixed_rows(size, FIRST_IDS[name])
        out = write_data_set(
            folder / name,
            {"train": rows},
            shards=index + 1,
            compression="gzip" if index == 1 else "none",
        )
        data_sets[name] = open(out, columns=["id", "tokens", "maybe"], threads=2)
    return data_sets


@pytest.fixture
def mix(sets: dict[str, Dataset]) -> Mixture:
    return mixture([(sets["a"], 3), (sets["b"], 1), (sets["c"], 2)])


def flat_ids(batches: Any) -> list[int]:
    return list(chain.from_iterable(ids(batches)))


def source_of(number: int) -> str:
    return [name for name, first in FIRST_IDS.items() if number >= first][-1]


@pytest.mark.parametrize("shuffle", [False, "window", "global"])
def test_mixture_has_exact_proportions_and_the_order_of_each_set(
    sets: dict[str, Dataset], mix: Mixture, shuffle: Any
) -> None:
    assert len(mix) == 20 * 6  # 20 cycles use up c, which has 2 records in each
    epochs = 3
    record_ids = flat_ids(mix.batches(32, shuffle=shuffle, seed=4, epochs=epochs))
    assert len(record_ids) == epochs * len(mix)
    assert Counter(map(source_of, record_ids)) == {"a": 180, "b": 60, "c": 120}
    for name, ds in sets.items():
        set_ids = [number for number in record_ids if source_of(number) == name]
        if shuffle is False:
            assert set_ids == flat_ids(ds.batches(7, shuffle=False, epochs=3))[: len(set_ids)]
        assert sorted(set_ids) == sorted(
            flat_ids(ds.batches(7, shuffle=shuffle, seed=4, epochs=3))[: len(set_ids)]
        )
    for cycle in range(0, len(record_ids), 6):
        assert Counter(map(source_of, record_ids[cycle : cycle + 6])) == {"a": 3, "b": 1, "c": 2}
    assert max(Counter(record_ids[: len(mix)]).values()) == 1


def test_mixture_with_stop_all_yields_every_record(sets: dict[str, Dataset]) -> None:
    mix = mixture([(sets["a"], 0.5), (sets["b"], 0.5)], stop="all")
    counts = Counter(flat_ids(mix.batches(32, shuffle="global")))
    assert len(mix) == 180
    assert set(range(90)) <= set(counts)
    assert all(counts[number] == 1 for number in range(90))
    assert sorted(Counter(counts[number] for number in range(90, 140)).items()) == [
        (1, 10),
        (2, 40),
    ]


@pytest.mark.parametrize("shuffle", [False, "window", "global"])
def test_mixture_resumes_at_every_step_with_one_state(mix: Mixture, shuffle: Any) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 2, "epochs": 2}
    expected = check_resumes(partial(mix.batches, 25), ids, options)
    assert len(mix.batches(25, **options)) == len(expected)


def test_hosts_share_a_mixture_and_fewer_hosts_resume(mix: Mixture) -> None:
    options: dict[str, Any] = {"shuffle": "global", "seed": 1, "pad_remainder": True}
    hosts = [mix.batches(8, **options, num_hosts=4, host_index=host) for host in range(4)]
    record_ids = [i for host in hosts for _ in range(2) for i in next(host)["id"].tolist()]
    state = hosts[0].state()
    rest = [
        mix.batches(8, **options, num_hosts=3, host_index=host, state=state) for host in range(3)
    ]
    record_ids += [
        i for host in rest for batch in host for i in batch["id"][batch["mask"]].tolist()
    ]
    assert sorted(record_ids) == sorted(flat_ids(mix.batches(8, shuffle="global", seed=1)))


def test_rows_of_a_mixture_keep_their_values_and_identity(
    sets: dict[str, Dataset], mix: Mixture
) -> None:
    count = 0
    for batch in mix.batches(32, shuffle=True, ids=True):
        for row, number in enumerate(batch["id"].tolist()):
            assert batch["maybe"].tolist()[row] == (None if number % 3 == 0 else number / 4)
            name = source_of(number)
            file = mix.files[batch["record/shard"][row]]
            assert file in sets[name].files
            first_id = FIRST_IDS[name] + sum(
                f.records for f in sets[name].files[: sets[name].files.index(file)]
            )
            assert first_id + batch["record/index"][row] == number
            count += 1
    assert count == len(mix)


def test_state_of_another_mixture_is_refused(sets: dict[str, Dataset], mix: Mixture) -> None:
    state = mix.batches(8, shuffle=False).state()
    other_mix = mixture([(sets["a"], 2), (sets["b"], 1), (sets["c"], 2)])
    with pytest.raises(UsageError, match="another data set"):
        other_mix.batches(8, state=state)


def test_filtered_and_streamed_data_sets_are_mixed(
    sets: dict[str, Dataset], tmp_path: Path
) -> None:
    shard = sets["c"].files[0].file.path
    (tmp_path / "c.tfrecord.gz").write_bytes(gzip.compress(Path(shard).read_bytes()))
    streamed_set = open(
        tmp_path / "c.tfrecord.gz", schema=sets["c"].full_schema, columns=["id", "tokens", "maybe"]
    )
    a = sets["a"]
    odd_set = open(
        [file.file.path for file in a.files],
        schema=a.full_schema,
        columns=["id", "tokens", "maybe"],
        where="id % 2 = 1",
    )
    mix = mixture([(odd_set, 2), (streamed_set, 1)])
    record_ids = flat_ids(mix.batches(10, shuffle="window", epochs=2))
    assert len(mix) == 3 * min(45 // 2, streamed_set.files[0].records)
    assert all(number % 2 == 1 or number >= FIRST_IDS["c"] for number in record_ids)
    assert len(flat_ids(mix.batches(10, shuffle="global", drop_remainder=False))) == len(mix)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], "needs data sets"),
        ([1, 0], "above 0, not 0"),
        ([1, float("nan")], "above 0"),
        ([1, 999], "repeat after 1,000"),
        ([1, 0.0000001], "rounder"),
    ],
)
def test_invalid_weights_are_refused(
    sets: dict[str, Dataset], weights: list[float], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
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
    reshaped_set = open(sets["b"].files[0].file.path, schema=schema, columns=["matrix"])
    a = open([file.file.path for file in sets["a"].files], schema=MIXED, columns=["matrix"])
    with pytest.raises(UsageError, match="differ in a feature"):
        mixture([(a, 1), (reshaped_set, 1)])
    empty_set = open(
        write_data_set(tmp_path / "none", {"train": mixed_rows(0)}, shards=1),
        columns=["id", "tokens", "maybe"],
    )
    with pytest.raises(UsageError, match="data set 1 of the mixture has no records"):
        mixture([(sets["a"], 1), (empty_set, 1)])


def test_feature_that_may_be_missing_in_one_set_may_be_missing_in_the_mixture(
    sets: dict[str, Dataset],
) -> None:
    strict_schema, loose_schema = (
        Schema((Feature("id", "int64", (), True),)),
        Schema((Feature("id", "int64"),)),
    )
    paths = {name: [file.file.path for file in ds.files] for name, ds in sets.items()}
    mix = mixture(
        [
            (open(paths["a"], schema=strict_schema, columns=["id"]), 1),
            (open(paths["c"], schema=loose_schema, columns=["id"]), 1),
        ]
    )
    assert isinstance(next(mix.batches(8, shuffle=False))["id"], np.ma.MaskedArray)


def test_to_tf_of_a_mixture_equals_batches(mix: Mixture) -> None:
    tf = pytest.importorskip("tensorflow")
    options: dict[str, Any] = {"shuffle": "global", "seed": 3, "epochs": 2, "ids": True}
    expected = list(mix.batches(32, **options))
    dataset = mix.to_tf(32, **options)
    assert int(dataset.cardinality()) == len(expected)
    for tensors, arrays in zip(dataset, expected, strict=True):
        for name in ("id", "record/shard", "record/index"):
            assert tensors[name].numpy().tolist() == arrays[name].tolist()
        assert isinstance(tensors["tokens"], tf.RaggedTensor)


def test_repr_of_a_mixture_shows_sets_and_proportions(mix: Mixture) -> None:
    assert repr(mix) == "<Mixture of 3 data sets, 3 : 1 : 2: 120 records per epoch>"
    assert recordmill.mixture is mixture


@given(
    weights=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    key=st.integers(0, 2**64 - 1),
    first_position=st.integers(0, 10**12),
)
@example(weights=[1, 1, 1, 9], key=0, first_position=0)
def test_proportions_hold_in_every_cycle(weights: list[int], key: int, first_position: int) -> None:
    proportions = Proportions.from_weights(weights)
    first_position -= first_position % proportions.cycle_records
    positions = np.arange(first_position, first_position + 3 * proportions.cycle_records)
    sources, ordinals = proportions.assign_positions(positions, key)
    shares = np.array(proportions.counts) / proportions.cycle_records
    for source, count in enumerate(proportions.counts):
        source_ordinals = ordinals[sources == source]
        begin = first_position // proportions.cycle_records * count
        assert sorted(source_ordinals.tolist()) == list(range(begin, begin + 3 * count))
        running_counts = np.cumsum(sources == source)
        # The count of each data set differs from its ideal value by less than 1. The difference of
        # this data set has the weight 1 - share, and that of each other data set has the weight
        # share.
        limit = 1 + shares[source] * (len(weights) - 2)
        assert (
            np.abs(running_counts - shares[source] * np.arange(1, len(positions) + 1)).max()
            <= limit + 1e-6
        )
    sample = positions[:: max(len(positions) // 7, 1)]
    sample_sources, sample_ordinals = proportions.assign_positions(sample, key)
    assert sample_sources.tolist() == sources[sample - first_position].tolist()
    assert sample_ordinals.tolist() == ordinals[sample - first_position].tolist()


def test_order_of_a_mixture_is_pinned() -> None:
    """Saved states rely on this order."""
    sources, ordinals = Proportions.from_weights([3, 1, 2]).assign_positions(np.arange(14), 7)
    assert (sources.tolist(), ordinals.tolist()) == PINNED


PINNED = ([2, 0, 0, 2, 0, 1, 1, 2, 0, 0, 2, 0, 0, 2], [0, 0, 1, 1, 2, 0, 1, 2, 3, 4, 3, 5, 6, 4])
