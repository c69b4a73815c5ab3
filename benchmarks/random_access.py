"""One record by its number, and a batch of 256 records at random places, out of 1,000,000 records
of 12 features.

    python benchmarks/random_access.py [--rows 1000000] [--folder FOLDER]

The data set is what `benchmarks/build.py csv` builds, as plain and as gzip shards. Bytes read are
the kernel's count of this process (rchar). What people do without an index stands beside it:
tf.data has to read everything before the record.
"""

from __future__ import annotations

import argparse
import glob
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
from harness import machine
from make_csv import write_csv

ROUNDS = 7
BATCH = 256


def bytes_read() -> int:
    """Returns how many bytes this process has read from files so far, from the page cache or
    not.
    """
    with open("/proc/self/io") as file:
        return int(next(line for line in file if line.startswith("rchar")).split()[1])


def each(work: Callable[[int], object], places: list[int]) -> list[float]:
    """Microseconds of each call."""
    times = []
    for place in places:
        started = time.perf_counter()
        work(place)
        times.append((time.perf_counter() - started) * 1e6)
    return times


def report(name: str, times: list[float], read: float) -> None:
    ninety = sorted(times)[int(len(times) * 0.9)]
    print(
        f"{name:58} median {statistics.median(times):12,.0f} us   90 % {ninety:12,.0f} us   "
        f"{read / 1024:10,.1f} KiB read",
        flush=True,
    )


def measure(name: str, work: Callable[[Any], object], places: list[Any]) -> None:
    """Time the calls one by one, after one tenth of them to warm up, and count what they read."""
    each(work, places[: max(len(places) // 10, 1)])
    before = bytes_read()
    times = each(work, places)
    report(name, times, (bytes_read() - before) / len(places))


def data_sets(folder: str, rows: int) -> dict[str, str]:
    """The folders of the two data sets, built if they are not there."""
    import recordmill

    csv_path = os.path.join(folder, f"{rows}.csv")
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(csv_path):
        write_csv(csv_path, rows)
    found = {
        "plain": os.path.join(folder, f"shards-{rows}"),
        "gzip": os.path.join(folder, f"shards-{rows}-gzip"),
    }
    for compression, out in found.items():
        if not os.path.exists(out):
            recordmill.build(
                csv_path,
                out,
                kind="csv",
                num_shards=16,
                compression="none" if compression == "plain" else "gzip",
            )
    return found


def scanned(source: str, place: int) -> object:
    """The record as tf.data finds it: it reads and drops all before it."""
    import tensorflow as tf

    files = sorted(glob.glob(f"{source}/data-*/*.tfrecord"))
    return next(iter(tf.data.TFRecordDataset(files).skip(place).take(1))).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument(
        "--folder", default=os.path.join(tempfile.gettempdir(), "recordmill-benchmarks")
    )
    args = parser.parse_args()
    import recordmill

    print(machine())
    random = np.random.default_rng(0)
    found = data_sets(args.folder, args.rows)
    for compression, source in found.items():
        dataset = recordmill.open(source)
        batches = [random.choice(args.rows, BATCH, replace=False) for _ in range(ROUNDS)]
        measure(
            f"{compression}: ds[i]",
            lambda i, ds=dataset: ds[i],
            random.integers(0, args.rows, 2000 if compression == "plain" else 200).tolist(),
        )
        measure(
            f"{compression}: ds.take of {BATCH} records anywhere",
            lambda numbers, ds=dataset: ds.take(numbers),
            batches,
        )
        measure(
            f"{compression}: first of ds.batches({BATCH}, shuffle=True)",
            lambda seed, ds=dataset: next(iter(ds.batches(BATCH, shuffle=True, seed=seed))),
            list(range(ROUNDS)),
        )
    measure(
        "plain: tf.data, skip(i).take(1)",
        lambda i: scanned(found["plain"], i),
        random.integers(0, args.rows, 5).tolist(),
    )


if __name__ == "__main__":
    main()
