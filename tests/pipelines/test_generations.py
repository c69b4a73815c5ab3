"""`log`, `restore` and `compact`: earlier generations come back, and parts become one part with the
bytes of one build.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.files import files_in, flip, tree
from kit.runs import run_command
from kit.store_server import Store
from kit.transformed_set import DECLARED, SPLITS, write_csv

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.building.commit import CommitConflict
from recordmill.pipelines import generations
from recordmill.shards.manifest import list_generations, load_manifest

_KEYED: dict[str, Any] = {"key": "id", "splits": "train=0.8,test=0.2", "name": "same"}


def _rows(begin: int, end: int) -> dict[str, Any]:
    return {
        "id": list(range(begin, end)),
        "text": [f"row {row} " + "x" * (row % 90) for row in range(begin, end)],
    }


def _make_parts(out: Path, **options: Any) -> Path:
    """Makes a data set of three parts with 600 records."""
    options = {**_KEYED, **options}
    recordmill.build(_rows(0, 300), out, **options)
    recordmill.build(_rows(300, 400), out, append=True)
    recordmill.build(_rows(400, 600), out, append=True)
    return out


def _shards(out: Path | str) -> dict[str, bytes]:
    """The shards, indexes and statistics of a data set with one part."""
    (part,) = load_manifest(out).parts
    # Times of inputs differ. Without a shuffle, the keys in a sketch are those of each append.
    names = ("inputs.jsonl", "sketch.arrow")
    return {name: data for name, data in files_in(out, part.folder).items() if name not in names}


# Opening generations


def test_generation_is_opened_by_its_number(tmp_path: Path) -> None:
    out = _make_parts(tmp_path / "out", keep_generations=3)
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
    out = _make_parts(tmp_path / "out")
    with pytest.raises(UsageError, match=words):
        recordmill.open(out, generation=number)


def test_files_without_a_manifest_have_no_generations(tmp_path: Path) -> None:
    out = _make_parts(tmp_path / "out")
    with pytest.raises(UsageError, match="has no generations"):
        recordmill.open(str(out / "data-*" / "train-*.tfrecord"), generation=1)


def test_state_of_another_generation_is_refused_and_continues_on_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    recordmill.build(_rows(0, 300), out, **_KEYED)
    dataset = recordmill.open(out, split="train")
    whole = [batch["id"].tolist() for batch in dataset.batches(32, seed=5, epochs=1)]
    batches = dataset.batches(32, seed=5, epochs=1)
    begun = [next(batches)["id"].tolist() for _ in range(3)]
    state = json.loads(json.dumps(batches.state()))
    assert state["generation"] == 1
    recordmill.build(_rows(300, 400), out, append=True)
    with pytest.raises(UsageError, match=r"generation 1 of .*generation=1\)"):
        recordmill.open(out, split="train").batches(32, seed=5, epochs=1, state=state)
    old = recordmill.open(out, split="train", generation=1)
    rest = [batch["id"].tolist() for batch in old.batches(32, seed=5, epochs=1, state=state)]
    assert begun + rest == whole
    recordmill.restore(out, 1)
    restored = recordmill.open(out, split="train").batches(32, seed=5, epochs=1, state=state)
    assert [batch["id"].tolist() for batch in restored] == rest


def test_state_of_a_mixture_names_the_generation_of_each_data_set(tmp_path: Path) -> None:
    out = _make_parts(tmp_path / "out")
    recordmill.build(_rows(0, 50), tmp_path / "other", **_KEYED)
    pair = [(recordmill.open(path, split="train"), 0.5) for path in (out, tmp_path / "other")]
    batches = recordmill.mixture(pair).batches(4, seed=1)
    next(batches)
    state = batches.state()
    assert state["generation"] == [3, 1]
    recordmill.build(_rows(600, 700), out, append=True)
    newer = [(recordmill.open(out, split="train"), 0.5), pair[1]]
    with pytest.raises(UsageError, match=r"generation 3 of .*, and this is generation 4"):
        recordmill.mixture(newer).batches(4, seed=1, state=state)


# log and restore


def test_log_lists_a_line_for_each_generation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = _make_parts(tmp_path / "out", keep_generations=4)
    recordmill.compact(out)
    code, printed, _ = run_command(capsys, "log", out)
    lines = [line.split() for line in printed.splitlines()]
    assert code == 0
    assert lines[0][:4] == ["GENERATION", "COMMITTED", "BY", "PARTS"]
    assert [(line[0], *line[2:4]) for line in lines[1:]] == [
        ("1", "build", "1"),
        ("2", "append", "2"),
        ("3", "append", "3"),
        ("4", "compact", "1"),
    ]
    _, printed, _ = run_command(capsys, "log", out, "--json")
    rows = json.loads(printed)[str(out)]
    assert [sum(row["records"].values()) for row in rows] == [300, 400, 600, 600]
    assert [row["finished"][:2] for row in rows] == ["20"] * 4


def test_log_of_a_folder_without_a_data_set_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no data set"):
        recordmill.log(tmp_path)


def test_restore_makes_an_old_generation_the_newest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = _make_parts(tmp_path / "out")
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
    out = _make_parts(tmp_path / "out")
    with pytest.raises(UsageError, match=words):
        recordmill.restore(out, number)
    assert list_generations(out) == [2, 3]


def test_generation_that_awaits_its_removal_is_not_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    recordmill.build(_rows(0, 9), out)
    with monkeypatch.context() as patched:
        patched.setattr("recordmill.building.commit.finish_output", lambda *args: None)
        for _ in range(2):
            recordmill.build(_rows(0, 9), out, overwrite=True)
    assert list_generations(out) == [1, 2, 3]
    with pytest.raises(UsageError, match="any more"):
        recordmill.restore(out, 1)


def test_generation_with_a_missing_shard_is_not_restored(tmp_path: Path) -> None:
    out = _make_parts(tmp_path / "out")
    part = load_manifest(out).parts[0]
    (out / part.folder / part.splits["train"][0].name).unlink()
    with pytest.raises(DataError, match="is missing"):
        recordmill.restore(out, 2)
    assert list_generations(out) == [2, 3]


# compact


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_shards": 4},
        {"shard_size": 4096, "compression": "gzip"},
        {"key": "text", "splits": None},
    ],
    ids=["default", "num_shards", "gzip", "text key"],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_compacted_parts_have_the_bytes_of_one_build(
    tmp_path: Path, options: dict[str, Any], threads: int
) -> None:
    out = _make_parts(tmp_path / "out", **options)
    recordmill.build(_rows(0, 600), tmp_path / "whole", **{**_KEYED, **options})
    compacted = recordmill.compact(out, threads=threads)
    assert (compacted.generation, compacted.parts, compacted.action) == (4, 1, "compact")
    assert _shards(out) == _shards(tmp_path / "whole")
    one, whole = load_manifest(out), load_manifest(tmp_path / "whole")
    assert (one.options, one.schema, one.splits) == (whole.options, whole.schema, whole.splits)
    assert recordmill.verify(out) == []
    assert (
        recordmill.open(out).statistics.to_bytes()
        == recordmill.open(tmp_path / "whole").statistics.to_bytes()
    )


@pytest.mark.parametrize("shuffle", [True, False])
def test_compacted_files_without_a_key_have_the_bytes_of_one_build(
    tmp_path: Path, shuffle: bool
) -> None:
    folders = [tmp_path / name for name in ("first", "second", "all")]
    for folder in folders:
        folder.mkdir()
    for number, name in enumerate(["a.csv", "b.csv"]):
        lines = [f"{row},{row % 7}\n" for row in range(200 * number, 200 * number + 200)]
        text = "x,y\n" + "".join(lines) + "bad\n"
        (folders[number] / name).write_text(text)
        (folders[2] / name).write_text(text)
    options = {"shuffle": shuffle, "max_rejects": 9, "name": "same", "num_shards": 3}
    recordmill.build(folders[0], tmp_path / "out", **options)
    recordmill.build(folders[1], tmp_path / "out", append=True, max_rejects=9)
    recordmill.build(folders[2], tmp_path / "whole", **options)
    recordmill.compact(tmp_path / "out", keep_generations=1)
    assert _shards(tmp_path / "out") == _shards(tmp_path / "whole")
    one, whole = load_manifest(tmp_path / "out"), load_manifest(tmp_path / "whole")
    assert one.fingerprint == whole.fingerprint
    assert (one.parts[0].records_read, one.parts[0].records_rejected) == (402, 2)
    # The rejects and the lists of inputs of both parts are there, and nothing of the old folders.
    assert [
        len((tmp_path / "out" / name).read_text().splitlines()) for name in one.rejects["files"]
    ]
    listed = (tmp_path / "out" / one.parts[0].folder / "inputs.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in listed] == ["a.csv", "b.csv"]
    assert len(list((tmp_path / "out").glob("data-*"))) == 1
    assert {path.name for path in (tmp_path / "out" / "rejects").iterdir()} == {
        name.removeprefix("rejects/") for name in one.rejects["files"]
    }
    assert recordmill.verify(tmp_path / "out") == []


def test_compact_changes_the_shards_of_a_data_set_with_one_part(tmp_path: Path) -> None:
    out = tmp_path / "out"
    recordmill.build(_rows(0, 600), out, **_KEYED)
    same = recordmill.compact(out)
    assert (same.generation, list_generations(out)) == (1, [1])
    assert recordmill.compact(out, num_shards=3, compression="gzip").generation == 2
    recordmill.build(_rows(0, 600), tmp_path / "whole", num_shards=3, compression="gzip", **_KEYED)
    assert _shards(out) == _shards(tmp_path / "whole")
    assert recordmill.compact(out, num_shards=3, compression="gzip").generation == 2


def test_equal_keys_keep_the_order_of_the_parts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {"key": "group", "name": "same"}

    def rows(begin: int, end: int) -> dict[str, Any]:
        return {"id": list(range(begin, end)), "group": [row % 3 for row in range(begin, end)]}

    recordmill.build(rows(0, 500), out, **options)
    recordmill.build(rows(500, 800), out, append=True)
    recordmill.build(rows(800, 900), out, append=True)
    recordmill.compact(out, num_shards=7)
    ids = recordmill.open(out).to_numpy()
    for group in range(3):
        assert np.all(np.diff(ids["id"][ids["group"] == group]) > 0)


def test_compacted_data_set_keeps_its_transform(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow_transform", reason="the data set has a transform")
    for number in range(2):
        write_csv(tmp_path / f"{number}.csv", rows=200, seed=number)
    out = tmp_path / "out"
    recordmill.build(tmp_path / "0.csv", out, transform=DECLARED, splits=SPLITS, label="label")
    recordmill.build(tmp_path / "1.csv", out, append=True)
    before = load_manifest(out)
    assert len(before.parts) == 2
    recordmill.compact(out, keep_generations=1)
    after = load_manifest(out)
    assert after.transform == before.transform
    assert (out / after.parts[0].folder / "transform" / "transform_fn").is_dir()
    assert recordmill.verify(out) == []
    assert sum(after.records.values()) == 400


def test_parts_can_be_appended_to_a_compacted_data_set(tmp_path: Path) -> None:
    out = _make_parts(tmp_path / "out")
    recordmill.compact(out)
    recordmill.build(_rows(600, 700), out, append=True)
    recordmill.compact(out)
    recordmill.build(_rows(0, 700), tmp_path / "whole", **_KEYED)
    assert _shards(out) == _shards(tmp_path / "whole")


@pytest.mark.parametrize("target", ["shard", "index"])
def test_damaged_part_is_not_compacted_and_nothing_is_left(tmp_path: Path, target: str) -> None:
    out = _make_parts(tmp_path / "out")
    part = load_manifest(out).parts[1]
    path = out / part.folder / part.splits["train"][0].name
    if target == "index":
        # The key of the first record, so only the checksum can notice.
        path = out / part.folder / "index" / "train-00000.npy"
        flip(path, path.stat().st_size - 1)
    else:
        flip(path, 30)
    before = tree(out)
    with pytest.raises(DataError, match=r"train-00000-of-00001\.tfrecord"):
        recordmill.compact(out)
    assert tree(out) == before


def test_more_shards_than_records_are_refused(tmp_path: Path) -> None:
    out = _make_parts(tmp_path / "out")
    before = tree(out)
    with pytest.raises(UsageError, match="use at most as many shards"):
        recordmill.compact(out, num_shards=590)
    assert tree(out) == before


@pytest.mark.parametrize("work", [recordmill.compact, lambda out: recordmill.restore(out, 2)])
def test_second_writer_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Path], Any]
) -> None:
    out = _make_parts(tmp_path / "out")
    create = generations.RunFolder.create

    def build_first(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(generations.RunFolder, "create", create)
        recordmill.build(_rows(0, 10), out, overwrite=True, **_KEYED)
        return create(*args, **options)

    monkeypatch.setattr(generations.RunFolder, "create", build_first)
    with pytest.raises(CommitConflict, match="committed generation 4"):
        work(out)
    assert len(recordmill.open(out)) == 10
    assert not list(out.glob("_run-*"))
    assert recordmill.verify(out) == []


def test_compact_takes_one_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_command(capsys, "compact", tmp_path, tmp_path)
    assert (code, "takes one OUT" in err) == (2, True)


# Stores


def test_generations_in_a_store_are_listed_restored_and_compacted(
    store: Store, out: str, tmp_path: Path
) -> None:
    local = _make_parts(tmp_path / "local")
    store.put_folder(local, out.removeprefix(f"{store.root}/"))
    assert [one.parts for one in recordmill.log(out)] == [2, 3]
    assert recordmill.restore(out, 2).generation == 4
    assert len(recordmill.open(out)) == 400
    assert recordmill.restore(out, 3).generation == 5
    assert recordmill.compact(out, keep_generations=1).generation == 6
    recordmill.compact(local)
    assert _shards(out) == _shards(local)
    assert list_generations(out) == [6]
    folders = {name.split("/")[0] for name in store.objects(out) if name.startswith("data-")}
    assert folders == {load_manifest(out).parts[0].folder}
    assert recordmill.verify(out) == []
    assert not [name for name in store.objects(out) if name.startswith("_run-")]
