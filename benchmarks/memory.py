"""Measures the peak memory of builds and reads of large inputs.

    python benchmarks/memory.py [--memory 256MiB] [--folder FOLDER] [CASE ...]

The inputs are four times larger than --memory. Each case runs in a fresh process. It first builds
something tiny, which imports everything and loads compiled code. The memory after that is the base.
The peak must not exceed the base by more than --memory.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import machine, run
from make_csv import write_csv

CASES = (
    "one file",
    "many files",
    "gz inflating 20x",
    "images",
    "one shard",
    "gzip shards",
    "one key",
    "read to parquet",
    "read to npy",
)


def build_job(kind: str, source: str, out: str, memory: str, *options: str) -> Callable[[], object]:
    import recordmill

    shutil.rmtree(out, ignore_errors=True)
    recordmill.build({"warm": ["x"], "up": [1.5]}, out, num_shards=1)
    shutil.rmtree(out)
    named = dict(option.split("=", 1) for option in options)
    return lambda: recordmill.build(
        source,
        out,
        kind=kind,
        memory=memory,
        **{name: int(value) if value.isdigit() else value for name, value in named.items()},
    )


def read_job(source: str, out: str, to: str, memory: str) -> Callable[[], object]:
    import recordmill

    shutil.rmtree(out, ignore_errors=True)
    recordmill.build({"warm": ["x"], "up": [1.5]}, out)
    recordmill.read(out, out + "-warm", to=to, overwrite=True)
    shutil.rmtree(out)
    return lambda: recordmill.read(source, out, to=to, memory=memory)


def make_inputs(folder: Path, size: int) -> dict[str, Path]:
    """Creates inputs of about `size` bytes each, unless they exist.

    Returns:
        The paths by file name.
    """
    paths = {name: folder / name for name in ("one.csv", "many", "inflating.csv.gz", "images")}
    rows = size // 111
    if not paths["one.csv"].exists():
        write_csv(str(paths["one.csv"]), rows)
    if not paths["many"].exists():
        paths["many"].mkdir()
        with paths["one.csv"].open("rb") as file:
            header = file.readline()
            for number in range(2000):
                lines = file.readlines(size // 2000)
                (paths["many"] / f"{number:05d}.csv").write_bytes(header + b"".join(lines))
    if not paths["inflating.csv.gz"].exists():
        line = "the same words again and again in every row of it,"
        with gzip.open(paths["inflating.csv.gz"], "wt", compresslevel=6) as packed:
            packed.write("id,text,x\n")
            for first in range(0, size // 66, 10000):
                packed.write(
                    "".join(f"{first + i},{line[:-1]},{(first + i) % 97}.5\n" for i in range(10000))
                )
    if not paths["images"].exists():
        make_noise_images(paths["images"], size)
    return paths


def make_noise_images(folder: Path, size: int) -> None:
    """Creates PNG files of noise, about 3 MiB each, which can't be compressed."""
    from PIL import Image

    generator = np.random.default_rng(0)
    for number in range(size // (3 << 20)):
        (folder / f"class{number % 5}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (1024, 1024, 3), np.uint8)).save(
            folder / f"class{number % 5}" / f"{number:05d}.png", compress_level=0
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument(
        "--folder", default=os.path.join(tempfile.gettempdir(), "recordmill-benchmarks-memory")
    )
    args = parser.parse_args()
    limit = int(args.memory.removesuffix("MiB")) << 20
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = make_inputs(folder, 4 * limit)
    out, table = str(folder / "out"), str(folder / "table")
    csv = str(paths["one.csv"])
    jobs = {
        "one file": ("memory:build_job", "csv", csv, out, args.memory),
        "many files": ("memory:build_job", "csv", str(paths["many"]), out, args.memory),
        "gz inflating 20x": (
            "memory:build_job",
            "csv",
            str(paths["inflating.csv.gz"]),
            out,
            args.memory,
        ),
        "images": ("memory:build_job", "images", str(paths["images"]), out, args.memory),
        "gzip shards": ("memory:build_job", "csv", csv, out, args.memory, "compression=gzip"),
        "one key": ("memory:build_job", "csv", csv, out, args.memory, "key=label"),
        "one shard": ("memory:build_job", "csv", csv, out, args.memory, "num_shards=1"),
        "read to parquet": ("memory:read_job", out, table, "parquet", args.memory),
        "read to npy": ("memory:read_job", out, table, "npy", args.memory),
    }
    print(machine())
    print(f"--memory {args.memory}, inputs of {4 * limit >> 20} MiB")
    for name in args.cases:
        one = run(*jobs[name])
        above = one.peak - one.base
        print(
            f"{name:20} base {one.base >> 20:5} MiB, peak {above >> 20:5} MiB above it ({above / limit:5.0%} "
            f"of --memory), {one.work:6.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
