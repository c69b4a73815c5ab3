"""Measures if a read of one large TFRecord file uses all cores.

    python benchmarks/scaling.py [--gigabytes 4] [--folder FOLDER]

The file is read to Parquet and to NumPy with 1, 2, 4, ... threads. It contains records of 12
scalars, uncompressed and without an index, as other programs write them. Each read runs in a
process of its own. The first read puts the file into the page cache. The schema is inferred from
all records, which is part of the time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable

from encode import scalars
from harness import machine, run

ROUNDS = 3


def make_file(path: str, size_bytes: int) -> None:
    """Writes the frames of the same 200,000 records repeatedly.

    Repetition does not influence reads, and makes the file quick to write.
    """
    from recordmill.records.example.encode import encode

    schema, batch = scalars(200_000)
    frames = encode(batch, schema).data
    with open(path, "wb") as file:
        while file.tell() < size_bytes:
            file.write(frames)


def read_job(source: str, out: str, to: str, threads: str) -> Callable[[], object]:
    import recordmill

    shutil.rmtree(out, ignore_errors=True)
    make_file(out + ".warm", 1)
    recordmill.read(out + ".warm", out, to=to)
    shutil.rmtree(out)
    return lambda: recordmill.read(source, out, to=to, threads=int(threads), memory="16GiB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument(
        "--folder", default=os.path.join(tempfile.gettempdir(), "recordmill-benchmarks")
    )
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    source, out = (
        os.path.join(args.folder, "one-file.tfrecord"),
        os.path.join(args.folder, "one-file"),
    )
    make_file(source, int(args.gigabytes * 1e9))
    size = os.path.getsize(source)
    print(machine())
    cores = os.cpu_count() or 1
    counts = [1 << power for power in range(cores.bit_length()) if 1 << power <= cores]
    for to in ("parquet", "npy"):
        print(f"\none file of {size / 1e9:.1f} GB to {to}, start-up apart")
        # The first run puts the file into the page cache.
        run("scaling:read_job", source, out, to, str(cores))
        first = None
        for threads in counts:
            times = [
                run("scaling:read_job", source, out, to, str(threads)).work for _ in range(ROUNDS)
            ]
            median = statistics.median(times)
            first = first or median
            print(
                f"  {threads:3} threads {median:8.2f} s {size / median / 1e6:8,.0f} MB/s "
                f"{first / median:6.2f}x of one thread",
                flush=True,
            )
    os.unlink(source)


if __name__ == "__main__":
    main()
