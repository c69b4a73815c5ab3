"""The manifest: what a data set consists of, as JSON; the one file that makes shards a data set. With it the account of
a shard. What each field may hold stands beside it, and is checked where a manifest is loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

from recordmill.base.errors import DataError, UsageError
from recordmill.records.tfrecord.frames import FRAME_BYTES
from recordmill.schemas.splits import check_split_name
from recordmill.shards.file_names import (
    DATA_FOLDER_PATTERN,
    PLAIN_TEXT_PATTERN,
    ShardName,
    is_data_folder,
    is_safe_relative_path,
)
from recordmill.storage.codecs import SHARD_SUFFIXES, find_codec
from recordmill.storage.digest import BLAKE3, Digest
from recordmill.storage.folders import join, list_names_if_present
from recordmill.storage.json_fields import (
    MAX_COUNT,
    Check,
    Count,
    between,
    convert_json,
    format_json_value,
    matches,
    parse_json,
    read_bounded,
)
from recordmill.storage.walk import MANIFESTS_FOLDER, find_unfinished, no_data_set_error

# (major, minor): a reader refuses an unknown major and ignores fields that a minor added.
FORMAT_VERSION = (2, 0)
_OLD_MAJOR_VERSIONS = (
    1,
    3,
)  # majors of earlier releases; the manifests of 3 named files with the entries of very many shards
INDEX_FOLDER = "index"
INPUTS_NAME = "inputs.jsonl"
STATISTICS_NAME = "statistics.pb"
TRANSFORM_FOLDER = "transform"
_MAX_STATISTICS_BYTES = 1 << 30  # 1 GiB: of 10,000 features a build writes 50 MiB
_MANIFEST_NAME = re.compile(r"([0-9]{8})\.json")

_TextLine = Annotated[str, matches(PLAIN_TEXT_PATTERN, "a line of text")]
_Sha256 = Annotated[str, matches(r"[0-9a-f]{64}", "64 hexadecimal digits")]
_Digest = Annotated[
    str, matches(BLAKE3 + r":[0-9a-f]{64}", f"{BLAKE3}, `:` and 64 hexadecimal digits")
]
_RejectFile = Annotated[
    str,
    matches(
        r"rejects/[0-9a-z]{1,64}(?:-[0-9]{1,9})?\.[0-9]{5,9}\.jsonl",
        "the name of a file in rejects/",
    ),
]


class _Rejects(TypedDict, total=False):
    count: Count
    reasons: Mapping[str, Count]
    files: Sequence[_RejectFile]


class _StatisticsFile(TypedDict):
    name: Annotated[str, Check(STATISTICS_NAME.__eq__, STATISTICS_NAME)]
    bytes: Annotated[int, between(0, _MAX_STATISTICS_BYTES)]
    digest: _Digest


class _Statistics(TypedDict, total=False):
    notes: Sequence[str]
    file: _StatisticsFile
    splits: Mapping[str, Mapping[str, Mapping[str, Any]]]


class _Run(TypedDict, total=False):
    id: _TextLine


class _TransformFile(TypedDict):
    bytes: Count
    sha256: _Sha256


class _Transform(TypedDict):
    digest: _Sha256
    fitted_on: _TextLine
    raw_schema: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    kept: Sequence[Any]
    needs: Mapping[str, Any]
    found: Mapping[str, Any]
    files: Mapping[
        Annotated[str, Check(is_safe_relative_path, "a name below the transform's folder")],
        _TransformFile,
    ]


class _Description(TypedDict):
    said: Mapping[str, str]
    images: Sequence[str]


_SECTION_TYPES: Mapping[str, Any] = {
    "rejects": _Rejects,
    "statistics": _Statistics,
    "run": _Run,
    "transform": _Transform,
    "description": _Description,
}
_OPTIONAL_SECTIONS = ("transform", "description")  # where they are empty


class _FormatHeader(TypedDict):
    format: Annotated[str, Check("recordmill".__eq__, "'recordmill'")]
    version: Annotated[
        Sequence[int],
        Check(lambda version: len(version) == 2 and min(version) >= 0, "[major, minor]"),
    ]


@dataclass(frozen=True)
class ShardInfo:
    """The account of one shard.

    Attributes:
        name: Of the file, in the folder of its part.
        records: How many it holds.
        bytes: The file's size.
        framed_bytes: Its size uncompressed.
        digest: Of the file, `blake3:<hex>`.
        sum: Of mix64(key, payload CRC) of all records mod 2^64, in hex.
    """

    name: str
    records: Count
    bytes: Count
    framed_bytes: Count
    digest: _Digest
    sum: Annotated[str, matches(r"[0-9a-f]{16}", "16 hexadecimal digits")]


def parse_shard_name(shard: ShardInfo) -> ShardName:
    """The parsed name of a shard in a manifest; DataError if it isn't one of ours."""
    name = ShardName.parse(shard.name)
    if name is None:
        raise DataError(f"shard name {shard.name!r} is none of ours", source="manifest")
    return name


@dataclass(frozen=True)
class Part:
    """The shards that one build wrote into one folder.

    Attributes:
        folder: `data-<id>`, relative to OUT.
        kind: Of its inputs.
        splits: Split name to shards, in order.
        inputs: How many files and bytes it was built from; the list is `folder/inputs.jsonl`.
        records_read: How many records the inputs held.
        records_rejected: How many of these were left out.
    """

    folder: Annotated[str, matches(DATA_FOLDER_PATTERN, "the name of a data folder (data-<id>)")]
    kind: _TextLine
    splits: Mapping[str, Sequence[ShardInfo]]
    inputs: Mapping[str, Any]
    records_read: Count
    records_rejected: Count


@dataclass(frozen=True)
class Manifest:
    """A committed data set.

    Attributes:
        name: What the user calls it.
        compression: Of its shards.
        options: What decides the bytes (seed, splits, shards, ...).
        schema: The text of schema.pbtxt.
        parts: What it consists of.
        rejects: Of the records left out the count, the reasons and the files that list them.
        fingerprint: SHA-256 over everything that must be equal for two builds to be equal.
        statistics: Notes, the file of the statistics, and a summary.
        run: Facts of this run alone (times, versions, threads).
        transform: What made the records of what was read, see docs/transform.md; empty, and left out of the file,
            where nothing did.
        description: What people say of it, and which features are images to TensorFlow Datasets; empty where an earlier
            recordmill wrote it.
        version: Of the format, (major, minor).
    """

    name: _TextLine
    compression: Annotated[str, Check(SHARD_SUFFIXES.__contains__, " or ".join(SHARD_SUFFIXES))]
    options: Mapping[str, Any]
    schema: str
    parts: tuple[Part, ...]
    rejects: Mapping[str, Any]
    fingerprint: Annotated[str, matches(r"[0-9a-f]{0,64}", "hexadecimal digits")] = ""
    statistics: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    transform: Mapping[str, Any] = field(default_factory=dict)
    description: Mapping[str, Any] = field(default_factory=dict)
    version: tuple[int, ...] = FORMAT_VERSION

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, in order of first appearance."""
        return tuple(dict.fromkeys(split for part in self.parts for split in part.splits))

    def shards(self, split: str | None = None) -> list[tuple[str, Part, ShardInfo]]:
        """(split, part, shard) of all shards, or of one split's, in reading order."""
        return [
            (name, part, shard)
            for name in (self.splits if split is None else (split,))
            for part in self.parts
            for shard in part.splits.get(name, ())
        ]

    @property
    def records(self) -> dict[str, int]:
        """Split to number of records."""
        return {
            split: sum(shard.records for *_, shard in self.shards(split)) for split in self.splits
        }

    @property
    def shard_counts(self) -> dict[str, int]:
        """Split to number of shards."""
        return {split: len(self.shards(split)) for split in self.splits}

    @property
    def size_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.bytes for *_, shard in self.shards())

    def to_json(self) -> str:
        """The text of the file, one trailing newline."""
        document = {"format": "recordmill", "version": self.version, **asdict(self)}
        for name in _OPTIONAL_SECTIONS:
            if not document[name]:
                del document[name]
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: bytes | str, source: str = "manifest") -> Manifest:
        """The manifest of that text.

        Raises:
            DataError: It is no manifest, or of another format; the error names file, field and reason.
        """
        document = parse_json(text, source)
        version = convert_json(_FormatHeader, document, source)["version"]
        if version[0] != FORMAT_VERSION[0]:
            remedy = (
                "build the data set anew"
                if version[0] in _OLD_MAJOR_VERSIONS
                else "install a newer one"
            )
            raise DataError(
                f"has format version {version[0]}; this recordmill reads {FORMAT_VERSION[0]}: {remedy}",
                source=source,
            )
        manifest: Manifest = convert_json(cls, document, source)
        for name, kind in _SECTION_TYPES.items():
            if (section := getattr(manifest, name)) or name not in _OPTIONAL_SECTIONS:
                convert_json(kind, section, source, name)
        for place, reason in _invalid_fields(manifest):
            raise DataError(reason, source=source, place=place)
        return manifest


def _invalid_fields(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """(field, reason) of what no build writes though every field has its type."""
    if not manifest.parts:
        yield "parts", "is empty; a data set has one"
    folders = set[str]()
    for number, part in enumerate(manifest.parts):
        if part.folder in folders:
            yield f"parts[{number}].folder", f"is {part.folder!r}, which another part has"
        folders.add(part.folder)
        for split, shards in part.splits.items():
            try:
                check_split_name(split)
            except UsageError as error:
                yield f"parts[{number}].splits", str(error)
            names = set[str]()
            for index, shard in enumerate(shards):
                for name, reason in _invalid_shard_fields(
                    shard, split, manifest.compression, names
                ):
                    yield f"parts[{number}].splits.{split}[{index}].{name}", reason
                names.add(shard.name)
    if (total := sum(manifest.records.values())) > MAX_COUNT:
        yield "parts", f"hold {total} records together, more than {MAX_COUNT}"


def _invalid_shard_fields(
    shard: ShardInfo, split: str, compression: str, names: set[str]
) -> Iterator[tuple[str, str]]:
    """(field, reason). names: of the shards before it."""
    name = ShardName.parse(shard.name)
    if (
        name is None
        or (name.split, name.compression) != (split, compression)
        or name.index >= name.num_shards
        or str(name) != shard.name
    ):
        yield (
            "name",
            f"is {format_json_value(shard.name)}, no shard of this split (compression {compression})",
        )
    if shard.name in names:
        yield "name", f"is {format_json_value(shard.name)}, which another shard has"
    most_bytes = find_codec(compression).most_bytes(shard.bytes)
    if shard.framed_bytes > most_bytes:
        yield "framed_bytes", f"is {shard.framed_bytes}, not from 0 to {most_bytes}"
    if shard.records > shard.framed_bytes // FRAME_BYTES:
        yield "records", f"is {shard.records}, not from 0 to {shard.framed_bytes // FRAME_BYTES}"


def list_generations(out: str | os.PathLike[str]) -> list[int]:
    """The numbers of the committed manifests of OUT, ascending; empty if it holds no data set."""
    names = list_names_if_present(join(out, MANIFESTS_FOLDER))
    return sorted(int(match[1]) for name in names if (match := _MANIFEST_NAME.fullmatch(name)))


def manifest_path(out: str | os.PathLike[str], generation: int) -> Path:
    """Returns the path of the manifest of that generation of the data set OUT."""
    return Path(out, MANIFESTS_FOLDER, f"{generation:08d}.json")


def load_manifest(out: str | os.PathLike[str], generation: int | None = None) -> Manifest:
    """The data set that OUT holds now, or that generation.

    Raises:
        DataError: there is none, or the file is broken, too large, or says what no build writes;
            it names file and field.
        FileNotFoundError: that generation is not there.
    """
    if generation is None:
        return load_newest_manifest(out)[1]
    path = join(out, MANIFESTS_FOLDER, manifest_path("", generation).name)
    return Manifest.from_json(read_bounded(path), path)


def load_newest_manifest(
    out: str | os.PathLike[str], known_generations: Sequence[int] = ()
) -> tuple[int, Manifest]:
    """Returns (generation, data set) that OUT holds now. known: the generations it held just before."""
    while numbers := known_generations or list_generations(out):
        known_generations = ()
        with contextlib.suppress(FileNotFoundError):  # two commits since it was listed
            return numbers[-1], load_manifest(out, numbers[-1])
        if list_generations(out) == numbers:
            raise DataError("can't be opened", source=str(manifest_path(out, numbers[-1])))
    if find_unfinished(os.fspath(out)):
        raise no_data_set_error(os.fspath(out))
    raise DataError("holds no data set (no _manifests/00000001.json)", source=str(out))


def missing_file_error(path: str) -> DataError:
    """Returns the error for a file of a data set that is not there: builds may have replaced the data set since it was
    opened, and removed what it was.
    """
    folder = os.path.dirname(path)
    if not is_data_folder(
        os.path.basename(folder)
    ):  # it is beside the shards, in a folder of its own
        folder = os.path.dirname(folder)
    out, name = os.path.split(folder)
    with contextlib.suppress(DataError, OSError):
        if is_data_folder(name) and (numbers := list_generations(out)):
            generation, manifest = load_newest_manifest(out, numbers)
            if name not in {part.folder for part in manifest.parts}:
                return DataError(
                    f"is gone: the data set was replaced, by generation {generation}; open it again",
                    source=path,
                )
    return DataError(
        f"is missing{'; the manifest names it' if is_data_folder(name) else ''}", source=path
    )


@contextlib.contextmanager
def explain_missing(path: str) -> Iterator[None]:
    """Reading a file that was there, or that a manifest names: `missing_file_error` says what became of it."""
    try:
        yield
    except FileNotFoundError:
        raise missing_file_error(path) from None


def read_statistics(manifest: Manifest, out: str | os.PathLike[str]) -> bytes | None:
    """The `DatasetFeatureStatisticsList` of the data set at OUT; None where it was built without.

    Raises:
        DataError: the file is missing, or not what the manifest says.
    """
    if (entry := manifest.statistics.get("file")) is None:
        return None
    path = join(out, manifest.parts[-1].folder, entry["name"])
    with explain_missing(path):
        data = read_bounded(path, entry["bytes"])
    digest = Digest()
    digest.update(data)
    if digest.text() != entry["digest"]:
        raise DataError("is not what the manifest says it is: its digest differs", source=path)
    return data


def is_data_set(path: str | os.PathLike[str]) -> bool:
    """Returns whether the folder holds a committed data set."""
    return bool(list_generations(path))
