"""The codecs that files may be compressed with, an entry each: how shards of it are called and packed, how a file of it
is told and read, and whether TensorFlow can.

Shards, their names and manifests, the command line and all readers ask the entries here and nothing else. What an
entry names by import path is imported when it is needed, so that `--help` loads no codec. A new one is a module with an
`Algorithm` and an entry below.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

from recordmill.base.buffers import Bytes


class Algorithm(ABC):
    """How the bytes of one codec are told and read."""

    @abstractmethod
    def is_head(self, head: bytes) -> bool:
        """Returns whether a file that begins so is compressed with it."""

    @abstractmethod
    def decompress_head(self, head: bytes, max_bytes: int) -> tuple[bytes, bool]:
        """The first bytes inside a file that begins so, about most_bytes at most, and whether they are all; none of a
        stream that is broken from its beginning.
        """

    @abstractmethod
    def decompress_file(
        self, path: str, source: str, max_ratio: int | None
    ) -> Generator[bytes, None, None]:
        """The file's uncompressed bytes in pieces of 1 MiB at most. source: its name for messages. max_ratio: how many
        times larger than the file so far its content may become; None: without limit.

        Raises:
            DataError: damaged, cut off, something follows its end, or it grows beyond max_ratio.
        """


class MemberAlgorithm(Algorithm):
    """Also packs shards: members, each read without the others, that one after the other are a file of the codec."""

    @abstractmethod
    def pack(self, data: bytes | memoryview | Bytes, level: int) -> bytes:
        """One member: the same bytes at any time and on any system, by the same `library`."""

    @abstractmethod
    def unpack(self, data: memoryview, size: int) -> bytes:
        """Returns the content of one member of `size` uncompressed bytes.

        Raises:
            ValueError: it is damaged, or holds another number of bytes.
        """

    @abstractmethod
    def max_content_bytes(self, packed_bytes: int) -> int:
        """How many bytes members of so many bytes together can hold."""

    @abstractmethod
    def library_version(self) -> str:
        """Names the library that packs in this process, with its version: another one may make other bytes."""


MAX_RATIO = (
    1000  # deflate can't reach more than 1032, and what comes near is a bomb or a file of zeros
)


@dataclass(frozen=True)
class Codec:
    """One way to compress a file. algorithm: import path `module:class` below `recordmill`; "": bytes as they are.

    shard_suffix: of the names of shards that are written with it; None: files of others are read, none is written.
    tensorflow: what `tf.data.TFRecordDataset` calls it; None: TensorFlow can't read it.
    magic: how each of its members begins. level: of shards.
    """

    name: str
    shard_suffix: str | None
    tensorflow_name: str | None
    algorithm_path: str = ""
    magic: bytes = b""
    level: int = 0

    @property
    def is_plain(self) -> bool:
        """True if a file's bytes are those of its records."""
        return not self.algorithm_path

    @cached_property
    def algorithm(self) -> Algorithm:
        """How files of it are read, which are not plain."""
        module, _, name = self.algorithm_path.partition(":")
        instance = getattr(import_module(f"recordmill.{module}"), name)()
        assert isinstance(instance, Algorithm)
        return instance

    @property
    def member_algorithm(self) -> MemberAlgorithm:
        """How shards of it are written and read, which are not plain."""
        assert isinstance(self.algorithm, MemberAlgorithm)
        return self.algorithm

    def max_content_bytes(self, file_bytes: int) -> int:
        """How many bytes of records a shard of so many bytes can hold."""
        return file_bytes if self.is_plain else self.member_algorithm.max_content_bytes(file_bytes)

    def pack(self, data: bytes | memoryview | Bytes) -> bytes:
        """One member of a shard."""
        return self.member_algorithm.pack(data, self.level)

    @property
    def library_version(self) -> str:
        """The library that packs its shards in this process, with its version; "" where none does."""
        return "" if self.is_plain else self.member_algorithm.library_version()


UNCOMPRESSED, GZIP, ZLIB, ZSTD, BZ2, XZ = "none", "gzip", "zlib", "zstd", "bz2", "xz"
CODECS = (
    Codec(UNCOMPRESSED, ".tfrecord", ""),
    # level 6: as gzip and TensorFlow have it
    Codec(GZIP, ".tfrecord.gz", "GZIP", "storage.deflate:Gzip", b"\x1f\x8b", 6),
    Codec(ZSTD, None, None, "storage.arrow_streams:Zstd"),
    Codec(BZ2, None, None, "storage.arrow_streams:Bzip2"),
    Codec(XZ, None, None, "storage.arrow_streams:Xz"),
    Codec(
        ZLIB, None, "ZLIB", "storage.deflate:Zlib"
    ),  # the last: its two bytes are told with the least certainty
)
_BY_NAME = {codec.name: codec for codec in CODECS}
SHARD_SUFFIXES = {
    codec.name: codec.shard_suffix for codec in CODECS if codec.shard_suffix is not None
}


def find_codec(name: str) -> Codec:
    """The entry of that name.

    Raises:
        ValueError: there is none; the message lists those that there are.
    """
    if name not in _BY_NAME:
        raise ValueError(f"compression {name!r} is none of {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
