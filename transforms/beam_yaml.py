"""Transforms of `beam_yaml_provider.yaml`, for data sets in Beam YAML.

The elements of Beam YAML are rows with named and typed fields. `WriteToShards` writes rows to a
data set. `ReadFromShards` reads data sets or other TFRecord files as rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import pyarrow as pa

from recordmill.base.arguments import suggest_fields
from recordmill.base.errors import UsageError
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.manifest import Manifest
from recordmill.transforms.beam_types import (
    FlatMap,
    Map,
    PCollection,
    PTransform,
    get_row_fields,
    make_row,
    make_row_type,
)
from recordmill.transforms.read_shards import ReadShards, plan_inputs
from recordmill.transforms.write_shards import BatchDicts, WriteShards

_DTYPES = {"int": "int64", "float": "float64", "str": "string", "bytes": "bytes", "bool": "bool"}
_NUMPY = {f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)} - {
    "float8"
}


@suggest_fields
@dataclass
class WriteToShards(PTransform):
    """Writes rows to a data set.

    The types of the fields determine the types of the features. The output is a single row with
    `out`, `records` and `rejected`.

    Args:
        out: A folder that all workers see, or one in a store.
        num_shards: Number of shards of each split. It can't be combined with `shard_bytes`.
        shard_bytes: Size of a shard before compression.
        splits: Fraction of each split, by its name.
        seed: Seed of the order.
        key: The field that determines the order of the records.
        split_by: The field with the split groups. Equal values stay in one split.
        compression: The compression of the shards.
        overwrite: Whether to replace the data set in `out`.
        max_rejects: The number of rejects that are allowed, such as `10` or `1%`.
        name: The name of the data set. If None, it is derived from `out`.
    """

    out: str
    num_shards: int | None = None
    shard_bytes: int | None = None
    splits: dict[str, float] | None = None
    seed: int = 0
    key: str | None = None
    split_by: str | None = None
    compression: Literal["none", "gzip"] = "none"
    overwrite: bool = False
    max_rejects: str | int = 0
    name: str | None = None

    def expand(self, rows: PCollection) -> PCollection:  # Row -> Row(out, records, rejected)
        schema = schema_from_fields(get_row_fields(rows))
        options = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("out", "shard_bytes")
        }
        names = schema.names
        manifest: PCollection = (
            rows
            | "Dicts" >> Map(lambda row: {name: _to_list(getattr(row, name)) for name in names})
            | "Batches" >> BatchDicts()
            | "Write" >> WriteShards(self.out, schema, shard_size=self.shard_bytes, **options)
        )
        summary = make_row_type([("out", str), ("records", int), ("rejected", int)])
        return manifest | "Tell" >> Map(_make_summary_row, self.out).with_output_types(summary)


@suggest_fields
@dataclass
class ReadFromShards(PTransform):
    """Reads the records of a data set as rows.

    A row has one field for each feature. The headers of the files are read while the pipeline is
    constructed, because Beam needs the types of the rows then.

    Args:
        inputs: The output of a build, or files, folders, globs or `@list.txt`.
        columns: The features to read, in this order. None means all features.
        split: The split to read. None means all splits.
    """

    inputs: str | Sequence[str]
    columns: Sequence[str] | None = None
    split: str | None = None

    def expand(self, pipeline: Any) -> PCollection:  # Pipeline -> Row
        inputs = [self.inputs] if isinstance(self.inputs, str) else list(self.inputs)
        columns = None if self.columns is None else tuple(self.columns)
        read = ReadShards(inputs, columns, self.split, None)
        schema = plan_inputs(read).schema
        fields = [(feature.name, _field_type(feature)) for feature in schema]
        batches: PCollection = pipeline | "Read" >> read
        return batches | "Rows" >> FlatMap(iter_beam_rows).with_output_types(make_row_type(fields))


def schema_from_fields(fields: Iterable[tuple[str, Any]]) -> Schema:
    """Returns the schema for rows with the given fields.

    Args:
        fields: (name, type) of each field. A type such as `list[int]` or `int | None` is possible.

    Raises:
        UsageError: No feature corresponds to a type.
    """
    return Schema(tuple(_make_feature(name, hint) for name, hint in fields))


def _make_feature(name: str, annotation: Any) -> Feature:
    inner_type, optional, depth = annotation, False, 0
    while True:
        args = tuple(
            getattr(inner_type, "__args__", ()) or getattr(inner_type, "union_types", ()) or ()
        )
        non_null_args = [arg for arg in args if arg is not type(None)]
        if len(non_null_args) < len(args) and len(non_null_args) == 1:
            inner_type, optional = non_null_args[0], optional or depth == 0
        elif (item := getattr(inner_type, "inner_type", None)) is not None:
            inner_type, depth = item, depth + 1
        elif len(non_null_args) == 1 and getattr(inner_type, "__origin__", None) is not None:
            inner_type, depth = non_null_args[0], depth + 1
        else:
            break
    type_name = getattr(inner_type, "__name__", str(inner_type))
    dtype = _DTYPES.get(type_name) or (type_name if type_name in _NUMPY else None)
    if dtype is None:
        raise UsageError(
            f"field {name!r} is of type {annotation}: give fields of int, float, str, bytes, bool or lists of them (by "
            "MapToFields with `output_type`)"
        )
    return Feature(name, dtype, (None,) * depth, required=not optional)


def _field_type(feature: Feature) -> Any:
    kind = to_arrow(Schema((feature,))).field(0).type
    depth = 0
    while (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ):
        kind, depth = kind.value_type, depth + 1
    annotation: Any = (
        bool
        if pa.types.is_boolean(kind)
        else int
        if pa.types.is_integer(kind)
        else float
        if pa.types.is_floating(kind)
        else str
        if pa.types.is_large_string(kind) or pa.types.is_string(kind)
        else bytes
        if pa.types.is_large_binary(kind) or pa.types.is_binary(kind)
        else None
    )
    if annotation is None or len(feature.shape) > 1:
        raise UsageError(
            f"feature {feature.name!r} ({feature.describe()}) can't be a field of a row in Beam YAML; leave it out by "
            "`columns`"
        )
    for _ in range(depth):
        annotation = Sequence[annotation]
    return annotation if feature.required else annotation | None


def iter_beam_rows(batch: pa.RecordBatch) -> Iterator[Any]:
    """Yields the records of a batch as Beam rows."""
    for values in batch.to_pylist():
        yield make_row(values)


def _to_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _make_summary_row(manifest: Manifest, out: str) -> Any:
    records = sum(manifest.records.values())
    return make_row({"out": out, "records": records, "rejected": int(manifest.rejects["count"])})
