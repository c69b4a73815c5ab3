"""Gaps between the good frames of a TFRecord file, and where reading goes on after what is damaged, for all who read
around damage: after a damaged payload where its header says, after a damaged header at the next one with a right CRC.
After damaged compressed data nothing can be read, and the last gap says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from recordmill.base import native
from recordmill.records.tfrecord.frames import FRAME_BYTES, HEADER_BYTES, MAX_RECORD_BYTES
from recordmill.storage.files import Bytes

# kinds of gaps: a payload's CRC, anything else of a frame, the compressed data
DATA_GAP, FRAME, STREAM = ("crc", "frame", "compression")


@dataclass(frozen=True)
class Gap:
    """Bytes [first_offset, first_offset + size_bytes) of the uncompressed file, which hold no good frame; it counts as
    one record, first_record.

    kind: one of DATA, FRAME and STREAM. reason: what is wrong, in words.
    """

    first_record: int
    first_offset: int
    size_bytes: int
    kind: str
    reason: str


def frame_bytes(rest: Bytes) -> int:
    """Returns the bytes of the frame that begins with rest, or of its header while not even that is there; the header
    has been checked.
    """
    if len(rest) < HEADER_BYTES:
        return HEADER_BYTES
    return int.from_bytes(rest[:8].tobytes(), "little") + FRAME_BYTES


def resume_after_damage(
    data: Bytes, at: int, *, max_record_bytes: int = MAX_RECORD_BYTES, whole: bool = True, known: int | None = None
) -> tuple[str, int]:  # fmt: skip
    """Returns (kind, the byte of data where reading goes on) for a frame at byte `at` that a scan has refused.

    kind: DATA if the header is right and the whole frame is here, so that only the payload's CRC can be wrong, else
    FRAME. whole: what is found has to fit the data. known: where an index says that the next record begins; without
    it, a damaged header costs all up to the next one that is right, or up to the data's end.
    """
    is_sound = native.frame_fault(data, at, max_record_bytes, True) == native.GOOD
    kind = DATA_GAP if is_sound else FRAME
    if known is not None:
        return kind, known
    return kind, at + frame_bytes(data[at:]) if is_sound else native.next_frame(data, at + 1, max_record_bytes, whole)


def with_skipped(reason: str, kind: str, size_bytes: int) -> str:
    """Returns the reason of a gap, and how many bytes it took to find the next frame, unless the damaged one's end is
    known.
    """
    return f"{reason}; skipped {size_bytes} bytes" if kind != DATA_GAP and size_bytes > 0 else reason
