"""The content of a TensorFlow Datasets `features.json` to `Feature`s, as its Examples hold them: the inverse of `tfds`.

Written after feature.proto of tensorflow_datasets 4.9 in protobuf's JSON form. Features that no Feature can say (zlib
encodings, video, features of other packages) are left out. Nothing is required: the file does not say what records
lack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from recordmill.schemas.feature import DTYPES, Feature

Names = Callable[[str], tuple[str, ...] | None]  # file name of a label file to the class names in it

# what TFDS puts into a list of Example where a Feature would be raw bytes
_IN_LISTS = {"float64": "float32", "uint64": "int64", "uint8": "int64"}


def from_features_json(content: Mapping[str, Any], names: Names = lambda file: None) -> list[Feature]:
    """The features; names: reads the class names from beside the file, None where there is no such file.

    >>> number = {"tensor": {"shape": {}, "dtype": "int32", "encoding": "none"}}
    >>> from_features_json({"featuresDict": {"features": {"n": number}}})
    [Feature(name='n', dtype='int32', shape=(), required=False, classes=None, per_step=False, found=())]
    """
    old = content.get("content")  # written by FeaturesDict.to_json, one level deeper
    features = content.get("featuresDict", old if isinstance(old, Mapping) else {}).get("features", {})
    return [
        feature for name, connector in features.items() for feature in _features(name, _file(name), connector, names)
    ]


def _file(name: str) -> str:
    return name.replace("/", ".")


def _features(name: str, file: str, connector: Mapping[str, Any], names: Names) -> Iterator[Feature]:
    """file: what its label file would be called, without the ending."""
    try:
        yield from _read(name, file, connector, names)
    except (ValueError, TypeError, KeyError, AttributeError):  # what Feature refuses, and JSON of another form
        return


def _read(name: str, file: str, connector: Mapping[str, Any], names: Names) -> Iterator[Feature]:
    if "featuresDict" in connector:
        for part, inner in connector["featuresDict"]["features"].items():
            yield from _features(f"{name}/{part}", f"{file}-{_file(part)}", inner, names)
    elif "sequence" in connector:
        length = int(connector["sequence"].get("length", "-1"))
        for feature in _features(name, file, connector["sequence"]["feature"], names):
            if not feature.raw:
                yield _plain(replace(feature, shape=(None if length < 0 else length, *feature.shape)))
    elif "classLabel" in connector:
        yield Feature(name, "int64", classes=names(f"{file}.labels.txt"))
    elif "text" in connector:
        yield Feature(name, "string")
    elif "image" in connector:
        yield Feature(name, "bytes")
    elif "tensor" in connector:
        yield from _tensor(name, connector["tensor"])
    elif "boundingBox" in connector:
        yield Feature(name, "float32", (4,))


def _tensor(name: str, about: Mapping[str, Any]) -> Iterator[Feature]:
    dtype, encoding = about.get("dtype", ""), str(about.get("encoding", "none")).lower()
    shape = tuple(None if int(size) < 0 else int(size) for size in about.get("shape", {}).get("dimensions", ()))
    if dtype not in DTYPES or encoding not in ("none", "bytes"):
        return
    feature = Feature(name, "bytes" if dtype == "string" else dtype, shape)
    if encoding == "none":
        yield _plain(feature)
    elif feature.raw:
        yield feature


def _plain(feature: Feature) -> Feature:
    """The feature as its values stand in a list."""
    return replace(feature, dtype=_IN_LISTS[feature.dtype]) if feature.raw else feature
