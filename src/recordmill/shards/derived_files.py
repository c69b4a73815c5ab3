"""The files beside the manifests that follow from the newest one, for people and for other tools: one list, which a
build writes and `verify` compares and mends.
"""

from __future__ import annotations

import json
from typing import Any

from recordmill.schemas.croissant import CROISSANT_NAME, Description, croissant_json
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

_TFDS_VERSION = (
    "1.0.0"  # TensorFlow Datasets wants one; a data set's generations are in its manifests
)
_DERIVED_NAMES = (
    "manifest.json",
    "schema.pbtxt",
    "dataset_info.json",
    "features.json",
    CROISSANT_NAME,
    STATISTICS_NAME,
)


def is_derived_name(name: str) -> bool:
    """Returns True for a name that such a file has in some data set."""
    return name in _DERIVED_NAMES or name.endswith(LABELS_SUFFIX)


def make_derived_files(out: str, manifest: Manifest, generation: int) -> dict[str, bytes]:
    """Name to content of the files of the data set at OUT, which is of that generation; of one that an earlier
    recordmill wrote those alone that its manifest says all of.

    Raises:
        DataError: The schema can't be read, or the file of the statistics is missing or damaged.
    """
    texts = {"manifest.json": manifest.to_json(), "schema.pbtxt": manifest.schema}
    if manifest.description:
        texts |= _description_files(manifest, generation)
    # a lone surrogate, from a name that is no UTF-8, as JSON escapes it
    files = {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
    if (statistics := read_statistics(manifest, out)) is not None:
        files[STATISTICS_NAME] = statistics
    return files


def _description_files(manifest: Manifest, generation: int) -> dict[str, str]:
    """The files by which TensorFlow Datasets opens OUT (`tfds.builder_from_directory`), and `croissant.json` where the
    data set has a page; its version follows the generations, which may have other records.
    """
    part, schema = manifest.parts[-1], from_pbtxt(manifest.schema)
    description, images = (
        Description(**manifest.description["said"]),
        manifest.description["images"],
    )
    splits = {
        name: SplitSizes([shard.records for shard in shards], sum(shard.bytes for shard in shards))
        for name, shards in part.splits.items()
    }
    template = f"{part.folder}/{{SPLIT}}-{{SHARD_X_OF_Y}}.{{FILEFORMAT}}"
    documents: dict[str, Any] = {
        "dataset_info.json": dataset_info_json(
            manifest.name, _TFDS_VERSION, splits, template, schema=schema, description=description
        ),
        "features.json": to_features_json(schema, images),
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
            version=f"{generation}.0.0",
            published=manifest.run["finished"].partition("T")[0],
            images=images,
        )
    texts = {
        name: json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        for name, content in documents.items()
    }
    return texts | label_files(schema)
