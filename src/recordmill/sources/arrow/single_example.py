"""Conversion of single records to and from a serialized `tf.train.Example`.

The conversion works without TensorFlow, for notebooks, tests and services. The bytes are the same
as in a build from rows in memory. Each call converts a batch of one row, which takes milliseconds.
Use `recordmill.build` for many rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.arguments import suggest_keywords
from recordmill.base.errors import DataError, UsageError
from recordmill.records.columns.numpy_arrays import iter_rows
from recordmill.records.example.decode import decode
from recordmill.records.example.encode import encode
from recordmill.records.example.locate import describe_status
from recordmill.records.protobuf.message import (
    EXAMPLE_MAPS,
    LIST_NAMES,
    example_class,
    to_plain_form,
)
from recordmill.schemas.feature import BYTES_LIST, EXAMPLE, FLOAT_LIST, Schema
from recordmill.sources.arrow.python_rows import rows_to_batches
from recordmill.sources.values.conform import conform
from recordmill.sources.values.flatten import flatten, nest_tensors
from recordmill.sources.values.schema_unifier import SchemaUnifier


@suggest_keywords
def example(values: Mapping[str, object], schema: Schema | None = None) -> bytes:
    """Returns the serialized Example of one record.

    Without a schema, the types of the values determine the features:

    * bool and int become int64_list, float becomes float_list, and str and bytes become bytes_list.
    * Lists become lists of these. A nested list is stored as `name/ragged_flat_values` and
      `name/ragged_row_lengths_0`.
    * Arrays and tensors keep their dtype. float64, and uint8 and uint64 with a fixed shape, are
      stored as little-endian bytes.

    A None value or an absent key is a missing feature. Class features accept names and numbers, as
    in a build. A text is a class name, a boolean is the name true or false, and a number is a class
    number.

    >>> example({"label": 5}).hex()
    '0a100a0e0a056c6162656c12051a030a0105'

    Args:
        values: Values by feature name. A value is an int, float, bool, str, bytes, None, a list of
            them, a NumPy array, or a tensor of any library.
        schema: The features. Required ones must have a value.

    Raises:
        DataError: An Example or the schema can't hold a value. The message names the feature and
            the value.
        ValueError: A key is not a feature of the schema, or the schema is not for Examples.
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"example takes a dict of values by feature name, not {values!r:.99}")
    if schema is not None and (unknown := [name for name in values if name not in schema]):
        raise ValueError(
            f"{unknown} are not features of the schema, which has {list(schema.names)}"
        )
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
            # Python floats become float32. An array keeps float64, and has a fixed shape.
            replace(f, dtype="float32")
            if f.dtype == "float64" and (not f.shape or f.shape[-1] is None)
            else f
            for f in unifier.schema()
        )
        schema = Schema(tuple(features))
    fields = zip(batch.schema.names, batch.schema.types, strict=True)
    # NumPy's times have no zone, although they are in UTC. The cast refuses this, so the zone is
    # removed from the feature.
    zoneless = {
        name for name, kind in fields if "timestamp" in str(kind) and "tz=" not in str(kind)
    }
    schema = replace(
        schema,
        features=tuple(
            replace(f, dtype=f.dtype.replace(", UTC", "")) if f.name in zoneless else f
            for f in schema
        ),
    )
    row = conform(nest_tensors(batch, schema), schema)
    for fault in row.faults.values():
        raise DataError(fault.message)
    return encode(row.batch, schema).payload(0).tobytes()


def _to_numpy(value: Any) -> Any:
    """Converts a tensor of any library to a NumPy array.

    Lists are converted element by element. An array with several dimensions inside a list becomes a
    nested list, because Arrow would reject it. Other values are returned as they are.
    """
    if isinstance(value, list | tuple):
        items = [_to_numpy(item) for item in value]
        return [
            item.tolist() if isinstance(item, np.ndarray) and item.ndim > 1 else item
            for item in items
        ]
    is_known = isinstance(value, np.ndarray | np.generic) or not hasattr(value, "__array__")
    return value if is_known else np.asarray(value)


@suggest_keywords
def parse_example(data: bytes, schema: Schema | None = None) -> dict[str, Any]:
    """Parses one serialized Example to a dict.

    Without a schema, each value is an int64 array, a float32 array or a list of bytes. The value is
    None if the message does not specify the type of a feature. With a schema, values have the types
    in which `Dataset` returns them, and a SequenceExample can be parsed too.

    >>> parse_example(example({"label": 5, "name": "x"}))
    {'label': array([5]), 'name': [b'x']}

    Raises:
        DataError: The data is not such a message, or does not fit the schema.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise UsageError(f"parse_example takes the bytes of a record, not {data!r:.99}")
    if schema is None:
        form = to_plain_form(data, EXAMPLE_MAPS)
        if form is None:
            raise DataError(describe_status(native.RecordStatus.UNUSUAL))
        entries = example_class().FromString(form.data).features.feature
        return {name: _feature_values(entries[name]) for name in sorted(entries)}
    array = np.frombuffer(data, np.uint8)
    batch = decode(array, np.zeros(1, np.int64), np.array([len(array)], np.int64), schema)
    return next(iter_rows(batch, schema))


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
