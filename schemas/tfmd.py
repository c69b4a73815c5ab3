"""Conversion between a `Schema` and the `schema.pbtxt` of TensorFlow Metadata.

A `schema.pbtxt` is the text of a `tensorflow_metadata.proto.v0.Schema` message. Its `Feature`
messages are called entries here. An entry describes one entry of an Example, so a `Feature` of
recordmill may need several of them.

A Schema that is written and read again is exactly the same. Properties that the message can't
express are annotation tags, such as `recordmill:dtype=uint8`. For files of other writers, the type,
domain, shape and presence of an entry determine the feature. An entry that can't be a feature is an
error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_metadata.proto.v0.path_pb2 import Path

from recordmill.base.errors import DataError
from recordmill.schemas.feature import (
    BYTES_LIST,
    EXAMPLE,
    FLOAT_LIST,
    INT64_LIST,
    SEQUENCE_EXAMPLE,
    Feature,
    Schema,
    Storage,
    step_feature_name,
)

_BASE_DTYPES = {schema_pb2.INT: "int64", schema_pb2.FLOAT: "float32", schema_pb2.BYTES: "bytes"}
_TEXT_DOMAINS = (
    "string_domain",
    "natural_language_domain",
    "mid_domain",
    "url_domain",
    "bool_domain",
    "time_of_day_domain",
)
_TIME_UNITS = {
    "UNIX_SECONDS": "s",
    "UNIX_MILLISECONDS": "ms",
    "UNIX_MICROSECONDS": "us",
    "UNIX_NANOSECONDS": "ns",
}
# Entries in these stages are not features. TensorFlow's tools ignore the same stages, see
# tensor_representation_util.py of tfx_bsl.
_UNUSED_STAGES = {
    schema_pb2.DEPRECATED,
    schema_pb2.DISABLED,
    schema_pb2.PLANNED,
    schema_pb2.ALPHA,
    schema_pb2.DEBUG_ONLY,
    schema_pb2.VALIDATION_DERIVED,
}


def entries_in_use(entries: Iterable[Any]) -> Iterator[Any]:
    """Returns the entries that are neither deprecated nor in an unused stage.

    Entries in the stages PLANNED, ALPHA and DEBUG_ONLY, for example, are not used.

    Args:
        entries: `Feature` messages.
    """
    return (
        entry
        for entry in entries
        if not entry.deprecated and entry.lifecycle_stage not in _UNUSED_STAGES
    )


def check_struct_features(proto: Any) -> None:
    """Raises DataError if the struct entries of a schema can't be features.

    Only one struct without inner structs is supported: the feature lists of a SequenceExample.

    Args:
        proto: The `Schema` message.
    """
    structs = [entry for entry in entries_in_use(proto.feature) if entry.type == schema_pb2.STRUCT]
    if len(structs) > 1:
        raise DataError(
            f"struct features {', '.join(repr(entry.name) for entry in structs)}: only one is supported, the "
            "feature lists of a SequenceExample"
        )
    # A SequenceExample has one level of feature lists.
    for struct in structs:
        for child in entries_in_use(struct.struct_domain.feature):
            if child.type == schema_pb2.STRUCT:
                raise DataError(
                    f"struct feature {child.name!r} inside {struct.name!r} is not supported"
                )


def entry_dtype(entry: Any, proto: Any | None) -> str:
    """Returns the dtype for an entry, from its type and its domain.

    For example, INT is `int64`, INT with a `bool_domain` is `bool`, and BYTES with a
    `string_domain` is `string`.

    Args:
        entry: The `Feature` message.
        proto: The `Schema` message, if the entry may refer to a string domain of the schema. None
            if it does not.

    Raises:
        DataError: The entry has no type.
    """
    if entry.type not in _BASE_DTYPES:
        raise DataError(f"feature {entry.name!r} has no type; add type: INT, FLOAT or BYTES")
    base_dtype = _BASE_DTYPES[entry.type]
    domain = entry.WhichOneof("domain_info")
    if base_dtype == "bytes":
        is_text = domain in _TEXT_DOMAINS or (
            domain == "time_domain" and entry.time_domain.HasField("string_format")
        )
        # `domain` is the name of a string domain that several entries of the schema share.
        is_string_domain = (
            domain == "domain"
            and proto is not None
            and any(domain_entry.name == entry.domain for domain_entry in proto.string_domain)
        )
        return "string" if is_text or is_string_domain else "bytes"
    if base_dtype == "int64" and domain == "bool_domain":
        return "bool"
    if (
        base_dtype == "int64"
        and domain == "time_domain"
        and entry.time_domain.HasField("integer_format")
    ):
        unit = _TIME_UNITS.get(
            schema_pb2.TimeDomain.IntegerTimeFormat.Name(entry.time_domain.integer_format)
        )
        return f"timestamp[{unit}]" if unit else base_dtype
    return base_dtype


def entry_shape(entry: Any, *, per_step: bool) -> tuple[int | None, ...]:
    """Returns the shape for an entry, from its `shape` or `value_count`.

    An entry without both is a list of any length, (None,).

    Args:
        entry: The `Feature` message.
        per_step: True if the entry is in a feature list. Its shape then describes one step, and
            None is added as the first dimension.

    Raises:
        DataError: The entry has nested value counts.
    """
    step: tuple[int | None, ...] = (None,) if per_step else ()
    kind = entry.WhichOneof("shape_type")
    if kind == "shape":
        # A negative size means that the dimension varies.
        return step + tuple(dim.size if dim.size >= 0 else None for dim in entry.shape.dim)
    if kind == "value_counts":
        raise DataError(
            f"feature {entry.name!r} has nested value_counts, which an Example can't hold in one entry; "
            "describe its entries one by one"
        )
    # A fixed number of values is a tensor, and exactly one value is a scalar.
    if kind == "value_count" and entry.value_count.min == entry.value_count.max > 0:
        return step + (() if entry.value_count.max == 1 else (entry.value_count.max,))
    return (*step, None)


def dense_tensor_shapes(proto: Any) -> dict[str, tuple[int | None, ...]]:
    """Returns the shapes of all dense tensors in the default representation group.

    tf.Transform writes dense tensors for features with a default value.

    Args:
        proto: The `Schema` message.

    Returns:
        The shape of each tensor, by the name of its entry. None for dimensions that vary.
    """
    if "" not in proto.tensor_representation_group:
        return {}
    dense_tensors = (
        r.dense_tensor
        for r in proto.tensor_representation_group[""].tensor_representation.values()
        if r.WhichOneof("kind") == "dense_tensor"
    )
    return {
        tensor.column_name: tuple(dim.size if dim.size >= 0 else None for dim in tensor.shape.dim)
        for tensor in dense_tensors
    }


# tfx-bsl expects the feature_lists of a SequenceExample in a STRUCT with this name.
FEATURE_LISTS_STRUCT = "##SEQUENCE##"

_TAG_PREFIX = "recordmill:"
_ENTRY_TYPES = {
    INT64_LIST: schema_pb2.INT,
    FLOAT_LIST: schema_pb2.FLOAT,
    BYTES_LIST: schema_pb2.BYTES,
}
_TIME_UNIT_NAMES = {
    "s": "UNIX_SECONDS",
    "ms": "UNIX_MILLISECONDS",
    "us": "UNIX_MICROSECONDS",
    "ns": "UNIX_NANOSECONDS",
}


def to_pbtxt(schema: Schema, representations: Mapping[str, Any] | None = None) -> str:
    """Converts a schema to the text of a `schema.pbtxt`.

    Args:
        schema: The schema.
        representations: `TensorRepresentation` messages by tensor name. They replace the messages
            that are derived from the features.

    Raises:
        ValueError: A feature is in a feature list, but the records are not SequenceExamples.
    """
    proto = schema_pb2.Schema(represent_variable_length_as_ragged=True)
    proto.annotation.tag.append(f"{_TAG_PREFIX}message={schema.message}")
    if schema.label is not None:
        proto.annotation.tag.append(f"{_TAG_PREFIX}label={schema.label}")
    steps = [feature for feature in schema if feature.per_step]
    for feature in schema:
        if not feature.per_step:
            proto.feature.extend(_make_entries(feature))
    if schema.message == SEQUENCE_EXAMPLE:
        domain = schema_pb2.StructDomain(
            feature=[entry for feature in steps for entry in _make_entries(feature)]
        )
        proto.feature.append(
            schema_pb2.Feature(
                name=FEATURE_LISTS_STRUCT, type=schema_pb2.STRUCT, struct_domain=domain
            )
        )
        # The message has the feature lists after all other entries. Another order of the features
        # needs a tag.
        if schema.names != tuple(f.name for f in sorted(schema, key=lambda f: f.per_step)):
            proto.annotation.tag.append(f"{_TAG_PREFIX}order={json.dumps(schema.names)}")
    elif steps:
        raise ValueError(
            f"feature {steps[0].name!r} is in a feature list, but the records are {schema.message}"
        )
    for feature in schema:
        for name, representation in _make_representations(feature, schema.message).items():
            proto.tensor_representation_group[""].tensor_representation[name].CopyFrom(
                representation
            )
    for name, representation in (representations or {}).items():
        proto.tensor_representation_group[""].tensor_representation[name].CopyFrom(representation)
    return str(text_format.MessageToString(proto, as_utf8=True))


def extend_pbtxt(text: str, features: Iterable[Feature]) -> str:
    """Adapts a `schema.pbtxt` of tf.Transform to the records that recordmill writes.

    The entry with the values of a ragged tensor gets the name of the tensor. The copied features
    are added.

    Args:
        text: A `schema.pbtxt` that tf.Transform has written.
        features: Features that the transform copies without a change. tf.Transform does not know
            them.

    Returns:
        The text of the new `schema.pbtxt`.
    """
    proto = text_format.Parse(text, schema_pb2.Schema())
    group = proto.tensor_representation_group
    # Access to a missing key of a protobuf map creates it.
    tensors = group[""].tensor_representation if "" in group else {}
    for name, representation in tensors.items():
        path = representation.ragged_tensor.feature_path.step
        for entry in proto.feature:
            entry.name = name if [entry.name] == path else entry.name
        path[:] = [name] * len(path)
    for feature in features:
        proto.feature.extend(_make_entries(feature))
        for name, representation in _make_representations(feature, EXAMPLE).items():
            group[""].tensor_representation[name].CopyFrom(representation)
    return str(text_format.MessageToString(proto, as_utf8=True))


def from_pbtxt(text: str | bytes, source: str = "") -> Schema:
    """Converts the text of a `schema.pbtxt` to a Schema.

    Any program may have written the file. The parts of a sparse feature become one list feature
    each.

    Args:
        text: The content of the file.
        source: The path of the file, for messages.

    Raises:
        DataError: The text is not a schema, or an entry can't be a feature. The message contains
            the name of the entry.
    """
    try:
        proto = text_format.Parse(
            text.decode() if isinstance(text, bytes) else text, schema_pb2.Schema()
        )
    except (text_format.ParseError, RecursionError, ValueError) as error:
        raise DataError(
            "is not a tensorflow_metadata schema: {error}", error=error, source=source
        ) from None
    try:
        return _parse_schema(proto)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:  # from the checks of Feature and Schema, or from damaged tags
        raise DataError(
            error.reason if isinstance(error, DataError) else str(error)[:300], source=source
        ) from error


def _parse_schema(proto: Any) -> Schema:
    schema_tags = _recordmill_tags(proto)
    check_struct_features(proto)
    dense_shapes = dense_tensor_shapes(proto)
    features: list[Feature] = []
    message = schema_tags.get("message", EXAMPLE)
    for entry in entries_in_use(proto.feature):
        if entry.type == schema_pb2.STRUCT:
            message = SEQUENCE_EXAMPLE
            features.extend(
                _parse_features(
                    entries_in_use(entry.struct_domain.feature), {}, proto, per_step=True
                )
            )
    context = [entry for entry in entries_in_use(proto.feature) if entry.type != schema_pb2.STRUCT]
    # The features of the context come before the feature lists, unless a tag has another order.
    features[:0] = _parse_features(context, dense_shapes, proto, per_step=False)
    if not features and not schema_tags:
        raise DataError("the schema has no features")
    if "order" in schema_tags:
        by_name = {feature.name: feature for feature in features}
        features = [
            by_name.pop(name) for name in json.loads(schema_tags["order"]) if name in by_name
        ] + list(by_name.values())
    return Schema(tuple(features), schema_tags.get("label"), message)


def _parse_features(
    entries: Iterable[Any],
    dense_shapes: Mapping[str, tuple[int | None, ...]],
    proto: Any,
    *,
    per_step: bool,
) -> Iterator[Feature]:
    """Yields the features of a list of entries.

    Usually an entry is a feature. A nested list of recordmill has several entries. The entry with
    its values becomes the feature. The entries with the row lengths of each level are skipped.

    Args:
        entries: `Feature` messages, either of the context or of the feature lists.
        dense_shapes: Shapes by entry name, which take precedence over the shapes in the entries.
        proto: The `Schema` message.
        per_step: True if the entries are feature lists of a SequenceExample.

    Raises:
        DataError: An entry can't be a feature, or its tags contradict it.
    """
    entries = list(entries)
    entry_names = {entry.name for entry in entries}
    context_names = {entry.name for entry in proto.feature}
    for entry in entries:
        tags = _recordmill_tags(entry)
        if "part_of" in tags:
            continue  # row lengths of a nested list: the entry with its values is the feature
        name = tags.get(
            "feature",
            step_feature_name(entry.name, entry.name in context_names) if per_step else entry.name,
        )
        base_dtype, base_shape = (
            entry_dtype(entry, proto),
            dense_shapes.get(entry.name, entry_shape(entry, per_step=per_step)),
        )
        shape = tuple(json.loads(tags["shape"])) if "shape" in tags else base_shape
        classes = tuple(json.loads(tags["classes"])) if "classes" in tags else None
        constants = tuple(
            (key, float(number))
            for key, number in dict(json.loads(tags.get("found", "{}"))).items()
        )
        dtype = tags.get("dtype", base_dtype)
        required = bool(entry.presence.min_fraction == 1.0)
        feature = Feature(
            name,
            dtype,
            shape,
            required=required,
            classes=classes,
            per_step=per_step,
            found=constants,
        )
        _check_entries(feature, entry, entry_names)
        yield feature


def _check_entries(feature: Feature, entry: Any, entry_names: set[str]) -> None:
    """Raises DataError if the tags of an entry contradict the entries of the schema.

    Users edit these files, so a tag may not match any more.

    Args:
        feature: The feature according to the tags.
        entry: The entry that has the tags.
        entry_names: The names of all entries.
    """
    for storage in feature.storage():
        if storage.name not in entry_names:
            raise DataError(
                f"feature {feature.name!r} ({feature.describe()}) needs an entry {storage.name!r}, which is "
                "not in the schema"
            )
    if _ENTRY_TYPES[feature.kind] != entry.type:
        actual_type, needed_type = (
            schema_pb2.FeatureType.Name(entry.type),
            schema_pb2.FeatureType.Name(_ENTRY_TYPES[feature.kind]),
        )
        raise DataError(
            f"feature {feature.name!r} has type {actual_type}, but "
            f"{feature.describe()} is stored as {needed_type}; change the type or the "
            f"{_TAG_PREFIX}dtype tag"
        )


def _make_entries(feature: Feature) -> Iterator[Any]:
    values, *lengths = feature.storage()
    yield _make_value_entry(feature, values)
    for storage in lengths:
        entry = schema_pb2.Feature(name=storage.name, type=schema_pb2.INT)
        _mark_required(entry, feature.required)
        entry.annotation.tag.append(f"{_TAG_PREFIX}part_of={feature.name}")
        yield entry


def _make_value_entry(feature: Feature, storage: Storage) -> Any:
    entry = schema_pb2.Feature(name=storage.name, type=_ENTRY_TYPES[storage.kind])
    _mark_required(entry, feature.required)
    if feature.per_step:
        if feature.ragged_rank == 1:
            size = 1 if storage.raw else feature.inner_size
            entry.value_count.min = entry.value_count.max = size
    elif storage.length is not None:
        # TensorFlow's tools refuse a `shape` for an optional feature, but not a `value_count`.
        if feature.required:
            sizes = feature.shape if not storage.raw and not feature.ragged_rank else ()
            entry.shape.SetInParent()
            entry.shape.dim.extend(schema_pb2.FixedShape.Dim(size=size) for size in sizes)
        else:
            entry.value_count.min = entry.value_count.max = storage.length
    if feature.dtype == "bool":
        entry.bool_domain.SetInParent()
    if feature.timestamp:
        entry.time_domain.integer_format = schema_pb2.TimeDomain.IntegerTimeFormat.Value(
            _TIME_UNIT_NAMES[feature.timestamp[0]]
        )
    if feature.classes is not None:
        entry.int_domain.is_categorical = True
        entry.int_domain.min, entry.int_domain.max = 0, max(len(feature.classes) - 1, 0)
    _add_tags(entry, feature)
    return entry


def _add_tags(entry: Any, feature: Feature) -> None:
    """Adds annotation tags for all properties that the entry does not express."""
    tags = []
    if entry.name != feature.name:
        tags.append(f"feature={feature.name}")
    if entry_dtype(entry, None) != feature.dtype:
        tags.append(f"dtype={feature.dtype}")
    if entry_shape(entry, per_step=feature.per_step) != feature.shape:
        tags.append(f"shape={json.dumps(feature.shape)}")
    if feature.classes is not None:
        tags.append(f"classes={json.dumps(feature.classes, ensure_ascii=False)}")
    if feature.found:
        tags.append(f"found={json.dumps(dict(feature.found))}")
    entry.annotation.tag.extend(_TAG_PREFIX + tag for tag in tags)
    if not tags:
        entry.ClearField("annotation")  # the access to `entry.annotation` above has created it


def _mark_required(entry: Any, required: bool) -> None:
    if required:
        entry.presence.min_fraction, entry.presence.min_count = 1.0, 1


def _make_representations(feature: Feature, message: str) -> dict[str, Any]:
    """Returns the TensorRepresentation messages of a feature, by tensor name.

    A tensor is left out if TensorFlow's tools infer its representation from the entries.

    Args:
        feature: The feature.
        message: The kind of the records.
    """
    values, *lengths = feature.storage()
    tensor = schema_pb2.TensorRepresentation.RaggedTensor
    nested = not values.raw and not feature.per_step
    partitions = (
        [tensor.Partition(row_length=storage.name) for storage in lengths] if nested else []
    )
    if nested and feature.ragged_rank:
        partitions += [tensor.Partition(uniform_row_length=size) for size in feature.inner_shape]
    if partitions:
        return {
            feature.name: schema_pb2.TensorRepresentation(
                ragged_tensor=tensor(feature_path=Path(step=[values.name]), partition=partitions)
            )
        }
    if message != SEQUENCE_EXAMPLE:
        return {}
    # tfx-bsl infers no representations for SequenceExamples, so each tensor needs one.
    if feature.per_step:
        return {feature.name: _make_step_representation(feature, values)}
    return {
        storage.name: _make_step_representation(feature, storage) for storage in (values, *lengths)
    }


def _make_step_representation(feature: Feature, storage: Storage) -> Any:
    if feature.required and storage.length is not None and not feature.per_step:
        shape = schema_pb2.FixedShape(
            dim=[
                schema_pb2.FixedShape.Dim(size=size)
                for size in (() if storage.raw else feature.inner_shape)
            ]
        )
        dense = schema_pb2.TensorRepresentation.DenseTensor(column_name=storage.name, shape=shape)
        return schema_pb2.TensorRepresentation(dense_tensor=dense)
    path = Path(step=[FEATURE_LISTS_STRUCT, storage.name] if feature.per_step else [storage.name])
    return schema_pb2.TensorRepresentation(
        ragged_tensor=schema_pb2.TensorRepresentation.RaggedTensor(feature_path=path)
    )


def _recordmill_tags(proto: Any) -> dict[str, str]:
    """Returns the annotation tags with the prefix `recordmill:`, by key.

    >>> _recordmill_tags(
    ...     schema_pb2.Feature(annotation={"tag": ["recordmill:dtype=uint8", "other"]})
    ... )
    {'dtype': 'uint8'}
    """
    tag_parts = (
        tag[len(_TAG_PREFIX) :].partition("=")
        for tag in proto.annotation.tag
        if tag.startswith(_TAG_PREFIX)
    )
    return {key: value for key, _, value in tag_parts}
