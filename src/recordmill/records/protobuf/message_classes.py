"""Classes of protobuf messages from tables of their fields, in a pool of their own: TensorFlow's may be loaded beside
them, and is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
TYPE_BYTES, TYPE_STRING, TYPE_FLOAT = _FIELD.TYPE_BYTES, _FIELD.TYPE_STRING, _FIELD.TYPE_FLOAT
TYPE_INT64, TYPE_FIXED32, TYPE_FIXED64 = _FIELD.TYPE_INT64, _FIELD.TYPE_FIXED32, _FIELD.TYPE_FIXED64

# Of a message by name. A field's key is its name, after `*` where it is repeated; its value a type above or the name of
# a message, and its number where that is not one more than that of the field before.
MessageFields = Mapping[str, Mapping[str, int | str | tuple[int | str, int]]]


def message_classes(messages: MessageFields) -> dict[str, type[Any]]:
    """Builds the classes; a name with a dot is that of a map's entry in the message before the dot."""
    file = descriptor_pb2.FileDescriptorProto(name="recordmill/messages.proto", package="recordmill", syntax="proto3")
    made: dict[str, Any] = {}
    for name, fields in messages.items():
        outer, _, own = name.rpartition(".")
        made[name] = made[outer].nested_type.add(name=own) if outer else file.message_type.add(name=own)
        made[name].options.map_entry = bool(outer)
        number = 0
        for label, about in fields.items():
            kind, number = about if isinstance(about, tuple) else (about, number + 1)
            field = made[name].field.add(name=label.lstrip("*"), number=number)
            field.label = _FIELD.LABEL_REPEATED if label[0] == "*" else _FIELD.LABEL_OPTIONAL
            field.type = _FIELD.TYPE_MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                field.type_name = f".recordmill.{kind}"
        if name == "Feature":  # its fields exclude each other
            made[name].oneof_decl.add(name="kind")
            for field in made[name].field:
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"recordmill.{name}"))
        for name in messages
        if "." not in name
    }
