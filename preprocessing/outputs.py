"""The features of transformed records, as the declaration, or the graph's own signature, says them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.preprocessing.declaration import Declaration
from recordmill.preprocessing.graph import TransformGraph
from recordmill.schemas.feature import Feature, Schema

RAW_PREFIX = "raw/"  # before the name of a raw feature that is kept beside


def declared_outputs(declaration: Declaration) -> Schema:
    """The features that the graph of a declared transform gives."""
    return Schema(
        tuple(
            Feature(
                column.name,
                column.value.dtype,
                column.value.shape,
                column.value.required and None not in column.value.shape,
            )
            for column in declaration.columns
        )
    )


def traced_outputs(graph: TransformGraph, raw: Schema) -> Schema:
    """The features that a function's graph gives, by name. What it passes on is the raw feature, with its dtype and
    classes; a SparseTensor or RaggedTensor is a list.

    Raises:
        UsageError: an output is none that a feature can be.
    """
    return Schema(tuple(_traced(name, graph, raw) for name in sorted(graph.specs)))


def _traced(name: str, graph: TransformGraph, raw: Schema) -> Feature:
    import tensorflow as tf

    if (source := graph.passed_on(name)) is not None:
        return Feature(name, raw[source].dtype, raw[source].shape, raw[source].required, raw[source].classes)
    spec = graph.specs[name]
    dtype = _dtype(name, spec.dtype.name, raw)
    if isinstance(spec, tf.TensorSpec):
        return Feature(name, dtype, _shape(name, spec), required=True)
    if isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank == 1 and len(spec.shape) == 2:
        return Feature(name, dtype, (None,))
    if isinstance(spec, tf.SparseTensorSpec) and len(spec.shape) == 2:
        return Feature(name, dtype, (None,))
    raise UsageError(
        f"transform: output {name!r} is {spec}; return a tensor, or a list of numbers or texts for each row"
    )


def _shape(name: str, spec: Any) -> tuple[int, ...]:
    if spec.shape.rank is None or spec.shape.rank < 1 or None in spec.shape[1:]:
        raise UsageError(
            f"transform: output {name!r} has shape {spec.shape}: each row needs a known one; tf.reshape it, or "
            "return a ragged tensor"
        )
    return tuple(int(size) for size in spec.shape[1:])


def _dtype(name: str, dtype: str, raw: Schema) -> str:
    if dtype != "string":
        return dtype
    return "string" if name in raw and raw[name].dtype == "string" else "bytes"


def kept_beside(raw: Schema, kept: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """(output name, raw name) of the raw features that no output keeps as they are."""
    there = {source for _, source in kept}
    return tuple((RAW_PREFIX + feature.name, feature.name) for feature in raw if feature.name not in there)


def whole_schema(raw: Schema, outputs: Schema, kept: Iterable[tuple[str, str]], sources: dict[str, str]) -> Schema:
    """The schema of the transformed records: outputs and kept features where their raw ones stood.

    sources: output to the raw feature that it is made of, where that is one.

    Raises:
        UsageError: two have one name.
    """
    kept = list(kept)
    made = [Feature(name, raw[s].dtype, raw[s].shape, raw[s].required, raw[s].classes) for name, s in kept]
    of = {**dict(kept), **sources}
    features = [*outputs, *made]
    names = [feature.name for feature in features]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"transform: two outputs are called {twice[0]!r}; rename one")
    order = {name: place for place, name in enumerate(raw.names)}
    features.sort(key=lambda f: (order.get(of.get(f.name, f.name), len(order)), f.name in dict(kept)))
    label = next((f.name for f in features if of.get(f.name, f.name) == raw.label), None) if raw.label else None
    return Schema(tuple(features), label)
