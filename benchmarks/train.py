"""Measures the records per second of a training loop, and compares with tf.data.

    python benchmarks/train.py OUT [ROUNDS]

OUT is a data set of the rows of make_csv.py (`recordmill build csv rows.csv --out OUT`), in the
page cache. If OUT does not exist, 1,000,000 records with lists of 1 to 199 int64 are built there,
in 8 shards.

An epoch has shuffled batches of 256, with lists padded to the longest one of the batch. The
consumer does nothing. The ways alternate, so that other load on the machine affects all of them.
The table has medians, the CPU seconds of this process and its children, and the ratio to tf.data in
the same round, which is tuned by hand. `train_peers` describes the other peers.

Two measurements follow. One is the time from before the data set is opened to the first batch, in a
process of its own. The other is the quality of each shuffle. A true permutation and the buffer of
tf.data are shown for comparison.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
import train_peers

import recordmill
from recordmill.reader.inspect.emit import emit

BATCH, BUFFER, OPEN_FILES = 256, 10_000, 16
LISTS, MOST_ITEMS, SHARDS = 1_000_000, 200, 8
FIRST = """
import sys, time
import numpy, {imported}
import recordmill
begun = time.perf_counter()
next(iter(recordmill.open(sys.argv[1]).{face}({batch}{more})))
print(time.perf_counter() - begun)
"""
Way = Callable[[int], Iterable[object]]


def made(out: str) -> str:
    if not os.path.exists(out):
        random = np.random.default_rng(0)
        lengths = random.integers(1, MOST_ITEMS, LISTS)
        splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        lists = pa.ListArray.from_arrays(splits, pa.array(random.integers(0, 30_000, splits[-1])))
        recordmill.build(
            pa.table({"tokens": lists, "label": random.integers(0, 2, LISTS)}),
            out,
            num_shards=SHARDS,
        )
    return out


def tuned(ds: recordmill.Dataset) -> Way:
    """Returns the pipeline of TensorFlow's performance guide.

    It has interleave, shuffle, batch, parse_example and AUTOTUNE.
    """
    program: dict[str, Any] = {"__name__": "emitted"}
    exec(emit("reader", ds), program)
    paths, lists = [file.path for file in ds.records.catalog.files], padded(ds)

    def parse(records: object) -> dict[str, Any]:
        tensors = program["parse_records"](records, program["FEATURES"], None, program["TENSORS"])
        return tensors | {name: tensors[name].to_tensor() for name in lists}

    def batches(seed: int) -> Iterable[object]:
        files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed)
        records = files.interleave(
            lambda path: tf.data.TFRecordDataset(path, buffer_size=1 << 20),
            cycle_length=min(OPEN_FILES, len(paths)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=False,
        )
        mixed = records.shuffle(BUFFER, seed).batch(BATCH)
        return mixed.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False).prefetch(
            tf.data.AUTOTUNE
        )

    return batches


def padded(ds: recordmill.Dataset) -> dict[str, str]:
    """Returns the collation of every feature of lists."""
    return {feature.name: "padded" for feature in ds.schema if feature.ragged_rank}


def make_ways(ds: recordmill.Dataset) -> dict[str, Way]:
    how = {"collate": padded(ds)}
    return {
        "tuned tf.data": tuned(ds),
        "batches, window": lambda seed: ds.batches(BATCH, shuffle="window", seed=seed, **how),
        "batches, global": lambda seed: ds.batches(BATCH, shuffle="global", seed=seed, **how),
        "to_tf, window": lambda seed: ds.to_tf(BATCH, seed=seed, label=False, **how),
        "to_tf, global": lambda seed: ds.to_tf(
            BATCH, seed=seed, shuffle="global", label=False, **how
        ),
    }


def measure(way: Way, seed: int) -> tuple[float, float, float]:
    """Returns (seconds, CPU seconds, seconds to the first batch) of one epoch."""
    start, cpu, first = time.perf_counter(), cpu_seconds(), 0.0
    for _ in way(seed):
        first = first or time.perf_counter() - start
    return time.perf_counter() - start, cpu_seconds() - cpu, first


def cpu_seconds() -> float:
    """Returns the processor time of this process and its children, also of running ones."""
    ticks = 0
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            ticks += sum(
                map(int, Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:15])
            )
    return sum(os.times()[:4]) + ticks / os.sysconf("SC_CLK_TCK")


def first_batch(out: str, face: str, imported: str, more: str) -> float:
    """Returns the seconds from the opening of the data set to the first batch.

    The time runs in a new process after its imports.
    """
    script = FIRST.format(imported=imported, face=face, batch=BATCH, more=more)
    return float(
        subprocess.run([sys.executable, "-c", script, out], capture_output=True, check=True).stdout
    )


def quality(order: np.ndarray) -> str:
    """Returns the quality of a shuffle as cells of a table.

    These are the rank correlation with the order of the files, the mean displacement (0.333 for a
    true permutation), and the share of records that are still neighbours.
    """
    at = np.arange(len(order))
    kept = np.mean(np.abs(np.diff(order)) == 1)
    return f"{np.corrcoef(order, at)[0, 1]:+.4f} | {np.abs(order - at).mean() / len(order):.3f} | {kept:.2e}"


def buffered(records: int, seed: int) -> np.ndarray:
    """Returns the order that tf.data's shuffle buffer makes of records in file order."""
    data = tf.data.Dataset.range(records).shuffle(BUFFER, seed).batch(10_000)
    return np.concatenate([batch.numpy() for batch in data])


def main(out: str, rounds: int) -> None:
    ds = recordmill.open(made(out))
    print(
        ", ".join(
            f"{name}: {'installed' if has else 'not installed'}"
            for name, has in train_peers.installed().items()
        )
    )
    ways = {name: (way, len(ds)) for name, way in make_ways(ds).items()} | train_peers.of_tables(ds)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(rounds):
        for name, (way, _) in ways.items():
            found.setdefault(name, []).append(measure(way, seed))
    print("| way | records/s | records per CPU s | of tuned tf.data: wall | CPU | first batch |")
    print("|---|---|---|---|---|---|")
    base = found["tuned tf.data"]
    for name, runs in found.items():
        wall, cpu, first = (statistics.median(run[at] for run in runs) for at in range(3))
        records = ways[name][1]
        ratios = [
            statistics.median(b[at] / r[at] for b, r in zip(base, runs, strict=True))
            for at in range(2)
        ]
        ratios = [ratio * records / len(ds) for ratio in ratios]
        rates = f"{records / wall / 1e3:,.0f} k | {records / cpu / 1e3:,.0f} k"
        print(f"| {name} | {rates} | {ratios[0]:.2f} | {ratios[1]:.2f} | {first * 1e3:.0f} ms |")
    for mode in ("window", "global"):
        for face, imported, more in (
            ("batches", "numpy", ""),
            ("to_tf", "tensorflow", ", label=False"),
        ):
            seconds = [
                first_batch(out, face, imported, f", shuffle={mode!r}{more}") for _ in range(3)
            ]
            print(
                f"{face}, {mode}: first batch {statistics.median(seconds) * 1e3:,.0f} ms after the open begins"
            )
    print("\n| order | rank correlation | mean displacement | neighbours kept |\n|---|---|---|---|")
    orders = {"true permutation": np.random.default_rng(0).permutation(len(ds))}
    for mode in ("window", "global"):
        batches = ds.batches(BATCH, shuffle=mode)
        steps = batches.schedule.step_ranges(1 << 10)
        orders[mode] = np.concatenate([batches.schedule.record_numbers(some) for some in steps])
    orders[f"tf.data, a buffer of {BUFFER:,}"] = buffered(len(ds), 0)
    for name, order in orders.items():
        print(f"| {name} | {quality(order)} |")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 5)
