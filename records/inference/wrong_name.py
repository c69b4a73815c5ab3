"""A record that is no Example to the name by which it fails: a feature whose name is no UTF-8 text, or holds NUL.

It walks one record by hand, for a message to people; what makes records readable is `records.example`.
"""

from __future__ import annotations

from collections.abc import Iterator

_LENGTH_DELIMITED = 2  # the wire type of all that an Example nests
_LONGEST_VARINT = 10  # bytes


def wrong_name(record: bytes) -> bytes | None:
    """The first feature name that is none, if the record is otherwise built as an Example; None if it isn't.

    >>> wrong_name(b"\\n\\x07\\n\\x05\\n\\x01\\0\\x12\\0")
    b'\\x00'
    """
    try:
        names = [
            dict(_fields(entry)).get(1, b"")
            for _, part in _fields(record)
            for _, entry in _fields(part)
            if 2 in dict(_fields(entry))
        ]
    except ValueError:
        return None
    return next((name for name in names if not _is_name(name)), None)


def _is_name(name: bytes) -> bool:
    try:
        return "\0" not in name.decode()
    except UnicodeDecodeError:
        return False


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, content) of each field; ValueError if one is not length-delimited, or the message is none."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        size, at = _varint(message, at)
        if key & 7 != _LENGTH_DELIMITED or key >> 3 not in (1, 2) or at + size > len(message):
            raise ValueError
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(_LONGEST_VARINT):
        if at >= len(message):
            break
        value |= (message[at] & 127) << (7 * shift)
        at += 1
        if message[at - 1] < 128:
            return value, at
    raise ValueError
