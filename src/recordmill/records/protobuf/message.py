"""One protobuf message in Python, field by field: for single records, and for what kernels have found to be rare;
and classes of messages from tables of their fields, in a pool of their own: TensorFlow's may be loaded beside them.

`to_plain_form` brings Examples and SequenceExamples, however they are written, into the one form that
`records.example.locate` reads: protobuf itself parses each, or refuses it, and writes it again.
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
# Of a message by name. A field's key is its name, after `*` where it is repeated; its value a type above or the name of
# a message, and its number where that is not one more than that of the field before.
MessageFields = Mapping[str, Mapping[str, int | str | tuple[int | str, int]]]
EXAMPLE_MAPS, SEQUENCE_MAPS = 1, 2  # maps of a message: features; context and feature_lists
_MAX_ENTRIES = (
    1 << 18
)  # in the maps of a message: protobuf takes some 90 bytes for each, also for a repeated name
LIST_NAMES = {kind: f"{kind}_list" for kind in ("bytes", "float", "int64")}  # of a Feature, by kind
_EXAMPLE_FIELDS: MessageFields = {  # of messages of tensorflow/core/example/*.proto, from number 1 on
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
    """The first feature name that is none, if the record is otherwise built as an Example; None if it isn't, or is
    too large to be looked at.

    >>> find_invalid_name(b"\\n\\x07\\n\\x05\\n\\x01\\0\\x12\\0")
    b'\\x00'
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
    """Returns the class of an Example or a SequenceExample in which a name may be any bytes."""
    entry: Mapping[str, int | str | tuple[int | str, int]] = {"key": TYPE_BYTES, "value": "Any"}
    maps: MessageFields = {"Any": {}, "Entry": entry, "Map": {"*entry": "Entry"}}
    return make_message_classes({**maps, "Record": {"*first": "Map", "*second": "Map"}})["Record"]


def encode_varint(value: int) -> bytes:
    """Returns a number from 0 to 2^64 - 1 as a base-128 varint."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*groups, value))


def make_message_classes(messages: MessageFields) -> dict[str, type[Any]]:
    """Builds the classes; a name with a dot is that of a map's entry in the message before the dot."""
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
        if name == "Feature":  # its fields exclude each other
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
    """A message as protobuf writes it: each name once, one list in a Feature, numbers packed, nothing unknown.

    Attributes:
        data: the bytes. num_entries: names in its maps. has_unknown_fields: whether the message itself, as it was, had fields of
            other numbers or types; those of what lies in it do not count.
    """

    data: bytes
    num_entries: int
    has_unknown_fields: bool


def to_plain_form(record: bytes, map_count: int) -> PlainForm | None:
    """Rewrites an Example (parts = 1) or SequenceExample (2); None where protobuf refuses it, or it has so many entries
    in its maps that protobuf would take many times its bytes.

    >>> to_plain_form(bytes.fromhex("0a0b0a090a017812041a020805"), 1).data.hex()  # a number that is not packed
    '0a0c0a0a0a017812051a030a0105'
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
    for _, feature_map in message.ListFields():
        feature_map.DiscardUnknownFields()
    original_bytes = (
        message.ByteSize()
    )  # an UnknownFieldSet would take 25 times the bytes of the record
    message.DiscardUnknownFields()
    data = message.SerializeToString(deterministic=True)
    return PlainForm(data, entries, len(data) < original_bytes)


def _has_too_many_entries(record: bytes) -> bool:
    """Returns whether protobuf would take many times the bytes of the record."""
    return (
        len(record) > _MAX_ENTRIES
        and _count_fields(record, offset=0, end=len(record), depth=1) > _MAX_ENTRIES
    )


def _count_fields(data: bytes, offset: int, end: int, depth: int) -> int:
    """Counts fields `depth` messages deep, up to a little above _MAX_ENTRIES; groups' fields as if around them."""
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
            offset += {1: 8, 5: 4}.get(tag & 7, 0)
    return count


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """The number at `at` and where it ends; the end of the data where it is cut off."""
    value = shift = 0
    while offset < len(data):
        byte, offset = data[offset], offset + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return value, offset


def join_records(records: Sequence[bytes]) -> tuple[Bytes, Int64s, Int64s]:
    """Returns a read-only buffer of the records, and int64 [records] starts and lengths."""
    lengths = np.array([len(record) for record in records], np.int64)
    return np.frombuffer(b"".join(records), np.uint8), np.cumsum(lengths) - lengths, lengths


def example_class() -> type[Any]:
    """Returns protobuf's class of tf.train.Example."""
    return _message_classes()[0]


@functools.cache
def _message_classes() -> tuple[type[Any], type[Any]]:
    classes = make_message_classes(_EXAMPLE_FIELDS)
    return classes["Example"], classes["SequenceExample"]
