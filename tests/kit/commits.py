"""Commits of data sets with one shard, which may contain any bytes."""

from pathlib import Path

from recordmill.building.commit import commit, publish_files
from recordmill.shards.manifest import (
    Manifest,
    Part,
    ShardInfo,
)
from recordmill.shards.run import RunFolder

SHARD = "train-00000-of-00001.tfrecord"


def publish(folder: RunFolder, content: bytes, base: int) -> Manifest:
    (folder.data / SHARD).write_bytes(content)
    rejects = publish_files(folder, sorted(str(path) for path in folder.rejects.iterdir()))
    info = ShardInfo(
        SHARD, 1, max(len(content), 16), max(len(content), 16), f"blake3:{0:064x}", "0" * 16
    )
    part = Part(folder.data_name, "test", {"train": (info,)}, {}, 1, 0)
    reject_summary = {"files": rejects}
    manifest = Manifest(
        "test", "none", {}, "schema", (part,), reject_summary, "0" * 64, {}, {"id": folder.id}
    )
    return commit(folder, manifest, base)


def build(out: Path, content: bytes, base: int) -> Manifest:
    folder = RunFolder.create(out)
    try:
        return publish(folder, content, base)
    finally:
        folder.close()
