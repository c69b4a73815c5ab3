"""What a read that decodes nothing could decode: `suggestions` looks at a few values of each bytes feature, in one
piece of the inputs.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.base.option_names import option
from recordmill.exporting.choices.resolve import Records
from recordmill.records.columns.decode_images import looks_like_image
from recordmill.records.protobuf.tensor_proto import PLAIN, TENSOR_DTYPES, read_headers
from recordmill.schemas.feature import ITEM_BYTES, Schema

_LOOKED_AT = (
    3  # values of a feature; bytes that are all TensorProtos whose values fill their shapes are so by no accident
)


def suggestions(records: Records, schema: Schema) -> list[str]:
    """A note for each feature of the schema that is written as bytes and holds encoded images or serialized tensors;
    one load is read for it, 8 MiB at most.
    """
    names = tuple(
        feature.name
        for feature in schema
        if feature.dtype == "bytes" and not feature.shape and feature.name in records.schema
    )
    if not names:
        return []
    try:
        first = next(records.batches(names, 1), None)
    except DataError:
        return []  # reading says what is wrong, and where
    if first is None:
        return []
    found = (_suggestion(name, column) for name, column in zip(names, first[1].columns, strict=True))
    return [note for note in found if note is not None]


def _suggestion(name: str, column: pa.Array) -> str | None:
    values = [value.as_py() for value in column.drop_null()[:_LOOKED_AT]]
    if not values:
        return None
    if all(looks_like_image(value) for value in values):
        return f"{name} holds encoded images: {option('decode_images', name)} makes pixels of them"
    tensors = [_tensor(value) for value in values]
    if all(tensor is not None for tensor in tensors):
        return f"{name} holds TensorProtos ({tensors[0]}): {option('decode_tensor', name)} makes arrays of them"
    return None


def _tensor(value: bytes) -> str | None:
    """`float32 [2, 3]`, if that is what a TensorProto of it holds."""
    found = read_headers(np.frombuffer(value, np.uint8), np.array([0, len(value)], np.int64))
    dtype, shape = TENSOR_DTYPES.get(int(found.dtype[0])), found.dims[0, : found.rank[0]].tolist()
    if (
        found.status[0] != PLAIN
        or dtype is None
        or int(found.lengths[0]) != int(np.prod(shape, dtype=object)) * ITEM_BYTES[dtype]
    ):
        return None
    return f"{dtype} {shape}"
