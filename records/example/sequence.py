"""A RecordBatch to framed `tf.train.SequenceExample` records; the way back is `records.example.decode`, which knows
them by the schema's message.

    SequenceExample { 1: Features context, 2: FeatureLists { 1: entry ... } }
    entry  { 1: name, 2: FeatureList { 1: Feature ... } }

The context is an Example in all but name. The steps of a feature list are encoded as if each were an Example with one
feature, whose name is empty: such a record ends in `12 length Feature`, and but for its tag that is a step of a
FeatureList.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.base.kernels import kernel
from recordmill.base.memory import (
    CHUNK_BYTES,
    address,
    address_of,
    copy,
    load8,
    load64,
    put_varint,
    store8,
    varint_bytes,
)
from recordmill.records.example.entries import PROTOBUF_LIMIT_BYTES, encode_flat
from recordmill.records.example.flat import to_flat
from recordmill.records.protobuf.wire import short_extent
from recordmill.records.tfrecord.frames import Frames, put_frame
from recordmill.schemas.arrow import arrow_type
from recordmill.schemas.feature import SEQUENCE_EXAMPLE, Feature, Schema

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

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
    columns = {
        feature: batch.column(names.index(feature.name))
        for feature in sorted(schema, key=lambda one: one.name.encode())
    }
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
    _put_records(plan, head.data, head.starts, head.lengths, starts, lengths, out, crcs)
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
    name = feature.name.encode()
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
    to = put_varint(to + 1, size)
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
    to = put_varint(to + 1, size)
    copy(to, plan[line, _KEY], plan[line, _KEY_BYTES])
    to += plan[line, _KEY_BYTES]
    store8(to, _VALUE_TAG)
    to = put_varint(to + 1, steps_bytes)
    running = plan[line, _RUNNING]
    for i in range(load64(plan[line, _SPLITS] + 8 * row), load64(plan[line, _SPLITS] + 8 * row + 8)):
        step = load64(running + 8 * i + 8) - load64(running + 8 * i)
        store8(to, _STEP_TAG)
        copy(to + 1, load64(plan[line, _STEPS] + 8 * i), step - 1)
        to += step
    return to


@kernel
def _put_records(
    plan: Int64s,
    head: Bytes,
    head_starts: Int64s,
    head_lengths: Int64s,
    starts: Int64s,
    lengths: Int64s,
    out: Bytes,
    crcs: npt.NDArray[np.uint32],
) -> None:
    """Write the records: the context as it was encoded, the feature lists, and the frame around them."""
    for row in range(len(starts)):
        frame = address(out) + starts[row]
        to = frame + 12
        copy(to, address(head) + head_starts[row] + 12, head_lengths[row])
        to += head_lengths[row]
        if len(plan):
            store8(to, _LISTS_TAG)
            to = put_varint(to + 1, _lists_bytes(plan, row))
            for line in range(len(plan)):
                if load8(plan[line, _VALID] + row):
                    to = _put_entry(plan, line, row, to)
        crcs[row] = put_frame(frame, lengths[row])
