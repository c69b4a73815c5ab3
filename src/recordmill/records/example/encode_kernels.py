"""The encoder's compiled code: a plan (one row of numbers per entry of the Example's map) and sizes,
to the bytes of framed records.

An entry of the map is `0A entry_length | 0A name_length name 12 | feature_length kind_tag list_length | list`; the
middle part is constant for a column and is called its key. Copies and lists of numbers go in 16-byte chunks, so up to
15 bytes behind an entry may be overwritten: there stand later entries of the same record, or the 16 bytes of its CRC
and the next record's header, all written later.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.kernels import inlined, kernel
from recordmill.base.pointers import (
    address,
    copy,
    copy_chunks,
    load8,
    load32,
    load64,
    put_varint_at,
    store8,
    store32,
    store64,
    varint_bytes,
)
from recordmill.records.protobuf.varints import put_varints, varints_bytes
from recordmill.records.tfrecord.frames import put_frame

EntryPlan = npt.NDArray[np.int64]

# What a row of the plan is; each has its own way through the data.
INT_ONE = 0  # one int64 per record
INT_LIST = 1  # any number of them
# the same number of bytes per record: floats of a fixed shape, tensors as raw bytes;
# all before the data is a constant head
CONSTANT = 2
FLOAT_LIST = 3  # any number of floats
BYTES_ONE = 4  # one byte string per record
BYTES_LIST = 5  # any number of them

# The columns of the plan. Addresses are 0 for what is not there.
(
    OP,
    VALID_ADDRESS,
    SPLITS,
    LENGTH,
    VALUES_ADDRESS,
    VALUE_SPLITS,
    WIDTH,
    KEY,
    KEY_BYTES,
    KEPT_ROWS,
    ENTRY_HEADER_BYTES,
    HEAD_STRIDE,
    SIZES,
) = range(13)
PLAN_FIELDS = SIZES + 11  # SIZES + v: the entry's bytes where the int64 is a varint of v bytes, v in 1 ... 10

_BLOCK_BYTES = 16 << 10  # 16 KiB of output: half of a first-level cache, the other half for what is read
BLOCK_ROWS = 256
_INT64_TAG, _FLOAT_TAG, _BYTES_TAG, _ONE_TAG = 0x1A, 0x12, 0x0A, 0x0A


@inlined
def entry_bytes(key_bytes: int, list_bytes: int) -> int:
    """The bytes of one entry of the map, its own tag and length included."""
    feature = 1 + varint_bytes(list_bytes) + list_bytes
    entry = key_bytes + varint_bytes(feature) + feature
    return int(1 + varint_bytes(entry) + entry)


@inlined
def _first(plan: EntryPlan, column: int, row: int) -> int:
    """The number of the first value of a row; _first(row + 1) ends it."""
    if plan[column, SPLITS] == 0:
        return int(row * plan[column, LENGTH])
    return int(load64(plan[column, SPLITS] + 8 * row))


@inlined
def _value_start(plan: EntryPlan, column: int, value: int) -> int:
    """The first byte of a byte string; _value_start(value + 1) ends it."""
    if plan[column, VALUE_SPLITS] == 0:
        return int(value * plan[column, WIDTH])
    return int(load64(plan[column, VALUE_SPLITS] + 8 * value))


@inlined
def _packed_list_bytes(packed: int) -> int:
    """The bytes of an Int64List or FloatList whose packed values take that many; an empty one has no field at all."""
    return 0 if packed == 0 else 1 + varint_bytes(packed) + packed


@inlined
def _values_bytes(plan: EntryPlan, column: int, row: int) -> int:
    """The packed bytes of a row's numbers, or the bytes of its BytesList."""
    start, stop = _first(plan, column, row), _first(plan, column, row + 1)
    op, size = plan[column, OP], 0
    if op == FLOAT_LIST:
        return int(4 * (stop - start))
    if op == INT_LIST:
        return varints_bytes(plan[column, VALUES_ADDRESS] + 8 * start, stop - start)
    for v in range(start, stop):
        length = _value_start(plan, column, v + 1) - _value_start(plan, column, v)
        size += 1 + varint_bytes(length) + length
    return size


@kernel
def _add_sizes(plan: EntryPlan, column: int, first: int, last: int, sizes: Int64s) -> None:
    """Add the bytes of this column's entries to sizes[first:last],
    and keep its lists' bytes where writing needs them again.
    """
    op, valid, values = plan[column, OP], plan[column, VALID_ADDRESS], plan[column, VALUES_ADDRESS]
    key_bytes, kept = plan[column, KEY_BYTES], plan[column, KEPT_ROWS]
    if op == INT_ONE:
        for r in range(first, last):
            if valid == 0 or load8(valid + r) != 0:
                sizes[r] += plan[column, SIZES + varint_bytes(load64(values + 8 * r))]
    elif op == CONSTANT:
        for r in range(first, last):
            if valid == 0 or load8(valid + r) != 0:
                sizes[r] += plan[column, SIZES]
    elif op == BYTES_ONE:
        for r in range(first, last):
            if valid == 0 or load8(valid + r) != 0:
                length = _value_start(plan, column, r + 1) - _value_start(plan, column, r)
                sizes[r] += entry_bytes(key_bytes, 1 + varint_bytes(length) + length)
    else:
        for r in range(first, last):
            if valid == 0 or load8(valid + r) != 0:
                size = _values_bytes(plan, column, r)
                store64(kept + 8 * r, size)
                sizes[r] += entry_bytes(key_bytes, size if op == BYTES_LIST else _packed_list_bytes(size))


@kernel
def encode_sizes(plan: EntryPlan, sizes: Int64s, starts: Int64s, lengths: Int64s) -> int:
    """The bytes of each record's entries, and from them its payload's length and its frame's start;
    gives the total bytes.
    """
    at = 0
    for first in range(0, len(sizes), BLOCK_ROWS):
        last = min(first + BLOCK_ROWS, len(sizes))
        sizes[first:last] = 0
        for column in range(len(plan)):
            _add_sizes(plan, column, first, last, sizes)
        for r in range(first, last):
            starts[r] = at
            lengths[r] = 1 + varint_bytes(sizes[r]) + sizes[r]
            at += lengths[r] + 16
    return at


@inlined
def _put_head(plan: EntryPlan, column: int, at: int, tag: int, list_bytes: int) -> int:
    """Everything of an entry that stands before its list; gives the address behind it."""
    feature = 1 + varint_bytes(list_bytes) + list_bytes
    key_bytes = plan[column, KEY_BYTES]
    store8(at, 0x0A)
    at = put_varint_at(at + 1, key_bytes + varint_bytes(feature) + feature)
    copy_chunks(at, plan[column, KEY], key_bytes)
    at = put_varint_at(at + key_bytes, feature)
    store8(at, tag)
    return int(put_varint_at(at + 1, list_bytes))


@kernel
def _put_int_one(plan: EntryPlan, column: int, first: int, last: int, places: Int64s) -> None:
    valid, values, head, stride = (
        plan[column, VALID_ADDRESS],
        plan[column, VALUES_ADDRESS],
        plan[column, ENTRY_HEADER_BYTES],
        plan[column, HEAD_STRIDE],
    )
    for r in range(first, last):
        if valid == 0 or load8(valid + r) != 0:
            value = load64(values + 8 * r)
            size = varint_bytes(value)
            head_bytes = plan[column, SIZES + size] - size
            copy_chunks(places[r - first], head + size * stride, head_bytes)
            places[r - first] = put_varint_at(places[r - first] + head_bytes, value)


@kernel
def _put_constant(plan: EntryPlan, column: int, first: int, last: int, places: Int64s) -> None:
    valid, values, head, width = (
        plan[column, VALID_ADDRESS],
        plan[column, VALUES_ADDRESS],
        plan[column, ENTRY_HEADER_BYTES],
        plan[column, WIDTH],
    )
    head_bytes = plan[column, SIZES] - width
    for r in range(first, last):
        if valid == 0 or load8(valid + r) != 0:
            at = places[r - first]
            copy_chunks(at, head, head_bytes)
            if width == 4:
                store32(at + head_bytes, load32(values + 4 * r))
            else:
                copy(at + head_bytes, values + width * r, width)
            places[r - first] = at + head_bytes + width


@kernel
def _put_bytes_one(plan: EntryPlan, column: int, first: int, last: int, places: Int64s) -> None:
    valid, values = plan[column, VALID_ADDRESS], plan[column, VALUES_ADDRESS]
    for r in range(first, last):
        if valid == 0 or load8(valid + r) != 0:
            start = _value_start(plan, column, r)
            length = _value_start(plan, column, r + 1) - start
            at = _put_head(plan, column, places[r - first], _BYTES_TAG, 1 + varint_bytes(length) + length)
            store8(at, _ONE_TAG)
            at = put_varint_at(at + 1, length)
            copy(at, values + start, length)
            places[r - first] = at + length


@inlined
def _put_strings(plan: EntryPlan, column: int, at: int, start: int, stop: int) -> None:
    for v in range(start, stop):
        begin = _value_start(plan, column, v)
        length = _value_start(plan, column, v + 1) - begin
        store8(at, _ONE_TAG)
        at = put_varint_at(at + 1, length)
        copy(at, plan[column, VALUES_ADDRESS] + begin, length)
        at += length


@kernel
def _put_list(plan: EntryPlan, column: int, first: int, last: int, places: Int64s, scratch: int) -> None:
    op, valid, values, kept = (
        plan[column, OP],
        plan[column, VALID_ADDRESS],
        plan[column, VALUES_ADDRESS],
        plan[column, KEPT_ROWS],
    )
    tag = _INT64_TAG if op == INT_LIST else _FLOAT_TAG if op == FLOAT_LIST else _BYTES_TAG
    for r in range(first, last):
        if valid != 0 and load8(valid + r) == 0:
            continue
        start, stop, size = _first(plan, column, r), _first(plan, column, r + 1), load64(kept + 8 * r)
        if op == BYTES_LIST:
            at = _put_head(plan, column, places[r - first], tag, size)
            _put_strings(plan, column, at, start, stop)
            places[r - first] = at + size
            continue
        at = _put_head(plan, column, places[r - first], tag, _packed_list_bytes(size))
        if size > 0:
            store8(at, _ONE_TAG)
            at = put_varint_at(at + 1, size)
            if op == FLOAT_LIST:
                copy(at, values + 4 * start, size)
            else:
                put_varints(at, values + 8 * start, stop - start, scratch)
        places[r - first] = at + size


@kernel
def encode_bytes(
    plan: EntryPlan,
    sizes: Int64s,
    starts: Int64s,
    lengths: Int64s,
    out: Bytes,
    crcs: npt.NDArray[np.uint32],
    places: Int64s,
    scratch: Bytes,
) -> None:
    """Write the framed records whose places encode_sizes found. out has 16 bytes more than they take. places, int64
    [BLOCK_ROWS], and scratch, uint8 [SCRATCH_BYTES], are overwritten.
    """
    base, rows = address(out), len(sizes)
    first = 0
    while first < rows:
        last = first
        while (
            last < rows
            and last - first < BLOCK_ROWS
            and (last == first or starts[last] + lengths[last] - starts[first] <= _BLOCK_BYTES)
        ):
            store8(base + starts[last] + 12, 0x0A)
            places[last - first] = put_varint_at(base + starts[last] + 13, sizes[last])
            last += 1
        for column in range(len(plan)):
            op = plan[column, OP]
            if op == INT_ONE:
                _put_int_one(plan, column, first, last, places)
            elif op == CONSTANT:
                _put_constant(plan, column, first, last, places)
            elif op == BYTES_ONE:
                _put_bytes_one(plan, column, first, last, places)
            else:
                _put_list(plan, column, first, last, places, address(scratch))
        for r in range(first, last):
            crcs[r] = np.uint32(put_frame(base + starts[r], lengths[r]))
        first = last
