"""Functions that tests run in child processes, which import them by name."""

import fcntl
import hashlib
import pickle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.reader.dataset import Dataset
from recordmill.records.example.encode import encode
from recordmill.records.tfrecord.frames import scan_frames
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.tfrecord_file import InflatedFile
from recordmill.storage.spool import Lane
from recordmill.storage.stores import downloads, objects
from recordmill.storage.stores.cache import CACHE_FOLDER_NAME, DiskCache

SCHEMA = Schema((Feature("a", "int64"), Feature("b", "float32", (None,)), Feature("c", "string")))
X_SCHEMA = Schema((Feature("x", "int64", required=True),))


def encoded_digest(seed: int) -> str:
    """Returns the hash of an encoded and scanned batch of random rows."""
    random = np.random.default_rng(seed)
    splits = np.arange(0, 5001, 5)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(random.integers(-(2**62), 2**62, 1000)),
            pa.LargeListArray.from_arrays(splits, pa.array(random.random(5000, dtype=np.float32))),
            pa.array([f"text {i}" * (i % 9) for i in range(1000)], pa.large_string()),
        ],
        names=["a", "b", "c"],
    )
    frames = encode(batch, SCHEMA)
    assert scan_frames(frames.data, source="x", is_final=True)[1] == len(frames.data)
    return hashlib.sha256(frames.data).hexdigest()


def start_run(out: str) -> None:
    """Starts a run that writes X_SCHEMA, and ends without a commit."""
    from recordmill.transforms import write_shards

    write_shards.start_run(write_shards.WriteShards(out, X_SCHEMA))


def read_all_ways(dataset: Dataset) -> list[Any]:
    """Reads a data set with a feature `id` in each way.

    Returns:
        The sorted ids of each shuffle mode, the ids of three records, and the text of the last
            record.
    """
    ids: list[Any] = [
        sorted(
            np.concatenate([batch["id"] for batch in dataset.batches(50, shuffle=mode)]).tolist()
        )
        for mode in (False, "window", "global")
    ]
    return [*ids, dataset.take([3, 500, 7]).column("id").to_pylist(), str(dataset[-1])]


def read_pickled(text: bytes, block_bytes: int, part_bytes: int) -> list[Any]:
    """Returns `read_all_ways` of a pickled data set, with blocks and parts of these sizes."""
    objects.STORE_BLOCK_BYTES, downloads.DOWNLOAD_PART_BYTES = block_bytes, part_bytes
    return read_all_ways(pickle.loads(text))


def cached_blocks(folder: Path) -> list[Path]:
    """Returns the files of the blocks in the disk cache of a folder."""
    return sorted((folder / CACHE_FOLDER_NAME).glob("??/*"))


def fill_cache(folder: str, number: int) -> None:
    """Puts 100 blocks into a disk cache of 100,000 bytes.

    Checks the size of the cache after each block.
    """
    cache = DiskCache(folder, 100_000)
    for index in range(100):
        cache.put((number, index), np.full(1000, index, np.uint8))
        block = cache.get((number, index), 1000)
        # Another process may have evicted the block.
        assert block is None or (block == index).all()
        # While this file is locked, no other process writes a block.
        with open(Path(folder, CACHE_FOLDER_NAME, "used")) as count_file:
            fcntl.flock(count_file, fcntl.LOCK_EX)
            assert sum(map(_size_of, cached_blocks(Path(folder)))) <= 100_000


def _size_of(block: Path) -> int:
    """Returns the size of a file, or 0 if another process has removed it."""
    try:
        return block.stat().st_size
    except FileNotFoundError:
        return 0


def read_ids(ds: Dataset, out: Connection) -> None:
    """Sends the ids of three records, and the number of inflated files."""
    inflate = InflatedFile._inflate_into
    count = 0

    def inflate_and_count(self: InflatedFile, lane: Lane) -> Any:
        nonlocal count
        count += 1
        return inflate(self, lane)

    InflatedFile._inflate_into = inflate_and_count  # type: ignore[method-assign]
    try:
        out.send((ds.take([79, 0, 41])["id"].to_pylist(), count))
    finally:
        InflatedFile._inflate_into = inflate  # type: ignore[method-assign]
