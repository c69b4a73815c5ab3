"""The transforms of `beam_yaml_provider.yaml`: data sets in Beam YAML, whose collections are of rows with named and
typed fields. Rows in, a data set out (`WriteToShards`), and data sets or other TFRecord files to rows
(`ReadFromShards`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import pyarrow as pa

from recordmill.base.errors import UsageError
from recordmill.exporting.plan import ReadOptions, plan_read
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.manifest import Manifest
from recordmill.transforms.beam_types import (
    FlatMap,
    Map,
    PCollection,
    PTransform,
    row_fields,
    row_of,
    row_type,
)
from recordmill.transforms.read_shards import ReadShards
from recordmill.transforms.write_shards import BatchDicts, WriteShards

_DTYPES = {"int": "int64", "float": "float64", "str": "string", "bytes": "bytes", "bool": "bool"}
_NUMPY = {f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)} - {
    "float8"
}


@dataclass
class WriteToShards(PTransform):
    """Writes rows to a data set; gives a row with `out`, `records` and `rejected`. The fields' types become the
    features'.

    Args:
        out: a folder that all workers see, or one in a store.
        num_shards: how many shards; or shard_bytes.
        splits: name to fraction.
        key: the field that decides the order.
        split_by: the field whose equal values stay in one split.
        max_rejects: `10` or `1%`.
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
        schema = schema_of_collection(row_fields(rows))
        given = {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if one.name not in ("out", "shard_bytes")
        }
        names = schema.names
        manifest: PCollection = (
            rows
            | "Dicts" >> Map(lambda row: {name: _plain(getattr(row, name)) for name in names})
            | "Batches" >> BatchDicts()
            | "Write" >> WriteShards(self.out, schema, shard_size=self.shard_bytes, **given)
        )
        summary = row_type([("out", str), ("records", int), ("rejected", int)])
        return manifest | "Tell" >> Map(_summary_row, self.out).with_output_types(summary)


@dataclass
class ReadFromShards(PTransform):
    """A data set's records as rows, a field a feature. inputs, columns, split: as `ReadShards` takes them; the files'
    headers are looked at while the pipeline is put together, since rows have their types then.
    """

    inputs: str | Sequence[str]
    columns: Sequence[str] | None = None
    split: str | None = None

    def expand(self, pipeline: Any) -> PCollection:  # Pipeline -> Row
        given = [self.inputs] if isinstance(self.inputs, str) else list(self.inputs)
        columns = None if self.columns is None else tuple(self.columns)
        schema = plan_read(given, ReadOptions(to="arrow", columns=columns, split=self.split)).schema
        fields = [(feature.name, _field_type(feature)) for feature in schema]
        batches: PCollection = pipeline | "Read" >> ReadShards(given, columns, self.split, None)
        return batches | "Rows" >> FlatMap(rows_of_batch).with_output_types(row_type(fields))


def schema_of_collection(fields: Iterable[tuple[str, Any]]) -> Schema:
    """The features that fields of these types become; UsageError for a type that no feature has."""
    return Schema(tuple(_feature(name, hint) for name, hint in fields))


def _feature(name: str, hint: Any) -> Feature:
    inner, optional, depth = hint, False, 0
    while True:
        args = tuple(getattr(inner, "__args__", ()) or getattr(inner, "union_types", ()) or ())
        given = [one for one in args if one is not type(None)]
        if len(given) < len(args) and len(given) == 1:
            inner, optional = given[0], optional or depth == 0
        elif (item := getattr(inner, "inner_type", None)) is not None:
            inner, depth = item, depth + 1
        elif len(given) == 1 and getattr(inner, "__origin__", None) is not None:
            inner, depth = given[0], depth + 1
        else:
            break
    called = getattr(inner, "__name__", str(inner))
    dtype = _DTYPES.get(called) or (called if called in _NUMPY else None)
    if dtype is None:
        raise UsageError(
            f"field {name!r} is of type {hint}: give fields of int, float, str, bytes, bool or lists of them (by "
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


def rows_of_batch(batch: pa.RecordBatch) -> Iterator[Any]:
    """The records of a batch as rows."""
    for values in batch.to_pylist():
        yield row_of(values)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _summary_row(manifest: Manifest, out: str) -> Any:
    records = sum(manifest.records.values())
    return row_of({"out": out, "records": records, "rejected": int(manifest.rejects["count"])})
