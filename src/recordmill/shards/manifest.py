"""The manifest: what a data set consists of, as JSON; the one file that makes shards a data set. With it the account of
a
shard, and pages: files that hold the entries of very many shards in place of the manifest.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from recordmill.base.errors import DataError
from recordmill.shards.grammar import (
    PAGE_FORMAT,
    PAGED,
    ShardName,
    check_entry,
    check_manifest,
    check_version,
    is_data_folder,
    known_fields,
    page_name,
)
from recordmill.storage.digest import Digest
from recordmill.storage.folders import join, names_if_there
from recordmill.storage.json_fields import Fields, parse, read_bounded
from recordmill.storage.lazy_table import Table
from recordmill.storage.walk import MANIFESTS, no_data_set, unfinished_in


@dataclass(frozen=True)
class ShardInfo:
    """One shard. bytes: the file's size; framed_bytes: uncompressed; digest: of the file, `blake3:<hex>`; sum: of
    mix64(key, payload CRC) mod 2^64, in hex.
    """

    name: str
    records: int
    bytes: int
    framed_bytes: int
    digest: str
    sum: str


def info_of(document: Mapping[str, Any]) -> ShardInfo:
    """The account that a checked entry says."""
    return ShardInfo(**known_fields(document, ShardInfo.__dataclass_fields__))


def shard_name(shard: ShardInfo) -> ShardName:
    """The parsed name of a shard in a manifest; DataError if it isn't one of ours."""
    name = ShardName.parse(shard.name)
    if name is None:
        raise DataError(f"shard name {shard.name!r} is none of ours", source="manifest")
    return name


MOST_NAMED = 8_192  # shards that a manifest names itself: some 2 MiB of text, of which parsing makes 7 MiB
PAGE_SHARDS = 4_096  # of a page: 1 MiB, a request's worth
PAGES_FOLDER = "pages"
_KEPT = 2  # pages that a process holds


@dataclass(frozen=True)
class Page:
    """A page, as the manifest has it. name: below `pages/`; bytes, digest: of the file; shards: how many it lists;
    records, shard_bytes: of all these.
    """

    name: str
    bytes: int
    digest: str
    shards: int
    records: int
    shard_bytes: int


class Paged(Table[ShardInfo]):
    """The shards of a split, in order, read page by page as they are asked for. folder: `data-<id>`, where it lies.

    Raises:
        DataError: as soon as a page is read that is missing, or not what the manifest says.
    """

    def __init__(self, folder: str, split: str, compression: str, pages: Sequence[Page]) -> None:
        self.folder, self.split, self.compression, self.pages = folder, split, compression, tuple(pages)
        self._ends = list(itertools.accumulate(page.shards for page in self.pages))

    @property
    def records(self) -> int:
        return sum(page.records for page in self.pages)

    @property
    def bytes(self) -> int:
        """Of all shards."""
        return sum(page.shard_bytes for page in self.pages)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _item(self, at: int) -> ShardInfo:
        page = bisect.bisect_right(self._ends, at)
        return self._entries(page)[at - self._ends[page] + self.pages[page].shards]

    def __iter__(self) -> Iterator[ShardInfo]:
        for page in range(len(self.pages)):
            yield from self._entries(page)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Paged):
            return (self.split, self.compression, self.pages) == (other.split, other.compression, other.pages)
        return super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self.split, self.pages))

    def _entries(self, page: int) -> tuple[ShardInfo, ...]:
        about = self.pages[page]
        path = join(self.folder, PAGES_FOLDER, about.name)
        return _read(path, about, self.split, self.compression, self._ends[page] - about.shards, len(self))


def totals(shards: Sequence[ShardInfo]) -> tuple[int, int]:
    """(records, bytes) of these shards; no page is read for it."""
    if isinstance(shards, Paged):
        return shards.records, shards.bytes
    return sum(shard.records for shard in shards), sum(shard.bytes for shard in shards)


def write_pages(
    splits: Mapping[str, Sequence[ShardInfo]], put: Callable[[str, bytes], None]
) -> dict[str, tuple[Page, ...]]:
    """Split to its pages; none where the manifest names the shards itself. put: is given each name and its bytes."""
    if sum(map(len, splits.values())) <= MOST_NAMED:
        return {}
    return {split: tuple(_write(split, shards, put)) for split, shards in splits.items()}


def _write(split: str, shards: Sequence[ShardInfo], put: Callable[[str, bytes], None]) -> Iterator[Page]:
    for number, first in enumerate(range(0, len(shards), PAGE_SHARDS)):
        some = shards[first : first + PAGE_SHARDS]
        name, data = page_name(split, number), _text(split, some)
        put(name, data)
        yield Page(name, len(data), _digest(data), len(some), *totals(some))


def _text(split: str, shards: Sequence[ShardInfo]) -> bytes:
    """A shard a line, for people."""
    lines = ",\n".join(json.dumps(asdict(shard)) for shard in shards)
    return f'{{"format": "{PAGE_FORMAT}", "split": {json.dumps(split)}, "shards": [\n{lines}\n]}}\n'.encode()


def _digest(data: bytes) -> str:
    digest = Digest()
    digest.update(data)
    return digest.text()


def pages_of(document: Mapping[str, Any]) -> tuple[Page, ...]:
    """The pages that a checked manifest names for a split."""
    return tuple(Page(**known_fields(page, Page.__dataclass_fields__)) for page in document["pages"])


@functools.lru_cache(maxsize=_KEPT)
def _read(path: str, page: Page, split: str, compression: str, first: int, of: int) -> tuple[ShardInfo, ...]:
    """The entries of a page whose first shard has that number, of so many in the split."""
    try:
        data = read_bounded(path, page.bytes)  # which the manifest can say of 16 MiB at most
    except FileNotFoundError:
        raise missing_error(path) from None
    if len(data) != page.bytes or _digest(data) != page.digest:
        raise DataError("is not what the manifest says it is: its size or its digest differs", source=path)
    fields = Fields(parse(data, path), path)
    fields.text("format", PAGE_FORMAT, f"{PAGE_FORMAT!r}")
    if len(fields.items("shards")) != page.shards:
        fields.refuse(f"are {len(fields.items('shards'))} where the manifest says {page.shards}", "shards")
    for number, entry in enumerate(fields.objects("shards"), first):
        check_entry(entry, split, compression)
        if entry.text("name") != (name := str(ShardName(split, number, of, compression))):
            entry.refuse(f"is not {name}, whose place it has", "name")
    found = tuple(info_of(entry) for entry in fields.items("shards"))
    if totals(found) != (page.records, page.shard_bytes):
        fields.refuse("hold other records or bytes than the manifest says", "shards")
    return found


# (major, minor): a reader refuses an unknown major and ignores fields that a minor added. Version 3 is that of very
# many shards: it names pages of their entries.
FORMAT_VERSION, PAGED_VERSION = (2, 0), (PAGED, 0)
_READ = (2, PAGED)  # majors
INDEX_FOLDER = "index"
INPUTS_NAME = "inputs.jsonl"
STATISTICS_NAME = "statistics.pb"
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
    if unfinished_in(os.fspath(out)):
        raise no_data_set(os.fspath(out))
    raise DataError("holds no data set (no _manifests/00000001.json)", source=str(out))


def missing_error(path: str) -> DataError:
    """What to say of a file of a data set that is not there: builds may have replaced the data set since it was opened,
    and removed what it was.
    """
    folder = os.path.dirname(path)
    if not is_data_folder(os.path.basename(folder)):  # it is beside the shards, in a folder of its own
        folder = os.path.dirname(folder)
    out, name = os.path.split(folder)
    with contextlib.suppress(DataError, OSError):
        if is_data_folder(name) and (numbers := generations(out)):
            now, manifest = load_newest(out, numbers)
            if name not in {part.folder for part in manifest.parts}:
                return DataError(f"is gone: the data set was replaced, by generation {now}; open it again", source=path)
    return DataError(f"is missing{'; the manifest names it' if is_data_folder(name) else ''}", source=path)


@contextlib.contextmanager
def named_by_manifest(path: str) -> Iterator[None]:
    """Reading a file that was there, or that a manifest names: `missing_error` says what became of it."""
    try:
        yield
    except FileNotFoundError:
        raise missing_error(path) from None


def read_statistics(manifest: Manifest, out: str | os.PathLike[str]) -> bytes | None:
    """The `DatasetFeatureStatisticsList` of the data set at OUT; None where it was built without.

    Raises:
        DataError: the file is missing, or not what the manifest says.
    """
    if (said := manifest.statistics.get("file")) is None:
        return None
    path = join(out, manifest.parts[-1].folder, said["name"])
    with named_by_manifest(path):
        data = read_bounded(path, said["bytes"])
    if _digest(data) != said["digest"]:
        raise DataError("is not what the manifest says it is: its digest differs", source=path)
    return data


def is_data_set(path: str | os.PathLike[str]) -> bool:
    """Whether the folder holds a committed data set."""
    return bool(generations(path))
