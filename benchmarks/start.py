"""Measures the complete duration of commands and of first builds in Python.

    python benchmarks/start.py [--runs 20]

The duration is mostly that of imports and of loading compiled code from the disk. A data set of
1,000 records with three features is built first. Then each command runs `--runs` times, each in a
process of its own. One run before them is not counted. It puts the files into the page cache and
writes the byte code. PYTHONDONTWRITEBYTECODE is ignored, because installed packages have byte code.
The output has medians of wall and processor time.

The first build in Python is compared with the second one of the same process. Its imports are also
measured without those of NumPy, pyarrow and pandas, which many programs have imported already.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import machine

ROWS = 1000
# Prints the processor seconds of the first build, with its imports, and of the second one.
TWO_BUILDS = """
import time
for name in {imported!r}:
    __import__(name)
start = time.process_time()
import recordmill
for number in range(2):
    recordmill.build({source!r}, {out!r} + str(number), overwrite=True)
    print(time.process_time() - start)
    start = time.process_time()
"""


def commands(folder: Path) -> dict[str, list[str]]:
    return {
        "--help": ["--help"],
        "inspect": ["inspect", str(folder / "data")],
        "head": ["head", str(folder / "data")],
        "read": ["read", str(folder / "data"), "--out", str(folder / "new")],
        "doctor": ["doctor", "--runner=FnApiRunner"],
        "build": ["build", str(folder / "rows.csv"), "--out", str(folder / "new")],
    }


def _environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def timed(command: list[str], new: Path) -> tuple[float, float]:
    """Returns the (wall, processor) seconds of a command, which may create the folder `new`."""
    shutil.rmtree(new, ignore_errors=True)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "recordmill", *command],
        check=True,
        capture_output=True,
        env=_environment(),
    )
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def build_twice(source: Path, out: Path, imported: list[str]) -> list[float]:
    """Returns the processor seconds of the first two builds of a process.

    Args:
        source: The input.
        out: The beginning of the output paths.
        imported: Modules that the process imports before.
    """
    code = TWO_BUILDS.format(imported=imported, source=str(source), out=str(out))
    printed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=_environment()
    ).stdout
    return [float(line) for line in printed.split()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = (f"{number},name{number},{number / 7}\n" for number in range(ROWS))
        (folder / "rows.csv").write_text("id,name,x\n" + "".join(rows))
        timed(["build", str(folder / "rows.csv"), "--out", str(folder / "data")], folder / "new")
        print(f"{'':10} {'wall':>8} {'CPU':>8}")
        for command, arguments in commands(folder).items():
            found = [timed(arguments, folder / "new") for _ in range(runs + 1)][1:]
            wall, cpu = (statistics.median(column) for column in zip(*found, strict=True))
            print(f"{command:10} {wall:6.2f} s {cpu:6.2f} s")
        for imported in ([], ["numpy", "pyarrow"], ["numpy", "pyarrow", "pandas"]):
            found = [
                build_twice(folder / "rows.csv", folder / "twice", imported)
                for _ in range(runs + 1)
            ][1:]
            first, second = (statistics.median(column) for column in zip(*found, strict=True))
            print(f"first and second build, CPU, after {imported}: {first:.2f} s, {second:.2f} s")


if __name__ == "__main__":
    main()
