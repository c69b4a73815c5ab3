"""Decompression of zstd, bzip2 and xz files that consist of any number of frames.

zstd uses the library in pyarrow, and bzip2 and xz use Python's modules. Shards are never written
with these codecs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from typing import Any

import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.storage.arrow_files import open_arrow_file
from recordmill.storage.codecs import BZ2, XZ, ZSTD, Algorithm
from recordmill.storage.compression import RatioLimit, skip_padding, truncated_error
from recordmill.storage.files import read_blocks, stat

_BLOCK_BYTES = 1 << 20  # 1 MiB of decompressed content
_ZSTD_MAGIC, _ZSTD_SKIPPABLE_MAGIC = 0xFD2FB528, 0x184D2A50
# 256 MiB of memory: permits a window of 128 MiB, as for zstd. `xz -9` takes 65 MiB.
_MAX_XZ_BYTES = 256 << 20
# After its header, a bzip2 stream has a block or the end-of-stream marker.
_BZIP2_BLOCK_MAGICS = (b"1AY&SY", b"\x17rE8P\x90")


class Zstd(Algorithm):
    """Zstandard, RFC 8878. Zeros after a frame are an error, as they are for `zstd`."""

    def is_head(self, head: bytes) -> bool:
        magic = int.from_bytes(head[:4], "little")
        return len(head) >= 4 and (
            magic == _ZSTD_MAGIC or magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE_MAGIC
        )

    def decompress_head(self, head: bytes, max_bytes: int) -> tuple[bytes, bool]:
        stream = pa.CompressedInputStream(pa.BufferReader(head), ZSTD)
        parts: list[bytes] = []
        try:
            while sum(map(len, parts)) < max_bytes:
                part = stream.read(4096)
                if not part:
                    return b"".join(parts), True
                parts.append(part)
        except OSError:  # `head` ends inside a frame
            pass
        return b"".join(parts), False

    def decompress_file(
        self, path: str, source: str, max_ratio: int | None
    ) -> Generator[bytes, None, None]:
        if stat(path).size_bytes == 0:  # pyarrow would accept an empty file
            raise truncated_error(ZSTD, 0, 0, source)
        ratio = RatioLimit(source, max_ratio)
        with open_arrow_file(path) as file, pa.CompressedInputStream(file, ZSTD) as stream:
            while True:
                try:
                    content = stream.read(_BLOCK_BYTES)
                except OSError as error:
                    raise _to_data_error(error, ZSTD, file.tell(), source) from None
                if not content:
                    return
                ratio.check(len(content), file.tell())
                yield content


class _PythonAlgorithm(Algorithm):
    """Codec of a module of Python, which decompresses one stream at a time."""

    codec: str

    @abstractmethod
    def _decompressor(self) -> Any:
        """Returns the decompressor of one stream."""

    def decompress_head(self, head: bytes, max_bytes: int) -> tuple[bytes, bool]:
        stream = self._decompressor()
        try:
            content = stream.decompress(head, max_bytes)
        except Exception:  # LZMAError, but `lzma` is not imported here
            return b"", False
        return content, stream.eof and not skip_padding(stream.unused_data)

    def decompress_file(
        self, path: str, source: str, max_ratio: int | None
    ) -> Generator[bytes, None, None]:
        ratio, stream = RatioLimit(source, max_ratio), self._decompressor()
        stream_start = offset = 0
        for block in read_blocks(path, _BLOCK_BYTES):
            data: bytes | memoryview = block.tobytes()
            offset += len(block)
            # An output block is limited, so one input block may need several calls.
            while data or not (stream.needs_input or stream.eof):
                if stream.eof:
                    data = skip_padding(data)
                    if not data:
                        break
                    # Another stream follows.
                    stream, stream_start = self._decompressor(), offset - len(data)
                try:
                    content = stream.decompress(data, _BLOCK_BYTES)
                except Exception as error:  # LZMAError, but `lzma` is not imported here
                    raise _to_data_error(OSError(str(error)), self.codec, offset, source) from None
                data = stream.unused_data
                if content:
                    ratio.check(len(content), offset)
                    yield content
        if not stream.eof:
            raise truncated_error(self.codec, stream_start, offset, source)


class Bzip2(_PythonAlgorithm):
    """The file format of bzip2 1.0 (sourceware.org/bzip2)."""

    codec = BZ2

    def is_head(self, head: bytes) -> bool:
        return head[:3] == b"BZh" and head[4:10] in _BZIP2_BLOCK_MAGICS

    def _decompressor(self) -> Any:
        import bz2  # Python may be built without it

        return bz2.BZ2Decompressor()


class Xz(_PythonAlgorithm):
    """The .xz file format 1.2.1 (tukaani.org/xz)."""

    codec = XZ

    def is_head(self, head: bytes) -> bool:
        return head.startswith(b"\xfd7zXZ\0")

    def _decompressor(self) -> Any:
        import lzma  # Python may be built without it

        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_BYTES)


def _to_data_error(error: OSError, codec: str, offset: int, source: str) -> OSError | DataError:
    if error.errno is not None:  # an error of the file, not of the codec
        return error
    if "Truncated" in str(error):
        return truncated_error(codec, 0, offset, source)
    if "too much memory" in str(error) or "limit exceeded" in str(error):
        return DataError(
            f"{codec} data of a window above 128 MiB; decompress it, or compress it with a window of 27 bits or less",
            source=source,
            place=f"before byte {offset} of the file",
        )
    return DataError(
        f"{codec} data is damaged, or something follows its end ({error})"[:250],
        source=source,
        place=f"before byte {offset} of the file",
    )
