"""Reads TFRecord files of any size and compression as batches of checked frames.

The memory is bounded by the batch size and the largest record.

The compression is detected from the content. A file is uncompressed if its first 12 bytes are a
TFRecord header with a correct CRC. This is tested first, because the length of a record of 35,615
bytes begins with the magic number of gzip.

Reading continues after damage, and `Damage` describes it. After a damaged payload it continues at
the offset that the header specifies. After a damaged header it continues at the next record of an
index, or else at the next header with a correct CRC. Nothing can be read after damaged compressed
data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import DataError
from recordmill.records.tfrecord.frames import (
    FRAME_DAMAGE,
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    MISSING_RECORD,
    PAYLOAD_DAMAGE,
    STREAM_DAMAGE,
    Damage,
    FileFrames,
    FileOrigin,
    describe_place,
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

# 8 MiB. Fixed costs no longer matter, and a batch stays in the last-level cache until it is
# decoded.
READ_BATCH_BYTES = 8 << 20


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
        The kind of the damage, and the offset. The kind is PAYLOAD_DAMAGE if the header is correct
        and the frame is complete, so that only the CRC of the payload can be wrong. Otherwise it is
        FRAME_DAMAGE, and the offset is the end of `data` if there is no other frame.
    """
    is_sound = native.next_frame(data, offset, max_record_bytes, True) == offset
    kind = PAYLOAD_DAMAGE if is_sound else FRAME_DAMAGE
    if next_offset is not None:
        return kind, next_offset
    return kind, offset + first_frame_bytes(data[offset:]) if is_sound else native.next_frame(
        data, offset + 1, max_record_bytes, is_final
    )


def add_skipped_bytes(reason: str, size_bytes: int) -> str:
    """Appends the number of skipped bytes to the reason of damage.

    The reason is returned unchanged if no bytes were skipped.
    """
    return f"{reason}; skipped {size_bytes} bytes" if size_bytes > 0 else reason


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
    batch_bytes: int = READ_BATCH_BYTES,
    max_record_bytes: int = MAX_RECORD_BYTES,
    checks_payloads: bool = True,
    compression: str = AUTO_COMPRESSION,
    max_ratio: int | None = MAX_RATIO,
    ordinal: int = 0,
) -> Iterator[FileFrames]:
    """Yields the frames of a file in order, with the damage between them.

    A batch has more room than `batch_bytes` only if a single record needs it. Each batch has its
    own memory.

    Args:
        path: The path or URL of the file.
        batch_bytes: The size of the buffer of a batch.
        max_record_bytes: The limit for the size of a payload.
        checks_payloads: Check the CRCs of the payloads, in addition to the headers.
        compression: `none`, `gzip`, `zlib`, `zstd`, `bz2`, `xz`, or `auto` to detect it from the
            content.
        max_ratio: The limit for the ratio of uncompressed to compressed bytes. None sets no limit.
        ordinal: The number of the file among the files that are read.

    Raises:
        OSError: The file can't be read.
    """
    if compression == AUTO_COMPRESSION:
        compression = detect_tfrecord_compression(
            read_range(path, 0, COMPRESSED_HEAD_BYTES).tobytes()
        )
    with open_stream(path, compression=compression, source=path, max_ratio=max_ratio) as stream:
        yield from read_stream(
            stream,
            FrameScanner(
                path,
                ordinal=ordinal,
                max_record_bytes=max_record_bytes,
                checks_payloads=checks_payloads,
                is_compressed=not find_codec(compression).is_plain,
            ),
            batch_bytes,
        )


def read_stream(
    stream: ByteStream, scanner: FrameScanner, batch_bytes: int = READ_BATCH_BYTES
) -> Iterator[FileFrames]:
    """Yields the frames of a stream, buffer by buffer, with the damage between them."""
    leftover, buffer_bytes, is_ended = np.empty(0, np.uint8), batch_bytes, False
    while not is_ended:
        buffer = np.empty(buffer_bytes, np.uint8)
        buffer[: len(leftover)] = leftover
        count = stream.fill(buffer[len(leftover) :])
        is_ended = count < buffer_bytes - len(leftover)
        data = buffer[: len(leftover) + count]
        frames, consumed = scanner.scan(data, is_final=is_ended and stream.error is None)
        if frames.records:
            yield frames
        leftover = data[consumed:]
        # The buffer grows only if it does not contain a single complete frame. It at most doubles,
        # because a length is trusted only as far as bytes arrive for it.
        is_incomplete = consumed == 0 and not scanner.is_searching
        buffer_bytes = (
            min(
                max(2 * buffer_bytes, FRAME_OVERHEAD_BYTES),
                max(first_frame_bytes(leftover), FRAME_OVERHEAD_BYTES),
            )
            if is_incomplete
            else max(batch_bytes, 2 * HEADER_BYTES)
        )
    if stream.error is not None:
        yield scanner.end_at_error(len(leftover), stream.error)


def scan_piece(
    data: Bytes,
    origin: FileOrigin,
    *,
    first_record: int,
    records: int | None = None,
    known_starts: Callable[[], Int64s | None] = lambda: None,
    unreadable: Sequence[tuple[int, int, Damage]] = (),
) -> FileFrames:
    """Returns the frames and the damage of a range of bytes.

    Args:
        data: uint8 [bytes], which begin and end between records.
        origin: The file, and the offset of `data` in it.
        first_record: The number of the first record.
        records: The number of records. Missing ones become damage. None if it is unknown.
        known_starts: Called after damage. Returns the offset of each record in `data` from an
            index, or None to search for the next header.
        unreadable: (begin, end, damage) of ranges of `data` that could not be read. The damage
            describes each record that begins there.

    Raises:
        DataError: There are more records than `records`.
    """
    scanner = FrameScanner(
        origin.file_path,
        ordinal=origin.ordinal,
        first_record=first_record,
        first_offset=origin.data_offset,
        known_starts=known_starts,
        unreadable=unreadable,
    )
    frames, _ = scanner.scan(data, is_final=True)
    if records is None or frames.records == records:
        return frames
    place = f"bytes {origin.data_offset} to {origin.data_offset + len(data)}"
    reason = f"{frames.records} records where {records} were expected"
    if frames.records > records:
        raise DataError(reason, source=origin.file_path, place=place)
    missing = tuple(
        Damage(
            record=number,
            offset=-1,
            size_bytes=0,
            kind=MISSING_RECORD,
            reason=reason,
            place=place,
            reject_message="the file ends before this record",
        )
        for number in range(first_record + frames.records, first_record + records)
    )
    return replace(frames, damage=frames.damage + missing)


class FrameScanner:
    """Finds frames in consecutive buffers of a file, and the damage between them.

    Args:
        path: The path of the file.
        ordinal: The number of the file among the files that are read.
        max_record_bytes: The limit for the size of a payload.
        checks_payloads: Check the CRCs of the payloads, in addition to the headers.
        is_compressed: The offsets count uncompressed bytes.
        first_record: The number of the first record.
        first_offset: The offset of the first buffer in the uncompressed file.
        known_starts: See `scan_piece`.
        unreadable: See `scan_piece`.
    """

    def __init__(
        self,
        path: str,
        *,
        ordinal: int = 0,
        max_record_bytes: int = MAX_RECORD_BYTES,
        checks_payloads: bool = True,
        is_compressed: bool = False,
        first_record: int = 0,
        first_offset: int = 0,
        known_starts: Callable[[], Int64s | None] = lambda: None,
        unreadable: Sequence[tuple[int, int, Damage]] = (),
    ) -> None:
        self._path, self._ordinal, self._max_record_bytes = path, ordinal, max_record_bytes
        self._checks_payloads, self._is_compressed = checks_payloads, is_compressed
        self._known_starts, self._unreadable = known_starts, unreadable
        # position of the next frame
        self._record, self._offset = first_record, first_offset
        self._first_record = first_record
        # offset and reason of a damaged range whose end is not found yet
        self._gap: tuple[int, str] | None = None

    @property
    def is_searching(self) -> bool:
        """Whether the scanner is inside damage and searches for the next header."""
        return self._gap is not None

    def scan(self, data: Bytes, is_final: bool) -> tuple[FileFrames, int]:
        """Finds the frames and the damage in a buffer.

        Args:
            data: uint8 [bytes]. It begins with the bytes that the previous call did not process.
            is_final: The file ends with `data`.

        Returns:
            (frames and damage, number of processed bytes).
        """
        origin = FileOrigin(self._path, self._ordinal, self._offset)
        position, begin_offset = 0, self._offset
        parts: list[tuple[Int64s, Int64s, npt.NDArray[np.uint32], Int64s]] = []
        damage: list[Damage] = []
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
                        damage.append(self._close_gap())
                    break
                position, self._offset = next_offset, begin_offset + next_offset
                damage.append(self._close_gap())
            frames, consumed, error = try_scan_frames(
                data[position:],
                source=self._path,
                max_record_bytes=self._max_record_bytes,
                is_final=is_final,
                checks_payloads=self._checks_payloads,
            )
            if len(frames):
                numbers = np.arange(self._record, self._record + len(frames))
                starts = frames.starts + position if position else frames.starts
                parts.append((starts, frames.lengths, frames.crcs, numbers))
            self._record, position = self._record + len(frames), position + consumed
            self._offset += consumed
            if error is None:
                break
            known_next = self._known_next(len(data))
            kind, next_offset = find_resume_offset(
                data,
                position,
                max_record_bytes=self._max_record_bytes,
                is_final=is_final,
                next_offset=known_next,
            )
            if known_next is None and kind != PAYLOAD_DAMAGE:
                self._gap = self._offset, error.reason
                continue
            new_damage = self._damage(self._offset, next_offset - position, kind, error.reason)
            damage.append(self._explain_unreadable(new_damage, position))
            self._record, position = self._record + 1, next_offset
            self._offset = begin_offset + next_offset
            if position >= len(data):
                break
        return _join_parts(data, parts, origin, tuple(damage)), position

    def _known_next(self, end: int) -> int | None:
        """Returns the start of the next record according to the index.

        Returns None if there is no index, and `end` after the last record of the index.
        """
        starts = self._known_starts()
        if starts is None:
            return None
        row = self._record + 1 - self._first_record
        return int(starts[row]) if row < len(starts) else end

    def _explain_unreadable(self, damage: Damage, position: int) -> Damage:
        """Returns damage with the reason why its range could not be read.

        If its range could be read, it is returned unchanged.
        """
        for begin, end, reason in self._unreadable:
            if begin <= position < end:
                return replace(
                    reason, record=damage.record, offset=damage.offset, size_bytes=damage.size_bytes
                )
        return damage

    def _damage(self, offset: int, size_bytes: int, kind: str, reason: str) -> Damage:
        place = describe_place(self._record, offset)
        return Damage(
            record=self._record,
            offset=offset,
            size_bytes=size_bytes,
            kind=kind,
            reason=reason,
            place=f"{place} of the uncompressed data" if self._is_compressed else "",
        )

    def _close_gap(self) -> Damage:
        """Returns the open gap, which ends at the current offset."""
        assert self._gap is not None
        begin, reason = self._gap
        size_bytes = self._offset - begin
        damage = replace(
            self._damage(begin, size_bytes, FRAME_DAMAGE, reason),
            reject_message=add_skipped_bytes(reason, size_bytes),
        )
        self._record, self._gap = self._record + 1, None
        return damage

    def end_at_error(self, size: int, error: DataError) -> FileFrames:
        """Returns the damage at the end of a stream that failed.

        Args:
            size: The number of bytes of the last, incomplete frame.
            error: The error of the stream.
        """
        damage = []
        if self._gap is not None:
            self._offset, size = self._offset + size, 0
            damage.append(self._close_gap())
        reason = f"{error.place}: {error.reason}; the rest of the file is lost"
        damage.append(
            Damage(
                record=self._record,
                offset=self._offset,
                size_bytes=size,
                kind=STREAM_DAMAGE,
                reason=error.reason,
                place=error.place,
                reject_message=add_skipped_bytes(reason, size),
            )
        )
        return FileFrames.empty(FileOrigin(self._path, self._ordinal, self._offset), tuple(damage))


def _join_parts(
    data: Bytes,
    parts: Sequence[tuple[Int64s, Int64s, npt.NDArray[np.uint32], Int64s]],
    origin: FileOrigin,
    damage: tuple[Damage, ...],
) -> FileFrames:
    """Returns the frames of a buffer. A part has their starts, lengths, CRCs and numbers."""
    if not parts:
        return FileFrames.empty(origin, damage)
    starts, lengths, crcs, numbers = (
        parts[0]
        if len(parts) == 1
        else (np.concatenate(columns) for columns in zip(*parts, strict=True))
    )
    return FileFrames(data, starts, lengths, crcs, numbers, origin, damage)
