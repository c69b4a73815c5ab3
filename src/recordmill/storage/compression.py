"""Files as streams of decompressed blocks, for any codec of `storage.codecs`.

Truncated data is an error, and so is data after the end of the stream, except zeros. zlib's own
readers accept both. For example, they return a shard without its last nine bytes as complete, or a
file that ends between header and data. The memory use is bounded by the block size.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from recordmill.base.errors import DataError
from recordmill.storage.codecs import CODECS, MAX_RATIO, UNCOMPRESSED, find_codec
from recordmill.storage.files import Bytes, find_storage, read_range

AUTO_COMPRESSION = "auto"

# 1 MiB: a block stays in the second-level cache between inflating and parsing it.
DEFAULT_BLOCK_BYTES = 1 << 20
# Size of the input of `detect_compression`. It is enough for zlib to refuse nearly all data that is
# not zlib.
COMPRESSED_HEAD_BYTES = 4096

_MIN_SUSPICIOUS_BYTES = 64 << 20  # 64 MiB: smaller content may have any ratio


def detect_compression(head: bytes) -> str:
    r"""Returns the name of the codec that a file is compressed with, or "none".

    Args:
        head: The first `COMPRESSED_HEAD_BYTES` bytes of the file, or the complete file if it is
            shorter.

    >>> import zlib
    >>> detect_compression(b"a,b\n1,2\n"), detect_compression(find_codec("gzip").pack(b"data"))
    ('none', 'gzip')
    >>> detect_compression(zlib.compress(b"data"))
    'zlib'
    """
    return next(
        (codec.name for codec in CODECS if not codec.is_plain and codec.algorithm.is_head(head)),
        UNCOMPRESSED,
    )


class ByteStream:
    """Decompressed content of a file, read from start to end. Use it in a `with` block.

    Attributes:
        error: The damage that ended the stream, or None. It is set when `fill` reaches the damage.
    """

    error: DataError | None = None

    def fill(self, buffer: Bytes) -> int:
        """Reads the next bytes into `buffer` and returns their number.

        At the end of the stream, the number is smaller than the size of the buffer. If damage has
        ended the stream, `error` is then set.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Closes the file."""

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
    """Stream over a generator of byte strings of any size."""

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
            # The error is reported later, because the bytes before the damage are still valid.
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
    """Opens a file as a stream of its decompressed bytes.

    A gzip file may have many members. Damaged data does not raise an error. It ends the stream, and
    `ByteStream.error` describes the damage.

    Args:
        path: The file to read.
        compression: A codec name, or "auto" to detect the codec from the content.
        source: The file's name for messages. None means `path`.
        max_ratio: The largest permitted ratio of decompressed to compressed bytes, at any point of
            the file. Content of up to 64 MiB is always permitted. None means no limit.

    Raises:
        OSError: The file can't be opened or read.
        ValueError: There is no such codec.
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
    """Yields the decompressed content of a file in arrays of `block_bytes`.

    Only the last array is shorter. The caller owns each array. See `open_stream` for the other
    arguments.

    Raises:
        DataError: The compressed data is damaged or truncated, other data follows its end, or it
            exceeds `max_ratio`.
        OSError: The file can't be opened or read.
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
    """Limit of the compression ratio of one file, against decompression bombs.

    Args:
        source: The file's name for messages.
        limit: The largest permitted ratio of decompressed to compressed bytes. None means no limit.
        previous_bytes: The number of decompressed bytes that other code has already produced.
    """

    def __init__(self, source: str, limit: int | None, previous_bytes: int = 0) -> None:
        self._source, self._limit, self._total_bytes = source, limit, previous_bytes

    def check(self, num_bytes: int, compressed_bytes: int) -> None:
        """Counts new decompressed bytes, and raises DataError if the ratio is above the limit.

        Args:
            num_bytes: The number of new decompressed bytes.
            compressed_bytes: The number of compressed bytes that were read from the start of the
                file.
        """
        self._total_bytes += num_bytes
        if self._limit is not None and self._total_bytes > max(
            _MIN_SUSPICIOUS_BYTES, self._limit * compressed_bytes
        ):
            reason = f"{compressed_bytes} compressed bytes have become {self._total_bytes}, above the limit of {self._limit} times"
            raise DataError(
                f"{reason}; if this is intended, decompress the file first",
                source=self._source,
                place=f"byte {compressed_bytes} of the file",
            )


def skip_padding(data: bytes | memoryview) -> bytes | memoryview:
    """Returns the data without the zeros at its start.

    Tapes and block devices pad files with zeros. gzip, bzip2 and xz ignore them after each of their
    streams.
    """
    return data if data[:1] != b"\0" else bytes(data).lstrip(b"\0")


def truncated_error(compression: str, start: int, size: int, source: str) -> DataError:
    """Returns the error for compressed data that ends too early.

    Args:
        compression: The name of the codec.
        start: Offset of the start of the compressed data.
        size: The size of the file in bytes.
        source: The file's name for messages.
    """
    return DataError(
        f"truncated: the {compression} data that begins at byte {start} of the file has no end",
        source=source,
        place=f"byte {size} of the file",
    )
