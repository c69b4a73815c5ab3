"""Records as dicts, for people and for loaders that take single ones: a file and a record's number, or a batch, in.

In a dict a scalar is a Python or NumPy scalar, `str` or `bytes`; a tensor or a list is an array; what is missing is
None.

A batch of one record costs the columnar decoder hundreds of microseconds of fixed work. `parse_record` reads the plain
way in which nearly every writer writes an Example, without arrays or kernels, in tens. It only ever says what the
decoder would: whatever is not written plainly, does not fit the schema, or is long, is None here, and the caller asks
the decoder, which knows all and reports what is wrong. Encoding: protobuf's wire format of tensorflow.Example
(feature.proto).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.records.columns.conversions import Decoding
from recordmill.records.columns.numpy_arrays import to_numpy
from recordmill.records.columns.ragged import Ragged
from recordmill.schemas.feature import BYTES, EXAMPLE, FLOAT, Feature, Schema
from recordmill.shards.access import FileAccess
from recordmill.shards.loading.batches import decode_block
from recordmill.shards.pieces import FrameBlock

_TAGS = {BYTES: 0x0A, FLOAT: 0x12, "int64": 0x1A}  # the fields of Feature: bytes_list, float_list, int64_list
_LIST = 0x0A  # the field `value` of each list, packed for numbers
_MOST_INTS = 512  # bytes of packed ints: above, the decoder is quicker
_LIMITS = {
    **{f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32)},
    "uint64": (0, (1 << 63) - 1),
    "bool": (0, 1),
}

Plan = dict[bytes, tuple[str, int, Callable[[bytes, int, int], Any]]]


class _NotPlain(Exception):
    """The decoder has to look at it."""


def make_record_plan(schema: Schema) -> Plan | None:
    """Entry name to (feature, tag, reader) for schemas whose features have one entry each; None for others."""
    if schema.message != EXAMPLE or any(
        feature.ragged_rank > 1 or feature.dtype in ("float16", "bfloat16") for feature in schema
    ):
        return None
    return {feature.name.encode(): (feature.name, _TAGS[feature.kind], _reader(feature)) for feature in schema}


def parse_record(data: bytes, plan: Plan, schema: Schema, *, whole: bool) -> dict[str, Any] | None:
    """Returns the record as `Dataset` gives it, or None if the decoder has to look at it.

    Args:
        data: the payload.
        plan: of the features that are read.
        schema: the features.
        whole: the schema is all that the records hold, so another feature has to be looked at; otherwise others are
            skipped unread.
    """
    values: dict[str, Any] = {}
    try:
        if data:
            _parse(data, plan, values, whole)
        if len(values) < len(plan) and any(feature.required and feature.name not in values for feature in schema):
            return None
    except (_NotPlain, IndexError, ValueError, struct.error):
        return None
    return {feature.name: values.get(feature.name) for feature in schema}


def _parse(data: bytes, plan: Plan, values: dict[str, Any], whole: bool) -> None:
    at, end = _field(data, 0, 0x0A, len(data))
    if end != len(data):
        raise _NotPlain
    while at < end:
        at, entry_end = _field(data, at, 0x0A, end)
        at, key_end = _field(data, at, 0x0A, entry_end)
        name = data[at:key_end]
        if (wanted := plan.get(name)) is not None:
            feature, tag, read = wanted
            if feature in values:
                raise _NotPlain  # the last of several counts
            at, value_end = _field(data, key_end, 0x12, entry_end)
            at, list_end = _field(data, at, tag, value_end)
            if not list_end == value_end == entry_end:
                raise _NotPlain
            values[feature] = read(data, at, list_end)
        elif whole:
            raise _NotPlain
        else:
            name.decode()  # which must be UTF-8 (a ValueError, if it is not), wanted or not
        at = entry_end


def _field(data: bytes, at: int, tag: int, limit: int) -> tuple[int, int]:
    """Returns (start, end) of the content of a length-delimited field that must stand at `at` and end by limit."""
    if data[at] != tag:
        raise _NotPlain
    length = data[at + 1]
    at += 2
    if length > 0x7F:
        length, at = _varint(data, at - 1)
    if at + length > limit:
        raise _NotPlain
    return at, at + length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise _NotPlain


def _reader(feature: Feature) -> Callable[[bytes, int, int], Any]:
    """A function of (data, start, end) of the list's content to the feature's value."""
    items: Callable[[bytes, int, int], Any]
    if feature.raw:
        return _raw(feature)
    if feature.kind == BYTES:
        items = _texts if feature.dtype == "string" else _blobs
    else:
        items = (
            _floats
            if feature.kind == FLOAT
            else _ints(*_LIMITS[feature.dtype if feature.dtype in _LIMITS else "int64"])
        )
    if not feature.shape:
        return _scalar(feature, items)
    return _array(feature, items)


def _scalar(feature: Feature, items: Callable[[bytes, int, int], Any]) -> Callable[[bytes, int, int], Any]:
    unit: Any = feature.timestamp[0] if feature.timestamp else None

    def read(data: bytes, at: int, end: int) -> Any:
        (value,) = items(data, at, end)
        if unit is not None:
            return np.datetime64(value, unit)
        return bool(value) if feature.dtype == "bool" else value

    return read


def _array(feature: Feature, items: Callable[[bytes, int, int], Any]) -> Callable[[bytes, int, int], Any]:
    dtype = (
        object
        if feature.kind == BYTES
        else f"datetime64[{feature.timestamp[0]}]"
        if feature.timestamp
        else feature.dtype
    )
    shape = (*([-1] if feature.ragged_rank else []), *feature.inner_shape)

    def read(data: bytes, at: int, end: int) -> Any:
        values = items(data, at, end)
        if feature.ragged_rank and not feature.inner_size:
            raise _NotPlain
        array = np.empty(len(values), dtype)
        array[:] = values
        return array.reshape(shape)

    return read


def _raw(feature: Feature) -> Callable[[bytes, int, int], Any]:
    dtype = np.dtype(feature.dtype).newbyteorder("<")
    shape = (*([-1] if feature.ragged_rank else []), *feature.inner_shape)

    def read(data: bytes, at: int, end: int) -> Any:
        (blob,) = _blobs(data, at, end)
        array = np.frombuffer(blob, dtype)
        if feature.ragged_rank and not feature.inner_size:
            raise _NotPlain
        return array.reshape(shape) if feature.shape else array.reshape(()).item()

    return read


def _blobs(data: bytes, at: int, end: int) -> list[bytes]:
    values = []
    while at < end:
        at, value_end = _field(data, at, _LIST, end)
        values.append(data[at:value_end])
        at = value_end
    return values


def _texts(data: bytes, at: int, end: int) -> list[str]:
    return [blob.decode() for blob in _blobs(data, at, end)]


def _floats(data: bytes, at: int, end: int) -> Any:
    if at == end:
        return ()
    at, list_end = _field(data, at, _LIST, end)
    if list_end != end:
        raise _NotPlain
    if end - at == 4:
        return struct.unpack_from("<f", data, at)
    return np.frombuffer(data[at:end], "<f4")


def _ints(least: int, most: int) -> Callable[[bytes, int, int], list[int]]:
    def read(data: bytes, at: int, end: int) -> list[int]:
        if at == end:
            return []
        at, list_end = _field(data, at, _LIST, end)
        if list_end != end or end - at > _MOST_INTS:
            raise _NotPlain
        values = []
        while at < end:
            value, at = _varint(data, at)
            if value >= 1 << 63:
                value -= 1 << 64
            if not least <= value <= most:
                raise _NotPlain
            values.append(value)
        if at != end:
            raise _NotPlain
        return values

    return read


def read_row(file: FileAccess, record: int, decoding: Decoding, plan: Plan | None, *, whole: bool) -> dict[str, Any]:
    """Reads one record of a file.

    Args:
        plan: the quick way, where there is one.
        whole: the schema is all that the records hold.

    Raises:
        DataError: it is damaged, or does not fit the schema.
    """
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
