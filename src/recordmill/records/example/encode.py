"""A RecordBatch to framed `tf.train.Example` or `tf.train.SequenceExample` records, column by column, with both CRCs,
in one buffer: the way from batches to records. The way back is `records.example.decode`.

Flat arrays of all entries go through two passes of the native library: sizes, then bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s, allocate
from recordmill.base.errors import DataError
from recordmill.records.example.flat_arrays import Flat, to_flat
from recordmill.records.protobuf.message import encoded_varint
from recordmill.records.tfrecord.frames import HEADER_BYTES, Frames, frame_payloads, pack_spans
from recordmill.schemas.arrow import arrow_type
from recordmill.schemas.feature import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    OPAQUE_BYTES,
    SEQUENCE_EXAMPLE,
    Feature,
    Schema,
)

PROTOBUF_LIMIT_BYTES = (
    1 << 31
)  # protobuf refuses a message of 2 GiB and more, when it writes and when it reads
_CHUNK_BYTES = 16  # heads and the result have room for a whole one more
_LISTS_TAG = (
    0x12  # of a SequenceExample's feature lists; its context has the tag of an Example's features
)

# the fields of an `example_column` of the native library, and its five arrays
Planned = tuple[tuple[int, int, int], list[npt.NDArray[Any]]]

_NOTHING = np.empty(0, np.uint8)  # in place of an array that a column does not have

TAGS = {BYTES_LIST: b"\x0a", FLOAT_LIST: b"\x12", INT64_LIST: b"\x1a"}


def encode_flat(flats: Sequence[Flat], rows: int) -> Frames:
    """Framed Examples from the flat arrays of all their entries, in any order."""
    named = sorted(((flat.storage.name.encode(), flat) for flat in flats), key=lambda one: one[0])
    return _encode_planned([_plan_column(flat, _key(name)) for name, flat in named], rows)


def _encode_planned(planned: Sequence[Planned], rows: int) -> Frames:
    columns = np.array([column for column, _ in planned], np.int64).reshape(-1)
    parts = [part for _, arrays in planned for part in arrays]
    kept = allocate(len(planned) * rows, np.int64)
    sizes, starts, lengths = (allocate(rows, np.int64) for _ in range(3))
    total = native.size_examples(columns, parts, kept, sizes, starts, lengths)
    _check_sizes(lengths)
    out = allocate(total + _CHUNK_BYTES, np.uint8)
    crcs = allocate(rows, np.uint32)
    native.write_examples(columns, parts, kept, sizes, starts, lengths, out, crcs)
    return Frames(out[:total], starts, lengths, crcs)


def _check_sizes(lengths: Int64s) -> None:
    if len(lengths) and (longest := int(lengths.max())) >= PROTOBUF_LIMIT_BYTES:
        raise DataError(
            f"the record has {longest} bytes and protobuf's limit is 2 GiB",
            place=f"row {int(lengths.argmax())}",
        )


def _key(name: bytes) -> bytes:
    """Returns what stands before the value's length in a map's entry."""
    return b"\x0a" + encoded_varint(len(name)) + name + b"\x12"


def _plan_column(flat: Flat, key: bytes) -> Planned:
    """Plans a column of features; without a key they are steps, which have no names."""
    kind, way, length = flat.storage.kind, _way(flat), flat.length
    heads, head_bytes = [key], len(key)
    if way == native.EntryKind.ONE_INT:
        heads = [_head(key, INT64_LIST, size) for size in range(11)]
    elif way == native.EntryKind.CONSTANT_SIZE:
        length = flat.width if kind == BYTES_LIST else flat.length * flat.values.dtype.itemsize
        heads = [_head(key, kind, length)]
        head_bytes = len(heads[0])
    arrays = (flat.valid, flat.splits, flat.values, flat.value_splits, _padded(heads))
    return (way, length, head_bytes), [
        _NOTHING if a is None else np.ascontiguousarray(a) for a in arrays
    ]


def _way(flat: Flat) -> int:
    fixed = flat.splits is None
    if flat.storage.kind == INT64_LIST:
        if not fixed or flat.length > 1:
            return native.EntryKind.INTS
        return native.EntryKind.ONE_INT if flat.length else native.EntryKind.CONSTANT_SIZE
    if flat.storage.kind == FLOAT_LIST:
        return native.EntryKind.CONSTANT_SIZE if fixed else native.EntryKind.FLOATS
    return (
        native.EntryKind.CONSTANT_SIZE
        if fixed and flat.length == 1 and flat.value_splits is None
        else native.EntryKind.TEXTS
    )


def _head(key: bytes, kind: str, data_bytes: int) -> bytes:
    """An entry's bytes before its data: its one byte string, or its packed numbers (none at all if there are none)."""
    inner = b"" if data_bytes == 0 and kind != BYTES_LIST else b"\x0a" + encoded_varint(data_bytes)
    listed = TAGS[kind] + encoded_varint(len(inner) + data_bytes) + inner
    if not key:
        return listed
    entry = key + encoded_varint(len(listed) + data_bytes) + listed
    return b"\x0a" + encoded_varint(len(entry) + data_bytes) + entry


def _padded(heads: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    """Returns byte strings with the same room each, so that copying whole chunks stays within their memory."""
    room = (max(map(len, heads)) // _CHUNK_BYTES + 1) * _CHUNK_BYTES
    return np.frombuffer(b"".join(head.ljust(room, b"\0") for head in heads), np.uint8)


def encode_sequences(batch: pa.RecordBatch, schema: Schema) -> Frames:
    """Returns the batch's rows as framed SequenceExamples, as `encode` does. A null is a feature or a feature list that
    the record does not have; a null step is a Feature without a list; names stand in bytewise order.
    """
    if schema.message != SEQUENCE_EXAMPLE:
        raise ValueError(
            f"these are {schema.message} records; this function makes SequenceExamples"
        )
    names = batch.schema.names
    if sorted(names) != sorted(schema.names):
        raise ValueError(
            f"the batch has the columns {sorted(names)} and the schema the features {sorted(schema.names)}; "
            "select or rename"
        )
    rows, columns = batch.num_rows, dict(zip(names, batch.columns, strict=True))
    context = [
        flat
        for feature in schema
        if not feature.per_step
        for flat in to_flat(columns[feature.name], feature)
    ]
    lists = [
        (feature.storage()[0].name.encode(), feature) for feature in schema if feature.per_step
    ]
    parts = [encode_flat(context, rows)] if context else []
    if lists:
        planned = [
            _plan_list(name, columns[feature.name], feature) for name, feature in sorted(lists)
        ]
        parts.append(_encode_planned(planned, rows))
        parts[-1].data[parts[-1].starts + HEADER_BYTES] = _LISTS_TAG
    data, splits = _payloads(parts, rows)
    frames = frame_payloads(data, splits)
    _check_sizes(frames.lengths)
    return frames


def _payloads(parts: Sequence[Frames], rows: int) -> tuple[Bytes, Int64s]:
    """Joins the payloads of the parts' frames of each row: (uint8 [bytes], int64 [rows + 1])."""
    starts = (
        np.stack([part.starts + HEADER_BYTES for part in parts], 1).reshape(-1)
        if parts
        else np.zeros(0, np.int64)
    )
    sizes = (
        np.stack([part.lengths for part in parts], 1) if parts else np.zeros((rows, 0), np.int64)
    )
    splits = np.zeros(rows + 1, np.int64)
    np.cumsum(sizes.sum(1), out=splits[1:])
    data = allocate(int(splits[-1]), np.uint8)
    which = np.tile(np.arange(len(parts), dtype=np.int32), rows)
    pack_spans([part.data for part in parts], starts, sizes.reshape(-1), data, which)
    return data, splits


def _plan_list(name: bytes, column: pa.Array, feature: Feature) -> Planned:
    """Plans a column of feature lists; their steps are encoded here."""
    if feature.ragged_rank > 2:
        raise ValueError(
            f"feature {feature.name!r}: {feature.describe()} has more variable dimensions than a feature "
            "list can hold: 2"
        )
    if feature.required and column.null_count:
        raise DataError(
            "null, but the feature is required",
            place=f"feature {feature.name[:60]!r}, row {int(np.argmin(column.is_valid().to_numpy(False)))}",
        )
    lists = column.cast(pa.large_list(column.type.value_type))
    splits = np.asarray(lists.offsets).astype(np.int64)
    # Steps are never stored raw (Feature.storage), so what would be raw by itself goes through int64.
    dtype = (
        feature.dtype
        if feature.storage()[0].raw or feature.dtype not in ("uint8", "uint64")
        else "int64"
    )
    step = Feature("", dtype, feature.shape[1:])
    values = lists.values.slice(splits[0], splits[-1] - splits[0])
    try:
        flats = to_flat(values.cast(arrow_type(step)) if dtype != feature.dtype else values, step)
        steps = _encode_planned([_plan_column(flat, b"") for flat in flats], len(values))
    except (DataError, pa.ArrowInvalid) as error:
        raise DataError(f"in its steps: {error}", place=f"feature {feature.name[:60]!r}") from error
    data, ends = _payloads([steps], len(values))
    valid = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    key = _key(name)
    return (native.EntryKind.MESSAGE, 1, len(key)), [
        valid,
        _NOTHING,
        data,
        ends[splits - splits[0]],
        _padded([key]),
    ]


def encode(batch: pa.RecordBatch, schema: Schema) -> Frames:
    """The batch's rows as framed records, contiguous and in order.

    A null is a feature that the record doesn't have; an empty list is a feature with an empty list of its kind. With
    the message `bytes` the one column is the records themselves, with `SequenceExample` see `records.example.encode`.
    Nothing is allocated but the result and some int64 per row and column.

    Args:
        batch: one column per feature, in any order, of the types of `schemas.arrow.to_arrow(schema)` or what
            `records.example.flat_arrays.to_flat` accepts.

    Raises:
        DataError: a value that Example can't hold, or a record of 2 GiB and more; it names feature, row and value.
        TypeError: a column of another type.
        ValueError: columns that are not the schema's features.
    """
    if schema.message == SEQUENCE_EXAMPLE:
        return encode_sequences(batch, schema)
    names = batch.schema.names
    if sorted(names) != sorted(schema.names):
        raise ValueError(
            f"the batch has the columns {sorted(names)} and the schema the features {sorted(schema.names)}; "
            "select or rename"
        )
    columns = dict(zip(names, batch.columns, strict=True))
    flats = [flat for feature in schema for flat in to_flat(columns[feature.name], feature)]
    if schema.message == OPAQUE_BYTES:
        return _encode_payloads(flats, schema)
    return encode_flat(flats, batch.num_rows)


def _encode_payloads(flats: Sequence[Flat], schema: Schema) -> Frames:
    if len(flats) != 1 or flats[0].value_splits is None or flats[0].splits is not None:
        raise ValueError(
            "records that are no Examples are one column of bytes, not "
            f"{', '.join(f.name + ' ' + f.describe() for f in schema)}"
        )
    flat = flats[0]
    assert flat.value_splits is not None
    if flat.valid is not None:
        raise DataError(
            "null: a record can be empty but not missing",
            place=f"feature {flat.storage.name!r}, row {int(np.argmin(flat.valid))}",
        )
    return frame_payloads(flat.values, flat.value_splits)
