"""A CSV file to shards in one process and on Flink, with one and two slots, at 1x and 4x the rows: wall time, and the
most memory of all processes that work on it.

    scripts/flink_local.sh up
    python benchmarks/cluster.py [--rows 500000] [--only local,flink-1,flink-2]

Of Flink's Java processes the memory is what they hold when the job ends, of the Python workers the most they held.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "flink_local.sh"


def write_table(path: Path, rows: int) -> None:
    draw = random.Random(1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *(f"x{column}" for column in range(8)), "name", "label"])
        for row in range(rows):
            numbers = [f"{draw.random():.6f}" for _ in range(8)]
            writer.writerow([row, *numbers, f"n{draw.randrange(1000)}", draw.choice("abc")])


class Memory:
    """The most that Python processes of this job held together, and what Flink's hold: proportional sets, in MiB."""

    def __init__(self) -> None:
        self.peak, self.java, self._stop = 0, 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *rest: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.5):
            python = java = 0
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    command = (process / "cmdline").read_bytes()
                    rss = int((process / "statm").read_text().split()[1]) * 4096 >> 20
                except (OSError, IndexError):
                    continue
                python += rss if b"sdk_worker_main" in command or b"recordmill\0build" in command else 0
                java += rss if b"flink" in command and b"java" in command else 0
            self.peak, self.java = max(self.peak, python), java


def build(table: Path, out: Path, flags: list[str]) -> tuple[float, Memory]:
    command = [
        sys.executable,
        "-m",
        "recordmill",
        "build",
        "csv",
        str(table),
        "--out",
        str(out),
        "--num-shards=8",
        "--quiet",
    ]
    began = time.monotonic()
    with Memory() as memory:
        subprocess.run([*command, *flags], check=True)
    return time.monotonic() - began, memory


def digest(out: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(out.glob("data-*/*.tfrecord")):
        whole.update(path.read_bytes())
    return whole.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--only", default="local,flink-1,flink-2")
    args = parser.parse_args()
    flink = subprocess.run([str(SCRIPT), "flags"], capture_output=True, text=True, check=True).stdout.splitlines()
    flink = ["--no-preflight", *(flag for flag in flink if not flag.startswith("--parallelism"))]
    ways = {"local": [], "flink-1": [*flink, "--parallelism=1"], "flink-2": [*flink, "--parallelism=2"]}
    folder = Path(tempfile.mkdtemp(prefix="recordmill-cluster-"))
    try:
        for times in (1, 4):
            table = folder / "table.csv"
            write_table(table, args.rows * times)
            seen = set()
            for name in args.only.split(","):
                seconds, memory = build(table, folder / "out", ways[name])
                seen.add(digest(folder / "out"))
                shutil.rmtree(folder / "out")
                print(
                    f"{name:8} {args.rows * times:>9,} rows, {table.stat().st_size >> 20} MiB: {seconds:6.1f} s, "
                    f"Python {memory.peak:,} MiB, Flink {memory.java if name != 'local' else 0:,} MiB",
                    flush=True,
                )
            assert len(seen) == 1, "the shards differ"
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
