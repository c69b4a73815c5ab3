"""Cost of an append of one percent of the records.

`python benchmarks/append.py [RECORDS]` prints a JSON object. The times are medians over three data
sets, with five appends to each, and one without a new input.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import recordmill

_DEFAULT_RECORDS = 4_000_000
_ROUNDS = 3
_APPENDS = 5


def write_rows(path: Path, first: int, count: int) -> None:
    """Writes a CSV file with integers, floats and texts."""
    with path.open("w") as file:
        file.write("id,price,city,note\n")
        for i in range(first, first + count):
            file.write(f"{i},{i % 9973 / 7:.3f},city {i % 500},note number {i * 7919 % 100003}\n")


def measure(work: Callable[[], Any]) -> tuple[float, float]:
    """Returns the (wall, processor) seconds of a call."""
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    work()
    wall_sec, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    return wall_sec, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(records: int) -> None:
    """Builds data sets, and appends one percent of their records several times."""
    builds, appends, idle_appends = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        added = records // 100
        write_rows(root / "all.csv", 0, records)
        more = [root / f"more-{number}.csv" for number in range(_APPENDS)]
        for number, path in enumerate(more):
            write_rows(path, records + number * added, added)
        # The first build of a process imports modules, and the later ones do not.
        write_rows(root / "warm.csv", 0, 10)
        recordmill.build(root / "warm.csv", root / "warm")
        for number in range(_ROUNDS):
            out = root / f"out-{number}"
            builds.append(measure(lambda to=out: recordmill.build(root / "all.csv", to)))
            appends += [
                measure(lambda path=path, to=out: recordmill.build(path, to, append=True))
                for path in more
            ]
            idle_appends.append(measure(lambda to=out: recordmill.build(more, to, append=True)))
    report: dict[str, Any] = {"records": records, "cores": os.cpu_count()}
    for column, unit in enumerate(("wall", "cpu")):
        build_sec, append_sec, idle_sec = (
            statistics.median(times[column] for times in measured)
            for measured in (builds, appends, idle_appends)
        )
        report[unit] = {
            "build_sec": round(build_sec, 2),
            "append_of_1_percent_sec": round(append_sec, 3),
            "share_percent": round(100 * append_sec / build_sec, 2),
            "nothing_new_sec": round(idle_sec, 3),
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else _DEFAULT_RECORDS)
