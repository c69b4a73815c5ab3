"""Runs benchmark jobs in turn and compares their times and memory.

Each job runs in a fresh process, which measures its start-up (imports and set-up) and its work
separately. A job is named `module:function`. The function is in this folder, takes strings, and
returns the work as a function without arguments.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Measured:
    """The measurement of one run.

    Attributes:
        start_up: The duration of imports and set-up in seconds.
        work: The duration of the work in seconds.
        peak: The largest resident memory in bytes, of the process or of a child of it.
        base: The resident memory in bytes before the work.
        cpu: The processor time of the work in seconds, with that of the system. On a busy machine
            it is more reliable than wall time.
    """

    start_up: float
    work: float
    peak: int
    base: int
    cpu: float


def job(prepare: Callable[..., Callable[[], object]], *args: str) -> None:
    """Runs one job in this process, and prints its measurement as JSON.

    Args:
        prepare: Imports and sets up, and returns the work.
        *args: The arguments of `prepare`.
    """
    started = time.perf_counter()
    work = prepare(*args)
    begun = time.perf_counter()
    base, before = resident_bytes(), _cpu_sec()
    work()
    ended, cpu = time.perf_counter(), _cpu_sec() - before
    peak = max(peak_bytes(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
    print("MEASURED", json.dumps([begun - started, ended - begun, peak, base, cpu]))


def _cpu_sec() -> float:
    """Returns the processor time of this process and its finished children in seconds."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def peak_bytes() -> int:
    """Returns the largest resident memory of this process so far.

    `ru_maxrss` is not used, because it starts with the memory of the parent process.
    """
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024


def resident_bytes() -> int:
    """Returns the resident memory of this process, with the pages of mapped files."""
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run(name: str, *args: str, python: str = sys.executable, timeout_sec: float = 3600) -> Measured:
    """Runs a job in a fresh process.

    Args:
        name: The job, `module:function`.
        *args: Its arguments.
        python: The interpreter.
        timeout_sec: The most seconds that it may take.

    Raises:
        RuntimeError: The job failed. The message contains the end of its output.
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    child = subprocess.run(
        [python, __file__, name, *args],
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_sec,
        check=False,
    )
    for line in child.stdout.splitlines():
        if line.startswith("MEASURED "):
            return Measured(*json.loads(line.removeprefix("MEASURED ")))
    raise RuntimeError(f"{name} failed:\n{child.stdout[-2000:]}\n{child.stderr[-4000:]}")


def compare(
    jobs: Mapping[str, Sequence[str]],
    rounds: int = 3,
    slow: Sequence[str] = (),
    before: Callable[[], object] = lambda: None,
    pythons: Mapping[str, str] | None = None,
) -> dict[str, Measured]:
    """Runs jobs in turn, and prints medians and the ratios to the first job.

    Args:
        jobs: The job and its arguments by the name to print.
        rounds: The number of runs of each job.
        slow: The names of jobs that run only once.
        before: Is called before each run.
        pythons: The interpreters of jobs that need another one, by name.

    Returns:
        The medians by name.
    """
    results: dict[str, list[Measured]] = {name: [] for name in jobs}
    for number in range(rounds):
        for name, command in jobs.items():
            if number == 0 or name not in slow:
                before()
                results[name].append(
                    run(*command, python=(pythons or {}).get(name, sys.executable))
                )
    medians = {
        name: Measured(
            *(
                statistics.median(getattr(one, field) for one in found)
                for field in ("start_up", "work", "peak", "base", "cpu")
            )
        )  # type: ignore[arg-type]
        for name, found in results.items()
    }
    first = next(iter(medians.values()))
    print(f"{'':44} {'start-up':>9} {'work':>9} {'ratio':>7} {'CPU':>9} {'peak':>9} {'runs':>5}")
    for name, one in medians.items():
        print(
            f"{name:44} {one.start_up:7.1f} s {one.work:7.2f} s {one.work / first.work:6.1f}x "
            f"{one.cpu:7.2f} s {one.peak / 2**20:5.0f} MiB {len(results[name]):5}"
        )
    return medians


def machine() -> str:
    """Returns a line with the hardware and the versions of the libraries."""
    import importlib.metadata as metadata

    names = ("recordmill", "numpy", "pyarrow", "apache-beam", "tensorflow", "tfx-bsl")
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, {', '.join(versions)}"


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    module, function = sys.argv[1].split(":")
    job(getattr(importlib.import_module(module), function), *sys.argv[2:])
