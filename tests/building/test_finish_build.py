"""A build reports lost, repeated or changed records, and does not commit them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kit.files import flip
from kit.store_server import Store
from kit.worker_steps import Steps

import recordmill
from recordmill.base.errors import DataError
from recordmill.building.finish_build import RecordCountError, check_record_counts
from recordmill.building.ingest import IngestResult
from recordmill.building.plan import BuildPlan
from recordmill.building.run_slices import RunSlice
from recordmill.building.shard_boundaries import ShardRange
from recordmill.building.shard_writer import FinishedShard
from recordmill.building.sorted_run import ENTRY_DTYPE, Histogram, SortedRun
from recordmill.checks.constraints import ExpectationError
from recordmill.shards.file_names import ShardName
from recordmill.shards.manifest import INDEX_FOLDER, list_generations

DATA = {"id": np.arange(1000), "text": ["some text"] * 1000}
Shards = list[tuple[ShardRange, list[RunSlice]]]


def build_with(
    monkeypatch: pytest.MonkeyPatch, out: Path, change: Callable[[SortedRun, Shards], Shards]
) -> None:
    """Builds DATA, and calls `change` between reading and writing.

    Args:
        change: Takes the sorted run and the slices of each shard. Returns the slices to write.
    """
    from recordmill.building import local_build

    plan_shard_slices = local_build.plan_shard_slices

    def plan_changed_slices(plan: BuildPlan, runs: Sequence[SortedRun], total: Histogram) -> Shards:
        (run,) = runs
        return change(run, list(plan_shard_slices(plan, runs, total)))

    monkeypatch.setattr(local_build, "plan_shard_slices", plan_changed_slices)
    recordmill.build(DATA, out, num_shards=3, threads=1)


def flip_byte(find_offset: Callable[[SortedRun], int]) -> Callable[[SortedRun, Shards], Shards]:
    return lambda run, shards: (flip(run.path, find_offset(run)), shards)[1]


def cut_frames(missing: int) -> Callable[[SortedRun, Shards], Shards]:
    def change(run: SortedRun, shards: Shards) -> Shards:
        Path(run.path).write_bytes(Path(run.path).read_bytes()[: run.index_offset - missing])
        return shards

    return change


def repeat_slices(run: SortedRun, shards: Shards) -> Shards:
    """Repeats the slices of the first shard.

    Shards are cut by rank, so each shard still has the planned number of records.
    """
    (first, slices), *later_shards = shards
    return [(first, [*slices, *slices]), *later_shards]


DAMAGED = r"train-0000[02]-of-00003\.tfrecord: record \d+, byte \d+: .*CRC"
CHANGES: dict[str, tuple[Callable[[SortedRun, Shards], Shards], type[Exception], str]] = {
    "length": (flip_byte(lambda run: 0), DataError, DAMAGED),
    "CRC of the length": (flip_byte(lambda run: 8), DataError, DAMAGED),
    "payload": (flip_byte(lambda run: 20), DataError, DAMAGED),
    "CRC of the payload": (flip_byte(lambda run: run.frames_bytes - 1), DataError, DAMAGED),
    "a key, and the order stays": (
        flip_byte(lambda run: run.frames_bytes + 10 * ENTRY_DTYPE.itemsize),
        RecordCountError,
        r"the records written \(sum \w{16}\) differ from those read \(sum \w{16}\)",
    ),
    "a lost block": (
        lambda run, shards: shards[:-1],
        RecordCountError,
        r"1000 records were read, 0 rejected, 1000 sorted and \d+ written: these counts do not agree, so nothing was comm",
    ),
    "a doubled block": (repeat_slices, RecordCountError, "differ from those read"),
    "a byte less": (cut_frames(1), DataError, "ends at byte"),
    "an entry less": (cut_frames(ENTRY_DTYPE.itemsize), DataError, "ends at byte"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_record_changed_between_reading_and_writing_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    change, error, message = CHANGES[case]
    with pytest.raises(error, match=message):
        build_with(monkeypatch, tmp_path / "out", change)
    assert not (tmp_path / "out").exists()


def test_record_counts_pass_only_if_all_of_them_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int, list[IngestResult], list[FinishedShard]]] = []
    from recordmill.building import finish_build as finish

    monkeypatch.setattr(finish, "check_record_counts", lambda *arguments: calls.append(arguments))
    recordmill.build(DATA, tmp_path / "out", num_shards=3)
    num_read, num_rejected, ingested, shards = calls[0]
    check_record_counts(num_read, num_rejected, ingested, shards)
    fewer = replace(shards[0], info=replace(shards[0].info, records=shards[0].info.records - 1))
    for wrong_arguments in (
        (num_read + 1, 0, ingested, shards),
        (num_read, 1, ingested, shards),
        (num_read, 0, ingested, shards[1:]),
        (num_read, 0, ingested, [fewer, *shards[1:]]),
    ):
        with pytest.raises(RecordCountError, match="do not agree"):
            check_record_counts(*wrong_arguments)


def test_renumbering_shards_can_be_repeated_after_a_failed_attempt(
    tmp_path: Path,
) -> None:
    from recordmill.building.finish_build import _move_shard

    nonempty = [ShardName("train", index, 5) for index in (0, 2, 4)]
    (tmp_path / INDEX_FOLDER).mkdir()
    for name in nonempty:
        (tmp_path / str(name)).write_text(str(name.index))
        (tmp_path / INDEX_FOLDER / name.index_name).write_text(str(name.index))
    for attempt in (nonempty[:2], nonempty, nonempty):
        for index, name in enumerate(attempt):
            _move_shard(tmp_path, name, index, 3)
    for index, content in enumerate("024"):
        name = ShardName("train", index, 3)
        assert (tmp_path / str(name)).read_text() == content
        assert (tmp_path / INDEX_FOLDER / name.index_name).read_text() == content


def test_record_above_the_size_limit_of_readers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recordmill.building import ingest

    monkeypatch.setattr(ingest, "MAX_RECORD_BYTES", 1000)
    blobs = [b"x" * (2000 if i == 7 else 10) for i in range(20)]
    with pytest.raises(
        DataError,
        match=r"memory: record 7: \d+ bytes in one record, and readers accept at most 1000",
    ):
        recordmill.build({"blob": blobs}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


RULES: dict[str, Any] = {"features": {"fare": {"present": 0.99, "max": 30}}}


def frame(rows: int) -> pd.DataFrame:
    return pd.DataFrame(
        {"fare": [None if row % 10 == 0 else row / 2 for row in range(rows)], "at": range(rows)}
    )


def test_expectations_are_checked_before_workers_commit(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        frame(100).to_csv(tmp_path / "in" / f"{number}.csv", index=False)
    options: dict[str, Any] = {"num_shards": 2}
    steps = Steps.begin(
        [str(tmp_path / "in")], str(tmp_path / "out"), tmp_path / "own", expect=RULES, **options
    )
    with pytest.raises(ExpectationError, match="2 expectations are not met"):
        steps.run_all()
    assert list_generations(tmp_path / "out") == []
    fulfilled_rules = {"features": {"fare": {"present": 0.5}}}
    steps = Steps.begin(
        [str(tmp_path / "in")],
        str(tmp_path / "fine"),
        tmp_path / "own",
        expect=fulfilled_rules,
        **options,
    )
    assert sum(steps.run_all().records.values()) == 300


def test_expectations_are_checked_before_a_shard_is_put_into_a_store(
    store: Store, tmp_path: Path
) -> None:
    out = f"{store.root}/expected"
    with pytest.raises(ExpectationError, match="below 99 %"):
        recordmill.build(frame(200), out, expect=RULES)
    assert store.objects(out) == {}
