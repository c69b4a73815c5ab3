"""The grammar of a manifest: what every field may hold, checked at the one place where manifests are loaded; and the
names of the files of a data set, formatted and parsed by one object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.records.tfrecord.frames import FRAME_BYTES
from recordmill.schemas.splits import check_split_name
from recordmill.storage.codecs import NONE, SHARD_SUFFIXES, find_codec
from recordmill.storage.digest import BLAKE3
from recordmill.storage.json_fields import MOST_COUNT, Fields, show

_COMPRESSION_OF = {suffix: name for name, suffix in SHARD_SUFFIXES.items()}
_SHARD = re.compile(
    r"(?P<split>[A-Za-z0-9_.-]+?)-(?P<index>\d{5,})-of-(?P<of>\d{5,})"
    rf"(?P<suffix>{'|'.join(map(re.escape, _COMPRESSION_OF))})"
)


@dataclass(frozen=True, order=True)
class ShardName:
    """One shard of a split: the index-th (from 0) of `of`.

    >>> str(ShardName("train", 3, 16))
    'train-00003-of-00016.tfrecord'
    >>> ShardName.parse("train-00003-of-00016.tfrecord")
    ShardName(split='train', index=3, of=16, compression='none')
    """

    split: str
    index: int
    of: int
    compression: str = NONE

    def __str__(self) -> str:
        return f"{self.split}-{self.index:05d}-of-{self.of:05d}{SHARD_SUFFIXES[self.compression]}"

    @property
    def index_name(self) -> str:
        """The name of its index, beside the shards in `index/`."""
        return f"{self.split}-{self.index:05d}.npy"

    @property
    def has_members(self) -> bool:
        """Whether the shard is compressed, and so has a member table."""
        return not find_codec(self.compression).is_plain

    @property
    def members_name(self) -> str:
        """The name of a compressed shard's member table, in `index/`."""
        return f"{self.split}-{self.index:05d}.members.npy"

    @classmethod
    def parse(cls, name: str) -> ShardName | None:
        """The shard a file name says, or None if it is no shard's name."""
        match = _SHARD.fullmatch(name)
        if match is None:
            return None
        return cls(match["split"], int(match["index"]), int(match["of"]), _COMPRESSION_OF[match["suffix"]])


def page_name(split: str, number: int) -> str:
    """The name of a page of the split's entries.

    >>> page_name("train", 2)
    'train-00002.json'
    """
    return f"{split}-{number:05d}.json"


DATA_FOLDER = r"data-[0-9a-z]{1,64}(?:-[0-9]{1,9})?"  # data-<id of its run>; earlier ones were numbered
_REJECT_FILE = re.compile(r"rejects/[0-9a-z]{1,64}(?:-[0-9]{1,9})?\.[0-9]{5,9}\.jsonl", re.ASCII)
_PLAIN_TEXT = r"[^\x00-\x1f\x7f]{0,1000}"
_HEX = r"[0-9a-f]"
PAGED = 3  # the major version whose manifests name pages of entries, not entries
PAGE_FORMAT = "recordmill page"
MOST_STATISTICS_BYTES = 1 << 30  # 1 GiB: of 10,000 features a build writes 50 MiB
MOST_PAGE_BYTES = 16 << 20  # 16 MiB: ten times what a build writes
_MOST_ENTRIES = 1 << 14  # of a page


def is_data_folder(name: str) -> bool:
    """Whether it is the name of a folder of shards, and nothing else.

    >>> [is_data_folder(name) for name in ("data-0123456789ab", "data-0123456789ab-2", "data-../x", "../x", "data-")]
    [True, True, False, False, False]
    """
    return re.fullmatch(DATA_FOLDER, name, re.ASCII) is not None


def check_manifest(fields: Fields, major: int) -> None:
    """Raises DataError, with file and field, for a manifest of that major version that no build writes."""
    fields.text("name", _PLAIN_TEXT, "a line of text")
    compression = fields.text("compression", "|".join(SHARD_SUFFIXES), " or ".join(SHARD_SUFFIXES))
    fields.text("schema")
    for name in ("options", "rejects"):
        fields.object(name)
    _check_rejects(fields.object("rejects"))
    if "fingerprint" in fields:
        fields.text("fingerprint", f"{_HEX}{{0,64}}", "hexadecimal digits")
    if "statistics" in fields:
        _check_statistics(fields.object("statistics"))
    if "run" in fields and "id" in (run := fields.object("run")):
        run.text("id", _PLAIN_TEXT, "a line of text")
    if "transform" in fields:
        _check_transform(fields.object("transform"))
    if not fields.items("parts"):
        fields.refuse("is empty; a data set has one", "parts")
    folders = set[str]()
    total = 0
    for part in fields.objects("parts"):
        if (folder := part.text("folder", DATA_FOLDER, "the name of a data folder (data-<id>)")) in folders:
            part.refuse(f"is {folder!r}, which another part has", "folder")
        folders.add(folder)
        total += _check_part(part, compression, major)
    if total > MOST_COUNT:
        fields.refuse(f"hold {total} records together, more than {MOST_COUNT}", "parts")


def _check_statistics(statistics: Fields) -> None:
    if "notes" in statistics:
        statistics.texts("notes")
    if "file" in statistics:
        file = statistics.object("file")
        file.text("name", r"statistics\.pb", "statistics.pb")
        file.count("bytes", most=MOST_STATISTICS_BYTES)
        _check_digest(file)
    if "splits" in statistics:
        splits = statistics.object("splits")
        for split in splits.value:
            features = splits.object(split)
            for feature in features.value:
                features.object(feature)


def _check_part(part: Fields, compression: str, major: int) -> int:
    """Gives the records of the part."""
    part.text("kind", _PLAIN_TEXT, "a line of text")
    part.object("inputs")
    part.count("records_read")
    part.count("records_rejected")
    splits = part.object("splits")
    total, check = 0, _check_pages if major == PAGED else _check_entries
    for split in splits.value:
        try:
            check_split_name(split)
        except UsageError as error:
            splits.refuse(str(error), split)
        total += check(splits, split, compression)
    return total


def _check_entries(splits: Fields, split: str, compression: str) -> int:
    """Gives the records of the split."""
    total, names = 0, set[str]()
    for shard in splits.objects(split):
        if (name := check_entry(shard, split, compression)) in names:
            shard.refuse(f"is {show(name)}, which another shard has", "name")
        names.add(name)
        total += shard.count("records")
    return total


def check_entry(shard: Fields, split: str, compression: str) -> str:
    """Gives the name of the shard; DataError for what is no entry of one of this split."""
    name = shard.text("name")
    if not _is_shard(name, split, compression):
        shard.refuse(f"is {show(name)}, no shard of this split (compression {compression})", "name")
    most = find_codec(compression).most_bytes(shard.count("bytes"))
    framed_bytes = shard.count("framed_bytes", most=min(most, MOST_COUNT))
    shard.count("records", most=framed_bytes // FRAME_BYTES)
    _check_digest(shard)
    shard.text("sum", f"{_HEX}{{16}}", "16 hexadecimal digits")
    return name


def _check_pages(splits: Fields, split: str, compression: str) -> int:
    """Gives the records of the split."""
    total = 0
    for number, page in enumerate(splits.object(split).objects("pages")):
        if page.text("name") != (name := page_name(split, number)):
            page.refuse(f"is {show(page.text('name'))}, not {name}", "name")
        page.count("bytes", most=MOST_PAGE_BYTES)
        page.count("shards", 1, _MOST_ENTRIES)
        page.count("shard_bytes")
        _check_digest(page)
        total += page.count("records")
    return total


def _check_digest(shard: Fields) -> None:
    shard.text("digest", f"{BLAKE3}:{_HEX}{{64}}", f"{BLAKE3}, `:` and 64 hexadecimal digits")


def _is_shard(name: str, split: str, compression: str) -> bool:
    parsed = ShardName.parse(name)
    return (
        parsed is not None
        and str(parsed) == name
        and (parsed.split, parsed.compression) == (split, compression)
        and parsed.index < parsed.of
    )


def _check_rejects(rejects: Fields) -> None:
    if "count" in rejects:
        rejects.count("count")
    if "reasons" in rejects:
        reasons = rejects.object("reasons")
        for reason in reasons.value:
            reasons.count(reason)
    if "files" in rejects:
        rejects.texts("files", lambda name: _REJECT_FILE.fullmatch(name) is not None, "the name of a file in rejects/")


def _check_transform(transform: Fields) -> None:
    if not transform.value:
        return
    transform.text("digest", f"{_HEX}{{64}}", "64 hexadecimal digits")
    transform.text("fitted_on", _PLAIN_TEXT, "a line of text")
    transform.text("raw_schema")
    for name in ("inputs", "outputs"):
        transform.texts(name)
    transform.items("kept")
    for name in ("needs", "found"):
        transform.object(name)
    files = transform.object("files")
    for name in files.value:
        if not is_name_below(name):
            files.refuse("is no name of a file below the transform's folder", name)
        about = files.object(name)
        about.count("bytes")
        about.text("sha256", f"{_HEX}{{64}}", "a SHA-256 in hexadecimal digits")


def is_name_below(name: str) -> bool:
    """Whether it is a relative name with `/` that leads nowhere but down.

    >>> [is_name_below(name) for name in ("transform_fn/assets/words", "../x", "/x", "a//b", "a/./b", "")]
    [True, False, False, False, False, False]
    """
    return re.fullmatch(_PLAIN_TEXT, name) is not None and all(
        part not in ("", ".", "..") and "\\" not in part for part in name.split("/")
    )


def check_version(fields: Fields) -> tuple[int, int]:
    """(major, minor) of a document that says it is a manifest."""
    if fields.any("format") != "recordmill":
        fields.refuse(f"is {show(fields.any('format'))}, not 'recordmill'", "format")
    version: Any = fields.items("version")
    if len(version) != 2 or not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in version):
        fields.refuse("is not [major, minor]", "version")
    return version[0], version[1]


def known_fields(document: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Those fields of the document that this version knows."""
    return {name: document[name] for name in names if name in document}
