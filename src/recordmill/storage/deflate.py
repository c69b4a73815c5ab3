"""gzip and zlib: streams of any number of members, and the members of shards."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterator
from typing import Any

from isal import isal_zlib

from recordmill.base.errors import DataError
from recordmill.storage.codecs import GZIP, ZLIB, Algorithm, MemberAlgorithm
from recordmill.storage.compression import RatioLimit, skip_padding, truncated_error
from recordmill.storage.files import Bytes, read_blocks

# 256 KiB of compressed data and 1 MiB of content at a time.
_INPUT_BYTES, _OUTPUT_BYTES = 256 << 10, 1 << 20
_ISAL_ERROR: Any = isal_zlib.error  # the stubs of isal do not declare it as an exception
_ISAL_LOOKAHEAD_BYTES = 16  # upper limit of the bytes that ISA-L reads before it inflates them
_MAX_RATIO = 1032  # limit of deflate: a match of 258 bytes takes at least two bits
_WINDOW_BITS = {GZIP: 31, ZLIB: 15}  # also selects the container format in zlib
_HEADER_CRC_FLAG = 2  # FHCRC in the flags of RFC 1952


class Gzip(MemberAlgorithm):
    """gzip, RFC 1952."""

    def is_head(self, head: bytes) -> bool:
        return head[:3] == b"\x1f\x8b\x08"

    def decompress_head(self, head: bytes, max_bytes: int) -> tuple[bytes, bool]:
        return _decompress_head(GZIP, head, max_bytes)

    def decompress_file(
        self, path: str, source: str, max_ratio: int | None
    ) -> Generator[bytes, None, None]:
        return _decompress_gzip(path, source, max_ratio)

    def pack(self, data: bytes | memoryview | Bytes, level: int) -> bytes:
        """Compresses data to one gzip member.

        Equal data has equal bytes on all systems, because the header contains no time, no name, and
        "unknown" as the operating system.
        """
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
            # One byte more than expected shows that a member is too long, without inflating it all.
            result = inflater.decompress(data, size + 1)
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
    """zlib, RFC 1950: a single stream, as in TensorFlow's `ZLIB` files."""

    def is_head(self, head: bytes) -> bool:
        """Returns whether `head` is the start of a zlib stream.

        Plain text can begin with a valid two-byte header, so this also inflates the first bytes.
        """
        if len(head) < 6 or head[0] & 0x0F != 8 or head[0] > 0x78 or (head[0] << 8 | head[1]) % 31:
            return False
        try:
            # An error after the first 256 bytes counts as damage of a zlib stream.
            zlib.decompressobj(_WINDOW_BITS[ZLIB]).decompress(head, 256)
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
    """Yields the content of a gzip file, which may have any number of members.

    ISA-L decompresses three times as fast as zlib. If it reports an error, zlib decompresses the
    current member again, because zlib finds the exact byte and reason of the damage.
    """
    ratio, inflater, header = (
        RatioLimit(source, max_ratio),
        isal_zlib.decompressobj(_WINDOW_BITS[GZIP]),
        _HeaderChecker(),
    )
    # `member_bytes` is the content of the current member until now, and `previous_bytes` that of
    # all earlier members. `bytes_read` and `member_start` are offsets in the compressed file.
    bytes_read = member_start = previous_bytes = member_bytes = 0

    def repeat_member() -> Iterator[bytes]:
        """Yields the rest of the current member, decompressed by zlib."""
        content = _inflate_exactly(
            path,
            source,
            GZIP,
            max_ratio,
            member_start=member_start,
            previous_bytes=previous_bytes,
        )
        return _skip_bytes(content, member_bytes)

    for block in read_blocks(path, _INPUT_BYTES):
        bytes_read += len(block)
        rest: bytes | memoryview = memoryview(block)
        has_more = True
        while has_more:
            if inflater.eof:  # padding or another member follows
                rest = skip_padding(rest)
                if not rest:
                    break
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
                # The exact number of consumed bytes is unknown, so this check may fail too early.
                # zlib repeats it with the exact number.
                ratio.check(len(content), max(bytes_read - len(rest) - _ISAL_LOOKAHEAD_BYTES, 0))
            except (_ISAL_ERROR, zlib.error, DataError):
                yield from repeat_member()
                return
            # A full output block may leave content in the inflater although all input is consumed.
            has_more = len(rest) > 0 or (len(content) == _OUTPUT_BYTES and not inflater.eof)
            member_bytes += len(content)
            yield content
    if not inflater.eof:  # zlib raises the error for the truncated member
        yield from repeat_member()


class _HeaderChecker:
    """Checks the header of a gzip member with zlib, because ISA-L accepts invalid ones.

    A header with a CRC of its own is refused as well, although it is valid. If a block ends inside
    such a header, ISA-L returns a wrong first byte of the content. After a refusal, zlib
    decompresses the member.
    """

    def __init__(self) -> None:
        self._inflater: Any = zlib.decompressobj(_WINDOW_BITS[GZIP])
        self._flags_offset = 3  # offset of the flags in the next bytes of the member

    def check(self, data: bytes | memoryview) -> None:
        """Checks the next bytes of the member.

        Raises:
            zlib.error: The header is invalid, or has a CRC of its own.
        """
        if 0 <= self._flags_offset < len(data) and data[self._flags_offset] & _HEADER_CRC_FLAG:
            raise zlib.error("a CRC of the header")
        self._flags_offset -= len(data)
        offset = 0
        # zlib has accepted the header as soon as it returns content, or the member has ended. With
        # small steps, it inflates only little of the member.
        while self._inflater is not None and offset < len(data):
            if self._inflater.decompress(data[offset : offset + 512], 1) or self._inflater.eof:
                self._inflater = None
            offset += 512


def _skip_bytes(blocks: Iterator[bytes], skipped: int) -> Iterator[bytes]:
    """Yields the bytes after the first `skipped` bytes."""
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
    """Yields the content of a file up to the first damaged byte, using zlib.

    Args:
        path: The file to read.
        source: The file's name for messages.
        compression: GZIP or ZLIB.
        max_ratio: See `Algorithm.decompress_file`.
        member_start: Offset in the file of the member to begin with.
        previous_bytes: Size of the content of all earlier members, for the ratio.

    Raises:
        DataError: The data is damaged or truncated, other data follows a zlib stream, or the
            content exceeds `max_ratio`.
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
                rest = skip_padding(rest)
                if not rest:
                    break
                member_start = bytes_read - len(rest)
                if compression == ZLIB:
                    raise DataError(
                        "zlib data ends and something follows",
                        source=source,
                        place=f"byte {member_start} of the file",
                    )
                inflater = zlib.decompressobj(_WINDOW_BITS[compression])
            # At an error, zlib drops the content of the whole call. The copy of its state (40 KiB)
            # allows to inflate the same input again in smaller steps.
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
    """Yields the bytes of a file from `start` on, in blocks.

    Each block but the first begins at a multiple of _INPUT_BYTES. So the blocks have the same edges
    as in a read of the complete file.
    """
    edge = start - start % _INPUT_BYTES + _INPUT_BYTES
    yield from read_blocks(path, _INPUT_BYTES, start, edge)
    yield from read_blocks(path, _INPUT_BYTES, edge)


def _inflate_until_fault(inflater: Any, data: bytes | memoryview) -> Iterator[bytes]:
    """Yields the content of `data` before the first damaged byte."""
    # Each error makes the step smaller: 4096, 256, 16 and 1 bytes. This finds the exact byte.
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
        else "damaged, or there is other data after the end"
    )
    return DataError(
        f"{compression} data is {problem} ({error})"[:250],
        source=source,
        place=f"{compression} member at byte {member_start} of the file",
    )
