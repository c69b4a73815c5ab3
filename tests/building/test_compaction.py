"""A compacted part has the same bytes as a single build. Damaged parts are not compacted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.files import flip, tree
from kit.grown_sets import KEYED, make_parts, numbered_rows, shards_of_one_part
from kit.transformed_set import DECLARED, SPLITS, write_csv

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.shards.manifest import list_generations, load_manifest


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
    out = make_parts(tmp_path / "out", **options)
    recordmill.build(numbered_rows(0, 600), tmp_path / "whole", **{**KEYED, **options})
    compacted = recordmill.compact(out, threads=threads)
    assert (compacted.generation, compacted.parts, compacted.action) == (4, 1, "compact")
    assert shards_of_one_part(out) == shards_of_one_part(tmp_path / "whole")
    compacted_manifest, built_manifest = load_manifest(out), load_manifest(tmp_path / "whole")
    assert (compacted_manifest.options, compacted_manifest.schema, compacted_manifest.splits) == (
        built_manifest.options,
        built_manifest.schema,
        built_manifest.splits,
    )
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
    assert shards_of_one_part(tmp_path / "out") == shards_of_one_part(tmp_path / "whole")
    compacted, built = load_manifest(tmp_path / "out"), load_manifest(tmp_path / "whole")
    assert compacted.fingerprint == built.fingerprint
    assert (compacted.parts[0].records_read, compacted.parts[0].records_rejected) == (402, 2)
    # The rejects and inputs of both parts are listed, and the old folders are removed.
    assert [
        len((tmp_path / "out" / name).read_text().splitlines())
        for name in compacted.rejects["files"]
    ]
    input_lines = (
        (tmp_path / "out" / compacted.parts[0].folder / "inputs.jsonl").read_text().splitlines()
    )
    assert [json.loads(line)["name"] for line in input_lines] == ["a.csv", "b.csv"]
    assert len(list((tmp_path / "out").glob("data-*"))) == 1
    assert {path.name for path in (tmp_path / "out" / "rejects").iterdir()} == {
        name.removeprefix("rejects/") for name in compacted.rejects["files"]
    }
    assert recordmill.verify(tmp_path / "out") == []


def test_compact_changes_the_shards_of_a_data_set_with_one_part(tmp_path: Path) -> None:
    out = tmp_path / "out"
    recordmill.build(numbered_rows(0, 600), out, **KEYED)
    result = recordmill.compact(out)
    assert (result.generation, list_generations(out)) == (1, [1])
    assert recordmill.compact(out, num_shards=3, compression="gzip").generation == 2
    recordmill.build(
        numbered_rows(0, 600), tmp_path / "whole", num_shards=3, compression="gzip", **KEYED
    )
    assert shards_of_one_part(out) == shards_of_one_part(tmp_path / "whole")
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
    old_manifest = load_manifest(out)
    assert len(old_manifest.parts) == 2
    recordmill.compact(out, keep_generations=1)
    new_manifest = load_manifest(out)
    assert new_manifest.transform == old_manifest.transform
    assert (out / new_manifest.parts[0].folder / "transform" / "transform_fn").is_dir()
    assert recordmill.verify(out) == []
    assert sum(new_manifest.records.values()) == 400


def test_parts_can_be_appended_to_a_compacted_data_set(tmp_path: Path) -> None:
    out = make_parts(tmp_path / "out")
    recordmill.compact(out)
    recordmill.build(numbered_rows(600, 700), out, append=True)
    recordmill.compact(out)
    recordmill.build(numbered_rows(0, 700), tmp_path / "whole", **KEYED)
    assert shards_of_one_part(out) == shards_of_one_part(tmp_path / "whole")


@pytest.mark.parametrize("target", ["shard", "index"])
def test_damaged_part_is_not_compacted_and_nothing_is_left(tmp_path: Path, target: str) -> None:
    out = make_parts(tmp_path / "out")
    part = load_manifest(out).parts[1]
    path = out / part.folder / part.splits["train"][0].name
    if target == "index":
        # Damages a key, which only the checksum can detect.
        path = out / part.folder / "index" / "train-00000.npy"
        flip(path, path.stat().st_size - 1)
    else:
        flip(path, 30)
    files = tree(out)
    with pytest.raises(DataError, match=r"train-00000-of-00001\.tfrecord"):
        recordmill.compact(out)
    assert tree(out) == files


def test_more_shards_than_records_are_refused(tmp_path: Path) -> None:
    out = make_parts(tmp_path / "out")
    files = tree(out)
    with pytest.raises(UsageError, match="use at most as many shards"):
        recordmill.compact(out, num_shards=590)
    assert tree(out) == files
