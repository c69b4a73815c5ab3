"""Reads TFRecord files of any size and compression as batches of checked frames.

The batch size and the largest record limit the memory.

The content determines the compression. A file is uncompressed if its first 12 bytes are a TFRecord
header with a correct CRC. This is tested first, because an uncompressed file can begin like a gzip
file. An example is a first record of 35,615 bytes, because these bytes of its length are the magic
number.

Reading continues after damage, and a `Damage` object describes it:

* After a damaged payload, at the end that the header specifies.
* After a damaged header, at the next record according to the index. Without an index, at the next
  header with a correct CRC.
* After damaged compressed data nothing can be read.
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

# 8 MiB. With this size, the fixed costs of a batch do not matter, and it stays in the last-level
# cache until it is decoded.
READ_BATCH_BYTES = 8 << 20


def read_first_frame_size(data: Bytes) -> int:
    """Returns the size of the first frame in `data` according to its header.

    The caller has checked the header. If `data` is shorter than a header, the result is the size of
    a header.
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
    """Finds where reading continues after a damaged frame.

    Args:
        data: uint8 [bytes].
        offset: Offset of the damaged frame in `data`.
        max_record_bytes: Maximum size of a payload.
        is_final: Whether the file ends with `data`, so that the next frame must be complete.
        next_offset: Offset of the next record according to an index. If None, reading continues
            after the frame if its header is correct, or else at the next correct header.

    Returns:
        (kind of the damage, offset). PAYLOAD_DAMAGE means that the header is correct and the frame
        is complete, so that only the CRC of the payload is wrong. Any other fault is FRAME_DAMAGE.
        The offset is the end of `data` if no frame was found.
    """
    is_sound = native.next_frame(data, offset, max_record_bytes, True) == offset
    kind = PAYLOAD_DAMAGE if is_sound else FRAME_DAMAGE
    if next_offset is not None:
        return kind, next_offset
    return kind, offset + read_first_frame_size(data[offset:]) if is_sound else native.next_frame(
        data, offset + 1, max_record_bytes, is_final
    )


def add_skipped_bytes(reason: str, size_bytes: int) -> str:
    """Appends the number of skipped bytes to the reason of damage.

    The reason is returned unchanged if no bytes were skipped.
    """
    return f"{reason}; skipped {size_bytes} bytes" if size_bytes > 0 else reason


def detect_tfrecord_compression(head: bytes) -> str:
    """Detects the compression of a TFRecord file.

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
    """Yields the frames of a file in batches, with the damage between them.

    Each batch has a buffer of its own. It is larger than `batch_bytes` only if a single record
    needs it.

    Args:
        path: Path or URL of the file.
        batch_bytes: Size of the buffer of a batch.
        max_record_bytes: Maximum size of a payload.
        checks_payloads: Whether the CRCs of the payloads are checked, in addition to the headers.
        compression: `none`, `gzip`, `zlib`, `zstd`, `bz2`, `xz`, or `auto` to detect it from the
            content.
        max_ratio: Maximum ratio of uncompressed to compressed bytes. None means no limit.
        ordinal: Ordinal of the file among the files that are read.

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
    """Yields batches with the frames of a stream, and the damage between them.

    Args:
        stream: The uncompressed bytes of a file.
        scanner: Finds the frames. It keeps the position between batches.
        batch_bytes: Size of the buffer of a batch.
    """
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
        # The buffer grows only if it does not contain a complete frame. It at most doubles each
        # time, so a wrong length can't make it much larger than the bytes that have arrived.
        is_incomplete = consumed == 0 and not scanner.is_searching
        buffer_bytes = (
            min(
                max(2 * buffer_bytes, FRAME_OVERHEAD_BYTES),
                max(read_first_frame_size(leftover), FRAME_OVERHEAD_BYTES),
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
    """Finds the frames and the damage in a range of bytes.

    Args:
        data: uint8 [bytes]. It begins and ends between records.
        origin: The file, and the offset of `data` in it.
        first_record: Number of the first record.
        records: Expected number of records. Missing records become damage. None if it is unknown.
        known_starts: Called if there is damage. Returns the offset of each record in `data`
            according to an index. None if there is no index.
        unreadable: (begin, end, damage) of ranges of `data` that could not be read. Each record
            that begins in such a range has this damage.

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
        path: Path of the file.
        ordinal: Ordinal of the file among the files that are read.
        max_record_bytes: Maximum size of a payload.
        checks_payloads: Whether the CRCs of the payloads are checked, in addition to the headers.
        is_compressed: Whether the file is compressed. Messages then explain that offsets count
            uncompressed bytes.
        first_record: Number of the first record.
        first_offset: Offset of the first buffer in the uncompressed file.
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
        # number and offset of the next frame
        self._record, self._offset = first_record, first_offset
        self._first_record = first_record
        # A gap is a damaged range with an end that is not known yet: (offset of its begin, reason).
        self._gap: tuple[int, str] | None = None

    @property
    def is_searching(self) -> bool:
        """True if the scanner is inside damage and searches for a header."""
        return self._gap is not None

    def scan(self, data: Bytes, is_final: bool) -> tuple[FileFrames, int]:
        """Finds the frames and the damage in a buffer.

        Args:
            data: uint8 [bytes]. It begins with the bytes that the previous call did not process.
            is_final: Whether the file ends with `data`.

        Returns:
            (frames and damage, number of processed bytes).
        """
        origin = FileOrigin(self._path, self._ordinal, self._offset)
        position, begin_offset = 0, self._offset
        parts: list[tuple[Int64s, Int64s, npt.NDArray[np.uint32], Int64s]] = []
        damage: list[Damage] = []
        # A gap that began in the previous buffer continues up to the next correct header.
        next_offset = (
            native.next_frame(data, 0, self._max_record_bytes, is_final)
            if self._gap is not None
            else 0
        )
        while True:
            if self._gap is not None:
                if next_offset == len(data):
                    # A header may begin in the last bytes and continue in the next buffer. So these
                    # bytes are searched again with it.
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
            known_next = self._find_known_next(len(data))
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
            new_damage = self._make_damage(self._offset, next_offset - position, kind, error.reason)
            damage.append(self._explain_unreadable(new_damage, position))
            self._record, position = self._record + 1, next_offset
            self._offset = begin_offset + next_offset
            if position >= len(data):
                break
        return _join_parts(data, parts, origin, tuple(damage)), position

    def _find_known_next(self, end: int) -> int | None:
        """Returns the offset of the next record according to the index.

        Returns `end` after the last record of the index, and None without an index.
        """
        starts = self._known_starts()
        if starts is None:
            return None
        row = self._record + 1 - self._first_record
        return int(starts[row]) if row < len(starts) else end

    def _explain_unreadable(self, damage: Damage, position: int) -> Damage:
        """Returns the damage with the reason why its range could not be read.

        Damage of a range that could be read is returned unchanged.
        """
        for begin, end, reason in self._unreadable:
            if begin <= position < end:
                return replace(
                    reason, record=damage.record, offset=damage.offset, size_bytes=damage.size_bytes
                )
        return damage

    def _make_damage(self, offset: int, size_bytes: int, kind: str, reason: str) -> Damage:
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
        """Ends the gap at the current offset, and returns it as damage."""
        assert self._gap is not None
        begin, reason = self._gap
        size_bytes = self._offset - begin
        damage = replace(
            self._make_damage(begin, size_bytes, FRAME_DAMAGE, reason),
            reject_message=add_skipped_bytes(reason, size_bytes),
        )
        self._record, self._gap = self._record + 1, None
        return damage

    def end_at_error(self, size: int, error: DataError) -> FileFrames:
        """Returns the damage at the end of a stream that has failed.

        Args:
            size: Number of bytes of the last, incomplete frame.
            error: Error of the stream.
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
    """Joins parts of a buffer.

    Args:
        data: The buffer.
        parts: (starts, lengths, CRCs, record numbers) of consecutive frames.
        origin: The file.
        damage: The damage between the parts.
    """
    if not parts:
        return FileFrames.empty(origin, damage)
    starts, lengths, crcs, numbers = (
        parts[0]
        if len(parts) == 1
        else (np.concatenate(columns) for columns in zip(*parts, strict=True))
    )
    return FileFrames(data, starts, lengths, crcs, numbers, origin, damage)
