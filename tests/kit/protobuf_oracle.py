"""Expected batches, decoded with protobuf and plain Python, record by record."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from recordmill.schemas.feature import SEQUENCE_EXAMPLE, Feature, Schema

BAD = object()
_LISTS = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}


def messages() -> tuple[Any, Any, type[Exception]]:
    """Returns (Example, SequenceExample, DecodeError) of the protobuf library.

    The definitions are TensorFlow's. Skips the test if they are missing.
    """
    example_pb2 = pytest.importorskip(
        "tensorflow.core.example.example_pb2", reason="the oracle is TensorFlow's Example"
    )
    from google.protobuf.message import DecodeError

    return example_pb2.Example, example_pb2.SequenceExample, DecodeError


def expected_row(record: bytes, schema: Schema) -> Mapping[str, Any] | object:
    """Returns a record as a dict of the schema's features, or BAD."""
    example, sequence_example, error = messages()
    try:
        message = (sequence_example if schema.message == SEQUENCE_EXAMPLE else example).FromString(
            record
        )
    except error:
        return BAD
    row: dict[str, Any] = {}
    for feature in schema:
        if feature.per_step:
            lists = message.feature_lists.feature_list
            value = _steps(feature, lists[feature.name].feature) if feature.name in lists else None
        else:
            entries = (
                message.context if schema.message == SEQUENCE_EXAMPLE else message.features
            ).feature
            value = (
                _feature_value(feature, entries[feature.name], feature.kind)
                if feature.name in entries
                else None
            )
        if value is BAD or (value is None and feature.required):
            return BAD
        row[feature.name] = value
    return row


def _steps(feature: Feature, steps: Sequence[Any]) -> Any:
    step = Feature(feature.name, feature.dtype, feature.shape[1:])
    values = [_feature_value(step, message, feature.kind) for message in steps]
    return BAD if any(value is BAD for value in values) else values


def _feature_value(feature: Feature, message: Any, kind: str) -> Any:
    list_name = message.WhichOneof("kind")
    if list_name is None:
        return None
    if _LISTS[list_name] != kind:
        return BAD
    values = [_value(feature, value, kind) for value in getattr(message, list_name).value]
    if any(value is BAD for value in values):
        return BAD
    size = feature.inner_size
    if feature.ragged_rank:
        if not feature.inner_shape:
            return values
        return (
            BAD
            if len(values) % size
            else [values[i : i + size] for i in range(0, len(values), size)]
        )
    if len(values) != size:
        return BAD
    return values if feature.shape else values[0]


def _value(feature: Feature, value: Any, kind: str) -> Any:
    if feature.dtype == "bool":
        return bool(value) if value in (0, 1) else BAD
    if kind == "int64" and feature.dtype != "int64":
        limits = np.iinfo(feature.dtype)
        return value if limits.min <= value <= limits.max else BAD
    if feature.dtype == "string":
        try:
            return value.decode()
        except UnicodeDecodeError:
            return BAD
    return struct.pack("<f", value) if kind == "float" else value


def comparable(value: Any) -> Any:
    """Returns a value with floats replaced by their bits, so that NaN equals NaN."""
    if isinstance(value, float):
        return struct.pack("<f", value)
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return value
