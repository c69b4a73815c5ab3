"""Description of a data set, and its `croissant.json` for search engines.

The file is JSON-LD in the format of Croissant 1.1
(https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html).

Two things differ from other Croissant files. The shards are a FileSet with a pattern, because a
FileObject needs a SHA-256 or MD5 digest and ours are BLAKE3. The fields only name the features,
because Croissant has no type for Examples. A reader of TFRecord must decode them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from recordmill.base.errors import UsageError
from recordmill.base.messages import join_messages
from recordmill.base.option_names import option
from recordmill.schemas.feature import OPAQUE_BYTES, Feature, Schema

CROISSANT_NAME = "croissant.json"
CONFORMS_TO = "http://mlcommons.org/croissant/1.1"
# Identifiers from https://spdx.org/licenses that are common for data sets.
_SPDX = re.compile(
    r"CC0-1\.0|CC-BY(-NC)?(-ND|-SA)?-[1-4]\.[05]|ODbL-1\.0|ODC-By-1\.0|PDDL-1\.0|CDLA-Permissive-[12]\.0|"
    r"CDLA-Sharing-1\.0|[CO]-UDA-1\.0|MIT|Apache-2\.0|BSD-[23]-Clause|[AL]?GPL-[23]\.[01]-(only|or-later)|MPL-2\.0"
)
# Options that Croissant requires together with `url`. No default would be correct.
_REQUIRED_WITH_URL = ("description", "license", "creator")
# Ids of the file set with the shards, and of the record sets with the records and the splits.
_SHARDS, _RECORDS, _SPLITS = "shards", "records", "splits"
_URL = re.compile(r"https?://[^\s/]+(/\S*)?")
# Class names that the description of a feature lists. Others are only counted.
_MAX_LISTED_CLASSES = 20
_CROISSANT_TERMS = (
    "arrayShape",
    "citeAs",
    "column",
    "containedIn",
    "equivalentProperty",
    "extract",
    "field",
    "fileObject",
    "fileProperty",
    "fileSet",
    "format",
    "includes",
    "isArray",
    "isLiveDataset",
    "jsonPath",
    "key",
    "md5",
    "parentField",
    "path",
    "recordSet",
    "references",
    "regex",
    "repeated",
    "replace",
    "samplingRate",
    "separator",
    "source",
    "subField",
    "transform",
)
_CONTEXT: Mapping[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    **{term: f"cr:{term}" for term in _CROISSANT_TERMS},
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    "description": {"@container": "@language"},
}
_DTYPES = {"bool": "sc:Boolean", "string": "sc:Text", "bytes": "sc:Text", "bfloat16": "sc:Float"}


@dataclass(frozen=True)
class Description:
    """Description of a data set by its author. Empty texts are not written.

    Attributes:
        description: A sentence or two about the data set.
        license: An SPDX identifier, a URL, or the name of a license.
        citation: The text that users should cite.
        url: The web page of the data set. A data set with a page gets a `croissant.json`.
        creator: The name of an organization or person.

    Raises:
        UsageError: `url` is not a web address. Or `url` is set, and a text that Croissant then
            requires is empty.
    """

    description: str = ""
    license: str = ""
    citation: str = ""
    url: str = ""
    creator: str = ""

    def __post_init__(self) -> None:
        if not self.url:
            return
        if not _URL.fullmatch(self.url):
            raise UsageError(
                "{url}: give the page of the data set, as in https://example.org/data",
                url=option("url", self.url),
            )
        if missing_options := [
            option(name) for name in _REQUIRED_WITH_URL if not getattr(self, name)
        ]:
            raise UsageError(
                "{url}: {croissant_name} needs {missing_options}, too; Croissant requires it",
                url=option("url", self.url),
                croissant_name=CROISSANT_NAME,
                missing_options=join_messages(" and ", missing_options),
            )


def croissant_json(
    name: str,
    description: Description,
    schema: Schema,
    patterns: Mapping[str, str],
    *,
    version: str,
    published: str,
    images: Collection[str] = (),
) -> dict[str, Any]:
    """Returns the content of `croissant.json`.

    Args:
        name: Name of the data set.
        description: Description with a URL.
        schema: The schema.
        patterns: By split, a pattern such as `train-*` for the paths of its shards. Relative to the
            folder of `croissant.json`.
        version: Three numbers, such as `1.0.0`.
        published: Date of publication in ISO 8601.
        images: Names of bytes features that contain images.
    """
    content: dict[str, Any] = {
        "@context": dict(_CONTEXT),
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": name,
        "description": description.description,
        "license": _license_value(description.license),
        "url": description.url,
        "creator": {"@type": "sc:Organization", "name": description.creator},
        "datePublished": published,
        "version": version,
    }
    if description.citation:
        content["citeAs"] = description.citation
    message = "bytes" if schema.message == OPAQUE_BYTES else f"tf.train.{schema.message}"
    content["distribution"] = [
        {
            "@type": "cr:FileSet",
            "@id": _SHARDS,
            "name": _SHARDS,
            "description": f"TFRecord files whose records are {message}",
            "encodingFormat": "application/x-tfrecord",
            "includes": list(patterns.values()),
        }
    ]
    content["recordSet"] = [
        _splits_record_set(patterns),
        _feature_record_set(schema, patterns, images),
    ]
    return content


def _license_value(text: str) -> Any:
    """Returns a license as a URL if possible, because Croissant recommends URLs."""
    if _URL.fullmatch(text):
        return text
    if _SPDX.fullmatch(text):
        return f"https://spdx.org/licenses/{text}.html"
    return {"@type": "sc:CreativeWork", "name": text}


def _splits_record_set(patterns: Mapping[str, str]) -> dict[str, Any]:
    """Returns the record set that lists the splits."""
    field = f"{_SPLITS}/name"
    return {
        "@type": "cr:RecordSet",
        "@id": _SPLITS,
        "name": _SPLITS,
        "dataType": "cr:Split",
        "key": {"@id": field},
        "field": [{"@type": "cr:Field", "@id": field, "name": "name", "dataType": "sc:Text"}],
        "data": [{field: split} for split in patterns],
    }


def _feature_record_set(
    schema: Schema, patterns: Mapping[str, str], images: Collection[str]
) -> dict[str, Any]:
    """Returns the record set of the records, with a field for each feature.

    One more field is the split of a record, which Croissant derives from the name of its shard.
    """
    # Names of fields must be unique. If a feature is named `split`, it keeps the name.
    name = "split"
    while name in schema:
        name += "_"
    split = {
        "@type": "cr:Field",
        "@id": "split",
        "name": name,
        "dataType": "sc:Text",
        "references": {"field": {"@id": f"{_SPLITS}/name"}},
        "source": {
            "fileSet": {"@id": _SHARDS},
            "extract": {"fileProperty": "filename"},
            # The name of a shard begins with the name of its split.
            "transform": {"regex": f"^({'|'.join(map(re.escape, patterns))})-[0-9]+-of-[0-9]+"},
        },
    }
    return {
        "@type": "cr:RecordSet",
        "@id": _RECORDS,
        "name": _RECORDS,
        "field": [
            split,
            *(_feature_field(feature, feature.name in images, schema.label) for feature in schema),
        ],
    }


def _feature_field(feature: Feature, is_image: bool, label: str | None) -> dict[str, Any]:
    dtype = "sc:ImageObject" if is_image else _data_type(feature)
    field: dict[str, Any] = {
        "@type": "cr:Field",
        "@id": f"{_RECORDS}/{quote(feature.name, safe='')}",
        "name": feature.name,
        "dataType": [dtype, "cr:Label"] if feature.name == label else dtype,
    }
    if remarks := ". ".join(_remarks(feature)):
        field["description"] = remarks
    if feature.shape:
        field["isArray"] = True
        field["arrayShape"] = ",".join(
            "-1" if size is None else str(size) for size in feature.shape
        )
    field["source"] = {"fileSet": {"@id": _SHARDS}, "extract": {"column": feature.name}}
    return field


def _data_type(feature: Feature) -> str:
    """Returns the Croissant type of a feature.

    For example, uint8 is `cr:UInt8`, and float32 is `cr:Float32`. A timestamp has the type of
    int64.
    """
    dtype = "int64" if feature.timestamp else feature.dtype
    for prefix, name in (("uint", "UInt"), ("int", "Int"), ("float", "Float")):
        if dtype.startswith(prefix):
            return f"cr:{name}{dtype.removeprefix(prefix)}"
    return _DTYPES[dtype]


def _remarks(feature: Feature) -> Iterator[str]:
    """Yields properties of a feature that its Croissant type does not express."""
    if feature.dtype == "bytes":
        yield "bytes"
    if feature.timestamp is not None:
        unit, zone = feature.timestamp
        yield f"time in {unit} since 1970-01-01{' UTC' if zone else ''}"
    if feature.classes:
        names = [
            f"{number} {name}" for number, name in enumerate(feature.classes[:_MAX_LISTED_CLASSES])
        ]
        unlisted_count = len(feature.classes) - len(names)
        yield f"numbers of classes: {', '.join(names)}{f' and {unlisted_count} more' if unlisted_count else ''}"
    if not feature.required:
        yield "some records may lack it"
