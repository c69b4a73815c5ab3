"""Records that are lost, doubled or changed between reading and writing, injected into real run files:
never committed, and said where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recordmill
from recordmill.base.errors import DataError
from recordmill.base.memory import address_of
from recordmill.building.conclude import AccountsError, reconcile
from recordmill.building.ingest import Ingested
from recordmill.building.plan import BuildPlan
from recordmill.building.run_file import ENTRY_DTYPE, Run
from recordmill.building.shard_writer import WrittenShard
from recordmill.building.slices import RunSlice
from recordmill.shards.entries.names import ShardName
from recordmill.shards.manifest import INDEX_FOLDER

pytest.importorskip("apache_beam", reason="building needs Apache Beam")

DATA = {"id": np.arange(1000), "text": ["some text"] * 1000}
Blocks = Iterator[tuple[int, tuple[int, RunSlice]]]


@pytest.fixture(params=[0, 1 << 30], ids=["runs in files", "runs in memory"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether runs stay in memory."""
    monkeypatch.setattr(BuildPlan, "held_bytes", request.param)
    return bool(request.param)


def build_with(monkeypatch: pytest.MonkeyPatch, out: Path, change: Callable[[Ingested, list[Any]], list[Any]]) -> None:
    """A build in which `change` gets, between reading and writing,
    each run and the blocks that shards are to take from it.
    """
    from recordmill.transforms import one_stage, stages

    cut_run = stages.cut_run

    def changed(ingested: Ingested, cuts: Any, plan_path: str, packs: int) -> Blocks:
        yield from change(ingested, list(cut_run(ingested, cuts, plan_path, packs)))

    monkeypatch.setattr(one_stage, "cut_run", changed)
    recordmill.build(DATA, out, num_shards=3, threads=1)


def flip(path: str, at: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 1
    Path(path).write_bytes(data)


def flip_frames(run: Run, at: int) -> None:
    """A bit of byte `at` of the run's frames, in their order."""
    if run.held is None:
        flip(run.path, at % run.frames_bytes)
    else:
        first = int(run.held.addresses[0])
        if at < 0:
            first = int(run.held.addresses[-1]) + int(run.held.entries["size"][-1])
        block = next(b for b in run.held.blocks if 0 <= first + at - address_of(b) < len(b))
        block[first + at - address_of(block)] ^= 1


def flip_key(run: Run, entry: int) -> None:
    """The lowest bit of a key: the order stays."""
    if run.held is None:
        flip(run.path, run.frames_bytes + entry * ENTRY_DTYPE.itemsize)
    else:
        run.held.entries["key"][entry] ^= 1


def test_without_a_change_it_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    build_with(monkeypatch, tmp_path / "out", lambda ingested, blocks: blocks)
    assert recordmill.verify(tmp_path / "out") == []


@pytest.mark.parametrize("at", [0, 8, 20, -1], ids=["length", "CRC of the length", "payload", "CRC of the payload"])
def test_a_flipped_bit_in_a_frame_names_the_shard_and_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, held: bool
) -> None:
    def change(ingested: Ingested, blocks: list[Any]) -> list[Any]:
        assert (ingested.runs[0].held is not None) == held
        flip_frames(ingested.runs[0], at)
        return blocks

    with pytest.raises(DataError, match=r"train-0000[02]-of-00003\.tfrecord: record \d+, byte \d+: .*CRC"):
        build_with(monkeypatch, tmp_path / "out", change)
    assert not (tmp_path / "out").exists()


def test_a_changed_key_is_noticed_by_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    def change(ingested: Ingested, blocks: list[Any]) -> list[Any]:
        flip_key(ingested.runs[0], 10)
        return blocks

    with pytest.raises(AccountsError, match=r"the records written \(sum \w{16}\) are not those read \(sum \w{16}\)"):
        build_with(monkeypatch, tmp_path / "out", change)
    assert not (tmp_path / "out").exists()


def test_a_lost_block_is_noticed_by_the_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    with pytest.raises(
        AccountsError,
        match=r"1000 records were read, 0 rejected, 1000 put in order and \d+ written: they don't add up; nothing "
        r"was committed",
    ):
        build_with(monkeypatch, tmp_path / "out", lambda ingested, blocks: blocks[:-1])
    assert not (tmp_path / "out").exists()


def test_a_doubled_block_is_noticed_by_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    # shards are cut by rank, so their number of records is the planned one
    with pytest.raises(AccountsError, match="are not those read"):
        build_with(monkeypatch, tmp_path / "out", lambda ingested, blocks: [*blocks, blocks[0]])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("missing", [1, ENTRY_DTYPE.itemsize])
def test_a_run_file_that_was_cut_short_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    monkeypatch.setattr(BuildPlan, "held_bytes", 0)

    def change(ingested: Ingested, blocks: list[Any]) -> list[Any]:
        path = Path(ingested.runs[0].path)
        path.write_bytes(path.read_bytes()[:-missing])
        return blocks

    with pytest.raises(DataError, match="ends at byte"):
        build_with(monkeypatch, tmp_path / "out", change)
    assert not (tmp_path / "out").exists()


def test_the_accounts_hold_only_if_all_numbers_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, list[Ingested], list[WrittenShard]]] = []
    from recordmill.building import conclude as finish

    monkeypatch.setattr(finish, "reconcile", lambda *accounts: seen.append(accounts))
    recordmill.build(DATA, tmp_path / "out", num_shards=3)
    read, rejected, ingested, shards = seen[0]
    reconcile(read, rejected, ingested, shards)
    fewer = replace(shards[0], info=replace(shards[0].info, records=shards[0].info.records - 1))
    for wrong in (
        (read + 1, 0, ingested, shards),
        (read, 1, ingested, shards),
        (read, 0, ingested, shards[1:]),
        (read, 0, ingested, [fewer, *shards[1:]]),
    ):
        with pytest.raises(AccountsError, match="don't add up"):
            reconcile(*wrong)


def test_renumbering_shards_again_after_an_attempt_that_died_changes_nothing(tmp_path: Path) -> None:
    from recordmill.building.conclude import _rename_shard

    full = [ShardName("train", index, 5) for index in (0, 2, 4)]
    (tmp_path / INDEX_FOLDER).mkdir()
    for name in full:
        (tmp_path / str(name)).write_text(str(name.index))
        (tmp_path / INDEX_FOLDER / name.index_name).write_text(str(name.index))
    for attempt in (full[:2], full, full):
        for index, name in enumerate(attempt):
            _rename_shard(tmp_path, name, index, 3)
    for index, content in enumerate("024"):
        name = ShardName("train", index, 3)
        assert (tmp_path / str(name)).read_text() == content
        assert (tmp_path / INDEX_FOLDER / name.index_name).read_text() == content


def test_a_record_that_readers_would_refuse_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from recordmill.building import ingest

    monkeypatch.setattr(ingest, "MAX_RECORD_BYTES", 1000)
    blobs = [b"x" * (2000 if i == 7 else 10) for i in range(20)]
    with pytest.raises(
        DataError, match=r"memory: record 7: \d+ bytes in one record, of which readers take 1000 at most"
    ):
        recordmill.build({"blob": blobs}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
