"""One serialized Example or SequenceExample, however written, to the one plain form that `records.example.locate`
reads; or the reason why it is refused.

This is the slow, exact half of the decoder: it accepts what upb accepts and keeps the values that upb keeps. The plain
form has each map key once with key and value in that order, one list in a Feature, one packed run in a numeric list,
and nothing unknown.

    message Example { Features features = 1; }
    message SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
    message Features { map<string, Feature> feature = 1; }  // entry: message { string key = 1; Feature value = 2; }
    message FeatureLists { map<string, FeatureList> feature_list = 1; }
    message FeatureList { repeated Feature feature = 1; }
    message Feature { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
"""

from __future__ import annotations

import numpy as np

from recordmill.base.kernels import kernel
from recordmill.base.memory import address, copy, put_varint
from recordmill.records.protobuf.wire import (
    HALF_FLOAT,
    I32,
    KEY_NOT_UTF8,
    LEN,
    VARINT,
    Bytes,
    Ints,
    extent,
    is_utf8,
    put_padded,
    refuse,
    skip,
    tag,
    varint,
)

BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3  # field numbers in Feature.kind
_LEN_KEY, _LEN_VALUE = 0x0A, 0x12  # tags of fields 1 and 2 with wire type LEN
ENTRY_BYTES = 64  # room for the headers of one entry in the plain form: at most six tags with five-byte lengths


@kernel
def check_list(data: Bytes, at: int, end: int, kind: int, depth: int, groups: Ints, fault: Ints) -> int:
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
            if kind == FLOAT_LIST and (at - start) & 3:
                return refuse(fault, HALF_FLOAT, body)
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
def check_feature(data: Bytes, at: int, end: int, depth: int, groups: Ints, fault: Ints) -> int:
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
def check_feature_list(data: Bytes, at: int, end: int, depth: int, groups: Ints, fault: Ints) -> int:
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
def check_entry(data: Bytes, at: int, end: int, part: int, entry: Ints, groups: Ints, fault: Ints) -> int:
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
                if not is_utf8(address(data) + start, address(data) + at):
                    return refuse(fault, KEY_NOT_UTF8, start)
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
def check_map(data: Bytes, at: int, end: int, part: int, entries: Ints, count: int, groups: Ints, fault: Ints) -> int:
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
            known = check_entry(data, start, at, part, entries[min(count, room)], groups, fault)
            if known < 0:
                return -1
            count += known
        else:
            at = skip(data, body, end, field, wire, 1, groups, fault)
            if at < 0:
                return -1
    return count


@kernel
def check_message(data: Bytes, at: int, end: int, parts: int, entries: Ints, groups: Ints, fault: Ints) -> int:
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
    data: Bytes, at: int, end: int, kind: int, first: int, seen: int, groups: Ints, fault: Ints
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
def _put_list(data: Bytes, at: int, end: int, kind: int, into: Bytes, to: int, groups: Ints, fault: Ints) -> int:
    """Append a list's values: framed ones for bytes, bare ones for numbers."""
    while at < end:
        field, wire, body = tag(data, at, end, fault)
        if field == 1 and wire == LEN:
            start, at = extent(data, body, end, fault)
            if kind == BYTES_LIST:
                into[to] = _LEN_KEY
                to = put_varint(address(into) + to + 1, at - start) - address(into)
                copy(address(into) + to, address(data) + start, at - start)
                to += at - start
            elif kind == FLOAT_LIST:
                copy(address(into) + to, address(data) + start, at - start)
                to += at - start
            else:
                while start < at:
                    value, start = varint(data, start, at, fault)
                    to = put_varint(address(into) + to, int(np.int64(value))) - address(into)
        elif kind == INT64_LIST and field == 1 and wire == VARINT:
            value, at = varint(data, body, end, fault)
            to = put_varint(address(into) + to, int(np.int64(value))) - address(into)
        elif kind == FLOAT_LIST and field == 1 and wire == I32:
            copy(address(into) + to, address(data) + body, 4)
            to += 4
            at = body + 4
        else:
            at = skip(data, body, end, field, wire, 0, groups, fault)
    return to


@kernel
def _put_lists(
    data: Bytes, at: int, end: int, kind: int, first: int, seen: int, into: Bytes, to: int, groups: Ints, fault: Ints
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
def _put_feature(data: Bytes, at: int, end: int, entry: bool, into: Bytes, to: int, groups: Ints, fault: Ints) -> int:
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
    if kind != BYTES_LIST:
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
    if kind != BYTES_LIST:
        put_padded(into, packed_size, to - values)
    put_padded(into, list_size, to - list_size - 5)
    return to


@kernel
def _put_steps(data: Bytes, at: int, end: int, into: Bytes, to: int, groups: Ints, fault: Ints) -> int:
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
def put_entry(data: Bytes, entry: Ints, into: Bytes, to: int, groups: Ints, fault: Ints) -> int:
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
