"""Serialized `tensorflow.TensorProto`s (`tf.io.serialize_tensor`) to the bytes of their values, without TensorFlow.

Fields as in tensorflow/core/framework/tensor.proto: dtype = 1, tensor_shape = 2, tensor_content = 4 (little-endian,
row-major), and the typed lists (float_val = 5, ...) that `tf.make_tensor_proto` writes for small tensors, whose last
value stands for all that follow.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import IntEnum
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
    encode_varint,
    make_message_classes,
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
_UNSUPPORTED_DTYPES = {
    7: "strings",
    8: "complex64",
    18: "complex128",
    20: "resource",
    21: "variant",
}
MAX_TENSOR_RANK = 8
_TYPED_LIST_FIELDS = {  # all others: int_val
    "float32": "float_val",
    "float64": "double_val",
    "int64": "int64_val",
    "bool": "bool_val",
    "float16": "half_val",
    "bfloat16": "half_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
}
_MAX_SHAPE_BYTES = 4096  # with names of dimensions
_MAX_COMPARED_BYTES = 256
# Numbers keep all of their bits, whatever the shape's dtype is: floats are read as words.
_TENSOR_FIELDS: MessageFields = {
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


class TensorStatus(IntEnum):
    """Where the values of a TensorProto are."""

    IN_CONTENT = 0
    IN_TYPED_LIST = 1
    NOT_A_TENSOR = 2


@functools.cache
def _classes() -> dict[str, type[Any]]:
    return make_message_classes(_TENSOR_FIELDS)


@dataclass(frozen=True)
class TensorHeaders:
    """The headers of n TensorProtos: status [n]; dtype [n], the number in the proto; rank [n]; dims [n, MAX_TENSOR_RANK];
    starts, lengths [n] of tensor_content.
    """

    status: npt.NDArray[np.uint8]
    dtype: Int64s
    rank: Int64s
    dims: Int64s
    starts: Int64s
    lengths: Int64s


def read_tensor_headers(data: Bytes, splits: Int64s) -> TensorHeaders:
    """Parses data[splits[i]:splits[i + 1]] for every i.

    Values of one size nearly always begin with the same header: protobuf parses the first, and bytes are compared.
    """
    rows = len(splits) - 1
    dtype, rank, starts, lengths = np.zeros((4, rows), np.int64)
    headers = TensorHeaders(
        status=np.full(rows, TensorStatus.NOT_A_TENSOR, np.uint8),
        dtype=dtype,
        rank=rank,
        dims=np.zeros((rows, MAX_TENSOR_RANK), np.int64),
        starts=starts,
        lengths=lengths,
    )
    sizes = np.diff(splits)
    order = np.argsort(sizes, kind="stable")
    for same_size_rows in np.split(order, np.flatnonzero(np.diff(sizes[order])) + 1):
        if not len(same_size_rows) or not sizes[same_size_rows[0]]:
            continue
        first = int(same_size_rows[0])
        head_bytes = _read_header(data, splits, first, headers)
        heads = data[splits[same_size_rows][:, None] + np.arange(head_bytes)]
        same_header_rows = (
            same_size_rows[(heads == heads[0]).all(1)] if head_bytes else same_size_rows[:1]
        )
        for column in (
            headers.status,
            headers.dtype,
            headers.rank,
            headers.dims,
            headers.starts,
            headers.lengths,
        ):
            column[same_header_rows] = column[first]
        headers.starts[same_header_rows] += splits[same_header_rows] - splits[first]
        for row in np.setdiff1d(same_size_rows, same_header_rows).tolist():
            _read_header(data, splits, row, headers)
    return headers


def _read_header(data: Bytes, splits: Int64s, row: int, headers: TensorHeaders) -> int:
    """Parses one value; gives the bytes before its content, 0 where that does not end the message."""
    payload = data[splits[row] : splits[row + 1]].tobytes()
    try:
        header = _classes()["Header"].FromString(payload)
        if not header.dtype or len(header.tensor_shape) > _MAX_SHAPE_BYTES:
            return 0
        shape = _classes()["Shape"].FromString(header.tensor_shape)
    except DecodeError:
        return 0
    dims, content = [dim.size for dim in shape.dim], header.tensor_content
    if len(dims) > MAX_TENSOR_RANK or min(dims, default=0) < 0 or shape.unknown_rank:
        return 0
    headers.status[row] = TensorStatus.IN_CONTENT if content else TensorStatus.IN_TYPED_LIST
    headers.dtype[row], headers.rank[row], headers.lengths[row] = (
        header.dtype,
        len(dims),
        len(content),
    )
    headers.dims[row, : len(dims)] = dims
    headers.starts[row] = splits[row] + payload.rfind(content)
    header_bytes, content_tag = (
        payload[: len(payload) - len(content)],
        b"\x22" + encode_varint(len(content)),
    )
    return (
        len(header_bytes)
        if header_bytes.endswith(content_tag) and _is_header(header_bytes.removesuffix(content_tag))
        else 0
    )


def _is_header(head: bytes) -> bool:
    """Returns whether a field ends where these bytes end."""
    try:
        return len(head) <= _MAX_COMPARED_BYTES and bool(_classes()["Header"].FromString(head))
    except DecodeError:
        return False


def read_dtype_and_shape(payload: bytes) -> tuple[str, tuple[int, ...]]:
    """Returns the dtype and the shape of one TensorProto; DataError where it is none, or has no numbers."""
    headers = read_tensor_headers(
        np.frombuffer(payload, np.uint8), np.array([0, len(payload)], np.int64)
    )
    if headers.status[0] == TensorStatus.NOT_A_TENSOR:
        raise DataError("no TensorProto")
    if (
        number := int(headers.dtype[0])
    ) not in TENSOR_DTYPES:  # strings, complex numbers, quantized types
        dtype_name = _UNSUPPORTED_DTYPES.get(number, f"DataType {number}")
        raise DataError(f"a tensor of {dtype_name}, which can't be a column of numbers")
    return TENSOR_DTYPES[number], tuple(headers.dims[0, : headers.rank[0]].tolist())


def decode_typed_list(payload: bytes, dtype: str, size: int) -> bytes:
    """Returns the little-endian bytes of the values of one TensorProto that holds them in a typed list; DataError where
    these are more than the shape needs, none where there should be some, or what is no value.
    """
    try:
        values = getattr(
            _classes()["Values"].FromString(payload), _TYPED_LIST_FIELDS.get(dtype, "int_val")
        )
    except DecodeError:
        raise DataError("a typed list of a TensorProto is damaged") from None
    if len(values) > size or (size and not len(values)):
        raise DataError(f"{len(values)} values where the shape needs {size}")
    word_type = {"float32": "u4", "float64": "u8"}.get(dtype, "i8")
    numbers = np.fromiter(values, np.dtype(f"<{word_type}"), len(values))
    if _TYPED_LIST_FIELDS.get(dtype) == "half_val":  # 16 bits
        if len(bad_numbers := numbers[(numbers < 0) | (numbers > 0xFFFF)]):
            raise DataError(f"{bad_numbers[0]} as the 16 bits of a {dtype}")
        dtype = "uint16"
    numbers = (
        numbers.view(np.dtype(dtype))
        if dtype.startswith("float")
        else numbers.astype(np.dtype(dtype))
    )
    return (
        np.concatenate(
            [numbers, np.full(size - len(numbers), numbers[-1], numbers.dtype)]
        ).tobytes()
        if size
        else b""
    )
