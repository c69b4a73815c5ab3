"""Compares encoders of a RecordBatch to framed Examples, on one thread, in turn.

    python benchmarks/encode.py [--rounds 21] [--megabytes 8]

The peers are tfx-bsl's RecordBatchToExamplesEncoder, and tf.train.Example in Python, both with
tf.io.TFRecordWriter. Both peers write a file, so recordmill is measured with a file, too. The limit
for large payloads is a copy of the bytes and their CRC32C. The output has medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pyarrow as pa
from harness import machine

from recordmill.base import native
from recordmill.records.example.encode import encode
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema

Case = tuple[Schema, pa.RecordBatch]
FILE, MEMORY = "ours, to a file", "ours, in memory"


def scalars(rows: int) -> Case:
    """Returns records of 12 scalars, four each of int64, float32 and string."""
    random = np.random.default_rng(0)
    words = np.array(["alpha", "beta", "gamma", "a longer category", "x"])
    columns: dict[str, tuple[str, pa.Array]] = {}
    for i in range(4):
        columns[f"int_{i}"] = ("int64", pa.array(random.integers(0, 10 ** (2 * i + 1), rows)))
        columns[f"float_{i}"] = ("float32", pa.array(random.random(rows, dtype=np.float32)))
        columns[f"string_{i}"] = (
            "string",
            pa.array(words[random.integers(0, 5, rows)]).cast(pa.large_string()),
        )
    schema = Schema(tuple(Feature(name, dtype) for name, (dtype, _) in columns.items()))
    return schema, pa.RecordBatch.from_arrays(
        [column for _, column in columns.values()], schema=to_arrow(schema)
    )


def vectors(rows: int) -> Case:
    """Returns records of 1,000 floats."""
    schema = Schema((Feature("vector", "float32", (1000,)),))
    values = pa.array(np.random.default_rng(0).random(rows * 1000, dtype=np.float32))
    return schema, pa.RecordBatch.from_arrays(
        [pa.FixedSizeListArray.from_arrays(values, 1000)], schema=to_arrow(schema)
    )


def int_lists(rows: int) -> Case:
    """Returns records of int64 lists with 0 to 200 values."""
    random = np.random.default_rng(0)
    splits = np.concatenate([[0], np.cumsum(random.integers(0, 201, rows))])
    schema = Schema((Feature("ids", "int64", (None,)),))
    values = pa.array(random.integers(0, 1_000_000, int(splits[-1])))
    return schema, pa.RecordBatch.from_arrays(
        [pa.LargeListArray.from_arrays(splits, values)], schema=to_arrow(schema)
    )


def images(rows: int) -> Case:
    """Returns records of byte strings of about 100 kB and a label."""
    random = np.random.default_rng(0)
    splits = np.concatenate([[0], np.cumsum(random.integers(80_000, 120_001, rows))])
    data = random.integers(0, 256, int(splits[-1]), dtype=np.uint8)
    schema = Schema((Feature("image", "bytes"), Feature("label", "int64")))
    column = pa.Array.from_buffers(
        pa.large_binary(), rows, [None, pa.py_buffer(splits), pa.py_buffer(data)]
    )
    return schema, pa.RecordBatch.from_arrays(
        [column, pa.array(random.integers(0, 10, rows))], schema=to_arrow(schema)
    )


# name to (function that makes n records, approximate bytes of a record)
CASES: Mapping[str, tuple[Callable[[int], Case], int]] = {
    "12 scalars": (scalars, 270),
    "1,000 floats": (vectors, 4_030),
    "int64 lists, mean 100": (int_lists, 330),
    "100 kB images": (images, 100_000),
}


def as_lists(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Converts each column to lists, as tfx-bsl requires."""
    columns = []
    for column in batch.columns:
        if pa.types.is_large_string(column.type):
            column = column.cast(pa.large_binary())
        if pa.types.is_fixed_size_list(column.type):
            columns.append(
                pa.LargeListArray.from_arrays(
                    np.arange(0, len(column) * column.type.list_size + 1, column.type.list_size),
                    column.values,
                )
            )
        elif pa.types.is_large_list(column.type):
            columns.append(column)
        else:
            columns.append(pa.LargeListArray.from_arrays(np.arange(len(column) + 1), column))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def python_examples(batch: pa.RecordBatch, rows: int) -> list[bytes]:
    """Encodes rows with tf.train.Example, as tutorials do."""
    import tensorflow as tf

    def feature(value: Any) -> Any:
        items = value if isinstance(value, list) else [value]
        if not items or isinstance(items[0], int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=items))
        if isinstance(items[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=items))
        return tf.train.Feature(
            bytes_list=tf.train.BytesList(
                value=[item.encode() if isinstance(item, str) else item for item in items]
            )
        )

    made = batch.slice(0, rows).to_pylist()
    return [
        tf.train.Example(
            features=tf.train.Features(feature={k: feature(v) for k, v in row.items()})
        ).SerializeToString()
        for row in made
    ]


def contenders(case: Case, folder: Path) -> dict[str, tuple[Callable[[], object], int]]:
    """Returns (work, number of rows that it encodes) by name."""
    import tensorflow as tf
    from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

    schema, batch = case
    lists, encoder, few = (
        as_lists(batch),
        RecordBatchToExamplesEncoder(),
        max(min(batch.num_rows, 4000) // 2, 1),
    )

    def write(records: list[bytes]) -> None:
        with tf.io.TFRecordWriter(str(folder / "peer.tfrecord")) as writer:
            for record in records:
                writer.write(record)

    def ours() -> None:
        with (folder / "ours.tfrecord").open("wb", buffering=0) as file:
            file.write(memoryview(encode(batch, schema).data))

    return {
        FILE: (ours, batch.num_rows),
        MEMORY: (lambda: encode(batch, schema), batch.num_rows),
        "tfx-bsl + TFRecordWriter": (lambda: write(encoder.encode(lists)), batch.num_rows),
        "tfx-bsl, encoder only": (lambda: encoder.encode(lists), batch.num_rows),
        "tf.train.Example in Python + TFRecordWriter": (
            lambda: write(python_examples(batch, few)),
            few,
        ),
    }


def physical_limit(case: Case) -> tuple[Callable[[], object], int]:
    """Returns work that copies the encoded bytes once and computes their CRC32C once."""
    data = encode(case[1], case[0]).data

    def work() -> None:
        native.crc32c(data.copy(), 0, native.CrcMethod.FOLDING)

    return work, case[1].num_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument(
        "--megabytes",
        type=int,
        default=8,
        help="of encoded records per batch; 8 is what a build encodes at once",
    )
    options = parser.parse_args()
    print(machine())
    for title, (make, record_bytes) in CASES.items():
        case = make(options.megabytes * 1_000_000 // record_bytes)
        with tempfile.TemporaryDirectory() as folder:
            jobs = {**contenders(case, Path(folder)), "limit: copy + CRC32C": physical_limit(case)}
            times: dict[str, list[float]] = {name: [] for name in jobs}
            # The first round is not counted. It warms up caches, compiled code and the allocator.
            for number in range(options.rounds + 1):
                for name, (work, rows) in jobs.items():
                    started = time.perf_counter()
                    work()
                    if number:
                        times[name].append((time.perf_counter() - started) / rows)
        report(
            title, len(encode(case[1], case[0]).data) / case[1].num_rows, case[1].num_rows, times
        )


def report(title: str, size: float, rows: int, times: Mapping[str, list[float]]) -> None:
    """Prints a line for each contender.

    The best time shows the speed of the code. On a busy machine, medians show mostly the load of
    other processes.
    """
    print(
        f"\n{title}: {rows:,} records of {size:,.0f} bytes\n{'':46} {'records/s':>11} {'MB/s':>7} "
        f"{'x file':>7} {'x memory':>8} {'best':>11} {'x memory':>8}"
    )
    file, memory, best = (
        statistics.median(times[FILE]),
        statistics.median(times[MEMORY]),
        min(times[MEMORY]),
    )
    for name, found in times.items():
        one, least = statistics.median(found), min(found)
        rates = (
            f"{1 / one:11,.0f} {size / one / 1e6:7,.0f} {one / file:7.2f} {one / memory:8.2f} {1 / least:11,.0f} "
            f"{least / best:8.2f}"
        )
        print(f"  {name:44} {rates}")


if __name__ == "__main__":
    main()
