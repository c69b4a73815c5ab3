"""Flink's workers write to a store what one process writes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from driver import run
from engines import shards, tree
from flink_hosts import FlinkHosts
from hosts import HERE
from kit.store_server import BUCKET, Store, s3_server

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


def test_flink_builds_images_into_a_store_and_reads_them(
    flink: FlinkHosts, store: Store, images: Path, tmp_path: Path
) -> None:
    source = store.put_folder(images, "in/images")
    recordmill.build(images, tmp_path / "local", num_shards=3)
    run("build", "images", source, "--out", f"{store.root}/out", "--num-shards=3", *flink.flags)
    assert shards(folder_of(store, "out", tmp_path)) == shards(tmp_path / "local")
    run("read", tmp_path / "local", "--out", tmp_path / "table", "--to", "parquet")
    run(
        "read",
        f"{store.root}/out",
        "--out",
        f"{store.root}/table",
        "--to",
        "parquet",
        "--no-preflight",
        *flink.flags,
    )
    found, local = (
        parquet(folder) for folder in (folder_of(store, "table", tmp_path), tmp_path / "table")
    )
    assert found == local != []
