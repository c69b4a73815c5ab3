"""Compares a build of a CSV file in one process and on Flink.

    examples/cluster/flink_local.sh up
    python benchmarks/cluster.py [--rows 500000] [--only local,flink-1,flink-2]

Flink has one and two slots, and the file has one and four times the rows. The output has the wall
time, the memory of all processes, and the amount of data that Flink's tasks exchanged.

The memory of the Python processes is the most that they used together. The memory of Flink's Java
processes is what they use at the end of the job.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "cluster" / "flink_local.sh"


def write_table(path: Path, rows: int) -> None:
    draw = random.Random(1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *(f"x{column}" for column in range(8)), "name", "label"])
        for row in range(rows):
            numbers = [f"{draw.random():.6f}" for _ in range(8)]
            writer.writerow([row, *numbers, f"n{draw.randrange(1000)}", draw.choice("abc")])


class Memory:
    """Measures the resident memory of a build while the `with` block runs.

    Args:
        driver: The process of the build.
        home: The folder of Flink. Commands of its processes contain this path.

    Attributes:
        peak: The most memory of the driver and the Python workers together, in MiB.
        java: The last measured memory of Flink's own processes, in MiB.
    """

    def __init__(self, driver: int, home: str) -> None:
        self.peak, self.java, self._stop = 0, 0, threading.Event()
        self._driver, self._home = driver, home.encode()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *rest: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.5):
            java: dict[int, int] = {}
            others: list[tuple[int, int, int]] = []  # (process, its parent, MiB)
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    command = (process / "cmdline").read_bytes()
                    resident = int((process / "statm").read_text().split()[1]) * 4096 >> 20
                    parent = int((process / "stat").read_text().rpartition(") ")[2].split()[1])
                except (OSError, IndexError):
                    continue
                if b"java" in command and self._home in command:
                    java[int(process.name)] = resident
                else:
                    others.append((int(process.name), parent, resident))
            ours = {self._driver, *java}
            python = sum(
                resident for pid, parent, resident in others if pid in ours or parent in ours
            )
            self.peak, self.java = max(self.peak, python), sum(java.values())


def build(table: Path, out: Path, flags: list[str], home: str) -> tuple[float, Memory]:
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
    ]
    began = time.monotonic()
    driver = subprocess.Popen([*command, "--quiet", *flags])
    with Memory(driver.pid, home) as memory:
        code = driver.wait()
    if code:
        raise SystemExit(f"the build ended with {code}")
    return time.monotonic() - began, memory


def through(url: str) -> tuple[int, int]:
    """Returns (bytes, records) that the tasks of the youngest job on Flink exchanged."""

    def ask(path: str) -> dict:
        with urllib.request.urlopen(f"{url}{path}", timeout=30) as answer:
            return json.load(answer)

    job = max(ask("/jobs/overview")["jobs"], key=lambda job: job["start-time"])
    metrics = [vertex["metrics"] for vertex in ask(f"/jobs/{job['jid']}")["vertices"]]
    return sum(one["write-bytes"] for one in metrics), sum(one["write-records"] for one in metrics)


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
    flink = subprocess.run(
        [str(SCRIPT), "flags"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    url = next(flag.partition("=")[2] for flag in flink if flag.startswith("--flink_master="))
    jar = next(
        flag.partition("=")[2] for flag in flink if flag.startswith("--flink_job_server_jar=")
    )
    home = str(Path(jar).parent)
    flink = ["--no-preflight", *(flag for flag in flink if not flag.startswith("--parallelism"))]
    ways = {
        "local": [],
        "flink-1": [*flink, "--parallelism=1"],
        "flink-2": [*flink, "--parallelism=2"],
    }
    folder = Path(tempfile.mkdtemp(prefix="recordmill-cluster-"))
    try:
        for times in (1, 4):
            table = folder / "table.csv"
            write_table(table, args.rows * times)
            seen = set()
            for name in args.only.split(","):
                seconds, memory = build(table, folder / "out", ways[name], home)
                seen.add(digest(folder / "out"))
                shutil.rmtree(folder / "out")
                line = f"{name:8} {args.rows * times:>9,} rows, {table.stat().st_size >> 20} MiB: {seconds:6.1f} s, "
                line += f"Python {memory.peak:,} MiB"
                if name != "local":
                    handed, records = through(url)
                    line += f", Flink {memory.java:,} MiB, through it {handed / 1024:,.0f} KiB in {records:,} records"
                print(line, flush=True)
            assert len(seen) == 1, "the shards differ"
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
