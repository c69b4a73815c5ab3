"""gzip and zlib: files of any number of members as streams, and the members of shards, made and read one by one."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterator
from typing import Any

from isal import isal_zlib

from recordmill.base.errors import DataError
from recordmill.storage.codecs import GZIP, ZLIB, Algorithm, MemberAlgorithm
from recordmill.storage.compression import RatioLimit, truncated_error
from recordmill.storage.files import Bytes, read_blocks

_INPUT_BYTES, _OUTPUT_BYTES = (
    256 << 10,
    1 << 20,
)  # 256 KiB of compressed data at once, 1 MiB of what it becomes
_ISAL_ERROR: Any = isal_zlib.error  # its stubs say less than an exception
_ISAL_LOOKAHEAD_BYTES = 16  # bytes, more than ISA-L has read of what it has not inflated
_MAX_RATIO = 1032  # of deflate: 258 bytes by a length and a distance of one bit each
_WINDOW_BITS = {GZIP: 31, ZLIB: 15}  # zlib's way to name the container
_HEADER_CRC_FLAG = 2  # FHCRC of RFC 1952's flags


class Gzip(MemberAlgorithm):
    """RFC 1952."""

    def is_head(self, head: bytes) -> bool:
        return head[:3] == b"\x1f\x8b\x08"

    def decompress_head(self, head: bytes, max_bytes: int) -> tuple[bytes, bool]:
        return _decompress_head(GZIP, head, max_bytes)

    def decompress_file(
        self, path: str, source: str, max_ratio: int | None
    ) -> Generator[bytes, None, None]:
        return _decompress_gzip(path, source, max_ratio)

    def pack(self, data: bytes | memoryview | Bytes, level: int) -> bytes:
        """No time, no name; the operating system is "unknown"."""
        view = memoryview(data).cast("B")
        deflater = zlib.compressobj(level, zlib.DEFLATED, -15, 8)
        body = deflater.compress(view) + deflater.flush()
        return (
            b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
            + body
            + struct.pack("<II", zlib.crc32(view), len(view) & 0xFFFFFFFF)
        )

    def unpack(self, data: memoryview, size: int) -> bytes:
        inflater = zlib.decompressobj(_WINDOW_BITS[GZIP])
        try:
            result = inflater.decompress(
                data, size + 1
            )  # not more than was said, whatever there is
        except zlib.error as error:
            raise ValueError(f"is damaged: {error}") from None
        if not inflater.eof or inflater.unused_data or len(result) != size:
            raise ValueError("does not end where the member table says")
        return result

    def max_content_bytes(self, packed_bytes: int) -> int:
        return _MAX_RATIO * packed_bytes

    def library_version(self) -> str:
        return f"zlib {zlib.ZLIB_RUNTIME_VERSION}"


class Zlib(Algorithm):
    """RFC 1950: one stream, as TensorFlow's `ZLIB`."""

    def is_head(self, head: bytes) -> bool:
        """Tells deflate by its two-byte header, which plain text can have by chance, and by inflating a part."""
        if len(head) < 6 or head[0] & 0x0F != 8 or head[0] > 0x78 or (head[0] << 8 | head[1]) % 31:
            return False
        try:
            zlib.decompressobj(_WINDOW_BITS[ZLIB]).decompress(
                head, 256
            )  # a fault further on is damage
        except zlib.error:
            return False
        return True

    def decompress_head(self, head: bytes, max_bytes: int) -> tuple[bytes, bool]:
        return _decompress_head(ZLIB, head, max_bytes)

    def decompress_file(
        self, path: str, source: str, max_ratio: int | None
    ) -> Generator[bytes, None, None]:
        return _inflate_exactly(path, source, ZLIB, max_ratio)


def _decompress_head(compression: str, head: bytes, max_bytes: int) -> tuple[bytes, bool]:
    inflater = zlib.decompressobj(_WINDOW_BITS[compression])
    try:
        inner = inflater.decompress(head, max_bytes)
    except zlib.error:
        return b"", False
    return inner, inflater.eof


def _decompress_gzip(path: str, source: str, max_ratio: int | None) -> Generator[bytes, None, None]:
    """The content of a gzip file of any number of members, in pieces: by ISA-L, at three times the speed of zlib. What
    it stumbles over zlib looks at once more, from the beginning of the member, and says what and where it is.
    """
    ratio, inflater, header = (
        RatioLimit(source, max_ratio),
        isal_zlib.decompressobj(_WINDOW_BITS[GZIP]),
        _HeaderChecker(),
    )
    bytes_read = member_start = previous_bytes = member_bytes = (
        0  # before: bytes of earlier members; given: of the member that begins at begun
    )
    for block in read_blocks(path, _INPUT_BYTES):
        bytes_read += len(block)
        rest: bytes | memoryview = memoryview(block)
        has_more = True
        while has_more:
            if inflater.eof:
                member_start, previous_bytes, member_bytes = (
                    bytes_read - len(rest),
                    previous_bytes + member_bytes,
                    0,
                )
                inflater, header = isal_zlib.decompressobj(_WINDOW_BITS[GZIP]), _HeaderChecker()
            try:
                header.check(rest)
                content = inflater.decompress(rest, _OUTPUT_BYTES)
                rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
                ratio.check(
                    len(content), max(bytes_read - len(rest) - _ISAL_LOOKAHEAD_BYTES, 0)
                )  # zlib tells what is above it indeed
            except (_ISAL_ERROR, zlib.error, DataError):
                yield from _skip_bytes(
                    _inflate_exactly(
                        path,
                        source,
                        GZIP,
                        max_ratio,
                        member_start=member_start,
                        previous_bytes=previous_bytes,
                    ),
                    member_bytes,
                )
                return
            has_more = len(rest) > 0 or (len(content) == _OUTPUT_BYTES and not inflater.eof)
            member_bytes += len(content)
            yield content
    if not inflater.eof:
        yield from _skip_bytes(
            _inflate_exactly(
                path,
                source,
                GZIP,
                max_ratio,
                member_start=member_start,
                previous_bytes=previous_bytes,
            ),
            member_bytes,
        )


class _HeaderChecker:
    """Has zlib look at the header of a gzip member, since ISA-L passes some that are none. One with a CRC of its own is
    left to zlib: where a block ends in it, ISA-L takes the wrong byte for the first of the content.
    """

    def __init__(self) -> None:
        self._inflater: Any = zlib.decompressobj(_WINDOW_BITS[GZIP])
        self._flags_offset = 3  # in the next bytes

    def check(self, data: bytes | memoryview) -> None:
        """The member's next bytes; zlib.error if they are no header, or one for zlib."""
        if 0 <= self._flags_offset < len(data) and data[self._flags_offset] & _HEADER_CRC_FLAG:
            raise zlib.error("a CRC of the header")
        self._flags_offset -= len(data)
        offset = 0
        while self._inflater is not None and offset < len(data):
            if self._inflater.decompress(data[offset : offset + 512], 1) or self._inflater.eof:
                self._inflater = None
            offset += 512


def _skip_bytes(blocks: Iterator[bytes], skipped: int) -> Iterator[bytes]:
    """Yields what follows the first `skip` bytes."""
    for block in blocks:
        if len(block) > skipped:
            yield block[skipped:]
        skipped = max(skipped - len(block), 0)


def _inflate_exactly(
    path: str,
    source: str,
    compression: str,
    max_ratio: int | None,
    member_start: int = 0,
    previous_bytes: int = 0,
) -> Generator[bytes, None, None]:
    """The content of a gzip file, or of one zlib stream, by zlib, up to the very byte that is at fault; from the member
    on that begins at byte `begun`, before which members gave so many bytes.
    """
    ratio, inflater, bytes_read = (
        RatioLimit(source, max_ratio, previous_bytes),
        zlib.decompressobj(_WINDOW_BITS[compression]),
        member_start,
    )
    for block in _aligned_blocks(path, member_start):
        bytes_read += len(block)
        rest: bytes | memoryview = memoryview(block)
        has_more = True
        while has_more:
            if inflater.eof:
                member_start = bytes_read - len(rest)
                if compression == ZLIB:
                    raise DataError(
                        "zlib data ends and something follows",
                        source=source,
                        place=f"byte {member_start} of the file",
                    )
                inflater = zlib.decompressobj(_WINDOW_BITS[compression])
            # of the 40 KiB that it holds: zlib drops what it had inflated when it meets a fault
            checkpoint = inflater.copy()
            try:
                content = inflater.decompress(rest, _OUTPUT_BYTES)
            except zlib.error as error:
                yield from _inflate_until_fault(checkpoint, rest)
                raise _damaged_error(compression, member_start, source, error) from None
            rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            has_more = len(rest) > 0 or (len(content) == _OUTPUT_BYTES and not inflater.eof)
            ratio.check(len(content), bytes_read - len(rest))
            yield content
    if not inflater.eof:
        raise truncated_error(compression, member_start, bytes_read, source)


def _aligned_blocks(path: str, start: int) -> Iterator[Bytes]:
    """The file's blocks from a byte on, cut where they are cut from its beginning on."""
    edge = start - start % _INPUT_BYTES + _INPUT_BYTES
    yield from read_blocks(path, _INPUT_BYTES, start, edge)
    yield from read_blocks(path, _INPUT_BYTES, edge)


def _inflate_until_fault(inflater: Any, data: bytes | memoryview) -> Iterator[bytes]:
    """Yields what data becomes before the fault in it, byte by byte at last."""
    offset, step = 0, 4096
    while step and offset < len(data):
        checkpoint = inflater.copy()
        try:
            yield inflater.decompress(data[offset : offset + step])
            offset += step
        except zlib.error:
            inflater, step = checkpoint, step // 16


def _damaged_error(
    compression: str, member_start: int, source: str, error: zlib.error
) -> DataError:
    problem = (
        "damaged"
        if "header" not in str(error)
        else "damaged"
        if member_start == 0
        else "damaged, or something that is none follows the end"
    )
    return DataError(
        f"{compression} data is {problem} ({error})"[:250],
        source=source,
        place=f"{compression} member at byte {member_start} of the file",
    )
