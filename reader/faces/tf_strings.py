"""Texts of a column to one serialized `tensorflow.TensorProto`, which `tf.io.parse_tensor` makes a string tensor of.

An object array of `bytes` costs TensorFlow a Python object for each text; this costs a copy. Encoding: protobuf's wire
format of tensorflow/core/framework/tensor.proto: dtype = 1, tensor_shape = 2, string_val = 8.
"""

from __future__ import annotations

import numpy as np

from recordmill.base.kernels import kernel
from recordmill.base.memory import address, address_of, copy, load64, store8
from recordmill.records.columns.ragged import Array, Splits

_MOST_VARINT = 10  # bytes


def as_tensor_proto(values: Array, offsets: Splits) -> bytes:
    """Text i is values[offsets[i] : offsets[i + 1]].

    >>> as_tensor_proto(np.frombuffer(b"ab", np.uint8), np.array([0, 1, 2]))
    b'\\x08\\x07\\x12\\x04\\x12\\x02\\x08\\x02B\\x01aB\\x01b'
    """
    values, offsets = np.ascontiguousarray(values), np.ascontiguousarray(offsets, np.int64)
    count = len(offsets) - 1
    size = b"\x08" + _varint(count)
    shape = b"\x12" + _varint(len(size)) + size
    head = b"\x08\x07\x12" + _varint(len(shape)) + shape
    out = np.empty(len(head) + int(offsets[-1]) + count * (1 + _MOST_VARINT), np.uint8)
    out[: len(head)] = np.frombuffer(head, np.uint8)
    return out[: _write(address_of(values), address_of(offsets), count, len(head), out)].tobytes()


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


@kernel
def _write(source: int, offsets: int, count: int, at: int, out: Array) -> int:
    """Each text with its tag and length, from byte `at` of out on, which has room for all; where they end."""
    target = address(out)
    for i in range(count):
        start = load64(offsets + 8 * i)
        length = load64(offsets + 8 * i + 8) - start
        store8(target + at, 0x42)
        at += 1
        left = length
        while left > 0x7F:
            store8(target + at, left & 0x7F | 0x80)
            left >>= 7
            at += 1
        store8(target + at, left)
        at += 1
        copy(target + at, source + start, length)
        at += length
    return at
