"""Conversion between schemas and the metadata files of TensorFlow Datasets (TFDS).

A data set of recordmill gets the files that `tfds.builder_from_directory` needs. In the other
direction, the `features.json` of a data set of TFDS is converted to the features of its Examples.

TFDS describes each feature by a feature connector, such as `Tensor` or `ClassLabel`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.schemas.croissant import Description
from recordmill.schemas.feature import DTYPES, OPAQUE_BYTES, Feature, Schema

FILEPATH_TEMPLATE = "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}"

_CONNECTOR_PACKAGE = "tensorflow_datasets.core.features"
LABELS_SUFFIX = ".labels.txt"
# File systems allow names of 255 bytes, and the file has a longer temporary name while it is
# written.
_MAX_FILE_NAME_BYTES = 200
# Features that a note lists by name. Others are only counted.
_MAX_LISTED_FEATURES = 5
# Features of a data set from class folders. They contain the class, so a model must not learn from
# them.
_LABEL_REVEALING = ("class_name", "source")


@dataclass(frozen=True)
class SplitSizes:
    """The sizes of the shards of one split.

    Attributes:
        shard_lengths: The number of records of each shard, in order.
        num_bytes: The total size of all shards in bytes.
    """

    shard_lengths: Sequence[int]
    num_bytes: int


def to_features_json(schema: Schema, images: Collection[str] = ()) -> dict[str, Any]:
    """Converts a schema to the content of `features.json`.

    Features that TFDS can't read are left out, see `tfds_limitations`.

    Args:
        schema: The schema.
        images: Names of bytes features that contain JPEG or PNG images. TFDS decodes these to uint8
            [height, width, 3].
    """
    features = {
        feature.name: _IMAGE_CONNECTOR if feature.name in images else _connector(feature)
        for feature in _supported_features(schema)
    }
    return _connector_json("features_dict.FeaturesDict", featuresDict={"features": features})


def dataset_info_json(
    name: str,
    version: str,
    splits: Mapping[str, SplitSizes],
    filepath_template: str = FILEPATH_TEMPLATE,
    *,
    schema: Schema | None = None,
    description: Description | None = None,
) -> dict[str, Any]:
    """Returns the content of `dataset_info.json`.

    Args:
        name: Name of the data set.
        version: Three numbers, such as `1.0.0`.
        splits: Sizes of the shards of each split, by name.
        filepath_template: Template of the names of the shards, relative to the folder of the file.
        schema: The schema, or None. If it has a label, TFDS can return pairs (input, label) for
            `as_supervised=True`. The input is the feature `image`, if it exists. Otherwise it is
            all features except the label, `class_name` and `source`. The last two reveal the label.
        description: The description by the author of the data set, or None.
    """
    info: dict[str, Any] = {
        "name": name,
        "version": version,
        "fileFormat": "tfrecord",
        "moduleName": "recordmill",
    }
    if description is not None:
        info |= _description_fields(description)
    info["splits"] = [
        {
            "name": split,
            "shardLengths": [str(records) for records in sizes.shard_lengths],
            "numBytes": str(sizes.num_bytes),
            "filepathTemplate": filepath_template,
        }
        for split, sizes in splits.items()
    ]
    if schema is not None and (keys := _supervised_keys(schema)) is not None:
        info["supervisedKeys"] = keys
    return info


def _description_fields(description: Description) -> dict[str, Any]:
    """Returns a description as fields of DatasetInfo. Empty texts are left out."""
    texts = {"description": description.description, "citation": description.citation}
    fields: dict[str, Any] = {name: text for name, text in texts.items() if text}
    if description.url:
        fields["location"] = {"urls": [description.url]}
    if description.license:
        fields["redistributionInfo"] = {"license": description.license}
    return fields


def label_files(schema: Schema) -> dict[str, str]:
    """Returns the files with class names that TFDS reads next to `features.json`.

    TFDS shows class numbers if a feature has no such file. Two things prevent a file:

    * Its name would be too long, or two features need the same file name.
    * A class name is empty, occurs twice, contains a line break, or begins or ends with a space.

    Returns:
        The content of each file, by file name. It has one class name per line.
    """
    labelled = [feature for feature in _supported_features(schema) if feature.classes]
    file_names = Counter(_label_file(feature) for feature in labelled)
    return {
        _label_file(feature): "\n".join(feature.classes or ()) + "\n"
        for feature in labelled
        if file_names[_label_file(feature)] == 1
        and len(_label_file(feature).encode()) < _MAX_FILE_NAME_BYTES
        and _fit_in_label_file(feature.classes or ())
    }


def tfds_limitations(schema: Schema, compression: str = "none") -> list[str]:
    """Returns a sentence for each feature that TFDS can't read.

    If TFDS can't read the records at all, there is only one sentence, with the reason.

    Args:
        schema: The schema.
        compression: Compression of the shards, as in the option.
    """
    if compression != "none":
        return [
            Message(
                "TensorFlow Datasets reads no {compression} shards; build with {compression2}",
                compression=compression,
                compression2=option("compression", "none"),
            )
        ]
    if schema.message == OPAQUE_BYTES:
        return [f"TensorFlow Datasets reads Examples, and these records are {schema.message}"]
    return [
        f"{feature.name}: {reason}"
        for feature in schema
        if (reason := _limitation(feature)) is not None
    ]


def tfds_notes(schema: Schema) -> list[str]:
    """Returns a list with one note that names the features that TFDS can't read.

    The list is empty if TFDS can read all features.
    """
    refused = [feature for feature in schema if _limitation(feature) is not None]
    if schema.message == OPAQUE_BYTES or not refused:
        return []
    and_more = (
        f" and {len(refused) - _MAX_LISTED_FEATURES:,} more"
        if len(refused) > _MAX_LISTED_FEATURES
        else ""
    )
    names = ", ".join(repr(feature.name) for feature in refused[:_MAX_LISTED_FEATURES])
    return [f"TensorFlow Datasets can't read {names}{and_more} (details: `recordmill inspect`)"]


def _supported_features(schema: Schema) -> list[Feature]:
    return (
        [feature for feature in schema if _limitation(feature) is None]
        if schema.message != OPAQUE_BYTES
        else []
    )


def _limitation(feature: Feature) -> str | None:
    """Returns the reason why TFDS can't read a feature, or None."""
    # TFDS reads the context of a SequenceExample as an Example, and nothing else of it.
    if feature.per_step:
        return "it is a feature list: TFDS reads the context of SequenceExamples only"
    if not feature.required:
        return (
            "some records may lack it: TFDS has no nulls (it stops at a missing scalar or tensor, and reads a "
            "missing list as an empty one)"
        )
    if feature.dtype == "bfloat16":
        return "TFDS reads no bfloat16 from Examples"
    if feature.raw and feature.ragged_rank > 1:
        return f"TFDS reads no nested lists of {feature.dtype}"
    if feature.ragged_rank and 0 in feature.inner_shape:
        return "TFDS can't tell how many items of size zero there are"
    return None


def _connector(feature: Feature) -> dict[str, Any]:
    if feature.raw:
        return _tensor_connector(feature.shape, _tfds_dtype(feature), "bytes")
    connector = _item_connector(feature)
    for _ in range(feature.ragged_rank):
        connector = _connector_json(
            "sequence_feature.Sequence", sequence={"feature": connector, "length": "-1"}
        )
    return connector


def _item_connector(feature: Feature) -> dict[str, Any]:
    """Returns the feature connector for one item of the innermost list."""
    if feature.inner_shape:
        return _tensor_connector(feature.inner_shape, _tfds_dtype(feature))
    if feature.classes:
        return _connector_json(
            "class_label_feature.ClassLabel", classLabel={"numClasses": str(len(feature.classes))}
        )
    if feature.dtype == "string":
        return _connector_json("text_feature.Text", text={})
    return _connector_json(
        "scalar.Scalar", tensor={"shape": {}, "dtype": _tfds_dtype(feature), "encoding": "none"}
    )


def _tensor_connector(
    shape: Sequence[int | None], dtype: str, encoding: str = "none"
) -> dict[str, Any]:
    dimensions = ["-1" if size is None else str(size) for size in shape]
    return _connector_json(
        "tensor_feature.Tensor",
        tensor={"shape": {"dimensions": dimensions}, "dtype": dtype, "encoding": encoding},
    )


def _connector_json(name: str, **content: Any) -> dict[str, Any]:
    return {"pythonClassName": f"{_CONNECTOR_PACKAGE}.{name}", **content}


_IMAGE_CONNECTOR = _connector_json(
    "image_feature.Image", image={"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"}
)


def _tfds_dtype(feature: Feature) -> str:
    if feature.timestamp:
        return "int64"
    return "string" if feature.dtype == "bytes" else feature.dtype


def _supervised_keys(schema: Schema) -> dict[str, Any] | None:
    inputs = [
        feature.name
        for feature in _supported_features(schema)
        if feature.name != schema.label and feature.name not in _LABEL_REVEALING
    ]
    if "image" in inputs:
        inputs = ["image"]
    if schema.label is None or _limitation(schema[schema.label]) is not None or not inputs:
        return None
    # A single input is represented by its value, and several inputs by a dict.
    nested = (
        {"featureKey": inputs[0]}
        if len(inputs) == 1
        else {"dict": {"dict": {name: {"featureKey": name} for name in inputs}}}
    )
    return {"tuple": {"items": [nested, {"featureKey": schema.label}]}}


def _label_file(feature: Feature) -> str:
    return feature.name.replace("/", ".") + LABELS_SUFFIX


def _fit_in_label_file(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names) and all(
        name and name == name.strip() and "\n" not in name and "\r" not in name for name in names
    )


# Takes the name of a label file. Returns its class names, or None if it does not exist.
ClassNameReader = Callable[[str], tuple[str, ...] | None]

# A `Feature` of these dtypes is stored as raw bytes, but TFDS may store it in a list of an Example.
# Then the dtype of the list is used.
_LIST_DTYPES = {"float64": "float32", "uint64": "int64", "uint8": "int64"}


def from_features_json(
    content: Mapping[str, Any], read_class_names: ClassNameReader = lambda file: None
) -> list[Feature]:
    """Converts the `features.json` of TFDS to the features of its Examples.

    Features with unknown connectors are left out.

    Args:
        content: The parsed JSON.
        read_class_names: Function that returns the class names in a label file, or None if the file
            does not exist. Its argument is the file name.

    >>> number = {"tensor": {"shape": {}, "dtype": "int32", "encoding": "none"}}
    >>> from_features_json({"featuresDict": {"features": {"n": number}}})  # doctest: +ELLIPSIS
    [Feature(name='n', dtype='int32', shape=(), ...)]
    """
    # `FeaturesDict.to_json` of TFDS writes the features one level deeper, below `content`.
    legacy_content = content.get("content")
    features = content.get(
        "featuresDict", legacy_content if isinstance(legacy_content, Mapping) else {}
    ).get("features", {})
    return [
        feature
        for name, connector in features.items()
        for feature in _parse_connector(name, _label_file_stem(name), connector, read_class_names)
    ]


def _label_file_stem(name: str) -> str:
    return name.replace("/", ".")


def _parse_connector(
    name: str, file_stem: str, connector: Mapping[str, Any], read_class_names: ClassNameReader
) -> Iterator[Feature]:
    """Yields the features of a feature connector.

    A dict of connectors yields several features. An unknown or damaged connector yields none.

    Args:
        name: Name of the feature.
        file_stem: Name of its label file without the suffix.
        connector: The connector as parsed JSON.
        read_class_names: Returns the class names in a label file, see `from_features_json`.
    """
    try:
        yield from _parse_known_connector(name, file_stem, connector, read_class_names)
    # The JSON has another structure than expected, or `Feature` does not accept its values.
    except (ValueError, TypeError, KeyError, AttributeError):
        return


def _parse_known_connector(
    name: str, file_stem: str, connector: Mapping[str, Any], read_class_names: ClassNameReader
) -> Iterator[Feature]:
    if "featuresDict" in connector:
        for field_name, field_connector in connector["featuresDict"]["features"].items():
            yield from _parse_connector(
                f"{name}/{field_name}",
                f"{file_stem}-{_label_file_stem(field_name)}",
                field_connector,
                read_class_names,
            )
    elif "sequence" in connector:
        length = int(connector["sequence"].get("length", "-1"))
        for feature in _parse_connector(
            name, file_stem, connector["sequence"]["feature"], read_class_names
        ):
            if not feature.raw:
                yield _as_list_entry(
                    replace(feature, shape=(None if length < 0 else length, *feature.shape))
                )
    elif "classLabel" in connector:
        yield Feature(name, "int64", classes=read_class_names(f"{file_stem}.labels.txt"))
    elif "text" in connector:
        yield Feature(name, "string")
    elif "image" in connector:
        yield Feature(name, "bytes")
    elif "tensor" in connector:
        yield from _parse_tensor(name, connector["tensor"])
    elif "boundingBox" in connector:
        yield Feature(name, "float32", (4,))


def _parse_tensor(name: str, tensor: Mapping[str, Any]) -> Iterator[Feature]:
    dtype, encoding = tensor.get("dtype", ""), str(tensor.get("encoding", "none")).lower()
    shape = tuple(
        None if int(size) < 0 else int(size)
        for size in tensor.get("shape", {}).get("dimensions", ())
    )
    if dtype not in DTYPES or encoding not in ("none", "bytes"):
        return
    feature = Feature(name, "bytes" if dtype == "string" else dtype, shape)
    if encoding == "none":
        yield _as_list_entry(feature)
    elif feature.raw:
        yield feature


def _as_list_entry(feature: Feature) -> Feature:
    """Returns the feature with a dtype that a list of an Example can store.

    For example, float64 becomes float32, and uint8 [28, 28] becomes int64 [28, 28].
    """
    return replace(feature, dtype=_LIST_DTYPES[feature.dtype]) if feature.raw else feature
