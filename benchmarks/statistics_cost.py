"""Measures the processor time of the statistics of a build.

    python benchmarks/statistics_cost.py [csv|images|vectors] [--rounds 7] [--rows 1000000]
    [--images 2000] [--folder FOLDER]

The inputs are the CSV file and the JPEGs of `build.py`, and a Parquet file of vectors of 14 floats,
whose elements have statistics of their own. Builds with and without statistics run in
turn in one process. The first build of each is not counted.

`of them in statistics` is the time of the threads inside the functions of statistics, and `of them
in elements` in those of elements. They vary less than the difference of two builds.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from build import make_images
from harness import machine
from make_csv import write_csv

import recordmill
from recordmill.building import file_records, finish_build, ingest
from recordmill.statistics.dataset_sketch import SketchPool
from recordmill.statistics.element_sketch import ElementSketch


def timed(spent: list[float], function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function to append the processor time of its thread to `spent`."""

    def run(*args: Any, **options: Any) -> Any:
        begun = time.thread_time()
        try:
            return function(*args, **options)
        finally:
            spent.append(time.thread_time() - begun)

    return run


def cpu_sec(work: Callable[[], object]) -> float:
    """Returns the processor time of the work in seconds.

    It includes all threads and the time of the system.
    """
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(source: str, out: str, rounds: int) -> None:
    """Builds with and without statistics in turn, and prints the medians."""
    spent: list[float] = []
    spent_elements: list[float] = []
    for name in ("add", "merge", "moments", "quantiles"):
        setattr(ElementSketch, name, timed(spent_elements, getattr(ElementSketch, name)))
    for module, name in (
        (ingest, "update_statistics"),
        (file_records, "update_statistics"),
        (finish_build, "write_statistics"),
        (SketchPool, "total"),
    ):
        setattr(module, name, timed(spent, getattr(module, name)))
    taken: dict[bool, list[float]] = {True: [], False: []}
    inside, inside_elements = [], []
    for number in range(rounds + 1):
        for stats in (True, False):
            shutil.rmtree(out, ignore_errors=True)
            spent.clear()
            spent_elements.clear()
            seconds = cpu_sec(lambda stats=stats: recordmill.build(source, out, stats=stats))  # type: ignore[misc]
            # The first round loads compiled code.
            if number:
                taken[stats].append(seconds)
                inside += [sum(spent)] if stats else []
                inside_elements += [sum(spent_elements)] if stats else []
    shutil.rmtree(out, ignore_errors=True)
    without, whole, counted, elements = (
        statistics.median(each) for each in (taken[False], taken[True], inside, inside_elements)
    )
    print(f"{'without':28} {without:6.2f} s of processors, {min(taken[False]):.2f} at least")
    print(f"{'with statistics':28} {whole:6.2f} s of processors, {min(taken[True]):.2f} at least")
    print(
        f"{'of them in statistics':28} {counted:6.2f} s: {100 * counted / without:.1f} % more than without"
    )
    if elements:
        share = 100 * elements / (whole - elements)
        print(
            f"{'of them in elements':28} {elements:6.2f} s: {share:.1f} % more than without these"
        )


def write_vectors(path: str, rows: int) -> None:
    """Writes a Parquet file with random vectors of 14 numbers."""
    values = np.random.default_rng(0).normal(size=(rows, 14)).astype(np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 14)
    pq.write_table(pa.table({"action": vectors}), path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", default=["csv", "images"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--images", type=int, default=2000, help="how many JPEGs")
    parser.add_argument(
        "--folder", default=os.path.join(tempfile.gettempdir(), "recordmill-benchmarks")
    )
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    print(machine())
    sources: dict[str, tuple[str, Callable[[str, int], object], int]] = {
        "csv": (f"{args.rows}.csv", write_csv, args.rows),
        "images": (f"images-{args.images}", make_images, args.images),
        "vectors": (f"vectors-{args.rows}.parquet", write_vectors, args.rows),
    }
    for kind in args.kinds:
        name, write, count = sources[kind]
        source = os.path.join(args.folder, name)
        if not os.path.exists(source):
            write(source, count)
        print(kind)
        measure(source, os.path.join(args.folder, f"out-statistics-{kind}"), args.rounds)


if __name__ == "__main__":
    main()
