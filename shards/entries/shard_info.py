"""The account of a shard, as a manifest has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recordmill.base.errors import DataError
from recordmill.shards.entries.grammar import known_fields
from recordmill.shards.entries.names import ShardName


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
