"""Compares builds with other ways to write TFRecords from CSV, JSON Lines and JPEGs.

    python benchmarks/build.py [csv|jsonl|images] [--rounds 3] [--rows 1000000] [--images 2000]
    [--folder FOLDER] [--no-slow] [--ray-python PYTHON] [--mosaicml-python PYTHON]

The inputs are 1,000,000 rows of 12 columns, and 2,000 JPEGs of about 100 kB. They are created once
in FOLDER. Before each run, all written data is flushed to the disk. Otherwise a job that syncs its
files would also wait for the files of the job before it.

The slow peers run once, the others in turn. The output has the medians and the ratio to recordmill.
Ray Data and MosaicML's streaming need environments of their own. They are measured only if their
interpreters are named.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import numpy as np
from harness import compare, machine
from make_csv import write_csv

# peers that need a minute or more for tables
SLOW = ("tutorial loop", "plain Beam", "Ray Data")


def make_jsonl(path: str, csv_path: str) -> None:
    import pandas as pd

    pd.read_csv(csv_path).to_json(path, orient="records", lines=True)


def make_images(folder: str, count: int) -> None:
    """Creates JPEGs of noise over a gradient in ten class folders.

    Each has about 100 kB.
    """
    from PIL import Image

    generator = np.random.default_rng(0)
    for number in range(count):
        name = f"{folder}/class{number % 10}"
        os.makedirs(name, exist_ok=True)
        noise = generator.integers(0, 90, (375, 500, 3)) + np.linspace(0, 160, 500)[None, :, None]
        Image.fromarray(noise.astype(np.uint8)).save(f"{name}/{number:05d}.jpg", quality=92)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", default=["csv", "jsonl", "images"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--no-slow",
        action="store_true",
        help="leave out the tutorial loop of tables, and plain Beam",
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--images", type=int, default=2000, help="how many JPEGs")
    parser.add_argument(
        "--folder", default=os.path.join(tempfile.gettempdir(), "recordmill-benchmarks")
    )
    parser.add_argument("--ray-python", help="an interpreter with ray[data] and tensorflow")
    parser.add_argument("--mosaicml-python", help="an interpreter with mosaicml-streaming")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    print(machine())
    csv_path, jsonl_path, images = (
        os.path.join(args.folder, name)
        for name in (f"{args.rows}.csv", f"{args.rows}.jsonl", f"images-{args.images}")
    )
    if {"csv", "jsonl"} & {*args.kinds} and not os.path.exists(csv_path):
        write_csv(csv_path, args.rows)
    if "jsonl" in args.kinds and not os.path.exists(jsonl_path):
        make_jsonl(jsonl_path, csv_path)
    if "images" in args.kinds and not os.path.exists(images):
        make_images(images, args.images)
    for kind in args.kinds:
        out = os.path.join(args.folder, f"out-{kind}")
        source = {"csv": csv_path, "jsonl": jsonl_path, "images": images}[kind]
        if kind == "images":
            peers = {
                "TFDS writer": ("build_jobs:tfds_images", source, out + "-tfds"),
                "TFDS writer, synced": ("build_jobs:tfds_images", source, out + "-tfds", "synced"),
                "tutorial loop": ("build_jobs:tutorial_images", source, out + "-loop"),
                "tutorial loop, synced": (
                    "build_jobs:tutorial_images",
                    source,
                    out + "-loop",
                    "synced",
                ),
                "limit: the kernels alone": ("build_limits:limit_images", source, out + "-limit"),
            }
            if not args.no_slow:
                peers["plain Beam"] = ("build_jobs:plain_beam_images", source, out + "-beam")
            if args.mosaicml_python:
                peers["MosaicML writer"] = ("build_jobs:mosaicml_images", source, out + "-mds")
        else:
            names = {
                "pyarrow + tfx-bsl + TFRecordWriter": "arrow_tfx_bsl",
                "tutorial loop": "tutorial",
                "plain Beam": "plain_beam",
            }
            names = {
                name: function
                for name, function in names.items()
                if not (args.no_slow and name in SLOW)
            }
            peers = {
                name: (f"build_jobs:{function}", kind, source, f"{out}-{function}")
                for name, function in names.items()
            }
            peers["limit: pyarrow's reader and the kernels alone"] = (
                "build_limits:limit",
                kind,
                source,
                out + "-limit",
            )
            if args.ray_python:
                peers["Ray Data"] = ("build_jobs:ray_data", kind, source, f"{out}-ray")
        print(f"\n{kind}: {source}")
        slow = SLOW if kind != "images" else ()
        pythons = {
            name: python
            for name, python in (
                ("Ray Data", args.ray_python),
                ("MosaicML writer", args.mosaicml_python),
            )
            if python
        }
        compare(
            {"recordmill": ("build_jobs:recordmill", kind, source, out), **peers},
            args.rounds,
            slow=slow,
            pythons=pythons,
            before=os.sync,
        )


if __name__ == "__main__":
    main()
