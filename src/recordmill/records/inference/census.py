"""What stands in a run of records, counted in one pass without a schema: names as they turn up, and per name kinds,
lengths and contents; and what a bytes value looks like by its first bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.kernels import kernel
from recordmill.base.pointers import address, load8, load32, load64, store64
from recordmill.records.example.locate import UNREAD, UNUSUAL, plain_entry, plain_feature, plain_list, plain_steps
from recordmill.records.protobuf.name_table import find_slot, predicted
from recordmill.records.protobuf.wire import is_utf8_text, short_extent, short_varint

MAGIC_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WebP", "TIFF")

_JPEG, _PNG = 0xFFD8FF, 0x0A1A0A0D474E5089  # the start-of-image marker and the next one's first byte; the signature
_GIF, _BMP, _RIFF, _WEBP, _TIFF_LITTLE, _TIFF_BIG = 0x38464947, 0x4D42, 0x46464952, 0x50424557, 0x002A4949, 0x2A004D4D
_SPACES = 0x2020202020202020
_HIGH_BITS = -0x7F7F7F7F7F7F7F80


@kernel
def image_format(at: int, size: int) -> int:
    """1 + the index in FORMATS of the image that the bytes begin, or 0."""
    if size < 12:
        return 0
    head = load32(at)
    if load8(at) << 16 | load8(at + 1) << 8 | load8(at + 2) == _JPEG:
        return 1
    if load64(at) == _PNG:
        return 2
    if head == _GIF:
        return 3
    # two reserved numbers, which text beginning with BM does not have
    if head & 0xFFFF == _BMP and load32(at + 6) == 0:
        return 4
    if head == _RIFF and load32(at + 8) == _WEBP:
        return 5
    return 6 if head in (_TIFF_LITTLE, _TIFF_BIG) else 0


@kernel
def has_control(at: int, end: int) -> bool:
    """Whether the bytes have a control character that text does not:
    all below the space but tab, line feeds, carriage return and escape.
    """
    while at < end:
        if at + 8 <= end:
            word = load64(at)
            if (word - _SPACES) & ~word & _HIGH_BITS == 0:
                at += 8
                continue
        byte = load8(at)
        if byte < 0x20 and not (0x09 <= byte <= 0x0D or byte == 0x1B):
            return True
        at += 1
    return False


@kernel
def is_text(at: int, size: int) -> bool:
    """Whether the bytes are UTF-8 without such control characters; nothing at all is text."""
    return is_utf8_text(at, at + size) and not has_control(at, at + size)


@kernel
def all_text(values: Bytes, ends: Int64s) -> bool:
    """Whether none of the values is an image or no text, of which is known that they are UTF-8: value i is
    values[ends[i] : ends[i + 1]].
    """
    base = address(values)
    if has_control(base + ends[0], base + ends[-1]):
        return False
    for i in range(len(ends) - 1):  # noqa: SIM110 - Numba compiles no generators
        if image_format(base + ends[i], ends[i + 1] - ends[i]):
            return False
    return True


# The fields of one name's line of counts, all int64.
# FIRST_...: the first record with so many values
PRESENT, KINDLESS, EMPTY_VALUE, VALUE_COUNT, LEAST_VALUES, MOST_VALUES, FIRST_LEAST, FIRST_MOST = range(8)
BYTES_VALUES, TEXTS, LEAST_BYTES, MOST_LOOKED_AT_BYTES, LEAST_INT, MOST_INT, SUM_INT = range(8, 15)
RECORD_COUNT, LEAST_STEPS, MOST_STEPS, LAST_ROW = range(15, 19)
KIND = 19  # 3 fields: how many Features of kind 1, 2, 3 (bytes, float, int64)
FIRST_OF_KIND = 22  # 3 fields: the first record of each
IMAGE_VALUES = 25  # one field per format of MAGIC_FORMATS
CENSUS_FIELDS = IMAGE_VALUES + len(MAGIC_FORMATS)
CENSUS_FULL = 30  # a status: there is no room for another name
ABSENT_VALUE = (1 << 63) - 1  # no record number; also the identity of a minimum

_FEATURES, _FEATURE_LISTS = 0x0A, 0x12  # tags of the two parts


def new_counts(names: int) -> Int64s:
    """Counts of nothing for that many names, slot 0 included."""
    counts = np.zeros((names, CENSUS_FIELDS), np.int64)
    counts[
        :,
        [
            LEAST_VALUES,
            LEAST_BYTES,
            LEAST_INT,
            LEAST_STEPS,
            FIRST_LEAST,
            FIRST_MOST,
            *range(FIRST_OF_KIND, FIRST_OF_KIND + 3),
        ],
    ] = ABSENT_VALUE
    counts[:, [MOST_VALUES, MOST_LOOKED_AT_BYTES, MOST_STEPS, LAST_ROW]] = -1
    counts[:, MOST_INT] = -ABSENT_VALUE - 1
    return counts


@kernel
def _add(line: int, field: int, value: int) -> None:
    store64(line + 8 * field, load64(line + 8 * field) + value)


@kernel
def _least(line: int, field: int, value: int) -> None:
    store64(line + 8 * field, min(load64(line + 8 * field), value))


@kernel
def _most(line: int, field: int, value: int) -> None:
    store64(line + 8 * field, max(load64(line + 8 * field), value))


@kernel
def _extreme(line: int, field: int, first: int, value: int, excess: int, record: int) -> None:
    """Keep a least or most value and the first record that has it;
    excess: below 0 for a new extreme, 0 for the same again.
    """
    if excess < 0:
        store64(line + 8 * field, value)
        store64(line + 8 * first, record)
    elif excess == 0:
        _least(line, first, record)


@kernel
def _count_bytes(start: int, stop: int, line: int) -> int:
    """Count the values of a BytesList; gives how many."""
    count = 0
    while start < stop:
        at, start = short_extent(start + 1, stop)
        size = start - at
        _least(line, LEAST_BYTES, size)
        _most(line, MOST_LOOKED_AT_BYTES, size)
        image = image_format(at, size)
        if image:
            _add(line, IMAGE_VALUES + image - 1, 1)
        elif is_text(at, size):
            _add(line, TEXTS, 1)
        count += 1
    _add(line, BYTES_VALUES, count)
    return count


@kernel
def _count_ints(start: int, stop: int, limit: int, line: int) -> int:
    """Count the values of an Int64List; gives how many."""
    count, total, least, most = 0, 0, load64(line + 8 * LEAST_INT), load64(line + 8 * MOST_INT)
    while start < stop:
        value, start = short_varint(start, stop, limit)
        least, most, total = min(least, value), max(most, value), total + value
        count += 1
    store64(line + 8 * LEAST_INT, least)
    store64(line + 8 * MOST_INT, most)
    _add(line, SUM_INT, total)
    return count


@kernel
def count_feature(at: int, end: int, limit: int, record: int, line: int) -> None:
    """Count one plain Feature."""
    if at == end:
        _add(line, KINDLESS, 1)
        return
    tag = load8(at)
    start, stop = short_extent(at + 1, end)
    start, stop = plain_list(start, stop, tag)
    kind = tag >> 3
    count = (
        _count_bytes(start, stop, line)
        if kind == 1
        else (stop - start) >> 2
        if kind == 2
        else _count_ints(start, stop, limit, line)
    )
    _add(line, KIND + kind - 1, 1)
    _least(line, FIRST_OF_KIND + kind - 1, record)
    _add(line, PRESENT, 1)
    _add(line, EMPTY_VALUE, 1 if count == 0 else 0)
    _add(line, VALUE_COUNT, count)
    _extreme(line, LEAST_VALUES, FIRST_LEAST, count, count - load64(line + 8 * LEAST_VALUES), record)
    _extreme(line, MOST_VALUES, FIRST_MOST, count, load64(line + 8 * MOST_VALUES) - count, record)


@kernel
def count_steps(at: int, end: int, limit: int, record: int, line: int) -> None:
    """Count one plain FeatureList."""
    steps = 0
    while at < end:
        start, at = short_extent(at + 1, end)
        count_feature(start, at, limit, record, line)
        steps += 1
    _least(line, LEAST_STEPS, steps)
    _most(line, MOST_STEPS, steps)


@kernel
def name_slot(names: int, previous: int, key: int, key_end: int, part: int, limit: int) -> int:
    """The slot of a name, added if new; -1 if it is no plausible name, -2 if there is no room.

    Messages of other types parse as Example by chance; the keys then hold parts of the encoding, which begin with line
    feeds and small numbers.
    """
    slot = predicted(names, previous, key, key_end - key, part, limit)
    if slot < 0:
        if has_control(key, key_end) or (key < key_end and load8(key) == 0x0A):
            return -1
        slot = find_slot(names, previous, key, key_end, part, limit)
        if slot == 0:
            return -2
    return slot


@kernel
def walk_map(
    at: int, end: int, limit: int, part: int, row: int, record: int, names: int, counts: int, count: bool
) -> int:
    """Look at the entries of a Features (part 1) or FeatureLists (part 2) message, or count them;
    gives 0, UNUSUAL or FULL.
    """
    slot = 0
    while at < end:
        key, key_end, value, at = plain_entry(at, end)
        if at < 0:
            return UNUSUAL
        slot = name_slot(names, slot, key, key_end, part, limit)
        if slot < 0:
            return UNUSUAL if slot == -1 else CENSUS_FULL
        line = counts + 8 * CENSUS_FIELDS * slot
        if count:
            _add(line, RECORD_COUNT, 1)
            if part == 1:
                count_feature(value, at, limit, record, line)
            else:
                count_steps(value, at, limit, record, line)
        else:
            if load64(line + 8 * LAST_ROW) == row:
                return UNUSUAL
            store64(line + 8 * LAST_ROW, row)
            if not (plain_feature(value, at, True) if part == 1 else plain_steps(value, at, True)):
                return UNUSUAL
    return 0


@kernel
def walk_message(
    at: int, end: int, limit: int, row: int, record: int, names: int, counts: int, count: bool
) -> tuple[int, int]:
    """Walk an Example or SequenceExample; gives (0, UNUSUAL or FULL; which parts it has: 1, 2 or 3 for both)."""
    parts = 0
    while at < end:
        tag = load8(at)
        part = 1 if tag == _FEATURES else 2 if tag == _FEATURE_LISTS else 0
        if part <= parts:
            return UNUSUAL, parts
        start, at = short_extent(at + 1, end)
        if at < 0:
            return UNUSUAL, parts
        parts |= part
        status = walk_map(start, at, limit, part, row, record, names, counts, count)
        if status != 0:
            return status, parts
    return 0, parts


@kernel
def take_census(
    data: Bytes,
    starts: Int64s,
    lengths: Int64s,
    first_record: int,
    names: int,
    counts: Int64s,
    status: npt.NDArray[np.uint8],
    parts: Int64s,
) -> int:
    """Count the records that are UNREAD; gives how many are left with a status other than 0 (UNUSUAL), or -1 if the
    names are too many.

    parts: int64 [rows], filled with what walk_message gives.
    """
    base, lines = address(data), address(counts)
    left = 0
    for row in range(len(starts)):
        if status[row] == UNREAD:
            at, end, limit, record = (
                base + starts[row],
                base + starts[row] + lengths[row],
                base + len(data),
                first_record + row,
            )
            reason, parts[row] = walk_message(at, end, limit, row, record, names, lines, False)
            if reason == CENSUS_FULL:
                return -1
            if reason == 0:
                walk_message(at, end, limit, row, record, names, lines, True)
            status[row] = reason
        left += status[row] != 0
    return left
