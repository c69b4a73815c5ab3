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
from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.buffers import room
from recordmill.base.errors import DataError
from recordmill.base.kernels import kernel
from recordmill.base.pointers import (
    CHUNK_BYTES,
    address,
    address_of,
    copy,
    load8,
    load64,
    put_varint_at,
    store8,
    varint_bytes,
)
from recordmill.records.example.flat_arrays import Flat, to_flat
from recordmill.records.protobuf.wire import short_extent
from recordmill.records.tfrecord.frames import Frames, frame
from recordmill.schemas.arrow import arrow_type
from recordmill.schemas.feature import BYTES, FLOAT, INT64, PAYLOAD, SEQUENCE_EXAMPLE, Feature, Schema

PROTOBUF_LIMIT_BYTES = 1 << 31  # protobuf refuses a message of 2 GiB and more, when it writes and when it reads

_NOTHING = np.empty(0, np.uint8)  # in place of an array that a column does not have

TAGS = {BYTES: b"\x0a", FLOAT: b"\x12", INT64: b"\x1a"}


def encode_flat(flats: Sequence[Flat], rows: int) -> Frames:
    """Framed Examples from the flat arrays of all their entries, in any order."""
    flats = sorted(flats, key=lambda flat: flat.storage.name.encode())
    planned = [_plan_column(flat) for flat in flats]
    columns = np.array([column for column, _ in planned], np.int64).reshape(-1)
    parts = [part for _, arrays in planned for part in arrays]
    kept = room(len(flats) * rows, np.int64)
    sizes, starts, lengths = (room(rows, np.int64) for _ in range(3))
    total = native.size_examples(columns, parts, kept, sizes, starts, lengths)
    if rows and (longest := int(lengths.max())) >= PROTOBUF_LIMIT_BYTES:
        raise DataError(
            f"the record has {longest} bytes and protobuf's limit is 2 GiB", place=f"row {int(lengths.argmax())}"
        )
    out = room(total + CHUNK_BYTES, np.uint8)
    crcs = room(rows, np.uint32)
    native.write_examples(columns, parts, kept, sizes, starts, lengths, out, crcs)
    return Frames(out[:total], starts, lengths, crcs)


def _plan_column(flat: Flat) -> tuple[tuple[int, int, int], list[npt.NDArray[Any]]]:
    """The fields of an `example_column` of the native library, and its five arrays."""
    name, kind, way, length = flat.storage.name.encode(), flat.storage.kind, _way(flat), flat.length
    key = b"\x0a" + encoded_varint(len(name)) + name + b"\x12"
    heads, head_bytes = [key], len(key)
    if way == native.ONE_INT:
        heads = [_head(key, INT64, size) for size in range(11)]
    elif way == native.CONSTANT_SIZE:
        length = flat.width if kind == BYTES else flat.length * flat.values.dtype.itemsize
        heads = [_head(key, kind, length)]
        head_bytes = len(heads[0])
    arrays = (flat.valid, flat.splits, flat.values, flat.value_splits, _padded(heads))
    return (way, length, head_bytes), [_NOTHING if a is None else np.ascontiguousarray(a) for a in arrays]


def _way(flat: Flat) -> int:
    fixed = flat.splits is None
    if flat.storage.kind == INT64:
        if not fixed or flat.length > 1:
            return native.INTS
        return native.ONE_INT if flat.length else native.CONSTANT_SIZE
    if flat.storage.kind == FLOAT:
        return native.CONSTANT_SIZE if fixed else native.FLOATS
    if fixed and flat.length == 1:
        return native.CONSTANT_SIZE if flat.value_splits is None else native.ONE_TEXT
    return native.TEXTS


def _head(key: bytes, kind: str, data_bytes: int) -> bytes:
    """An entry's bytes before its data: its one byte string, or its packed numbers (none at all if there are none)."""
    inner = b"" if data_bytes == 0 and kind != BYTES else b"\x0a" + encoded_varint(data_bytes)
    listed = TAGS[kind] + encoded_varint(len(inner) + data_bytes) + inner
    entry = key + encoded_varint(len(listed) + data_bytes) + listed
    return b"\x0a" + encoded_varint(len(entry) + data_bytes) + entry


def encoded_varint(value: int) -> bytes:
    """A number from 0 to 2^64 - 1 as a base-128 varint."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*groups, value))


def _padded(heads: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    """Byte strings one after the other, each with the same room,
    so that copying whole chunks reads nobody else's memory.
    """
    room = (max(map(len, heads)) // CHUNK_BYTES + 1) * CHUNK_BYTES
    return np.frombuffer(b"".join(head.ljust(room, b"\0") for head in heads), np.uint8)


# A row of the plan is one feature list: addresses of uint8 [rows] (0 where it is absent), of int64 [rows + 1] (row r
# has the steps splits[r] up to splits[r + 1]), of int64 [steps] and int64 [steps + 1] (where each step's field stands,
# and the running bytes), and of the name's field.
_VALID, _SPLITS, _STEPS, _RUNNING, _KEY, _KEY_BYTES = range(6)
_PLAN_FIELDS = 6
_STEP_TAG, _LISTS_TAG, _ENTRY_TAG, _VALUE_TAG = 0x0A, 0x12, 0x0A, 0x12


def encode_sequences(batch: pa.RecordBatch, schema: Schema) -> Frames:
    """The batch's rows as framed SequenceExamples, contiguous and in order.

    A null is a feature or a feature list that the record does not have; a null step is a Feature without a list; names
    in bytewise order.

    Raises:
        DataError: a value that SequenceExample can't hold, or a record of 2 GiB and more; it names feature, row and
            value.
        TypeError: a column of another type.
        ValueError: columns that are not the schema's features, another message, or more variable dimensions than a
            feature list has.
    """
    if schema.message != SEQUENCE_EXAMPLE:
        raise ValueError(f"these are {schema.message} records; this function makes SequenceExamples")
    names = batch.schema.names
    if sorted(names) != sorted(schema.names):
        raise ValueError(
            f"the batch has the columns {sorted(names)} and the schema the features {sorted(schema.names)}; "
            "select or rename"
        )
    given = dict(zip(names, batch.columns, strict=True))
    columns = {feature: given[feature.name] for feature in sorted(schema, key=lambda f: f.storage()[0].name.encode())}
    context = [flat for feature, column in columns.items() if not feature.per_step for flat in to_flat(column, feature)]
    kept: list[npt.NDArray[np.generic]] = []  # what the plan points to
    steps = [_plan_list(column, feature, kept) for feature, column in columns.items() if feature.per_step]
    plan = np.array(steps, np.int64).reshape(-1, _PLAN_FIELDS)
    rows = batch.num_rows
    head = (
        encode_flat(context, rows)
        if context
        else Frames(
            np.empty(0, np.uint8), np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.uint32)
        )
    )
    starts, lengths, crcs = np.empty(rows, np.int64), np.empty(rows, np.int64), np.empty(rows, np.uint32)
    total = _sizes(plan, head.lengths, starts, lengths)
    if rows and (longest := int(lengths.max())) >= PROTOBUF_LIMIT_BYTES:
        raise DataError(
            f"the record has {longest} bytes and protobuf's limit is 2 GiB", place=f"row {int(lengths.argmax())}"
        )
    out = np.empty(total + CHUNK_BYTES, np.uint8)
    _put_payloads(plan, head.data, head.starts, head.lengths, starts, out)
    native.close_frames(out, starts, lengths, crcs)
    return Frames(out[:total], starts, lengths, crcs)


def _plan_list(column: pa.Array, feature: Feature, kept: list[npt.NDArray[np.generic]]) -> list[int]:
    """One row of the plan; what it points to goes into kept."""
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
    dtype = feature.dtype if feature.storage()[0].raw or feature.dtype not in ("uint8", "uint64") else "int64"
    step = Feature("", dtype, feature.shape[1:])
    values = lists.values.slice(splits[0], splits[-1] - splits[0])
    try:
        encoded = encode_flat(
            to_flat(values.cast(arrow_type(step)) if dtype != feature.dtype else values, step), len(values)
        )
    except (DataError, pa.ArrowInvalid) as error:
        raise DataError(f"in its steps: {error}", place=f"feature {feature.name[:60]!r}") from error
    splits = splits - splits[0]
    at, running = np.empty(len(values), np.int64), np.zeros(len(values) + 1, np.int64)
    _find_steps(address_of(encoded.data), encoded.starts, encoded.lengths, at, running)
    name = feature.storage()[0].name.encode()
    key = np.zeros(len(name) + 16, np.uint8)
    key_bytes = put_key(key, np.frombuffer(name + b"\0", np.uint8), len(name))
    valid = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    kept += [encoded.data, at, running, splits, key, valid]
    return [address_of(valid), address_of(splits), address_of(at), address_of(running), address_of(key), key_bytes]


@kernel
def put_key(into: Bytes, name: Bytes, size: int) -> int:
    """Write the field `0A length name`; gives its bytes. into has 16 bytes more room than the name."""
    to = address(into)
    store8(to, _ENTRY_TAG)
    to = put_varint_at(to + 1, size)
    copy(to, address(name), size)
    return int(to + size - address(into))


@kernel
def _find_steps(base: int, starts: Int64s, lengths: Int64s, at: Int64s, running: Int64s) -> None:
    """Where `length Feature` stands at the end of each one-feature Example,
    and the running bytes of the steps' fields (a tag more).
    """
    for i in range(len(starts)):
        begin = base + starts[i] + 12
        end = begin + lengths[i]
        start, stop = short_extent(begin + 1, end)
        if start == stop:  # a null: `0A 00`, whose length does for a step without a list
            at[i] = begin + 1
        else:
            start, stop = short_extent(start + 1, end)  # the entry: `0A 00 12 length Feature`
            at[i] = start + 3
        running[i + 1] = running[i] + 1 + end - at[i]


@kernel
def _entry_bytes(plan: Int64s, line: int, row: int) -> tuple[int, int]:
    """(bytes of an entry behind its own tag and length, bytes of its FeatureList) for a list that is there."""
    first, last = load64(plan[line, _SPLITS] + 8 * row), load64(plan[line, _SPLITS] + 8 * row + 8)
    steps = load64(plan[line, _RUNNING] + 8 * last) - load64(plan[line, _RUNNING] + 8 * first)
    return plan[line, _KEY_BYTES] + 1 + varint_bytes(steps) + steps, steps


@kernel
def _lists_bytes(plan: Int64s, row: int) -> int:
    """The bytes of the row's FeatureLists."""
    total = 0
    for line in range(len(plan)):
        if load8(plan[line, _VALID] + row):
            size, _ = _entry_bytes(plan, line, row)
            total += 1 + varint_bytes(size) + size
    return total


@kernel
def _sizes(plan: Int64s, head_bytes: Int64s, starts: Int64s, lengths: Int64s) -> int:
    """Each record's start and payload bytes; gives the bytes of all frames."""
    at = 0
    for row in range(len(starts)):
        size = _lists_bytes(plan, row)
        starts[row] = at
        lengths[row] = head_bytes[row] + (1 + varint_bytes(size) + size if len(plan) else 0)
        at += lengths[row] + 16
    return at


@kernel
def _put_entry(plan: Int64s, line: int, row: int, to: int) -> int:
    """Write a feature list's entry at the address; gives the one behind it."""
    size, steps_bytes = _entry_bytes(plan, line, row)
    store8(to, _ENTRY_TAG)
    to = put_varint_at(to + 1, size)
    copy(to, plan[line, _KEY], plan[line, _KEY_BYTES])
    to += plan[line, _KEY_BYTES]
    store8(to, _VALUE_TAG)
    to = put_varint_at(to + 1, steps_bytes)
    running = plan[line, _RUNNING]
    for i in range(load64(plan[line, _SPLITS] + 8 * row), load64(plan[line, _SPLITS] + 8 * row + 8)):
        step = load64(running + 8 * i + 8) - load64(running + 8 * i)
        store8(to, _STEP_TAG)
        copy(to + 1, load64(plan[line, _STEPS] + 8 * i), step - 1)
        to += step
    return to


@kernel
def _put_payloads(
    plan: Int64s, head: Bytes, head_starts: Int64s, head_lengths: Int64s, starts: Int64s, out: Bytes
) -> None:
    """Write the records without their frames: the context as it was encoded, and the feature lists."""
    for row in range(len(starts)):
        to = address(out) + starts[row] + 12
        copy(to, address(head) + head_starts[row] + 12, head_lengths[row])
        to += head_lengths[row]
        if len(plan):
            store8(to, _LISTS_TAG)
            to = put_varint_at(to + 1, _lists_bytes(plan, row))
            for line in range(len(plan)):
                if load8(plan[line, _VALID] + row):
                    to = _put_entry(plan, line, row, to)


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
    if schema.message == PAYLOAD:
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
    return frame(flat.values, flat.value_splits)
