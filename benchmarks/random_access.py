"""Measures access to single records by number, and to batches of random records.

    python benchmarks/random_access.py [--rows 1000000] [--folder FOLDER]

Batches have 256 records. The data set has 1,000,000 records of 12 features, as `benchmarks/build.py
csv` builds it, once with plain and once with gzip shards. The number of bytes read is the kernel's
count for this process (rchar). For comparison, tf.data has no index, so it reads everything before
the record.
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
    """Returns the number of bytes that this process has read.

    Reads from the page cache count, too.
    """
    with open("/proc/self/io") as file:
        return int(next(line for line in file if line.startswith("rchar")).split()[1])


def each(work: Callable[[int], object], places: list[int]) -> list[float]:
    """Returns the duration of each call in microseconds."""
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
    """Measures calls one by one, and the bytes that they read.

    A tenth of the calls runs before the measurement, to warm up.
    """
    each(work, places[: max(len(places) // 10, 1)])
    before = bytes_read()
    times = each(work, places)
    report(name, times, (bytes_read() - before) / len(places))


def data_sets(folder: str, rows: int) -> dict[str, str]:
    """Returns the folders of the two data sets, which are built once."""
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
    """Returns the record at `place` as tf.data finds it, by reading everything before it."""
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
