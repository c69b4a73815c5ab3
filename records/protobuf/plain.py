"""Records written in an unusual way, to a buffer of the same records in the plain form of `records.protobuf.exact`,
each checked as upb checks it.
"""

from __future__ import annotations

import numpy as np

from recordmill.base.kernels import allocating, kernel
from recordmill.records.protobuf.exact import ENTRY_BYTES, check_message, put_entry
from recordmill.records.protobuf.wire import LEN, MAX_DEPTH, Bytes, Ints, put_padded

_FNV_BASIS, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


@kernel
def _same_key(data: Bytes, one: Ints, other: Ints) -> bool:
    if one[1] != other[1] or one[4] != other[4]:
        return False
    for i in range(one[1]):  # noqa: SIM110 - Numba compiles no generators
        if data[one[0] + i] != data[other[0] + i]:
            return False
    return True


@allocating
def _keep_last(data: Bytes, entries: Ints, count: int) -> None:
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
def check_rows(data: Bytes, starts: Ints, lengths: Ints, parts: int, counts: Ints, faults: Ints) -> int:
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
    # to 18 (`0A 02 1A 00`). Of the 32, 12 are headers of parts, and 7 what `put_varint` may write behind its end.
    return (length if parts == 1 else 5 * length) + count * ENTRY_BYTES + 32


@allocating
def plain_rows(
    data: Bytes, starts: Ints, lengths: Ints, parts: int, counts: Ints, into: Bytes, to_starts: Ints, to_lengths: Ints
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
