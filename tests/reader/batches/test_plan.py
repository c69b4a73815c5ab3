"""Batches have an exact order in every mode, also for streamed and damaged files.

Hosts share this order, and batches resume at every step.
"""

import gzip
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.batches import check_resumes, ids, plain
from kit.data_sets import FOLDER, mixed_rows, on_one_thread, window_options, write_data_set
from kit.token_sets import MODES

from recordmill.base.errors import UsageError
from recordmill.reader.batches.plan import make_schedule
from recordmill.reader.dataset import Dataset, open
from recordmill.reader.options.training import Order
from recordmill.reader.prefetch.prefetcher import Fetcher
from recordmill.storage.codecs import SHARD_SUFFIXES

ROWS = 500
COLUMNS = ["id", "name", "tokens", "nested", "maybe", "matrix"]


@pytest.fixture(scope="module", params=["none", "gzip", "foreign", "streamed"])
def ds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("ds")
    kind = request.param if request.param in SHARD_SUFFIXES else "none"
    out = write_data_set(folder / "out", {"train": mixed_rows(ROWS)}, shards=3, compression=kind)
    data_set = open(out)
    if request.param in SHARD_SUFFIXES:
        return open(out, columns=COLUMNS, threads=2)
    for index, shard in enumerate(sorted((out / FOLDER).glob("train-*"))):
        if request.param == "streamed" and index != 1:
            (folder / f"{index}.tfrecord.gz").write_bytes(gzip.compress(shard.read_bytes()))
        else:
            (folder / f"{index}.tfrecord").write_bytes(shard.read_bytes())
    return open(
        str(folder / "*.tfrecord*"), columns=COLUMNS, threads=2, schema=data_set.full_schema
    )


def rows_of(batch: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Returns the rows of a batch as tuples of Python values."""
    columns = [batch[name] for name in COLUMNS]
    return [tuple(plain(column[row]) for column in columns) for row in range(len(columns[0]))]


def test_every_mode_yields_each_row_once_unchanged(ds: Dataset) -> None:
    (full_batch,) = ds.batches(ROWS, shuffle=False)
    expected = rows_of(full_batch)
    assert [row[0] for row in expected] == list(range(ROWS))
    for mode in MODES:
        rows = [
            row
            for batch in ds.batches(64, shuffle=mode, seed=2, **window_options(mode, 20_000))
            for row in rows_of(batch)
        ]
        assert sorted(rows) == expected
        assert (rows == expected) == (mode is False)


def test_order_does_not_depend_on_threads_memory_or_columns(ds: Dataset) -> None:
    for mode in MODES:
        options: dict[str, Any] = {
            "shuffle": mode,
            "seed": 4,
            "epochs": 2,
            **window_options(mode, 15_000),
        }
        small_set = on_one_thread(ds.select(["id"]))
        assert ids(small_set.batches(7, **options, memory_bytes=1)) == ids(ds.batches(7, **options))


def test_batches_resume_at_every_step(ds: Dataset) -> None:
    for mode in MODES:
        options: dict[str, Any] = {
            "shuffle": mode,
            "seed": 4,
            "epochs": 2,
            **window_options(mode, 15_000),
        }
        expected = check_resumes(partial(ds.batches, 100), ids, options, every=2)
        assert len(ds.batches(100, **options)) == len(expected)


def test_state_at_the_end_of_an_epoch_resumes_with_the_next(tmp_path: Path) -> None:
    ds = open(write_data_set(tmp_path / "out", {"train": mixed_rows(90)}, shards=2), columns=["id"])
    options: dict[str, Any] = {"seed": 3, "drop_remainder": True}
    expected, results, state = ids(ds.batches(20, **options, epochs=3)), [], None
    # A user's own loop over epochs passes the state of each epoch to the next one in this way.
    for _ in range(3):
        run = ds.batches(20, **options, state=state)
        results += ids(run)
        state = json.loads(json.dumps(run.state()))
    assert results == expected
    old_state = {
        **ds.batches(20, **options).state(),
        "position": 90,  # saved at the end of an epoch
    }
    assert ids(ds.batches(20, **options, state=old_state)) == expected[4:8]
    try:
        import tensorflow  # noqa: F401
    except ImportError:
        return
    batches = ds.batches(20, **options)
    assert len(list(batches)) == 4
    assert ids(ds.to_tf(20, **options, state=batches.state())) == expected[4:8]


def test_hosts_share_an_epoch_and_fewer_hosts_resume(ds: Dataset) -> None:
    for mode in MODES:
        options: dict[str, Any] = {"shuffle": mode, "seed": 1, "pad_remainder": True}
        hosts = [ds.batches(16, **options, num_hosts=4, host_index=host) for host in range(4)]
        record_ids = [i for host in hosts for _ in range(3) for i in next(host)["id"].tolist()]
        states = [host.state() for host in hosts]
        assert states == [states[0]] * 4
        rest = [
            ds.batches(16, **options, num_hosts=3, host_index=host, state=states[0])
            for host in range(3)
        ]
        assert len({len(host) for host in rest}) == 1
        record_ids += [
            i for host in rest for batch in host for i in batch["id"][batch["mask"]].tolist()
        ]
        assert sorted(record_ids) == list(range(ROWS))
        for host in hosts:
            host.close()


def test_records_that_hosts_cannot_share_are_left_out(ds: Dataset) -> None:
    with pytest.raises(
        UsageError, match="an epoch has 500 records, less than a batch of 300 for each of 2 hosts: "
    ):
        ds.batches(300, num_hosts=2, host_index=0)
    assert len(ds.batches(25, shuffle=False, num_hosts=2, host_index=1)) == 10
    host_ids = [
        np.concatenate([b["id"] for b in ds.batches(32, num_hosts=2, host_index=host)])
        for host in (0, 1)
    ]
    assert [len(numbers) for numbers in host_ids] == [7 * 32] * 2
    assert len(np.unique(np.concatenate(host_ids))) == 2 * 7 * 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 2}, r"another seed: 1, and now it is 2"),
        ({"shuffle": False}, r"another mode \(shuffle\): 'window', and now it is False"),
        ({"batch_size": 9}, "another batch_size: 8, and now it is 9"),
        ({"window_bytes": 5}, "another window_bytes"),
    ],
)
def test_state_of_other_options_is_refused(
    ds: Dataset, changes: dict[str, Any], message: str
) -> None:
    options: dict[str, Any] = {"batch_size": 8, "shuffle": "window", "seed": 1}
    state = ds.batches(**options).state()
    with pytest.raises(UsageError, match=message):
        ds.batches(**{**options, **changes}, state=state)


def test_state_of_another_data_set_is_refused(tmp_path: Path) -> None:
    first = write_data_set(tmp_path / "one", {"train": mixed_rows(40)}, shards=1)
    second = write_data_set(tmp_path / "other", {"train": mixed_rows(40, 1)}, shards=1)
    state = open(first).batches(8, shuffle=False).state()
    (tmp_path / "one").rename(tmp_path / "moved")
    assert len(list(open(tmp_path / "moved").batches(8, shuffle=False, state=state))) == 5
    with pytest.raises(UsageError, match="another data set"):
        open(second).batches(8, shuffle=False, state=state)
    with pytest.raises(UsageError, match="another data set"):
        open(tmp_path / "moved", where="id >= 0").batches(8, shuffle=False, state=state)
    with pytest.raises(UsageError, match="position 41, and an epoch has 40 records"):
        open(tmp_path / "moved").batches(8, shuffle=False, state={**state, "position": 41})


def test_first_steps_are_read_in_small_ranges(ds: Dataset) -> None:
    def steps(mode: Any) -> list[int]:
        order = Order(shuffle=mode, window_bytes=10_000)
        fetcher = Fetcher(
            ds.records, replace(make_schedule(ds.records, 10, order), end_epoch=1), ds.schema, 2
        )
        return [step_range.num_steps for step_range in fetcher._step_ranges(fetcher._row_bytes())]

    assert steps(False) == [50]
    windows = steps("window")
    assert sum(windows) == 50
    assert (len(windows) == 1) == (not any(file.inflates_members for file in ds.files))
