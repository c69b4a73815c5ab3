"""Records as dicts, for people and for loaders that take single ones: a file and a record's number, or a batch, in.

In a dict a scalar is a Python or NumPy scalar, `str` or `bytes`; a tensor or a list is an array; what is missing is
None.

A batch of one record costs the columnar decoder hundreds of microseconds of fixed work. `parse_record` has protobuf
read an Example in tens. It only ever says what the decoder would: whatever protobuf would not write in this way, does
not fit the schema, or is long, is None here, and the caller asks the decoder, which knows all and reports what is
wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from recordmill.records.columns.conversions import Decoding
from recordmill.records.columns.numpy_arrays import to_numpy
from recordmill.records.columns.ragged import Ragged
from recordmill.records.protobuf.message import LIST_NAMES, example_class
from recordmill.schemas.feature import BYTES, EXAMPLE, FLOAT, INT64, Feature, Schema
from recordmill.shards.access import FileAccess
from recordmill.shards.loading.batches import decode_block
from recordmill.shards.pieces import FrameBlock

_MOST_BYTES = 1 << 20  # 1 MiB of a record: protobuf makes all of it anew, ninefold where names repeat
_MOST_ITEMS = 8192  # of a list: above, the decoder is quicker
_LIMITS = {
    **{f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32)},
    "uint64": (0, (1 << 63) - 1),
    "bool": (0, 1),
}

Plan = dict[str, tuple[str, Callable[[Any], Sequence[Any]], Callable[[Sequence[Any]], Any]]]


def make_record_plan(schema: Schema) -> Plan | None:
    """Returns feature to (list, its values, their reader) if each feature has one entry; else None."""
    if schema.message != EXAMPLE or any(
        feature.ragged_rank > 1 or feature.dtype in ("float16", "bfloat16") for feature in schema
    ):
        return None
    return {one.name: (kind := LIST_NAMES[one.kind], attrgetter(f"{kind}.value"), _reader(one)) for one in schema}


def parse_record(data: bytes, plan: Plan, schema: Schema, *, whole: bool) -> dict[str, Any] | None:
    """Returns the record as `Dataset` gives it, or None if the decoder has to look at it. whole: the schema is all that
    the records hold, so another feature has to be looked at; otherwise others are skipped unread.
    """
    if len(data) > _MOST_BYTES:
        return None
    try:
        message = example_class().FromString(data)
        message.DiscardUnknownFields()
        entries, values = message.features.feature, dict.fromkeys(schema.names)
        if message.ByteSize() != len(data):
            return None
        found = 0
        for name, (kind, list_of, read) in plan.items():
            if name in entries:
                entry, found = entries[name], found + 1
                listed = list_of(entry)
                if not listed and entry.WhichOneof("kind") != kind:  # a list that is not there is empty
                    return None
                values[name] = read(listed)
    except (DecodeError, ValueError):
        return None
    if whole and found < len(entries):
        return None
    is_complete = found == len(plan) or not any(feature.required and values[feature.name] is None for feature in schema)
    return values if is_complete else None


def _reader(feature: Feature) -> Callable[[Sequence[Any]], Any]:
    """A function of the list's values to the feature's value, which raises ValueError where the decoder has to look."""
    if feature.raw:
        return _raw(feature)
    least, most = _LIMITS[feature.dtype if feature.dtype in _LIMITS else "int64"]
    unit: Any = feature.timestamp[0] if feature.timestamp else None
    is_int, is_text, is_bool = feature.kind == INT64, feature.dtype == "string", feature.dtype == "bool"
    is_empty = bool(feature.ragged_rank and not feature.inner_size)
    shape = (*([-1] if feature.ragged_rank else []), *feature.inner_shape)
    stored = np.dtype(object if feature.kind == BYTES else np.int64 if is_int else feature.dtype)
    dtype = stored if not is_int else np.dtype(feature.dtype if unit is None else f"datetime64[{unit}]")

    def read_float(values: Sequence[Any]) -> Any:
        (value,) = values
        return value

    def read_scalar(values: Sequence[Any]) -> Any:
        (value,) = values
        if is_int and not least <= value <= most:
            raise ValueError(value)
        if unit is not None:
            return np.datetime64(value, unit)
        return value.decode() if is_text else bool(value) if is_bool else value

    def read_array(values: Sequence[Any]) -> Any:
        if len(values) > _MOST_ITEMS or is_empty:
            raise ValueError(len(values))
        array = np.empty(len(values), stored)
        array[:] = [value.decode() for value in values] if is_text else values
        if is_int:
            if len(array) and not (least <= array.min() and array.max() <= most):
                raise ValueError(least)
            array = array.astype(dtype, copy=False)
        return array.reshape(shape)

    return read_array if feature.shape else read_float if feature.kind == FLOAT else read_scalar


def _raw(feature: Feature) -> Callable[[Sequence[Any]], Any]:
    dtype = np.dtype(feature.dtype).newbyteorder("<")
    shape = (*([-1] if feature.ragged_rank else []), *feature.inner_shape)

    def read(values: Sequence[bytes]) -> Any:
        (blob,) = values
        array = np.frombuffer(blob, dtype)
        if feature.ragged_rank and not feature.inner_size:
            raise ValueError(blob)
        return array.reshape(shape) if feature.shape else array.reshape(()).item()

    return read


def read_row(file: FileAccess, record: int, decoding: Decoding, plan: Plan | None, *, whole: bool) -> dict[str, Any]:
    """Reads one record of a file, by the plan where there is one; whole: the schema is all that the records hold."""
    frame = file.frame(record)
    if plan is not None:
        values = parse_record(frame.payload(0).tobytes(), plan, decoding.stored, whole=whole)
        if values is not None:
            return values
    offset = file.offset(record) - int(frame.starts[0])
    (row,) = rows_of(decode_block(FrameBlock(frame, record, offset), decoding, file.file.path), decoding.schema)
    return row


def rows_of(batch: pa.RecordBatch, schema: Schema) -> Iterator[dict[str, Any]]:
    """Yields every row of a batch with the columns of the schema, in its order."""
    for row in range(batch.num_rows):
        yield {
            feature.name: value_of(column.slice(row, 1), feature)
            for feature, column in zip(schema, batch.columns, strict=True)
        }


def value_of(column: pa.Array, feature: Feature) -> Any:
    """The value of a column of one row."""
    if column.null_count:
        return None
    if not feature.shape:
        return (
            to_numpy(column, replace(feature, required=True))[0]
            if feature.timestamp or feature.dtype == "float16"
            else column[0].as_py()
        )
    value = to_numpy(column, replace(feature, required=True))[0]
    return value.to_list() if isinstance(value, Ragged) else value
