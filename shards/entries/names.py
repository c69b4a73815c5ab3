"""The names of the files of a data set, formatted and parsed by one object, so that writer,
lister and reader can't drift.

They are the names TensorFlow Datasets and the TFRecord tutorials use: `train-00003-of-00016.tfrecord`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SUFFIXES = {"none": ".tfrecord", "gzip": ".tfrecord.gz"}

_SHARD = re.compile(r"(?P<split>[A-Za-z0-9_.-]+?)-(?P<index>\d{5,})-of-(?P<of>\d{5,})(?P<suffix>\.tfrecord(?:\.gz)?)")


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
    compression: str = "none"

    def __str__(self) -> str:
        return f"{self.split}-{self.index:05d}-of-{self.of:05d}{SUFFIXES[self.compression]}"

    @property
    def index_name(self) -> str:
        """The name of its index, beside the shards in `index/`."""
        return f"{self.split}-{self.index:05d}.npy"

    @property
    def members_name(self) -> str:
        """The name of a gzip shard's member table, in `index/`."""
        return f"{self.split}-{self.index:05d}.members.npy"

    @classmethod
    def parse(cls, name: str) -> ShardName | None:
        """The shard a file name says, or None if it is no shard's name."""
        match = _SHARD.fullmatch(name)
        if match is None:
            return None
        compression = "gzip" if match["suffix"].endswith(".gz") else "none"
        return cls(match["split"], int(match["index"]), int(match["of"]), compression)


def page_name(split: str, number: int) -> str:
    """The name of a page of the split's entries.

    >>> page_name("train", 2)
    'train-00002.json'
    """
    return f"{split}-{number:05d}.json"
