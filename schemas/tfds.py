"""Conversion between schemas and the metadata files of TensorFlow Datasets (TFDS).

A data set gets the files that `tfds.builder_from_directory(OUT)` needs. In the other direction, the
`features.json` of any data set becomes the Features that its Examples contain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recordmill.base.option_names import option
from recordmill.schemas.croissant import Description
from recordmill.schemas.feature import DTYPES, OPAQUE_BYTES, Feature, Schema

FILEPATH_TEMPLATE = "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}"

_CONNECTOR_PACKAGE = "tensorflow_datasets.core.features"
LABELS_SUFFIX = ".labels.txt"
# File systems allow 255 bytes, and the file first has a longer, temporary name.
_MAX_FILE_NAME_BYTES = 200
# features that a note lists
_MAX_LISTED_FEATURES = 5
# Features of files in class folders. They reveal the label, so they are not inputs to learn from.
_LABEL_REVEALING = ("class_name", "source")


@dataclass(frozen=True)
class SplitSizes:
    """The sizes of the shards of one split.

    Attributes:
        shard_lengths: The number of records of each shard, in order.
        num_bytes: The total size of the shards.
    """

    shard_lengths: Sequence[int]
    num_bytes: int


def to_features_json(schema: Schema, images: Collection[str] = ()) -> dict[str, Any]:
    """Returns the contents of `features.json`.

    It omits the features that TFDS can't read (`tfds_limitations`).

    Args:
        schema: The features.
        images: The names of bytes features that contain JPEG or PNG files. TFDS decodes them to
            uint8 [height, width, 3].
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
    """Returns the contents of `dataset_info.json`.

    Args:
        name: The name of the data set.
        version: Three numbers, such as `1.0.0`.
        splits: Split to the sizes of its shards.
        filepath_template: The name of a shard in the syntax of TFDS, relative to the folder of the
            file.
        schema: If it has a label, `as_supervised=True` returns (inputs, label). The input is the
            feature `image` if it exists. Otherwise it contains all features that do not reveal the
            class.
        description: The description by the author.
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
    """Returns a description as fields of DatasetInfo, without empty texts."""
    texts = {"description": description.description, "citation": description.citation}
    fields: dict[str, Any] = {name: text for name, text in texts.items() if text}
    if description.url:
        fields["location"] = {"urls": [description.url]}
    if description.license:
        fields["redistributionInfo"] = {"license": description.license}
    return fields


def label_files(schema: Schema) -> dict[str, str]:
    """Returns the files with class names that TFDS expects next to `features.json`.

    Some features get no file, and TFDS then shows numbers. One reason is a file name that is too
    long or that two features share. Another is a class name that the file can't contain: an empty
    or repeated one, or one with a line break or surrounding spaces.

    Returns:
        File name to contents, with one class name per line.
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
    """Returns a sentence for each feature that TFDS can't read, for `inspect`.

    If TFDS can't read the records at all, the only sentence explains this.
    """
    if compression != "none":
        return [
            f"TensorFlow Datasets reads no {compression} shards; build with {option('compression', 'none')}"
        ]
    if schema.message == OPAQUE_BYTES:
        return [f"TensorFlow Datasets reads Examples, and these records are {schema.message}"]
    return [
        f"{feature.name}: {reason}"
        for feature in schema
        if (reason := _limitation(feature)) is not None
    ]


def tfds_notes(schema: Schema) -> list[str]:
    """Returns at most one note, about the features that TFDS does not show."""
    refused = [feature for feature in schema if _limitation(feature) is not None]
    if schema.message == OPAQUE_BYTES or not refused:
        return []
    and_more = (
        f" and {len(refused) - _MAX_LISTED_FEATURES:,} more"
        if len(refused) > _MAX_LISTED_FEATURES
        else ""
    )
    names = ", ".join(repr(feature.name) for feature in refused[:_MAX_LISTED_FEATURES])
    return [f"TensorFlow Datasets will not show {names}{and_more}: `recordmill inspect` says why"]


def _supported_features(schema: Schema) -> list[Feature]:
    return (
        [feature for feature in schema if _limitation(feature) is None]
        if schema.message != OPAQUE_BYTES
        else []
    )


def _limitation(feature: Feature) -> str | None:
    """Returns the reason why TFDS can't read the values of a feature, or None."""
    # TFDS reads the context of a SequenceExample like the features of an Example.
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
    """Returns the feature connector of one item of the innermost variable dimension."""
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
    # A single input is the value itself, several inputs are a dict.
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


# takes the name of a label file and returns its class names
ClassNameReader = Callable[[str], tuple[str, ...] | None]

# dtypes of TFDS in a list of an Example, for features that we would store as raw bytes
_LIST_DTYPES = {"float64": "float32", "uint64": "int64", "uint8": "int64"}


def from_features_json(
    content: Mapping[str, Any], read_class_names: ClassNameReader = lambda file: None
) -> list[Feature]:
    """Returns the features that the Examples of a TFDS data set contain.

    Connectors of unknown kinds are left out.

    Args:
        content: The contents of `features.json`.
        read_class_names: Returns the class names in a label file, or None if the file does not
            exist.

    >>> number = {"tensor": {"shape": {}, "dtype": "int32", "encoding": "none"}}
    >>> from_features_json({"featuresDict": {"features": {"n": number}}})  # doctest: +ELLIPSIS
    [Feature(name='n', dtype='int32', shape=(), ...)]
    """
    # FeaturesDict.to_json writes the features one level deeper.
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
    """Yields the features of a feature connector, or none if it is not supported.

    Args:
        name: The name of the feature.
        file_stem: The name of its label file, without the suffix.
        connector: The connector, as JSON.
        read_class_names: As in `from_features_json`.
    """
    try:
        yield from _parse_known_connector(name, file_stem, connector, read_class_names)
    # Feature has refused the values, or the JSON has another structure.
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
    """Returns the feature with the dtype of its list in an Example."""
    return replace(feature, dtype=_LIST_DTYPES[feature.dtype]) if feature.raw else feature
