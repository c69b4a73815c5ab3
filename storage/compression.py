"""A file as a stream of uncompressed blocks, whatever it is compressed with: none, gzip, zlib or zstd; and gzip
members, made one by one.

A stream that ends too early, anywhere, is an error, and so is what follows its end: zlib's own readers, and those of
others, take both for a clean end (a shard without its last nine bytes, a file cut between header and data). Memory is
bounded by the block.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from isal import isal_zlib

from recordmill.base.errors import DataError
from recordmill.storage.files import Bytes, read_blocks, read_range, stat, storage_of
from recordmill.storage.range_file import range_file

NONE, GZIP, ZLIB, ZSTD, AUTO = "none", "gzip", "zlib", "zstd", "auto"

BLOCK_BYTES = 1 << 20  # 1 MiB: stays in the second-level cache between inflating and reading it
COMPRESSED_HEAD_BYTES = 4096  # what `detect` is shown: enough for zlib to refuse nearly all that is not its own
MAX_RATIO = 1000  # deflate can't reach more than 1032, and what comes near is a bomb or a file of zeros
GZIP_LEVEL = 6  # as gzip and TensorFlow have it

_INPUT_BYTES, _PIECE_BYTES = 256 << 10, 1 << 20  # 256 KiB of compressed data at once, 1 MiB of what it becomes
_RATIO_FROM_BYTES = 64 << 20  # 64 MiB: below, no ratio is suspicious
_ISAL_ERROR: Any = isal_zlib.error  # its stubs say less than an exception
_TAKEN_AHEAD = 16  # bytes, more than ISA-L has read of what it has not inflated
_WINDOW_BITS = {GZIP: 31, ZLIB: 15}  # zlib's way to name the container
_ZSTD_MAGIC, _ZSTD_SKIPPABLE = 0xFD2FB528, 0x184D2A50


def detect(head: bytes) -> str:
    """`gzip`, `zlib`, `zstd` or `none`, by the first HEAD_BYTES of a file.

    zlib's header is two bytes with a checksum of five bits, which plain text can have by chance; so a part must
    inflate, too.

    >>> detect(b"a,b\\\\n1,2\\\\n"), detect(gzip_member(b"data")), detect(zlib.compress(b"data")), detect(b"X\\\\tY")
    ('none', 'gzip', 'zlib', 'none')
    """
    if head[:3] == b"\x1f\x8b\x08":
        return GZIP
    if len(head) >= 4 and (
        (magic := int.from_bytes(head[:4], "little")) == _ZSTD_MAGIC or magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE
    ):
        return ZSTD
    if len(head) >= 6 and head[0] & 0x0F == 8 and head[0] <= 0x78 and (head[0] << 8 | head[1]) % 31 == 0:
        try:
            zlib.decompressobj(_WINDOW_BITS[ZLIB]).decompress(head, 256)  # a fault further on is damage
        except zlib.error:
            return NONE
        return ZLIB
    return NONE


class Stream:
    """A file's uncompressed bytes, from the first to the last, into the caller's arrays; a context manager.

    error: what is wrong with the compressed data behind the bytes given so far, once `fill` has come to it.
    """

    error: DataError | None = None

    def fill(self, into: Bytes) -> int:
        """Write the next bytes; gives how many: fewer than asked only at the end,
        which is a true one if `error` is None.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Nothing more will be read."""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Plain(Stream):
    def __init__(self, path: str) -> None:
        self._reader, self._at = storage_of(path).open(path), 0

    def fill(self, into: Bytes) -> int:
        count = len(self._reader.fill(into, self._at))
        self._at += count
        return count

    def close(self) -> None:
        self._reader.close()


class _Pieces(Stream):
    """From a generator of byte strings of any size."""

    def __init__(self, pieces: Generator[bytes, None, None]) -> None:
        self._pieces, self._rest = pieces, np.empty(0, np.uint8)

    def fill(self, into: Bytes) -> int:
        done = 0
        while done < len(into):
            if len(self._rest) == 0 and not self._next():
                break
            part = self._rest[: len(into) - done]
            into[done : done + len(part)] = part
            self._rest = self._rest[len(part) :]
            done += len(part)
        return done

    def _next(self) -> bool:
        try:
            self._rest = np.frombuffer(next(self._pieces), np.uint8)
        except StopIteration:
            return False
        except DataError as error:
            self.error = error
            return False
        return True

    def close(self) -> None:
        self._pieces.close()


def open_stream(
    path: str, *, compression: str = AUTO, source: str | None = None, max_ratio: int | None = MAX_RATIO
) -> Stream:
    """The file's uncompressed bytes as a `Stream`. gzip may have many members.

    Args:
        compression: `none`, `gzip`, `zlib`, `zstd`, or `auto`: what `detect` says.
        source: the file's name for messages, if it is another than path.
        max_ratio: how many times larger than the file so far its content may become, from 64 MiB on; None: without
            limit.

    Raises:
        OSError: as the operating system says it.
    """
    source = path if source is None else source
    if compression == AUTO:
        compression = detect(read_range(path, 0, COMPRESSED_HEAD_BYTES).tobytes())
    if compression == NONE:
        return _Plain(path)
    if compression == ZSTD:
        return _Pieces(_zstd(path, source, max_ratio))
    if compression in _WINDOW_BITS:
        return _Pieces(_inflate(path, source, compression, max_ratio))
    raise ValueError(f"compression {compression!r} is none of none, gzip, zlib, zstd, auto")


def open_blocks(
    path: str,
    *,
    block_bytes: int = BLOCK_BYTES,
    compression: str = AUTO,
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


class _Ratio:
    """Stops a stream that grows beyond all measure."""

    def __init__(self, source: str, limit: int | None, out: int = 0) -> None:
        self._source, self._limit, self._out = source, limit, out

    def check(self, more: int, compressed: int) -> None:
        self._out += more
        if self._limit is not None and self._out > max(_RATIO_FROM_BYTES, self._limit * compressed):
            reason = f"{compressed} compressed bytes have become {self._out}, above the limit of {self._limit} times"
            raise DataError(
                f"{reason}; if they are wanted all the same, decompress the file first",
                source=self._source,
                place=f"byte {compressed} of the file",
            )


def _inflate(path: str, source: str, compression: str, max_ratio: int | None) -> Generator[bytes, None, None]:
    """The content of a gzip file of any number of members, or of one zlib stream, in pieces: by ISA-L, at three times
    the speed of zlib. What it stumbles over zlib looks at once more, from the beginning of the member, and says what
    and where it is.
    """
    if compression != GZIP:
        yield from _inflate_exactly(path, source, compression, max_ratio)
        return
    ratio, inflater, header = _Ratio(source, max_ratio), isal_zlib.decompressobj(_WINDOW_BITS[GZIP]), _Header()
    read = begun = before = given = 0  # before: bytes of earlier members; given: of the member that begins at begun
    for block in read_blocks(path, _INPUT_BYTES):
        read += len(block)
        rest: bytes | memoryview = memoryview(block)
        more = True
        while more:
            if inflater.eof:
                begun, before, given = read - len(rest), before + given, 0
                inflater, header = isal_zlib.decompressobj(_WINDOW_BITS[GZIP]), _Header()
            try:
                header.check(rest)
                piece = inflater.decompress(rest, _PIECE_BYTES)
                rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
                ratio.check(len(piece), max(read - len(rest) - _TAKEN_AHEAD, 0))  # zlib tells what is above it indeed
            except (_ISAL_ERROR, zlib.error, DataError):
                yield from _behind(_inflate_exactly(path, source, GZIP, max_ratio, begun, before), given)
                return
            more = len(rest) > 0 or (len(piece) == _PIECE_BYTES and not inflater.eof)
            given += len(piece)
            yield piece
    if not inflater.eof:
        yield from _behind(_inflate_exactly(path, source, GZIP, max_ratio, begun, before), given)


class _Header:
    """Has zlib look at the header of a gzip member, since ISA-L passes some that are none."""

    def __init__(self) -> None:
        self._inflater: Any = zlib.decompressobj(_WINDOW_BITS[GZIP])

    def check(self, data: bytes | memoryview) -> None:
        """The member's next bytes; zlib.error if they are no header."""
        at = 0
        while self._inflater is not None and at < len(data):
            if self._inflater.decompress(data[at : at + 512], 1) or self._inflater.eof:
                self._inflater = None
            at += 512


def _behind(pieces: Iterator[bytes], skip: int) -> Iterator[bytes]:
    """What stands behind the first `skip` bytes."""
    for piece in pieces:
        if len(piece) > skip:
            yield piece[skip:]
        skip = max(skip - len(piece), 0)


def _inflate_exactly(
    path: str, source: str, compression: str, max_ratio: int | None, begun: int = 0, before: int = 0
) -> Generator[bytes, None, None]:
    """The same by zlib, up to the very byte that is at fault; from the member on that begins at byte `begun`, before
    which members gave so many bytes.
    """
    ratio, inflater, read = _Ratio(source, max_ratio, before), zlib.decompressobj(_WINDOW_BITS[compression]), begun
    for block in _blocks_from(path, begun):
        read += len(block)
        rest: bytes | memoryview = memoryview(block)
        more = True
        while more:
            if inflater.eof:
                begun = read - len(rest)
                if compression == ZLIB:
                    raise DataError(
                        "zlib data ends and something follows", source=source, place=f"byte {begun} of the file"
                    )
                inflater = zlib.decompressobj(_WINDOW_BITS[compression])
            # of the 40 KiB that it holds: zlib drops what it had inflated when it meets a fault
            kept = inflater.copy()
            try:
                piece = inflater.decompress(rest, _PIECE_BYTES)
            except zlib.error as error:
                yield from _up_to_fault(kept, rest)
                raise _damaged(compression, begun, source, error) from None
            rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            more = len(rest) > 0 or (len(piece) == _PIECE_BYTES and not inflater.eof)
            ratio.check(len(piece), read - len(rest))
            yield piece
    if not inflater.eof:
        raise _truncated(compression, begun, read, source)


def _blocks_from(path: str, begun: int) -> Iterator[Bytes]:
    """The file's blocks from a byte on, cut where they are cut from its beginning on."""
    edge = begun - begun % _INPUT_BYTES + _INPUT_BYTES
    yield from read_blocks(path, _INPUT_BYTES, begun, edge)
    yield from read_blocks(path, _INPUT_BYTES, edge)


def _up_to_fault(inflater: Any, data: bytes | memoryview) -> Iterator[bytes]:
    """What data becomes before the fault in it, byte by byte at last."""
    at, step = 0, 4096
    while step and at < len(data):
        before = inflater.copy()
        try:
            yield inflater.decompress(data[at : at + step])
            at += step
        except zlib.error:
            inflater, step = before, step // 16


def _damaged(compression: str, begun: int, source: str, error: zlib.error) -> DataError:
    what = (
        "damaged"
        if "header" not in str(error)
        else "damaged"
        if begun == 0
        else "damaged, or something that is none follows the end"
    )
    return DataError(
        f"{compression} data is {what} ({error})"[:250],
        source=source,
        place=f"{compression} member at byte {begun} of the file",
    )


def _truncated(compression: str, begun: int, size: int, source: str) -> DataError:
    return DataError(
        f"truncated: the {compression} data that begins at byte {begun} of the file has no end",
        source=source,
        place=f"byte {size} of the file",
    )


def _zstd(path: str, source: str, max_ratio: int | None) -> Generator[bytes, None, None]:
    if stat(path).size_bytes == 0:
        raise _truncated(ZSTD, 0, 0, source)
    ratio = _Ratio(source, max_ratio)
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
        return _truncated(ZSTD, 0, at, source)
    return DataError(
        f"zstd data is damaged, or something follows its end ({error})"[:250],
        source=source,
        place=f"before byte {at} of the file",
    )


def zlib_version() -> str:
    """The version of the zlib that makes gzip members in this process: another one may make other bytes."""
    return zlib.ZLIB_RUNTIME_VERSION


def gzip_member(data: bytes | memoryview | Bytes, level: int = GZIP_LEVEL) -> bytes:
    """One gzip member (RFC 1952) of this data: the same bytes at any time and on any system, by the same zlib.

    Members one after the other are a gzip file, and each can be read without the others, so a shard of such members
    keeps its random access and is written and read by many threads. No time, no name; the operating system is
    "unknown".
    """
    view = memoryview(data).cast("B")
    deflater = zlib.compressobj(level, zlib.DEFLATED, -15, 8)
    body = deflater.compress(view) + deflater.flush()
    return (
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
        + body
        + struct.pack("<II", zlib.crc32(view), len(view) & 0xFFFFFFFF)
    )
