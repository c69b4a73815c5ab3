"""Image files to chunks: bytes straight into one Arrow buffer, checked where they lie, with the digest of each file.

A file that fails its check is a reject, and the next ones are moved over it, so that the buffer has no gaps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from recordmill.base.errors import Reject
from recordmill.images.check import check_decode, check_each
from recordmill.images.header import BadImage, ImageHeader
from recordmill.images.names import EXTENSIONS
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.sources.images.side import FEATURES, feature_names
from recordmill.sources.inputs.contract import BATCH_BYTES, BATCH_FILES, Chunk
from recordmill.sources.inputs.tables import batch_of
from recordmill.storage.digest import chunk_digests, combine
from recordmill.storage.files import Bytes, read_all
from recordmill.storage.listed.files import FileTable, InputFile


def read_images(
    files: FileTable,
    ordinals: Sequence[int],
    schema: Schema,
    *,
    decode: bool,
    max_pixels: int,
) -> Iterator[Chunk]:
    """The files of these ordinals in chunks of about BATCH_BYTES; one larger file is a chunk of its own.

    Raises:
        DataError: a file changed since it was listed, or can't be read.
    """
    first = 0
    while first < len(ordinals):
        taken, size = batch_of(files, ordinals[first : first + BATCH_FILES], BATCH_BYTES)
        batch = _Batch(ordinals[first : first + len(taken)], taken, size)
        batch.check(decode, max_pixels)
        yield batch.finish(schema, files)
        first += len(taken)


class _Batch:
    """One chunk in the making."""

    def __init__(self, ordinals: Sequence[int], files: Sequence[InputFile], size_bytes: int) -> None:
        # Arrow's pool hands out memory that was used before, so that no page faults:
        # that is a third of the time of reading.
        self._buffer = pa.allocate_buffer(size_bytes)
        self._bytes = np.frombuffer(self._buffer, np.uint8) if size_bytes else np.empty(0, np.uint8)
        read_all([(file.path, file.stat, file.name) for file in files], self._bytes)
        self._listed = list(zip(ordinals, files, strict=True))
        self._ends = np.cumsum([file.stat.size_bytes for file in files], dtype=np.int64)
        self._headers: list[ImageHeader] = []
        self._ordinals: list[int] = []
        self._names: list[str] = []
        self._offsets = [0]
        self._rejects: list[Reject] = []
        self._digests: dict[int, str] = {}
        self._counts: Counter[str] = Counter()

    def check(self, decode: bool, max_pixels: int) -> None:
        """Digest all files, and keep those that are whole images."""
        headers = check_each(self._bytes, self._ends, max_pixels)
        starts = [0, *self._ends[:-1].tolist()]
        for (ordinal, file), header, start in zip(self._listed, headers, starts, strict=True):
            data = self._bytes[start : start + file.stat.size_bytes]
            self._digests[ordinal] = combine(chunk_digests(data))
            try:
                if isinstance(header, BadImage):
                    raise header
                if decode:
                    check_decode(data, header)
                self._keep(ordinal, file, header, data)
            except BadImage as error:
                self._rejects.append(Reject(file.name, "", error.reason, error.message))

    def _keep(self, ordinal: int, file: InputFile, header: ImageHeader, data: Bytes) -> None:
        end = self._offsets[-1] + len(data)
        if self._rejects:  # a gap, which no column may have
            self._bytes[self._offsets[-1] : end] = data
        self._offsets.append(end)
        self._headers.append(header)
        self._ordinals.append(ordinal)
        self._names.append(file.name)
        for trait in header.traits():
            self._counts[f"{header.format} with {trait}"] += 1
        if header.beyond_tensorflow:
            self._counts[header.kind] += 1
        extension = file.name.rpartition(".")[2].lower()
        if EXTENSIONS.get(extension, header.format) != header.format:
            self._counts[f"{header.format} named .{extension}"] += 1

    def finish(self, schema: Schema, files: FileTable) -> Chunk:
        rows = len(self._ordinals)
        target = to_arrow(schema)
        taken = files.take(self._ordinals, [FEATURES + name for name in feature_names(files)])
        columns = [taken[FEATURES + name] if FEATURES + name in taken else self._own(name) for name in schema.names]
        records = pa.RecordBatch.from_arrays(columns, schema=target)
        return Chunk(
            records,
            np.array(self._ordinals, np.uint32),
            np.zeros(rows, np.int64),
            tuple(self._rejects),
            self._digests,
            dict(sorted(self._counts.items())),
        )

    def _own(self, name: str) -> pa.Array:
        """A column that comes from the file itself; null for a feature that nothing gives (a schema may name one)."""
        if name == "image":
            offsets = np.array(self._offsets, np.int64)
            return pa.LargeBinaryArray.from_buffers(
                pa.large_binary(), len(self._ordinals), [None, pa.py_buffer(offsets), self._buffer]
            )
        if name == "source":
            return pa.array(self._names, pa.large_string())
        if name == "format":
            return pa.array([header.format for header in self._headers], pa.large_string())
        return pa.array([getattr(header, name) for header in self._headers], pa.int64())
