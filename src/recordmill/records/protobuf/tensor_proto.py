"""Serialized `tensorflow.TensorProto`s (`tf.io.serialize_tensor`) to the bytes of their values, without TensorFlow.

Fields as in tensorflow/core/framework/tensor.proto: dtype = 1, tensor_shape = 2, tensor_content = 4 (little-endian,
row-major), and the typed lists (float_val = 5, ...) that `tf.make_tensor_proto` writes for small tensors, whose last
value stands for all that follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.errors import DataError
from recordmill.base.kernels import allocating
from recordmill.base.pointers import address_of
from recordmill.records.protobuf import varints
from recordmill.records.protobuf.wire import varint

TENSOR_DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 9: "int64", 10: "bool", 14: "bfloat16",
    17: "uint16", 19: "float16", 22: "uint32", 23: "uint64",
}  # fmt: skip
_OTHERS = {7: "strings", 8: "complex64", 18: "complex128", 20: "resource", 21: "variant"}
MAX_RANK = 8
PLAIN_DTYPES, TYPED_FIELDS, BROKEN = (
    0,
    1,
    2,
)  # of a row: values in tensor_content; perhaps in a typed list; no TensorProto
# field to the layout of packed values; "": varints
_LISTS = {5: "<f4", 6: "<f8", 7: "", 10: "", 11: "", 13: "", 16: "", 17: ""}
# all others: int_val
_LIST_OF = {
    "float32": 5,
    "float64": 6,
    "int64": 10,
    "bool": 11,
    "float16": 13,
    "bfloat16": 13,
    "uint32": 16,
    "uint64": 17,
}


@dataclass(frozen=True)
class Headers:
    """What n TensorProtos say: status [n]; dtype [n], the number in the proto; rank [n]; dims [n, MAX_RANK]; starts,
    lengths [n] of tensor_content.
    """

    status: npt.NDArray[np.uint8]
    dtype: Int64s
    rank: Int64s
    dims: Int64s
    starts: Int64s
    lengths: Int64s


def read_headers(data: Bytes, splits: Int64s) -> Headers:
    """Parse data[splits[i]:splits[i + 1]] for every i."""
    rows = len(splits) - 1
    found = Headers(
        np.zeros(rows, np.uint8), np.zeros(rows, np.int64), np.zeros(rows, np.int64),
        np.zeros((rows, MAX_RANK), np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.int64),
    )  # fmt: skip
    _headers(
        np.ascontiguousarray(data),
        np.ascontiguousarray(splits),
        found.status,
        found.dtype,
        found.rank,
        found.dims,
        found.starts,
        found.lengths,
    )
    return found


@allocating
def _headers(
    data: Bytes,
    splits: Int64s,
    status: npt.NDArray[np.uint8],
    dtype: Int64s,
    rank: Int64s,
    dims: Int64s,
    starts: Int64s,
    lengths: Int64s,
) -> None:
    fault = np.zeros(2, np.int64)
    for row in range(len(splits) - 1):
        at, end = splits[row], splits[row + 1]
        content = False
        while 0 <= at < end:
            tag, at = varint(data, at, end, fault)
            if at < 0:
                break
            field, wire = np.int64(tag) >> 3, np.int64(tag) & 7
            if wire == 0:
                value, at = varint(data, at, end, fault)
                if field == 1:
                    dtype[row] = np.int64(value)
            elif wire == 2:
                size, at = varint(data, at, end, fault)
                length = np.int64(size)
                if at < 0 or length < 0 or length > end - at:
                    at = -1
                    break
                if field == 2:
                    if not _shape(data, at, at + length, row, rank, dims):  # type: ignore[arg-type]
                        at = -1
                        break
                elif field == 4:
                    starts[row], lengths[row] = at, length
                    content = True
                at += length
            elif wire == 5 and field == 5 and end - at >= 4:
                at += 4
            elif wire == 1 and field == 6 and end - at >= 8:
                at += 8
            else:
                at = -1
        if at < 0 or at != end or dtype[row] == 0:
            status[row] = BROKEN
        else:
            status[row] = PLAIN_DTYPES if content else TYPED_FIELDS


@allocating
def _shape(data: Bytes, at: int, end: int, row: int, rank: Int64s, dims: Int64s) -> bool:
    """A TensorShapeProto: dim = 2, each with size = 1 and name = 2."""
    fault = np.zeros(2, np.int64)
    while at < end:
        tag, at = varint(data, at, end, fault)
        if at < 0 or np.int64(tag) != 18:  # field 2, length-delimited; unknown_rank = 3 has no place in a value
            return False
        size, at = varint(data, at, end, fault)
        stop = at + np.int64(size)
        if at < 0 or stop < at or stop > end or rank[row] >= MAX_RANK:
            return False
        while at < stop:
            tag, at = varint(data, at, stop, fault)  # type: ignore[arg-type]
            if at < 0:
                return False
            value, at = varint(data, at, stop, fault)  # type: ignore[arg-type]
            if at < 0:
                return False
            if np.int64(tag) == 8:
                if np.int64(value) < 0:
                    return False
                dims[row, rank[row]] = np.int64(value)
            elif np.int64(tag) == 18:  # the dimension's name
                if np.int64(value) < 0 or np.int64(value) > stop - at:
                    return False
                at += np.int64(value)  # type: ignore[assignment]
            else:
                return False
        rank[row] += 1
    return True


@allocating
def copy_ranges(data: Bytes, starts: Int64s, lengths: Int64s, out: Bytes, places: Int64s) -> None:
    """Copy data[starts[i] : starts[i] + lengths[i]] to out[places[i]:] for every i."""
    for i in range(len(starts)):
        out[places[i] : places[i] + lengths[i]] = data[starts[i] : starts[i] + lengths[i]]


def dtype_name(number: int) -> str:
    """The dtype of the proto's number.

    Raises:
        DataError: strings, complex numbers, quantized types.
    """
    try:
        return TENSOR_DTYPES[number]
    except KeyError:
        raise DataError(
            f"a tensor of {_OTHERS.get(number, f'DataType {number}')}, which can't be a column of numbers"
        ) from None


def first_header(payload: bytes) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape of one TensorProto.

    Raises:
        DataError: it is none, or has no numbers.
    """
    found = read_headers(np.frombuffer(payload, np.uint8), np.array([0, len(payload)], np.int64))
    if found.status[0] == BROKEN:
        raise DataError("no TensorProto")
    return dtype_name(int(found.dtype[0])), tuple(found.dims[0, : found.rank[0]].tolist())


def typed_values(payload: bytes, dtype: str, size: int) -> bytes:
    """The little-endian bytes of the values of one TensorProto that holds them in a typed list.

    Raises:
        DataError: the list holds more values than the shape, or none where there should be some, or what is no value.
    """
    wanted = _LIST_OF.get(dtype, 7)
    kind = np.dtype(_LISTS[wanted] or np.int64)
    parts = [np.empty(0, kind), *(_values(value, kind) for field, _, value in _fields(payload) if field == wanted)]
    found = np.concatenate(parts)
    if len(found) > size or (size and not len(found)):
        raise DataError(f"{len(found)} values where the shape needs {size}")
    if wanted == _LIST_OF["float16"]:  # half_val holds the 16 bits
        if len(wrong := found[(found < 0) | (found > 0xFFFF)]):
            raise DataError(f"{wrong[0]} as the 16 bits of a {dtype}")
        dtype = "uint16"
    found = found.astype(np.dtype(dtype).newbyteorder("<"))
    return np.concatenate([found, np.full(size - len(found), found[-1], found.dtype)]).tobytes() if size else b""


def _values(value: int | bytes, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Those of one field, packed or one by one."""
    if isinstance(value, int):
        return np.array([value], np.uint64).view(np.int64)
    if kind == np.int64:
        return _varints(np.frombuffer(value, np.uint8))
    if len(value) % kind.itemsize:
        raise DataError(f"{len(value)} bytes of values of {kind.itemsize} bytes each")
    return np.frombuffer(value, kind)


def _fields(payload: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """(field, wire type, value) of a message that `_headers` found to be whole."""
    at = 0
    while at < len(payload):
        tag, at = _varint(payload, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(payload, at)
            yield tag >> 3, wire, value
            continue
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            size, at = _varint(payload, at)
        yield tag >> 3, wire, payload[at : at + size]
        at += size


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    value, behind = varint(np.frombuffer(payload, np.uint8), at, len(payload), np.zeros(2, np.int64))
    if behind < 0:
        raise DataError("a typed list of a TensorProto is truncated")
    return int(value), int(behind)


def _varints(data: Bytes) -> Int64s:
    at, size = np.array([address_of(data)]), np.array([len(data)])
    bad, offsets, limit = np.zeros(1, np.uint8), np.empty(2, np.int64), address_of(data) + len(data)
    count = varints.count_varints(at, size, limit, bad, offsets)
    values = np.empty(count + varints.OVERRUN, np.int64)
    varints.read_varints(at, size, limit, bad, offsets, values)
    if bad.any():
        raise DataError("a typed list of a TensorProto is damaged")
    return values[:count]
