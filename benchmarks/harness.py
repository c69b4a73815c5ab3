"""Timing side by side: jobs run in turn, each in a process of its own that tells its start-up
(imports) and its work apart.

A job is a function of this folder named `module:function` with string arguments. Peak memory is the
kernel's own figure of the child.
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
    """Measurement of one run.

    Attributes:
        start_up: seconds.
        work: seconds.
        peak: bytes of resident memory.
        base: of them, before the work began.
        cpu: seconds of processors that the work took, the system's included; on a busy machine they
            say more than wall time.
    """

    start_up: float
    work: float
    peak: int
    base: int
    cpu: float


def job(prepare: Callable[..., Callable[[], object]], *args: str) -> None:
    """Runs in the child: imports and set-up, then the work, then one JSON line."""
    started = time.perf_counter()
    work = prepare(*args)
    begun = time.perf_counter()
    base, before = resident_bytes(), _cpu_sec()
    work()
    ended, cpu = time.perf_counter(), _cpu_sec() - before
    peak = max(peak_bytes(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
    print("MEASURED", json.dumps([begun - started, ended - begun, peak, base, cpu]))


def _cpu_sec() -> float:
    """Returns the processor time of this process and its children so far."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def peak_bytes() -> int:
    """The most that this process has held in memory; ru_maxrss would begin with what its parent
    held.
    """
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024


def resident_bytes() -> int:
    """Returns the memory of this process now, pages of mapped files included."""
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run(name: str, *args: str, python: str = sys.executable, timeout_sec: float = 3600) -> Measured:
    """Run `module:function` with args in a fresh process; python: of which interpreter."""
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
    """Run the jobs in turn, `rounds` times (those in `slow` once), and print medians and ratios to
    the first; pythons: interpreters of some of them.
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
    """One line about where this ran."""
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
