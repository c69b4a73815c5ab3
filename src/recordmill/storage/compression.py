"""A file as a stream of uncompressed blocks, whatever it is compressed with (`storage.codecs`).

A stream that ends too early, anywhere, is an error, and so is what follows its end: zlib's own readers, and those of
others, take both for a clean end (a shard without its last nine bytes, a file cut between header and data). Memory is
bounded by the block.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from recordmill.base.errors import DataError
from recordmill.storage.codecs import CODECS, MAX_RATIO, UNCOMPRESSED, find_codec
from recordmill.storage.files import Bytes, find_storage, read_range

AUTO_COMPRESSION = "auto"

DEFAULT_BLOCK_BYTES = (
    1 << 20
)  # 1 MiB: stays in the second-level cache between inflating and reading it
COMPRESSED_HEAD_BYTES = 4096  # what `detect_compression` is shown: enough for zlib to refuse nearly all that is not its own

_MIN_SUSPICIOUS_BYTES = 64 << 20  # 64 MiB: below, no ratio is suspicious


def detect_compression(head: bytes) -> str:
    """`gzip`, `zlib`, `zstd`, `bz2`, `xz` or `none`, by the first COMPRESSED_HEAD_BYTES of a file.

    >>> import zlib
    >>> detect_compression(b"a,b\\n1,2\\n"), detect_compression(find_codec("gzip").pack(b"data")), detect_compression(zlib.compress(b"data"))
    ('none', 'gzip', 'zlib')
    """
    return next(
        (codec.name for codec in CODECS if not codec.is_plain and codec.algorithm.is_head(head)),
        UNCOMPRESSED,
    )


class ByteStream:
    """A file's uncompressed bytes, from the first to the last, into the caller's arrays; a context manager.

    error: what is wrong with the compressed data behind the bytes given so far, once `fill` has come to it.
    """

    error: DataError | None = None

    def fill(self, buffer: Bytes) -> int:
        """Writes the next bytes; gives how many: fewer only at the end, which is a true one if `error` is None."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing more will be read."""

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _PlainStream(ByteStream):
    def __init__(self, path: str) -> None:
        self._reader, self._offset = find_storage(path).open(path), 0

    def fill(self, buffer: Bytes) -> int:
        count = len(self._reader.fill(buffer, self._offset))
        self._offset += count
        return count

    def close(self) -> None:
        self._reader.close()


class _BlockStream(ByteStream):
    """From a generator of byte strings of any size."""

    def __init__(self, blocks: Generator[bytes, None, None]) -> None:
        self._blocks, self._rest = blocks, np.empty(0, np.uint8)

    def fill(self, buffer: Bytes) -> int:
        filled = 0
        while filled < len(buffer):
            if len(self._rest) == 0 and not self._next():
                break
            part = self._rest[: len(buffer) - filled]
            buffer[filled : filled + len(part)] = part
            self._rest = self._rest[len(part) :]
            filled += len(part)
        return filled

    def _next(self) -> bool:
        try:
            self._rest = np.frombuffer(next(self._blocks), np.uint8)
        except StopIteration:
            return False
        except DataError as error:
            self.error = error
            return False
        return True

    def close(self) -> None:
        self._blocks.close()


def open_stream(
    path: str,
    *,
    compression: str = AUTO_COMPRESSION,
    source: str | None = None,
    max_ratio: int | None = MAX_RATIO,
) -> ByteStream:
    """The file's uncompressed bytes as a `ByteStream`. gzip may have many members.

    Args:
        compression: `none`, `gzip`, `zlib`, `zstd`, `bz2`, `xz`, or `auto`: what `detect_compression` says.
        source: the file's name for messages, if it is another than path.
        max_ratio: how many times larger than the file so far its content may become, from 64 MiB on; None: without
            limit.

    Raises:
        OSError: as the operating system says it.
    """
    source = path if source is None else source
    if compression == AUTO_COMPRESSION:
        compression = detect_compression(read_range(path, 0, COMPRESSED_HEAD_BYTES).tobytes())
    codec = find_codec(compression)
    return (
        _PlainStream(path)
        if codec.is_plain
        else _BlockStream(codec.algorithm.decompress_file(path, source, max_ratio))
    )


def open_blocks(
    path: str,
    *,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    compression: str = AUTO_COMPRESSION,
    source: str | None = None,
    max_ratio: int | None = MAX_RATIO,
) -> Iterator[Bytes]:
    """The file's uncompressed bytes in arrays of block_bytes, the last one shorter; each is the caller's own.
    Arguments as of `open_stream`.

    Raises:
        DataError: the compressed data is damaged or truncated, something follows its end, or it grows beyond max_ratio.
        OSError: as the operating system says it.
    """
    with open_stream(path, compression=compression, source=source, max_ratio=max_ratio) as stream:
        count = block_bytes
        while count == block_bytes:
            block = np.empty(block_bytes, np.uint8)
            if count := stream.fill(block):
                yield block[:count]
        if stream.error is not None:
            raise stream.error


class RatioLimit:
    """Stops a stream that grows beyond all measure. out: bytes that it had given before."""

    def __init__(self, source: str, limit: int | None, previous_bytes: int = 0) -> None:
        self._source, self._limit, self._total_bytes = source, limit, previous_bytes

    def check(self, num_bytes: int, compressed_bytes: int) -> None:
        """So many bytes more have come of so many compressed ones in all; DataError beyond the limit."""
        self._total_bytes += num_bytes
        if self._limit is not None and self._total_bytes > max(
            _MIN_SUSPICIOUS_BYTES, self._limit * compressed_bytes
        ):
            reason = f"{compressed_bytes} compressed bytes have become {self._total_bytes}, above the limit of {self._limit} times"
            raise DataError(
                f"{reason}; if they are wanted all the same, decompress the file first",
                source=self._source,
                place=f"byte {compressed_bytes} of the file",
            )


def truncated_error(compression: str, start: int, size: int, source: str) -> DataError:
    """The error of a file of so many bytes that ends within the compressed data that begins at byte `begun`."""
    return DataError(
        f"truncated: the {compression} data that begins at byte {start} of the file has no end",
        source=source,
        place=f"byte {size} of the file",
    )
