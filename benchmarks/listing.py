"""What a driver holds of very many input files, listed as a build lists them, and how large they are as the list that
workers read slices of.

python benchmarks/listing.py [FILES]    1,000,000 unless it is told
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from recordmill.sources.inputs.tables import FileTable
from recordmill.storage.listing import list_inputs

IN_FOLDER = 1_000

Value = TypeVar("Value")


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder), count)
        listing = measured("listed", count, lambda: list_inputs([folder], data_extensions={"csv"}))
        size = len(pickle.dumps(FileTable.of(listing.files)))
        print(f"as a list of columns, of which workers read slices: {size / count:.0f} bytes a file")


def make_files(folder: Path, count: int) -> None:
    """Empty CSV files, so many in each folder."""
    for first in range(0, count, IN_FOLDER):
        inner = folder / f"{first // IN_FOLDER:06d}"
        inner.mkdir()
        for number in range(first, min(first + IN_FOLDER, count)):
            os.close(os.open(inner / f"part-{number:09d}.csv", os.O_CREAT | os.O_WRONLY))


def measured(what: str, count: int, make: Callable[[], Value]) -> Value:
    gc.collect()
    before, started = resident(), time.monotonic()
    value = make()
    seconds = time.monotonic() - started
    gc.collect()
    print(f"{what}: {seconds:.1f} s, {(resident() - before) / count:.0f} bytes of memory a file")
    return value


def resident() -> int:
    """Bytes that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
