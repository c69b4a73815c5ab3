"""Writes a CSV file of mixed columns.

    python benchmarks/make_csv.py OUT.csv [ROWS]

There are 1,000,000 rows by default, of about 111 bytes. Equal arguments give equal bytes. The
twelve columns are three of integers, five of decimals, two texts, a timestamp, and a label of ten
classes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_BATCH_ROWS = 100_000


def make_batches(rows: int, seed: int = 7) -> Iterator[pa.RecordBatch]:
    """Yields the rows in batches of 100,000."""
    random = np.random.default_rng(seed)
    for start in range(0, rows, _BATCH_ROWS):
        yield _batch(start, min(_BATCH_ROWS, rows - start), random)


def _batch(start: int, rows: int, random: np.random.Generator) -> pa.RecordBatch:
    ids = np.arange(start, start + rows)
    seconds = 1_577_836_800 + random.integers(0, 126_230_400, rows)  # 2020 .. 2023
    names = pa.array([f"user-{number:05d}" for number in range(50_000)])
    words = pa.array([f"{one} {other}" for one in CLASSES for other in CLASSES])
    columns = {
        "id": ids,
        "count": random.integers(0, 1000, rows),
        "code": random.integers(-2_000_000_000, 2_000_000_000, rows),
        **{
            f"x{index}": np.round(random.standard_normal(rows) * 10**index, 5 - index)
            for index in range(4)
        },
        "ratio": np.round(random.random(rows), 6),
        "user": names.take(pa.array(random.integers(0, len(names), rows))),
        "comment": words.take(pa.array(random.integers(0, len(words), rows))),
        "time": pa.array(seconds.astype("datetime64[s]")),
        "label": pa.array(CLASSES).take(pa.array(random.integers(0, len(CLASSES), rows))),
    }
    return pa.RecordBatch.from_pydict(columns)


def write_csv(path: str, rows: int, seed: int = 7) -> None:
    """Writes the CSV file."""
    batches = make_batches(rows, seed)
    first = next(batches)
    with csv.CSVWriter(
        path, first.schema, write_options=csv.WriteOptions(quoting_style="none")
    ) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


if __name__ == "__main__":
    write_csv(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
