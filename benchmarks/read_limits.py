"""What foreign TFRecords cost at least: a Numba loop written for the one table of `make_csv.py`, on two threads.

It makes the checks that recordmill makes: both CRCs of each record (by the same kernel), every name, kind and number of
values, and that text is text. It knows the names and their order beforehand, stops at the first record that is written
otherwise, and knows no other data.
"""

from __future__ import annotations

import glob
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NAMES = ("code", "comment", "count", "id", "label", "ratio", "time", "user", "x0", "x1", "x2", "x3")
KINDS = np.array([3, 1, 3, 3, 1, 2, 3, 1, 2, 2, 2, 2])
_KEYS = np.frombuffer("".join(NAMES).encode(), np.uint8)
_ENDS = np.cumsum([0, *map(len, NAMES)])
Work = Callable[[], object]


@numba.njit(nogil=True, cache=True)
def _parse(data, starts, lengths, keys, ends, kinds, ints, floats, offsets, texts):  # type: ignore[no-untyped-def]
    """Fill the columns; gives the number of records that were as expected. Every length here is below 128 or, of the
    whole record, below 16,384.
    """
    held = np.zeros(len(offsets), np.int64)
    for row in range(len(starts)):
        at, end = starts[row] + 12, starts[row] + 12 + lengths[row]
        if data[at] != 0x0A:
            return row
        at += 3 if data[at + 1] & 0x80 else 2
        i = f = t = 0
        for column in range(len(kinds)):
            size = ends[column + 1] - ends[column]
            if at + size + 8 > end or data[at] != 0x0A or data[at + 2] != 0x0A or data[at + 3] != size:
                return row
            behind = at + 2 + data[at + 1]
            for n in range(size):
                if data[at + 4 + n] != keys[ends[column] + n]:
                    return row
            at += 4 + size
            kind = kinds[column]
            if data[at] != 0x12 or data[at + 2] != (kind << 3 | 2) or data[at + 4] != 0x0A or behind > end:
                return row
            at += 6
            if kind == 3:
                value = shift = 0
                while data[at] & 0x80 and shift < 63:
                    value |= np.int64(data[at] & 0x7F) << shift
                    shift += 7
                    at += 1
                ints[i, row] = value | np.int64(data[at]) << shift
                i, at = i + 1, at + 1
            elif kind == 2:
                floats[f, row] = (
                    np.uint32(data[at])
                    | np.uint32(data[at + 1]) << 8
                    | np.uint32(data[at + 2]) << 16
                    | np.uint32(data[at + 3]) << 24
                )
                f, at = f + 1, at + 4
            else:
                while at < behind:
                    if not 0x20 <= data[at] < 0x7F:
                        return row
                    texts[t, held[t]] = data[at]
                    held[t] += 1
                    at += 1
                offsets[t, row + 1] = held[t]
                t += 1
            if at != behind:
                return row
        if at != end:
            return row
    return len(starts)


def _table(path: str) -> pa.Table:
    from recordmill.records.tfrecord.frames import scan

    data = np.fromfile(path, np.uint8)
    frames, _ = scan(data, source=path, final=True)
    rows = len(frames)
    ints, floats = np.empty((4, rows), np.int64), np.empty((5, rows), np.uint32)
    offsets, texts = np.zeros((3, rows + 1), np.int64), np.empty((3, len(data) // 3), np.uint8)
    assert _parse(data, frames.starts, frames.lengths, _KEYS, _ENDS, KINDS, ints, floats, offsets, texts) == rows
    columns, number, real, text = [], iter(ints), iter(floats), iter(zip(offsets, texts, strict=True))
    for kind in KINDS:
        if kind == 1:
            ends, values = next(text)
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(values)]
            columns.append(pa.Array.from_buffers(pa.large_string(), rows, buffers))
        else:
            columns.append(pa.array(next(number) if kind == 3 else next(real).view(np.float32)))
    return pa.table(columns, list(NAMES))


def _tables(source: str) -> Iterator[pa.Table]:
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(_table, sorted(glob.glob(f"{source}/*.tfrecord")))


def foreign_limit(source: str, out: str, to: str) -> Work:
    """The table to one Parquet file as recordmill compresses it, or to arrays in memory."""
    _table(sorted(glob.glob(f"{source}/*.tfrecord"))[0])  # compiled code comes from the cache

    def parquet() -> None:
        writer: Any = None
        for table in _tables(source):
            options = {"compression": "zstd", "compression_level": 1}
            texts = [name for name, kind in zip(NAMES, KINDS, strict=True) if kind != 2]
            writer = writer or pq.ParquetWriter(out, table.schema, use_dictionary=texts, **options)
            writer.write_table(table)
        writer.close()

    def memory() -> object:
        table = pa.concat_tables(_tables(source))
        return {name: table[name].to_numpy() for name in NAMES}

    shutil.rmtree(out, ignore_errors=True)
    return parquet if to == "parquet" else memory
