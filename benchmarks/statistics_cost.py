"""Measures the processor time of the statistics of a build.

    python benchmarks/statistics_cost.py [csv|images] [--rounds 7] [--rows 1000000]
    [--images 2000] [--folder FOLDER]

The inputs are the CSV file and the JPEGs of `build.py`. Builds with and without statistics run in
turn in one process. The first build of each is not counted.

`of them in statistics` is the time of the threads inside the functions of statistics. It varies
less than the difference of two builds.
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

from build import make_images
from harness import machine
from make_csv import write_csv

import recordmill
from recordmill.building import file_records, finish_build, ingest
from recordmill.statistics.dataset_sketch import SketchPool


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
    for module, name in (
        (ingest, "update_statistics"),
        (file_records, "update_statistics"),
        (finish_build, "write_statistics"),
        (SketchPool, "total"),
    ):
        setattr(module, name, timed(spent, getattr(module, name)))
    taken: dict[bool, list[float]] = {True: [], False: []}
    inside = []
    for number in range(rounds + 1):
        for stats in (True, False):
            shutil.rmtree(out, ignore_errors=True)
            spent.clear()
            seconds = cpu_sec(lambda stats=stats: recordmill.build(source, out, stats=stats))  # type: ignore[misc]
            # The first round loads compiled code.
            if number:
                taken[stats].append(seconds)
                inside += [sum(spent)] if stats else []
    shutil.rmtree(out, ignore_errors=True)
    without, whole, counted = (
        statistics.median(each) for each in (taken[False], taken[True], inside)
    )
    print(f"{'without':28} {without:6.2f} s of processors, {min(taken[False]):.2f} at least")
    print(f"{'with statistics':28} {whole:6.2f} s of processors, {min(taken[True]):.2f} at least")
    print(
        f"{'of them in statistics':28} {counted:6.2f} s: {100 * counted / without:.1f} % more than without"
    )


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
    csv_path, images = (
        os.path.join(args.folder, name) for name in (f"{args.rows}.csv", f"images-{args.images}")
    )
    for kind in args.kinds:
        source = csv_path if kind == "csv" else images
        if not os.path.exists(source):
            if kind == "csv":
                write_csv(source, args.rows)
            else:
                make_images(source, args.images)
        print(kind)
        measure(source, os.path.join(args.folder, f"out-statistics-{kind}"), args.rounds)


if __name__ == "__main__":
    main()
