"""TensorProtos of TensorFlow decode to its values, and damaged ones are refused."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.wire_writer import varint

from recordmill.base.errors import DataError, UsageError
from recordmill.records.columns.convert import DecodeTensor
from recordmill.records.columns.numpy_arrays import to_numpy
from recordmill.records.protobuf.tensor_proto import TENSOR_DTYPES, read_dtype_and_shape
from recordmill.schemas.feature import Feature

BYTES = Feature("x", "bytes")


def decode_tensors(
    payloads: list[bytes | None], dtype: str, shape: tuple[int | None, ...]
) -> tuple[pa.Array, dict[int, str]]:
    column, faults = DecodeTensor("x", dtype, shape).convert(
        pa.array(payloads, pa.large_binary()), BYTES
    )
    column.validate(full=True)
    return column, dict(faults)


def make_tensor_proto(
    dtype: int, shape: tuple[int, ...], content: bytes | None, extra: bytes = b""
) -> bytes:
    dims = b"".join(
        b"\x12" + varint(len(dim)) + dim for dim in (b"\x08" + varint(size) for size in shape)
    )
    body = b"\x08" + varint(dtype) + b"\x12" + varint(len(dims)) + dims
    return body + (b"" if content is None else b"\x22" + varint(len(content)) + content) + extra


@pytest.mark.parametrize("number", sorted(TENSOR_DTYPES))
def test_tensors_of_tensorflow_decode_to_its_values(number: int) -> None:
    tf = pytest.importorskip("tensorflow")
    dtype = TENSOR_DTYPES[number]
    rng = np.random.default_rng(2)
    arrays = [
        rng.integers(
            0 if dtype.startswith(("u", "b")) else -9, 2 if dtype == "bool" else 9, (3, 4)
        ).astype(tf.dtypes.as_dtype(number).as_numpy_dtype)
        for _ in range(4)
    ]
    payloads = [tf.io.serialize_tensor(array).numpy() for array in arrays]
    payloads += [tf.make_tensor_proto(array).SerializeToString() for array in arrays]
    # One value that is repeated
    payloads += [
        tf.compat.v1.make_tensor_proto(arrays[0].ravel()[0], shape=(3, 4)).SerializeToString()
    ]
    assert read_dtype_and_shape(payloads[0]) == (dtype, (3, 4))
    column, faults = decode_tensors(payloads, dtype, (3, 4))
    assert not faults
    values = to_numpy(column, Feature("x", dtype, (3, 4), True))
    for row, payload in zip(values, payloads, strict=True):
        assert np.array_equal(
            row, tf.io.parse_tensor(payload, tf.dtypes.as_dtype(number)).numpy().astype(row.dtype)
        )


def test_scalars_empty_tensors_and_varying_lengths_are_decoded() -> None:
    tf = pytest.importorskip("tensorflow")
    payloads = [
        tf.io.serialize_tensor(np.float32(2.5)).numpy(),
        tf.make_tensor_proto(1.5).SerializeToString(),
        None,
    ]
    assert decode_tensors(payloads, "float32", ())[0].to_pylist() == [2.5, 1.5, None]
    arrays = [np.arange(2 * rows, dtype=np.int32).reshape(rows, 2) for rows in (3, 0, 1)]
    column, faults = decode_tensors(
        [tf.io.serialize_tensor(array).numpy() for array in arrays], "int32", (None, 2)
    )
    assert column.to_pylist() == [array.tolist() for array in arrays]
    assert not faults


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "not a TensorProto"),
        (b"\xff" * 20, "not a TensorProto"),
        (b"JFIF", "not a TensorProto"),
        (make_tensor_proto(1, (2,), bytes(8))[:-1], "not a TensorProto"),
        (make_tensor_proto(1, (2,), bytes(7)), "a tensor float32 [2] with 7 bytes of content"),
        (
            make_tensor_proto(1, (3,), bytes(12)),
            "a tensor float32 [3] where float32 [2] is expected; if the first dimension varies: x=float32[-1]",
        ),
        (make_tensor_proto(3, (2,), bytes(8)), "a tensor int32 [2] where float32 [2] is expected"),
        (
            make_tensor_proto(7, (2,), None),
            "a tensor of DataType 7 [2] where float32 [2] is expected",
        ),
        (
            make_tensor_proto(1, (2, 1), bytes(8)),
            "a tensor float32 [2, 1] where float32 [2] is expected",
        ),
        (make_tensor_proto(1, (2,), None), "0 values where the shape needs 2"),
        (
            make_tensor_proto(1, (2,), None, b"\x2a\x0c" + bytes(12)),
            "3 values where the shape needs 2",
        ),
        (
            make_tensor_proto(1, (2**62,), bytes(8)),
            f"a tensor float32 [{2**62}] where float32 [2] is expected; if the first dimension varies: x=float32[-1]",
        ),
        (make_tensor_proto(1, (-1,), bytes(8)), "not a TensorProto"),
        (make_tensor_proto(1, (1,) * 9, bytes(4)), "not a TensorProto"),
        (
            make_tensor_proto(1, (2,), None, b"\x2a\x03abc"),
            "a typed list of a TensorProto is damaged",
        ),
    ],
)
def test_bad_tensor_is_reported_with_its_reason(payload: bytes, reason: str) -> None:
    good = make_tensor_proto(1, (2,), np.array([1, 2], "<f4").tobytes())
    column, faults = decode_tensors([good, payload, None, good], "float32", (2,))
    assert faults == {1: reason}
    assert column.to_pylist() == [[1, 2], None, [1, 2]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_value_beyond_16_bits_is_refused(dtype: str) -> None:
    number = next(number for number, name in TENSOR_DTYPES.items() if name == dtype)
    payloads = [
        make_tensor_proto(number, (1,), None, b"\x68" + varint(bits))
        for bits in (70000, -1, 0x3C00)
    ]
    column, faults = decode_tensors(payloads, dtype, (1,))
    assert faults == {0: f"70000 as the 16 bits of a {dtype}", 1: f"-1 as the 16 bits of a {dtype}"}
    assert len(column) == 1


def test_typed_list_in_several_fields_is_decoded() -> None:
    packed = b"".join(varint(value) for value in (7, -6, 2**40))
    payload = make_tensor_proto(
        9, (5,), None, b"\x50\x05\x52" + varint(len(packed)) + packed + b"\x50\x08"
    )
    assert decode_tensors([payload], "int64", (5,))[0].to_pylist() == [[5, 7, -6, 2**40, 8]]
    bad_payload = make_tensor_proto(9, (5,), None, b"\x52\x0b" + b"\xff" * 11)
    assert decode_tensors([bad_payload], "int64", (5,))[1] == {
        0: "a typed list of a TensorProto is damaged"
    }


def test_tensors_of_equal_size_are_located_by_their_own_headers() -> None:
    """The content of a tensor is not found by a search for its bytes.

    The content of the first tensor also appears in its header. The bytes after the content may
    repeat it.
    """
    payloads = [make_tensor_proto(4, (1,), bytes([byte])) for byte in (8, 1, 18, 34, 9)]
    assert decode_tensors([*payloads], "uint8", (1,))[0].to_pylist() == [[8], [1], [18], [34], [9]]
    payloads_with_tail = [
        make_tensor_proto(4, (1,), b"\x07", b"\x18" + bytes([version])) for version in (7, 8, 9)
    ]
    assert decode_tensors([*payloads_with_tail], "uint8", (1,))[0].to_pylist() == [[7]] * 3


def test_tensor_that_repeats_one_value_is_bounded() -> None:
    """A shape of 2^31 - 1 costs no memory."""
    payloads = [make_tensor_proto(1, (size,), None, b"\x2d" + bytes(4)) for size in (3, 2**31 - 1)]
    column, faults = decode_tensors(payloads, "float32", (None,))
    assert column.to_pylist() == [[0.0, 0.0, 0.0]]
    assert faults == {1: f"a tensor of {2**31 - 1} values that repeat one; {2**26} at most may"}


def test_damaged_tensor_is_refused_or_keeps_its_shape() -> None:
    payload = make_tensor_proto(1, (2, 2), np.arange(4, dtype="<f4").tobytes())
    damaged: list[Any] = [payload[:size] for size in range(len(payload))]
    damaged += [
        payload[:index] + bytes([payload[index] ^ 1 << bit]) + payload[index + 1 :]
        for index in range(len(payload))
        for bit in range(8)
    ]
    column, faults = decode_tensors(damaged, "float32", (2, 2))
    assert len(column) + len(faults) == len(damaged)
    assert set(range(len(payload))) <= set(faults)
    assert pa.types.is_fixed_size_list(column.type)


def test_dtype_and_shape_are_read_of_numeric_tensors_only() -> None:
    with pytest.raises(DataError, match="tensor of strings"):
        read_dtype_and_shape(make_tensor_proto(7, (2,), None))
    with pytest.raises(DataError, match="not a TensorProto"):
        read_dtype_and_shape(b"x")


def test_tensor_of_more_than_8_dimensions_is_refused() -> None:
    with pytest.raises(UsageError, match=r"decode_tensor=.*of at most 8 dimensions, not 9"):
        decode_tensors([make_tensor_proto(1, (1,) * 9, bytes(4))], "float32", (1,) * 9)
