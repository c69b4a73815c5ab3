"""Text files of any compression and encoding as blocks of UTF-8.

The first bytes of a file determine its compression. If the declared encoding is UTF-8, the default,
a byte order mark of UTF-8, UTF-16 or UTF-32 determines the encoding.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from recordmill.base.errors import DataError
from recordmill.base.magic import (
    may_be_text,
    sniff_file_format,
    sniff_image,
    sniff_unsupported_image,
)
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.sources.common.contract import BATCH_BYTES
from recordmill.storage.codecs import MAX_RATIO, UNCOMPRESSED, ZLIB, find_codec
from recordmill.storage.compression import (
    AUTO_COMPRESSION,
    COMPRESSED_HEAD_BYTES,
    detect_compression,
    open_blocks,
)
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import Bytes, read_range

UTF8_ENCODING = "utf-8"

# Longer marks come first, because the mark of UTF-32 begins with the mark of UTF-16.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, UTF8_ENCODING),
)


# Common encodings with several bytes per character. Within a family, a wider encoding is suggested
# only if the narrower ones can't decode the file.
_MULTI_BYTE_FAMILIES = (
    ("euc_jp",),
    ("shift_jis", "cp932"),
    ("big5", "cp950", "big5hkscs"),
    ("gb18030",),
    ("euc_kr", "cp949"),
)
_SINGLE_BYTE_ENCODINGS = ("cp1252", "latin-1")
# Half-width Katakana have one byte in cp932. Other encodings use these bytes for Cyrillic, Arabic
# or Thai.
_HALF_WIDTH_KATAKANA = re.compile(r"[\uff61-\uff9f]")
# ISO 8859, Windows and KOI8 encodings have the letters of Hebrew, Arabic, Greek or Cyrillic in a
# range of 64 byte values.
_MAX_ALPHABET_SPAN = 64
_NOT_ASCII = re.compile(r"[^\0-\x7f]+")
# 8 MiB of content: text in another encoding does not decode by accident up to here.
_MAX_TRIAL_BYTES = 8 << 20


def resolve_encoding(head: bytes, declared_encoding: str) -> str:
    """Returns the encoding of a file from its first bytes.

    If the declared encoding is UTF-8, a byte order mark overrides it. Any other declared encoding
    is returned as it is.

    >>> resolve_encoding("a,b".encode("utf-16"), "utf-8"), resolve_encoding(b"a,b", "iso8859-1")
    ('utf-16', 'iso8859-1')
    """
    if declared_encoding in (UTF8_ENCODING, "utf-8-sig"):
        return next(
            (encoding for mark, encoding in _BYTE_ORDER_MARKS if head.startswith(mark)),
            UTF8_ENCODING,
        )
    return declared_encoding


def resolve_compression(head: bytes) -> str:
    r"""Returns the compression of a text file from its first bytes.

    The header of zlib consists of two bytes that a text may begin with (`x^2`). So a file smaller
    than COMPRESSED_HEAD_BYTES must be a complete zlib stream.

    >>> import zlib
    >>> resolve_compression(b"x^2,y\n1,2\n"), resolve_compression(zlib.compress(b"a,b\n"))
    ('none', 'zlib')

    Args:
        head: The first COMPRESSED_HEAD_BYTES, or the complete file if it is shorter.
    """
    compression = detect_compression(head)
    if compression == ZLIB and len(head) < COMPRESSED_HEAD_BYTES:
        _, is_complete = find_codec(ZLIB).algorithm.decompress_head(
            head, 2 * MAX_RATIO * COMPRESSED_HEAD_BYTES
        )
        return ZLIB if is_complete else UNCOMPRESSED
    return compression


def describe_non_text(head: bytes) -> str:
    """Returns a description such as `a PNG image; use ...` if the content is certainly not text.

    The result is "" if it may be text.
    """
    if (file_format := sniff_file_format(head)) is not None:
        return file_format.description
    image_format = None if may_be_text(head) else sniff_image(head) or sniff_unsupported_image(head)
    return f"a {image_format} image; use `build images`" if image_format else ""


def is_plain_utf8(file: InputFile, declared_encoding: str) -> bool:
    """Returns whether a file is uncompressed UTF-8.

    Only such a file can be divided into byte ranges.

    Args:
        file: The file. Only its first bytes are read.
        declared_encoding: The encoding according to the user.

    Raises:
        DataError: The first bytes show that the file is not text.
    """
    head = read_range(file.path, 0, COMPRESSED_HEAD_BYTES).tobytes()
    if description := describe_non_text(head):
        raise DataError(f"this is not text but {description}", source=file.name)
    return (
        resolve_compression(head) == UNCOMPRESSED
        and resolve_encoding(head, declared_encoding) == UTF8_ENCODING
    )


def read_utf8_blocks(
    file: InputFile,
    declared_encoding: str,
    block_bytes: int = BATCH_BYTES,
    compression: str = AUTO_COMPRESSION,
) -> Iterator[Bytes]:
    """Yields the content of a file as UTF-8, without a byte order mark.

    Each block is a new array that the caller may change. If the file is UTF-8 itself, its bytes are
    not validated.

    Args:
        file: The file to read.
        declared_encoding: The encoding according to the user.
        block_bytes: Approximate size of a block.
        compression: The compression, or AUTO_COMPRESSION to detect it.

    Raises:
        DataError: The compressed data is damaged, or the content can't be decoded. In the second
            case the message names the line.
    """
    if compression == AUTO_COMPRESSION:
        compression = resolve_compression(read_range(file.path, 0, COMPRESSED_HEAD_BYTES).tobytes())
    blocks = open_blocks(
        file.path, block_bytes=block_bytes, compression=compression, source=file.name
    )
    return strip_byte_order_mark(_decode_blocks(blocks, declared_encoding, file))


def decode_to_utf8_blocks(data: Bytes, declared_encoding: str, file: InputFile) -> Iterator[Bytes]:
    """Yields UTF-8 blocks as `read_utf8_blocks` does, from the bytes of an uncompressed file.

    Args:
        data: The complete content of the file.
        declared_encoding: The encoding according to the user.
        file: The file, for messages.

    Raises:
        DataError: The content can't be decoded.
    """
    return strip_byte_order_mark(
        _decode_blocks(iter((data,) if len(data) else ()), declared_encoding, file)
    )


@functools.lru_cache(maxsize=256)
def suggest_encodings(file: InputFile) -> str:
    """Finds encodings that can decode a file that is not UTF-8.

    Each encoding is tried on the complete file, or on its first _MAX_TRIAL_BYTES.

    Returns:
        The end of an error message, such as `: cp1252 and latin-1 decode all of it`. It is "" if
        most of the file is valid UTF-8, because another encoding is not the problem then.
    """
    compression = resolve_compression(read_range(file.path, 0, COMPRESSED_HEAD_BYTES).tobytes())
    candidates = [name for family in _MULTI_BYTE_FAMILIES for name in family] + list(
        _SINGLE_BYTE_ENCODINGS
    )
    decoders = {name: codecs.getincrementaldecoder(name)() for name in candidates}
    num_bytes = num_high = num_single = num_in_utf8 = 0
    bytes_seen = set[int]()
    # By encoding: number of half-width Katakana minus number of other non-ASCII characters.
    katakana = Counter[str]()
    blocks = open_blocks(
        file.path, block_bytes=BATCH_BYTES, compression=compression, source=file.name
    )
    for block, is_final in _append_final_block(blocks):
        data = block.tobytes()
        bytes_seen.update(data)
        # Lengths of the runs of bytes outside of ASCII.
        run_lengths = [len(run) for run in re.findall(rb"[\x80-\xff]+", data)]
        num_high += sum(run_lengths)
        num_single += sum(length == 1 for length in run_lengths)
        num_in_utf8 += sum(
            len(run.encode()) for run in _NOT_ASCII.findall(data.decode(errors="ignore"))
        )
        for name in [*decoders]:
            try:
                text = decoders[name].decode(data, is_final)
                katakana[name] += 2 * len(_HALF_WIDTH_KATAKANA.findall(text)) - sum(
                    map(len, _NOT_ASCII.findall(text))
                )
            except UnicodeDecodeError:
                del decoders[name]
        num_bytes += len(data)
        if num_bytes >= _MAX_TRIAL_BYTES and not is_final:
            break
    # Most of the file is UTF-8, so another encoding is not the problem.
    if 2 * num_in_utf8 > num_high:
        return ""
    multi_byte_names = [
        encoding
        for family in _MULTI_BYTE_FAMILIES
        if (encoding := next((n for n in family if n in decoders), None))
    ]
    single_byte_names = [name for name in _SINGLE_BYTE_ENCODINGS if name in decoders]
    # The letters of one alphabet span few byte values in a single-byte encoding. A multi-byte
    # encoding uses more byte values, unless the file has only a few such words.
    high_bytes = [byte for byte in bytes_seen if byte >= 0x80]
    may_be_alphabet = bool(high_bytes) and max(high_bytes) - min(high_bytes) < _MAX_ALPHABET_SPAN
    # The bytes of a multi-byte character are never alone. Single-byte letters outside of ASCII
    # rarely occur next to each other.
    if 2 * num_single > num_high:
        suggestions = [*single_byte_names, *multi_byte_names]
    elif any(katakana[name] <= 0 for name in multi_byte_names) and not may_be_alphabet:
        suggestions = (
            multi_byte_names
            if 4 * num_single <= num_high
            else [*multi_byte_names, *single_byte_names]
        )
    else:
        suggestions = [*multi_byte_names, *single_byte_names, "others of one byte a character"]
    name_list = " and ".join(
        [", ".join(suggestions[:-1]), suggestions[-1]] if len(suggestions) > 1 else suggestions
    )
    verb = "decode" if len(suggestions) > 1 else "decodes"
    return f": {name_list} {verb} all of " + (
        "it" if num_bytes < _MAX_TRIAL_BYTES else f"its first {_MAX_TRIAL_BYTES >> 20} MiB"
    )


def strip_byte_order_mark(blocks: Iterator[Bytes]) -> Iterator[Bytes]:
    """Yields UTF-8 blocks without the byte order mark at their beginning."""
    for index, block in enumerate(blocks):
        # Only the first block can begin with a mark. The same bytes later in the file are text.
        yield block[3:] if index == 0 and block[:3].tobytes() == codecs.BOM_UTF8 else block


def _decode_blocks(
    blocks: Iterator[Bytes], declared_encoding: str, file: InputFile
) -> Iterator[Bytes]:
    """Converts blocks in any encoding to UTF-8.

    Raises:
        DataError: A character can't be decoded. The message names its line.
    """
    encoding, decoder = "", None
    line_number, ends_with_cr = 1, False
    for block, is_final in _append_final_block(blocks):
        if not encoding:
            # A byte order mark has at most four bytes.
            encoding = resolve_encoding(block[:4].tobytes(), declared_encoding)
            decoder = (
                None
                if encoding == UTF8_ENCODING
                else codecs.getincrementaldecoder(encoding)("strict")
            )
        if decoder is None:
            if not is_final:
                yield block
            continue
        try:
            data = decoder.decode(block.tobytes(), is_final).encode()
        except UnicodeError as error:
            if isinstance(error, UnicodeDecodeError):
                decoded_part = (
                    bytes(error.object[: error.start]).decode(encoding, "ignore").encode()
                )
                line_number += _count_line_ends(decoded_part, ends_with_cr)[0]
            raise DataError(
                _decode_error_message(encoding, error, file),
                source=file.name,
                place=f"line {line_number}",
            ) from None
        num_line_ends, ends_with_cr = _count_line_ends(data, ends_with_cr)
        line_number += num_line_ends
        if data:
            # A bytearray makes the block writable, because the caller owns it.
            yield np.frombuffer(bytearray(data), np.uint8)


def _decode_error_message(encoding: str, error: UnicodeError, file: InputFile) -> str:
    # Python before 3.13 raises this as a plain UnicodeError, without a position.
    if "not start with BOM" in str(error):
        return Message(
            "has no byte order mark, which {encoding} needs; declare {little_endian} or {encoding}-be",
            encoding=encoding,
            little_endian=option("encoding", f"{encoding}-le"),
        )
    return Message(
        "can't be decoded as {encoding} ({error}); declare its {encoding_option}{suggest_encodings}",
        encoding=encoding,
        error=str(error)[:150],
        encoding_option=option("encoding"),
        suggest_encodings=suggest_encodings(file),
    )


def _append_final_block(blocks: Iterator[Bytes]) -> Iterator[tuple[Bytes, bool]]:
    """Yields (block, False) for each block, and then (an empty block, True).

    The decoders need such a last call, which reports an incomplete character.
    """
    for block in blocks:
        yield block, False
    yield np.empty(0, np.uint8), True


def _count_line_ends(data: bytes, ends_with_cr: bool) -> tuple[int, bool]:
    """Counts the line ends in a block of text.

    A line ends with LF, CR or CRLF. A CRLF at the border of two blocks counts once.

    Args:
        data: The block.
        ends_with_cr: Whether the previous block ended with a carriage return.

    Returns:
        (number of line ends, whether the text so far ends with a carriage return).
    """
    count = (
        data.count(b"\n")
        + data.count(b"\r")
        - data.count(b"\r\n")
        - (ends_with_cr and data.startswith(b"\n"))
    )
    return count, data.endswith(b"\r") if data else ends_with_cr
