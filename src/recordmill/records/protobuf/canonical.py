"""Serialized Examples and SequenceExamples, however they are written, to the one plain form that
`records.example.locate` reads, each checked as upb checks it; or the reason why one is refused.
"""

from __future__ import annotations

import numpy as np

from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.kernels import allocating, kernel
from recordmill.base.pointers import address, copy, put_varint_at
from recordmill.records.protobuf.wire import (
    HALF_FLOAT,
    I32,
    KEY_NOT_UTF8,
    LEN,
    MANY_ENTRIES,
    MAX_DEPTH,
    VARINT,
    extent,
    is_utf8_text,
    put_padded,
    refuse_field,
    skip,
    tag,
    varint,
)

BYTES_LIST_TAG, FLOAT_LIST_TAG, INT64_LIST = 1, 2, 3  # field numbers in Feature.kind
_LEN_KEY, _LEN_VALUE = 0x0A, 0x12  # tags of fields 1 and 2 with wire type LEN
ENTRY_BYTES = 64  # room for the headers of one entry in the plain form: at most six tags with five-byte lengths
# 262,144 of one record, four times the most features: while the last of each key is looked for they take 56 bytes each
MAX_ENTRIES = 1 << 18


@kernel
def check_list(data: Bytes, at: int, end: int, kind: int, depth: int, groups: Int64s, fault: Int64s) -> int:
    """Read a BytesList, FloatList or Int64List to its end; gives the end or -1.

    "Parsers must be able to parse repeated fields that were compiled as packed as if they were not packed, and vice
    versa", mixed too.
    """
    while at < end:
        field, wire, body = tag(data, at, end, fault)
        if body < 0:
            return -1
        if field == 1 and wire == LEN:
            start, at = extent(data, body, end, fault)
            if at < 0:
                return -1
            if kind == FLOAT_LIST_TAG and (at - start) & 3:
                return refuse_field(fault, HALF_FLOAT, body)
            while kind == INT64_LIST and start < at:
                _, start = varint(data, start, at, fault)
                if start < 0:
                    return -1
        else:
            at = skip(data, body, end, field, wire, depth, groups, fault)
            if at < 0:
                return -1
    return at


@kernel
def check_feature(data: Bytes, at: int, end: int, depth: int, groups: Int64s, fault: Int64s) -> int:
    """Read a Feature to its end; gives the end or -1."""
    while at < end:
        field, wire, body = tag(data, at, end, fault)
        if body < 0:
            return -1
        if field <= INT64_LIST and wire == LEN:
            start, at = extent(data, body, end, fault)
            if at < 0 or check_list(data, start, at, field, depth + 1, groups, fault) < 0:
                return -1
        else:
            at = skip(data, body, end, field, wire, depth, groups, fault)
            if at < 0:
                return -1
    return at


@kernel
def check_feature_list(data: Bytes, at: int, end: int, depth: int, groups: Int64s, fault: Int64s) -> int:
    """Read a FeatureList to its end; gives the end or -1."""
    while at < end:
        field, wire, body = tag(data, at, end, fault)
        if body < 0:
            return -1
        if field == 1 and wire == LEN:
            start, at = extent(data, body, end, fault)
            if at < 0 or check_feature(data, start, at, depth + 1, groups, fault) < 0:
                return -1
        else:
            at = skip(data, body, end, field, wire, depth, groups, fault)
            if at < 0:
                return -1
    return at


@kernel
def check_map_entry(data: Bytes, at: int, end: int, part: int, entry: Int64s, groups: Int64s, fault: Int64s) -> int:
    """Read one map entry of part 1 (Features) or 2 (FeatureLists);
    gives 1 if it counts, 0 if upb drops it, -1 if it is refused.

    A missing key is the empty string, the last of several holds. An entry with an unknown field of its own is to upb an
    unknown field of the map's message (it would be lost in a map), so it counts for nothing, its key included.
    """
    entry[0], entry[1], entry[2], entry[3], entry[4] = at, 0, at, end, part
    known = 1
    while at < end:
        field, wire, body = tag(data, at, end, fault)
        if body < 0:
            return -1
        if field <= 2 and wire == LEN:
            start, at = extent(data, body, end, fault)
            if at < 0:
                return -1
            if field == 1:
                if not is_utf8_text(address(data) + start, address(data) + at):
                    return refuse_field(fault, KEY_NOT_UTF8, start)
                entry[0], entry[1] = start, at - start
            elif part == 1:
                if check_feature(data, start, at, 3, groups, fault) < 0:
                    return -1
            elif check_feature_list(data, start, at, 3, groups, fault) < 0:
                return -1
        else:
            known = 0
            at = skip(data, body, end, field, wire, 2, groups, fault)
            if at < 0:
                return -1
    return known


@kernel
def check_map(
    data: Bytes, at: int, end: int, part: int, entries: Int64s, count: int, groups: Int64s, fault: Int64s
) -> int:
    """Read a Features or FeatureLists message; gives the number of entries so far, or -1.
    What doesn't fit into entries is only counted.
    """
    room = entries.shape[0] - 1  # the last row takes what does not fit
    while at < end:
        field, wire, body = tag(data, at, end, fault)
        if body < 0:
            return -1
        if field == 1 and wire == LEN:
            start, at = extent(data, body, end, fault)
            if at < 0:
                return -1
            known = check_map_entry(data, start, at, part, entries[min(count, room)], groups, fault)
            if known < 0:
                return -1
            count += known
            if count > MAX_ENTRIES:
                return refuse_field(fault, MANY_ENTRIES, start)
        else:
            at = skip(data, body, end, field, wire, 1, groups, fault)
            if at < 0:
                return -1
    return count


@kernel
def check_message(data: Bytes, at: int, end: int, parts: int, entries: Int64s, groups: Int64s, fault: Int64s) -> int:
    """Read an Example (parts = 1) or a SequenceExample (parts = 2) whole; gives the number of map entries, or -1.

    entries: int64 [room + 1, 5], filled with (key position, key bytes, entry begin, entry end, part) in the order of
    the message. fault[2] counts the message's own unknown fields.
    """
    count = 0
    fault[2] = 0
    while at < end:
        field, wire, body = tag(data, at, end, fault)
        if body < 0:
            return -1
        if field <= parts and wire == LEN:
            start, at = extent(data, body, end, fault)
            if at < 0:
                return -1
            count = check_map(data, start, at, field, entries, count, groups, fault)
            if count < 0:
                return -1
        else:
            fault[2] += 1
            at = skip(data, body, end, field, wire, 0, groups, fault)
            if at < 0:
                return -1
    return count


@kernel
def _last_kind(
    data: Bytes, at: int, end: int, kind: int, first: int, seen: int, groups: Int64s, fault: Int64s
) -> tuple[int, int, int]:
    """Carry (kind, first, seen) through one fragment of a Feature:
    which list holds, from which occurrence on, how many were seen.

    "If [...] the parser encounters multiple members of the same oneof on the wire, only the last member seen is used";
    but adjacent members of one kind are merged, that is their lists are concatenated.
    """
    while at < end:
        field, wire, body = tag(data, at, end, fault)
        if field <= INT64_LIST and wire == LEN:
            _, at = extent(data, body, end, fault)
            if field != kind:
                kind, first = field, seen
            seen += 1
        else:
            at = skip(data, body, end, field, wire, 0, groups, fault)
    return kind, first, seen


@kernel
def _put_list(data: Bytes, at: int, end: int, kind: int, into: Bytes, to: int, groups: Int64s, fault: Int64s) -> int:
    """Append a list's values: framed ones for bytes, bare ones for numbers."""
    while at < end:
        field, wire, body = tag(data, at, end, fault)
        if field == 1 and wire == LEN:
            start, at = extent(data, body, end, fault)
            if kind == BYTES_LIST_TAG:
                into[to] = _LEN_KEY
                to = put_varint_at(address(into) + to + 1, at - start) - address(into)
                copy(address(into) + to, address(data) + start, at - start)
                to += at - start
            elif kind == FLOAT_LIST_TAG:
                copy(address(into) + to, address(data) + start, at - start)
                to += at - start
            else:
                while start < at:
                    value, start = varint(data, start, at, fault)
                    to = put_varint_at(address(into) + to, int(np.int64(value))) - address(into)
        elif kind == INT64_LIST and field == 1 and wire == VARINT:
            value, at = varint(data, body, end, fault)
            to = put_varint_at(address(into) + to, int(np.int64(value))) - address(into)
        elif kind == FLOAT_LIST_TAG and field == 1 and wire == I32:
            copy(address(into) + to, address(data) + body, 4)
            to += 4
            at = body + 4
        else:
            at = skip(data, body, end, field, wire, 0, groups, fault)
    return to


@kernel
def _put_lists(
    data: Bytes,
    at: int,
    end: int,
    kind: int,
    first: int,
    seen: int,
    into: Bytes,
    to: int,
    groups: Int64s,
    fault: Int64s,
) -> tuple[int, int]:
    """Append the values of one fragment's lists that count (see _last_kind); gives (seen, to)."""
    while at < end:
        field, wire, body = tag(data, at, end, fault)
        if field <= INT64_LIST and wire == LEN:
            start, at = extent(data, body, end, fault)
            if seen >= first:
                to = _put_list(data, start, at, kind, into, to, groups, fault)
            seen += 1
        else:
            at = skip(data, body, end, field, wire, 0, groups, fault)
    return seen, to


@kernel
def _put_feature(
    data: Bytes, at: int, end: int, entry: bool, into: Bytes, to: int, groups: Int64s, fault: Int64s
) -> int:
    """Append the plain Feature for the fragment [at, end) or, with entry, for all values of the map entry [at, end),
    which are merged.
    """
    kind, first, seen = 0, 0, 0
    begin = at
    if entry:
        while at < end:
            field, _, body = tag(data, at, end, fault)
            start, at = extent(data, body, end, fault)
            if field == 2:
                kind, first, seen = _last_kind(data, start, at, kind, first, seen, groups, fault)
    else:
        kind, first, seen = _last_kind(data, at, end, kind, first, seen, groups, fault)
    if kind == 0:
        return to
    into[to] = (kind << 3) | LEN
    list_size = to + 1
    to = packed_size = list_size + 5
    if kind != BYTES_LIST_TAG:
        into[to] = _LEN_KEY
        packed_size = to + 1
        to += 6
    values = to
    at, seen = begin, 0
    if entry:
        while at < end:
            field, _, body = tag(data, at, end, fault)
            start, at = extent(data, body, end, fault)
            if field == 2:
                seen, to = _put_lists(data, start, at, kind, first, seen, into, to, groups, fault)
    else:
        seen, to = _put_lists(data, at, end, kind, first, seen, into, to, groups, fault)
    if kind != BYTES_LIST_TAG:
        put_padded(into, packed_size, to - values)
    put_padded(into, list_size, to - list_size - 5)
    return to


@kernel
def _put_steps(data: Bytes, at: int, end: int, into: Bytes, to: int, groups: Int64s, fault: Int64s) -> int:
    """Append the plain FeatureList for all values
    of the map entry [at, end): "repeated fields are concatenated" when messages merge.
    """
    while at < end:
        field, _, body = tag(data, at, end, fault)
        step, at = extent(data, body, end, fault)
        while field == 2 and step < at:
            number, wire, body = tag(data, step, at, fault)
            if number == 1 and wire == LEN:
                start, step = extent(data, body, at, fault)
                into[to] = _LEN_KEY
                size = to + 1
                to = _put_feature(data, start, step, False, into, size + 5, groups, fault)
                put_padded(into, size, to - size - 5)
            else:
                step = skip(data, body, at, number, wire, 0, groups, fault)
    return to


@kernel
def put_entry(data: Bytes, entry: Int64s, into: Bytes, to: int, groups: Int64s, fault: Int64s) -> int:
    """Append one checked map entry in its plain form; gives the position behind it."""
    into[to] = _LEN_KEY
    entry_size = to + 1
    into[to + 6] = _LEN_KEY
    to = put_padded(into, to + 7, entry[1])
    copy(address(into) + to, address(data) + entry[0], entry[1])
    to += entry[1]
    into[to] = _LEN_VALUE
    value_size = to + 1
    if entry[4] == 1:
        to = _put_feature(data, entry[2], entry[3], True, into, value_size + 5, groups, fault)
    else:
        to = _put_steps(data, entry[2], entry[3], into, value_size + 5, groups, fault)
    put_padded(into, value_size, to - value_size - 5)
    put_padded(into, entry_size, to - entry_size - 5)
    return to


_FNV_BASIS, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


@kernel
def _same_key(data: Bytes, one: Int64s, other: Int64s) -> bool:
    if one[1] != other[1] or one[4] != other[4]:
        return False
    for i in range(one[1]):  # noqa: SIM110 - Numba compiles no generators
        if data[one[0] + i] != data[other[0] + i]:
            return False
    return True


@allocating
def _keep_last(data: Bytes, entries: Int64s, count: int) -> None:
    """Set the part (entry[4]) of every entry whose key comes again to 0: in a map "the last key seen is used"."""
    size = 4
    while size < 2 * count:
        size *= 2
    table = np.full(size, -1, np.int64)
    for i in range(count - 1, -1, -1):
        hashed = _FNV_BASIS + np.uint64(entries[i, 4])
        for k in range(entries[i, 0], entries[i, 0] + entries[i, 1]):
            hashed = (hashed ^ np.uint64(data[k])) * _FNV_PRIME
        slot = np.int64((hashed ^ (hashed >> np.uint64(32))) & np.uint64(size - 1))
        while table[slot] >= 0 and not _same_key(data, entries[i], entries[table[slot]]):
            slot = (slot + 1) & (size - 1)
        if table[slot] >= 0:
            entries[i, 4] = 0
        else:
            table[slot] = i


@allocating
def check_rows(data: Bytes, starts: Int64s, lengths: Int64s, parts: int, counts: Int64s, faults: Int64s) -> int:
    """Check each record as an Example (parts = 1) or SequenceExample (2);
    gives how many bytes their plain forms take at most, together.

    counts: int64 [rows], filled with each record's number of map entries, -1 for a refused one.
    faults: int64 [rows, 3], filled with (reason, position, unknown fields of the message); the first two are for a
    refused record.
    """
    entries = np.zeros((1, 5), np.int64)
    groups = np.zeros(MAX_DEPTH + 1, np.int64)
    total = 0
    for row in range(len(starts)):
        counts[row] = check_message(data, starts[row], starts[row] + lengths[row], parts, entries, groups, faults[row])
        if counts[row] >= 0:
            total += _room(lengths[row], counts[row], parts)
    return total


@kernel
def _room(length: int, count: int, parts: int) -> int:
    # Values never grow, headers do: those of an entry to ENTRY_BYTES, those of a Feature in a FeatureList from 4 bytes
    # to 18 (`0A 02 1A 00`). Of the 32, 12 are headers of parts, and 7 what `put_varint_at` may write behind its end.
    return (length if parts == 1 else 5 * length) + count * ENTRY_BYTES + 32


@allocating
def plain_rows(
    data: Bytes,
    starts: Int64s,
    lengths: Int64s,
    parts: int,
    counts: Int64s,
    into: Bytes,
    to_starts: Int64s,
    to_lengths: Int64s,
) -> int:
    """Write the plain form of each record that check_rows accepted; gives the bytes written.
    A refused one becomes an empty record.
    """
    groups = np.zeros(MAX_DEPTH + 1, np.int64)
    fault = np.zeros(3, np.int64)
    most = 0
    for row in range(len(counts)):
        most = max(most, counts[row])
    entries = np.zeros((most + 1, 5), np.int64)
    to = 0
    for row in range(len(starts)):
        to_starts[row] = to
        if counts[row] >= 0:
            check_message(data, starts[row], starts[row] + lengths[row], parts, entries, groups, fault)
            _keep_last(data, entries, counts[row])
            for part in range(1, parts + 1):
                begin = to
                to += 6
                for i in range(counts[row]):
                    if entries[i, 4] == part:
                        to = put_entry(data, entries[i], into, to, groups, fault)
                if to == begin + 6:
                    to = begin
                else:
                    into[begin] = (part << 3) | LEN
                    put_padded(into, begin + 1, to - begin - 6)
        to_lengths[row] = to - to_starts[row]
    return to
