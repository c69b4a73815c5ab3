"""Frames, which are the records of a TFRecord file with their lengths and CRCs.

This module adds frames to payloads, checks the frames in a buffer, and copies frames in another
order. It can also find the records of an uncompressed file by reading only the headers.

`FileFrames` contains frames with their places in a file, and the damage between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s, allocate
from recordmill.base.errors import DataError, Reject
from recordmill.storage.files import read_range, read_ranges, stat

HEADER_BYTES, FOOTER_BYTES = 12, 4
# bytes of a frame in addition to its payload
FRAME_OVERHEAD_BYTES = HEADER_BYTES + FOOTER_BYTES
# 1 GiB. No known writer makes larger records, and protobuf does not allow 2 GiB.
MAX_RECORD_BYTES = 1 << 30


@dataclass(frozen=True)
class Frames:
    """Records in one buffer, each in a frame of header and footer.

    Frame i is `data[starts[i] : starts[i] + lengths[i] + 16]`.

    Attributes:
        data: uint8 [bytes]. Bytes between and around the frames have no meaning.
        starts: int64 [n]. Offset of the first byte of each frame.
        lengths: int64 [n]. Size of each payload, in bytes.
        crcs: uint32 [n]. Unmasked CRC32C of each payload. 0 if the payloads were not checked.
    """

    data: Bytes
    starts: Int64s
    lengths: Int64s
    crcs: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.starts)

    def payload(self, index: int) -> Bytes:
        """Returns the payload of a record as a view of `data`."""
        start = int(self.starts[index]) + HEADER_BYTES
        return self.data[start : start + int(self.lengths[index])]


# Kinds of damage, which are also the reasons of rejects:
#   * a wrong CRC of a payload,
#   * any other damage of a frame,
#   * damaged compressed data,
#   * a record that is missing, because the file is too short.
PAYLOAD_DAMAGE, FRAME_DAMAGE, STREAM_DAMAGE, MISSING_RECORD = (
    "crc",
    "frame",
    "compression",
    "truncated",
)


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged range of a file, which counts as one record.

    Attributes:
        record: Number of the record.
        offset: First damaged byte in the uncompressed file. -1 if the file ends before it.
        size_bytes: Size of the range.
        kind: PAYLOAD_DAMAGE, FRAME_DAMAGE, STREAM_DAMAGE, MISSING_RECORD or OUT_OF_MEMORY_REASON.
        reason: Message of an error about the damage.
        place: Place in such an error. If "", it is the record and the byte.
        reject_message: Message of a reject. If "", it is `reason`.
    """

    record: int
    offset: int
    size_bytes: int
    kind: str
    reason: str
    place: str = ""
    reject_message: str = ""

    @property
    def message(self) -> str:
        """Message of a reject: the damage, and its consequence."""
        return self.reject_message or self.reason

    @classmethod
    def of_member(cls, compression: str, error: DataError) -> Damage:
        """Returns the damage of a record in a compressed member that can't be read.

        Its number, offset and size are 0, because they differ between the records of the member.

        Args:
            compression: Compression of the file.
            error: Error of the decompression.
        """
        return cls(
            record=0,
            offset=0,
            size_bytes=0,
            kind=STREAM_DAMAGE,
            reason=error.reason,
            place=error.place,
            reject_message=f"the {compression} member that holds it is damaged",
        )

    def shift(self, records: int) -> Damage:
        """Returns the damage with a record number that counts the records of several files.

        The place in messages still has the number of the record in its file.

        Args:
            records: Number of records in the files before.
        """
        place = self.place or describe_place(self.record, self.offset)
        return replace(self, record=self.record + records, place=place)

    def error(self, path: str) -> DataError:
        """Returns the damage as an error, for a reader that stops."""
        place = self.place or describe_place(self.record, self.offset)
        return DataError(self.reason, source=path, place=place)

    def reject(self, name: str) -> Reject:
        """Returns the damage as a reject, for a reader that continues.

        Args:
            name: Name of the file in rejects.
        """
        return Reject(name, describe_place(self.record, self.offset), self.kind, self.message)


def describe_place(record: int, offset: int) -> str:
    """Returns the place of a record in a file, for messages.

    >>> describe_place(3, 120), describe_place(3, -1)
    ('record 3, byte 120', 'record 3')
    """
    return f"record {record}, byte {offset}" if offset >= 0 else f"record {record}"


class Origin(Protocol):
    """The file or files that frames come from."""

    def path(self, number: int) -> str:
        """Returns the path of the file that contains a record."""

    def place(self, number: int, start: int) -> str:
        """Returns the place of a record in its file.

        Args:
            number: Number of the record, as in `FileFrames.numbers`.
            start: Offset of its frame in `FileFrames.data`.
        """


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """The file that contains some frames.

    Attributes:
        file_path: Path or URL of the file.
        ordinal: Ordinal of the file among the files that are read.
        data_offset: Offset of `FileFrames.data` in the uncompressed file.
    """

    file_path: str
    ordinal: int = 0
    data_offset: int = 0

    def path(self, number: int) -> str:
        return self.file_path

    def place(self, number: int, start: int) -> str:
        return describe_place(number, self.data_offset + start)


@dataclass(frozen=True, slots=True)
class JoinedOrigin:
    """The files of frames that were read into one buffer.

    Attributes:
        origins: The origin of each part of the buffer.
        firsts: int64 [parts]. `FileFrames.numbers` of the first record of each part.
        records: int64 [parts]. Number of this record in its file.
        begins: int64 [parts]. Offset of each part in the buffer.
    """

    origins: Sequence[FileOrigin]
    firsts: Int64s
    records: Int64s
    begins: Int64s

    def path(self, number: int) -> str:
        return self.origins[self._find_part(number)].file_path

    def place(self, number: int, start: int) -> str:
        part = self._find_part(number)
        return self.origins[part].place(
            number - int(self.firsts[part] - self.records[part]), start - int(self.begins[part])
        )

    def count_all_records(self, numbers: Int64s, starts: Int64s) -> Int64s:
        """Converts numbers in `FileFrames.numbers` to numbers among the records of all files.

        Args:
            numbers: int64 [n].
            starts: int64 [files]. Number of records before each file.
        """
        files = [origin.ordinal for origin in self.origins]
        shifts = starts[files] + self.records - self.firsts
        return numbers + shifts[np.searchsorted(self.firsts, numbers, "right") - 1]

    def _find_part(self, number: int) -> int:
        return int(np.searchsorted(self.firsts, number, "right")) - 1


@dataclass(frozen=True)
class FileFrames(Frames):
    """Frames of good records with their places in files, and the damage between them.

    The receiver owns `data`: no other code writes to it.

    Attributes:
        numbers: int64 [n]. Number of each record in its file. If the frames come from several
            files, the numbers count the records of all files.
        origin: The file or files of the records.
        damage: The damaged records, in order.
    """

    numbers: Int64s
    origin: Origin
    damage: tuple[Damage, ...] = ()

    @classmethod
    def empty(cls, origin: Origin, damage: tuple[Damage, ...] = ()) -> FileFrames:
        """Returns an object without frames. It may contain damage."""
        none = np.empty(0, np.int64)
        return cls(
            data=np.empty(0, np.uint8),
            starts=none,
            lengths=none,
            crcs=np.empty(0, np.uint32),
            numbers=none,
            origin=origin,
            damage=damage,
        )

    @property
    def file(self) -> int:
        """Ordinal of the file. All frames must be from one file."""
        assert isinstance(self.origin, FileOrigin)
        return self.origin.ordinal

    @property
    def records(self) -> int:
        """Number of records, including damaged ones."""
        return len(self) + len(self.damage)

    @property
    def end_record(self) -> int:
        """Number of the last record, good or damaged, plus 1. There must be a record."""
        last = self.damage[-1].record if self.damage else -1
        return max(last, int(self.numbers[-1]) if len(self) else -1) + 1

    @property
    def framed_bytes(self) -> int:
        """Size of the good frames, in bytes."""
        return int(self.lengths.sum()) + FRAME_OVERHEAD_BYTES * len(self)

    def select(self, rows: slice | Int64s, damage: tuple[Damage, ...] = ()) -> FileFrames:
        """Returns some of the frames. `data` is shared.

        Args:
            rows: The frames.
            damage: Damage of the result. The damage of this object is dropped.
        """
        return replace(
            self,
            starts=self.starts[rows],
            lengths=self.lengths[rows],
            crcs=self.crcs[rows],
            numbers=self.numbers[rows],
            damage=damage,
        )

    def split(self, max_rows: int) -> Iterator[FileFrames]:
        """Yields parts of at most `max_rows` frames. All damage is in the first part."""
        damage = self.damage
        for start in range(0, max(len(self), 1), max_rows):
            yield self.select(slice(start, start + max_rows), damage)
            damage = ()

    def contiguous_rows(self) -> list[slice]:
        """Returns the ranges of rows that have consecutive record numbers."""
        edges = [0, *(np.flatnonzero(np.diff(self.numbers) > 1) + 1).tolist(), len(self)]
        return [slice(*edge) for edge in itertools.pairwise(edges) if edge[0] < edge[1]]

    def first(self, records: int) -> FileFrames:
        """Returns the first records by number. Damaged records count, too."""
        if records >= self.records:
            return self
        numbers = np.sort(np.append(self.numbers, [damage.record for damage in self.damage]))
        end = int(numbers[records])
        return self.select(
            slice(int(np.searchsorted(self.numbers, end))),
            tuple(damage for damage in self.damage if damage.record < end),
        )

    def location(self, row: int) -> tuple[str, str]:
        """Returns (path, place) of a frame, for messages."""
        number = int(self.numbers[row])
        return self.origin.path(number), self.origin.place(number, int(self.starts[row]))

    def raise_damage(self) -> None:
        """Raises the first damage. Does nothing if nothing is damaged.

        Raises:
            DataError: A record is damaged.
        """
        for damage in self.damage:
            raise damage.error(self.origin.path(damage.record))


def stop_at_damage(parts: Iterable[FileFrames]) -> Iterator[FileFrames]:
    """Yields the frames before the first damage, and then raises it.

    A reader that stops at damage reads through this function. Other readers do not.

    Raises:
        DataError: There is damage.
    """
    for part in parts:
        if part.damage:
            before = part.select(slice(int(np.searchsorted(part.numbers, part.damage[0].record))))
            if len(before):
                yield before
            part.raise_damage()
        yield part


def frame_payloads(data: Bytes, offsets: Int64s) -> Frames:
    """Makes a frame for each payload. The frames are in one new buffer, in the same order.

    Args:
        data: uint8 [bytes]. A buffer that contains the payloads.
        offsets: int64 [n + 1]. Payload i is `data[offsets[i] : offsets[i + 1]]`.

    Raises:
        ValueError: The offsets are empty, descend, or are outside `data`.
    """
    offsets = np.ascontiguousarray(offsets, np.int64)
    if (
        len(offsets) == 0
        or offsets[0] < 0
        or offsets[-1] > len(data)
        or bool((offsets[1:] < offsets[:-1]).any())
    ):
        raise ValueError(f"payload offsets must ascend from 0 or more to at most {len(data)}")
    rows = len(offsets) - 1
    out = allocate(int(offsets[-1] - offsets[0]) + rows * FRAME_OVERHEAD_BYTES, np.uint8)
    frames = Frames(
        data=out,
        starts=np.empty(rows, np.int64),
        lengths=np.empty(rows, np.int64),
        crcs=np.empty(rows, np.uint32),
    )
    native.frame(
        np.ascontiguousarray(data), offsets, out, frames.starts, frames.lengths, frames.crcs
    )
    return frames


def try_scan_frames(
    data: Bytes,
    *,
    source: str,
    first_record: int = 0,
    first_offset: int = 0,
    max_record_bytes: int = MAX_RECORD_BYTES,
    is_final: bool,
    checks_payloads: bool = True,
) -> tuple[Frames, int, DataError | None]:
    """Checks frames like `scan_frames`, but returns an error instead of raising it.

    Returns:
        The frames before the first fault, the number of bytes that they take, and the error or
        None.
    """
    data = np.ascontiguousarray(data)
    scan = native.FrameScan(
        max_record_bytes=max_record_bytes,
        is_final=is_final,
        checks_payloads=checks_payloads,
        code=native.FrameCode.NEEDS_MORE,
    )
    scan_results: list[tuple[Int64s, Int64s, npt.NDArray[np.uint32]]] = []
    # The number of frames is unknown, so the first arrays are small. The next ones are as large as
    # the rest needs if its frames are like those before. They never have more room than the
    # shortest possible frames need.
    num_frames, max_frames = 0, min(4096, len(data) // FRAME_OVERHEAD_BYTES + 1)
    while scan.code == native.FrameCode.NEEDS_MORE:
        arrays = (
            np.empty(max_frames, np.int64),
            np.empty(max_frames, np.int64),
            np.empty(max_frames, np.uint32),
        )
        count = native.scan_frames(data, scan, *arrays)
        num_frames += count
        scan_results.append((arrays[0][:count], arrays[1][:count], arrays[2][:count]))
        remaining_bytes = len(data) - scan.position
        estimate = num_frames * remaining_bytes // max(scan.position, 1) * 9 // 8
        max_frames = min(max(estimate, 4096), remaining_bytes // FRAME_OVERHEAD_BYTES + 1)
    num_bytes, code = scan.position, scan.code
    starts, lengths, crcs = (
        scan_results[0]
        if len(scan_results) == 1
        else (np.concatenate(columns) for columns in zip(*scan_results, strict=True))
    )
    frames = Frames(data, starts, lengths, crcs)
    if code == native.FrameCode.GOOD:
        return frames, num_bytes, None
    place = f"record {first_record + num_frames}, byte {first_offset + num_bytes}"
    reason = describe_frame_fault(
        code,
        frame_head=data[num_bytes : num_bytes + 8],
        bytes_left=len(data) - num_bytes,
        max_record_bytes=max_record_bytes,
    )
    return frames, num_bytes, DataError(reason, source=source, place=place)


def describe_frame_fault(
    code: int, frame_head: Bytes, bytes_left: int, max_record_bytes: int
) -> str:
    """Returns the error message for a fault of a frame.

    Args:
        code: Code of the scan that found the fault.
        frame_head: The first eight bytes of the frame, or fewer at the end of the data.
        bytes_left: Number of bytes from the start of the frame to the end of the file.
        max_record_bytes: Maximum size of a payload.
    """
    if code == native.FrameCode.SHORT_HEADER:
        return f"truncated: {bytes_left} bytes are left, and a record's header has {HEADER_BYTES}"
    length = int.from_bytes(frame_head[:8].tobytes(), "little")
    if code == native.FrameCode.TOO_LONG:
        return (
            f"a length of {length} bytes is above the limit of {max_record_bytes} bytes for one record "
            "(max_record_bytes)"
        )
    if code == native.FrameCode.SHORT_PAYLOAD:
        return f"truncated: the record needs {length + FRAME_OVERHEAD_BYTES} bytes and {bytes_left} are left"
    if code == native.FrameCode.BAD_PAYLOAD_CRC:
        return f"CRC of the data ({length} bytes) is wrong: the record is damaged"
    return "CRC of the length is wrong: damaged, or not a TFRecord file"


def scan_frames(
    data: Bytes,
    *,
    source: str,
    first_record: int = 0,
    first_offset: int = 0,
    is_final: bool,
    checks_payloads: bool = True,
) -> tuple[Frames, int]:
    """Checks the frames at the start of a buffer.

    The CRC of a header is checked before its length is used. The length must not exceed the limit
    or the bytes that are left. The returned frames refer to `data`, which is not copied.

    Args:
        data: uint8 [bytes]. The first byte is the start of a frame.
        source: Name of the file, for messages.
        first_record: Number of the first record in the file, for messages.
        first_offset: Offset of `data` in the file, for messages.
        is_final: Whether the file ends with `data`. If not, an incomplete frame at the end is left
            for the next call.
        checks_payloads: Whether the CRCs of the payloads are checked, in addition to the headers.

    Returns:
        The frames, and the number of bytes that they take.

    Raises:
        DataError: A frame is damaged, too long or truncated. The error names the first such record.
    """
    frames, num_bytes, error = try_scan_frames(
        data,
        source=source,
        first_record=first_record,
        first_offset=first_offset,
        is_final=is_final,
        checks_payloads=checks_payloads,
    )
    if error is not None:
        raise error
    return frames, num_bytes


def pack_spans(
    blocks: Sequence[npt.NDArray[Any]],
    starts: Int64s,
    sizes: Int64s,
    out: Bytes,
    block_ids: npt.NDArray[np.int32] | None = None,
) -> int:
    """Copies spans of bytes into a buffer, one after the other.

    Args:
        blocks: C-contiguous arrays that contain the spans.
        starts: int64 [n]. Offset of each span in its block.
        sizes: int64 [n]. Size of each span, in bytes. The size of a frame is that of its payload
            and 16 bytes.
        out: uint8 [bytes]. It must have room for all spans.
        block_ids: int32 [n]. Index of the block of each span. None if there is only one block.

    Returns:
        Number of bytes written.

    Raises:
        IndexError: `out` is too short, or a span is not inside its block.
    """
    ends = np.cumsum(sizes)
    if native.copy_spans(blocks, block_ids, starts, sizes, ends - sizes, out) != len(starts):
        raise IndexError("a span is not in its block")
    return int(ends[-1]) if len(ends) else 0


# 1 MiB. With this size, the fixed costs of a read do not matter, and the window fits into the
# second-level cache.
_READ_WINDOW_BYTES = 1 << 20
# 64 KiB. If the mean size of records is larger, reading only the headers is faster than reading all
# bytes.
_LARGE_RECORD_BYTES = 64 << 10


class ContentDigest:
    """Digest of the records of a file, computed without reading their payloads.

    The digest is a 64-bit hash of the lengths and the stored payload CRCs, in order. It detects
    accidental changes, but not forgeries, because it is easy to make two payloads with the same
    CRC.
    """

    def __init__(self) -> None:
        self._state = np.zeros(1, np.uint64)

    def add(self, frames: Frames) -> None:
        """Adds frames that are contiguous in their buffer.

        The digest uses the CRCs that are stored in the frames, not `Frames.crcs`.
        """
        if len(frames):
            begin, end = (
                int(frames.starts[0]),
                int(frames.starts[-1] + frames.lengths[-1]) + FRAME_OVERHEAD_BYTES,
            )
            scan = native.FrameScan(end=end - begin, max_record_bytes=end, is_final=True)
            native.hop_frames(
                frames.data[begin:end], scan, np.empty(len(frames), np.int64), self._state
            )

    @property
    def value(self) -> int:
        return int(self._state[0])


def iter_frame_offsets(
    path: str, *, start: int = 0, first_record: int = 0, digest: ContentDigest | None = None
) -> Iterator[Int64s]:
    """Yields the offsets of all frames of an uncompressed file, in ascending arrays.

    Only the headers are checked. An array has at most some ten thousand offsets. If a header is
    damaged, the offsets before it are yielded first.

    Args:
        path: Path or URL of the file.
        start: Offset of the first frame to find.
        first_record: Number of the record at `start`, for messages.
        digest: Receives the lengths and CRCs of all frames. Use it only for a complete file.

    Raises:
        DataError: A header is damaged, too long or truncated. The error names file, record number
            and byte offset.
        OSError: The file can't be read.
    """
    size = stat(path).size_bytes
    state = np.zeros(1, np.uint64) if digest is None else digest._state
    offset, record_number, window_bytes, lead_bytes = start, first_record, _READ_WINDOW_BYTES, 0
    starts = np.empty(_READ_WINDOW_BYTES // FRAME_OVERHEAD_BYTES + 1, np.int64)
    data = np.empty(0, np.uint8)
    while offset < size:
        # The window begins with the footer of the previous record. It contains the payload CRC,
        # which the digest needs.
        lead_bytes = min(offset, FOOTER_BYTES)
        data = read_range(path, offset - lead_bytes, min(offset + window_bytes, size))
        if len(data) < lead_bytes + min(HEADER_BYTES, size - offset):
            raise DataError(
                f"ends at byte {offset - lead_bytes + len(data)}, and had {size} bytes just now",
                source=path,
            )
        scan = native.FrameScan(
            position=lead_bytes,
            end=lead_bytes + size - offset,
            max_record_bytes=MAX_RECORD_BYTES,
            is_final=True,
        )
        count = native.hop_frames(data, scan, starts, state)
        scanned_bytes, code = scan.position - lead_bytes, scan.code
        if count:
            yield starts[:count] + (offset - lead_bytes)
        if code == native.FrameCode.NEEDS_MORE and not count and len(data) < HEADER_BYTES:
            raise DataError(
                f"truncated: the file had {size} bytes when it was listed, and now ends at byte {offset + len(data)}",
                source=path,
                place=f"record {record_number}, byte {offset}",
            )
        if code not in (native.FrameCode.GOOD, native.FrameCode.NEEDS_MORE):
            place = f"record {record_number + count}, byte {offset + scanned_bytes}"
            header = data[lead_bytes + scanned_bytes : lead_bytes + scanned_bytes + 8]
            raise DataError(
                describe_frame_fault(
                    code,
                    frame_head=header,
                    bytes_left=size - offset - scanned_bytes,
                    max_record_bytes=MAX_RECORD_BYTES,
                ),
                source=path,
                place=place,
            )
        # If records are large, the next read gets only a header, so that payloads are not read.
        window_bytes = (
            HEADER_BYTES
            if count and scanned_bytes > count * _LARGE_RECORD_BYTES
            else _READ_WINDOW_BYTES
        )
        offset, record_number, read_offset = (
            offset + scanned_bytes,
            record_number + count,
            offset - lead_bytes,
        )
        # If only headers are read, the footer of the last record has not been read yet.
        if digest is not None and offset == size and read_offset + len(data) < size:
            footer = read_range(path, size - FOOTER_BYTES, size)
            native.hop_frames(
                footer, native.FrameScan(position=len(footer), end=len(footer)), starts, state
            )


def read_frame_end(path: str, start: int) -> int:
    """Returns the end of a frame that `iter_frame_offsets` has found.

    Args:
        path: Path or URL of the file.
        start: Offset of the frame.

    Raises:
        DataError: The file has changed since then.
    """
    header = np.empty(1, np.int64)
    read_ranges(path, [(start, header.view(np.uint8))])
    if not 0 <= header[0] <= MAX_RECORD_BYTES:
        raise DataError("changed while it was read", source=path, place=f"byte {start}")
    return start + int(header[0]) + FRAME_OVERHEAD_BYTES
