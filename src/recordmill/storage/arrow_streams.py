"""Decompression of zstd, bzip2 and xz files that consist of any number of frames.

zstd and bzip2 use the libraries in pyarrow, and xz uses Python's `lzma`. Shards are never written
with these codecs.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.storage.arrow_files import open_arrow_file
from recordmill.storage.codecs import BZ2, XZ, ZSTD, Algorithm
from recordmill.storage.compression import RatioLimit, truncated_error
from recordmill.storage.files import read_blocks, stat

_BLOCK_BYTES = 1 << 20  # 1 MiB of decompressed content
_ZSTD_MAGIC, _ZSTD_SKIPPABLE_MAGIC = 0xFD2FB528, 0x184D2A50
# 256 MiB of memory: permits a window of 128 MiB, as for zstd. `xz -9` takes 65 MiB.
_MAX_XZ_BYTES = 256 << 20
# After its header, a bzip2 stream has a block or the end-of-stream marker.
_BZIP2_BLOCK_MAGICS = (b"1AY&SY", b"\x17rE8P\x90")


class _ArrowStream(Algorithm):
    codec = ZSTD  # pyarrow has the same names for codecs

    def decompress_head(self, head: bytes, max_bytes: int) -> tuple[bytes, bool]:
        stream = pa.CompressedInputStream(pa.BufferReader(head), self.codec)
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
        return _decompress_file(path, self.codec, source, max_ratio)


class Zstd(_ArrowStream):
    """Zstandard, RFC 8878."""

    def is_head(self, head: bytes) -> bool:
        magic = int.from_bytes(head[:4], "little")
        return len(head) >= 4 and (
            magic == _ZSTD_MAGIC or magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE_MAGIC
        )


class Bzip2(_ArrowStream):
    """The file format of bzip2 1.0 (sourceware.org/bzip2)."""

    codec = BZ2

    def is_head(self, head: bytes) -> bool:
        return head[:3] == b"BZh" and head[4:10] in _BZIP2_BLOCK_MAGICS


class Xz(Algorithm):
    """The .xz file format 1.2.1 (tukaani.org/xz)."""

    def is_head(self, head: bytes) -> bool:
        return head.startswith(b"\xfd7zXZ\0")

    def decompress_head(self, head: bytes, max_bytes: int) -> tuple[bytes, bool]:
        stream = _xz_decompressor()
        try:
            content = stream.decompress(head, max_bytes)
        except Exception:  # LZMAError, but `lzma` is not imported here
            return b"", False
        return content, stream.eof and not stream.unused_data.strip(b"\0")

    def decompress_file(
        self, path: str, source: str, max_ratio: int | None
    ) -> Generator[bytes, None, None]:
        ratio, stream = RatioLimit(source, max_ratio), _xz_decompressor()
        stream_start = offset = num_zeros = 0
        for block in read_blocks(path, _BLOCK_BYTES):
            data, offset = block.tobytes(), offset + len(block)
            # An output block is limited, so one input block may need several calls.
            while data or not (stream.needs_input or stream.eof):
                if stream.eof:
                    # Padding between and after streams: zeros, as multiples of four bytes.
                    rest = data.lstrip(b"\0")
                    num_zeros += len(data) - len(rest)
                    if not (data := rest):
                        break
                    _check_xz_padding(num_zeros, offset, source)
                    # Another stream follows.
                    stream, stream_start, num_zeros = _xz_decompressor(), offset - len(data), 0
                try:
                    content = stream.decompress(data, _BLOCK_BYTES)
                except Exception as error:  # LZMAError, but `lzma` is not imported here
                    raise _to_data_error(OSError(str(error)), XZ, offset, source) from None
                data = stream.unused_data
                if content:
                    ratio.check(len(content), offset)
                    yield content
        if not stream.eof:
            raise truncated_error(XZ, stream_start, offset, source)
        _check_xz_padding(num_zeros, offset, source)


def _check_xz_padding(num_zeros: int, offset: int, source: str) -> None:
    if num_zeros % 4:
        raise _to_data_error(OSError(f"{num_zeros} zeros are no padding"), XZ, offset, source)


def _xz_decompressor() -> Any:
    import lzma  # Python may be built without it

    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_XZ_BYTES)


def _decompress_file(
    path: str, codec: str, source: str, max_ratio: int | None
) -> Generator[bytes, None, None]:
    if stat(path).size_bytes == 0:  # pyarrow would accept an empty file
        raise truncated_error(codec, 0, 0, source)
    ratio = RatioLimit(source, max_ratio)
    with open_arrow_file(path) as file, pa.CompressedInputStream(file, codec) as stream:
        while True:
            try:
                content = stream.read(_BLOCK_BYTES)
            except OSError as error:
                raise _to_data_error(error, codec, file.tell(), source) from None
            if not content:
                return
            ratio.check(len(content), file.tell())
            yield content


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
