"""One record by hand: a dict to a serialized `tf.train.Example`, and back, without TensorFlow; for notebooks, tests and
services.

The same rules, and the same bytes, as the columnar path has for batches (`records.example.encode`,
`records.example.decode`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.base.utf8 import NO_NAME, is_feature_name
from recordmill.records.example.decode import decode
from recordmill.records.example.locate import UNUSUAL, reason_of
from recordmill.records.example.python_values import feature_of, stored, unwrap
from recordmill.records.protobuf.message import EXAMPLE_PARTS, LIST_NAMES, encoded_varint, example_class, plain_form
from recordmill.schemas.feature import BYTES, EXAMPLE, FLOAT, Feature, Schema, Storage


def example(values: Mapping[str, object], schema: Schema | None = None) -> bytes:
    """The serialized Example of one record.

    Without a schema a value says what it is: bool and int are int64_list, float is float_list, str and bytes are
    bytes_list, lists are lists of these (nested ones as `name/ragged_flat_values` and `name/ragged_row_lengths_0`), and
    arrays and tensors are held by their dtype: float64, and uint8 and uint64 with a fixed shape, as little-endian
    bytes. Of a feature of classes a text is the name of one, a truth value the name true or false, and a number its
    number, as in a build. None, or a key that is not there, is a missing feature.

    >>> example({"label": 5}).hex()
    '0a100a0e0a056c6162656c12051a030a0105'

    Args:
        values: feature name to int, float, bool, str, bytes, None, lists of them, NumPy arrays, or tensors of any
            library.
        schema: what the features are; its required ones must be there.

    Raises:
        DataError: a value that Example can't hold without damage, or not as the schema says; it names the feature and
            the value.
        TypeError: a value of a type that has no place in an Example.
        ValueError: a key that is no feature of the schema.
    """
    values = {_checked(name): unwrap(value) for name, value in values.items()}
    if schema is None:
        schema = Schema(tuple(feature_of(name, value) for name, value in values.items() if value is not None))
    elif unknown := [name for name in values if name not in schema]:
        raise ValueError(f"{unknown} are no features of the schema, which has {list(schema.names)}")
    if schema.message != EXAMPLE:
        raise ValueError(f"the schema's message is {schema.message}; this function makes Examples")
    entries: list[tuple[bytes, bytes]] = []
    for feature in schema:
        value = values.get(feature.name)
        if value is not None:
            parts = zip(feature.storage(), stored(feature, value), strict=True)
            entries.extend((storage.name.encode(), _feature(storage, items)) for storage, items in parts)
        elif feature.required:
            raise DataError("null, but the feature is required", place=f"feature {feature.name[:60]!r}")
    # protobuf's own order of a map is none that we could keep to
    features = b"".join(_field(0x0A, _field(0x0A, name) + _field(0x12, feature)) for name, feature in sorted(entries))
    return _field(0x0A, features)


def _checked(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a feature's name is text, and {str(name)[:60]!r} is a {type(name).__name__}")
    if not is_feature_name(name):
        raise DataError(NO_NAME, place=f"feature {name[:20]!r}")
    return name


def _field(tag: int, data: bytes) -> bytes:
    return bytes((tag,)) + encoded_varint(len(data)) + data


def _feature(storage: Storage, items: Iterable[Any]) -> bytes:
    """A serialized Feature: its one list, numbers packed; an empty list of numbers has no field."""
    feature = example_class()().features.feature[""]
    one_list = getattr(feature, LIST_NAMES[storage.kind])
    one_list.SetInParent()  # also where it is empty
    one_list.value.extend(items)
    data: bytes = feature.SerializeToString()
    return data


def parse_example(data: bytes, schema: Schema | None = None) -> dict[str, Any]:
    """Parses one serialized Example (with a schema also SequenceExample) as a dict.

    Without a schema every feature is what is in it: an int64 or float32 array, or a list of bytes; None for a feature
    without a kind. With a schema: scalars as Python's int, float, bool, str and bytes, timestamps as numpy.datetime64,
    tensors as arrays of their dtype and shape (text and bytes as lists), variable dimensions as an array where one
    varies and lists where more do, or where a step of a SequenceExample is missing; None where missing.

    >>> parse_example(example({"label": 5, "name": "x"}))
    {'label': array([5]), 'name': [b'x']}

    Raises:
        DataError: no such message, or not what the schema says.
    """
    if schema is None:
        form = plain_form(data, EXAMPLE_PARTS)
        if form is None:
            raise DataError(reason_of(UNUSUAL))
        entries = example_class().FromString(form.data).features.feature
        return {name: _values_of(entries[name]) for name in sorted(entries)}
    array = np.frombuffer(data, np.uint8)
    batch = decode(array, np.zeros(1, np.int64), np.array([len(array)], np.int64), schema)
    return {feature.name: _unpack(batch.column(i)[0], feature, feature.shape) for i, feature in enumerate(schema)}


def _values_of(feature: Any) -> npt.NDArray[Any] | list[bytes] | None:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    values = getattr(feature, kind).value
    return (
        list(values) if kind == LIST_NAMES[BYTES] else np.array(values, "<f4" if kind == LIST_NAMES[FLOAT] else "<i8")
    )


def _unpack(scalar: pa.Scalar, feature: Feature, shape: tuple[int | None, ...]) -> Any:
    if not scalar.is_valid:
        return None
    if not shape:
        return np.int64(scalar.value).view(f"M8[{feature.timestamp[0]}]") if feature.timestamp else scalar.as_py()
    if None in shape[1:] or scalar.values.null_count:  # a step of a SequenceExample may be missing
        return [_unpack(item, feature, shape[1:]) for item in scalar.values]
    array = scalar.values
    if pa.types.is_fixed_size_list(array.type):
        array = array.flatten()
    size = [len(scalar.values) if shape[0] is None else shape[0], *(size for size in shape[1:] if size is not None)]
    if feature.dtype in ("string", "bytes"):
        texts = np.empty(len(array), object)
        texts[:] = array.to_pylist()
        return texts.reshape(size).tolist()
    return array.to_numpy(zero_copy_only=False).reshape(size)
