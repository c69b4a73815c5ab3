"""The workers of Flink write the same files to a store as one process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from driver import run
from engines import shards, tree
from flink_hosts import FlinkHosts
from hosts import THIS_MACHINE
from kit.store_server import BUCKET, Store, s3_server

import recordmill

pytestmark = pytest.mark.cluster


@pytest.fixture
def store(flink: FlinkHosts, tmp_path: Path) -> Iterator[Store]:
    """Store on this machine. Drivers and workers get the settings for it."""
    with s3_server(tmp_path / "store", THIS_MACHINE) as server:
        flink.set_worker_environment(
            {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        )
        try:
            yield server
        finally:
            flink.set_worker_environment({})


def server_folder(store: Store, name: str, tmp_path: Path) -> Path:
    """Returns the folder on the server's disk that contains the objects of a name."""
    return tmp_path / "store" / BUCKET / name


def parquet(folder: Path) -> list[str]:
    """Returns the digests of the Parquet files of a read.

    Their names are left out, because in a store each read has its own folder.
    """
    return sorted(digest for name, digest in tree(folder).items() if name.endswith(".parquet"))


def test_flink_builds_images_into_a_store_and_reads_them(
    flink: FlinkHosts, store: Store, images: Path, tmp_path: Path
) -> None:
    source = store.put_folder(images, "in/images")
    recordmill.build(images, tmp_path / "local", num_shards=3)
    run("build", "images", source, "--out", f"{store.root}/out", "--num-shards=3", *flink.flags)
    assert shards(server_folder(store, "out", tmp_path)) == shards(tmp_path / "local")
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
    digests, expected = (
        parquet(folder) for folder in (server_folder(store, "table", tmp_path), tmp_path / "table")
    )
    assert digests == expected != []
