"""Frames, the records of a TFRecord file: makes them of payloads, checks them in bytes, copies them in another order,
and finds where the records of an uncompressed file begin, from header to header without a look at a payload.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s, allocate
from recordmill.base.errors import DataError
from recordmill.storage.files import read_range, read_ranges, stat

HEADER_BYTES, FOOTER_BYTES = 12, 4
FRAME_OVERHEAD_BYTES = HEADER_BYTES + FOOTER_BYTES  # what a frame has beside its payload
MAX_RECORD_BYTES = 1 << 30  # 1 GiB: above what any known writer makes, and protobuf refuses 2 GiB


@dataclass(frozen=True)
class Frames:
    """Records with their frames: frame i is data[starts[i] : starts[i] + lengths[i] + 16].

    Attributes:
        data: uint8 [bytes]; what lies between and around the frames is nobody's.
        starts: int64 [n], where each frame's first byte is.
        lengths: int64 [n], the payloads' bytes.
        crcs: uint32 [n], the unmasked CRC32C of each payload (0 where a caller has asked not to check it).
    """

    data: Bytes
    starts: Int64s
    lengths: Int64s
    crcs: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.starts)

    def payload(self, index: int) -> Bytes:
        """Returns the payload of one record, as a view."""
        start = int(self.starts[index]) + HEADER_BYTES
        return self.data[start : start + int(self.lengths[index])]


def frame_payloads(data: Bytes, offsets: Int64s) -> Frames:
    """Frames payloads contiguously, in order: record i is data[offsets[i] : offsets[i + 1]]; ValueError unless the
    offsets ascend within data.
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
    """Scans as `scan_frames` does, but returns the fault after the last good frame, so that these are not lost."""
    data = np.ascontiguousarray(data)
    scan = native.FrameScan(
        max_record_bytes=max_record_bytes,
        is_final=is_final,
        checks_payloads=checks_payloads,
        code=native.FrameCode.NEEDS_MORE,
    )
    scan_results: list[tuple[Int64s, Int64s, npt.NDArray[np.uint32]]] = []
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
        max_frames = min(2 * max_frames, (len(data) - scan.position) // FRAME_OVERHEAD_BYTES + 1)
    num_bytes, code = scan.position, scan.code
    frames = Frames(
        data,
        *(
            np.concatenate(columns) if len(scan_results) > 1 else columns[0]
            for columns in zip(*scan_results, strict=True)
        ),
    )
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
    """Returns a scan's code in words; header: the frame's first eight bytes, left: the bytes from there to the end."""
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
    return "CRC of the length is wrong: damaged, or no TFRecord file"


def scan_frames(
    data: Bytes,
    *,
    source: str,
    first_record: int = 0,
    first_offset: int = 0,
    is_final: bool,
    checks_payloads: bool = True,
) -> tuple[Frames, int]:
    """Returns the whole frames from the start of data on, each checked, and how many bytes they take.

    The header's CRC is checked before its length is believed, the length against the limit and the bytes left before it
    is used, and then (with check) the payload's CRC. The Frames refer to data and do not copy it.

    Args:
        data: uint8 [bytes]; a frame starts at its first byte.
        source: the file's name for messages; first_record, first_offset: record number and byte offset of data's start
            in it.
        final: the file ends with data; otherwise a frame cut off at the end is left for the next call (bytes not
            consumed).

    Raises:
        DataError: at the first frame that is damaged, too long or truncated; it names source, record number and byte
            offset.
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
    """Copies spans of bytes one after the other into out; gives the bytes written.

    Args:
        blocks: where the spans lie, C-contiguous.
        starts, sizes: int64 [n], where in its block each span begins, and its bytes (of a frame: payload + 16).
        out: uint8, at least as long as they are together.
        which: int32 [n], the block of each span; None where there is one block.

    Raises:
        IndexError: out is too short, or a span is not in its block.
    """
    ends = np.cumsum(sizes)
    if native.copy_spans(blocks, block_ids, starts, sizes, ends - sizes, out) != len(starts):
        raise IndexError("a span is not in its block")
    return int(ends[-1]) if len(ends) else 0


_READ_WINDOW_BYTES = (
    1 << 20
)  # 1 MiB: a read's fixed cost vanishes, and the window stays in the second-level cache
_LARGE_RECORD_BYTES = (
    64 << 10
)  # 64 KiB: from this mean size on, reading only headers is quicker than reading through


class ContentDigest:
    """Digest that tells the records of a file from others without a look at their payloads: 64 bits of all lengths and
    payload CRCs, in order. Against chance and mistakes, not against forgery: CRCs are easily made equal.
    """

    def __init__(self) -> None:
        self._state = np.zeros(1, np.uint64)

    def add(self, frames: Frames) -> None:
        """Goes on with these frames, one after the other in their data; their own CRCs count, not `crcs`."""
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
    """Yields the byte offsets of the frames from start on, ascending, in arrays of up to some ten thousand.

    Args:
        start: where a frame begins. first_record: its number, for messages. content: is told what is found, of a whole
            file.

    Raises:
        DataError: a header is damaged, too long or truncated; it names source, record number and byte offset. Offsets
            before it have been given.
        OSError: as the operating system says it.
    """
    size = stat(path).size_bytes
    state = np.zeros(1, np.uint64) if digest is None else digest._state
    offset, record_number, window_bytes, lead_bytes = start, first_record, _READ_WINDOW_BYTES, 0
    starts = np.empty(_READ_WINDOW_BYTES // FRAME_OVERHEAD_BYTES + 1, np.int64)
    data = np.empty(0, np.uint8)
    while offset < size:
        lead_bytes = min(offset, FOOTER_BYTES)  # the CRC of the record before
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
        if digest is not None and offset == size and read_offset + len(data) < size:
            footer = read_range(path, size - FOOTER_BYTES, size)
            native.hop_frames(
                footer, native.FrameScan(position=len(footer), end=len(footer)), starts, state
            )


def read_frame_end(path: str, start: int) -> int:
    """Returns where the frame ends that `iter_frame_offsets` has found to begin there; DataError where the file has become another one
    since.
    """
    header = np.empty(1, np.int64)
    read_ranges(path, [(start, header.view(np.uint8))])
    if not 0 <= header[0] <= MAX_RECORD_BYTES:
        raise DataError("changed while it was read", source=path, place=f"byte {start}")
    return start + int(header[0]) + FRAME_OVERHEAD_BYTES
