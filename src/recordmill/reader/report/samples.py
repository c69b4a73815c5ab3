"""Some records of a data set, drawn by its fingerprint: equal data sets give equal samples. What features take of them
on a disk, and what compression would save.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recordmill.base.arrays import Int64s
from recordmill.reader.sampling.permutation import key_of, permuted
from recordmill.records.example.encode import encode
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema

if TYPE_CHECKING:
    from recordmill.reader.dataset import Dataset

SAMPLED = 1000  # records
_AT_ONCE = 200
_AT_ONCE_BYTES = 8 << 20
_SAMPLED_BYTES = 64 << 20
_PACKED_BYTES = 1 << 20  # of a feature's values, of which the share that gzip saves is taken
_EMPTY_BYTES = 2  # a record without features


def sample_numbers(dataset: Dataset, records: int = SAMPLED) -> Int64s:
    """Numbers of so many records, or of all, ascending."""
    total = len(dataset)
    drawn = np.arange(min(records, total))
    return np.sort(permuted(drawn, total, key_of(dataset.fingerprint, "report")))


def sampled_tables(
    dataset: Dataset, numbers: Int64s, most_bytes: int = _SAMPLED_BYTES
) -> Iterator[tuple[Int64s, pa.Table]]:
    """(numbers, their records as they are stored), some at a time, until so many bytes were read."""
    taken = 0
    average = sum(file.file.stat.size_bytes for file in dataset.files) // max(sum(dataset.file_records), 1) + 1
    at_once = min(max(_AT_ONCE_BYTES // average, 1), _AT_ONCE)
    for first in range(0, len(numbers), at_once):
        some = numbers[first : first + at_once]
        table = dataset.encoded.take(some)
        yield some, table
        taken += table.nbytes
        if taken > most_bytes:
            return


@dataclass(frozen=True)
class FeatureSize:
    """Size of a feature.

    Attributes:
        feature: its name.
        record_bytes: what it takes of a record, on average.
        packed: the share that is left of it when gzip has compressed it.
    """

    feature: str
    record_bytes: float
    packed: float


def feature_sizes(dataset: Dataset, numbers: Int64s) -> tuple[FeatureSize, ...]:
    """Returns the sizes of the features of a sample's records, the largest first."""
    schema = dataset.schema
    single = [replace(schema, features=(replace(feature, required=False),), label=None) for feature in schema]
    sizes, pieces, rows = np.zeros(len(single)), [bytearray() for _ in single], 0
    for _, table in sampled_tables(dataset, numbers):
        rows += table.num_rows
        for at, one in enumerate(single):
            frames = encode(_only(table, at, one), one)
            sizes[at] += max(int(frames.lengths.sum()) - _EMPTY_BYTES * table.num_rows, 0)
            if len(pieces[at]) < _PACKED_BYTES:
                pieces[at] += frames.data[: _PACKED_BYTES - len(pieces[at])].tobytes()
    found = [
        FeatureSize(one.names[0], float(size) / max(rows, 1), _left(piece))
        for one, size, piece in zip(single, sizes, pieces, strict=True)
    ]
    return tuple(sorted(found, key=lambda one: -one.record_bytes))


def _only(table: pa.Table, at: int, schema: Schema) -> pa.RecordBatch:
    column = table.column(at).combine_chunks()
    array = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
    return pa.RecordBatch.from_arrays([array], schema=to_arrow(schema))


def _left(data: Sequence[int]) -> float:
    return len(zlib.compress(bytes(data), 6)) / len(data) if len(data) else 1.0
