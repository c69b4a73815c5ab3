"""Reads TFRecord files of any size and compression as batches of checked frames.

The memory is bounded by the batch size and the largest record.

The compression is detected from the content. A file is uncompressed if its first 12 bytes are a
TFRecord header with a correct CRC. This is tested first, because the length of a record of 35,615
bytes begins with the magic number of gzip.

`read_good_frames` continues after damage. After a damaged payload it continues at the offset that
the header specifies. After a damaged header it continues at the next header with a correct CRC.
Nothing can be read after damaged compressed data, and the last gap reports this.
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

# kinds of gaps: a wrong payload CRC, any other damage of a frame, and damaged compressed data
PAYLOAD_GAP, FRAME_GAP, STREAM_GAP = ("crc", "frame", "compression")
# 8 MiB. Fixed costs no longer matter, and a batch stays in the last-level cache until it is
# decoded.
READ_BATCH_BYTES = 8 << 20


@dataclass(frozen=True)
class Gap:
    """A range of the uncompressed file without any good frame.

    A gap counts as one record.

    Attributes:
        first_record: The number of the record that the gap replaces.
        first_offset: The first byte of the gap, in the uncompressed file.
        size_bytes: The size of the gap.
        kind: PAYLOAD_GAP, FRAME_GAP or STREAM_GAP.
        reason: The error message.
    """

    first_record: int
    first_offset: int
    size_bytes: int
    kind: str
    reason: str


def first_frame_bytes(data: Bytes) -> int:
    """Returns the size of the first frame in `data`, from its header.

    The header was checked before. If less than a header is left, the result is the size of a
    header.
    """
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
    """Finds the offset to continue reading after a frame that a scan has refused.

    Args:
        data: uint8 [bytes].
        offset: The offset of the refused frame in `data`.
        max_record_bytes: The limit for the size of a payload.
        is_final: The next frame must be complete in `data`.
        next_offset: The offset of the next record if an index knows it. None searches for the next
            correct header.

    Returns:
        The kind of the gap, and the offset. The kind is PAYLOAD_GAP if the header is correct and
        the frame is complete, so that only the CRC of the payload can be wrong. Otherwise it is
        FRAME_GAP, and the offset is the end of `data` if there is no other frame.
    """
    is_sound = native.next_frame(data, offset, max_record_bytes, True) == offset
    kind = PAYLOAD_GAP if is_sound else FRAME_GAP
    if next_offset is not None:
        return kind, next_offset
    return kind, offset + first_frame_bytes(data[offset:]) if is_sound else native.next_frame(
        data, offset + 1, max_record_bytes, is_final
    )


def add_skipped_bytes(reason: str, kind: str, size_bytes: int) -> str:
    """Returns the reason of a gap with the number of skipped bytes.

    The number is added only if the end of the damaged frame is unknown.
    """
    return (
        f"{reason}; skipped {size_bytes} bytes"
        if kind != PAYLOAD_GAP and size_bytes > 0
        else reason
    )


@dataclass(frozen=True)
class FrameBatch(Frames):
    """Consecutive frames of a file.

    Attributes:
        first_record: The number of the first record in the file.
        first_offset: The offset of `data[0]` in the uncompressed file.
    """

    first_record: int
    first_offset: int


def detect_tfrecord_compression(head: bytes) -> str:
    """Returns the compression of a TFRecord file.

    Args:
        head: The first `COMPRESSED_HEAD_BYTES` bytes of the file.

    Returns:
        `none`, `gzip`, `zlib`, `zstd`, `bz2` or `xz`.
    """
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
    """Yields the frames of a file in order, in batches of about `batch_bytes`.

    A batch has more room only if a single record needs it. Each batch has its own memory. The
    frames before a damaged one are yielded before the error is raised.

    Args:
        path: The path or URL of the file.
        source: The file name for messages. None uses the path.
        batch_bytes: The size of the buffer of a batch.
        max_record_bytes: The limit for the size of a payload.
        checks_payloads: Check the CRCs of the payloads, in addition to the headers.
        compression: `none`, `gzip`, `zlib`, `zstd`, `bz2`, `xz`, or `auto` to detect it from the
            content.
        max_ratio: The limit for the ratio of uncompressed to compressed bytes. None sets no limit.

    Raises:
        DataError: A record is damaged, truncated or too long. The error names file, record number
            and byte offset.
        OSError: The file can't be read.
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
    """Yields the good frames of a file, with a `Gap` for each damaged part.

    Frames and gaps are in the order of the file.

    Raises:
        OSError: The file can't be read.
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
    """Yields the frames and gaps of a stream, buffer by buffer."""
    leftover, buffer_bytes, is_ended = np.empty(0, np.uint8), batch_bytes, False
    while not is_ended:
        buffer = np.empty(buffer_bytes, np.uint8)
        buffer[: len(leftover)] = leftover
        count = stream.fill(buffer[len(leftover) :])
        is_ended = count < buffer_bytes - len(leftover)
        data = buffer[: len(leftover) + count]
        consumed = yield from search.find_frames(data, is_final=is_ended and stream.error is None)
        leftover = data[consumed:]
        # The buffer grows only if it does not contain a single complete frame. It at most doubles,
        # because a length is trusted only as far as bytes arrive for it.
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
    """State of a search for frames: position and open gap.

    The search raises the first fault unless it is lenient.
    """

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
        # position of the next frame
        self._record_number = self._offset = 0
        # offset and reason of the open gap
        self._gap: tuple[int, str] | None = None

    @property
    def is_searching(self) -> bool:
        return self._gap is not None

    def find_frames(self, data: Bytes, is_final: bool) -> Generator[FrameBatch | Gap, None, int]:
        """Yields the frames and gaps in `data`.

        Returns:
            The number of bytes that are processed.
        """
        position, begin_offset = 0, self._offset
        # An open gap of the previous buffer continues here, until a header is correct.
        next_offset = (
            native.next_frame(data, 0, self._max_record_bytes, is_final)
            if self._gap is not None
            else 0
        )
        while True:
            if self._gap is not None:
                if next_offset == len(data):
                    # The last bytes may be the start of a header that is cut in two, so they are
                    # searched again.
                    position = (
                        len(data) if is_final else max(len(data) - HEADER_BYTES + 1, position)
                    )
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
        """Returns the open gap, which ends at the current offset."""
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
        """Yields the gap at the end of a stream that failed.

        Args:
            size: The number of bytes of the last, incomplete frame.
            error: The error of the stream. It is raised if the search is not lenient.
        """
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
