"""Measures the statistics of each element of vectors.

    python benchmarks/element_statistics.py [--rows 4000000] [--rounds 3] [--folder FOLDER]
                                            [--tfdv PYTHON]

A data set of records with 14 float32 numbers is built without statistics. `recordmill` counts its
statistics: those of each element, and those of the feature with quantiles and histograms. The loop
reads the same records as NumPy batches and adds up the mean, variance, minimum and maximum of each
element, and nothing else. TensorFlow Data Validation, if an interpreter that has it is passed,
counts the same records. It has one mean for all 14 numbers, and none of elements. `statistics_cost.py
vectors` measures the share of such statistics in a build.
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

_TFDV = "TensorFlow Data Validation"


def numpy_loop(folder: str) -> Callable[[], object]:
    """Adds up sums and squares of batches in float64."""
    import recordmill

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
    import recordmill

    dataset = recordmill.open(folder)
    return lambda: dataset.statistics["train"]["action"].elements


def tfdv(folder: str) -> Callable[[], object]:
    """Counts the statistics with TensorFlow Data Validation, which has none of elements."""
    import tensorflow_data_validation

    return lambda: tensorflow_data_validation.generate_statistics_from_tfrecord(
        f"{folder}/*/*.tfrecord"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", default=os.path.join(tempfile.gettempdir(), "recordmill-benchmarks")
    )
    parser.add_argument("--tfdv", help="an interpreter with TensorFlow Data Validation")
    args = parser.parse_args()
    folder = Path(args.folder, f"actions-{args.rows}")
    if not folder.exists():
        import recordmill

        values = np.random.default_rng(0).normal(size=(args.rows, 14)).astype(np.float32)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 14)
        recordmill.build(pa.table({"action": vectors}), folder, stats=False)
    print(machine())
    jobs: dict[str, list[str]] = {
        "NumPy loop": ["element_statistics:numpy_loop", str(folder)],
        "recordmill": ["element_statistics:count", str(folder)],
    }
    pythons = {}
    if args.tfdv:
        jobs[_TFDV] = ["element_statistics:tfdv", str(folder)]
        pythons[_TFDV] = args.tfdv
    compare(jobs, args.rounds, slow=[_TFDV], pythons=pythons)


if __name__ == "__main__":
    main()
