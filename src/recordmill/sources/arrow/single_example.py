"""One record by hand: a dict to a serialized `tf.train.Example`, and back, without TensorFlow; for notebooks, tests and
services.

The rules, and the bytes, are those of a build of rows in memory: a record is a batch of one row, which costs
milliseconds. `recordmill.build` takes many rows at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError
from recordmill.records.columns.numpy_arrays import rows_of
from recordmill.records.example.decode import decode
from recordmill.records.example.encode import encode
from recordmill.records.example.locate import UNUSUAL, reason_of
from recordmill.records.protobuf.message import EXAMPLE_PARTS, LIST_NAMES, example_class, plain_form
from recordmill.schemas.feature import BYTES_LIST, EXAMPLE, FLOAT_LIST, Feature, Schema
from recordmill.sources.arrow.python_rows import rows_to_batches
from recordmill.sources.values.conform import conform
from recordmill.sources.values.flatten import flatten, nest_tensors
from recordmill.sources.values.schema_unifier import SchemaUnifier


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
        DataError: a value that Example can't hold, or not as the schema says; it names the feature and the value.
        ValueError: a key that is no feature of the schema.
    """
    if schema is not None and (unknown := [name for name in values if name not in schema]):
        raise ValueError(f"{unknown} are no features of the schema, which has {list(schema.names)}")
    if schema is not None and schema.message != EXAMPLE:
        raise ValueError(f"the schema's message is {schema.message}; this function makes Examples")
    present = {name: _to_numpy(value) for name, value in values.items() if value is not None}
    (batch,) = map(flatten, rows_to_batches([present]))
    if schema is None:
        unifier = SchemaUnifier()
        null_counts = {
            name: column.null_count
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        unifier.add(batch.schema, "record", null_counts)
        features = (
            replace(f, dtype="float32") if _is_python_float(f.dtype, f.shape) else f
            for f in unifier.schema()
        )
        schema = Schema(tuple(features))
    fields = zip(batch.schema.names, batch.schema.types, strict=True)
    zoneless = {
        name for name, kind in fields if "timestamp" in str(kind) and "tz=" not in str(kind)
    }
    schema = replace(
        schema, features=tuple(_without_zone(f) if f.name in zoneless else f for f in schema)
    )
    row = conform(nest_tensors(batch, schema), schema)
    for _, _, message in row.bad_rows:
        raise DataError(message)
    return encode(row.batch, schema).payload(0).tobytes()


def _to_numpy(value: Any) -> Any:
    """Returns tensors of other libraries as arrays, and those in a list that Arrow would not take as lists."""
    if isinstance(value, list | tuple):
        items = [_to_numpy(item) for item in value]
        return [
            item.tolist() if isinstance(item, np.ndarray) and item.ndim > 1 else item
            for item in items
        ]
    is_known = isinstance(value, np.ndarray | np.generic) or not hasattr(value, "__array__")
    return value if is_known else np.asarray(value)


def _without_zone(feature: Feature) -> Feature:
    """Returns the feature as one of times without a zone, which are UTC, as NumPy's are."""
    return replace(feature, dtype=feature.dtype.replace(", UTC", ""))


def _is_python_float(dtype: str, shape: tuple[int | None, ...]) -> bool:
    """Returns whether it is of Python's floats, and not of an array, which has a fixed shape."""
    return dtype == "float64" and (not shape or shape[-1] is None)


def parse_example(data: bytes, schema: Schema | None = None) -> dict[str, Any]:
    """Parses one serialized Example (with a schema also SequenceExample) as a dict.

    Without a schema every feature is what is in it: an int64 or float32 array, or a list of bytes; None for a feature
    without a kind. With a schema: as `Dataset` gives a record by its number.

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
        return {name: _feature_values(entries[name]) for name in sorted(entries)}
    array = np.frombuffer(data, np.uint8)
    batch = decode(array, np.zeros(1, np.int64), np.array([len(array)], np.int64), schema)
    return next(rows_of(batch, schema))


def _feature_values(feature: Any) -> npt.NDArray[Any] | list[bytes] | None:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    values = getattr(feature, kind).value
    return (
        list(values)
        if kind == LIST_NAMES[BYTES_LIST]
        else np.array(values, "<f4" if kind == LIST_NAMES[FLOAT_LIST] else "<i8")
    )
