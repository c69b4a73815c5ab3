"""Schema files that came along with TFRecord files: a `Hint` from the files beside the shards, and the inferred schema
made better by it.

Looked for are `schema.pbtxt` (TensorFlow Metadata, also as tf.Transform's `transformed_metadata` and `metadata` hold
it) and `features.json` of TensorFlow Datasets with its `*.labels.txt`, in the shards' folder and, for the first ones,
in the folder above. A hint is believed only as far as the records agree: of each feature is said what was not used, and
why.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import format_count
from recordmill.records.inference.infer import FeatureCounts, Inference
from recordmill.schemas import tfmd
from recordmill.schemas.feature import ITEM_BYTES, OPAQUE_BYTES, Feature, Schema
from recordmill.schemas.tfds import from_features_json
from recordmill.shards.catalog import ShardFile
from recordmill.storage.files import parse_input_path
from recordmill.storage.folders import is_file, no_file_message
from recordmill.storage.json_fields import parse_json, read_bounded

FEATURES_FILE, INFO_FILE = "features.json", "dataset_info.json"
_SCHEMA_PATHS = ("schema.pbtxt", "transformed_metadata/schema.pbtxt", "metadata/schema.pbtxt")
_MAX_FOLDERS = 1000  # folders of shards that are looked into: each costs a few system calls
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
    """path: the file that it is from. features: by name; label: the feature that is the label, if that is said."""

    path: str
    features: Mapping[str, Feature]
    label: str | None = None


def find_hint(files: Sequence[ShardFile]) -> tuple[Hint | None, list[str]]:
    """The one hint that all files have, and notes on what was found and can't be used."""
    folders = list(dict.fromkeys(os.path.dirname(file.path) for file in files))
    if len(folders) > _MAX_FOLDERS:
        return None, []
    paths = dict.fromkeys(_find_hint_path(folder) for folder in folders)
    hints, notes = [], []
    for path in paths:
        if path is None:
            continue
        try:
            hints.append(read_hint(path))
        except DataError as error:
            notes.append(f"not used: {error}")
    if None in paths and hints:
        return None, [f"not used: {hints[0].path}, which stands beside some of the files only"]
    if any(
        (hint.features, hint.label) != (hints[0].features, hints[0].label) for hint in hints[1:]
    ):
        return None, [
            f"not used: {hints[0].path} and others, which differ; choose with {option('schema', 'FILE')}"
        ]
    return (hints[0] if hints else None), notes


def find_hinted_classes(files: Sequence[ShardFile]) -> dict[str, dict[tuple[str, ...], str]]:
    """By feature the classes whose numbers the files say that they hold, each with the first file that says so."""
    paths_by_classes: defaultdict[str, dict[tuple[str, ...], str]] = defaultdict(dict)
    folders = dict.fromkeys(os.path.dirname(file.path) for file in files)
    for path in dict.fromkeys(
        map(_find_hint_path, folders if len(folders) <= _MAX_FOLDERS else ())
    ):
        try:
            features = {} if path is None else read_hint(path).features
        except DataError:  # which is told where it is used
            continue
        for feature in features.values():
            if feature.classes and path is not None:
                paths_by_classes[feature.name].setdefault(feature.classes, path)
    return dict(paths_by_classes)


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
    """A `schema.pbtxt` or `features.json`.

    Raises:
        DataError: it is neither, or can't be read; it names the file.
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
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"is not what TensorFlow Datasets writes ({error!a:.200})", source=path
        ) from None
    return Hint(
        path,
        {feature.name: feature for feature in features},
        _read_label_key(os.path.join(folder, INFO_FILE)),
    )


def load_schema(schema: Schema | str | os.PathLike[str] | None) -> Schema | None:
    """The schema that a user gave: itself, or of the file that holds it; None where none was given."""
    return schema if schema is None or isinstance(schema, Schema) else read_schema_file(schema)


def read_schema_file(path: str | os.PathLike[str]) -> Schema:
    """The schema that a `--schema FILE` says, which is taken as it is.

    Raises:
        UsageError: there is no such file. DataError: it is none.
    """
    name = parse_input_path(path)
    if not is_file(name):
        raise UsageError(f"{option('schema', name)}: {no_file_message(name)}")
    return tfmd.from_pbtxt(_read_text(name), name)


def _read_text(path: str) -> str:
    try:
        return read_bounded(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"can't be read: {error}", source=path) from None


def _read_json(path: str) -> dict[str, Any]:
    try:
        content = parse_json(read_bounded(path), path)
    except OSError as error:
        raise DataError(f"can't be read: {error}", source=path) from None
    if not isinstance(content, dict):
        raise DataError("is no JSON object", source=path)
    return content


def _read_label_key(path: str) -> str | None:
    """The label by `supervisedKeys` of a `dataset_info.json`."""
    try:
        key = _read_json(path)["supervisedKeys"]["tuple"]["items"][1]["featureKey"]
    except (DataError, KeyError, IndexError, TypeError):
        return None
    return key if isinstance(key, str) else None


def refine_schema(schema: Schema, inference: Inference, hint: Hint) -> tuple[Schema, list[str]]:
    """Returns the inferred schema with what the hint knows better and no record contradicts, and notes."""
    if schema.message == OPAQUE_BYTES:
        return schema, [f"not used: {hint.path}; the records are no Examples"]
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
            f"not used of {hint.path}: {examples}{f' and {len(contradictions) - _MAX_SHOWN} more' if len(contradictions) > _MAX_SHOWN else ''}"
        )
    features = tuple(refined.get(feature.name, feature) for feature in schema)
    return Schema(
        features, hint.label if hint.label in schema else schema.label, schema.message
    ), notes


def find_contradictions(schema: Schema, inference: Inference, hint: Hint) -> dict[str, str]:
    """The features of the schema of which the records are not what the hint says, and why."""
    reasons = {
        feature.name: _contradiction(hint.features[feature.name], feature, inference)
        for feature in schema
        if feature.name in hint.features
    }
    return {name: why for name, why in reasons.items() if why is not None}


def _merge_features(hinted: Feature, inferred: Feature) -> Feature:
    """Presence is what the records say; bytes that are text stay text."""
    dtype = "string" if hinted.dtype == "bytes" and inferred.dtype == "string" else hinted.dtype
    return replace(hinted, dtype=dtype, required=inferred.required)


def _contradiction(hinted: Feature, inferred: Feature, inference: Inference) -> str | None:
    """Why the records are not what the hint says, or None."""
    message = f"it says {hinted.describe()}, the records hold {inferred.describe()}"
    counts = inference.features.get((hinted.storage()[0].name, hinted.per_step))
    if (
        counts is None
        or hinted.per_step != inferred.per_step
        or (counts.kinds and hinted.kind != inferred.kind)
    ):
        return message
    if not counts.kinds:
        return None
    if hinted.dtype == "string" and not counts.is_text:
        return f"{message} that are no UTF-8 text"
    if not (_raw_fits(hinted, counts) if hinted.raw else _lengths_fit(hinted, inferred, counts)):
        return message
    bounds = _INTEGER_RANGES.get(hinted.dtype)
    if (
        bounds is not None
        and counts.least_int is not None
        and counts.most_int is not None
        and not bounds[0] <= counts.least_int <= counts.most_int <= bounds[1]
    ):
        return f"it says {hinted.dtype}, the records hold {counts.least_int} to {counts.most_int}"
    return None


def _raw_fits(hinted: Feature, counts: FeatureCounts) -> bool:
    """Returns whether each value is the memory of such a tensor."""
    size = ITEM_BYTES[hinted.dtype] * hinted.inner_size
    if counts.length != 1 or counts.least_bytes is None or counts.most_bytes is None:
        return False
    if hinted.ragged_rank:
        return (
            hinted.ragged_rank == 1
            and size > 0
            and counts.least_bytes % size == counts.most_bytes % size == 0
        )
    return counts.least_bytes == counts.most_bytes == size


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
        for length in (counts.least_values, counts.most_values)
    )
