"""zstd: files of any number of frames as streams. They are read, not written."""

from __future__ import annotations

from collections.abc import Generator

import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.storage.arrow_files import range_file
from recordmill.storage.codecs import ZSTD, Algorithm
from recordmill.storage.compression import Ratio, truncated
from recordmill.storage.files import stat

_PIECE_BYTES = 1 << 20  # 1 MiB of what it becomes
_MAGIC, _SKIPPABLE = 0xFD2FB528, 0x184D2A50


class Zstd(Algorithm):
    """RFC 8878, by the zstd that pyarrow has."""

    def is_head(self, head: bytes) -> bool:
        magic = int.from_bytes(head[:4], "little")
        return len(head) >= 4 and (magic == _MAGIC or magic & 0xFFFFFFF0 == _SKIPPABLE)

    def begin(self, head: bytes, most_bytes: int) -> tuple[bytes, bool]:
        stream = pa.CompressedInputStream(pa.BufferReader(head), ZSTD)
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
        return _stream(path, source, max_ratio)


def _stream(path: str, source: str, max_ratio: int | None) -> Generator[bytes, None, None]:
    if stat(path).size_bytes == 0:
        raise truncated(ZSTD, 0, 0, source)
    ratio = Ratio(source, max_ratio)
    with range_file(path) as file, pa.CompressedInputStream(file, ZSTD) as stream:
        while True:
            try:
                piece = stream.read(_PIECE_BYTES)
            except OSError as error:
                raise _zstd_error(error, file.tell(), source) from None
            if not piece:
                return
            ratio.check(len(piece), file.tell())
            yield piece


def _zstd_error(error: OSError, at: int, source: str) -> OSError | DataError:
    if error.errno is not None:
        return error
    if "Truncated" in str(error):
        return truncated(ZSTD, 0, at, source)
    if "too much memory" in str(error):
        return DataError(
            "zstd data of a window above 128 MiB; decompress it, or compress it with a window of 27 bits or less",
            source=source,
            place=f"before byte {at} of the file",
        )
    return DataError(
        f"zstd data is damaged, or something follows its end ({error})"[:250],
        source=source,
        place=f"before byte {at} of the file",
    )
