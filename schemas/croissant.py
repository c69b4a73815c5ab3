"""Description of a data set (licence, creator, citation), and `croissant.json`, by which search engines and loaders
find it.

The file is JSON-LD of Croissant 1.1 (https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html).

The shards are a FileSet by pattern: a FileObject needs a SHA-256 or MD5, and digests of shards are BLAKE3, which
Croissant does not know. Nor has it a type for Examples: fields name the features, which readers of TFRecord decode.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import quote

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.schemas.feature import OPAQUE_BYTES, Feature, Schema

CROISSANT_NAME = "croissant.json"
CONFORMS_TO = "http://mlcommons.org/croissant/1.1"
_SPDX = re.compile(  # of https://spdx.org/licenses those that data sets have
    r"CC0-1\.0|CC-BY(-NC)?(-ND|-SA)?-[1-4]\.[05]|ODbL-1\.0|ODC-By-1\.0|PDDL-1\.0|CDLA-Permissive-[12]\.0|"
    r"CDLA-Sharing-1\.0|[CO]-UDA-1\.0|MIT|Apache-2\.0|BSD-[23]-Clause|[AL]?GPL-[23]\.[01]-(only|or-later)|MPL-2\.0"
)
_REQUIRED_WITH_URL = (
    "description",
    "license",
    "creator",
)  # what Croissant requires beside a page and what a build knows
_SHARDS, _RECORDS, _SPLITS = "shards", "records", "splits"  # the ids of what it describes
_URL = re.compile(r"https?://[^\s/]+(/\S*)?")
_MAX_LISTED_CLASSES = 20  # of a feature, in its description
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
    """Description of a data set by people. An empty text says nothing.

    Attributes:
        license: an identifier of SPDX, a URL, or a name.
        url: the data set's page, with which it gets a `croissant.json`.
        creator: the name of an organization or a person.

    Raises:
        UsageError: one is blank, url is no web address, or url is given without what Croissant requires.
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
                f"{option('url', self.url)}: give the page of the data set, as in https://example.org/data"
            )
        if missing_options := [
            option(name) for name in _REQUIRED_WITH_URL if not getattr(self, name)
        ]:
            raise UsageError(
                f"{option('url', self.url)}: {CROISSANT_NAME} needs {' and '.join(missing_options)}, too; Croissant requires it"
            )

    @classmethod
    def of(cls, texts: Mapping[str, str | None]) -> Description:
        """Creates a description from the given texts, without blanks around them."""
        for name, value in texts.items():
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise UsageError(
                    f"{option(name, value)}: it says nothing; give a text, or leave it out"
                )
        return cls(**{field.name: (texts[field.name] or "").strip() for field in fields(cls)})


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
        name: the data set's name.
        description: its description.
        schema: its features.
        patterns: split to the glob of its shards, relative to the file.
        version: three numbers.
        published: the day, as ISO 8601 has it.
        images: the features of bytes that hold pictures.
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
    """A URL, where it can be one, as Croissant recommends it."""
    if _URL.fullmatch(text):
        return text
    if _SPDX.fullmatch(text):
        return f"https://spdx.org/licenses/{text}.html"
    return {"@type": "sc:CreativeWork", "name": text}


def _splits_record_set(patterns: Mapping[str, str]) -> dict[str, Any]:
    """The names of the splits, as Croissant has them."""
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
    """A field a feature, and one for the split, which the name of a record's file says."""
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
    """Returns `cr:UInt8` of uint8, `cr:Float32` of float32; a timestamp is a number of its unit."""
    dtype = "int64" if feature.timestamp else feature.dtype
    for prefix, name in (("uint", "UInt"), ("int", "Int"), ("float", "Float")):
        if dtype.startswith(prefix):
            return f"cr:{name}{dtype.removeprefix(prefix)}"
    return _DTYPES[dtype]


def _remarks(feature: Feature) -> Iterator[str]:
    """Yields what the type of a feature does not say."""
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
