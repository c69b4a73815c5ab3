"""Appends in stores and by workers write the same files as local appends."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from kit.store_server import Store, azure_server, s3_server
from kit.worker_steps import Steps

import recordmill
from recordmill.shards.manifest import Manifest, list_generations, load_manifest
from recordmill.storage.files import read_range
from recordmill.storage.folders import find_files

STORES = (s3_server, azure_server)
OPTIONS: dict[str, Any] = {
    "kind": "csv",
    "name": "same",
    "splits": "train=0.75,test=0.25",
    "label": "y",
    "append": True,
}


def write_rows(path: Path, begin: int, end: int) -> str:
    rows = (f"{i},{'abc'[i % 3]},{i / 8}\n" for i in range(begin, end))
    path.write_text("x,y,z\n" + "".join(rows))
    return str(path)


@pytest.fixture
def inputs(tmp_path: Path) -> list[str]:
    """Two files for the first build, and two more for the append."""
    edges = (0, 150, 300, 340, 400)
    return [
        write_rows(tmp_path / f"{number}.csv", begin, end)
        for number, (begin, end) in enumerate(itertools.pairwise(edges))
    ]


@pytest.fixture
def appended(inputs: list[str], tmp_path: Path) -> recordmill.BuildResult:
    recordmill.build(inputs[:2], tmp_path / "near", **OPTIONS)
    return recordmill.build(inputs, tmp_path / "near", **OPTIONS)


def part_files(out: str, manifest: Manifest) -> dict[str, bytes]:
    """Returns the files of the newest part by name.

    The list of inputs is left out, because it contains times or etags.
    """
    files = find_files(f"{out}/{manifest.parts[-1].folder}")
    contents = {name: read_range(path).tobytes() for name, path in files.items()}
    contents.pop("inputs.jsonl", None)
    return contents


def check_same(out: str, manifest: Manifest, expected: recordmill.BuildResult) -> None:
    assert part_files(out, manifest) == part_files(str(expected.out), expected.manifest)
    assert manifest.fingerprint == expected.manifest.fingerprint
    assert load_manifest(out) == manifest
    assert len(manifest.parts) == 2
    assert manifest.action == "append"
    assert recordmill.verify(out) == []
    assert recordmill.open(out).to_table(0).num_rows == 400


def test_append_by_workers_equals_that_of_one_machine(
    inputs: list[str], appended: recordmill.BuildResult, tmp_path: Path
) -> None:
    out = str(tmp_path / "many")
    recordmill.build(inputs[:2], out, **OPTIONS)
    manifest = Steps.begin(inputs, out, tmp_path / "private", **OPTIONS).run_all()
    check_same(out, manifest, appended)


@pytest.mark.parametrize("workers", [False, True])
def test_append_in_a_store_equals_the_local_append(
    workers: bool,
    store: Store,
    out: str,
    inputs: list[str],
    appended: recordmill.BuildResult,
    tmp_path: Path,
) -> None:
    out = f"{out}/{workers}"  # both cases share a folder of the store
    recordmill.build(inputs[:2], out, **OPTIONS)
    if workers:
        manifest = Steps.begin(inputs, out, tmp_path / "private", **OPTIONS).run_all()
    else:
        manifest = recordmill.build(inputs, out, **OPTIONS).manifest
    check_same(out, manifest, appended)
    assert recordmill.build(inputs, out, **OPTIONS).unchanged
    assert list_generations(out) == [1, 2]


def test_objects_that_the_data_set_has_are_skipped(store: Store, out: str, tmp_path: Path) -> None:
    sources = [
        store.put(f"main/in/{number}.csv", Path(path).read_bytes())
        for number, path in enumerate(
            write_rows(tmp_path / f"{number}.csv", 10 * number, 10 * number + 10)
            for number in range(2)
        )
    ]
    recordmill.build(sources[:1], out, **OPTIONS)
    assert recordmill.build(sources, out, **OPTIONS).read == 10
    assert recordmill.build(sources, out, **OPTIONS).unchanged
    store.put("main/in/1.csv", (tmp_path / "0.csv").read_bytes())
    assert recordmill.build(sources, out, **OPTIONS).read == 10


def test_transform_of_a_data_set_in_a_store_is_applied(
    store: Store, out: str, inputs: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("tensorflow_transform")
    options: dict[str, Any] = {"name": "same", "append": True, "kind": "csv"}
    steps = {"z": "zscore", "y": "keep"}
    local = tmp_path / "near"
    for target in (str(local), out):
        recordmill.build(inputs[:2], target, transform=steps, **options)
        recordmill.build(inputs[2:3], target, **options)
    manifest = Steps.begin(inputs[3:], out, tmp_path / "private", **options).run_all()
    last = recordmill.build(inputs[3:], local, **options)
    assert part_files(out, manifest) == part_files(str(local), last.manifest)
    assert not [
        name
        for part in manifest.parts[1:]
        for name in find_files(f"{out}/{part.folder}")
        if "transform" in name
    ]
    assert recordmill.verify(out) == []
