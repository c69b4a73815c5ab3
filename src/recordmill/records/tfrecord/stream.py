"""Reads TFRecord files of any size and compression as batches of checked frames; memory is bounded by the batch and the
largest record.

Compression is told by content. The uncompressed reading comes first: where the first 12 bytes are a TFRecord header
whose CRC is right, they are that, although a record of 35,615 bytes begins with gzip's magic number. `read_good_frames`
reads on after what is damaged: after a payload where its header says, after a header at the next one with a right CRC;
after damaged compressed data nothing can be read, and the last gap says so.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from recordmill.base import native
from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError
from recordmill.records.tfrecord.frames import (
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    Frames,
    try_scan_frames,
)
from recordmill.storage.codecs import MAX_RATIO, UNCOMPRESSED, find_codec
from recordmill.storage.compression import (
    AUTO_COMPRESSION,
    COMPRESSED_HEAD_BYTES,
    ByteStream,
    detect_compression,
    open_stream,
)
from recordmill.storage.files import read_range

# kinds of gaps: a payload's CRC, anything else of a frame, the compressed data
PAYLOAD_GAP, FRAME_GAP, STREAM_GAP = ("crc", "frame", "compression")
# 8 MiB: large enough for the fixed costs to vanish, small enough to stay in the last-level cache until it is decoded
READ_BATCH_BYTES = 8 << 20


@dataclass(frozen=True)
class Gap:
    """Bytes [first_offset, first_offset + size_bytes) of the uncompressed file, which hold no good frame; it counts as
    one record, first_record.

    kind: one of DATA, FRAME_GAP and STREAM_GAP. reason: what is wrong, in words.
    """

    first_record: int
    first_offset: int
    size_bytes: int
    kind: str
    reason: str


def first_frame_bytes(data: Bytes) -> int:
    """Returns the bytes of the frame, whose header was checked, that rest begins with; of a header at least."""
    if len(data) < HEADER_BYTES:
        return HEADER_BYTES
    return int.from_bytes(data[:8].tobytes(), "little") + FRAME_OVERHEAD_BYTES


def find_resume_offset(
    data: Bytes,
    offset: int,
    *,
    max_record_bytes: int = MAX_RECORD_BYTES,
    is_final: bool = True,
    next_offset: int | None = None,
) -> tuple[str, int]:
    """Returns (kind, the byte of data where reading goes on) for a frame at byte `at` that a scan has refused.

    kind: DATA if the header is right and the whole frame is here, so that only the payload's CRC can be wrong, else
    FRAME_GAP. whole: what is found has to fit the data. known: where an index says that the next record begins; without
    it, a damaged header costs all up to the next one that is right, or up to the data's end.
    """
    is_sound = native.next_frame(data, offset, max_record_bytes, True) == offset
    kind = PAYLOAD_GAP if is_sound else FRAME_GAP
    if next_offset is not None:
        return kind, next_offset
    return kind, offset + first_frame_bytes(data[offset:]) if is_sound else native.next_frame(
        data, offset + 1, max_record_bytes, is_final
    )


def add_skipped_bytes(reason: str, kind: str, size_bytes: int) -> str:
    """Returns the reason of a gap, with the bytes to the next frame unless the damaged one's end is known."""
    return (
        f"{reason}; skipped {size_bytes} bytes"
        if kind != PAYLOAD_GAP and size_bytes > 0
        else reason
    )


@dataclass(frozen=True)
class FrameBatch(Frames):
    """Consecutive frames of a file: the first record's number and data[0]'s offset, uncompressed."""

    first_record: int
    first_offset: int


def detect_tfrecord_compression(head: bytes) -> str:
    """`none`, `gzip`, `zlib`, `zstd`, `bz2` or `xz`, by the first `COMPRESSED_HEAD_BYTES` bytes of a TFRecord file."""
    return UNCOMPRESSED if _is_header(head) else detect_compression(head)


def _is_header(head: bytes) -> bool:
    header = np.frombuffer(head[:HEADER_BYTES], np.uint8)
    return len(head) >= HEADER_BYTES and native.next_frame(header, 0, (1 << 63) - 1, False) == 0


def read_frames(
    path: str,
    *,
    source: str | None = None,
    batch_bytes: int = READ_BATCH_BYTES,
    max_record_bytes: int = MAX_RECORD_BYTES,
    checks_payloads: bool = True,
    compression: str = AUTO_COMPRESSION,
    max_ratio: int | None = MAX_RATIO,
) -> Iterator[FrameBatch]:
    """Yields the file's frames in order, in batches of about batch_bytes; a record larger than that is a batch with as
    much room as it needs.

    Frames before a damaged one are given before the error is raised. Each batch has memory of its own.

    Args:
        source: the file's name for messages, if it is another than path.
        check: also the payloads' CRCs; the headers' are always checked.
        compression: `none`, `gzip`, `zlib`, `zstd`, `bz2`, `xz`, or `auto`: by content.

    Raises:
        DataError: damaged, truncated, a record above max_record_bytes; it names source, record number and byte offset.
        OSError: as the operating system says it.
    """
    source = path if source is None else source
    if compression == AUTO_COMPRESSION:
        compression = detect_tfrecord_compression(
            read_range(path, 0, COMPRESSED_HEAD_BYTES).tobytes()
        )
    search = _FrameSearch(
        source,
        max_record_bytes=max_record_bytes,
        checks_payloads=checks_payloads,
        compression=compression,
    )
    with open_stream(path, compression=compression, source=source, max_ratio=max_ratio) as stream:
        for part in _search_stream(stream, search, batch_bytes):
            assert isinstance(part, FrameBatch)
            yield part


def read_good_frames(
    path: str, *, compression: str, batch_bytes: int = READ_BATCH_BYTES
) -> Iterator[FrameBatch | Gap]:
    """Yields the file's good frames in order, and each gap where it stands.

    Raises:
        OSError: as the operating system says it.
    """
    with open_stream(path, compression=compression, source=path) as stream:
        yield from _search_stream(
            stream,
            _FrameSearch(
                path,
                max_record_bytes=MAX_RECORD_BYTES,
                checks_payloads=True,
                compression=compression,
                is_lenient=True,
            ),
            batch_bytes,
        )


def _search_stream(
    stream: ByteStream, search: _FrameSearch, batch_bytes: int
) -> Iterator[FrameBatch | Gap]:
    """Fills a buffer, scans it, and takes what is left of a frame over into the next; twice the room where not one
    frame is whole: a length is only believed as far as bytes arrive for it.
    """
    leftover, buffer_bytes, is_ended = np.empty(0, np.uint8), batch_bytes, False
    while not is_ended:
        buffer = np.empty(buffer_bytes, np.uint8)
        buffer[: len(leftover)] = leftover
        count = stream.fill(buffer[len(leftover) :])
        is_ended = count < buffer_bytes - len(leftover)
        data = buffer[: len(leftover) + count]
        consumed = yield from search.find_frames(data, is_final=is_ended and stream.error is None)
        leftover = data[consumed:]
        is_incomplete = consumed == 0 and not search.is_searching
        buffer_bytes = (
            min(
                max(2 * buffer_bytes, FRAME_OVERHEAD_BYTES),
                max(first_frame_bytes(leftover), FRAME_OVERHEAD_BYTES),
            )
            if is_incomplete
            else max(batch_bytes, 2 * HEADER_BYTES)
        )
    if stream.error is not None:
        yield from search.end_at_error(len(leftover), stream.error)


class _FrameSearch:
    """State of a search for frames: how far it is, and its open gap; if not lenient, the first fault is raised."""

    def __init__(
        self,
        source: str,
        max_record_bytes: int,
        checks_payloads: bool,
        compression: str,
        *,
        is_lenient: bool = False,
    ) -> None:
        self._source, self._max_record_bytes, self._checks_payloads, self._is_lenient = (
            source,
            max_record_bytes,
            checks_payloads,
            is_lenient,
        )
        self._is_plain = find_codec(compression).is_plain
        self._record_number = self._offset = 0  # of the next frame
        self._gap: tuple[int, str] | None = None  # where it begins, and why

    @property
    def is_searching(self) -> bool:
        return self._gap is not None

    def find_frames(self, data: Bytes, is_final: bool) -> Generator[FrameBatch | Gap, None, int]:
        """Yields the frames and gaps in data; returns how many of its bytes are done with."""
        position, begin_offset = 0, self._offset
        next_offset = (
            native.next_frame(data, 0, self._max_record_bytes, is_final)
            if self._gap is not None
            else 0
        )
        while True:
            if self._gap is not None:
                if next_offset == len(data):
                    position = (
                        len(data) if is_final else max(len(data) - HEADER_BYTES + 1, position)
                    )  # a header may be cut in two
                    self._offset = begin_offset + position
                    if is_final:
                        yield self._close_gap()
                    return position
                position, self._offset = next_offset, begin_offset + next_offset
                yield self._close_gap()
            frames, consumed, error = try_scan_frames(
                data[position:],
                source=self._source,
                first_record=self._record_number,
                first_offset=self._offset,
                max_record_bytes=self._max_record_bytes,
                is_final=is_final,
                checks_payloads=self._checks_payloads,
            )
            if len(frames):
                yield FrameBatch(
                    data=frames.data,
                    starts=frames.starts,
                    lengths=frames.lengths,
                    crcs=frames.crcs,
                    first_record=self._record_number,
                    first_offset=self._offset,
                )
            self._record_number, position, self._offset = (
                self._record_number + len(frames),
                position + consumed,
                self._offset + consumed,
            )
            if error is None:
                return position
            if not self._is_lenient:
                place = error.place if self._is_plain else f"{error.place} of the uncompressed data"
                raise DataError(error.reason, source=error.source, place=place)
            kind, next_offset = find_resume_offset(
                data, position, max_record_bytes=self._max_record_bytes, is_final=is_final
            )
            if kind == PAYLOAD_GAP:
                yield Gap(
                    first_record=self._record_number,
                    first_offset=self._offset,
                    size_bytes=next_offset - position,
                    kind=PAYLOAD_GAP,
                    reason=error.reason,
                )
                self._record_number, position, self._offset = (
                    self._record_number + 1,
                    next_offset,
                    begin_offset + next_offset,
                )
            else:
                self._gap = self._offset, error.reason

    def _close_gap(self) -> Gap:
        """Returns the open gap, which ends here."""
        assert self._gap is not None
        begin, reason = self._gap
        gap = Gap(
            first_record=self._record_number,
            first_offset=begin,
            size_bytes=self._offset - begin,
            kind=FRAME_GAP,
            reason=reason,
        )
        self._record_number, self._gap = self._record_number + 1, None
        return gap

    def end_at_error(self, size: int, error: DataError) -> Iterator[Gap]:
        """Yields the end of a stream that broke, with `size` bytes of a frame that is not whole."""
        if not self._is_lenient:
            raise error
        if self._gap is not None:
            self._offset, size = self._offset + size, 0
            yield self._close_gap()
        reason = f"{error.place}: {error.reason}; what is behind it is lost"
        yield Gap(
            first_record=self._record_number,
            first_offset=self._offset,
            size_bytes=size,
            kind=STREAM_GAP,
            reason=reason,
        )
