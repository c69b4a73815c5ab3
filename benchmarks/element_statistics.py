"""Measures the statistics of each element of vectors.

    python benchmarks/element_statistics.py [--rows 4000000] [--rounds 3] [--folder FOLDER]

A data set of records with 14 float32 numbers is built without statistics. `recordmill` counts its
statistics: those of each element, and those of the feature with quantiles and histograms. The loop
reads the same records as NumPy batches and adds up the mean, variance, minimum and maximum of each
element, and nothing else.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from harness import compare, machine

import recordmill


def numpy_loop(folder: str) -> Callable[[], object]:
    """Adds up sums and squares of batches in float64."""
    dataset = recordmill.open(folder)

    def work() -> None:
        count, total, squares = 0, np.zeros(14), np.zeros(14)
        minima, maxima = np.full(14, np.inf), np.full(14, -np.inf)
        for batch in dataset.batches(4096, shuffle=False, drop_remainder=False):
            values = batch["action"].astype(np.float64)
            count += len(values)
            total += values.sum(0)
            squares += (values**2).sum(0)
            minima, maxima = np.minimum(minima, values.min(0)), np.maximum(maxima, values.max(0))
        assert count == len(dataset)

    return work


def count(folder: str) -> Callable[[], object]:
    """Counts the statistics of the data set."""
    dataset = recordmill.open(folder)
    return lambda: dataset.statistics["train"]["action"].elements


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", default=os.path.join(tempfile.gettempdir(), "recordmill-benchmarks")
    )
    args = parser.parse_args()
    folder = Path(args.folder, f"actions-{args.rows}")
    if not folder.exists():
        values = np.random.default_rng(0).normal(size=(args.rows, 14)).astype(np.float32)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 14)
        recordmill.build(pa.table({"action": vectors}), folder, stats=False)
    print(machine())
    jobs = {
        "NumPy loop": ["element_statistics:numpy_loop", str(folder)],
        "recordmill": ["element_statistics:count", str(folder)],
    }
    compare(jobs, args.rounds)


if __name__ == "__main__":
    main()
