"""Padded, bucketed and packed batches contain each record once, and resume at every step.

Several hosts may share the batches.
"""

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.batches import check_resumes, ids
from kit.data_sets import on_one_thread, window_options
from kit.token_sets import LENGTHS, MODES, PACKED, ROWS, tokens, unpack_batch

from recordmill.base.errors import UsageError
from recordmill.reader import Bucketed, Packed, Padded
from recordmill.reader.dataset import Dataset

BUCKETED: dict[str, Any] = {"collate": {"tokens": Bucketed((8, 16, 32), steps=5, lengths=True)}}


@pytest.mark.parametrize("mode", MODES)
def test_bucketed_batches_cover_the_epoch_with_rows_of_similar_length(
    token_set: Dataset, mode: Any
) -> None:
    batches = list(
        token_set.batches(16, shuffle=mode, seed=2, **window_options(mode, 9000), **BUCKETED)
    )
    assert [len(batch["id"]) for batch in batches] == [16] * 19 + [13]
    assert sorted(chain.from_iterable(ids(batches))) == list(range(ROWS))
    bucketed_size = 0
    for batch in batches:
        length = batch["tokens"].shape[1]
        longest = int(batch["tokens/length"].max())
        assert length == next((b for b in (8, 16, 32) if b >= longest), longest)
        for record, row, true_length in zip(
            batch["id"], batch["tokens"], batch["tokens/length"], strict=True
        ):
            assert row.tolist() == tokens(record) + [0] * (length - LENGTHS[record])
            assert true_length == LENGTHS[record]
        bucketed_size += batch["tokens"].size
    padded_size = sum(
        batch["tokens"].size
        for batch in token_set.batches(16, shuffle=mode, seed=2, collate={"tokens": "padded"})
    )
    assert bucketed_size < 0.8 * padded_size


def test_bucketing_keeps_records_within_their_group_of_steps(token_set: Dataset) -> None:
    plain = ids(token_set.batches(16, shuffle="global", seed=2))
    bucketed = ids(token_set.batches(16, shuffle="global", seed=2, **BUCKETED))
    assert plain != bucketed
    for begin in range(0, 20, 5):
        plain_group, bucketed_group = (
            set(chain.from_iterable(run[begin : begin + 5])) for run in (plain, bucketed)
        )
        assert plain_group == bucketed_group


@pytest.mark.parametrize("mode", MODES)
def test_bucketed_batches_resume_at_every_step(token_set: Dataset, mode: Any) -> None:
    options = {"shuffle": mode, "seed": 4, "epochs": 2, **window_options(mode, 9000), **BUCKETED}
    expected = check_resumes(partial(token_set.batches, 16), ids, options, every=3)
    batches = token_set.batches(16, **options)
    assert len(batches) == len(expected)
    next(batches)
    assert token_set.batches(16, **options, state=batches.state()).state() == batches.state()
    assert ids(on_one_thread(token_set.select(["id", "tokens"])).batches(16, **options)) == expected


def test_hosts_share_bucketed_steps_of_similar_lengths(token_set: Dataset) -> None:
    options = {"shuffle": "global", "seed": 1, "pad_remainder": True, **BUCKETED}
    hosts = [token_set.batches(8, **options, num_hosts=3, host_index=host) for host in range(3)]
    assert [len(host) for host in hosts] == [14] * 3
    record_ids = []
    for _ in range(5):
        lengths = []
        for host in hosts:
            batch = next(host)
            record_ids += batch["id"][batch["mask"]].tolist()
            lengths.append(batch["tokens/length"].mean())
        assert max(lengths) - min(lengths) < 12
    states = [host.state() for host in hosts]
    assert states == [states[0]] * 3
    assert "bucketed" not in states[0]
    for host in hosts:
        next(host)
    with pytest.raises(UsageError, match="num_hosts 3, and now it is 2"):
        token_set.batches(8, **options, num_hosts=2, host_index=0, state=hosts[0].state())
    for host in range(2):
        rest = token_set.batches(8, **options, num_hosts=2, host_index=host, state=states[0])
        middle = [next(rest) for _ in range(3)]
        resumed = token_set.batches(8, **options, num_hosts=2, host_index=host, state=rest.state())
        record_ids += [
            i for batch in [*middle, *resumed] for i in batch["id"][batch["mask"]].tolist()
        ]
    assert sorted(record_ids) == list(range(ROWS))


def test_state_of_bucketed_batches_is_refused_by_other_batches(token_set: Dataset) -> None:
    options: dict[str, Any] = {"seed": 1, "shuffle": True, "window_bytes": 9000}
    batches = token_set.batches(16, **options, **BUCKETED)
    next(batches)
    state = batches.state()
    with pytest.raises(UsageError, match="bucketed together: use the same collate"):
        token_set.batches(16, **options, state=state)
    other_boundaries = {"tokens": Bucketed((8, 16), steps=5)}
    with pytest.raises(UsageError, match=r"boundaries \[8, 16, 32\], and now it is \[8, 16\]"):
        token_set.batches(16, **options, collate=other_boundaries, state=state)
    late_state = {**state, "bucketed": {**state["bucketed"], "group": 99}}
    with pytest.raises(UsageError, match="group 99"):
        token_set.batches(16, **options, **BUCKETED, state=late_state)


@pytest.mark.filterwarnings("ignore:feature")
@pytest.mark.parametrize("mode", MODES)
def test_packed_batches_resume_at_every_step(token_set: Dataset, mode: Any) -> None:
    def all_unpacked(batches: Any) -> list[Any]:
        return [unpack_batch(batch) for batch in batches]

    options = {"shuffle": mode, "seed": 4, "epochs": 2, **window_options(mode, 9000), **PACKED}
    expected = check_resumes(partial(token_set.batches, 8), all_unpacked, options, every=5)
    small_set = on_one_thread(token_set.select(["id", "tokens", "weight"]))
    assert all_unpacked(small_set.batches(8, **options, memory_bytes=1)) == expected
    with pytest.raises(TypeError, match="is known only when they are packed"):
        len(token_set.batches(8, **options))


@pytest.mark.filterwarnings("ignore:feature")
def test_hosts_share_packed_steps_and_fewer_hosts_resume(token_set: Dataset) -> None:
    options = {"shuffle": "global", "seed": 1, **PACKED}
    expected = list(token_set.batches(12, **options))
    hosts = [token_set.batches(4, **options, num_hosts=3, host_index=host) for host in range(3)]
    steps = list(zip(*hosts, strict=True))
    assert len(steps) == len(expected)
    for batch, parts in zip(expected, steps, strict=True):
        assert np.array_equal(batch["tokens"], np.concatenate([part["tokens"] for part in parts]))
        assert np.array_equal(
            batch["weight/segment"], np.concatenate([part["weight/segment"] for part in parts])
        )
    hosts = [token_set.batches(4, **options, num_hosts=3, host_index=host) for host in range(3)]
    rows = [unpack_batch(next(host)) for _ in range(2) for host in hosts]
    states = [host.state() for host in hosts]
    assert states == [states[0]] * 3
    for host in range(2):
        rows += [
            unpack_batch(batch)
            for batch in token_set.batches(
                4, **options, num_hosts=2, host_index=host, state=states[0]
            )
        ]
    assert sorted(chain.from_iterable(rows)) == list(range(ROWS))


@pytest.mark.filterwarnings("ignore:feature")
def test_last_packed_batch_of_an_epoch_is_dropped_with_drop_remainder(token_set: Dataset) -> None:
    batches = [
        unpack_batch(batch) for batch in token_set.batches(8, shuffle=False, epochs=2, **PACKED)
    ]
    full_batches = [
        unpack_batch(batch)
        for batch in token_set.batches(8, shuffle=False, epochs=2, drop_remainder=True, **PACKED)
    ]
    assert full_batches == [
        batch
        for index, batch in enumerate(batches)
        if index not in (len(batches) // 2 - 1, len(batches) - 1)
    ]
    with pytest.raises(UsageError, match="has no effect"):
        token_set.batches(8, pad_remainder=True, **PACKED)


def test_lists_of_text_are_padded_with_text(token_set: Dataset) -> None:
    for value, fill in ((0, ""), ("-", "-")):
        (batch,) = token_set.batches(ROWS, shuffle=False, collate={"tags": Padded(3, value=value)})
        for record, row in zip(batch["id"], batch["tags"], strict=True):
            length = 0 if record % 5 == 0 else record % 4
            assert row.tolist() == ["t"] * length + [fill] * (3 - length)


def test_labels_of_packed_batches_are_packed_rows(tmp_path: Path, token_set: Dataset) -> None:
    small = token_set.select(["tokens", "weight"])
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
