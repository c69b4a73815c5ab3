"""Several parts are one data set, and appended parts keep the old record numbers."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.files import flip

import recordmill
from recordmill.commands.main import run
from recordmill.shards.manifest import list_generations, load_manifest

_OPTIONS: dict[str, Any] = {
    "splits": "train=0.8,test=0.2",
    "key": "id",
    "num_shards": 2,
    "label": "kind",
}


def _rows(begin: int, end: int) -> dict[str, Any]:
    return {
        "id": list(range(begin, end)),
        "kind": [["cat", "dog"][row % 2] for row in range(begin, end)],
        "size": [None if row % 5 == 0 else row / 4 for row in range(begin, end)],
    }


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A data set of three parts, and the ids of its first part.

    The ids are in the order in which `open` reads them.
    """
    out = tmp_path_factory.mktemp("parts") / "out"
    recordmill.build(_rows(0, 60), out, **_OPTIONS)
    first = recordmill.open(out, split="train").to_numpy()["id"].tolist()
    recordmill.build(_rows(60, 100), out, append=True)
    recordmill.build(_rows(100, 200), out, append=True)
    return out, first


@pytest.fixture(scope="module")
def single_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build of all records of `parts`."""
    out = tmp_path_factory.mktemp("whole") / "out"
    recordmill.build(_rows(0, 200), out, **_OPTIONS)
    return out


def _ids(path: Path, split: str) -> list[int]:
    ids: list[int] = recordmill.open(path, split=split).to_numpy()["id"].tolist()
    return ids


@pytest.mark.parametrize("split", ["train", "test"])
def test_split_has_the_records_of_all_parts(
    parts: tuple[Path, list[int]], single_build: Path, split: str
) -> None:
    assert sorted(_ids(parts[0], split)) == sorted(_ids(single_build, split))


def test_record_numbers_of_a_split_stay_when_parts_are_appended(
    parts: tuple[Path, list[int]],
) -> None:
    dataset = recordmill.open(parts[0], split="train")
    assert [dataset[number]["id"] for number in range(len(parts[1]))] == parts[1]
    assert dataset[-1]["id"] >= 100


def test_global_shuffle_mixes_the_parts(parts: tuple[Path, list[int]]) -> None:
    dataset = recordmill.open(parts[0], split="train")
    batches = dataset.batches(16, seed=3, epochs=1, drop_remainder=False)
    batch_ids = [batch["id"].tolist() for batch in batches]
    assert sorted(itertools.chain(*batch_ids)) == sorted(_ids(parts[0], "train"))
    assert all(min(ids) < 60 and max(ids) >= 100 for ids in batch_ids[:4])


def test_statistics_and_class_weights_count_all_parts(
    parts: tuple[Path, list[int]], single_build: Path
) -> None:
    joined, expected = recordmill.open(parts[0]), recordmill.open(single_build)
    assert joined.statistics.to_bytes() == expected.statistics.to_bytes()
    assert joined.class_weights() == expected.class_weights()
    assert joined.records.may_lack("size") == expected.records.may_lack("size")


def test_zip_and_mixture_take_a_data_set_of_parts(parts: tuple[Path, list[int]]) -> None:
    dataset = recordmill.open(parts[0], split="train")
    zipped = recordmill.zip([dataset.select(["id"]), dataset.select(["size"])])
    assert len(zipped) == len(dataset)
    assert zipped[len(dataset) - 1] == {
        name: dataset[len(dataset) - 1][name] for name in ("id", "size")
    }
    mixed = recordmill.mixture([(dataset, 0.5), (recordmill.open(parts[0], split="test"), 0.5)])
    assert len(next(iter(mixed.batches(8, seed=0)))["id"]) == 8


def test_read_writes_the_records_of_all_parts(
    parts: tuple[Path, list[int]], tmp_path: Path
) -> None:
    result = recordmill.read(parts[0], tmp_path / "rows", to="jsonl", split="test")
    lines = [
        json.loads(line)
        for path in result.files["test"]
        for line in Path(path).read_text().splitlines()
    ]
    assert [line["id"] for line in lines] == _ids(parts[0], "test")


@pytest.mark.parametrize("command", ["inspect", "stats", "report", "head", "verify"])
def test_command_treats_parts_as_one_data_set(
    parts: tuple[Path, list[int]],
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = {"report": ["--out", str(tmp_path / "report.html")], "head": ["-n", "200"]}
    assert run([command, str(parts[0]), *options.get(command, [])]) == 0
    captured = capsys.readouterr()
    text = captured.out + captured.err
    if command == "report":
        text = (tmp_path / "report.html").read_text()
    counts = load_manifest(parts[0]).records
    expected = {
        "inspect": ["200 records in ", "recordmill compact"],
        "stats": [f"train: {counts['train']} records", f"test: {counts['test']} records"],
        "report": [f"{counts['train']}"],
        "head": ["record 199"],
        "verify": ["200 records checked: nothing is wrong"],
    }
    assert [words for words in expected[command] if words not in text] == []


def test_verify_finds_damage_in_an_older_part(tmp_path: Path) -> None:
    recordmill.build(_rows(0, 20), tmp_path / "out", **_OPTIONS)
    recordmill.build(_rows(20, 40), tmp_path / "out", append=True)
    part = load_manifest(tmp_path / "out").parts[0]
    shard = tmp_path / "out" / part.folder / part.splits["train"][0].name
    flip(shard, 40)
    assert {problem.file for problem in recordmill.verify(tmp_path / "out")} == {str(shard)}


def test_files_that_name_one_folder_are_left_out_with_several_parts(tmp_path: Path) -> None:
    metadata = {
        "url": "https://example.org/x",
        "description": "d",
        "license": "MIT",
        "creator": "c",
    }
    recordmill.build(_rows(0, 20), tmp_path / "out", **_OPTIONS, **metadata)
    names = {"dataset_info.json", "croissant.json"}
    assert names < {path.name for path in (tmp_path / "out").iterdir()}
    recordmill.build(_rows(20, 40), tmp_path / "out", append=True)
    remaining = {path.name for path in (tmp_path / "out").iterdir()}
    assert not names & remaining
    assert {"features.json", "kind.labels.txt", "statistics.pb"} < remaining
    assert recordmill.verify(tmp_path / "out") == []


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_commit_keeps_the_generations_and_one_statistics_file_for_each(
    tmp_path: Path, keep: int
) -> None:
    out = tmp_path / "out"
    recordmill.build(_rows(0, 20), out, keep_generations=keep, **_OPTIONS)
    for begin in range(20, 120, 20):
        recordmill.build(_rows(begin, begin + 20), out, append=True)
    assert list_generations(out) == list(range(7 - keep, 7))
    newest = load_manifest(out)
    assert newest.keep_generations == keep
    folders = [part.folder for part in newest.parts]
    with_statistics = [folder for folder in folders if (out / folder / "statistics.pb").exists()]
    assert with_statistics == folders[-keep:]
    assert recordmill.verify(out) == []
    recordmill.build(_rows(0, 20), out, overwrite=True)
    assert load_manifest(out).keep_generations == keep
    recordmill.build(_rows(0, 20), out, overwrite=True, keep_generations=1)
    assert list_generations(out) == [8]
    assert [path.name for path in out.glob("data-*")] == [load_manifest(out).parts[0].folder]


def test_if_changed_builds_again_over_several_parts(tmp_path: Path) -> None:
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for number, path in enumerate(files):
        path.write_text("x\n" + "".join(f"{row}\n" for row in range(number * 9, number * 9 + 9)))
    out = tmp_path / "out"
    recordmill.build(files[0], out)
    recordmill.build(files[1], out, append=True)
    assert len(recordmill.open(out)) == 18
    result = recordmill.build(files[1], out, if_changed=True)
    assert not result.unchanged
    assert np.array_equal(np.sort(recordmill.open(out).to_numpy()["x"]), np.arange(9, 18))
