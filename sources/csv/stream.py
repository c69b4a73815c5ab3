"""A CSV file that can't be cut (compressed, or in another encoding than UTF-8) to UTF-8 blocks,
and blocks to rows, in bounded memory.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

import numpy as np

from recordmill.base.byte_masks import Bytes
from recordmill.base.errors import DataError
from recordmill.sources.csv.fields import Rows, Tokenizer
from recordmill.storage.compression import open_blocks
from recordmill.storage.listing import InputFile

UTF8 = "utf-8"

# The longer mark first: UTF-32's begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, UTF8),
)  # fmt: skip


def told_encoding(head: bytes, declared: str) -> str:
    """The encoding by the byte order mark if it has one and `declared` leaves it open, else the declared one.

    >>> told_encoding("a,b".encode("utf-16"), "utf-8"), told_encoding(b"a,b", "iso8859-1")
    ('utf-16', 'iso8859-1')
    """
    if declared in (UTF8, "utf-8-sig"):
        return next((encoding for mark, encoding in _MARKS if head.startswith(mark)), UTF8)
    return declared


def utf8_blocks(file: InputFile, compression: str, encoding: str, block_bytes: int) -> Iterator[Bytes]:
    """The file's content as UTF-8 in blocks of about block_bytes, without a byte order mark; each is the caller's own.

    Raises:
        DataError: the compressed data is damaged, or the content can't be decoded; it names the line.
    """
    blocks = open_blocks(file.path, block_bytes=block_bytes, compression=compression, source=file.name)
    if encoding != UTF8:
        yield from _decode(blocks, encoding, file.name)
        return
    first = True
    for block in blocks:
        yield block[3:] if first and block[:3].tobytes() == codecs.BOM_UTF8 else block
        first = False


def _decode(blocks: Iterator[Bytes], encoding: str, source: str) -> Iterator[Bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    line, after_cr = 1, False
    for block, final in _with_end(blocks):
        try:
            data = decoder.decode(block.tobytes(), final).encode()
        except UnicodeError as error:
            if isinstance(error, UnicodeDecodeError):
                good = bytes(error.object[: error.start]).decode(encoding, "ignore").encode()
                line += _line_ends(good, after_cr)[0]
            raise DataError(
                f"can't be decoded as {encoding} ({str(error)[:150]}); declare its --encoding",
                source=source,
                place=f"line {line}",
            ) from None
        ends, after_cr = _line_ends(data, after_cr)
        line += ends
        if data:
            yield np.frombuffer(bytearray(data), np.uint8)


def _with_end(blocks: Iterator[Bytes]) -> Iterator[tuple[Bytes, bool]]:
    for block in blocks:
        yield block, False
    yield np.empty(0, np.uint8), True


def _line_ends(data: bytes, after_cr: bool) -> tuple[int, bool]:
    """(how many physical lines end in the data, whether it ends with CR, so that an LF to come ends no other)."""
    count = data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n") - (after_cr and data.startswith(b"\n"))
    return count, data.endswith(b"\r") if data else after_cr


def read_rows(
    tokenizer: Tokenizer, blocks: Iterator[Bytes], at: int, line: int, chunk_bytes: int
) -> Iterator[tuple[Bytes, Rows]]:
    """(buffer, rows in it) for all rows of the blocks, which make one file, from byte `at` on,
    which lies in the first `line`.

    At most chunk_bytes of rows at once. The buffer holds one row more than a block at most, and must be used before the
    next is asked for.
    """
    data: Bytes | None = np.empty(0, np.uint8)
    while data is not None and len(data) <= at:  # `at` may lie behind the first block
        at -= len(data)
        data = next(blocks, None)
    if data is None:
        return
    following = next(blocks, None)
    skipping = False
    while True:
        rows = tokenizer.read(
            data, at, min(at + chunk_bytes, len(data)), final=following is None, line=line, skipping=skipping
        )
        if rows.count:
            yield data, rows
        stuck = rows.stop == at or rows.stop >= len(data)
        at, line, skipping = rows.stop, rows.line, rows.skipping
        if not stuck:
            continue
        if following is None:
            return
        data, at = np.concatenate([data[at:], following]), 0
        following = next(blocks, None)
