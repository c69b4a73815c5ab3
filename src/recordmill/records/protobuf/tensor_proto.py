"""Serialized `tensorflow.TensorProto`s (`tf.io.serialize_tensor`) to the bytes of their values, without TensorFlow.

Fields as in tensorflow/core/framework/tensor.proto: dtype = 1, tensor_shape = 2, tensor_content = 4 (little-endian,
row-major), and the typed lists (float_val = 5, ...) that `tf.make_tensor_proto` writes for small tensors, whose last
value stands for all that follow.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import DataError
from recordmill.records.protobuf.message import (
    TYPE_BYTES,
    TYPE_FIXED32,
    TYPE_FIXED64,
    TYPE_INT64,
    MessageFields,
    encoded_varint,
    message_classes,
)

TENSOR_DTYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    19: "float16",
    22: "uint32",
    23: "uint64",
}
_OTHERS = {7: "strings", 8: "complex64", 18: "complex128", 20: "resource", 21: "variant"}
MAX_RANK = 8
# of a row: values in tensor_content; perhaps in a typed list; no TensorProto
PLAIN_DTYPES, TYPED_FIELDS, BROKEN = range(3)
_LISTS = {  # all others: int_val
    "float32": "float_val",
    "float64": "double_val",
    "int64": "int64_val",
    "bool": "bool_val",
    "float16": "half_val",
    "bfloat16": "half_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
}
_MOST_SHAPE_BYTES = 4096  # with names of dimensions
_MOST_COMPARED_BYTES = 256
# Numbers keep all of their bits, whatever the shape's dtype is: floats are read as words.
_FIELDS: MessageFields = {
    "Header": {"dtype": TYPE_INT64, "tensor_shape": TYPE_BYTES, "tensor_content": (TYPE_BYTES, 4)},
    "Shape": {"*dim": ("Dimension", 2), "unknown_rank": TYPE_INT64},
    "Dimension": {"size": TYPE_INT64},
    "Values": {
        "*float_val": (TYPE_FIXED32, 5),
        "*double_val": TYPE_FIXED64,
        "*int_val": TYPE_INT64,
        "*int64_val": (TYPE_INT64, 10),
        "*bool_val": TYPE_INT64,
        "*half_val": (TYPE_INT64, 13),
        "*uint32_val": (TYPE_INT64, 16),
        "*uint64_val": TYPE_INT64,
    },
}


@functools.cache
def _classes() -> dict[str, type[Any]]:
    return message_classes(_FIELDS)


@dataclass(frozen=True)
class Headers:
    """The headers of n TensorProtos: status [n]; dtype [n], the number in the proto; rank [n]; dims [n, MAX_RANK];
    starts, lengths [n] of tensor_content.
    """

    status: npt.NDArray[np.uint8]
    dtype: Int64s
    rank: Int64s
    dims: Int64s
    starts: Int64s
    lengths: Int64s


def read_headers(data: Bytes, splits: Int64s) -> Headers:
    """Parses data[splits[i]:splits[i + 1]] for every i.

    Values of one size nearly always begin with the same header: protobuf parses the first, and bytes are compared.
    """
    rows = len(splits) - 1
    dtype, rank, starts, lengths = np.zeros((4, rows), np.int64)
    found = Headers(
        np.full(rows, BROKEN, np.uint8),
        dtype,
        rank,
        np.zeros((rows, MAX_RANK), np.int64),
        starts,
        lengths,
    )
    sizes = np.diff(splits)
    order = np.argsort(sizes, kind="stable")
    for alike in np.split(order, np.flatnonzero(np.diff(sizes[order])) + 1):
        if not len(alike) or not sizes[alike[0]]:
            continue
        first = int(alike[0])
        head_bytes = _read_header(data, splits, first, found)
        heads = data[splits[alike][:, None] + np.arange(head_bytes)]
        same = alike[(heads == heads[0]).all(1)] if head_bytes else alike[:1]
        for column in (
            found.status,
            found.dtype,
            found.rank,
            found.dims,
            found.starts,
            found.lengths,
        ):
            column[same] = column[first]
        found.starts[same] += splits[same] - splits[first]
        for row in np.setdiff1d(alike, same).tolist():
            _read_header(data, splits, row, found)
    return found


def _read_header(data: Bytes, splits: Int64s, row: int, found: Headers) -> int:
    """Parses one value; gives the bytes before its content, 0 where that does not end the message."""
    payload = data[splits[row] : splits[row + 1]].tobytes()
    try:
        header = _classes()["Header"].FromString(payload)
        if not header.dtype or len(header.tensor_shape) > _MOST_SHAPE_BYTES:
            return 0
        shape = _classes()["Shape"].FromString(header.tensor_shape)
    except DecodeError:
        return 0
    dims, content = [dim.size for dim in shape.dim], header.tensor_content
    if len(dims) > MAX_RANK or min(dims, default=0) < 0 or shape.unknown_rank:
        return 0
    found.status[row] = PLAIN_DTYPES if content else TYPED_FIELDS
    found.dtype[row], found.rank[row], found.lengths[row] = header.dtype, len(dims), len(content)
    found.dims[row, : len(dims)] = dims
    found.starts[row] = splits[row] + payload.rfind(content)
    head, mark = payload[: len(payload) - len(content)], b"\x22" + encoded_varint(len(content))
    return len(head) if head.endswith(mark) and _is_header(head.removesuffix(mark)) else 0


def _is_header(head: bytes) -> bool:
    """Returns whether a field ends where these bytes end."""
    try:
        return len(head) <= _MOST_COMPARED_BYTES and bool(_classes()["Header"].FromString(head))
    except DecodeError:
        return False


def first_header(payload: bytes) -> tuple[str, tuple[int, ...]]:
    """Returns the dtype and the shape of one TensorProto; DataError where it is none, or has no numbers."""
    found = read_headers(np.frombuffer(payload, np.uint8), np.array([0, len(payload)], np.int64))
    if found.status[0] == BROKEN:
        raise DataError("no TensorProto")
    if (
        number := int(found.dtype[0])
    ) not in TENSOR_DTYPES:  # strings, complex numbers, quantized types
        what = _OTHERS.get(number, f"DataType {number}")
        raise DataError(f"a tensor of {what}, which can't be a column of numbers")
    return TENSOR_DTYPES[number], tuple(found.dims[0, : found.rank[0]].tolist())


def typed_values(payload: bytes, dtype: str, size: int) -> bytes:
    """Returns the little-endian bytes of the values of one TensorProto that holds them in a typed list; DataError where
    these are more than the shape needs, none where there should be some, or what is no value.
    """
    try:
        values = getattr(_classes()["Values"].FromString(payload), _LISTS.get(dtype, "int_val"))
    except DecodeError:
        raise DataError("a typed list of a TensorProto is damaged") from None
    if len(values) > size or (size and not len(values)):
        raise DataError(f"{len(values)} values where the shape needs {size}")
    kind = {"float32": "u4", "float64": "u8"}.get(dtype, "i8")
    found = np.fromiter(values, np.dtype(f"<{kind}"), len(values))
    if _LISTS.get(dtype) == "half_val":  # 16 bits
        if len(wrong := found[(found < 0) | (found > 0xFFFF)]):
            raise DataError(f"{wrong[0]} as the 16 bits of a {dtype}")
        dtype = "uint16"
    found = (
        found.view(np.dtype(dtype)) if dtype.startswith("float") else found.astype(np.dtype(dtype))
    )
    return (
        np.concatenate([found, np.full(size - len(found), found[-1], found.dtype)]).tobytes()
        if size
        else b""
    )
