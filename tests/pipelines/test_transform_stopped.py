"""Builds with a transform over a data set with another one: one replaces the other with its records, and one that is
killed for real, within and between its two jobs, leaves data and transform that were there whole.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformed_set import SPLITS, write_csv

pytest.importorskip("tensorflow_transform", reason="transforms need tensorflow-transform")

import recordmill
from recordmill.pipelines.build import build
from recordmill.preprocessing.metadata import check_files
from recordmill.shards.manifest import TRANSFORM_FOLDER, load

OLD, NEW = {"age": "minmax"}, {"age": "zscore", "kind": "vocabulary"}
CHILD = """
import os, sys
when, path, out = sys.argv[1:]
def kill(*args, **named):
    os.kill(os.getpid(), 9)
if when == "before a record is analysed":
    from recordmill.transforms.tft import analysis
    analysis.as_lists = kill
elif when == "before the transform is saved":
    from recordmill.transforms.tft import analysis
    analysis.make_portable = kill
elif when == "between the jobs":
    from recordmill.pipelines import build as module
    module.run_build = kill
elif when == "before a record is transformed":
    from recordmill.preprocessing.saved_transform import SavedTransform
    SavedTransform.apply = kill
else:
    from recordmill.shards import run
    run.put_if_absent = kill
from recordmill.pipelines.build import build
build(path, out, splits="train=0.8,validation=0.2", transform={"age": "zscore", "kind": "vocabulary"},
      overwrite=True)
"""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV, and a data set of it with a transform."""
    folder = tmp_path_factory.mktemp("old")
    write_csv(folder / "rides.csv", rows=200)
    build(folder / "rides.csv", folder / "out", splits=SPLITS, transform=OLD)
    return folder


def transform_of(out: Path) -> Path:
    return out / load(out).parts[-1].folder / TRANSFORM_FOLDER


@pytest.mark.sweep
@pytest.mark.parametrize(
    "when",
    [
        "before a record is analysed", "before the transform is saved", "between the jobs",
        "before a record is transformed", "before the manifest",
    ],
)  # fmt: skip
def test_the_old_data_set_and_its_transform_stay_whole(old: Path, tmp_path: Path, when: str) -> None:
    shutil.copytree(old, tmp_path / "here")
    path, out = (tmp_path / "here" / name for name in ("rides.csv", "out"))
    before, manifest = recordmill.open(out).to_table(), load(out)
    child = [sys.executable, "-c", CHILD, when, str(path), str(out)]
    assert subprocess.run(child, capture_output=True, timeout=900, check=False).returncode == -9
    assert load(out) == manifest
    assert recordmill.open(out).to_table().equals(before)
    assert recordmill.verify(out) == []  # what a run left is no part of the data set; the next build removes it
    check_files(str(transform_of(out)), manifest.transform)
    made = build(path, tmp_path / "more", splits=SPLITS, transform_from=out)  # it is still there to be taken
    assert recordmill.open(made.out).to_table().equals(before)
    build(path, out, splits=SPLITS, overwrite=True)
    assert not list(out.glob("_run-*"))
    assert recordmill.verify(out) == []


@pytest.mark.sweep
def test_another_transform_replaces_records_and_transform_at_once(old: Path, tmp_path: Path) -> None:
    shutil.copytree(old, tmp_path / "here")
    path, out = tmp_path / "here/rides.csv", tmp_path / "here/out"
    before = load(out)
    build(path, out, splits=SPLITS, transform=NEW, overwrite=True)
    after = load(out)
    assert after.transform["digest"] != before.transform["digest"]
    assert after.options["transform"] == after.transform["digest"]
    assert list(after.transform["found"]) == ["age", "kind"]
    assert set(after.transform["found"]["age"]) == {"mean", "variance"}
    check_files(str(transform_of(out)), after.transform)
    assert recordmill.open(out).schema["kind"].describe() == "int64"
    assert recordmill.verify(out) == []
    build(path, out, splits=SPLITS, overwrite=True)  # and none replaces both
    assert load(out).transform == {}
    assert not transform_of(out).exists()
