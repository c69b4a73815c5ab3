"""Compares a store on loopback with the local disk.

    .ci/servers && python benchmarks/storage.py [ROWS,ROWS,...] [OBJECTS] [KEYS]

It measures builds, reads, many small objects, and the listing of many keys. The store is versitygw
with a folder of this machine, so it uses part of the cores. The server of `many_keys`, which has
only names, serves the listing of very many keys.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import harness
from many_keys import many_keys

if TYPE_CHECKING:
    from kit.store_server import Store

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


ROUNDS = 3
# 2 MiB: like DOWNLOAD_PART_BYTES of `storage.stores.downloads`
DOWNLOAD_PART_BYTES = 2 << 20


def beside(out: str) -> str:
    """Returns a new path for something tiny next to `out`.

    The set-up of a job uses it, so that imports and first connections count as start-up.
    """
    return f"{out}-warm-{uuid.uuid4().hex}"


def build(source: str, out: str, kind: str) -> Callable[[], object]:
    import recordmill

    warm = Path(tempfile.mkdtemp(prefix="recordmill-warm-"))
    (warm / "a.csv").write_text("a,b\n1,x\n2,y\n")
    recordmill.build(str(warm / "a.csv"), beside(out))
    return lambda: recordmill.build(
        source, out, kind=kind, name="same", overwrite=True, num_shards=4
    )


def read(source: str, out: str) -> Callable[[], object]:
    import recordmill

    recordmill.read(
        recordmill.build({"a": [1], "b": [0.5], "c": ["x"]}, beside(source)).out, beside(out)
    )
    return lambda: recordmill.read(source, out, overwrite=True)


def listing(source: str) -> Callable[[], object]:
    from recordmill.storage.listing import list_inputs

    return lambda: list_inputs([source])


def stream(source: str) -> Callable[[], object]:
    from recordmill.storage.files import iter_object_stats

    def count() -> None:
        print(f"{sum(1 for _ in iter_object_stats(source)):,} keys listed")

    return count


def raw_gets(root: str, objects: str) -> Callable[[], object]:
    """Fetches the objects with the library for stores alone."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(root.removeprefix("s3://"), client_options={"allow_http": True})

    def fetch(at: int) -> None:
        bytes(obstore.get(store, f"in/small/{at:06d}.txt").bytes())

    def all_of_them() -> None:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(fetch, range(int(objects))))

    return all_of_them


def raw_reads(out: str) -> Callable[[], object]:
    """Sends the requests of a read with the library for stores alone.

    The requests are sent one after the other: those of the plan, then the shards, divided as a read
    divides them.
    """

    def one_after_the_other() -> None:
        import obstore
        from obstore.store import S3Store

        bucket, _, key = out.removeprefix("s3://").partition("/")
        store = S3Store(bucket, client_options={"allow_http": True})
        newest = obstore.list_with_delimiter(store, f"{key}/_manifests")["objects"][-1]["path"]
        folder = json.loads(bytes(obstore.get(store, newest).bytes()))["parts"][0]["folder"]
        found = [about for page in obstore.list(store, f"{key}/{folder}") for about in page]
        for shard in (about for about in found if about["path"].endswith(".tfrecord")):
            for at in range(0, shard["size"], DOWNLOAD_PART_BYTES):
                span = at, min(at + DOWNLOAD_PART_BYTES, shard["size"])
                bytes(obstore.get(store, shard["path"], options={"range": span}).bytes())

    return one_after_the_other


def main() -> None:
    from kit.store_server import s3_server

    rows, objects, keys = (
        *sys.argv[1:],
        *("300000,3000000", "10000", "1000000")[len(sys.argv) - 1 :],
    )
    print(f"{harness.machine()}, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as given, s3_server(Path(given, "server")) as store:
        folder = Path(given, "disk")
        folder.mkdir()
        for count in map(int, filter(None, rows.split(","))):
            tables(folder, store, count)
        if int(objects):
            small_objects(folder, store, int(objects))
    if int(keys):
        many(int(keys))


def tables(folder: Path, store: Store, rows: int) -> None:
    """Measures a table that is built and read back."""
    print(f"{rows:,} rows")
    (folder / "t.csv").write_text(
        "a,b,c\n" + "".join(f"{at},{at / 7},name {at}\n" for at in range(rows))
    )
    source = store.put("in/t.csv", (folder / "t.csv").read_bytes())
    pairs = {
        "build CSV: disk to disk": ("storage:build", f"{folder}/t.csv", f"{folder}/out", "csv"),
        "build CSV: store to store": ("storage:build", source, f"{store.root}/out", "csv"),
    }
    harness.compare(pairs, ROUNDS)
    reads = {
        "read to Parquet: disk": ("storage:read", f"{folder}/out", f"{folder}/table"),
        "read to Parquet: store to disk": ("storage:read", f"{store.root}/out", f"{folder}/table"),
        "read to Parquet: store to store": (
            "storage:read",
            f"{store.root}/out",
            f"{store.root}/table",
        ),
        "its requests by the library, in turn": ("storage:raw_reads", f"{store.root}/out"),
    }
    harness.compare(reads, ROUNDS)


def small_objects(folder: Path, store: Store, count: int) -> None:
    """Measures a build of objects with one record each."""
    (folder / "small").mkdir()
    for at in range(count):
        (folder / "small" / f"{at:06d}.txt").write_bytes(b"%06d " % at * 1400)
    put = time.perf_counter()
    store.put_folder(folder / "small", "in/small")
    print(f"{count} objects put in {time.perf_counter() - put:.0f} s")
    far = f"{store.root}/in/small"
    jobs = {
        "small text files: disk": ("storage:build", f"{folder}/small", f"{folder}/docs", "text"),
        "small text objects: store": ("storage:build", far, f"{folder}/docs", "text"),
        "the same objects fetched by the library alone": (
            "storage:raw_gets",
            store.root,
            str(count),
        ),
    }
    harness.compare(jobs, ROUNDS)
    lists = {
        "list: disk": ("storage:listing", f"{folder}/small"),
        "list: store": ("storage:listing", far),
    }
    harness.compare(lists, ROUNDS)


def many(keys: int) -> None:
    """Measures the listing of very many keys."""
    from kit.store_server import s3_settings, use_settings

    for count in (keys // 10, keys):
        with many_keys(count) as url, use_settings(**s3_settings(url)):
            jobs = {
                f"list {count:,} keys, one after the other": ("storage:stream", "s3://bucket/in")
            }
            jobs[f"list {count:,} keys for a plan"] = ("storage:listing", "s3://bucket/in")
            harness.compare(jobs, rounds=1)


if __name__ == "__main__":
    main()
