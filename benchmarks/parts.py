"""Compares a data set of many appended parts with the same records in one part.

    python benchmarks/parts.py [--parts 1000] [--rows 1000000] [--rounds 3] [--folder FOLDER]

The parts are made from the shards of one build, since so many appends take minutes. Each part has
one shard with its index, in a folder of its own, as an append leaves it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from harness import machine

import recordmill
from recordmill.shards.file_names import ShardName
from recordmill.shards.manifest import Manifest, Part, load_manifest, manifest_path


def make_rows(count: int) -> pa.Table:
    """Returns a table of 12 features."""
    random = np.random.default_rng(1)
    columns = {f"number{index}": random.integers(0, 1000, count) for index in range(4)}
    columns |= {f"float{index}": random.random(count, np.float32) for index in range(6)}
    return pa.table(
        {
            **columns,
            "text": [f"row {row}" for row in range(count)],
            "label": random.integers(0, 10, count),
        }
    )


def split_into_parts(out: Path) -> None:
    """Makes a part of each shard of a data set with one part."""
    manifest = load_manifest(out)
    (part,) = manifest.parts
    parts = []
    for number, info in enumerate(part.splits["train"]):
        old = ShardName.parse(info.name)
        assert old is not None
        new = replace(old, index=0, num_shards=1)
        folder = out / f"data-{number:012x}"
        (folder / "index").mkdir(parents=True)
        os.rename(out / part.folder / info.name, folder / str(new))
        os.rename(out / part.folder / "index" / old.index_name, folder / "index" / new.index_name)
        shards = {"train": (replace(info, name=str(new)),)}
        parts.append(
            Part(folder.name, part.kind, shards, {"files": 0, "bytes": 0}, info.records, 0)
        )
    joined: Manifest = replace(manifest, parts=tuple(parts), statistics={"notes": []})
    manifest_path(out, 1).write_text(joined.to_json())
    shutil.rmtree(out / part.folder)


def measure(work: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Returns the median seconds of the work: of wall time, and of the processor."""
    times = []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return tuple(map(statistics.median, zip(*times, strict=True)))  # type: ignore[return-value]


def read_first(out: Path) -> object:
    """Opens a data set and reads its first record."""
    return recordmill.open(out)[0]


def read_batches(dataset: recordmill.Dataset, **options: Any) -> None:
    """Reads an epoch of batches."""
    for _ in dataset.batches(256, **options):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None)
    args = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        one, many = Path(folder, "one"), Path(folder, "many")
        rows = make_rows(args.rows)
        recordmill.build(rows, one, stats=False)
        recordmill.build(rows, many, stats=False, num_shards=args.parts)
        split_into_parts(many)
        numbers = np.random.default_rng(2).integers(0, args.rows, 10_000)
        singles = numbers[:2000].tolist()
        for out in (one, many):
            seconds = measure(partial(read_first, out), args.rounds)
            print(f"{out.name}: open and read a record: {seconds[0]:.3f} s, CPU {seconds[1]:.3f} s")
        jobs: dict[str, Callable[[recordmill.Dataset], object]] = {
            "in order": lambda dataset: sum(map(len, dataset.records.record_batches())),
            "batches, window": lambda dataset: read_batches(dataset, shuffle="window"),
            "batches, global": lambda dataset: read_batches(dataset, shuffle="global"),
            "10,000 by number": lambda dataset: dataset.records.take(numbers),
            "2,000 by number, one by one": lambda dataset: [dataset[n] for n in singles],
            "read to Parquet": lambda dataset: recordmill.read(
                str(dataset.records.catalog.root),
                Path(folder, "table"),
                to="parquet",
                overwrite=True,
            ),
        }
        datasets = [recordmill.open(one), recordmill.open(many)]
        for name, work in jobs.items():
            for dataset in datasets:
                work(dataset)
            # In turn, so that other work on the machine slows both.
            times: list[list[tuple[float, float]]] = [[], []]
            for _ in range(args.rounds):
                for row, dataset in zip(times, datasets, strict=True):
                    row.append(measure(partial(work, dataset), 1))
            first, second = (
                [statistics.median(column) for column in zip(*row, strict=True)] for row in times
            )
            print(
                f"{name}: one part {first[0]:.3f} s, {args.parts:,} parts {second[0]:.3f} s: "
                f"{first[0] / second[0]:.2f} of the speed (CPU {first[1] / second[1]:.2f})"
            )
        started = time.perf_counter()
        recordmill.compact(many)
        print(f"compact: {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
