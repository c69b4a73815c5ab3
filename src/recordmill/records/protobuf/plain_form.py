"""Serialized Examples and SequenceExamples, however they are written, in the one form that `records.example.locate`
reads: protobuf itself parses each, or refuses it, and writes it again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from recordmill.base.arrays import Bytes, Int64s
from recordmill.records.protobuf.message_classes import (
    TYPE_BYTES,
    TYPE_FLOAT,
    TYPE_INT64,
    TYPE_STRING,
    MessageFields,
    message_classes,
)

EXAMPLE_PARTS, SEQUENCE_PARTS = 1, 2  # maps of a message: features; context and feature_lists
_MOST_ENTRIES = 1 << 18  # in the maps of a message: protobuf takes some 90 bytes for each, also for a repeated name

_FIELDS: MessageFields = {  # of messages of tensorflow/core/example/*.proto, from number 1 on
    "BytesList": {"*value": TYPE_BYTES},
    "FloatList": {"*value": TYPE_FLOAT},
    "Int64List": {"*value": TYPE_INT64},
    "Feature": {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"},
    "FeatureList": {"*feature": "Feature"},
    "Features": {"*feature": "Features.FeatureEntry"},
    "Features.FeatureEntry": {"key": TYPE_STRING, "value": "Feature"},
    "FeatureLists": {"*feature_list": "FeatureLists.FeatureListEntry"},
    "FeatureLists.FeatureListEntry": {"key": TYPE_STRING, "value": "FeatureList"},
    "Example": {"features": "Features"},
    "SequenceExample": {"context": "Features", "feature_lists": "FeatureLists"},
}


@dataclass(frozen=True)
class PlainForm:
    """A message as protobuf writes it: each name once, one list in a Feature, numbers packed, nothing unknown.

    Attributes:
        data: the bytes. entries: names in its maps. has_unknown: whether the message itself, as it was, had fields of
            other numbers or types; those of what lies in it do not count.
    """

    data: bytes
    entries: int
    has_unknown: bool


def plain_form(record: bytes, parts: int) -> PlainForm | None:
    """Rewrites an Example (parts = 1) or SequenceExample (2); None where protobuf refuses it, or it has so many entries
    in its maps that protobuf would take many times its bytes.

    >>> plain_form(bytes.fromhex("0a0b0a090a017812041a020805"), 1).data.hex()  # a number that is not packed
    '0a0c0a0a0a017812051a030a0105'
    """
    if len(record) > _MOST_ENTRIES and _count_fields(record, 0, len(record), 1) > _MOST_ENTRIES:
        return None
    try:
        message = _messages()[parts - 1].FromString(record)
    except DecodeError:
        return None
    entries = len(message.features.feature) if parts == EXAMPLE_PARTS else _entries(message)
    for _, part in message.ListFields():
        part.DiscardUnknownFields()
    with_unknown = message.ByteSize()  # an UnknownFieldSet would take 25 times the bytes of the record
    message.DiscardUnknownFields()
    data = message.SerializeToString(deterministic=True)
    return PlainForm(data, entries, len(data) < with_unknown)


def _count_fields(data: bytes, at: int, stop: int, depth: int) -> int:
    """Counts the fields that lie `depth` messages deep, up to a little more than _MOST_ENTRIES. Groups are looked into
    as if their fields stood around them.
    """
    found = 0
    while at < stop and found <= _MOST_ENTRIES:
        found += not depth
        tag, at = _varint(data, at)
        if tag & 7 == 2:
            size, at = _varint(data, at)
            found += _count_fields(data, at, min(at + size, stop), depth - 1) if depth else 0
            at += size
        elif tag & 7 == 0:
            _, at = _varint(data, at)
        else:
            at += {1: 8, 5: 4}.get(tag & 7, 0)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and where it ends; the end of the data where it is cut off."""
    value = shift = 0
    while at < len(data):
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return value, at


def _entries(message: Any) -> int:
    return len(message.context.feature) + len(message.feature_lists.feature_list)


def join_records(records: Sequence[bytes]) -> tuple[Bytes, Int64s, Int64s]:
    """Returns a read-only buffer of the records, and int64 [records] starts and lengths."""
    lengths = np.array([len(record) for record in records], np.int64)
    return np.frombuffer(b"".join(records), np.uint8), np.cumsum(lengths) - lengths, lengths


@functools.cache
def _messages() -> tuple[type[Any], type[Any]]:
    classes = message_classes(_FIELDS)
    return classes["Example"], classes["SequenceExample"]
