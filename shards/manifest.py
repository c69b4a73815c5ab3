"""The manifest: what a data set consists of, as JSON; the one file that makes shards a data set.

`OUT/_manifests/00000001.json` is created exclusively and never changed; the highest number wins. `OUT/manifest.json` is
a copy for people. Nothing in it is absolute, so OUT can be moved and shared; what varies from run to run stands under
`run` alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from recordmill.base.errors import DataError
from recordmill.shards.entries.grammar import PAGED, check_manifest, check_version, known_fields
from recordmill.shards.entries.pages import Paged, pages_of, totals
from recordmill.shards.entries.shard_info import ShardInfo, info_of
from recordmill.storage.folders import join, names_if_there
from recordmill.storage.strict_json import Fields, parse, read_bounded

# (major, minor): a reader refuses an unknown major and ignores fields that a minor added. Version 3 is that of very
# many shards: it names pages of their entries.
FORMAT_VERSION, PAGED_VERSION = (2, 0), (PAGED, 0)
_READ = (2, PAGED)  # majors
MANIFESTS = "_manifests"
RUN_PREFIX = "_run-"
DATA_PREFIX = "data-"
INDEX_FOLDER = "index"
INPUTS_NAME = "inputs.jsonl"
TRANSFORM_FOLDER = "transform"

_NUMBER = re.compile(r"([0-9]{8})\.json")


@dataclass(frozen=True)
class Part:
    """The shards that one build wrote into one folder: split name to shards, in order.

    folder: `data-<id>`, relative to OUT. splits: of very many shards, they are read as they are asked for. inputs: how
    many files and bytes it was built from; the list is `folder/inputs.jsonl`.
    """

    folder: str
    kind: str
    splits: Mapping[str, Sequence[ShardInfo]]
    inputs: Mapping[str, Any]
    records_read: int
    records_rejected: int


@dataclass(frozen=True)
class Manifest:
    """A committed data set.

    version: of the format, (major, minor). name: what the user calls it. options: what decides the bytes (seed, splits,
    shards, ...). fingerprint: SHA-256 over everything that must be equal for two builds to be equal. schema: the text
    of schema.pbtxt. run: facts of this run alone (times, versions, threads). transform: what made the records of what
    was read, see docs/transform.md; empty, and left out of the file, where nothing did.
    """

    name: str
    compression: str
    options: Mapping[str, Any]
    schema: str
    parts: tuple[Part, ...]
    rejects: Mapping[str, Any]
    fingerprint: str = ""
    statistics: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    transform: Mapping[str, Any] = field(default_factory=dict)
    version: tuple[int, int] = FORMAT_VERSION

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, in order of first appearance."""
        return tuple(dict.fromkeys(split for part in self.parts for split in part.splits))

    def shards(self, split: str | None = None) -> list[tuple[str, Part, ShardInfo]]:
        """(split, part, shard) of all shards, or of one split's, in reading order."""
        return list(self.each_shard(split))

    def each_shard(self, split: str | None = None) -> Iterator[tuple[str, Part, ShardInfo]]:
        """The same one by one, of which pages are read as they are come to."""
        for name in self.splits if split is None else (split,):
            for part in self.parts:
                for shard in part.splits.get(name, ()):
                    yield name, part, shard

    @property
    def records(self) -> dict[str, int]:
        """Split to number of records."""
        return {split: sum(totals(shards)[0] for shards in self._each(split)) for split in self.splits}

    @property
    def shard_counts(self) -> dict[str, int]:
        """Split to number of shards."""
        return {split: sum(map(len, self._each(split))) for split in self.splits}

    @property
    def size_bytes(self) -> int:
        """Of all shards."""
        return sum(totals(shards)[1] for split in self.splits for shards in self._each(split))

    def _each(self, split: str) -> list[Sequence[ShardInfo]]:
        return [part.splits[split] for part in self.parts if split in part.splits]

    def to_json(self) -> str:
        """The text of the file, one trailing newline."""
        document = {"format": "recordmill", "version": self.version, **asdict(replace(self, parts=()))}
        document["parts"] = [_document(part) for part in self.parts]
        if not self.transform:
            del document["transform"]
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: bytes | str, source: str = "manifest", out: str = "") -> Manifest:
        """The manifest of that text. out: the data set's folder, from which pages are read when they are asked for.

        Raises DataError, with file, field and reason, for text that is no manifest, or of a later format."""
        fields = Fields(parse(text, source), source)
        version = check_version(fields)
        if version[0] not in _READ:
            what_to_do = "build the data set anew" if version[0] < _READ[0] else "install a newer one"
            raise DataError(
                f"has format version {version[0]}; this recordmill reads {' and '.join(map(str, _READ))}: {what_to_do}",
                source=source,
            )
        check_manifest(fields, version[0])
        document = fields.value
        compression = document["compression"]
        parts = tuple(_part(part, version[0], out, compression) for part in document["parts"])
        return cls(**{**known_fields(document, cls.__dataclass_fields__), "parts": parts, "version": version})


def _part(document: Mapping[str, Any], major: int, out: str, compression: str) -> Part:
    folder = join(out, document["folder"])
    known = known_fields(document, Part.__dataclass_fields__)
    known["splits"] = {
        split: Paged(folder, split, compression, pages_of(said)) if major == PAGED else tuple(map(info_of, said))
        for split, said in document["splits"].items()
    }
    return Part(**known)


def _document(part: Part) -> dict[str, Any]:
    """The part as JSON has it."""
    splits = {split: _said(shards) for split, shards in part.splits.items()}
    return {**asdict(replace(part, splits={})), "splits": splits}


def _said(shards: Sequence[ShardInfo]) -> Any:
    if isinstance(shards, Paged):
        return {"pages": [asdict(page) for page in shards.pages]}
    return [asdict(shard) for shard in shards]


def generations(out: str | os.PathLike[str]) -> list[int]:
    """The numbers of the committed manifests of OUT, ascending; empty if it holds no data set."""
    names = names_if_there(join(out, MANIFESTS))
    return sorted(int(match[1]) for name in names if (match := _NUMBER.fullmatch(name)))


def manifest_path(out: str | os.PathLike[str], generation: int) -> Path:
    """Where the manifest of that generation of the data set OUT stands."""
    return Path(out, MANIFESTS, f"{generation:08d}.json")


def load(out: str | os.PathLike[str], generation: int | None = None) -> Manifest:
    """The data set that OUT holds now, or that generation.

    Raises:
        DataError: there is none, or the file is broken, too large, or says what no build writes;
            it names file and field.
        FileNotFoundError: that generation is not there.
    """
    if generation is None:
        return load_newest(out)[1]
    path = join(out, MANIFESTS, manifest_path("", generation).name)
    return Manifest.from_json(read_bounded(path), path, os.fspath(out))


def load_newest(out: str | os.PathLike[str], known: Sequence[int] = ()) -> tuple[int, Manifest]:
    """(generation, data set) that OUT holds now; builds may replace it meanwhile. known: the generations that it held
    just before.
    """
    while numbers := known or generations(out):
        known = ()
        with contextlib.suppress(FileNotFoundError):  # two commits since it was listed
            return numbers[-1], load(out, numbers[-1])
        if generations(out) == numbers:
            raise DataError("can't be opened", source=str(manifest_path(out, numbers[-1])))
    raise DataError("holds no data set (no _manifests/00000001.json)", source=str(out))


def is_data_set(path: str | os.PathLike[str]) -> bool:
    """Whether the folder holds a committed data set."""
    return bool(generations(path))
