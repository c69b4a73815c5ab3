"""A `Schema` as a `pyarrow.Schema` and back.

One mapping for every path: scalars are scalars, variable dimensions are `large_list`, fixed dimensions are one flat
`fixed_size_list` in row-major order with the shape in the field's metadata; strings and bytes have 64-bit offsets. The
field's metadata keeps what Arrow's type can't say, so that a table written by `read` goes back through `build` to the
same Examples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.schemas.feature import Feature, Schema

METADATA_KEY = b"recordmill"  # on a field: the Feature as JSON; on the schema: label and message

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
    "bfloat16": pa.float32(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.large_string(),
    "bytes": pa.large_binary(),
}
_DTYPES = {arrow_type: dtype for dtype, arrow_type in _VALUE_TYPES.items() if dtype != "bfloat16"}


def value_type(feature: Feature) -> pa.DataType:
    """The Arrow type of one value; bfloat16, which Arrow lacks, is held as float32."""
    if feature.timestamp:
        return pa.timestamp(*feature.timestamp)
    return _VALUE_TYPES[feature.dtype]


def format_time(time: pa.TimestampScalar) -> str:
    """A point in time, of UTC where its type has a zone; one that Arrow's calendar lacks, as a number.

    >>> format_time(pa.scalar(1, pa.timestamp("s"))), format_time(pa.scalar(10**15, pa.timestamp("s")))
    ('1970-01-01 00:00:01', '1000000000000000 s since 1970')
    """
    # str(time) loads pandas, and a zone's name needs a data base of zones
    text: str = time.cast(pa.timestamp(time.type.unit)).cast(pa.string()).as_py()
    if text.startswith("<"):
        return f"{time.value} {time.type.unit} since 1970"
    return f"{text}Z" if time.type.tz else text


def format_ticks(ticks: float, feature: Feature) -> str:
    """A value of a feature of times, for people."""
    return format_time(pa.scalar(int(ticks), value_type(feature)))


def arrow_type(feature: Feature) -> pa.DataType:
    """The Arrow type of the feature's column."""
    result = value_type(feature)
    if feature.inner_shape:
        result = pa.list_(result, feature.inner_size)
    for _ in range(feature.ragged_rank):
        result = pa.large_list(result)
    return result


def to_arrow_field(feature: Feature) -> pa.Field:
    """The feature as an Arrow field, with what Arrow's type can't say in its metadata."""
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
    """The Arrow schema of a RecordBatch of these features; made once of each Schema, since every batch asks for it."""
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
    """The feature that an Arrow column is, by its metadata if that fits the type, else by the type.

    Raises:
        DataError: the type has no counterpart (struct, map, decimal, union, ...), or the metadata is damaged; it names
            the field and the type.
    """
    metadata = (field.metadata or {}).get(METADATA_KEY)
    if metadata is not None:
        feature = _feature_from_metadata(field, metadata)
        if _layout(arrow_type(feature)) == _layout(field.type):
            return feature
    shape: list[int | None] = []
    inner = field.type
    while True:
        if pa.types.is_dictionary(inner):
            inner = inner.value_type
        elif pa.types.is_list(inner) or pa.types.is_large_list(inner):
            shape.append(None)
            inner = inner.value_type
        elif pa.types.is_fixed_size_list(inner):
            shape.append(inner.list_size)
            inner = inner.value_type
        else:
            break
    if isinstance(inner, pa.FixedShapeTensorType):
        shape.extend(inner.shape)
        inner = inner.value_type
    if None in shape and shape != sorted(shape, key=lambda size: size is not None):
        raise DataError(
            f"column {field.name!r} of type {field.type}: a variable list inside a fixed one can't be a feature"
        )
    return Feature(
        field.name, _dtype_of_arrow(field.name, inner), tuple(shape), required=not field.nullable
    )


def class_names_in_metadata(field: pa.Field) -> tuple[str, ...] | None:
    """The classes that the field's metadata names, whose numbers its values are."""
    return from_arrow_field(field).classes if METADATA_KEY in (field.metadata or {}) else None


def _feature_from_metadata(field: pa.Field, metadata: bytes) -> Feature:
    """The feature that the field's own metadata describes."""
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
        raise TypeError("no JSON object")
    return parsed


def _damaged_metadata(owner: str, error: Exception) -> DataError:
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)[:150]
    return DataError(
        f"{owner}: its metadata {METADATA_KEY.decode()!r} is damaged ({reason}); remove it, or write it anew"
    )


def from_arrow(schema: pa.Schema) -> Schema:
    """The features of an Arrow schema, label and message by its metadata if present."""
    message = _schema_metadata(schema).get("message", "Example")
    features = tuple(from_arrow_field(field) for field in schema)
    try:
        return Schema(features, label_in_metadata(schema), message)
    except ValueError as error:
        raise DataError(str(error)[:250]) from None


def label_in_metadata(schema: pa.Schema) -> str | None:
    """The label that the schema's metadata names, if that column is there."""
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
    """Returns what is equal but for 32- against 64-bit offsets, variable lists in place of fixed ones (nullable
    tensors), and seconds, which Parquet keeps as milliseconds.
    """
    depth = 0
    while pa.types.is_nested(arrow):
        arrow, depth = arrow.value_type, depth + 1
    return f"{depth} {str(arrow).replace('large_', '').replace('timestamp[s', 'timestamp[ms')}"
