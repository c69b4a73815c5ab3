"""Files next to the manifests that are derived from the newest one.

These files are for readers and other tools. `build` writes them. `verify` compares them, and writes
them again with `--mend`.
"""

from __future__ import annotations

import json
from typing import Any

from recordmill.schemas.croissant import CROISSANT_NAME, Description, croissant_json
from recordmill.schemas.feature import Schema
from recordmill.schemas.tfds import (
    LABELS_SUFFIX,
    SplitSizes,
    dataset_info_json,
    label_files,
    to_features_json,
)
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.shards.manifest import STATISTICS_NAME, Manifest, read_statistics
from recordmill.storage.codecs import SHARD_SUFFIXES

LABEL_MAP_NAME = "label_map.pbtxt"
_OBJECT_LABEL = "image/object/class/label"
_BACKGROUND = "background"  # class 0 of the Object Detection API, which a label map does not list
# TensorFlow Datasets requires a version. Our generations are numbered by the manifests instead.
_TFDS_VERSION = "1.0.0"
_DERIVED_NAMES = (
    "manifest.json",
    "schema.pbtxt",
    "dataset_info.json",
    "features.json",
    CROISSANT_NAME,
    LABEL_MAP_NAME,
    STATISTICS_NAME,
)
# Data sets of earlier releases do not have these files, and are complete without them.
OPTIONAL_DERIVED_NAMES = (LABEL_MAP_NAME,)


def is_derived_name(name: str) -> bool:
    """Returns whether the name is one that `make_derived_files` may return."""
    return name in _DERIVED_NAMES or name.endswith(LABELS_SUFFIX)


def make_derived_files(out: str, manifest: Manifest, generation: int) -> dict[str, bytes]:
    """Returns the contents of the derived files of a data set.

    Manifests of earlier releases contain no description. Without it, the files for TensorFlow
    Datasets and `croissant.json` are missing in the result. `dataset_info.json` and
    `croissant.json` can name the shards of one folder only, so they are missing if the data set has
    several parts.

    Args:
        out: Folder or store URL of the data set.
        manifest: Manifest of the newest generation.
        generation: Number of this generation.

    Returns:
        The content of each file, by name.

    Raises:
        DataError: The schema can't be read, or the statistics file is missing or damaged.
    """
    texts = {"manifest.json": manifest.to_json(), "schema.pbtxt": manifest.schema}
    if manifest.description:
        texts |= _description_files(manifest, generation)
    # File names that are not UTF-8 contain lone surrogates. They become `\udcXX`, as in JSON.
    files = {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
    if (statistics := read_statistics(manifest, out)) is not None:
        files[STATISTICS_NAME] = statistics
    return files


def _description_files(manifest: Manifest, generation: int) -> dict[str, str]:
    """Returns the files for TensorFlow Datasets, and `croissant.json`.

    `tfds.builder_from_directory` opens the data set with these files. Without a URL of the data set
    there is no `croissant.json`.
    """
    schema, images = from_pbtxt(manifest.schema), manifest.description["images"]
    documents: dict[str, Any] = {"features.json": to_features_json(schema, images)}
    if len(manifest.parts) == 1:
        documents |= _shard_documents(manifest, generation, schema)
    texts = {
        name: json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        for name, content in documents.items()
    }
    return texts | label_files(schema) | make_label_map_files(schema)


def _shard_documents(manifest: Manifest, generation: int, schema: Schema) -> dict[str, Any]:
    """Returns the JSON documents about a data set with one part, by file name."""
    (part,) = manifest.parts
    description = Description(**manifest.description["said"])
    splits = {
        name: SplitSizes([shard.records for shard in shards], sum(shard.bytes for shard in shards))
        for name, shards in part.splits.items()
    }
    template = f"{part.folder}/{{SPLIT}}-{{SHARD_X_OF_Y}}.{{FILEFORMAT}}"
    documents: dict[str, Any] = {
        "dataset_info.json": dataset_info_json(
            manifest.name, _TFDS_VERSION, splits, template, schema=schema, description=description
        ),
    }
    if description.url:
        suffix = SHARD_SUFFIXES[manifest.compression]
        documents[CROISSANT_NAME] = croissant_json(
            manifest.name,
            description,
            schema,
            {
                name: f"{part.folder}/{name}-?????-of-{len(shards):05d}{suffix}"
                for name, shards in part.splits.items()
            },
            # Each generation may contain other records, which is a new major version in Croissant.
            version=f"{generation}.0.0",
            published=manifest.run["finished"].partition("T")[0],
            images=manifest.description["images"],
        )
    return documents


def make_label_map_files(schema: Schema) -> dict[str, str]:
    """Returns the label map of TensorFlow's Object Detection API, as {file name: content}.

    A label map is a text file that assigns class names to class numbers. The ids in the map are the
    class numbers of the records.

    Returns:
        The file. An empty dict if the schema has no object classes.
    """
    classes = schema[_OBJECT_LABEL].classes if _OBJECT_LABEL in schema else None
    if not classes:
        return {}
    from google.protobuf.text_encoding import CEscape

    items = [
        f'item {{\n  id: {number}\n  name: "{CEscape(name.encode("utf-8", "backslashreplace"), as_utf8=True)}"\n}}\n'
        for number, name in enumerate(classes)
        if (number, name) != (0, _BACKGROUND)
    ]
    return {LABEL_MAP_NAME: "".join(items)}
