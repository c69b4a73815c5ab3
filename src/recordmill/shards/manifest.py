"""The manifest, a JSON file that defines the contents of a data set.

A folder of shards becomes a data set when its manifest is created. The constraints of each field
are declared in the types here and are checked when a manifest is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

from recordmill.base.documents import MAX_COUNT, Check, Count, between, describe_value, matches
from recordmill.base.errors import DataError, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES
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
from recordmill.storage.files import read_range
from recordmill.storage.folders import join
from recordmill.storage.json_fields import MAX_JSON_BYTES, convert_json, parse_json
from recordmill.storage.walk import (
    MANIFESTS_FOLDER,
    find_unfinished,
    list_numbered_files,
    no_data_set_error,
)

# (major, minor). A reader refuses an unknown major version and ignores fields that a minor version
# added.
FORMAT_VERSION = (2, 0)
INDEX_FOLDER = "index"
INPUTS_NAME = "inputs.jsonl"
STATISTICS_NAME = "statistics.pb"
SKETCH_NAME = "sketch.arrow"
# Files of a data folder that describe all parts up to it. They are needed in the last part only.
MERGED_FILES = (STATISTICS_NAME, SKETCH_NAME)
TRANSFORM_FOLDER = "transform"
# Actions that create a generation. Manifests of earlier releases name none, and come from builds.
ACTIONS = BUILD, APPEND, COMPACT, RESTORE = "build", "append", "compact", "restore"
# The newest generation, and the one before it for readers that opened it.
DEFAULT_KEPT_GENERATIONS = 2
# 1 GiB, about 20 times the 50 MiB that a build with 10,000 features writes.
_MAX_STATISTICS_BYTES = 1 << 30
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


class _SketchFile(TypedDict):
    name: Annotated[str, Check(SKETCH_NAME.__eq__, SKETCH_NAME)]
    bytes: Annotated[int, between(0, _MAX_STATISTICS_BYTES)]
    digest: _Digest


class _Statistics(TypedDict, total=False):
    notes: Sequence[str]
    file: _StatisticsFile
    sketch: _SketchFile
    splits: Mapping[str, Mapping[str, Mapping[str, Any]]]


class _Run(TypedDict, total=False):
    id: _TextLine
    finished: _TextLine
    action: Annotated[str, Check(ACTIONS.__contains__, " or ".join(ACTIONS))]
    keep_generations: Annotated[int, between(1, MAX_COUNT)]


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
# These sections are absent in the file if they are empty.
_OPTIONAL_SECTIONS = ("transform", "description")


class _FormatHeader(TypedDict):
    format: Annotated[str, Check("recordmill".__eq__, "'recordmill'")]
    version: Annotated[
        Sequence[int],
        Check(lambda version: len(version) == 2 and min(version) >= 0, "[major, minor]"),
    ]


@dataclass(frozen=True)
class ShardInfo:
    """Record counts, sizes and checksums of one shard.

    Attributes:
        name: File name in the data folder.
        records: Number of records.
        bytes: Size of the file.
        framed_bytes: Size of the uncompressed file.
        digest: BLAKE3 digest of the file, as `blake3:<hex>`.
        sum: Checksum of the records (`index.record_checksum`), as 16 hexadecimal digits.
    """

    name: str
    records: Count
    bytes: Count
    framed_bytes: Count
    digest: _Digest
    sum: Annotated[str, matches(r"[0-9a-f]{16}", "16 hexadecimal digits")]


def parse_shard_name(shard: ShardInfo) -> ShardName:
    """Parses the name of a shard in a manifest.

    Raises:
        DataError: The name does not have the form of a shard name.
    """
    name = ShardName.parse(shard.name)
    if name is None:
        raise DataError(f"shard name {shard.name!r} was not made by recordmill", source="manifest")
    return name


@dataclass(frozen=True)
class Part:
    """The shards that one build wrote into one data folder.

    Attributes:
        folder: Name of the data folder, `data-<id>`.
        kind: Kind of the inputs.
        splits: The shards of each split, in reading order.
        inputs: "files" and "bytes" are the number and total size of the input files. "list" is the
            name of the file in the data folder that lists them. There is no "list" if the inputs
            are not files.
        records_read: Number of records in the inputs.
        records_rejected: Number of records that were left out.
    """

    folder: Annotated[str, matches(DATA_FOLDER_PATTERN, "the name of a data folder (data-<id>)")]
    kind: _TextLine
    splits: Mapping[str, Sequence[ShardInfo]]
    inputs: Mapping[str, Any]
    records_read: Count
    records_rejected: Count


@dataclass(frozen=True)
class Manifest:
    """Manifest of one generation of a data set.

    Attributes:
        name: Name of the data set.
        compression: Compression of the shards.
        options: Options that determine the bytes of the shards, such as seed, splits and shard
            size.
        schema: Text of schema.pbtxt.
        parts: The data folders and their shards.
        rejects: Number of rejects, their reasons, and the files that list them.
        fingerprint: SHA-256 over everything that two identical builds have in common.
        statistics: Notes, a summary, and name, size and digest of two files: the statistics file,
            and the sketch file. An append uses the sketch file to compute the statistics of all
            records.
        run: Facts about the run that do not change the data, such as times, versions and threads.
            "action" is the action that created the generation, see ACTIONS. "keep_generations" is
            the number of generations that a commit keeps.
        transform: The transform that made the records, see docs/transform.md. Empty without a
            transform, and then absent in the file.
        description: The description of the data set, and the features that are images in TensorFlow
            Datasets. Empty in manifests of earlier releases, and then absent in the file.
        version: Version of the format, (major, minor).
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
    def transform_folder(self) -> str:
        """Name of the data folder with the files of the transform.

        All parts have the transform of the first one.
        """
        return self.parts[0].folder

    @property
    def statistics_folder(self) -> str:
        """Name of the data folder with the statistics of all parts.

        Each append merges the statistics into its own folder, so the folder of the last part has
        all of them.
        """
        return self.parts[-1].folder

    @property
    def action(self) -> str:
        """Action that created the generation, one of ACTIONS."""
        return str(self.run.get("action", BUILD))

    @property
    def keep_generations(self) -> int:
        """Number of generations that commits keep, this one included."""
        return int(self.run.get("keep_generations", DEFAULT_KEPT_GENERATIONS))

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in order of first appearance."""
        return tuple(dict.fromkeys(split for part in self.parts for split in part.splits))

    def shards(self, split: str | None = None) -> list[tuple[str, Part, ShardInfo]]:
        """Returns (split, part, shard) of all shards, or of one split, in reading order."""
        return [
            (name, part, shard)
            for name in (self.splits if split is None else (split,))
            for part in self.parts
            for shard in part.splits.get(name, ())
        ]

    @property
    def records(self) -> dict[str, int]:
        """Number of records of each split."""
        return {
            split: sum(shard.records for *_, shard in self.shards(split)) for split in self.splits
        }

    @property
    def shard_counts(self) -> dict[str, int]:
        """Number of shards of each split."""
        return {split: len(self.shards(split)) for split in self.splits}

    @property
    def size_bytes(self) -> int:
        """Total size of all shard files."""
        return sum(shard.bytes for *_, shard in self.shards())

    def to_json(self) -> str:
        """Returns the text of the manifest file."""
        document = {"format": "recordmill", "version": self.version, **vars(self)}
        for name in _OPTIONAL_SECTIONS:
            if not document[name]:
                del document[name]
        # The encoder calls `vars` for parts and shards. `asdict` would copy all of them first.
        return json.dumps(document, indent=1, ensure_ascii=False, default=vars) + "\n"

    @classmethod
    def from_json(cls, text: bytes | str, source: str = "manifest") -> Manifest:
        """Parses and checks the content of a manifest file.

        Args:
            text: The content.
            source: Path of the file, for error messages.

        Raises:
            DataError: The content is not a valid manifest, or it has another format version. The
                error names file, field and reason.
        """
        document = parse_json(text, source)
        version = convert_json(_FormatHeader, document, source)["version"]
        if version[0] != FORMAT_VERSION[0]:
            reason = f"has format version {version[0]}; this recordmill reads {FORMAT_VERSION[0]}"
            raise DataError(f"{reason}: install a newer one", source=source)
        # `cls` checks the fields of the manifest itself. `_SECTION_TYPES` checks the sections that
        # are plain mappings here.
        manifest: Manifest = convert_json(cls, document, source)
        for name, kind in _SECTION_TYPES.items():
            if (section := getattr(manifest, name)) or name not in _OPTIONAL_SECTIONS:
                convert_json(kind, section, source, name)
        for place, reason in _find_invalid_fields(manifest):
            raise DataError(reason, source=source, place=place)
        return manifest


def _find_invalid_fields(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yields (field, reason) of values that have a valid type, but that no build writes.

    An example is a shard name that occurs twice.
    """
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
                for name, reason in _find_invalid_shard_fields(
                    shard, split, manifest.compression, names
                ):
                    yield f"parts[{number}].splits.{split}[{index}].{name}", reason
                names.add(shard.name)
    if (total := sum(manifest.records.values())) > MAX_COUNT:
        yield "parts", f"hold {total} records together, more than {MAX_COUNT}"


def _find_invalid_shard_fields(
    shard: ShardInfo, split: str, compression: str, names: set[str]
) -> Iterator[tuple[str, str]]:
    """Yields (field, reason) of every invalid value of a shard.

    Args:
        split: The split in which the manifest lists it.
        compression: The compression of the data set.
        names: The names of the preceding shards of the split.
    """
    name = ShardName.parse(shard.name)
    if (
        name is None
        or (name.split, name.compression) != (split, compression)
        or name.index >= name.num_shards
        or str(name) != shard.name
    ):
        yield (
            "name",
            f"is {describe_value(shard.name)}, no shard of this split (compression {compression})",
        )
    if shard.name in names:
        yield "name", f"is {describe_value(shard.name)}, which another shard has"
    # No codec compresses better than this limit, so a larger size is an invalid value.
    max_bytes = find_codec(compression).max_content_bytes(shard.bytes)
    if shard.framed_bytes > max_bytes:
        yield "framed_bytes", f"is {shard.framed_bytes}, not from 0 to {max_bytes}"
    # A record takes at least the bytes of an empty frame.
    if shard.records > shard.framed_bytes // FRAME_OVERHEAD_BYTES:
        yield (
            "records",
            f"is {shard.records}, not from 0 to {shard.framed_bytes // FRAME_OVERHEAD_BYTES}",
        )


def list_generations(out: str | os.PathLike[str]) -> list[int]:
    """Returns the numbers of the generations of a data set, in ascending order.

    The list is empty if the folder has no manifests or does not exist.
    """
    return list_numbered_files(join(out, MANIFESTS_FOLDER))


def manifest_path(out: str | os.PathLike[str], generation: int) -> Path:
    """Returns the path of the manifest of a generation."""
    return Path(out, MANIFESTS_FOLDER, f"{generation:08d}.json")


def load_manifest(out: str | os.PathLike[str], generation: int | None = None) -> Manifest:
    """Loads one generation of a data set, or the newest one.

    Args:
        out: Folder or store URL of the data set.
        generation: Number of the generation. None means the newest.

    Raises:
        DataError: There is no data set, or the manifest is invalid or too large. The error names
            file and field.
        FileNotFoundError: The requested generation does not exist.
    """
    if generation is None:
        return load_newest_manifest(out)[1]
    path = join(out, MANIFESTS_FOLDER, manifest_path("", generation).name)
    return _parse_manifest(read_range(path, max_bytes=MAX_JSON_BYTES).tobytes(), path)


# An append loads its few generations ten times in all, and it takes 40 ms to check 1,000 parts. The
# cache key contains the text, so that a replaced file is parsed again.
@functools.lru_cache(maxsize=3)
def _parse_manifest(data: bytes, path: str) -> Manifest:
    return Manifest.from_json(data, path)


def load_generation(out: str | os.PathLike[str], generation: int) -> Manifest:
    """Loads the generation that a user has requested.

    Raises:
        UsageError: The generation does not exist, or not any more.
        DataError: There is no data set, or the manifest is invalid.
    """
    try:
        return load_manifest(out, generation)
    except FileNotFoundError:
        load_newest_manifest(out)  # raises an error if there is no data set
    numbers = list_generations(out)
    is_gone = 0 < generation < numbers[0]
    raise UsageError(
        "{generation}: {out} {problem} (kept: {numbers}){remedy}",
        generation=option("generation", generation),
        out=os.fspath(out),
        problem=f"does not have generation {generation} any more"
        if is_gone
        else f"has no generation {generation}",
        numbers=", ".join(map(str, numbers)),
        remedy=Message("; {option} keeps more", option=option("keep_generations"))
        if is_gone
        else "",
    )


def load_newest_manifest(
    out: str | os.PathLike[str], known_generations: Sequence[int] = ()
) -> tuple[int, Manifest]:
    """Loads the newest generation of a data set.

    Args:
        out: Folder or store URL of the data set.
        known_generations: The result of `list_generations` if the caller has just called it. This
            saves a request to a store. If empty, the generations are listed here.

    Returns:
        (number of the generation, manifest).

    Raises:
        DataError: There is no data set, or the manifest is invalid.
    """
    while numbers := known_generations or list_generations(out):
        # The listing of the caller may be outdated. It is used for the first attempt only.
        known_generations = ()
        # Fails if two other builds have committed since the listing, because older
        # generations are removed.
        with contextlib.suppress(FileNotFoundError):
            return numbers[-1], load_manifest(out, numbers[-1])
        # The listing has not changed, so the file exists and can't be opened. Trying again would
        # not end.
        if list_generations(out) == numbers:
            raise DataError("can't be opened", source=str(manifest_path(out, numbers[-1])))
    if find_unfinished(os.fspath(out)):
        raise no_data_set_error(os.fspath(out))
    raise DataError("holds no data set (no _manifests/00000001.json)", source=str(out))


def make_missing_file_error(path: str) -> DataError:
    """Returns the error for a file of a data set that does not exist.

    The message explains whether a later build has replaced the data set.
    """
    folder = os.path.dirname(path)
    # The file is in a subfolder of the data folder, such as `index/`.
    if not is_data_folder(os.path.basename(folder)):
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
    """Replaces a FileNotFoundError of the `with` block by the error of `make_missing_file_error`.

    Args:
        path: A file that a manifest names, or that existed when it was listed.
    """
    try:
        yield
    except FileNotFoundError:
        raise make_missing_file_error(path) from None


def read_statistics(manifest: Manifest, out: str | os.PathLike[str]) -> bytes | None:
    """Reads the statistics file of a data set.

    Returns:
        A serialized `DatasetFeatureStatisticsList`, or None if the data set was built without
        statistics.

    Raises:
        DataError: The file is missing, or its digest differs from the manifest.
    """
    return _read_statistics_entry(manifest, out, "file")


def read_sketch(manifest: Manifest, out: str | os.PathLike[str]) -> bytes | None:
    """Reads the sketch file of a data set, for `DatasetSketch.from_bytes`.

    Returns:
        The content, or None if the data set was built without statistics, or by an earlier release.

    Raises:
        DataError: The file is missing, or its digest differs from the manifest.
    """
    return _read_statistics_entry(manifest, out, "sketch")


def _read_statistics_entry(
    manifest: Manifest, out: str | os.PathLike[str], key: str
) -> bytes | None:
    if (entry := manifest.statistics.get(key)) is None:
        return None
    path = join(out, manifest.statistics_folder, entry["name"])
    with explain_missing(path):
        data = read_range(path, max_bytes=entry["bytes"]).tobytes()
    digest = Digest()
    digest.update(data)
    if digest.text() != entry["digest"]:
        raise DataError("differs from the manifest: it has another digest", source=path)
    return data


def is_data_set(path: str | os.PathLike[str]) -> bool:
    """Returns whether the folder contains a committed data set."""
    return bool(list_generations(path))
