"""A `Schema` as the text of a tensorflow_metadata `schema.pbtxt`, and back, exactly.

The file describes the entries as they stand in the Example, so that TensorFlow's own tools (tf.Transform's
`schema_utils`, tfx-bsl's decoder and TensorAdapter) read the shards with it. What the proto can't say (uint8, a tensor
held as bytes, class names, the label) stands in annotation tags `recordmill:KEY=VALUE`, which those tools carry along
untouched; a tag is written only where it is needed. Schemas written by others load by the rules of `tfmd_plain`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_metadata.proto.v0.path_pb2 import Path

from recordmill.base.errors import DataError
from recordmill.schemas import tfmd_plain
from recordmill.schemas.feature import BYTES, EXAMPLE, FLOAT, INT64, SEQUENCE_EXAMPLE, Feature, Schema, Storage

SEQUENCE = "##SEQUENCE##"  # the STRUCT under which tfx-bsl expects the feature_lists of a SequenceExample

_TAG = "recordmill:"
_TYPES = {INT64: schema_pb2.INT, FLOAT: schema_pb2.FLOAT, BYTES: schema_pb2.BYTES}
_TIME = {"s": "UNIX_SECONDS", "ms": "UNIX_MILLISECONDS", "us": "UNIX_MICROSECONDS", "ns": "UNIX_NANOSECONDS"}


def to_pbtxt(schema: Schema) -> str:
    """The schema as a tensorflow_metadata `Schema` in protobuf's text form."""
    proto = schema_pb2.Schema(represent_variable_length_as_ragged=True)
    proto.annotation.tag.append(f"{_TAG}message={schema.message}")
    if schema.label is not None:
        proto.annotation.tag.append(f"{_TAG}label={schema.label}")
    steps = [feature for feature in schema if feature.per_step]
    for feature in schema:
        if not feature.per_step:
            proto.feature.extend(_entries(feature))
    if schema.message == SEQUENCE_EXAMPLE:
        domain = schema_pb2.StructDomain(feature=[entry for feature in steps for entry in _entries(feature)])
        proto.feature.append(schema_pb2.Feature(name=SEQUENCE, type=schema_pb2.STRUCT, struct_domain=domain))
        if schema.names != tuple(f.name for f in sorted(schema, key=lambda f: f.per_step)):
            proto.annotation.tag.append(f"{_TAG}order={json.dumps(schema.names)}")
    elif steps:
        raise ValueError(f"feature {steps[0].name!r} stands in a feature list, but the records are {schema.message}")
    for feature in schema:
        for name, representation in _representations(feature, schema.message).items():
            proto.tensor_representation_group[""].tensor_representation[name].CopyFrom(representation)
    return str(text_format.MessageToString(proto, as_utf8=True))


def from_pbtxt(text: str, source: str = "") -> Schema:
    """The Schema that a `schema.pbtxt` describes, whoever wrote it.

    source: the file's name, for messages.

    Raises:
        DataError: it is no such file, or a feature has no counterpart here (sparse features, structs); it names the
            feature.
    """
    try:
        proto = text_format.Parse(text, schema_pb2.Schema())
    except (text_format.ParseError, RecursionError, ValueError) as error:
        raise DataError(f"is no tensorflow_metadata schema: {error}", source=source) from None
    try:
        return _schema(proto)
    except (ValueError, TypeError, KeyError, RecursionError) as error:  # Feature and Schema check themselves
        raise DataError(error.reason if isinstance(error, DataError) else str(error)[:300], source=source) from error


def _schema(proto: Any) -> Schema:
    about = _tags(proto)
    tfmd_plain.check(proto)
    shapes = tfmd_plain.dense_shapes(proto)
    features: list[Feature] = []
    message = about.get("message", EXAMPLE)
    for entry in tfmd_plain.in_use(proto.feature):
        if entry.type == schema_pb2.STRUCT:
            message = SEQUENCE_EXAMPLE
            features.extend(_features(tfmd_plain.in_use(entry.struct_domain.feature), {}, proto, per_step=True))
    context = [entry for entry in tfmd_plain.in_use(proto.feature) if entry.type != schema_pb2.STRUCT]
    features[:0] = _features(context, shapes, proto, per_step=False)
    if not features and not about:
        raise DataError("the schema has no features")
    if "order" in about:
        by_name = {feature.name: feature for feature in features}
        features = [by_name.pop(name) for name in json.loads(about["order"]) if name in by_name] + list(
            by_name.values()
        )
    return Schema(tuple(features), about.get("label"), message)


def _features(
    entries: Iterable[Any], shapes: Mapping[str, tuple[int | None, ...]], proto: Any, *, per_step: bool
) -> Iterator[Feature]:
    """The features that the entries carry: most entries are a feature each, a nested list is several."""
    entries = list(entries)
    names = {entry.name for entry in entries}
    for entry in entries:
        tags = _tags(entry)
        if "part_of" in tags:
            continue
        name = tags.get("feature", entry.name)
        plain_dtype, plain_shape = (
            tfmd_plain.dtype(entry, proto),
            shapes.get(entry.name, tfmd_plain.shape(entry, per_step=per_step)),
        )
        shape = tuple(json.loads(tags["shape"])) if "shape" in tags else plain_shape
        classes = tuple(json.loads(tags["classes"])) if "classes" in tags else None
        found = tuple((key, float(number)) for key, number in dict(json.loads(tags.get("found", "{}"))).items())
        dtype = tags.get("dtype", plain_dtype)
        feature = Feature(name, dtype, shape, tfmd_plain.required(entry), classes, per_step, found)
        _check_entries(feature, entry, names)
        yield feature


def _check_entries(feature: Feature, entry: Any, names: set[str]) -> None:
    """Tags and proto must tell the same story, since people edit these files."""
    for storage in feature.storage():
        if storage.name not in names:
            raise DataError(
                f"feature {feature.name!r} ({feature.describe()}) needs an entry {storage.name!r}, which is "
                "not in the schema"
            )
    if _TYPES[feature.kind] != entry.type:
        stated, needed = schema_pb2.FeatureType.Name(entry.type), schema_pb2.FeatureType.Name(_TYPES[feature.kind])
        raise DataError(
            f"feature {feature.name!r} has type {stated}, but {feature.describe()} is held as {needed}; "
            f"change the type or the {_TAG}dtype tag"
        )


def _entries(feature: Feature) -> Iterator[Any]:
    values, *lengths = feature.storage()
    yield _value_entry(feature, values)
    for storage in lengths:
        entry = schema_pb2.Feature(name=storage.name, type=schema_pb2.INT)
        _set_presence(entry, feature.required)
        entry.annotation.tag.append(f"{_TAG}part_of={feature.name}")
        yield entry


def _value_entry(feature: Feature, storage: Storage) -> Any:
    entry = schema_pb2.Feature(name=storage.name, type=_TYPES[storage.kind])
    _set_presence(entry, feature.required)
    if feature.per_step:
        if feature.ragged_rank == 1:
            size = 1 if storage.raw else feature.inner_size
            entry.value_count.min = entry.value_count.max = size
    elif storage.length is not None:
        if feature.required:  # tf's tools refuse a shape where a record may lack the feature
            sizes = feature.shape if not storage.raw and not feature.ragged_rank else ()
            entry.shape.SetInParent()
            entry.shape.dim.extend(schema_pb2.FixedShape.Dim(size=size) for size in sizes)
        else:
            entry.value_count.min = entry.value_count.max = storage.length
    if feature.dtype == "bool":
        entry.bool_domain.SetInParent()
    if feature.timestamp:
        entry.time_domain.integer_format = schema_pb2.TimeDomain.IntegerTimeFormat.Value(_TIME[feature.timestamp[0]])
    if feature.classes is not None:
        entry.int_domain.is_categorical = True
        entry.int_domain.min, entry.int_domain.max = 0, max(len(feature.classes) - 1, 0)
    _add_tags(entry, feature)
    return entry


def _add_tags(entry: Any, feature: Feature) -> None:
    """What reading the entry as anybody's would not give."""
    tags = []
    if entry.name != feature.name:
        tags.append(f"feature={feature.name}")
    if tfmd_plain.dtype(entry, None) != feature.dtype:
        tags.append(f"dtype={feature.dtype}")
    if tfmd_plain.shape(entry, per_step=feature.per_step) != feature.shape:
        tags.append(f"shape={json.dumps(feature.shape)}")
    if feature.classes is not None:
        tags.append(f"classes={json.dumps(feature.classes, ensure_ascii=False)}")
    if feature.found:
        tags.append(f"found={json.dumps(dict(feature.found))}")
    entry.annotation.tag.extend(_TAG + tag for tag in tags)
    if not tags:
        entry.ClearField("annotation")


def _set_presence(entry: Any, required: bool) -> None:
    if required:
        entry.presence.min_fraction, entry.presence.min_count = 1.0, 1


def _representations(feature: Feature, message: str) -> dict[str, Any]:
    """Tensor name to how TensorFlow's tools make it of the entries, where they would not by themselves."""
    values, *lengths = feature.storage()
    tensor = schema_pb2.TensorRepresentation.RaggedTensor
    nested = not values.raw and not feature.per_step
    partitions = [tensor.Partition(row_length=storage.name) for storage in lengths] if nested else []
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
    # tfx-bsl infers none for these
    return {storage.name: _step_representation(feature, storage) for storage in (values, *lengths)}


def _step_representation(feature: Feature, storage: Storage) -> Any:
    if feature.required and storage.length is not None and not feature.per_step:
        shape = schema_pb2.FixedShape(
            dim=[schema_pb2.FixedShape.Dim(size=size) for size in (() if storage.raw else feature.inner_shape)]
        )
        dense = schema_pb2.TensorRepresentation.DenseTensor(column_name=storage.name, shape=shape)
        return schema_pb2.TensorRepresentation(dense_tensor=dense)
    path = Path(step=[SEQUENCE, storage.name] if feature.per_step else [storage.name])
    return schema_pb2.TensorRepresentation(
        ragged_tensor=schema_pb2.TensorRepresentation.RaggedTensor(feature_path=path)
    )


def _tags(proto: Any) -> dict[str, str]:
    """Our annotation tags, by key."""
    ours = (tag[len(_TAG) :].partition("=") for tag in proto.annotation.tag if tag.startswith(_TAG))
    return {key: value for key, _, value in ours}
