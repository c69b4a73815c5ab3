"""Encoder of RecordBatches to framed Examples and SequenceExamples.

A framed record has the form that it has in a TFRecord file, with both CRCs. The records are encoded
column by column into one buffer. The native library makes two passes over flat arrays of all
entries: the first computes the sizes, the second writes the bytes. The decoder is
`records.example.decode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s, allocate, to_offsets
from recordmill.base.errors import DataError
from recordmill.records.example.flat_arrays import FlatEntry, flatten_column
from recordmill.records.protobuf.message import encode_varint
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

# Protobuf neither writes nor reads messages of 2 GiB or more.
PROTOBUF_LIMIT_BYTES = 1 << 31
# The native library copies blocks of 16 bytes, so heads and the result need room for one more
# block.
_COPY_BLOCK_BYTES = 16
# tag of the feature lists in a SequenceExample. The context has the same tag as the features of an
# Example.
_FEATURE_LISTS_TAG = 0x12

# An entry of all rows for the native library: the fields of an `ExampleColumn`, and its five
# arrays.
PlannedEntry = tuple[tuple[int, int, int], list[npt.NDArray[Any]]]

# Passed to the native library in place of an array that a column does not have.
_NO_BYTES = np.empty(0, np.uint8)

LIST_TAGS = {BYTES_LIST: b"\x0a", FLOAT_LIST: b"\x12", INT64_LIST: b"\x1a"}


def encode_entries(flat_entries: Sequence[FlatEntry], rows: int) -> Frames:
    """Encodes the map entries of all records to framed Examples.

    Args:
        flat_entries: The entries, in any order.
        rows: The number of records.
    """
    named_entries = sorted(
        ((entry.storage.name.encode(), entry) for entry in flat_entries), key=lambda item: item[0]
    )
    return _encode_planned(
        [_plan_entry(entry, _entry_key(name)) for name, entry in named_entries], rows
    )


def _encode_planned(entries: Sequence[PlannedEntry], rows: int) -> Frames:
    columns = np.array([column for column, _ in entries], np.int64).reshape(-1)
    arrays = [array for _, entry_arrays in entries for array in entry_arrays]
    list_sizes = allocate(len(entries) * rows, np.int64)
    entry_sizes, starts, lengths = (allocate(rows, np.int64) for _ in range(3))
    total = native.size_examples(columns, arrays, list_sizes, entry_sizes, starts, lengths)
    _check_message_sizes(lengths)
    out = allocate(total + _COPY_BLOCK_BYTES, np.uint8)
    crcs = allocate(rows, np.uint32)
    native.write_examples(columns, arrays, list_sizes, entry_sizes, starts, lengths, out, crcs)
    return Frames(data=out[:total], starts=starts, lengths=lengths, crcs=crcs)


def _check_message_sizes(lengths: Int64s) -> None:
    if len(lengths) and (longest := int(lengths.max())) >= PROTOBUF_LIMIT_BYTES:
        raise DataError(
            f"the record has {longest} bytes and protobuf's limit is 2 GiB",
            place=f"row {int(lengths.argmax())}",
        )


def _entry_key(name: bytes) -> bytes:
    """Returns the bytes of a map entry before the length of its value."""
    return b"\x0a" + encode_varint(len(name)) + name + b"\x12"


def _plan_entry(entry: FlatEntry, key: bytes) -> PlannedEntry:
    """Prepares an entry for the native library.

    Args:
        entry: The entry of all rows.
        key: The result of `_entry_key`. It is empty for steps, which have no names.
    """
    list_kind, entry_kind, length = entry.storage.kind, _entry_kind(entry), entry.length
    heads, head_bytes = [key], len(key)
    if entry_kind == native.EntryKind.ONE_INT:
        # One head for each size of a varint: the size of the only number is not known before it is
        # encoded.
        heads = [_entry_head(key, INT64_LIST, size) for size in range(11)]
    elif entry_kind == native.EntryKind.CONSTANT_SIZE:
        length = (
            entry.width if list_kind == BYTES_LIST else entry.length * entry.values.dtype.itemsize
        )
        heads = [_entry_head(key, list_kind, length)]
        head_bytes = len(heads[0])
    arrays = (entry.valid, entry.splits, entry.values, entry.value_splits, _pad_heads(heads))
    return (entry_kind, length, head_bytes), [
        _NO_BYTES if array is None else np.ascontiguousarray(array) for array in arrays
    ]


def _entry_kind(entry: FlatEntry) -> int:
    is_fixed = entry.splits is None
    if entry.storage.kind == INT64_LIST:
        if not is_fixed or entry.length > 1:
            return native.EntryKind.INTS
        return native.EntryKind.ONE_INT if entry.length else native.EntryKind.CONSTANT_SIZE
    if entry.storage.kind == FLOAT_LIST:
        return native.EntryKind.CONSTANT_SIZE if is_fixed else native.EntryKind.FLOATS
    return (
        native.EntryKind.CONSTANT_SIZE
        if is_fixed and entry.length == 1 and entry.value_splits is None
        else native.EntryKind.TEXTS
    )


def _entry_head(key: bytes, kind: str, data_bytes: int) -> bytes:
    """Returns the bytes of an entry before its data.

    Args:
        key: The result of `_entry_key`, or b"" for a step.
        kind: The kind of the list.
        data_bytes: The size of the only byte string, or of all numbers together. A list without
            numbers has no data field.
    """
    list_head = (
        b"" if data_bytes == 0 and kind != BYTES_LIST else b"\x0a" + encode_varint(data_bytes)
    )
    feature = LIST_TAGS[kind] + encode_varint(len(list_head) + data_bytes) + list_head
    if not key:
        return feature
    # Each length includes all that follows it, so the head is built from the inside out.
    entry = key + encode_varint(len(feature) + data_bytes) + feature
    return b"\x0a" + encode_varint(len(entry) + data_bytes) + entry


def _pad_heads(heads: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    """Joins the heads in one buffer, padded to the same multiple of 16 bytes."""
    head_bytes = (max(map(len, heads)) // _COPY_BLOCK_BYTES + 1) * _COPY_BLOCK_BYTES
    return np.frombuffer(b"".join(head.ljust(head_bytes, b"\0") for head in heads), np.uint8)


def encode_sequences(batch: pa.RecordBatch, schema: Schema) -> Frames:
    """Encodes a batch to framed SequenceExamples.

    A null is a feature or a feature list that the record does not have. A null step is a Feature
    without a list. The names are in bytewise order. `encode` explains arguments and errors.
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
        entry
        for feature in schema
        if not feature.per_step
        for entry in flatten_column(columns[feature.name], feature)
    ]
    feature_lists = [
        (feature.storage()[0].name.encode(), feature) for feature in schema if feature.per_step
    ]
    encoded = [encode_entries(context, rows)] if context else []
    if feature_lists:
        planned_lists = [
            _plan_feature_list(name, columns[feature.name], feature)
            for name, feature in sorted(feature_lists)
        ]
        encoded.append(_encode_planned(planned_lists, rows))
        # The feature lists are encoded like an Example and differ only in the tag of the map.
        encoded[-1].data[encoded[-1].starts + HEADER_BYTES] = _FEATURE_LISTS_TAG
    data, splits = _join_payloads(encoded, rows)
    frames = frame_payloads(data, splits)
    _check_message_sizes(frames.lengths)
    return frames


def _join_payloads(frames_by_row: Sequence[Frames], rows: int) -> tuple[Bytes, Int64s]:
    """Joins the payloads of each row, such as its context and its feature lists.

    Args:
        frames_by_row: The payloads of all rows, for each part of a message.
        rows: The number of rows.

    Returns:
        (the joined bytes, their row splits, int64 [rows + 1]).
    """
    starts = (
        np.stack([part.starts + HEADER_BYTES for part in frames_by_row], 1).reshape(-1)
        if frames_by_row
        else np.zeros(0, np.int64)
    )
    sizes = (
        np.stack([part.lengths for part in frames_by_row], 1)
        if frames_by_row
        else np.zeros((rows, 0), np.int64)
    )
    splits = to_offsets(sizes.sum(1))
    data = allocate(int(splits[-1]), np.uint8)
    block_ids = np.tile(np.arange(len(frames_by_row), dtype=np.int32), rows)
    pack_spans(
        [part.data for part in frames_by_row],
        starts=starts,
        sizes=sizes.reshape(-1),
        out=data,
        block_ids=block_ids,
    )
    return data, splits


def _plan_feature_list(name: bytes, column: pa.Array, feature: Feature) -> PlannedEntry:
    """Encodes the steps of a feature list.

    The result is the list in the form that the native library needs.

    Args:
        name: The name of the feature list.
        column: The column of the feature.
    """
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
    # Steps are never stored raw (see `Feature.storage`). A dtype that would be stored raw on its
    # own becomes int64.
    dtype = (
        feature.dtype
        if feature.storage()[0].raw or feature.dtype not in ("uint8", "uint64")
        else "int64"
    )
    step = Feature("", dtype, feature.shape[1:])
    values = lists.values.slice(splits[0], splits[-1] - splits[0])
    try:
        step_entries = flatten_column(
            values.cast(arrow_type(step)) if dtype != feature.dtype else values, step
        )
        steps = _encode_planned([_plan_entry(entry, b"") for entry in step_entries], len(values))
    except (DataError, pa.ArrowInvalid) as error:
        raise DataError(
            "in its steps: {error}", error=error, place=f"feature {feature.name[:60]!r}"
        ) from error
    data, value_ends = _join_payloads([steps], len(values))
    valid = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    key = _entry_key(name)
    return (native.EntryKind.MESSAGE, 1, len(key)), [
        valid,
        _NO_BYTES,
        data,
        # the end of the last step of each list
        value_ends[splits - splits[0]],
        _pad_heads([key]),
    ]


def encode(batch: pa.RecordBatch, schema: Schema) -> Frames:
    """Encodes a batch to framed records, in order and without gaps.

    A null is a feature that the record does not have. An empty list is a feature with an empty list
    of its kind. If the message of the schema is `bytes`, the only column contains the complete
    records. For SequenceExamples see `encode_sequences`. Memory is allocated only for the result
    and for some int64 per row and column.

    Args:
        batch: A column for each feature, in any order. It has the types of
            `schemas.arrow.to_arrow(schema)`, or others that
            `records.example.flat_arrays.flatten_column` accepts.
        schema: The schema of the records.

    Raises:
        DataError: A value can't be stored in an Example, or a record has 2 GiB or more. The error
            names feature, row and value.
        TypeError: A column has another type.
        ValueError: The columns are not the features of the schema.
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
    entries = [
        entry for feature in schema for entry in flatten_column(columns[feature.name], feature)
    ]
    if schema.message == OPAQUE_BYTES:
        return _encode_payloads(entries, schema)
    return encode_entries(entries, batch.num_rows)


def _encode_payloads(entries: Sequence[FlatEntry], schema: Schema) -> Frames:
    if len(entries) != 1 or entries[0].value_splits is None or entries[0].splits is not None:
        raise ValueError(
            "records that are not Examples are one column of bytes, not "
            f"{', '.join(f.name + ' ' + f.describe() for f in schema)}"
        )
    entry = entries[0]
    assert entry.value_splits is not None
    if entry.valid is not None:
        raise DataError(
            "null: a record can be empty but not missing",
            place=f"feature {entry.storage.name!r}, row {int(np.argmin(entry.valid))}",
        )
    return frame_payloads(entry.values, entry.value_splits)
