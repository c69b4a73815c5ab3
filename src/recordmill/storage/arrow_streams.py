"""zstd and bzip2: files of any number of frames as streams, by the libraries that pyarrow has. They are read, not
written.
"""

from __future__ import annotations

from collections.abc import Generator

import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.storage.arrow_files import range_file
from recordmill.storage.codecs import BZ2, ZSTD, Algorithm
from recordmill.storage.compression import Ratio, truncated
from recordmill.storage.files import stat

_PIECE_BYTES = 1 << 20  # 1 MiB of what it becomes
_MAGIC, _SKIPPABLE = 0xFD2FB528, 0x184D2A50
_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")  # with which a block of bzip2 begins, or its end


class _ArrowStream(Algorithm):
    codec = ZSTD  # as pyarrow calls it, too

    def begin(self, head: bytes, most_bytes: int) -> tuple[bytes, bool]:
        stream = pa.CompressedInputStream(pa.BufferReader(head), self.codec)
        parts: list[bytes] = []
        try:
            while sum(map(len, parts)) < most_bytes:
                part = stream.read(4096)
                if not part:
                    return b"".join(parts), True
                parts.append(part)
        except OSError:  # what is there ends inside a frame
            pass
        return b"".join(parts), False

    def pieces(self, path: str, source: str, max_ratio: int | None) -> Generator[bytes, None, None]:
        return _stream(path, self.codec, source, max_ratio)


class Zstd(_ArrowStream):
    """RFC 8878."""

    def is_head(self, head: bytes) -> bool:
        magic = int.from_bytes(head[:4], "little")
        return len(head) >= 4 and (magic == _MAGIC or magic & 0xFFFFFFF0 == _SKIPPABLE)


class Bzip2(_ArrowStream):
    """The format of bzip2 1.0 (sourceware.org/bzip2)."""

    codec = BZ2

    def is_head(self, head: bytes) -> bool:
        return head[:3] == b"BZh" and head[4:10] in _BLOCKS


def _stream(path: str, codec: str, source: str, max_ratio: int | None) -> Generator[bytes, None, None]:
    if stat(path).size_bytes == 0:
        raise truncated(codec, 0, 0, source)
    ratio = Ratio(source, max_ratio)
    with range_file(path) as file, pa.CompressedInputStream(file, codec) as stream:
        while True:
            try:
                piece = stream.read(_PIECE_BYTES)
            except OSError as error:
                raise _error(error, codec, file.tell(), source) from None
            if not piece:
                return
            ratio.check(len(piece), file.tell())
            yield piece


def _error(error: OSError, codec: str, at: int, source: str) -> OSError | DataError:
    if error.errno is not None:
        return error
    if "Truncated" in str(error):
        return truncated(codec, 0, at, source)
    if "too much memory" in str(error):
        return DataError(
            "zstd data of a window above 128 MiB; decompress it, or compress it with a window of 27 bits or less",
            source=source,
            place=f"before byte {at} of the file",
        )
    return DataError(
        f"{codec} data is damaged, or something follows its end ({error})"[:250],
        source=source,
        place=f"before byte {at} of the file",
    )
