"""Data sets with a transform, and their inputs."""

from pathlib import Path
from typing import Any

import pytest

import recordmill
from kit.transformed_set import DECLARED, SPLITS, write_csv
from recordmill.pipelines.build import build
from recordmill.shards.manifest import TRANSFORM_FOLDER, load_manifest


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("in") / "rides.csv"
    write_csv(path)
    return path


@pytest.fixture(scope="module")
def out(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("declared") / "out"
    build(inputs, path, splits=SPLITS, label="label", transform=DECLARED, threads=2)
    return path


def folder_of(out: Path) -> Path:
    return out / load_manifest(out).transform_folder / TRANSFORM_FOLDER


@pytest.fixture(scope="module")
def raw(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The raw columns of each split, sorted by id."""
    out = tmp_path_factory.mktemp("raw") / "out"
    build(inputs, out, splits=SPLITS, label="label")
    return {
        split: recordmill.open(out, split=split).to_table().sort_by("id")
        for split in ("train", "validation")
    }
