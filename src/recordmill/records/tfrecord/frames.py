"""Frames: what a TFRecord file is made of. Payloads to frames, bytes to checked frames, frames in another order; and
where the records of an uncompressed file begin, found from header to header without a look at a payload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.buffers import room
from recordmill.base.errors import DataError
from recordmill.base.kernels import inlined, kernel
from recordmill.base.pointers import address, address_of, copy, load32, load64, prefetch, store32, store64
from recordmill.records.tfrecord.crc32c import extend, masked, of_word, unmasked
from recordmill.storage.files import read_exactly, read_range, stat

HEADER_BYTES, FOOTER_BYTES = 12, 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES  # what a frame has beside its payload
MAX_RECORD_BYTES = 1 << 30  # 1 GiB: above what any known writer makes, and protobuf refuses 2 GiB


# what a scan stopped at; MORE: nothing, it needs more room or bytes
GOOD, HEADER_CRC, FRAME_TOO_LONG, SHORT_HEADER, SHORT_PAYLOAD, PAYLOAD_CRC, MORE = range(7)


@dataclass(frozen=True)
class Frames:
    """Framed records: frame i is data[starts[i] : starts[i] + lengths[i] + 16].

    data: uint8 [bytes]; what lies between and around the frames is nobody's.
    starts: int64 [n], where each frame's first byte is. lengths: int64 [n], the payloads' bytes.
    crcs: uint32 [n], the unmasked CRC32C of each payload (0 where a caller has asked not to check it).
    """

    data: Bytes
    starts: Int64s
    lengths: Int64s
    crcs: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.starts)

    def payload(self, index: int) -> Bytes:
        """The payload of one record, as a view."""
        start = int(self.starts[index]) + HEADER_BYTES
        return self.data[start : start + int(self.lengths[index])]


@kernel
def put_frame(at: int, length: int) -> int:
    """Write header and footer around a payload that stands at `at + 12`; gives the payload's CRC."""
    store64(at, length)
    store32(at + 8, masked(of_word(length)))
    crc = extend(0, at + 12, length)
    store32(at + 12 + length, masked(crc))
    return crc


@kernel
def _frame(
    source: int, offsets: int, out: Bytes, starts: Int64s, lengths: Int64s, crcs: npt.NDArray[np.uint32]
) -> None:
    target, at = address(out), 0
    for i in range(len(starts)):
        offset = load64(offsets + 8 * i)
        length = load64(offsets + 8 * i + 8) - offset
        copy(target + at + 12, source + offset, length)
        starts[i], lengths[i] = at, length
        crcs[i] = np.uint32(put_frame(target + at, length))
        at += int(length) + 16


def frame(data: Bytes, offsets: Int64s) -> Frames:
    """Frame payloads contiguously, in order: record i is data[offsets[i] : offsets[i + 1]].

    Args:
        data: uint8 [bytes], C-contiguous.
        offsets: int64 [n + 1], ascending, within data.

    Raises:
        ValueError: the offsets are not that.
    """
    offsets = np.ascontiguousarray(offsets, np.int64)
    if len(offsets) == 0 or offsets[0] < 0 or offsets[-1] > len(data) or bool((offsets[1:] < offsets[:-1]).any()):
        raise ValueError(f"payload offsets must ascend from 0 or more to at most {len(data)}")
    rows = len(offsets) - 1
    out = room(int(offsets[-1] - offsets[0]) + rows * FRAME_BYTES, np.uint8)
    frames = Frames(out, np.empty(rows, np.int64), np.empty(rows, np.int64), np.empty(rows, np.uint32))
    data = np.ascontiguousarray(data)
    _frame(address_of(data), address_of(offsets), out, frames.starts, frames.lengths, frames.crcs)
    return frames


@inlined
def header_fault(at: int, left: int, max_record_bytes: int, final: bool) -> int:
    """What is wrong with the header at an address, of whose frame left bytes are there; MORE if, not final, that is too
    few to say. Reads 12 bytes at most.
    """
    if left < 12:
        return SHORT_HEADER if final else MORE
    length = load64(at)
    if unmasked(load32(at + 8)) != of_word(length):
        return HEADER_CRC
    if length < 0 or length > max_record_bytes:  # below 0: 2^63 and more
        return FRAME_TOO_LONG
    if length > left - 16:
        return SHORT_PAYLOAD if final else MORE
    return GOOD


@kernel
def _scan(
    base: int,
    size: int,
    at: int,
    max_record_bytes: int,
    final: bool,
    check: bool,
    starts: Int64s,
    lengths: Int64s,
    crcs: npt.NDArray[np.uint32],
) -> tuple[int, int, int]:
    """(frames found, byte behind the last of them, code) of the frames from byte `at` on in size bytes at base, until
    the arrays are full.
    """
    count = 0
    while at < size:
        if count == len(starts):
            return count, at, MORE
        code = header_fault(base + at, size - at, max_record_bytes, final)
        if code != GOOD:
            return count, at, GOOD if code == MORE else code
        length = load64(base + at)
        crc = 0
        if check:
            crc = extend(0, base + at + 12, length)
            if unmasked(load32(base + at + 12 + length)) != crc:
                return count, at, PAYLOAD_CRC
        starts[count], lengths[count], crcs[count] = at, length, np.uint32(crc)
        count += 1
        at += length + 16
    return count, at, GOOD


def try_scan(
    data: Bytes,
    *,
    source: str,
    first_record: int = 0,
    first_offset: int = 0,
    max_record_bytes: int = MAX_RECORD_BYTES,
    final: bool,
    check: bool = True,
) -> tuple[Frames, int, DataError | None]:
    """As `scan`, but with what is wrong behind the last good frame as a value, so that the good ones are not lost."""
    data = np.ascontiguousarray(data)
    parts: list[tuple[Int64s, Int64s, npt.NDArray[np.uint32]]] = []
    consumed, code, found, room = 0, MORE, 0, min(4096, len(data) // FRAME_BYTES + 1)
    while code == MORE:
        arrays = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint32)
        count, consumed, code = _scan(address_of(data), len(data), consumed, max_record_bytes, final, check, *arrays)
        found += count
        parts.append((arrays[0][:count], arrays[1][:count], arrays[2][:count]))
        room = min(2 * room, (len(data) - consumed) // FRAME_BYTES + 1)
    frames = Frames(
        data, *(np.concatenate(columns) if len(parts) > 1 else columns[0] for columns in zip(*parts, strict=True))
    )
    if code == GOOD:
        return frames, consumed, None
    place = f"record {first_record + found}, byte {first_offset + consumed}"
    return (
        frames,
        consumed,
        DataError(
            explain_frame(code, data[consumed : consumed + 8], len(data) - consumed, max_record_bytes),
            source=source,
            place=place,
        ),
    )


def explain_frame(code: int, header: Bytes, left: int, max_record_bytes: int) -> str:
    """A scan's code in words; header: the frame's first eight bytes, left: the bytes from there to the end."""
    if code == SHORT_HEADER:
        return f"truncated: {left} bytes are left, and a record's header has {HEADER_BYTES}"
    length = int.from_bytes(header[:8].tobytes(), "little")
    if code == FRAME_TOO_LONG:
        return (
            f"a length of {length} bytes is above the limit of {max_record_bytes} bytes for one record "
            "(max_record_bytes)"
        )
    if code == SHORT_PAYLOAD:
        return f"truncated: the record needs {length + FRAME_BYTES} bytes and {left} are left"
    if code == PAYLOAD_CRC:
        return f"CRC of the data ({length} bytes) is wrong: the record is damaged"
    return "CRC of the length is wrong: damaged, or no TFRecord file"


def scan(
    data: Bytes,
    *,
    source: str,
    first_record: int = 0,
    first_offset: int = 0,
    max_record_bytes: int = MAX_RECORD_BYTES,
    final: bool,
    check: bool = True,
) -> tuple[Frames, int]:
    """The whole frames from the start of data on, each checked, and how many bytes they take.

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
    frames, consumed, error = try_scan(
        data,
        source=source,
        first_record=first_record,
        first_offset=first_offset,
        max_record_bytes=max_record_bytes,
        final=final,
        check=check,
    )
    if error is not None:
        raise error
    return frames, consumed


def gather_frames(data: Bytes, starts: Int64s, sizes: Int64s, order: Int64s, out: Bytes) -> int:
    """Copy items in another order into one contiguous buffer, item order[0] first; gives the bytes written.

    Args:
        data: uint8 [bytes]. starts, sizes: int64 [n], where each item begins and its bytes (for frames: payload + 16).
        order: int64 [m], which items, in the order wanted. out: uint8, at least as long as they are together.

    Raises:
        ValueError: out is too short, or an item is not in data.
    """
    data, starts, sizes, order = np.ascontiguousarray(data), _int64s(starts), _int64s(sizes), _int64s(order)
    count = min(len(starts), len(sizes))
    written = _gather(
        address_of(data), len(data), address_of(starts), address_of(sizes), count, address_of(order), len(order), out
    )
    if written < 0:
        raise ValueError(
            f"order, starts and sizes don't fit {count} items in {len(data)} bytes, or out has fewer bytes "
            f"than they need: {len(out)}"
        )
    return int(written)


def gather_at(addresses: Int64s, sizes: Int64s, order: Int64s, out: Bytes) -> None:
    """Like `gather_frames`, of items that lie anywhere in memory, which the caller keeps alive: item i is the sizes[i]
    bytes at addresses[i]. Whether they are there is not checked.

    Raises:
        ValueError: out is too short, or order names no item.
    """
    addresses, sizes, order = _int64s(addresses), _int64s(sizes), _int64s(order)
    count = min(len(addresses), len(sizes))
    if _gather(0, 2**63 - 1, address_of(addresses), address_of(sizes), count, address_of(order), len(order), out) < 0:
        raise ValueError(f"order does not fit {count} items, or out has fewer bytes than they need: {len(out)}")


def _int64s(array: Int64s) -> Int64s:
    return np.ascontiguousarray(array, np.int64)


# Addresses, not arrays, for what is only read:
# a read-only array (memory map, Arrow buffer) is another type to Numba, compiled once more.
@kernel
def _gather(
    source: int, source_bytes: int, starts: int, sizes: int, count: int, order: int, wanted: int, out: Bytes
) -> int:
    target, room, at = address(out), len(out), 0
    for i in range(wanted):
        item = load64(order + 8 * i)
        if item < 0 or item >= count:
            return -1
        start, size = load64(starts + 8 * item), load64(sizes + 8 * item)
        if size < 0 or size > room - at or start < 0 or start > source_bytes - size:
            return -1
        ahead = load64(order + 8 * (i + 8)) if i + 8 < wanted else -1
        if 0 <= ahead < count:
            where = source + load64(starts + 8 * ahead)
            for line in range(0, min(load64(sizes + 8 * ahead), 1024), 64):
                prefetch(where + line)
        copy(target + at, source + start, size)
        at += int(size)
    return at


_WINDOW_BYTES = 1 << 20  # 1 MiB: a read's fixed cost vanishes, and the window stays in the second-level cache
_LARGE_BYTES = 64 << 10  # 64 KiB: from this mean size on, reading only headers is quicker than reading through


class ContentDigest:
    """What tells the records of a file from others without a look at their payloads: 64 bits of all lengths and payload
    CRCs, in order. Against chance and mistakes, not against forgery: CRCs are easily made equal.
    """

    def __init__(self) -> None:
        self._state = np.zeros(1, np.uint64)

    def add(self, frames: Frames) -> None:
        """These frames come next; their own CRCs count, not `crcs`."""
        data, starts, lengths = (np.ascontiguousarray(one) for one in (frames.data, frames.starts, frames.lengths))
        _digest(address_of(data), address_of(starts), address_of(lengths), len(starts), self._state)

    @property
    def value(self) -> int:
        return int(self._state[0])

    def hopped(self, last_footer: Bytes) -> None:
        """The file ends with this CRC, and `hop` has counted what is before it."""
        if len(last_footer) == FOOTER_BYTES:
            _mix(int.from_bytes(last_footer.tobytes(), "little"), self._state)


@inlined
def _mixed_in(state: np.uint64, word: int) -> np.uint64:
    mixed = state ^ (np.uint64(word) * np.uint64(0x9E3779B97F4A7C15))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(27))


@kernel
def _mix(word: int, state: npt.NDArray[np.uint64]) -> None:
    state[0] = _mixed_in(state[0], word)


@kernel
def _digest(base: int, starts: int, lengths: int, count: int, state: npt.NDArray[np.uint64]) -> None:
    found = state[0]
    for i in range(count):
        at, length = load64(starts + 8 * i), load64(lengths + 8 * i)
        found = _mixed_in(_mixed_in(found, length), load32(base + at + 12 + length))
    state[0] = found


@kernel
def _hop(
    base: int, size: int, left: int, max_record_bytes: int, first: bool, starts: Int64s, state: npt.NDArray[np.uint64]
) -> tuple[int, int, int]:
    """(headers found, position of the next, code) in a window of size bytes,
    with `left` bytes from its start to the file's end. first: no frame's CRC stands before it.
    """
    count, at = 0, 0
    found = state[0]
    while at < left:
        if at + 12 > size and left - at >= 12:
            state[0] = found
            return count, at, MORE
        code = header_fault(base + at, left - at, max_record_bytes, True)
        if code != GOOD:
            state[0] = found
            return count, at, code
        if count or not first:
            found = _mixed_in(found, load32(base + at - 4))
        length = load64(base + at)
        found = _mixed_in(found, length)
        starts[count] = at
        count += 1
        at += length + 16
    state[0] = found
    return count, at, GOOD


def hop(
    path: str,
    *,
    start: int = 0,
    stop: int | None = None,
    first_record: int = 0,
    source: str | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    content: ContentDigest | None = None,
) -> Iterator[Int64s]:
    """The byte offsets of the frames that begin in [start, stop), ascending, in arrays of up to some ten thousand.

    Args:
        start: where a frame begins. stop: the file's end if None. first_record: the number of the frame at start, for
            messages. content: is told what is found, of a whole file.

    Raises:
        DataError: a header is damaged, too long or truncated; it names source, record number and byte offset. Offsets
            before it have been given.
        OSError: as the operating system says it.
    """
    source, size = path if source is None else source, stat(path).size_bytes
    stop = size if stop is None else min(stop, size)
    state = np.zeros(1, np.uint64) if content is None else content._state
    at, record, window, lead = start, first_record, _WINDOW_BYTES, 0
    starts = np.empty(_WINDOW_BYTES // FRAME_BYTES + 1, np.int64)
    data = np.empty(0, np.uint8)
    while at < stop:
        lead = min(at, FOOTER_BYTES)  # the CRC of the record before
        data = read_range(path, at - lead, min(at + window, max(stop, at + HEADER_BYTES)))
        if len(data) < lead + min(HEADER_BYTES, size - at):
            raise DataError(f"ends at byte {at - lead + len(data)}, and had {size} bytes just now", source=source)
        first = lead < FOOTER_BYTES
        count, behind, code = _hop(
            address_of(data) + lead, len(data) - lead, size - at, max_record_bytes, first, starts, state
        )
        found = starts[:count] + at
        if count and found[-1] >= stop:
            yield found[: np.searchsorted(found, stop)]
            return
        if count:
            yield found
        if code == MORE and not count and len(data) < HEADER_BYTES:
            raise DataError(
                f"truncated: the file had {size} bytes when it was listed, and now ends at byte {at + len(data)}",
                source=source,
                place=f"record {record}, byte {at}",
            )
        if code not in (GOOD, MORE):
            place = f"record {record + count}, byte {at + behind}"
            header = data[lead + behind : lead + behind + 8]
            raise DataError(
                explain_frame(code, header, size - at - behind, max_record_bytes), source=source, place=place
            )
        window = HEADER_BYTES if count and behind > count * _LARGE_BYTES else _WINDOW_BYTES
        at, record, begin = at + behind, record + count, at - lead
        if content is not None and at == size:
            ends_here = begin + len(data) == size
            content.hopped(data[-FOOTER_BYTES:] if ends_here else read_range(path, size - FOOTER_BYTES, size))


def frame_end(path: str, start: int) -> int:
    """Where the frame ends that `hop` has found to begin there.

    Raises:
        DataError: the file has become shorter, or another one, since.
    """
    header = np.empty(1, np.int64)
    read_exactly(path, start, header.view(np.uint8))
    if not 0 <= header[0] <= MAX_RECORD_BYTES:
        raise DataError("changed while it was read", source=path, place=f"byte {start}")
    return start + int(header[0]) + FRAME_BYTES
