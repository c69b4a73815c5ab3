"""One protobuf message in Python, field by field: for single records, and for what kernels have found to be rare."""

from __future__ import annotations

from collections.abc import Iterator

from recordmill.base.utf8 import is_feature_name

VARINT, I64, LEN, I32 = 0, 1, 2, 5  # the wire types that have not gone out of use
_SIZES = {I64: 8, I32: 4}
_MOST_ENTRIES = 1 << 16  # 65,536 that are looked at for a wrong name, half a second; the most features there are


def fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """(field number, wire type, value) of each field: a varint's number, or the content of any other.

    Raises:
        ValueError: it is no message, is cut off, or holds a group.
    """
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = read_varint(message, at)
            yield number, wire, value
            continue
        size = _SIZES.get(wire, 0)
        if wire == LEN:
            size, at = read_varint(message, at)
        if not number or not (size or wire == LEN) or at + size > len(message):
            raise ValueError(f"no field of a message before byte {at}")
        yield number, wire, message[at : at + size]
        at += size


def parts(message: bytes) -> Iterator[tuple[int, bytes]]:
    """(field number, content) of a message of length-delimited fields; ValueError where one is not."""
    for number, _, content in fields(message):
        if not isinstance(content, bytes):
            raise ValueError(f"field {number} is not length-delimited")
        yield number, content


def wrong_name(record: bytes) -> bytes | None:
    """The first feature name that is none, if the record is otherwise built as an Example; None if it isn't, or is
    too large to be looked at.

    >>> wrong_name(b"\\n\\x07\\n\\x05\\n\\x01\\0\\x12\\0")
    b'\\x00'
    """
    wrong = None
    try:
        entries = (dict(parts(entry)) for _, part in parts(record) for _, entry in parts(part))
        for at, entry in enumerate(entries):
            if at == _MOST_ENTRIES:
                return None
            if wrong is None and 2 in entry and not is_feature_name(name := entry.get(1, b"")):
                wrong = name
    except ValueError:
        return None
    return wrong


def varints(packed: bytes) -> Iterator[int]:
    """The numbers of a packed list, without their sign: [0, 2**64)."""
    at = 0
    while at < len(packed):
        value, at = read_varint(packed, at)
        yield value & 0xFFFFFFFFFFFFFFFF


def encoded_varint(value: int) -> bytes:
    """Returns a number from 0 to 2^64 - 1 as a base-128 varint."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*groups, value))


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, position behind it); ValueError if it is cut off, or longer than ten bytes."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError(f"no varint before byte {at}")
