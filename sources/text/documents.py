"""Whole text files in, chunks of one record per file out: `text` and `source`, the file's name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError, Reject
from recordmill.base.utf8 import first_bad_byte, is_utf8
from recordmill.sources.inputs.contract import BATCH_BYTES, BATCH_FILES, Chunk
from recordmill.sources.inputs.encoding import utf8_blocks
from recordmill.sources.inputs.magic import LOOKED_AT, refusal
from recordmill.sources.text.line_records import TextColumns
from recordmill.storage.digest import digest_file
from recordmill.storage.files import Bytes, ahead, check_unchanged, read_range
from recordmill.storage.listed.files import InputFile


def read_documents(
    files: Sequence[InputFile], ordinals: Sequence[int], columns: TextColumns, encoding: str, max_bytes: int
) -> Iterator[Chunk]:
    """The files of these ordinals, in this order, with their digests."""
    held = _Held(columns)
    coming = ahead(ordinals, lambda ordinal: (files[ordinal].path, files[ordinal].stat))
    for ordinal in coming:
        file = files[ordinal]
        check_unchanged(file.path, file.stat, file.name)
        text = _document(file, encoding, max_bytes)
        held.digests[ordinal] = digest_file(file.path)
        check_unchanged(file.path, file.stat, file.name)
        if isinstance(text, Reject):
            held.rejects.append(text)
        else:
            held.add(ordinal, file.name, text)
        if held.size >= BATCH_BYTES or len(held.digests) >= BATCH_FILES:
            yield held.chunk()
            held = _Held(columns)
    if held.digests:
        yield held.chunk()


class _Held:
    def __init__(self, columns: TextColumns) -> None:
        self.columns = columns
        self.texts: list[Bytes] = []
        self.ordinals: list[int] = []
        self.names: list[str] = []
        self.rejects: list[Reject] = []
        self.digests: dict[int, str] = {}
        self.size = 0

    def add(self, ordinal: int, name: str, text: Bytes) -> None:
        self.texts.append(text)
        self.ordinals.append(ordinal)
        self.names.append(name)
        self.size += len(text)

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


def _document(file: InputFile, encoding: str, max_bytes: int) -> Bytes | Reject:
    """The file's text as UTF-8, without its byte order mark, or why it is none."""
    if what := refusal(read_range(file.path, 0, LOOKED_AT).tobytes()):
        return Reject(file.name, "", "binary", f"is no text but {what}")
    pieces, size = [], 0
    try:
        for block in utf8_blocks(file, encoding):
            pieces.append(block)
            size += len(block)
            if size > max_bytes:
                return Reject(
                    file.name,
                    "",
                    "too_long",
                    f"the document has more than the {max_bytes:,} bytes that --max-line-bytes allows",
                )
    except DataError as error:
        return Reject(file.name, error.place, "encoding", error.reason)
    text = pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
    if is_utf8(text):
        return text
    bad = first_bad_byte(text, 0, len(text))
    line = int(np.count_nonzero(text[:bad] == 10)) + 1
    return Reject(
        file.name,
        f"line {line}, byte {bad}",
        "encoding",
        f"is not UTF-8: byte 0x{text[bad]:02X} at byte {bad}; declare the file's --encoding",
    )
