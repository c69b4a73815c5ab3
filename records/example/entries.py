"""Flat arrays of all entries of an Example in, framed Examples out: two passes of compiled code, sizes and then bytes.

Sizes give every record its place. Both passes go through blocks of records whose output stays in the first-level cache,
and in a block through the columns, so that what is constant for a column is in registers and what one record needs from
all columns is near. Message bytes are those of the pure-Python protobuf with `SerializeToString(deterministic=True)`:
entries in the bytewise order of their names, numbers packed.

    Example  { 1: Features { 1: entry ... } }      entry  { 1: name, 2: Feature }
    Feature  { 1: BytesList | 2: FloatList | 3: Int64List }, each { 1: value ... }
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError
from recordmill.base.memory import CHUNK_BYTES, address_of
from recordmill.base.room import room
from recordmill.records.example import encode_kernels as k
from recordmill.records.example.flat import Flat
from recordmill.records.protobuf.packing import SCRATCH_BYTES
from recordmill.records.tfrecord.frames import Frames
from recordmill.schemas.feature import BYTES, FLOAT, INT64

PROTOBUF_LIMIT_BYTES = 1 << 31  # protobuf refuses a message of 2 GiB and more, when it writes and when it reads

TAGS = {BYTES: b"\x0a", FLOAT: b"\x12", INT64: b"\x1a"}


def encode_flat(flats: Sequence[Flat], rows: int) -> Frames:
    """Framed Examples from the flat arrays of all their entries, in any order."""
    flats = sorted(flats, key=lambda flat: flat.storage.name.encode())
    plan = np.zeros((len(flats), k.PLAN_FIELDS), np.int64)
    kept: list[npt.NDArray[np.generic]] = []  # what the plan points to
    for line, flat in zip(plan, flats, strict=True):
        _plan_column(line, flat, kept)
    sizes, starts, lengths = (room(rows, np.int64) for _ in range(3))
    total = k.encode_sizes(plan, sizes, starts, lengths)
    if rows and (longest := int(lengths.max())) >= PROTOBUF_LIMIT_BYTES:
        raise DataError(
            f"the record has {longest} bytes and protobuf's limit is 2 GiB", place=f"row {int(lengths.argmax())}"
        )
    out = room(total + CHUNK_BYTES, np.uint8)
    crcs = room(rows, np.uint32)
    k.encode_bytes(
        plan, sizes, starts, lengths, out, crcs, np.empty(k.BLOCK_ROWS, np.int64), np.empty(SCRATCH_BYTES, np.uint8)
    )
    return Frames(out[:total], starts, lengths, crcs)


def _plan_column(line: npt.NDArray[np.int64], flat: Flat, kept: list[npt.NDArray[np.generic]]) -> None:
    """Fill one row of the plan; what it points to goes into kept."""

    def point(array: npt.NDArray[np.generic] | None) -> int:
        if array is None:
            return 0
        kept.append(np.ascontiguousarray(array))
        return address_of(kept[-1])

    line[k.VALID], line[k.SPLITS], line[k.VALUES], line[k.VALUE_SPLITS] = (
        point(a) for a in (flat.valid, flat.splits, flat.values, flat.value_splits)
    )
    line[k.LENGTH], line[k.WIDTH] = flat.length, flat.width
    name = flat.storage.name.encode()
    key = b"\x0a" + encoded_varint(len(name)) + name + b"\x12"
    line[k.KEY], line[k.KEY_BYTES] = point(_padded([key])), len(key)
    line[k.OP] = _operation(flat)
    if line[k.OP] == k.INT_ONE:
        heads = [_head(key, INT64, size) for size in range(11)]
        line[k.SIZES :] = [len(head) + size for size, head in enumerate(heads)]
        padded = _padded(heads)
        line[k.HEAD], line[k.HEAD_STRIDE] = point(padded), len(padded) // len(heads)
    elif line[k.OP] == k.CONSTANT:
        width = flat.width if flat.storage.kind == BYTES else flat.length * flat.values.dtype.itemsize
        head = _head(key, flat.storage.kind, width)
        line[k.WIDTH], line[k.HEAD], line[k.SIZES] = width, point(_padded([head])), len(head) + width
    elif line[k.OP] != k.BYTES_ONE:
        line[k.KEPT] = point(room(flat.rows, np.int64))


def _operation(flat: Flat) -> int:
    fixed = flat.splits is None
    if flat.storage.kind == INT64:
        return k.CONSTANT if fixed and flat.length == 0 else k.INT_ONE if fixed and flat.length == 1 else k.INT_LIST
    if flat.storage.kind == FLOAT:
        return k.CONSTANT if fixed else k.FLOAT_LIST
    if fixed and flat.length == 1:
        return k.CONSTANT if flat.value_splits is None else k.BYTES_ONE
    return k.BYTES_LIST


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
