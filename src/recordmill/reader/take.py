"""Access to records by number: ranges, lists of numbers, and single records.

In the dict of a record, a scalar is a Python or NumPy scalar, `str` or `bytes`. A tensor or a list
is an array. A missing value is None.

The columnar decoder has fixed costs of some hundred microseconds per batch. For a single record,
`parse_record` lets protobuf parse the Example, in some ten microseconds. It returns only values
that the decoder would return, too. It returns None for a long record, for a record that does not
fit the schema, and for one that protobuf would write differently. The caller then uses the decoder,
which also reports errors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError

from recordmill.base.buffers import Int64s
from recordmill.base.errors import WrongTypeError
from recordmill.base.stages import time_stage
from recordmill.base.threads import thread_map
from recordmill.reader.sampling.sampler import RecordSubset
from recordmill.records.columns.conversions import Decoding
from recordmill.records.columns.numpy_arrays import iter_rows, scalar_converter
from recordmill.records.protobuf.message import LIST_NAMES, example_class
from recordmill.records.tfrecord.frames import HEADER_BYTES
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import BYTES_LIST, EXAMPLE, INT64_LIST, Feature, Schema
from recordmill.shards.loading.decode import decode_frames
from recordmill.shards.pieces import PIECE_BYTES, FrameRead, join_reads
from recordmill.shards.record_files import RecordFiles

# 1 MiB. The decoder reads longer records, because protobuf copies a record, and needs nine times
# its size if names repeat.
_MAX_RECORD_BYTES = 1 << 20
_MAX_ITEMS = 8192  # maximum length of a list; the decoder is faster for longer lists
# For runs of this length, the fixed costs of an additional read do not matter.
_LONG_RUN_RECORDS = 4096
# The decoder reports values outside of these ranges.
_INT_RANGES = {
    **{f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32)},
    "uint64": (0, (1 << 63) - 1),
    "bool": (0, 1),
}

# Feature name to:
#   * the kind of its list in the Example,
#   * a function that returns the items of this list,
#   * a function that converts the items to the value of the feature.
ParsePlan = dict[str, tuple[str, Callable[[Any], Sequence[Any]], Callable[[Sequence[Any]], Any]]]


def iter_range_reads(
    files: RecordFiles,
    start: int,
    stop: int,
    *,
    piece_records: int | None = None,
    subset: RecordSubset | None = None,
) -> Iterator[FrameRead]:
    """Yields deferred reads of records [start, stop), in order.

    Args:
        start: Number of the first record among all files.
        stop: Number after the last record.
        piece_records: Maximum number of records of a read. None means no limit.
        subset: Reads without a record of this subset are left out. If None, all are kept.
    """
    ends = files.ends

    def has_any(begin: int, end: int) -> bool:
        return subset is None or bool(np.diff(subset.count_below(np.array([begin, end])))[0])

    for ordinal in range(int(np.searchsorted(ends, start, "right")), len(files)):
        first = int(ends[ordinal - 1]) if ordinal else 0
        if first >= stop:
            return
        begin, end = max(start - first, 0), min(stop, int(ends[ordinal])) - first
        if begin < end and has_any(first + begin, first + end):
            yield from files[ordinal].iter_reads(
                begin,
                end,
                piece_records=piece_records,
                is_needed=lambda low, high, first=first: has_any(first + low, first + high),  # type: ignore[misc]
            )


def iter_head_reads(files: RecordFiles, records: int) -> Iterator[FrameRead]:
    """Yields deferred reads of the first records of all files, in order.

    The records of a file are not counted first. Nothing after the requested records is read.
    """
    for file in files:
        for read in file.iter_first_reads(records):
            yield read
            # A file without an index is streamed, so this read returns frames that are in memory.
            if file.file.info is None:
                records -= read().records
        if file.file.info is not None:
            records -= file.records
        if records <= 0:
            return


def take_first_rows(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yields batches with the first `rows` rows. Requests no batch after them."""
    for batch in batches:
        yield batch.slice(0, rows)
        rows -= batch.num_rows
        if rows <= 0:
            return


def resolve_record_numbers(records: Sequence[int] | npt.NDArray[Any], total: int) -> Int64s:
    """Converts negative record numbers, which count from the end, and checks all numbers.

    Returns:
        Numbers in [0, total).

    Raises:
        WrongTypeError: `records` is not a list of integers.
        IndexError: A number is out of range.

    >>> resolve_record_numbers([0, -1], 10).tolist()
    [0, 9]
    """
    numbers = np.asarray(records)
    if numbers.dtype == np.bool_ and numbers.ndim == 1 and numbers.size:
        raise WrongTypeError(
            f"a bool for each record is a condition: ds.filter(mask) gives its records, not {records!r}"
        )
    if (
        numbers.dtype == np.bool_
        or (numbers.size and numbers.dtype.kind not in "iu")
        or numbers.ndim != 1
    ):
        raise WrongTypeError(
            f"records are addressed by a number, a slice or a list of numbers, not by {records!r:.99}"
        )
    numbers = numbers.astype(np.int64)
    if len(outside := numbers[(numbers < -total) | (numbers >= total)]):
        raise IndexError(f"record {outside[0]} of {total}")
    return numbers % max(total, 1)


def take_rows(files: RecordFiles, numbers: Int64s, decoding: Decoding, threads: int) -> pa.Table:
    """Reads records by number, in the given order.

    Args:
        numbers: Record numbers among all files. They may repeat.
        decoding: The conversion of payloads to columns.
        threads: Number of threads that read and decode.

    Raises:
        DataError: A record is damaged or does not fit the schema.
    """
    # each record is read once, in the order of the files, and then copied to its positions
    distinct, back = np.unique(numbers, return_inverse=True)
    batches = thread_map(
        lambda read: decode_frames(read(), decoding),
        _iter_reads_by_number(files, distinct),
        threads,
    )
    table = pa.Table.from_batches(batches, to_arrow(decoding.schema))
    return table.take(pa.array(back.reshape(-1)))


def read_columns(
    files: RecordFiles, numbers: Int64s, decoding: Decoding, *, use_mapping: bool = True
) -> pa.RecordBatch:
    """Reads the columns of some records, in the order of `numbers`.

    The columns have their stored names.

    Args:
        use_mapping: See `RecordFiles.frames`.

    Raises:
        DataError: A record is damaged or does not fit the schema. The error names its file, record
            and offset.
    """
    frames = files.frames(numbers, use_mapping=use_mapping)
    frames.raise_damage()
    with time_stage("decode"):
        return decoding.decode(
            frames.data, frames.starts + HEADER_BYTES, frames.lengths, location=frames.location
        )


def _iter_reads_by_number(files: RecordFiles, numbers: Int64s) -> Iterator[FrameRead]:
    """Yields deferred reads of the records with these numbers, in order.

    Long runs of consecutive records are read as pieces, and small pieces together. Other frames are
    copied one by one into a buffer, so that many of them share the fixed costs of a read.

    Args:
        numbers: Ascending record numbers.
    """
    if not len(numbers):
        return
    breaks = np.flatnonzero(np.diff(numbers) > 1) + 1
    is_long = np.diff(breaks, prepend=0, append=len(numbers)) >= _LONG_RUN_RECORDS
    # short runs that follow each other stay in one group
    for group in np.split(numbers, breaks[is_long[1:] | is_long[:-1]]):
        first, last = int(group[0]), int(group[-1])
        if last - first < len(group):
            yield from join_reads(iter_range_reads(files, first, last + 1))
        else:
            for part in files.split(group, PIECE_BYTES):
                yield partial(files.frames, part)


def make_parse_plan(schema: Schema) -> ParsePlan | None:
    """Returns the plan with which `parse_record` parses the features of a schema.

    None if a feature needs the decoder.
    """
    if schema.message != EXAMPLE or any(
        feature.ragged_rank > 1 or feature.dtype in ("float16", "bfloat16") for feature in schema
    ):
        return None
    plan: ParsePlan = {}
    for feature in schema:
        kind = LIST_NAMES[feature.kind]
        plan[feature.name] = (kind, attrgetter(f"{kind}.value"), _value_reader(feature))
    return plan


def parse_record(
    data: bytes, plan: ParsePlan, schema: Schema, *, is_full_schema: bool
) -> dict[str, Any] | None:
    """Parses one payload with protobuf.

    Args:
        data: The payload.
        plan: The plan of the schema.
        schema: The features to return.
        is_full_schema: True if the schema contains all features of the records. Then any other
            feature needs the decoder. Otherwise other features are skipped.

    Returns:
        The values by feature name, or None if the decoder has to parse the record.
    """
    if len(data) > _MAX_RECORD_BYTES:
        return None
    try:
        message = example_class().FromString(data)
        # The size is unchanged only if protobuf would write the record in the same way: without
        # unknown fields, repeated names or values that are split over several lists.
        message.DiscardUnknownFields()
        entries, values = message.features.feature, dict.fromkeys(schema.names)
        if message.ByteSize() != len(data):
            return None
        num_found = 0
        for name, (kind, list_of, read) in plan.items():
            if name in entries:
                entry, num_found = entries[name], num_found + 1
                items = list_of(entry)
                # an entry without any list reads as an empty list of each kind
                if not items and entry.WhichOneof("kind") != kind:
                    return None
                values[name] = read(items)
    except (DecodeError, ValueError):
        return None
    # a feature that the schema does not have is an error, which the decoder reports
    if is_full_schema and num_found < len(entries):
        return None
    is_complete = num_found == len(plan) or not any(
        feature.required and values[feature.name] is None for feature in schema
    )
    return values if is_complete else None


def _value_reader(feature: Feature) -> Callable[[Sequence[Any]], Any]:
    """Returns a function that converts a list to the value of a feature.

    The function raises ValueError if the record is left to the decoder.
    """
    if feature.raw:
        return _raw_reader(feature)
    min_value, max_value = _INT_RANGES[feature.dtype if feature.dtype in _INT_RANGES else "int64"]
    unit: Any = feature.timestamp[0] if feature.timestamp else None
    is_int, is_text = feature.kind == INT64_LIST, feature.dtype == "string"
    to_scalar = scalar_converter(feature)
    is_empty = bool(feature.ragged_rank and not feature.inner_size)
    shape = (*([-1] if feature.ragged_rank else []), *feature.inner_shape)
    stored = np.dtype(
        object if feature.kind == BYTES_LIST else np.int64 if is_int else feature.dtype
    )
    dtype = (
        stored if not is_int else np.dtype(feature.dtype if unit is None else f"datetime64[{unit}]")
    )

    def read_scalar(values: Sequence[Any]) -> Any:
        (value,) = values
        return to_scalar(value)

    def read_int(values: Sequence[Any]) -> Any:
        (value,) = values
        if not min_value <= value <= max_value:
            raise ValueError(value)
        return to_scalar(value)

    def read_array(values: Sequence[Any]) -> Any:
        if len(values) > _MAX_ITEMS or is_empty:
            raise ValueError(len(values))
        array = np.empty(len(values), stored)
        array[:] = [value.decode() for value in values] if is_text else values
        if is_int:
            if len(array) and not (min_value <= array.min() and array.max() <= max_value):
                raise ValueError(min_value)
            array = array.astype(dtype, copy=False)
        return array.reshape(shape)

    return read_array if feature.shape else read_int if is_int else read_scalar


def _raw_reader(feature: Feature) -> Callable[[Sequence[Any]], Any]:
    dtype = np.dtype(feature.dtype).newbyteorder("<")
    shape = (*([-1] if feature.ragged_rank else []), *feature.inner_shape)
    to_scalar = scalar_converter(feature)

    def read(values: Sequence[bytes]) -> Any:
        (blob,) = values
        array = np.frombuffer(blob, dtype)
        if feature.ragged_rank and not feature.inner_size:
            raise ValueError(blob)
        return array.reshape(shape) if feature.shape else to_scalar(array.reshape(()).item())

    return read


def read_row(
    files: RecordFiles,
    number: int,
    decoding: Decoding,
    plan: ParsePlan | None,
    *,
    is_full_schema: bool,
) -> dict[str, Any]:
    """Reads one record as a dict.

    Args:
        number: Number of the record among all files.
        decoding: The conversion of payloads to columns.
        plan: The plan for `parse_record`. If None, the decoder is always used.
        is_full_schema: True if the schema contains all features of the records.

    Raises:
        DataError: The record is damaged or does not fit the schema.
    """
    frame = files.frame(number)
    if plan is not None:
        values = parse_record(
            frame.payload(0).tobytes(), plan, decoding.stored_schema, is_full_schema=is_full_schema
        )
        if values is not None:
            return values
    (row,) = iter_rows(decode_frames(frame, decoding), decoding.schema)
    return row


def to_map_style(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows as records of a map-style data set.

    In a process that uses PyTorch, the records are dicts of a type for its default collation.
    Errors of the collation then name the feature.
    """
    if "torch.utils.data" not in sys.modules:
        return list(rows)
    make_records = import_module("recordmill.reader.torch.records").make_records
    return make_records(rows)
