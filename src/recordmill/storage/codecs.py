"""Table of the compression codecs.

A codec determines the names and the compression of shards. It also recognizes and reads compressed
files, and has TensorFlow's name for the compression. All other code uses this table. So a new codec
needs only one entry here, and a module with its `Algorithm`.

The module of a codec is imported at first use, so that `--help` does not load any of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name

from recordmill.base.buffers import Bytes


class Algorithm(ABC):
    """Detection and decompression of one codec."""

    @abstractmethod
    def is_head(self, head: bytes) -> bool:
        """Returns whether `head` is the start of a file in this format."""

    @abstractmethod
    def decompress_head(self, head: bytes, max_bytes: int) -> tuple[bytes, bool]:
        """Decompresses the start of a file.

        Args:
            head: The first bytes of the file.
            max_bytes: The approximate limit of the result in bytes.

        Returns:
            (decompressed bytes, whether they are the complete content). The bytes are empty if the
            data is damaged.
        """

    @abstractmethod
    def decompress_file(
        self, path: str, source: str, max_ratio: int | None
    ) -> Generator[bytes, None, None]:
        """Yields the decompressed content of a file in blocks of at most 1 MiB.

        Args:
            path: The file to read.
            source: The file's name for messages.
            max_ratio: The largest permitted ratio of decompressed to compressed bytes, at any point
                of the file. None means no limit.

        Raises:
            DataError: The data is damaged or truncated, other data follows its end, or it exceeds
                `max_ratio`.
        """


class MemberAlgorithm(Algorithm):
    """Algorithm that can also compress shards.

    A shard consists of members. Each member can be decompressed without the others, and all of them
    together are a valid file of the codec.
    """

    @abstractmethod
    def pack(self, data: bytes | memoryview | Bytes, level: int) -> bytes:
        """Compresses one member.

        The result depends only on the data, the level and `library_version`.
        """

    @abstractmethod
    def unpack(self, data: memoryview, size: int) -> bytes:
        """Decompresses one member.

        Args:
            data: The compressed bytes of the member, complete.
            size: The expected size of the content in bytes.

        Raises:
            ValueError: The member is damaged, or its content has another size.
        """

    @abstractmethod
    def max_content_bytes(self, packed_bytes: int) -> int:
        """Returns the largest size of the content that `packed_bytes` compressed bytes can have."""

    @abstractmethod
    def library_version(self) -> str:
        """Returns the name and version of the compression library in this process.

        Another version may compress the same data to different bytes.
        """


# Deflate reaches at most 1032, and content near this ratio is a bomb or a file of zeros.
MAX_RATIO = 1000


@dataclass(frozen=True)
class Codec:
    """A compression of files, with its names in file names and in TensorFlow.

    Attributes:
        name: The name in options and manifests.
        shard_suffix: Suffix of the names of shards. None means that such files are read, but no
            shards are written.
        tensorflow_name: The compression type for `tf.data.TFRecordDataset`. None means that
            TensorFlow can't read it.
        algorithm_path: Import path `module:class` relative to `recordmill`, or "" for uncompressed
            files.
        magic: The first bytes of each member of a shard.
        level: Compression level of shards.
    """

    name: str
    shard_suffix: str | None
    tensorflow_name: str | None
    algorithm_path: str = ""
    magic: bytes = b""
    level: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether files of this codec are uncompressed."""
        return not self.algorithm_path

    @cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm that reads files. Must not be used if `is_plain`."""
        instance = resolve_name(f"recordmill.{self.algorithm_path}")()
        assert isinstance(instance, Algorithm)
        return instance

    @property
    def member_algorithm(self) -> MemberAlgorithm:
        """The algorithm that reads and writes shards. Must not be used if `is_plain`."""
        assert isinstance(self.algorithm, MemberAlgorithm)
        return self.algorithm

    def max_content_bytes(self, file_bytes: int) -> int:
        """Returns the largest size of a shard of `file_bytes` when decompressed."""
        return file_bytes if self.is_plain else self.member_algorithm.max_content_bytes(file_bytes)

    def pack(self, data: bytes | memoryview | Bytes) -> bytes:
        """Compresses one member of a shard."""
        return self.member_algorithm.pack(data, self.level)

    @property
    def library_version(self) -> str:
        """Name and version of the library that compresses shards, or "" if none does."""
        return "" if self.is_plain else self.member_algorithm.library_version()


UNCOMPRESSED, GZIP, ZLIB, ZSTD, BZ2, XZ = "none", "gzip", "zlib", "zstd", "bz2", "xz"
# The order of detection.
CODECS = (
    Codec(UNCOMPRESSED, ".tfrecord", ""),
    # Level 6 is the default of gzip and of TensorFlow.
    Codec(GZIP, ".tfrecord.gz", "GZIP", "storage.deflate:Gzip", b"\x1f\x8b", 6),
    Codec(ZSTD, None, None, "storage.read_only_codecs:Zstd"),
    Codec(BZ2, None, None, "storage.read_only_codecs:Bzip2"),
    Codec(XZ, None, None, "storage.read_only_codecs:Xz"),
    # zlib is the last, because its magic of two bytes is the least certain.
    Codec(ZLIB, None, "ZLIB", "storage.deflate:Zlib"),
)
_BY_NAME = {codec.name: codec for codec in CODECS}
SHARD_SUFFIXES = {
    codec.name: codec.shard_suffix for codec in CODECS if codec.shard_suffix is not None
}


def find_codec(name: str) -> Codec:
    """Returns a codec by its name.

    Raises:
        ValueError: No codec has this name. The message lists all names.
    """
    if name not in _BY_NAME:
        raise ValueError(f"compression {name!r} is not one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
