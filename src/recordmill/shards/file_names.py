"""File and folder names of a data set."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from recordmill.storage.codecs import SHARD_SUFFIXES, UNCOMPRESSED, find_codec

_MAX_SHARDS = 1_000_000
_COMPRESSION_BY_SUFFIX = {suffix: name for name, suffix in SHARD_SUFFIXES.items()}
_SHARD_NAME = re.compile(
    r"(?P<split>[A-Za-z0-9_.-]+?)-(?P<index>\d{5,})-of-(?P<of>\d{5,})"
    rf"(?P<suffix>{'|'.join(map(re.escape, _COMPRESSION_BY_SUFFIX))})"
)

_NUMBERED_NAME = re.compile(r"(.*?-)(\d{5,})(-of-(\d{5,})\D.*|-of-(\d{5,}))")


class NumberedName(NamedTuple):
    """The part that the names of all shards of a set have in common.

    Attributes:
        begin: Folder, and the name before the index.
        end: The name after the index.
        digits: Number of digits of the index.
        num_shards: Number of shards in the set.
    """

    begin: str
    end: str
    digits: int
    num_shards: int

    def path(self, index: int) -> str:
        """Returns the path of a shard, whether it exists or not."""
        return f"{self.begin}{index:0{self.digits}d}{self.end}"


def group_shards(paths: Iterable[str]) -> dict[NumberedName, dict[int, str]]:
    """Groups paths such as `x-00000-of-00003` by set. Other paths are left out.

    Returns:
        For each set, its paths by the index of the shard.
    """
    sets: defaultdict[NumberedName, dict[int, str]] = defaultdict(dict)
    for path in paths:
        folder, name = os.path.split(path)
        if match := _NUMBERED_NAME.fullmatch(name):
            begin, index, end, *counts = match.groups()
            num_shards = int(counts[0] or counts[1])
            key = NumberedName(os.path.join(folder, begin), end, len(index), num_shards)
            sets[key][int(index)] = path
    return dict(sets)


def find_missing_shards(paths: Iterable[str]) -> list[str]:
    """Returns the paths of absent shards.

    The names of the other shards contain the number of shards of the set.

    >>> find_missing_shards(["x/a-00000-of-00003.tfrecord", "x/a-00002-of-00003.tfrecord"])
    ['x/a-00001-of-00003.tfrecord']
    """
    return [
        name.path(index)
        for name, present in group_shards(paths).items()
        # A number above the usual limits is not a number of shards.
        if len(present) < name.num_shards <= _MAX_SHARDS
        for index in range(name.num_shards)
        if index not in present
    ]


def describe_missing_shards(missing: list[str]) -> str:
    """Returns the note about missing shards.

    Args:
        missing: Paths of the missing shards. Not empty.
    """
    more_text = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
    return f"missing: {missing[0]}{more_text}, which the names of the other shards count"


@dataclass(frozen=True, order=True)
class ShardName:
    """Name of a shard file.

    >>> str(ShardName("train", 3, 16))
    'train-00003-of-00016.tfrecord'
    >>> ShardName.parse("train-00003-of-00016.tfrecord")
    ShardName(split='train', index=3, num_shards=16, compression='none')

    Attributes:
        split: Name of the split.
        index: Index of the shard in its split, counted from 0.
        num_shards: Number of shards of the split.
        compression: Compression of the shard, which determines the extension.
    """

    split: str
    index: int
    num_shards: int
    compression: str = UNCOMPRESSED

    def __str__(self) -> str:
        return f"{self.split}-{self.index:05d}-of-{self.num_shards:05d}{SHARD_SUFFIXES[self.compression]}"

    @property
    def index_name(self) -> str:
        """Name of the index of this shard, in the folder `index/`."""
        return f"{self.split}-{self.index:05d}.npy"

    @property
    def has_members(self) -> bool:
        """True if the shard is compressed and therefore has a member table."""
        return not find_codec(self.compression).is_plain

    @property
    def members_name(self) -> str:
        """Name of the member table of a compressed shard, in the folder `index/`."""
        return f"{self.split}-{self.index:05d}.members.npy"

    @classmethod
    def parse(cls, name: str) -> ShardName | None:
        """Parses a file name. Returns None if it is not the name of a shard."""
        match = _SHARD_NAME.fullmatch(name)
        if match is None:
            return None
        return cls(
            match["split"],
            int(match["index"]),
            int(match["of"]),
            _COMPRESSION_BY_SUFFIX[match["suffix"]],
        )


# `data-` and the id of the run that wrote the folder. Earlier releases appended a number.
DATA_FOLDER_PATTERN = r"data-[0-9a-z]{1,64}(?:-[0-9]{1,9})?"
PLAIN_TEXT_PATTERN = r"[^\x00-\x1f\x7f]{0,1000}"


def is_data_folder(name: str) -> bool:
    """Returns whether `name` is exactly the name of a data folder.

    >>> [is_data_folder(name) for name in ("data-0123456789ab", "data-0123456789ab-2")]
    [True, True]
    >>> [is_data_folder(name) for name in ("data-../x", "../x", "data-")]
    [False, False, False]
    """
    return re.fullmatch(DATA_FOLDER_PATTERN, name, re.ASCII) is not None


def is_safe_relative_path(name: str) -> bool:
    """Returns whether `name` is a relative path that stays inside its folder.

    The separator is `/`. Empty parts, `.`, `..`, backslashes and control characters are refused.

    >>> [is_safe_relative_path(name) for name in ("transform_fn/assets/words", "../x", "/x")]
    [True, False, False]
    >>> [is_safe_relative_path(name) for name in ("a//b", "a/./b", "")]
    [False, False, False]
    """
    return re.fullmatch(PLAIN_TEXT_PATTERN, name) is not None and all(
        part not in ("", ".", "..") and "\\" not in part for part in name.split("/")
    )
