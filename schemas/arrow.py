"""Conversion between a `Schema` and a `pyarrow.Schema`.

The conversion is the same in all of recordmill. A variable dimension becomes a `large_list`. All
fixed dimensions together become one `fixed_size_list` in row-major order. Texts and bytes have
64-bit offsets.

The metadata of an Arrow field stores the properties that its type lacks, such as the shape.
Therefore `build` makes the same Examples of a table that `read` has written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.schemas.feature import Feature, Schema

# Key of our metadata in Arrow. In a field, the value is the Feature as JSON. In a schema, it is the
# label and the message as JSON.
METADATA_KEY = b"recordmill"

_VALUE_TYPES: Mapping[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "bfloat16": pa.float32(),  # Arrow has no bfloat16
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.large_string(),
    "bytes": pa.large_binary(),
}
# bfloat16 and float32 have the same Arrow type. Without metadata, this type means float32.
_DTYPES = {arrow_type: dtype for dtype, arrow_type in _VALUE_TYPES.items() if dtype != "bfloat16"}


def value_type(feature: Feature) -> pa.DataType:
    """Returns the Arrow type of a single value of a feature, without its dimensions.

    Arrow has no bfloat16, so such values are float32.
    """
    if feature.timestamp:
        return pa.timestamp(*feature.timestamp)
    return _VALUE_TYPES[feature.dtype]


def format_time(time: pa.TimestampScalar) -> str:
    """Returns a point in time as text, for messages.

    The text ends in Z if the type has a time zone, because the value is in UTC. A time that Arrow
    can't print becomes a number.

    >>> format_time(pa.scalar(1, pa.timestamp("s")))
    '1970-01-01 00:00:01'
    >>> format_time(pa.scalar(1, pa.timestamp("s", "UTC")))
    '1970-01-01 00:00:01Z'
    >>> format_time(pa.scalar(10**15, pa.timestamp("s")))
    '1000000000000000 s since 1970'
    """
    # `str(time)` would load pandas, and a time zone would need a time zone database.
    text: str = time.cast(pa.timestamp(time.type.unit)).cast(pa.string()).as_py()
    if text.startswith("<"):  # Arrow's text for a value that is out of range
        return f"{time.value} {time.type.unit} since 1970"
    return f"{text}Z" if time.type.tz else text


def format_ticks(ticks: float, feature: Feature) -> str:
    """Returns a count of time units since 1970 as text, like `format_time`.

    Args:
        ticks: The number of units. The feature determines the unit.
        feature: A timestamp feature.
    """
    return format_time(pa.scalar(int(ticks), value_type(feature)))


def format_float(value: float, dtype: str) -> str:
    """Returns a float with as few digits as its dtype needs.

    >>> format_float(0.41999998688697815, "float32"), format_float(0.1, "float64")
    ('0.42', '0.1')
    """
    narrow = {"float16": np.float16, "float32": np.float32, "bfloat16": np.float32}.get(dtype)
    return str(value if narrow is None else narrow(value))


def arrow_type(feature: Feature) -> pa.DataType:
    """Returns the Arrow type of the column of a feature.

    >>> str(arrow_type(Feature("x", "int64", (None, 4))))
    'large_list<item: fixed_size_list<item: int64>[4]>'
    """
    result = value_type(feature)
    if feature.inner_shape:
        result = pa.list_(result, feature.inner_size)
    for _ in range(feature.ragged_rank):
        result = pa.large_list(result)
    return result


def to_arrow_field(feature: Feature) -> pa.Field:
    """Converts a feature to an Arrow field.

    The metadata of the field stores the dtype, the shape, the classes and `per_step`.
    """
    metadata: dict[str, object] = {"dtype": feature.dtype, "shape": list(feature.shape)}
    if feature.classes is not None:
        metadata["classes"] = list(feature.classes)
    if feature.per_step:
        metadata["per_step"] = True
    return pa.field(
        feature.name,
        arrow_type(feature),
        nullable=not feature.required,
        metadata={METADATA_KEY: json.dumps(metadata).encode()},
    )


def to_arrow(schema: Schema) -> pa.Schema:
    """Returns the Arrow schema of batches with these features.

    The result is cached in the Schema, because every batch needs it.
    """
    # The class is frozen, so the cache is written to the dict of the instance.
    arrow_schema: pa.Schema | None = vars(schema).get("_arrow")
    if arrow_schema is None:
        metadata = {"label": schema.label, "message": schema.message}
        arrow_schema = pa.schema(
            [to_arrow_field(f) for f in schema],
            metadata={METADATA_KEY: json.dumps(metadata).encode()},
        )
        vars(schema)["_arrow"] = arrow_schema
    return arrow_schema


def from_arrow_field(field: pa.Field) -> Feature:
    """Returns the feature for an Arrow column.

    If the field has metadata from `to_arrow_field` that suits its type, the metadata determines the
    feature. Otherwise the type does.

    Raises:
        DataError: The type can't be a feature, such as a struct, map, decimal or union. It is also
            raised if the metadata is damaged. The message contains the name of the field.
    """
    metadata = (field.metadata or {}).get(METADATA_KEY)
    if metadata is not None:
        feature = _feature_from_metadata(field, metadata)
        if _layout(arrow_type(feature)) == _layout(field.type):
            return feature
    shape: list[int | None] = []
    inner = field.type
    while True:
        if pa.types.is_dictionary(inner):  # an encoding, which does not change the values
            inner = inner.value_type
        elif pa.types.is_list(inner) or pa.types.is_large_list(inner):
            shape.append(None)
            inner = inner.value_type
        elif pa.types.is_fixed_size_list(inner):
            shape.append(inner.list_size)
            inner = inner.value_type
        else:
            break
    # A fixed-shape tensor has several fixed dimensions at once, and can only be the innermost type.
    if isinstance(inner, pa.FixedShapeTensorType):
        shape.extend(inner.shape)
        inner = inner.value_type
    # `sorted` is stable, so it only moves the variable dimensions to the front.
    if None in shape and shape != sorted(shape, key=lambda size: size is not None):
        raise DataError(
            f"column {field.name!r} of type {field.type}: a variable list inside a fixed one can't be a feature"
        )
    return Feature(
        field.name, _dtype_of_arrow(field.name, inner), tuple(shape), required=not field.nullable
    )


def class_names_in_metadata(field: pa.Field) -> tuple[str, ...] | None:
    """Returns the class names in the metadata of a field.

    Returns:
        None if the metadata contains none. Otherwise the values of the column are class numbers.

    Raises:
        DataError: The metadata is damaged.
    """
    return from_arrow_field(field).classes if METADATA_KEY in (field.metadata or {}) else None


def _feature_from_metadata(field: pa.Field, metadata: bytes) -> Feature:
    try:
        description = _parse_object(metadata)
        classes = description.get("classes")
        return Feature(
            field.name,
            str(description["dtype"]),
            tuple(description["shape"]),
            required=not field.nullable,
            classes=None if classes is None else tuple(classes),
            per_step=bool(description.get("per_step", False)),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged_metadata(f"column {field.name!r}", error) from None


def _parse_object(text: bytes) -> dict[str, Any]:
    parsed = json.loads(text)
    if not isinstance(parsed, dict):
        raise TypeError("not a JSON object")
    return parsed


def _damaged_metadata(owner: str, error: Exception) -> DataError:
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)[:150]
    return DataError(
        f"{owner}: its metadata {METADATA_KEY.decode()!r} is damaged ({reason}); "
        "remove it, or write it again"
    )


def from_arrow(schema: pa.Schema) -> Schema:
    """Converts an Arrow schema to a Schema.

    The metadata of the Arrow schema determines the label and the message, if it contains them.

    Raises:
        DataError: The type of a column can't be a feature, or the metadata is damaged.
    """
    message = _schema_metadata(schema).get("message", "Example")
    features = tuple(from_arrow_field(field) for field in schema)
    try:
        return Schema(features, label_in_metadata(schema), message)
    except ValueError as error:
        raise DataError(str(error)[:250]) from None


def label_in_metadata(schema: pa.Schema) -> str | None:
    """Returns the label in the metadata of an Arrow schema.

    Returns:
        None if the metadata contains no label, or if the label is not a column.

    Raises:
        DataError: The metadata is damaged.
    """
    label = _schema_metadata(schema).get("label")
    return label if isinstance(label, str) and label in schema.names else None


def _schema_metadata(schema: pa.Schema) -> dict[str, Any]:
    try:
        return _parse_object((schema.metadata or {}).get(METADATA_KEY, b"{}"))
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged_metadata("the table", error) from None


def _dtype_of_arrow(name: str, value_type: pa.DataType) -> str:
    if value_type in _DTYPES:
        return _DTYPES[value_type]
    if pa.types.is_string(value_type) or pa.types.is_string_view(value_type):
        return "string"
    if (
        pa.types.is_binary(value_type)
        or pa.types.is_binary_view(value_type)
        or pa.types.is_fixed_size_binary(value_type)
    ):
        return "bytes"
    if pa.types.is_timestamp(value_type):
        return (
            f"timestamp[{value_type.unit}, UTC]"
            if value_type.tz
            else f"timestamp[{value_type.unit}]"
        )
    if pa.types.is_date(value_type):
        return "timestamp[s]"
    if pa.types.is_null(value_type):
        return "float32"
    raise DataError(
        f"column {name!r} has type {value_type}, which no feature can hold; cast or drop it first"
    )


def _layout(arrow: pa.DataType) -> str:
    """Returns a text that is equal for Arrow types that store values alike.

    The text ignores these differences: 32-bit and 64-bit offsets, variable and fixed lists, seconds
    and milliseconds.
    """
    depth = 0
    while pa.types.is_nested(arrow):
        arrow, depth = arrow.value_type, depth + 1
    return f"{depth} {str(arrow).replace('large_', '').replace('timestamp[s', 'timestamp[ms')}"
