"""Any TFRecord file, of any size and compression, to batches of checked frames;
memory is bounded by the batch and the largest record.

Compression is told by content. The uncompressed reading comes first: where the first 12 bytes are a TFRecord header
whose CRC is right, they are that, although a record of 35,615 bytes begins with gzip's magic number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recordmill.base import native
from recordmill.base.arrays import Bytes
from recordmill.base.errors import DataError
from recordmill.records.tfrecord.frames import FRAME_BYTES, HEADER_BYTES, MAX_RECORD_BYTES, Frames, try_scan
from recordmill.storage.codecs import NONE, find_codec
from recordmill.storage.compression import (
    AUTO_COMPRESSION,
    COMPRESSED_HEAD_BYTES,
    MAX_RATIO,
    Stream,
    detect,
    open_stream,
)
from recordmill.storage.files import read_range

# 8 MiB: large enough for the fixed costs to vanish, small enough to stay in the last-level cache until it is decoded
READ_BATCH_BYTES = 8 << 20


@dataclass(frozen=True)
class FrameBatch(Frames):
    """Consecutive frames of a file: the number of the first record, and the byte offset of data[0],
    in the uncompressed file.
    """

    first_record: int
    first_offset: int


def detect_tfrecord(head: bytes) -> str:
    """`none`, `gzip`, `zlib` or `zstd`, by the first `COMPRESSED_HEAD_BYTES` bytes of a TFRecord file."""
    return NONE if _is_header(head) else detect(head)


def _is_header(head: bytes) -> bool:
    if len(head) < HEADER_BYTES:
        return False
    fault = native.frame_fault(np.frombuffer(head, np.uint8), 0, MAX_RECORD_BYTES, False)
    return fault != native.HEADER_CRC


def read_frames(
    path: str,
    *,
    source: str | None = None,
    batch_bytes: int = READ_BATCH_BYTES,
    max_record_bytes: int = MAX_RECORD_BYTES,
    check: bool = True,
    compression: str = AUTO_COMPRESSION,
    max_ratio: int | None = MAX_RATIO,
) -> Iterator[FrameBatch]:
    """The file's frames in order, in batches of about batch_bytes; a record larger than that is a batch with as much
    room as it needs.

    Frames before a damaged one are given before the error is raised. Each batch has memory of its own.

    Args:
        source: the file's name for messages, if it is another than path.
        check: also the payloads' CRCs; the headers' are always checked.
        compression: `none`, `gzip`, `zlib`, `zstd`, or `auto`: by content.

    Raises:
        DataError: damaged, truncated, a record above max_record_bytes; it names source, record number and byte offset.
        OSError: as the operating system says it.
    """
    source = path if source is None else source
    if compression == AUTO_COMPRESSION:
        compression = detect_tfrecord(read_range(path, 0, COMPRESSED_HEAD_BYTES).tobytes())
    options = _Options(source, batch_bytes, max_record_bytes, check, compression)
    with open_stream(path, compression=compression, source=source, max_ratio=max_ratio) as stream:
        yield from _batches(stream, 0, 0, options)


@dataclass(frozen=True)
class _Options:
    source: str
    batch_bytes: int
    max_record_bytes: int
    check: bool
    compression: str


def _batches(stream: Stream, record: int, offset: int, options: _Options) -> Iterator[FrameBatch]:
    """Fill a buffer, scan it, and take what is left of a frame over into the next;
    twice the room where not one frame is whole.
    """
    rest, room = np.empty(0, np.uint8), options.batch_bytes
    while True:
        buffer = np.empty(room, np.uint8)
        buffer[: len(rest)] = rest
        count = stream.fill(buffer[len(rest) :])
        final = count < room - len(rest)
        data = buffer[: len(rest) + count]
        frames, consumed, error = try_scan(
            data, source=options.source, first_record=record, first_offset=offset,
            max_record_bytes=options.max_record_bytes, final=final and stream.error is None, check=options.check,
        )  # fmt: skip
        if len(frames):
            yield FrameBatch(data, frames.starts, frames.lengths, frames.crcs, record, offset)
        if error is not None:
            raise error if find_codec(options.compression).is_plain else _uncompressed(error)
        if stream.error is not None:
            raise stream.error
        if final:
            return
        record, offset, rest = record + len(frames), offset + consumed, data[consumed:]
        # A length is only believed as far as bytes arrive for it: doubling keeps the room within twice what is there.
        room = options.batch_bytes if consumed else min(max(2 * room, FRAME_BYTES), max(frame_bytes(rest), FRAME_BYTES))


def frame_bytes(rest: Bytes) -> int:
    """The bytes of the frame that begins with rest, or of its header while not even that is there;
    the header has been checked.
    """
    if len(rest) < HEADER_BYTES:
        return HEADER_BYTES
    return int.from_bytes(rest[:8].tobytes(), "little") + FRAME_BYTES


def _uncompressed(error: DataError) -> DataError:
    return DataError(error.reason, source=error.source, place=f"{error.place} of the uncompressed data")
