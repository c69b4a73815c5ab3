"""Padded, bucketed and packed batches hold each record once, resume at every step, and are
shared by hosts.
"""

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.batches import check_resumes, ids
from kit.data_sets import on_one_thread, windows, write_data_set

from recordmill.base.errors import DataError, UsageError
from recordmill.reader import Bucketed, OneHot, Packed, Padded
from recordmill.reader.batches.grouping import PackingLayout, compute_length_boundaries
from recordmill.reader.dataset import Dataset, open
from recordmill.schemas.feature import Feature, Schema

ROWS = 317
SCHEMA = Schema(
    (
        Feature("id", "int64", (), True),
        Feature("tokens", "int64", (None,), True),
        Feature("tags", "string", (None,)),
        Feature("weight", "float32", (None,)),
        Feature("kind", "int64", (), False, ("a", "b", "c")),
        Feature("name", "string", (), True),
    )
)
LENGTHS = [int(n) for n in np.random.default_rng(5).gamma(2, 6, ROWS)]


def tokens(record: int) -> list[int]:
    return [1000 * record + i + 1 for i in range(LENGTHS[record])]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    columns = {
        "id": list(range(ROWS)),
        "tokens": [tokens(i) for i in range(ROWS)],
        "tags": [None if i % 5 == 0 else ["t"] * (i % 4) for i in range(ROWS)],
        "weight": [[0.5] * LENGTHS[i] for i in range(ROWS)],
        "kind": [None if i % 7 == 0 else i % 3 for i in range(ROWS)],
        "name": [f"n{i}" for i in range(ROWS)],
    }
    return open(
        write_data_set(
            tmp_path_factory.mktemp("collate") / "out", {"train": columns}, SCHEMA, shards=3
        )
    )


MODES = [False, "window", "global"]
BUCKETED: dict[str, Any] = {"collate": {"tokens": Bucketed((8, 16, 32), steps=5, lengths=True)}}


@pytest.mark.parametrize("mode", MODES)
def test_bucketed_batches_cover_the_epoch_with_rows_of_similar_length(
    ds: Dataset, mode: Any
) -> None:
    batches = list(ds.batches(16, shuffle=mode, seed=2, **windows(mode, 9000), **BUCKETED))
    assert [len(batch["id"]) for batch in batches] == [16] * 19 + [13]
    assert sorted(chain.from_iterable(ids(batches))) == list(range(ROWS))
    filled = asked = 0
    for batch in batches:
        length = batch["tokens"].shape[1]
        longest = int(batch["tokens/length"].max())
        assert length == next((b for b in (8, 16, 32) if b >= longest), longest)
        for record, row, true in zip(
            batch["id"], batch["tokens"], batch["tokens/length"], strict=True
        ):
            assert row.tolist() == tokens(record) + [0] * (length - LENGTHS[record])
            assert true == LENGTHS[record]
        filled, asked = filled + batch["tokens"].size, asked + longest
    plain = sum(
        batch["tokens"].size
        for batch in ds.batches(16, shuffle=mode, seed=2, collate={"tokens": "padded"})
    )
    assert filled < 0.8 * plain


def test_bucketing_keeps_records_within_their_group_of_steps(ds: Dataset) -> None:
    plain = ids(ds.batches(16, shuffle="global", seed=2))
    bucketed = ids(ds.batches(16, shuffle="global", seed=2, **BUCKETED))
    assert plain != bucketed
    for first in range(0, 20, 5):
        ours, theirs = (
            set(chain.from_iterable(run[first : first + 5])) for run in (plain, bucketed)
        )
        assert ours == theirs


@pytest.mark.parametrize("mode", MODES)
def test_bucketed_batches_resume_at_every_step(ds: Dataset, mode: Any) -> None:
    options = {"shuffle": mode, "seed": 4, "epochs": 2, **windows(mode, 9000), **BUCKETED}
    whole = check_resumes(partial(ds.batches, 16), ids, options, every=3)
    running = ds.batches(16, **options)
    assert len(running) == len(whole)
    next(running)
    assert ds.batches(16, **options, state=running.state()).state() == running.state()
    assert ids(on_one_thread(ds.select(["id", "tokens"])).batches(16, **options)) == whole


def test_hosts_share_bucketed_steps_of_similar_lengths(ds: Dataset) -> None:
    options = {"shuffle": "global", "seed": 1, "pad_remainder": True, **BUCKETED}
    hosts = [ds.batches(8, **options, num_hosts=3, host_index=host) for host in range(3)]
    assert [len(host) for host in hosts] == [14] * 3
    seen = []
    for _ in range(5):
        lengths = []
        for host in hosts:
            batch = next(host)
            seen += batch["id"][batch["mask"]].tolist()
            lengths.append(batch["tokens/length"].mean())
        assert max(lengths) - min(lengths) < 12
    states = [host.state() for host in hosts]
    assert states == [states[0]] * 3
    assert "bucketed" not in states[0]
    for host in hosts:
        next(host)
    with pytest.raises(UsageError, match="num_hosts 3, and now it is 2"):
        ds.batches(8, **options, num_hosts=2, host_index=0, state=hosts[0].state())
    for host in range(2):
        rest = ds.batches(8, **options, num_hosts=2, host_index=host, state=states[0])
        middle = [next(rest) for _ in range(3)]
        again = ds.batches(8, **options, num_hosts=2, host_index=host, state=rest.state())
        seen += [i for batch in [*middle, *again] for i in batch["id"][batch["mask"]].tolist()]
    assert sorted(seen) == list(range(ROWS))


def test_state_of_bucketed_batches_is_refused_by_other_batches(ds: Dataset) -> None:
    options: dict[str, Any] = {"seed": 1, "shuffle": True, "window_bytes": 9000}
    running = ds.batches(16, **options, **BUCKETED)
    next(running)
    state = running.state()
    with pytest.raises(UsageError, match="bucketed together: use the same collate"):
        ds.batches(16, **options, state=state)
    other = {"tokens": Bucketed((8, 16), steps=5)}
    with pytest.raises(UsageError, match=r"boundaries \[8, 16, 32\], and now it is \[8, 16\]"):
        ds.batches(16, **options, collate=other, state=state)
    late = {**state, "bucketed": {**state["bucketed"], "group": 99}}
    with pytest.raises(UsageError, match="group 99"):
        ds.batches(16, **options, **BUCKETED, state=late)


def test_bucket_boundaries_follow_the_lengths(ds: Dataset) -> None:
    boundaries = compute_length_boundaries([pa.array([[0] * n for n in LENGTHS])], 4)
    counts = np.bincount(np.searchsorted(boundaries, LENGTHS))
    assert len(boundaries) == 4
    assert boundaries[-1] == max(LENGTHS)
    assert counts.max() - counts.min() < 0.2 * ROWS
    for batch in ds.batches(16, shuffle=True, collate={"tokens": Bucketed(buckets=4)}):
        assert batch["tokens"].shape[1] in boundaries
    assert compute_length_boundaries([], 4) == (1,)
    (none,) = ds.select(["tags"]).batches(ROWS, shuffle=False, collate={"tags": "bucketed"})
    assert none["tags"][1].tolist() == ["t", "", ""]


PACKED: dict[str, Any] = {"collate": {"tokens": Packed(24), "weight": Packed(30, value=-1)}}


def unpacked(batch: dict[str, Any]) -> dict[int, list[int]]:
    """The lists of a packed batch by record."""
    found = {}
    for at in range(len(batch["tokens"])):
        for number, record in enumerate(batch["id"][at], 1):
            there = batch["tokens/segment"][at] == number
            found[int(record)] = batch["tokens"][at][there].tolist()
            assert batch["tokens/position"][at][there].tolist() == list(range(there.sum()))
            weighed = batch["weight/segment"][at] == number
            assert (batch["weight"][at][weighed] == 0.5).all()
            assert weighed.sum() == min(LENGTHS[record], 30)
        nothing = batch["tokens/segment"][at] == 0
        assert not batch["tokens"][at][nothing].any()
        assert not batch["tokens/position"][at][nothing].any()
        assert (batch["weight"][at][batch["weight/segment"][at] == 0] == -1).all()
    return found


@pytest.mark.filterwarnings("ignore:feature")
@pytest.mark.parametrize("mode", MODES)
def test_packed_rows_hold_every_record_once(ds: Dataset, mode: Any) -> None:
    running = ds.batches(8, shuffle=mode, seed=3, **PACKED)
    batches = list(running)
    found: dict[int, list[int]] = {}
    for batch in batches:
        assert batch["tokens"].shape == (8, 24)
        assert batch["weight"].shape == (8, 30)
        assert [list(names) for names in batch["name"]] == [
            [f"n{i}" for i in row] for row in batch["id"]
        ]
        more = unpacked(batch)
        assert found.keys().isdisjoint(more)
        found |= more
    assert found == {i: tokens(i)[:24] for i in range(ROWS)}
    assert running.cut == {
        "tokens": sum(length > 24 for length in LENGTHS),
        "weight": sum(length > 30 for length in LENGTHS),
    }
    full = sum(int((batch["tokens/segment"] > 0).sum()) for batch in batches[:-1])
    assert full > 0.75 * 24 * 8 * (len(batches) - 1)
    order = ids(ds.batches(1, shuffle=mode, seed=3))
    for batch in batches:  # consecutive records of the order make a batch
        taken, order = order[: len(unpacked(batch))], order[len(unpacked(batch)) :]
        assert sorted(chain.from_iterable(taken)) == sorted(unpacked(batch))


def test_packing_warns_about_truncated_records(ds: Dataset) -> None:
    with pytest.warns(
        UserWarning, match="feature 'tokens' has records that are longer than a packed row"
    ):
        next(ds.batches(8, shuffle=False, collate={"tokens": Packed(4)}))


@pytest.mark.filterwarnings("ignore:feature")
@pytest.mark.parametrize("mode", MODES)
def test_packed_batches_resume_at_every_step(ds: Dataset, mode: Any) -> None:
    def all_unpacked(batches: Any) -> list[Any]:
        return [unpacked(batch) for batch in batches]

    options = {"shuffle": mode, "seed": 4, "epochs": 2, **windows(mode, 9000), **PACKED}
    whole = check_resumes(partial(ds.batches, 8), all_unpacked, options, every=5)
    little = on_one_thread(ds.select(["id", "tokens", "weight"]))
    assert all_unpacked(little.batches(8, **options, memory_bytes=1)) == whole
    with pytest.raises(TypeError, match="is known only when they are packed"):
        len(ds.batches(8, **options))


@pytest.mark.filterwarnings("ignore:feature")
def test_hosts_share_packed_steps_and_fewer_hosts_resume(ds: Dataset) -> None:
    options = {"shuffle": "global", "seed": 1, **PACKED}
    alone = list(ds.batches(12, **options))
    hosts = [ds.batches(4, **options, num_hosts=3, host_index=host) for host in range(3)]
    both = list(zip(*hosts, strict=True))
    assert len(both) == len(alone)
    for batch, parts in zip(alone, both, strict=True):
        assert np.array_equal(batch["tokens"], np.concatenate([part["tokens"] for part in parts]))
        assert np.array_equal(
            batch["weight/segment"], np.concatenate([part["weight/segment"] for part in parts])
        )
    hosts = [ds.batches(4, **options, num_hosts=3, host_index=host) for host in range(3)]
    seen = [unpacked(next(host)) for _ in range(2) for host in hosts]
    states = [host.state() for host in hosts]
    assert states == [states[0]] * 3
    for host in range(2):
        seen += [
            unpacked(batch)
            for batch in ds.batches(4, **options, num_hosts=2, host_index=host, state=states[0])
        ]
    assert sorted(chain.from_iterable(seen)) == list(range(ROWS))


@pytest.mark.filterwarnings("ignore:feature")
def test_last_packed_batch_of_an_epoch_is_dropped_with_drop_remainder(ds: Dataset) -> None:
    whole = [unpacked(batch) for batch in ds.batches(8, shuffle=False, epochs=2, **PACKED)]
    fewer = [
        unpacked(batch)
        for batch in ds.batches(8, shuffle=False, epochs=2, drop_remainder=True, **PACKED)
    ]
    assert fewer == [
        batch for at, batch in enumerate(whole) if at not in (len(whole) // 2 - 1, len(whole) - 1)
    ]
    with pytest.raises(UsageError, match="has no effect"):
        ds.batches(8, pad_remainder=True, **PACKED)


@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=60),
    rows=st.integers(1, 5),
    limit=st.integers(1, 10),
)
def test_packing_equals_textbook_first_fit(lengths: list[int], rows: int, limit: int) -> None:
    batch = pa.record_batch(
        [pa.array([[0] * n for n in lengths], pa.large_list(pa.int64()))], ["a"]
    )
    place, ends = PackingLayout(("a",), (0,), (limit,), rows, 0, rows).pack_records(batch, True)
    expected, left, step, first = [], [limit] * rows, 0, []
    for at, length in enumerate(lengths):
        need = min(max(length, 1), limit)
        if all(room < need for room in left):
            first.append(at)
            left, step = [limit] * rows, step + 1
        row = next(i for i, room in enumerate(left) if room >= need)
        left[row] -= need
        expected.append(step * rows + row)
    assert place.tolist() == expected
    assert ends.tolist() == [*first, len(lengths)]


def test_class_numbers_become_one_hot(ds: Dataset) -> None:
    for batch in ds.batches(50, shuffle=False, collate={"kind": "one_hot", "id": OneHot(ROWS)}):
        assert batch["id"].argmax(1).tolist() == batch["id"].nonzero()[1].tolist()
        for record, row in zip(batch["id"].argmax(1), batch["kind"], strict=True):
            assert row.tolist() == [float(record % 7 > 0 and record % 3 == i) for i in range(3)]
    with pytest.raises(DataError, match="feature 'id' is 5, and there are 5 classes"):
        next(ds.batches(50, shuffle=False, collate={"id": OneHot(5)}))


@pytest.mark.parametrize(
    ("collate", "said"),
    [
        ({"token": "padded"}, "did you mean tokens"),
        ({"id": "padded"}, "'id' is not a selected list"),
        ({"id": "one_hot"}, r"use OneHot\(depth\)"),
        ({"name": "one_hot"}, "takes one whole number"),
        ({"tags": Packed(5)}, "Packed takes lists of numbers"),
        ({"tokens": Padded(value=1.5)}, "padded with 1.5"),
        ({"tags": Padded(value=7)}, "padded with 7"),
        ({"tokens": "bucketed", "tags": "bucketed"}, "only one feature can be bucketed"),
        ({"tokens": Packed(4), "tags": "padded"}, "'tags' becomes a list for each packed row"),
        ({"tokens": Packed(4), "weight": "bucketed"}, "choose one"),
    ],
)
def test_collation_that_does_not_fit_a_feature_is_refused(
    ds: Dataset, collate: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        ds.batches(8, collate=collate)


@pytest.mark.parametrize(
    ("way", "options"),
    [
        (Bucketed, {"boundaries": (4, 4)}),
        (Bucketed, {"boundaries": ()}),
        (Bucketed, {"boundaries": (0, 3)}),
        (Bucketed, {"boundaries": "auto"}),
        (Bucketed, {"buckets": 0}),
        (Packed, {"length": 0}),
        (OneHot, {"depth": 0}),
        (Padded, {"length": 0}),
        (Padded, {"multiple": 0}),
        (Padded, {"length": 3, "multiple": 2}),
    ],
)
def test_invalid_collation_parameters_are_refused(way: Any, options: dict[str, Any]) -> None:
    with pytest.raises(
        UsageError, match=way.__name__ if "boundaries" not in options else "boundaries are lengths"
    ):
        way(**options)


def test_lists_of_text_are_padded_with_text(ds: Dataset) -> None:
    for value, filled in ((0, ""), ("-", "-")):
        (batch,) = ds.batches(ROWS, shuffle=False, collate={"tags": Padded(3, value=value)})
        for record, row in zip(batch["id"], batch["tags"], strict=True):
            there = 0 if record % 5 == 0 else record % 4
            assert row.tolist() == ["t"] * there + [filled] * (3 - there)


def test_labels_of_packed_batches_are_packed_rows(tmp_path: Path, ds: Dataset) -> None:
    small = ds.select(["tokens", "weight"])
    x, y = next(
        small.batches(
            4, shuffle=False, label="weight", collate={"tokens": Packed(100), "weight": Packed(100)}
        )
    )
    assert y.shape == (4, 100)
    assert sorted(x) == [
        "tokens",
        "tokens/position",
        "tokens/segment",
        "weight/position",
        "weight/segment",
    ]
