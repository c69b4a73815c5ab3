"""OUT in a store that all hosts reach: what Flink's workers put there is what one process writes."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import shards, tree
from driver import run
from flink_hosts import FlinkHosts
from hosts import HERE
from store_server import BUCKET, Store, s3_server

import recordmill

pytestmark = pytest.mark.cluster


@pytest.fixture
def store(flink: FlinkHosts, tmp_path: Path) -> Iterator[Store]:
    """A store, and the settings by which drivers and workers reach it."""
    with s3_server(tmp_path / "store", HERE) as server:
        flink.give({name: value for name, value in os.environ.items() if name.startswith("AWS_")})
        try:
            yield server
        finally:
            flink.give({})


def folder_of(store: Store, name: str, tmp_path: Path) -> Path:
    """What is there of that name, where the server keeps it; without its own files."""
    return tmp_path / "store" / BUCKET / name


def parquet(folder: Path) -> list[str]:
    """Digests of the files of a read; in a store they lie in a folder of that read's own."""
    return sorted(digest for name, digest in tree(folder).items() if name.endswith(".parquet"))


def hidden(flink: FlinkHosts, path: Path) -> Path:
    """The same where this process sees it and the workers do not."""
    there = flink.hidden / path.name
    shutil.copytree(path, there) if path.is_dir() else shutil.copy(path, there)
    return there


def test_a_transform_fitted_there_and_its_build(flink: FlinkHosts, store: Store, table: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow_transform")
    steps = tmp_path / "transform.yaml"
    steps.write_text("x: minmax\nname: {vocabulary: {top_k: 50}}\nid: drop\n")
    lines = table.read_text().splitlines(keepends=True)[:5000]
    source = store.put("in/table.csv", "".join(lines).encode())
    options = ("build", "csv", source, "--num-shards=2", "--transform")
    run(*options, hidden(flink, steps), "--out", tmp_path / "local")
    run(*options, flink.hidden / steps.name, "--out", f"{store.root}/out", "--no-preflight", *flink.flags)
    assert shards(folder_of(store, "out", tmp_path)) == shards(tmp_path / "local")
    assert recordmill.verify(f"{store.root}/out") == []
    again = ("build", "csv", source, "--num-shards=2", "--transform-from", f"{store.root}/out")
    run(*again, "--out", f"{store.root}/again", "--no-preflight", *flink.flags)
    assert shards(folder_of(store, "again", tmp_path)) == shards(tmp_path / "local")


def test_images_and_what_is_read_of_them(flink: FlinkHosts, store: Store, images: Path, tmp_path: Path) -> None:
    source = store.put_folder(images, "in/images")
    recordmill.build(images, tmp_path / "local", num_shards=3)
    run("build", "images", source, "--out", f"{store.root}/out", "--num-shards=3", *flink.flags)
    assert shards(folder_of(store, "out", tmp_path)) == shards(tmp_path / "local")
    run("read", tmp_path / "local", "--out", tmp_path / "table", "--to", "parquet")
    run("read", f"{store.root}/out", "--out", f"{store.root}/table", "--to", "parquet", "--no-preflight", *flink.flags)
    found, local = (parquet(folder) for folder in (folder_of(store, "table", tmp_path), tmp_path / "table"))
    assert found == local != []
