"""Names of the files of a data set: shards and what belongs to them, formatted and parsed by one object, and what other
names that stand in a manifest must be like.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from recordmill.storage.codecs import SHARD_SUFFIXES, UNCOMPRESSED, find_codec

_COMPRESSION_BY_SUFFIX = {suffix: name for name, suffix in SHARD_SUFFIXES.items()}
_SHARD_NAME = re.compile(
    r"(?P<split>[A-Za-z0-9_.-]+?)-(?P<index>\d{5,})-of-(?P<of>\d{5,})"
    rf"(?P<suffix>{'|'.join(map(re.escape, _COMPRESSION_BY_SUFFIX))})"
)


@dataclass(frozen=True, order=True)
class ShardName:
    """One shard of a split: the index-th (from 0) of `of`.

    >>> str(ShardName("train", 3, 16))
    'train-00003-of-00016.tfrecord'
    >>> ShardName.parse("train-00003-of-00016.tfrecord")
    ShardName(split='train', index=3, num_shards=16, compression='none')
    """

    split: str
    index: int
    num_shards: int
    compression: str = UNCOMPRESSED

    def __str__(self) -> str:
        return f"{self.split}-{self.index:05d}-of-{self.num_shards:05d}{SHARD_SUFFIXES[self.compression]}"

    @property
    def index_name(self) -> str:
        """The name of its index, beside the shards in `index/`."""
        return f"{self.split}-{self.index:05d}.npy"

    @property
    def has_members(self) -> bool:
        """True if the shard is compressed, and so has a member table."""
        return not find_codec(self.compression).is_plain

    @property
    def members_name(self) -> str:
        """The name of a compressed shard's member table, in `index/`."""
        return f"{self.split}-{self.index:05d}.members.npy"

    @classmethod
    def parse(cls, name: str) -> ShardName | None:
        """The shard a file name says, or None if it is no shard's name."""
        match = _SHARD_NAME.fullmatch(name)
        if match is None:
            return None
        return cls(
            match["split"],
            int(match["index"]),
            int(match["of"]),
            _COMPRESSION_BY_SUFFIX[match["suffix"]],
        )


DATA_FOLDER_PATTERN = (
    r"data-[0-9a-z]{1,64}(?:-[0-9]{1,9})?"  # data-<id of its run>; earlier ones were numbered
)
PLAIN_TEXT_PATTERN = r"[^\x00-\x1f\x7f]{0,1000}"


def is_data_folder(name: str) -> bool:
    """Returns whether it is the name of a folder of shards, and nothing else.

    >>> [is_data_folder(name) for name in ("data-0123456789ab", "data-0123456789ab-2", "data-../x", "../x", "data-")]
    [True, True, False, False, False]
    """
    return re.fullmatch(DATA_FOLDER_PATTERN, name, re.ASCII) is not None


def is_safe_relative_path(name: str) -> bool:
    """Returns whether it is a relative name with `/` that leads nowhere but down.

    >>> [is_safe_relative_path(name) for name in ("transform_fn/assets/words", "../x", "/x", "a//b", "a/./b", "")]
    [True, False, False, False, False, False]
    """
    return re.fullmatch(PLAIN_TEXT_PATTERN, name) is not None and all(
        part not in ("", ".", "..") and "\\" not in part for part in name.split("/")
    )
