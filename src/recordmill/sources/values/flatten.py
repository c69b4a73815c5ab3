"""Flattening of nested columns to scalars and lists of scalars.

* A struct becomes columns with dotted names: `geo: {lat, lon}` becomes `geo.lat` and `geo.lon`. If
  a struct is null, its members are null.
* A list of structs becomes one list for each member: `objects: [{bbox, name}]` becomes
  `objects.bbox` and `objects.name`. Both lists of a row have the same length.
* A map is treated as a list of structs with `key` and `value`.

Dots in the original names are kept. Two columns that would have the same name are an error.

Tables of Hugging Face have two more cases (huggingface.co/docs/datasets/about_dataset_features). An
image, which is a struct `{bytes, path}`, becomes a column with the bytes, under its own name, and a
column `NAME.path`. A ClassLabel keeps its class names, and its value -1 becomes null.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.buffers import to_offsets
from recordmill.base.errors import DataError
from recordmill.base.utf8 import BAD_NAME_MESSAGE, is_feature_name
from recordmill.schemas.arrow import METADATA_KEY, from_arrow_field, to_arrow_field
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.values.casting import to_plain_array

# fields of the struct in which Hugging Face stores an image or a sound
_MEDIA_FIELDS = {("bytes", "binary"), ("path", "string")}


def flatten(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replaces the structs of a batch by their members.

    Raises:
        DataError: Two columns would have the same name, or a name is invalid.
    """
    if not any(_has_struct(field.type) for field in batch.schema):
        check_column_names(batch.schema.names)
        return _with_hugging_face_classes(batch)
    arrays: list[pa.Array] = []
    fields: list[pa.Field] = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not _has_struct(field.type):
            arrays.append(column)
            fields.append(field)
            continue
        for name, array in _flatten_column(field.name, column):
            arrays.append(array)
            fields.append(pa.field(name, array.type))
    check_column_names([field.name for field in fields])
    return _with_hugging_face_classes(
        pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, metadata=batch.schema.metadata))
    )


def _with_hugging_face_classes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch with Hugging Face's class names in the metadata of columns.

    The class number -1 becomes null.
    """
    for name, classes in hugging_face_classes(batch.schema.metadata or {}).items():
        if (index := batch.schema.get_field_index(name)) < 0:
            continue
        column, field = batch.column(index), batch.schema.field(index)
        # Hugging Face writes -1 for a missing class
        if pa.types.is_integer(field.type):
            column = pc.if_else(pc.less(column, 0), pa.scalar(None, column.type), column)
        label_metadata = to_arrow_field(
            Feature(name, "int64", from_arrow_field(field).shape, classes=classes)
        ).metadata
        batch = batch.set_column(
            index, pa.field(name, column.type, metadata=label_metadata), column
        )
    return batch


def hugging_face_classes(metadata: Mapping[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """Reads class names from the metadata that Hugging Face writes.

    The metadata is part of an Arrow schema, or of a Parquet file.

    Args:
        metadata: Metadata of an Arrow schema.

    Returns:
        Class names by flattened column name, for class labels and lists of them. It is empty if
        there is no such metadata or if it has an unknown form.
    """
    try:
        return dict(
            _iter_class_labels(
                "", json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
            )
        )
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError):
        return {}  # metadata in an unknown form: the columns stay as they are


def _iter_class_labels(name: str, feature: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    feature = feature[0] if isinstance(feature, list) else feature
    if (kind := feature.get("_type")) == "ClassLabel":
        yield name, tuple(map(str, feature["names"]))
    elif kind in ("Sequence", "List", "LargeList"):
        yield from _iter_class_labels(name, feature["feature"])
    elif not isinstance(kind, str):
        for member_name, member in feature.items():
            yield from _iter_class_labels(f"{name}.{member_name}" if name else member_name, member)


def nest_tensors(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """Converts flat tensors to nested lists if the schema has another shape for them.

    A tensor with several dimensions may be stored as one flat list, with its shape in the metadata
    of the field. As nested lists, its dimensions can be compared with the dimensions in the schema.
    If both shapes are equal, it stays flat.
    """
    for index, field in enumerate(batch.schema):
        if field.name in schema and METADATA_KEY in (field.metadata or {}):
            source_feature = from_arrow_field(field)
            if (
                len(source_feature.inner_shape) > 1
                and source_feature.shape != schema[field.name].shape
            ):
                nested = _nest(to_plain_array(batch.column(index)), source_feature.inner_shape)
                batch = batch.set_column(index, pa.field(field.name, nested.type), nested)
    return batch


def _nest(column: pa.Array, shape: tuple[int, ...]) -> pa.Array:
    missing = column.is_null() if column.null_count else None
    if not pa.types.is_fixed_size_list(column.type):
        offsets = np.zeros(len(column) + 1, np.int64)
        np.cumsum(
            pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False),
            out=offsets[1:],
        )
        return pa.LargeListArray.from_arrays(
            pa.array(offsets), _nest(to_plain_array(column.flatten()), shape), mask=missing
        )
    size = column.type.list_size
    values = column.values.slice(column.offset * size, len(column) * size)
    # from_arrays can't infer the number of lists that have no values, so from_buffers gets it
    for depth in reversed(range(len(shape))):
        validity = None if depth or missing is None else pc.invert(missing).buffers()[1]
        count = len(column) * math.prod(shape[:depth])
        values = pa.Array.from_buffers(
            pa.list_(values.type, shape[depth]), count, [validity], children=[values]
        )
    return values


def flatten_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the schema of batches after `flatten`."""
    return flatten(
        pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    ).schema


def leaf_names(schema: pa.Schema) -> Iterator[tuple[str, bool]]:
    """Yields (name after `flatten`, whether it is inside a list) of each leaf, in stored order."""
    for field in schema:
        yield from _leaf_names(field.name, field.type, is_item=False)


def _leaf_names(name: str, kind: pa.DataType, *, is_item: bool) -> Iterator[tuple[str, bool]]:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind) or not pa.types.is_nested(kind):
        yield name, is_item
    elif pa.types.is_struct(kind):
        is_media = _is_media(kind)
        for field in kind:
            member = name if is_media and field.name == "bytes" else f"{name}.{field.name}"
            yield from _leaf_names(member, field.type, is_item=is_item)
    elif pa.types.is_map(kind):
        yield from _leaf_names(f"{name}.key", kind.key_type, is_item=True)
        yield from _leaf_names(f"{name}.value", kind.item_type, is_item=True)
    else:
        yield from _leaf_names(name, kind.value_type, is_item=True)


def media_names(schema: pa.Schema) -> Iterator[str]:
    """Yields the names after `flatten` of Hugging Face's images and sounds outside of lists."""
    for field in schema:
        yield from _media_names(field.name, field.type)


def _media_names(name: str, kind: pa.DataType) -> Iterator[str]:
    if _is_media(kind):
        yield name
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _media_names(f"{name}.{field.name}", field.type)


def _is_media(kind: pa.DataType) -> bool:
    """Returns whether a type is Hugging Face's struct for an image or a sound."""
    return (
        pa.types.is_struct(kind)
        and {(field.name, str(field.type)) for field in kind} == _MEDIA_FIELDS
    )


def check_column_names(names: Sequence[str], source: str = "") -> None:
    """Raises DataError if a column name is invalid or occurs twice.

    Args:
        names: The names.
        source: Name of the input, for messages.
    """
    if invalid := [name for name in names if not is_feature_name(name)]:
        raise DataError(
            f"a column is called {invalid[0]!r:.99}: {BAD_NAME_MESSAGE}; rename it", source=source
        )
    if len(set(names)) < len(names):
        duplicate = min(name for name, count in Counter(names).items() if count > 1)
        raise DataError(
            f"two columns are named {duplicate!r}; rename one (a nested member takes its dotted path as name)",
            source=source,
        )


def _has_struct(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        return _has_struct(kind.value_type)
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return True
    return pa.types.is_nested(kind) and hasattr(kind, "value_type") and _has_struct(kind.value_type)


def _flatten_column(
    name: str, column: pa.Array, is_item: bool = False
) -> Iterator[tuple[str, pa.Array]]:
    column = to_plain_array(column)
    if not _has_struct(column.type):
        yield name, column
    elif pa.types.is_struct(column.type):
        is_file = _is_media(column.type)
        for field, member in zip(column.type, column.flatten(), strict=True):
            member = (
                # an item of a list can't be null
                pc.fill_null(member, "") if is_file and is_item and field.name == "path" else member
            )
            yield from _flatten_column(
                name if is_file and field.name == "bytes" else f"{name}.{field.name}",
                member,
                is_item,
            )
    else:
        lengths = pc.fill_null(pc.list_value_length(_map_as_list(column)), 0)
        offsets = to_offsets(lengths.to_numpy(zero_copy_only=False))
        missing = column.is_null() if column.null_count else None
        for member_name, values in _flatten_column(name, _map_as_list(column).flatten(), True):
            yield (
                member_name,
                pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=missing),
            )


def _map_as_list(column: pa.Array) -> pa.Array:
    """Converts a map to a list of structs with `key` and `value`.

    Other columns are returned as they are.
    """
    if not pa.types.is_map(column.type):
        return column
    members = [column.type.key_field.with_name("key"), column.type.item_field.with_name("value")]
    return column.cast(pa.list_(pa.struct(members)))
