"""A store on loopback against the local disk, in the same run: builds and reads from and to it, many small objects, and
the listing of many keys.

    .ci/servers && python benchmarks/storage.py [ROWS] [OBJECTS]

The server is versitygw over a folder of this machine, so its own reading and writing takes part of the cores.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import harness

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


def build(source: str, out: str, kind: str) -> Callable[[], object]:
    import recordmill

    warm = Path(tempfile.mkdtemp(prefix="recordmill-warm-"))
    (warm / "a.csv").write_text("a,b\n1,x\n2,y\n")
    recordmill.build(str(warm / "a.csv"), warm / "out")
    return lambda: recordmill.build(source, out, kind=kind, name="same", overwrite=True, num_shards=4)


def read(source: str, out: str) -> Callable[[], object]:
    import recordmill

    return lambda: recordmill.read(source, out, overwrite=True)


def listing(source: str) -> Callable[[], object]:
    from recordmill.storage.listing import list_inputs

    return lambda: list_inputs([source])


def main() -> None:
    from store_server import s3_server

    rows, objects = (int(word) for word in (*sys.argv[1:], *("300000", "10000")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as given, s3_server(Path(given, "server")) as store:
        folder = Path(given, "disk")
        (folder / "small").mkdir(parents=True)
        (folder / "t.csv").write_text("a,b,c\n" + "".join(f"{at},{at / 7},name {at}\n" for at in range(rows)))
        for at in range(objects):
            (folder / "small" / f"{at:06d}.txt").write_bytes(b"%06d " % at * 1400)
        put = time.perf_counter()
        store.put_folder(folder, "in")
        print(f"{harness.machine()}, load {os.getloadavg()[0]:.1f}")
        print(f"{objects} objects put in {time.perf_counter() - put:.0f} s")
        far = f"{store.root}/in"
        pairs = {
            "build CSV: disk to disk": ("storage:build", f"{folder}/t.csv", f"{folder}/out", "csv"),
            "build CSV: store to store": ("storage:build", f"{far}/t.csv", f"{store.root}/out", "csv"),
        }
        harness.compare(pairs)
        harness.compare(
            {
                "read to Parquet: disk": ("storage:read", f"{folder}/out", f"{folder}/table"),
                "read to Parquet: store": ("storage:read", f"{store.root}/out", f"{folder}/table"),
            }
        )
        harness.compare(
            {
                "small text files: disk": ("storage:build", f"{folder}/small", f"{folder}/docs", "text"),
                "small text objects: store": ("storage:build", f"{far}/small", f"{folder}/docs", "text"),
            }
        )
        harness.compare(
            {
                "list: disk": ("storage:listing", f"{folder}/small"),
                "list: store": ("storage:listing", f"{far}/small"),
            }
        )


if __name__ == "__main__":
    main()
