"""Parsing of single messages by the protobuf library.

The protobuf library only parses the rare records that our own kernels do not read. The message
classes are built from tables of fields. They are in a descriptor pool of their own, because
TensorFlow's messages of the same names may be loaded as well.

The plain form of an Example or SequenceExample is the only form that `records.example.locate`
reads. `to_plain_form` lets protobuf parse a record and write it again in this form, unless protobuf
refuses it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.utf8 import is_feature_name

_FIELD_PROTO = descriptor_pb2.FieldDescriptorProto
TYPE_BYTES, TYPE_STRING, TYPE_FLOAT = (
    _FIELD_PROTO.TYPE_BYTES,
    _FIELD_PROTO.TYPE_STRING,
    _FIELD_PROTO.TYPE_FLOAT,
)
TYPE_INT64, TYPE_FIXED32, TYPE_FIXED64 = (
    _FIELD_PROTO.TYPE_INT64,
    _FIELD_PROTO.TYPE_FIXED32,
    _FIELD_PROTO.TYPE_FIXED64,
)
# For each message name and field name: the type of the field, which is a constant above or the name
# of a message. `*` before the name of a field means that the field is repeated. The number of a
# field is one more than that of the field before, unless the value is (type, number).
MessageFields = Mapping[str, Mapping[str, int | str | tuple[int | str, int]]]
# number of maps in a message: `features`, or `context` and `feature_lists`
EXAMPLE_MAPS, SEQUENCE_MAPS = 1, 2
# Maximum number of entries in the maps of a message. Protobuf takes some 90 bytes for each, even
# for a repeated name.
_MAX_ENTRIES = 1 << 18
# the list field of a Feature for each kind
LIST_NAMES = {kind: f"{kind}_list" for kind in ("bytes", "float", "int64")}
# messages of tensorflow/core/example/*.proto
_EXAMPLE_FIELDS: MessageFields = {
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


def find_invalid_name(record: bytes) -> bytes | None:
    r"""Returns the first invalid feature name of a record.

    The record must be an Example in all other respects. The result is None for other records, and
    for records with too many names.

    >>> find_invalid_name(b"\n\x07\n\x05\n\x01\0\x12\0")
    b'\x00'
    """
    if _has_too_many_entries(record):
        return None
    try:
        message = _any_name_class().FromString(record)
    except DecodeError:
        return None
    entries = [
        entry for feature_map in (*message.first, *message.second) for entry in feature_map.entry
    ]
    invalid_names = (
        entry.key for entry in entries if entry.HasField("value") and not is_feature_name(entry.key)
    )
    return next(invalid_names, None)


@functools.cache
def _any_name_class() -> type[Any]:
    """Returns a message class that accepts any bytes as feature names.

    The class parses both Examples and SequenceExamples.
    """
    entry: Mapping[str, int | str | tuple[int | str, int]] = {"key": TYPE_BYTES, "value": "Any"}
    maps: MessageFields = {"Any": {}, "Entry": entry, "Map": {"*entry": "Entry"}}
    return make_message_classes({**maps, "Record": {"*first": "Map", "*second": "Map"}})["Record"]


def encode_varint(value: int) -> bytes:
    """Returns a number from 0 to 2^64 - 1 as a base-128 varint.

    >>> encode_varint(300).hex()
    'ac02'
    """
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*groups, value))


def make_message_classes(messages: MessageFields) -> dict[str, type[Any]]:
    """Builds message classes from tables of fields.

    Args:
        messages: The fields by message name. A message called `A.B` is the entry type of a map in
            message `A`, which must come first.

    Returns:
        The classes by message name, without the entry types.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name="recordmill/messages.proto", package="recordmill", syntax="proto3"
    )
    descriptors: dict[str, Any] = {}
    for name, fields in messages.items():
        outer, _, leaf_name = name.rpartition(".")
        descriptors[name] = (
            descriptors[outer].nested_type.add(name=leaf_name)
            if outer
            else file.message_type.add(name=leaf_name)
        )
        descriptors[name].options.map_entry = bool(outer)
        number = 0
        for label, type_and_number in fields.items():
            type_or_message, number = (
                type_and_number
                if isinstance(type_and_number, tuple)
                else (type_and_number, number + 1)
            )
            field = descriptors[name].field.add(name=label.lstrip("*"), number=number)
            field.label = (
                _FIELD_PROTO.LABEL_REPEATED if label[0] == "*" else _FIELD_PROTO.LABEL_OPTIONAL
            )
            field.type = (
                _FIELD_PROTO.TYPE_MESSAGE if isinstance(type_or_message, str) else type_or_message
            )
            if isinstance(type_or_message, str):
                field.type_name = f".recordmill.{type_or_message}"
        # The three lists of a Feature exclude each other.
        if name == "Feature":
            descriptors[name].oneof_decl.add(name="kind")
            for field in descriptors[name].field:
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"recordmill.{name}"))
        for name in messages
        if "." not in name
    }


@dataclass(frozen=True)
class PlainForm:
    """A message in the form in which protobuf writes it.

    Each name appears once, each Feature has one list, numbers are packed, and there are no unknown
    fields.

    Attributes:
        data: The bytes of the message.
        has_unknown_fields: Whether the original message had fields that its type does not define.
            Unknown fields of messages inside it count only if its maps have no entries.
        has_map: Whether a map of the message has entries, or is present and has no content at all.
    """

    data: bytes
    has_unknown_fields: bool
    has_map: bool


def to_plain_form(record: bytes, map_count: int) -> PlainForm | None:
    """Rewrites an Example or a SequenceExample to the plain form.

    In this example, the number in the record is not packed:

    >>> to_plain_form(bytes.fromhex("0a0b0a090a017812041a020805"), 1).data.hex()
    '0a0c0a0a0a017812051a030a0105'

    Args:
        record: The bytes of the record.
        map_count: 1 for an Example, 2 for a SequenceExample.

    Returns:
        The plain form. None if protobuf refuses the record. Also None if its maps have too many
        entries, because protobuf would take many times the size of such a record.
    """
    if _has_too_many_entries(record):
        return None
    try:
        message = _message_classes()[map_count - 1].FromString(record)
    except DecodeError:
        return None
    if map_count == EXAMPLE_MAPS:
        entries = len(message.features.feature)
    else:
        entries = len(message.context.feature) + len(message.feature_lists.feature_list)
    # Unknown fields inside the maps are allowed if there are entries. They are discarded first, so
    # that the difference of the sizes below shows only unknown fields of the message itself.
    # Without entries, they show that the record is another message, such as statistics.
    for _, feature_map in message.ListFields() if entries else ():
        feature_map.DiscardUnknownFields()
    # The size shows whether there were unknown fields. An UnknownFieldSet would take 25 times the
    # size of the record.
    original_bytes = message.ByteSize()
    has_map = entries > 0 or any(not part.ByteSize() for _, part in message.ListFields())
    message.DiscardUnknownFields()
    data = message.SerializeToString(deterministic=True)
    return PlainForm(data, len(data) < original_bytes, has_map)


def _has_too_many_entries(record: bytes) -> bool:
    """Returns whether the maps of a record have more than _MAX_ENTRIES entries.

    Protobuf would take too much memory for such a record.
    """
    return (
        len(record) > _MAX_ENTRIES
        and _count_fields(record, offset=0, end=len(record), depth=1) > _MAX_ENTRIES
    )


def _count_fields(data: bytes, offset: int, end: int, depth: int) -> int:
    """Counts the fields of the messages that are `depth` levels inside a message.

    The count stops slightly above _MAX_ENTRIES. Fields of groups count as fields of the message
    around the group.

    Args:
        data: The buffer.
        offset: Start of the outer message.
        end: End of the outer message.
        depth: 0 counts the fields of the outer message itself.
    """
    count = 0
    while offset < end and count <= _MAX_ENTRIES:
        count += not depth
        tag, offset = _read_varint(data, offset)
        if tag & 7 == 2:
            size, offset = _read_varint(data, offset)
            count += (
                _count_fields(data, offset=offset, end=min(offset + size, end), depth=depth - 1)
                if depth
                else 0
            )
            offset += size
        elif tag & 7 == 0:
            _, offset = _read_varint(data, offset)
        else:
            # the fixed sizes of 64-bit and 32-bit fields
            offset += {1: 8, 5: 4}.get(tag & 7, 0)
    return count


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Reads a number in protobuf's variable-length encoding.

    A number that is cut off ends at the end of the data.

    Returns:
        (the number, the offset after it).
    """
    value = shift = 0
    while offset < len(data):
        byte, offset = data[offset], offset + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return value, offset


def join_records(records: Sequence[bytes]) -> tuple[Bytes, Int64s, Int64s]:
    """Joins records into one read-only buffer.

    Returns:
        (the buffer, the start of each record in it, the length of each record).
    """
    lengths = np.array([len(record) for record in records], np.int64)
    return np.frombuffer(b"".join(records), np.uint8), np.cumsum(lengths) - lengths, lengths


def example_class() -> type[Any]:
    """Returns protobuf's class of tf.train.Example."""
    return _message_classes()[0]


@functools.cache
def _message_classes() -> tuple[type[Any], type[Any]]:
    classes = make_message_classes(_EXAMPLE_FIELDS)
    return classes["Example"], classes["SequenceExample"]
