"""Schema files that are stored next to TFRecord files.

These files are searched:

    features.json and *.labels.txt   of TensorFlow Datasets, in the folder of the shards
    schema.pbtxt                     of TensorFlow Metadata, in this folder or its parent
    transformed_metadata/, metadata/ of tf.Transform, which contain a schema.pbtxt

A fact from such a file, a hint, is used only if no record contradicts it. A note lists the features
that were not used, with reasons.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recordmill.base.errors import DataError, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.sizes import format_count
from recordmill.records.inference.infer import FeatureCounts, Inference
from recordmill.schemas import tfmd
from recordmill.schemas.feature import (
    INT64_LIST,
    ITEM_BYTES,
    OPAQUE_BYTES,
    Feature,
    Schema,
    format_classes,
)
from recordmill.schemas.tfds import from_features_json
from recordmill.shards.catalog import ShardFile
from recordmill.shards.lengths import INFO_FILE
from recordmill.storage.files import parse_input_path, read_range
from recordmill.storage.folders import is_file, no_file_message
from recordmill.storage.json_fields import MAX_JSON_BYTES, parse_json

FEATURES_FILE = "features.json"
_SCHEMA_PATHS = ("schema.pbtxt", "transformed_metadata/schema.pbtxt", "metadata/schema.pbtxt")
# Maximum number of folders that are searched. Each costs a few system calls.
_MAX_FOLDERS = 1000
_MAX_SHOWN = 3
_INTEGER_RANGES = {
    "bool": (0, 1),
    "int8": (-128, 127),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint8": (0, 255),
    "uint16": (0, (1 << 16) - 1),
    "uint32": (0, (1 << 32) - 1),
}


@dataclass(frozen=True)
class Hint:
    """Contents of a schema file.

    Attributes:
        path: Path of the file.
        features: The features, by name.
        label: Name of the label feature. None if the file does not specify one.
    """

    path: str
    features: Mapping[str, Feature]
    label: str | None = None


def find_hint(files: Sequence[ShardFile]) -> tuple[Hint | None, list[str]]:
    """Finds the schema file that all files have in common.

    Returns:
        (hint, notes). The hint is None if there is no common file that can be used. The notes are
        about schema files that can't be used.
    """
    folders = list(dict.fromkeys(os.path.dirname(file.path) for file in files))
    if len(folders) > _MAX_FOLDERS:
        return None, []
    paths = dict.fromkeys(_find_hint_path(folder) for folder in folders)
    hints, notes = list[Hint](), list[str]()
    for path in paths:
        if path is None:
            continue
        try:
            hints.append(read_hint(path))
        except DataError as error:
            notes.append(Message("not used: {error}", error=error))
    if None in paths and hints:
        return None, [(f"not used: {hints[0].path}, which is next to only some of the files")]
    if any(
        (hint.features, hint.label) != (hints[0].features, hints[0].label) for hint in hints[1:]
    ):
        return None, [
            Message(
                "not used: {path} and others, which differ; choose with {schema}",
                path=hints[0].path,
                schema=option("schema", "FILE"),
            )
        ]
    return (hints[0] if hints else None), notes


def find_hinted_classes(files: Sequence[ShardFile]) -> dict[str, dict[tuple[str, ...], str]]:
    """Returns the class names in the schema files next to the files.

    Returns:
        For each feature, its different lists of class names, each with the first schema file that
        contains it.
    """
    paths_by_classes: defaultdict[str, dict[tuple[str, ...], str]] = defaultdict(dict)
    folders = dict.fromkeys(os.path.dirname(file.path) for file in files)
    for path in dict.fromkeys(
        map(_find_hint_path, folders if len(folders) <= _MAX_FOLDERS else ())
    ):
        try:
            features = {} if path is None else read_hint(path).features
        except DataError:
            continue
        for feature in features.values():
            if feature.classes and path is not None:
                paths_by_classes[feature.name].setdefault(feature.classes, path)
    return dict(paths_by_classes)


def check_class_numbers(
    schema: Schema, classes_by_feature: Mapping[str, Mapping[tuple[str, ...], str]]
) -> None:
    """Raises DataError if records and the schema number their classes differently.

    Args:
        schema: The schema.
        classes_by_feature: By feature: each list of class names that belongs to some of the
            records, with the path of a file that contains it.
    """
    for feature in schema:
        tables = classes_by_feature.get(feature.name, {}) if feature.kind == INT64_LIST else {}
        expected_classes = feature.classes or max(tables, key=len, default=())
        for names, path in tables.items():
            # One list of classes may be the beginning of the other. Their numbers agree then.
            if names[: len(expected_classes)] != expected_classes[: len(names)]:
                other_source = (
                    f"those of {tables[expected_classes]}"
                    if expected_classes in tables
                    else "the schema's"
                )
                raise DataError(
                    f"{feature.name!r} has numbers of the classes {format_classes(names)}, and {other_source} are "
                    f"{format_classes(expected_classes)}; records of TFRecord files are kept as they are, so read each of them to "
                    "Parquet and build from that, where classes go by name",
                    source=path,
                )


def _find_hint_path(folder: str) -> str | None:
    paths = [
        os.path.join(folder, FEATURES_FILE),
        *(
            os.path.join(parent, path)
            for parent in (folder, os.path.dirname(folder))
            for path in _SCHEMA_PATHS
        ),
    ]
    return next((path for path in paths if is_file(path)), None)


def read_hint(path: str) -> Hint:
    """Reads a `schema.pbtxt` or a `features.json`.

    Raises:
        DataError: The file can't be read or is neither of them. The error names the file.
    """
    if not path.endswith(".json"):
        schema = tfmd.from_pbtxt(_read_text(path), path)
        return Hint(path, {feature.name: feature for feature in schema}, schema.label)
    folder = os.path.dirname(path)

    def read_labels(file: str) -> tuple[str, ...] | None:
        labels_path = os.path.join(folder, file)
        return tuple(_read_text(labels_path).splitlines()) if is_file(labels_path) else None

    try:
        features = from_features_json(_read_json(path), read_labels)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        # DataError is a ValueError. It already has a message of its own.
        if isinstance(error, DataError):
            raise
        raise DataError(
            "is not what TensorFlow Datasets writes ({error})",
            error=f"{error!a:.200}",
            source=path,
        ) from None
    return Hint(
        path,
        {feature.name: feature for feature in features},
        _read_label_key(os.path.join(folder, INFO_FILE)),
    )


def load_schema(schema: Schema | str | os.PathLike[str] | None) -> Schema | None:
    """Returns the schema that a user has passed.

    A `Schema` and None are returned unchanged. A path is read with `read_schema_file`.

    Raises:
        UsageError: `schema` is something else, or `read_schema_file` refuses the file.
    """
    if not isinstance(schema, Schema | str | os.PathLike | None):
        raise UsageError(
            f"schema is a Schema or the path of a schema.pbtxt, not an object of type {type(schema).__name__}"
        )
    return schema if schema is None or isinstance(schema, Schema) else read_schema_file(schema)


def read_schema_file(path: str | os.PathLike[str]) -> Schema:
    """Reads the file of the option `schema`.

    Raises:
        UsageError: The file does not exist.
        DataError: The file is not a schema.
    """
    name = parse_input_path(path)
    if not is_file(name):
        raise UsageError(
            "{schema}: {no_file_message}",
            schema=option("schema", name),
            no_file_message=no_file_message(name),
        )
    return tfmd.from_pbtxt(_read_text(name), name)


def _read_text(path: str) -> str:
    try:
        return read_range(path, max_bytes=MAX_JSON_BYTES).tobytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"can't be read: {error}", source=path) from None


def _read_json(path: str) -> dict[str, Any]:
    try:
        content = parse_json(read_range(path, max_bytes=MAX_JSON_BYTES).tobytes(), path)
    except OSError as error:
        raise DataError(f"can't be read: {error}", source=path) from None
    if not isinstance(content, dict):
        raise DataError("is not a JSON object", source=path)
    return content


def _read_label_key(path: str) -> str | None:
    """Returns the label from `supervisedKeys` of a `dataset_info.json`. None if there is none."""
    try:
        key = _read_json(path)["supervisedKeys"]["tuple"]["items"][1]["featureKey"]
    except (DataError, KeyError, IndexError, TypeError):
        return None
    return key if isinstance(key, str) else None


def refine_schema(schema: Schema, inference: Inference, hint: Hint) -> tuple[Schema, list[str]]:
    """Improves an inferred schema with a hint, as far as no record contradicts it.

    Returns:
        The schema, and notes on the parts that were used and not used.
    """
    if schema.message == OPAQUE_BYTES:
        return schema, [f"not used: {hint.path}; the records are not Examples"]
    contradictions = find_contradictions(schema, inference, hint)
    refined = {
        feature.name: _merge_features(hint.features[feature.name], feature)
        for feature in schema
        if feature.name in hint.features and feature.name not in contradictions
    }
    contradictions |= {name: "no record has it" for name in hint.features if name not in schema}
    notes = [f"{format_count(len(refined), 'feature')} described by {hint.path}"]
    if contradictions:
        examples = ", ".join(
            f"{name} ({why})" for name, why in list(contradictions.items())[:_MAX_SHOWN]
        )
        notes.append(
            f"not used from {hint.path}: {examples}"
            f"{f' and {len(contradictions) - _MAX_SHOWN} more' if len(contradictions) > _MAX_SHOWN else ''}"
        )
    features = tuple(refined.get(feature.name, feature) for feature in schema)
    return Schema(
        features, hint.label if hint.label in schema else schema.label, schema.message
    ), notes


def find_contradictions(schema: Schema, inference: Inference, hint: Hint) -> dict[str, str]:
    """Returns the reasons why records contradict the hint, by feature."""
    reasons = {
        feature.name: _contradiction(hint.features[feature.name], feature, inference)
        for feature in schema
        if feature.name in hint.features
    }
    return {name: why for name, why in reasons.items() if why is not None}


def _merge_features(hinted: Feature, inferred: Feature) -> Feature:
    """Returns the hinted feature with the facts that the records determine."""
    # A hint of bytes is also true for texts, but the inferred dtype is more exact.
    dtype = "string" if hinted.dtype == "bytes" and inferred.dtype == "string" else hinted.dtype
    return replace(hinted, dtype=dtype, required=inferred.required)


def _contradiction(hinted: Feature, inferred: Feature, inference: Inference) -> str | None:
    """Returns the reason why the records contradict the hint. None if they do not."""
    message = f"it declares {hinted.describe()}, but the records contain {inferred.describe()}"
    counts = inference.features.get((hinted.storage()[0].name, hinted.per_step))
    if (
        counts is None
        or hinted.per_step != inferred.per_step
        or (counts.kinds and hinted.kind != inferred.kind)
    ):
        return message
    # No record has a value, so nothing can contradict the hint.
    if not counts.kinds:
        return None
    if hinted.dtype == "string" and not counts.is_text:
        return f"{message} that are not UTF-8 text"
    if not (_raw_fits(hinted, counts) if hinted.raw else _lengths_fit(hinted, inferred, counts)):
        return message
    bounds = _INTEGER_RANGES.get(hinted.dtype)
    if (
        bounds is not None
        and counts.min_int is not None
        and counts.max_int is not None
        and not bounds[0] <= counts.min_int <= counts.max_int <= bounds[1]
    ):
        return (
            f"it declares {hinted.dtype}, but the records contain {counts.min_int} "
            f"to {counts.max_int}"
        )
    return None


def _raw_fits(hinted: Feature, counts: FeatureCounts) -> bool:
    """Returns whether all values have the size of the tensor in the hint."""
    size = ITEM_BYTES[hinted.dtype] * hinted.inner_size
    if counts.length != 1 or counts.min_bytes is None or counts.max_bytes is None:
        return False
    if hinted.ragged_rank:
        return (
            hinted.ragged_rank == 1
            and size > 0
            and counts.min_bytes % size == counts.max_bytes % size == 0
        )
    return counts.min_bytes == counts.max_bytes == size


def _lengths_fit(hinted: Feature, inferred: Feature, counts: FeatureCounts) -> bool:
    if hinted.ragged_rank > 1 or hinted.per_step:
        return (
            hinted.ragged_rank == inferred.ragged_rank
            and hinted.inner_shape == inferred.inner_shape
        )
    if not hinted.ragged_rank:
        return counts.length == hinted.inner_size
    if inferred.ragged_rank > 1 or not hinted.inner_size:
        return False
    return all(
        length is not None and length % hinted.inner_size == 0
        for length in (counts.min_values, counts.max_values)
    )
