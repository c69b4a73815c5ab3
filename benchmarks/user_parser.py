"""Compares a build with a parser of the user with a bare loop, and with TensorFlow Datasets.

    python benchmarks/user_parser.py [--files 24] [--rows 20000] [--rounds 3] [--folder FOLDER]

Each file has lines of 14 numbers, which the parser reads in a Python loop. The limit is a pool of
processes that calls the same function and throws the records away.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import compare, machine


def parse(path: str) -> Iterator[dict[str, Any]]:
    """Yields a dict for each line of a file."""
    with open(path) as file:
        for number, line in enumerate(file):
            yield {"number": number, "action": np.array(line.split(), np.float32)}


def count(path: str) -> int:
    """Returns the number of records of a file."""
    return sum(1 for _ in parse(path))


def loop(folder: str, _: str) -> Callable[[], object]:
    """A pool of processes that parses all files, and keeps nothing."""
    paths = sorted(str(path) for path in Path(folder).iterdir())

    def work() -> None:
        with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
            sum(pool.imap_unordered(count, paths))

    return work


def build(folder: str, out: str) -> Callable[[], object]:
    """A build of the files by recordmill."""
    import recordmill

    shutil.rmtree(out, ignore_errors=True)
    return lambda: recordmill.build(folder, out, parser=f"{__file__}:parse")


def tfds(folder: str, out: str) -> Callable[[], object]:
    """A build of the files by TensorFlow Datasets, from the same function."""
    import tensorflow as tf
    import tensorflow_datasets

    class Lines(tensorflow_datasets.core.GeneratorBasedBuilder):
        VERSION = tensorflow_datasets.core.Version("1.0.0")

        def _info(self) -> Any:
            features = {
                "number": tf.int64,
                "action": tensorflow_datasets.features.Tensor(shape=(14,), dtype=tf.float32),
            }
            return tensorflow_datasets.core.DatasetInfo(
                builder=self, features=tensorflow_datasets.features.FeaturesDict(features)
            )

        def _split_generators(self, _: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[tuple[str, dict[str, Any]]]:
            for path in sorted(Path(folder).iterdir()):
                for record in parse(str(path)):
                    yield f"{path.name} {record['number']}", record

    shutil.rmtree(out, ignore_errors=True)
    builder = Lines(data_dir=out)
    return lambda: builder.download_and_prepare()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=24)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", default=os.path.join(tempfile.gettempdir(), "recordmill-benchmarks")
    )
    args = parser.parse_args()
    inputs = Path(args.folder, f"lines-{args.files}-{args.rows}")
    if not inputs.exists():
        inputs.mkdir(parents=True)
        random = np.random.default_rng(0)
        for number in range(args.files):
            np.savetxt(inputs / f"{number:03d}.txt", random.normal(size=(args.rows, 14)), "%.6f")
    print(machine())
    out = os.path.join(args.folder, "out-parser")
    jobs = {name: [f"user_parser:{name}", str(inputs), out] for name in ("loop", "build", "tfds")}
    compare(jobs, args.rounds)


if __name__ == "__main__":
    main()
