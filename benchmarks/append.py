"""Cost of an append: one percent of the records, and many parts.

`python benchmarks/append.py [RECORDS]` prints one JSON object per measurement.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import recordmill

_DEFAULT_RECORDS = 4_000_000


def write_rows(path: Path, first: int, count: int) -> None:
    """Writes a CSV file with integers, floats and texts."""
    with path.open("w") as file:
        file.write("id,price,city,note\n")
        for i in range(first, first + count):
            file.write(f"{i},{i % 9973 / 7:.3f},city {i % 500},note number {i * 7919 % 100003}\n")


def measure(work: Callable[[], Any]) -> float:
    """Returns the duration of a call in seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main(records: int) -> None:
    """Builds a data set, and appends one percent of its records five times."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        added = records // 100
        write_rows(root / "all.csv", 0, records)
        out = root / "out"
        # The first build of a process imports Beam, and the later ones do not.
        write_rows(root / "warm.csv", 0, 10)
        recordmill.build(root / "warm.csv", root / "warm")
        build_sec = measure(lambda: recordmill.build(root / "all.csv", out))
        append_sec = []
        for number in range(5):
            path = root / f"more-{number}.csv"
            write_rows(path, records + number * added, added)
            append_sec.append(measure(lambda p=path: recordmill.build(p, out, append=True)))
        median_sec = sorted(append_sec)[2]
        nothing_sec = measure(lambda: recordmill.build(path, out, append=True))
        print(
            json.dumps(
                {
                    "records": records,
                    "cores": os.cpu_count(),
                    "build_sec": round(build_sec, 2),
                    "append_of_1_percent_sec": round(median_sec, 3),
                    "share_percent": round(100 * median_sec / build_sec, 2),
                    "nothing_new_sec": round(nothing_sec, 3),
                }
            )
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else _DEFAULT_RECORDS)
