"""Reader of serialized TensorProtos that does not need TensorFlow.

`tf.io.serialize_tensor` writes them, and `tensorflow/core/framework/tensor.proto` defines the
fields. The values are either in `tensor_content`, as little-endian bytes in row-major order, or in
a typed list such as `float_val`. `tf.make_tensor_proto` writes typed lists for small tensors. If a
typed list has fewer values than the tensor, its last value is repeated.
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

# dtype by TensorFlow's DataType number.
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
# The typed list of each dtype. All other dtypes use int_val.
_TYPED_LIST_FIELDS = {
    "float32": "float_val",
    "float64": "double_val",
    "int64": "int64_val",
    "bool": "bool_val",
    "float16": "half_val",
    "bfloat16": "half_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
}
# The serialized shape may contain the names of the dimensions.
_MAX_SHAPE_BYTES = 4096
_MAX_COMPARED_BYTES = 256
# Floats are read as words, so that they keep all their bits.
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
    """Headers of n TensorProtos.

    Attributes:
        status: uint8 [n], a TensorStatus.
        dtype: int64 [n], the DataType number in the proto.
        rank: int64 [n], the number of dimensions.
        dims: int64 [n, MAX_TENSOR_RANK], the sizes of the dimensions.
        starts: int64 [n], the offset of `tensor_content`.
        lengths: int64 [n], the size of `tensor_content` in bytes.
    """

    status: npt.NDArray[np.uint8]
    dtype: Int64s
    rank: Int64s
    dims: Int64s
    starts: Int64s
    lengths: Int64s


def read_tensor_headers(data: Bytes, splits: Int64s) -> TensorHeaders:
    """Parses the headers of TensorProtos in one buffer.

    Values of the same size nearly always have the same header. So protobuf parses the first one of
    each size, and the headers of the others are compared with it byte by byte.

    Args:
        data: The buffer.
        splits: [n + 1] TensorProto i is `data[splits[i]:splits[i + 1]]`.
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
    # groups the rows by their size
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
        # The offset of the content was copied from the first row.
        headers.starts[same_header_rows] += splits[same_header_rows] - splits[first]
        for row in np.setdiff1d(same_size_rows, same_header_rows).tolist():
            _read_header(data, splits, row, headers)
    return headers


def _read_header(data: Bytes, splits: Int64s, row: int, headers: TensorHeaders) -> int:
    """Parses the header of one value, and fills its row of `headers`.

    Returns:
        The number of bytes before the content. 0 if the value is not a TensorProto, or if its
        content is not at its end.
    """
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
    # Other rows may be compared byte by byte only if the content is the last field, and the bytes
    # before it are a complete header.
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
    """Returns whether bytes are a complete sequence of fields."""
    try:
        return len(head) <= _MAX_COMPARED_BYTES and bool(_classes()["Header"].FromString(head))
    except DecodeError:
        return False


def read_dtype_and_shape(payload: bytes) -> tuple[str, tuple[int, ...]]:
    """Returns the dtype and the shape of a TensorProto.

    Raises:
        DataError: The payload is not a TensorProto, or its dtype can't be a column of numbers.
    """
    headers = read_tensor_headers(
        np.frombuffer(payload, np.uint8), np.array([0, len(payload)], np.int64)
    )
    if headers.status[0] == TensorStatus.NOT_A_TENSOR:
        raise DataError("not a TensorProto")
    if (number := int(headers.dtype[0])) not in TENSOR_DTYPES:
        # strings, complex numbers and quantized types
        dtype_name = _UNSUPPORTED_DTYPES.get(number, f"DataType {number}")
        raise DataError(f"a tensor of {dtype_name}, which can't be a column of numbers")
    return TENSOR_DTYPES[number], tuple(headers.dims[0, : headers.rank[0]].tolist())


def decode_typed_list(payload: bytes, dtype: str, size: int) -> bytes:
    """Returns the values in the typed list of a TensorProto as little-endian bytes.

    If the list is shorter than the tensor, its last value is repeated.

    Args:
        payload: The serialized TensorProto.
        dtype: The dtype of the tensor.
        size: The number of values in its shape.

    Raises:
        DataError: The list has too many values, it is empty although the shape needs values, or it
            has an invalid value.
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
    # A half_val stores the 16 bits of a number as an integer.
    if _TYPED_LIST_FIELDS.get(dtype) == "half_val":
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
