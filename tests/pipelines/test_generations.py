"""`log`, `restore` and `compact` work with the generations of a data set.

A restored generation is complete, and a compacted data set has the same bytes as a single
build.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.grown_sets import KEYED, make_parts, numbered_rows, shards_of_one_part
from kit.runs import run_command
from kit.store_server import Store

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.building.commit import CommitConflict
from recordmill.pipelines import output_run
from recordmill.shards.manifest import list_generations, load_manifest

# Opening generations


def test_generation_is_opened_by_its_number(tmp_path: Path) -> None:
    out = make_parts(tmp_path / "out", keep_generations=3)
    assert [len(recordmill.open(out, generation=number)) for number in (1, 2, 3)] == [300, 400, 600]
    old = recordmill.open(out, generation=2)
    assert sum(split["id"].present for split in old.statistics.values()) == 400
    assert sorted(old.to_numpy()["id"].tolist()) == list(range(400))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, r"does not have generation 1 any more \(kept: 2, 3\); keep_generations=.* keeps more"),
        (4, r"has no generation 4 \(kept: 2, 3\)$"),
        (0, "generation must be at least 1"),
    ],
)
def test_generation_that_does_not_exist_is_refused(tmp_path: Path, number: int, words: str) -> None:
    out = make_parts(tmp_path / "out")
    with pytest.raises(UsageError, match=words):
        recordmill.open(out, generation=number)


def test_files_without_a_manifest_have_no_generations(tmp_path: Path) -> None:
    out = make_parts(tmp_path / "out")
    with pytest.raises(UsageError, match="has no generations"):
        recordmill.open(str(out / "data-*" / "train-*.tfrecord"), generation=1)


def test_state_of_another_generation_is_refused_and_continues_on_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    recordmill.build(numbered_rows(0, 300), out, **KEYED)
    dataset = recordmill.open(out, split="train")
    expected = [batch["id"].tolist() for batch in dataset.batches(32, seed=5, epochs=1)]
    batches = dataset.batches(32, seed=5, epochs=1)
    first = [next(batches)["id"].tolist() for _ in range(3)]
    state = json.loads(json.dumps(batches.state()))
    assert state["generation"] == 1
    recordmill.build(numbered_rows(300, 400), out, append=True)
    with pytest.raises(UsageError, match=r"generation 1 of .*generation=1\)"):
        recordmill.open(out, split="train").batches(32, seed=5, epochs=1, state=state)
    old = recordmill.open(out, split="train", generation=1)
    rest = [batch["id"].tolist() for batch in old.batches(32, seed=5, epochs=1, state=state)]
    assert first + rest == expected
    recordmill.restore(out, 1)
    restored = recordmill.open(out, split="train").batches(32, seed=5, epochs=1, state=state)
    assert [batch["id"].tolist() for batch in restored] == rest


def test_state_of_a_mixture_names_the_generation_of_each_data_set(tmp_path: Path) -> None:
    out = make_parts(tmp_path / "out")
    recordmill.build(numbered_rows(0, 50), tmp_path / "other", **KEYED)
    pair = [(recordmill.open(path, split="train"), 0.5) for path in (out, tmp_path / "other")]
    batches = recordmill.mixture(pair).batches(4, seed=1)
    next(batches)
    state = batches.state()
    assert state["generation"] == [3, 1]
    recordmill.build(numbered_rows(600, 700), out, append=True)
    newer = [(recordmill.open(out, split="train"), 0.5), pair[1]]
    with pytest.raises(UsageError, match=r"generation 3 of .*, and this is generation 4"):
        recordmill.mixture(newer).batches(4, seed=1, state=state)


# log and restore


def test_log_of_a_folder_without_a_data_set_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no data set"):
        recordmill.log(tmp_path)


def test_restore_makes_an_old_generation_the_newest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_parts(tmp_path / "out")
    before = load_manifest(out, 2)
    code, printed, _ = run_command(capsys, "restore", out, "--generation", "2")
    assert (code, printed.splitlines()[1].split()[0]) == (0, "4")
    restored = load_manifest(out)
    assert restored.parts == before.parts
    assert (restored.action, restored.run["restored"]) == ("restore", 2)
    assert list_generations(out) == [3, 4]
    assert recordmill.verify(out) == []
    assert len(recordmill.open(out)) == 400
    assert sum(split["id"].present for split in recordmill.open(out).statistics.values()) == 400
    # The generation in between is still there.
    recordmill.restore(out, 3)
    assert len(recordmill.open(out)) == 600
    assert recordmill.verify(out) == []


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (None, "give generation=: `recordmill log`"),
        (1, r"does not have generation 1 any more \(kept: 2, 3\)"),
        (3, "this is the newest generation"),
        (9, r"has no generation 9 \(kept: 2, 3\)"),
    ],
)
def test_generation_that_can_not_be_restored_is_refused(
    tmp_path: Path, number: int | None, words: str
) -> None:
    out = make_parts(tmp_path / "out")
    with pytest.raises(UsageError, match=words):
        recordmill.restore(out, number)
    assert list_generations(out) == [2, 3]


def test_generation_that_awaits_its_removal_is_not_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    recordmill.build(numbered_rows(0, 9), out)
    with monkeypatch.context() as patched:
        patched.setattr("recordmill.building.commit.finish_output", lambda *args: None)
        for _ in range(2):
            recordmill.build(numbered_rows(0, 9), out, overwrite=True)
    assert list_generations(out) == [1, 2, 3]
    with pytest.raises(UsageError, match="any more"):
        recordmill.restore(out, 1)


def test_generation_with_a_missing_shard_is_not_restored(tmp_path: Path) -> None:
    out = make_parts(tmp_path / "out")
    part = load_manifest(out).parts[0]
    (out / part.folder / part.splits["train"][0].name).unlink()
    with pytest.raises(DataError, match="is missing"):
        recordmill.restore(out, 2)
    assert list_generations(out) == [2, 3]


# compact


@pytest.mark.parametrize("work", [recordmill.compact, lambda out: recordmill.restore(out, 2)])
def test_second_writer_gets_commit_conflict_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Path], Any]
) -> None:
    out = make_parts(tmp_path / "out")
    create = output_run.RunFolder.create

    def build_first(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(output_run.RunFolder, "create", create)
        recordmill.build(numbered_rows(0, 10), out, overwrite=True, **KEYED)
        return create(*args, **options)

    monkeypatch.setattr(output_run.RunFolder, "create", build_first)
    with pytest.raises(CommitConflict, match="committed generation 4"):
        work(out)
    assert len(recordmill.open(out)) == 10
    assert not list(out.glob("_run-*"))
    assert recordmill.verify(out) == []


# Stores


def test_generations_in_a_store_are_listed_restored_and_compacted(
    store: Store, out: str, tmp_path: Path
) -> None:
    local = make_parts(tmp_path / "local")
    store.put_folder(local, out.removeprefix(f"{store.root}/"))
    assert [generation.parts for generation in recordmill.log(out)] == [2, 3]
    assert recordmill.restore(out, 2).generation == 4
    assert len(recordmill.open(out)) == 400
    assert recordmill.restore(out, 3).generation == 5
    assert recordmill.compact(out, keep_generations=1).generation == 6
    recordmill.compact(local)
    assert shards_of_one_part(out) == shards_of_one_part(local)
    assert list_generations(out) == [6]
    folders = {name.split("/")[0] for name in store.objects(out) if name.startswith("data-")}
    assert folders == {load_manifest(out).parts[0].folder}
    assert recordmill.verify(out) == []
    assert not [name for name in store.objects(out) if name.startswith("_run-")]
