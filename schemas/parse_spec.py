"""A `Schema` as a parse specification for `tf.io.parse_example`, described neutrally, so that nothing here imports
TensorFlow.

`parse_spec` says for each feature which `tf.io` feature reads its entries (`FixedLen`: tf.io.FixedLenFeature, `Ragged`:
tf.io.RaggedFeature) and what is left to do to get the true values: decode the raw bytes, cast, restore the shape. The
reader builds the tf.io objects from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recordmill.schemas.feature import BYTES, FLOAT, INT64, ITEM_BYTES, PAYLOAD, Feature, Schema

# the dtype that tf.io gives for each kind of list
TF_DTYPES: Mapping[str, str] = {INT64: "int64", FLOAT: "float32", BYTES: "string"}

Default = int | float | bytes | str


@dataclass(frozen=True)
class Finish:
    """Conversion of parsed values to the feature's own.

    Attributes:
        decode_raw: the values are the little-endian bytes of tensors of this dtype.
        cast: without decode_raw, the dtype to cast to; None if they have it already.
        shape: of one decoded tensor, None for the dimensions that vary; `()` where parsing gives the shape already.
        row_lengths: int64 entries, outermost first, each parsed as a list of its own, that nest the decoded values.
    """

    decode_raw: str | None = None
    cast: str | None = None
    shape: tuple[int | None, ...] = ()
    row_lengths: tuple[str, ...] = ()


@dataclass(frozen=True)
class FixedLen:
    """Dense tensor [batch, *shape]: tf.io.FixedLenFeature(shape, dtype, default).

    Attributes:
        default: fills a record that lacks the feature, in the parsed dtype; None: such a record is an error.
    """

    dtype: str
    shape: tuple[int, ...]
    finish: Finish
    default: Default | None = None


@dataclass(frozen=True)
class RaggedSpec:
    """Ragged tensor [batch, None, ...]: tf.io.RaggedFeature(dtype, value_key, partitions).

    Attributes:
        partitions: outermost first, after the batch and the first variable dimension: an entry's name is
            RowLengths(name), a number is UniformRowLength(number).
        optional: the first variable dimension is 0 where a record lacks the feature and 1 where it has it, since tf
            has no null; a list that is missing and one that is empty both come as empty.
    """

    dtype: str
    value_key: str
    partitions: tuple[str | int, ...]
    finish: Finish
    optional: bool = False


Parse = FixedLen | RaggedSpec


def parse_spec(schema: Schema, defaults: Mapping[str, Default] | None = None) -> dict[str, Parse]:
    """Feature name to how tf.io parses it.

    Args:
        defaults: feature name to the value that fills records that lack it; only for scalars and tensors of fixed
            shape.

    Raises:
        ValueError: the records are no Examples, or a default is given for a feature that takes none.
    """
    if schema.message == PAYLOAD:
        raise ValueError("the records are no Examples: there is nothing to parse in them")
    given = dict(defaults or {})
    for name in given:
        if name not in schema:
            raise ValueError(f"default for {name!r}, which is no feature; there are {', '.join(schema.names)}")
        if schema[name].ragged_rank:
            raise ValueError(f"feature {name!r}: {schema[name].describe()} has a variable length and takes no default")
    return {feature.name: _parse(feature, given.get(feature.name)) for feature in schema}


def _parse(feature: Feature, default: Default | None) -> Parse:
    values, *lengths = feature.storage()
    dtype, finish = TF_DTYPES[feature.kind], _finish(feature)
    if feature.per_step:
        inner = () if feature.raw or feature.ragged_rank > 1 else feature.inner_shape
        return RaggedSpec(dtype, values.name, inner, finish)
    shape = () if feature.raw else feature.inner_shape
    if feature.ragged_rank and not feature.raw:
        return RaggedSpec(dtype, values.name, (*(storage.name for storage in lengths), *shape), finish)
    if (feature.required or default is not None) and not lengths:
        return FixedLen(dtype, shape, finish, default)
    return RaggedSpec(dtype, values.name, shape, finish, optional=not feature.required)


def _finish(feature: Feature) -> Finish:
    true_dtype = "int64" if feature.timestamp else {"bytes": "string"}.get(feature.dtype, feature.dtype)
    if feature.raw:
        return Finish(
            decode_raw=true_dtype,
            shape=feature.shape,
            row_lengths=tuple(storage.name for storage in feature.storage()[1:] if not feature.per_step),
        )
    return Finish(cast=None if true_dtype == TF_DTYPES[feature.kind] else true_dtype)


def tensor_arguments(feature: Feature) -> dict[str, object]:
    """Returns the arguments of `reader.tensorflow.program.tensor_of` for the feature that differ from its defaults."""
    finish = _finish(feature)
    made = {
        "dtype": "int64" if feature.timestamp else {"bytes": "string"}.get(feature.dtype, feature.dtype),
        "shape": list(feature.inner_shape),
        "ragged_rank": feature.ragged_rank,
        "item_bytes": ITEM_BYTES[feature.dtype] if feature.raw else 0,
        "lengths": list(finish.row_lengths),
        "per_step": feature.per_step and feature.raw,
    }
    return {name: value for name, value in made.items() if value}
