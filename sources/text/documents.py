"""Whole text files in, chunks of one record per file out: `text` and `source`, the file's name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError, Reject
from recordmill.base.option_names import option
from recordmill.base.utf8 import first_bad_byte, is_utf8
from recordmill.sources.inputs.contract import BATCH_BYTES, BATCH_FILES, Chunk
from recordmill.sources.inputs.encoding import told_compression, utf8_blocks, utf8_of
from recordmill.sources.inputs.magic import LOOKED_AT, refusal
from recordmill.sources.inputs.tables import batch_of
from recordmill.sources.text.line_records import TextColumns
from recordmill.storage.codecs import NONE
from recordmill.storage.compression import COMPRESSED_HEAD_BYTES
from recordmill.storage.digest import chunk_digests, combine, digest_file
from recordmill.storage.files import Bytes, check_unchanged, read_each, read_range
from recordmill.storage.listed.files import FileTable, InputFile

_HEAD_BYTES = max(COMPRESSED_HEAD_BYTES, LOOKED_AT)


def read_documents(
    files: FileTable, ordinals: Sequence[int], columns: TextColumns, encoding: str, max_bytes: int
) -> Iterator[Chunk]:
    """The files of these ordinals, in this order, with their digests."""
    first = 0
    while first < len(ordinals):
        taken, size = batch_of(files, ordinals[first : first + BATCH_FILES], BATCH_BYTES)
        held = _Held(columns)
        for ordinal, file, data in zip(ordinals[first:], taken, _contents(taken, size), strict=False):
            held.take(ordinal, file.name, _document(file, data, encoding, max_bytes))
            held.digests[ordinal] = digest_file(file.path) if data is None else combine(chunk_digests(data))
            if data is None:
                check_unchanged(file.path, file.stat, file.name)
        yield held.chunk()
        first += len(taken)


def _contents(files: Sequence[InputFile], size: int) -> Iterator[Bytes | None]:
    """All bytes of each file; None of one that is too large to be held, which is then still the one that was planned.
    size: of all together, in bytes.

    Raises:
        DataError: a file changed since it was listed, or can't be read.
    """
    if size <= BATCH_BYTES:
        yield from read_each([(file.path, file.stat, file.name) for file in files], np.empty(size, np.uint8))
        return
    for file in files:
        check_unchanged(file.path, file.stat, file.name)
        yield None


class _Held:
    def __init__(self, columns: TextColumns) -> None:
        self.columns = columns
        self.texts: list[Bytes] = []
        self.ordinals: list[int] = []
        self.names: list[str] = []
        self.rejects: list[Reject] = []
        self.digests: dict[int, str] = {}

    def take(self, ordinal: int, name: str, text: Bytes | Reject) -> None:
        if isinstance(text, Reject):
            self.rejects.append(text)
            return
        self.texts.append(text)
        self.ordinals.append(ordinal)
        self.names.append(name)

    def chunk(self) -> Chunk:
        offsets = np.zeros(len(self.texts) + 1, np.int64)
        np.cumsum([len(text) for text in self.texts], out=offsets[1:])
        values = np.concatenate(self.texts) if self.texts else np.empty(0, np.uint8)
        texts = pa.Array.from_buffers(
            pa.large_string(), len(self.texts), [None, pa.py_buffer(offsets), pa.py_buffer(values)]
        )
        files = np.array(self.ordinals, np.uint32)
        return Chunk(
            self.columns.batch(texts, files, self.names),
            files,
            np.zeros(len(files), np.int64),
            tuple(self.rejects),
            self.digests,
        )


def _document(file: InputFile, data: Bytes | None, encoding: str, max_bytes: int) -> Bytes | Reject:
    """The file's text as UTF-8, without its byte order mark, or why it is none. data: all its bytes, or None."""
    head = (read_range(file.path, 0, _HEAD_BYTES) if data is None else data[:_HEAD_BYTES]).tobytes()
    if what := refusal(head):
        return Reject(file.name, "", "binary", f"is no text but {what}")
    plain = data if told_compression(head) == NONE else None
    pieces, size = [], 0
    try:
        for block in utf8_blocks(file, encoding) if plain is None else utf8_of(plain, encoding, file.name):
            pieces.append(block)
            size += len(block)
            if size > max_bytes:
                return Reject(
                    file.name,
                    "",
                    "too_long",
                    f"the document has more than the {max_bytes:,} bytes that {option('max_line_bytes')} allows",
                )
    except DataError as error:
        return Reject(file.name, error.place, "encoding", error.marked_reason)
    text = pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
    if is_utf8(text):
        return text
    bad = first_bad_byte(text, 0, len(text))
    line = int(np.count_nonzero(text[:bad] == 10)) + 1
    return Reject(
        file.name,
        f"line {line}, byte {bad}",
        "encoding",
        f"is not UTF-8: byte 0x{text[bad]:02X} at byte {bad}; declare the file's {option('encoding')}",
    )
