"""What an entry of anybody's tensorflow_metadata schema says by itself: dtype, shape, presence; what has no counterpart
is refused by name.

INT is int64, FLOAT float32, BYTES bytes, unless a domain says more. A fixed shape is that shape; a value count of
exactly n is n values (one: a scalar, as in tf.Transform's legacy rule); anything else is a list of any length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tensorflow_metadata.proto.v0 import schema_pb2

from recordmill.base.errors import DataError

_DTYPES = {schema_pb2.INT: "int64", schema_pb2.FLOAT: "float32", schema_pb2.BYTES: "bytes"}
_TEXT_DOMAINS = (
    "string_domain",
    "natural_language_domain",
    "mid_domain",
    "url_domain",
    "bool_domain",
    "time_of_day_domain",
)
_TIME_UNITS = {"UNIX_SECONDS": "s", "UNIX_MILLISECONDS": "ms", "UNIX_MICROSECONDS": "us", "UNIX_NANOSECONDS": "ns"}
# The stages that TensorFlow's tools leave out too (tfx_bsl tensor_representation_util).
_NOT_IN_USE = {
    schema_pb2.DEPRECATED, schema_pb2.DISABLED, schema_pb2.PLANNED, schema_pb2.ALPHA, schema_pb2.DEBUG_ONLY,
    schema_pb2.VALIDATION_DERIVED,
}  # fmt: skip


def in_use(entries: Iterable[Any]) -> Iterator[Any]:
    """The entries that are not marked as deprecated or the like."""
    return (entry for entry in entries if not entry.deprecated and entry.lifecycle_stage not in _NOT_IN_USE)


def check(proto: Any) -> None:
    """Raises DataError for what no Feature can be, naming it."""
    for sparse in in_use(proto.sparse_feature):
        parts = [index.name for index in sparse.index_feature] + [sparse.value_feature.name]
        raise DataError(
            f"sparse feature {sparse.name!r} is not supported; remove it, and its parts {', '.join(parts)} "
            "are read as lists"
        )
    for name, representation in (
        proto.tensor_representation_group[""].tensor_representation.items()
        if "" in proto.tensor_representation_group
        else ()
    ):
        if representation.WhichOneof("kind") == "sparse_tensor":
            raise DataError(
                f"sparse tensor {name!r} is not supported; remove its representation, and its parts are read as lists"
            )
    structs = [entry for entry in in_use(proto.feature) if entry.type == schema_pb2.STRUCT]
    if len(structs) > 1:
        raise DataError(
            f"struct features {', '.join(repr(entry.name) for entry in structs)}: only one is supported, the "
            "feature lists of a SequenceExample"
        )
    for struct in structs:
        for child in in_use(struct.struct_domain.feature):
            if child.type == schema_pb2.STRUCT:
                raise DataError(f"struct feature {child.name!r} inside {struct.name!r} is not supported")
        if list(in_use(struct.struct_domain.sparse_feature)):
            raise DataError(f"sparse features inside {struct.name!r} are not supported")


def required(entry: Any) -> bool:
    """Whether every record has it."""
    return bool(entry.presence.min_fraction == 1.0)


def dtype(entry: Any, proto: Any | None) -> str:
    """The dtype by type and domain. proto: the schema, for domains named there."""
    if entry.type not in _DTYPES:
        raise DataError(f"feature {entry.name!r} has no type; add type: INT, FLOAT or BYTES")
    plain = _DTYPES[entry.type]
    domain = entry.WhichOneof("domain_info")
    if plain == "bytes":
        is_text = domain in _TEXT_DOMAINS or (domain == "time_domain" and entry.time_domain.HasField("string_format"))
        named = (
            domain == "domain"
            and proto is not None
            and any(known.name == entry.domain for known in proto.string_domain)
        )
        return "string" if is_text or named else "bytes"
    if plain == "int64" and domain == "bool_domain":
        return "bool"
    if plain == "int64" and domain == "time_domain" and entry.time_domain.HasField("integer_format"):
        unit = _TIME_UNITS.get(schema_pb2.TimeDomain.IntegerTimeFormat.Name(entry.time_domain.integer_format))
        return f"timestamp[{unit}]" if unit else plain
    return plain


def shape(entry: Any, *, per_step: bool) -> tuple[int | None, ...]:
    """The shape by shape or value count; per_step: with the step as its first dimension."""
    step: tuple[int | None, ...] = (None,) if per_step else ()
    kind = entry.WhichOneof("shape_type")
    if kind == "shape":
        return step + tuple(dim.size if dim.size >= 0 else None for dim in entry.shape.dim)
    if kind == "value_counts":
        raise DataError(
            f"feature {entry.name!r} has nested value_counts, which an Example can't hold in one entry; "
            "describe its entries one by one"
        )
    if kind == "value_count" and entry.value_count.min == entry.value_count.max > 0:
        return step + (() if entry.value_count.max == 1 else (entry.value_count.max,))
    return (*step, None)


def dense_shapes(proto: Any) -> dict[str, tuple[int | None, ...]]:
    """Column to shape, from the dense tensor representations
    of the default group (tf.Transform writes them for features with defaults).
    """
    if "" not in proto.tensor_representation_group:
        return {}
    dense = (
        r.dense_tensor
        for r in proto.tensor_representation_group[""].tensor_representation.values()
        if r.WhichOneof("kind") == "dense_tensor"
    )
    return {
        tensor.column_name: tuple(dim.size if dim.size >= 0 else None for dim in tensor.shape.dim) for tensor in dense
    }
