"""Serialized records of a batch to tensors of the schema's true dtypes and shapes, in the graph; TensorFlow is imported
when it is called.

fixed shape          dense [batch, *shape]; where a record may lack it, zeros or "" and `name/valid` [batch] bool
                     beside it
variable length      tf.RaggedTensor [batch, None, ...]; a list that is missing and one that is empty both come as empty
timestamp            int64 since 1970 in the schema's unit; string and bytes: tf.string
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from recordmill.base.errors import UsageError
from recordmill.schemas import tfio
from recordmill.schemas.feature import ITEM_BYTES, PAYLOAD, SEQUENCE_EXAMPLE, Feature, Schema

VALID = "/valid"  # behind the name of a feature that may be missing

Tensors = dict[str, Any]


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for a data set's `map` and the like, which AutoGraph is not to convert: none of ours has a Python `if`
    or loop over tensors, and looking for them takes longer than all else before the first batch.
    """
    import tensorflow as tf

    converted: Callable[..., Any] = tf.autograph.experimental.do_not_convert(function)
    return converted


def parser(schema: Schema, defaults: Mapping[str, Any]) -> Callable[[Any], Tensors]:
    """A function for `tf.data.Dataset.map`: [batch] serialized records to tensors by name.

    defaults: feature name to the value that fills records that lack it; such a feature has no `name/valid`.

    Raises:
        UsageError: a default for what takes none.
    """
    import tensorflow as tf

    if schema.message == PAYLOAD:
        (name,) = schema.names
        return lambda records: {name: records}
    try:
        spec = tfio.parse_spec(
            schema, {name: _in_storage(schema[name], value) for name, value in defaults.items() if name in schema}
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    wanted = {name: _tf_feature(parse) for name, parse in spec.items()}
    for parse in spec.values():
        wanted |= {
            entry: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for entry in parse.finish.row_lengths
        }
    steps = {name for name in wanted if name in schema and schema[name].per_step}

    def parse_batch(records: Any) -> Tensors:
        if schema.message == SEQUENCE_EXAMPLE:
            context, lists, _ = tf.io.parse_sequence_example(
                records, {n: f for n, f in wanted.items() if n not in steps} or None,
                {n: wanted[n] for n in steps} or None
            )  # fmt: skip
            parsed = {**context, **lists}
        else:
            parsed = tf.io.parse_example(records, wanted)
        result: Tensors = {}
        for feature in schema:
            result |= _finished(feature, spec[feature.name], parsed)
        return result

    return parse_batch


def _in_storage(feature: Feature, default: Any) -> Any:
    """A default as the feature's storage holds it."""
    if feature.raw:
        return np.full(feature.inner_shape, default, np.dtype(feature.dtype).newbyteorder("<")).tobytes()
    if feature.dtype == "bool":
        return int(default)
    if not feature.inner_shape:
        return default
    return np.full(feature.inner_shape, default).tolist()


def _tf_feature(parse: tfio.Parse) -> Any:
    import tensorflow as tf

    if isinstance(parse, tfio.FixedLen):
        return tf.io.FixedLenFeature(parse.shape, parse.dtype, parse.default)
    kinds = tf.io.RaggedFeature
    partitions = [
        kinds.UniformRowLength(part) if isinstance(part, int) else kinds.RowLengths(part) for part in parse.partitions
    ]
    return kinds(tf.as_dtype(parse.dtype), parse.value_key, partitions, row_splits_dtype=tf.int64)


def _finished(feature: Feature, parse: tfio.Parse, parsed: Tensors) -> Tensors:
    """The feature's tensor, and `name/valid` if it may be missing."""
    import tensorflow as tf

    value = parsed[feature.name]
    if feature.raw and feature.ragged_rank:
        if isinstance(parse, tfio.FixedLen):
            value = tf.RaggedTensor.from_uniform_row_length(value, 1)
        return {feature.name: _ragged_raw(feature, value, [parsed[name] for name in parse.finish.row_lengths])}
    if isinstance(parse, tfio.FixedLen):
        return {feature.name: _fixed(feature, value)}
    if parse.optional:
        size = 1 if feature.raw else feature.inner_size
        flat, valid = value.flat_values, value.row_lengths() > 0
        # Where a record lacks the feature, its row is filled from one row of zeros behind the others.
        zeros = tf.fill(
            [size],
            tf.constant(
                bytes(ITEM_BYTES[feature.dtype] * feature.inner_size)
                if feature.raw
                else ""
                if flat.dtype == tf.string
                else 0,
                flat.dtype,
            ),
        )
        rows = tf.concat([tf.reshape(flat, [-1, size]), zeros[tf.newaxis]], 0)
        last = tf.shape(rows, out_type=tf.int64)[0] - 1
        dense = tf.gather(rows, tf.where(valid, tf.cumsum(tf.cast(valid, tf.int64)) - 1, last))
        dense = tf.reshape(dense, [-1] if feature.raw else [-1, *feature.inner_shape])
        return {feature.name: _fixed(feature, dense), feature.name + VALID: valid}
    cast = _cast(feature, value.flat_values)
    return {feature.name: _nested(cast, list(value.nested_row_splits), feature)}


def _fixed(feature: Feature, value: Any) -> Any:
    import tensorflow as tf

    if feature.raw:
        return tf.reshape(_decode_raw(value, feature.dtype), [-1, *feature.inner_shape])
    return _cast(feature, value)


def _cast(feature: Feature, value: Any) -> Any:
    import tensorflow as tf

    if feature.timestamp or feature.dtype in ("int64", "float32", "string", "bytes"):
        return value
    return tf.cast(value, feature.dtype)


def _decode_raw(value: Any, dtype: str) -> Any:
    import tensorflow as tf

    if dtype == "uint64":  # which decode_raw does not know
        return tf.bitcast(tf.io.decode_raw(value, tf.int64), tf.uint64)
    return tf.io.decode_raw(value, dtype)


def _nested(flat: Any, splits: list[Any], feature: Feature) -> Any:
    """A ragged tensor of the feature's variable dimensions, the fixed ones dense behind them."""
    import tensorflow as tf

    items = tf.reshape(flat, [-1, *feature.inner_shape])
    return tf.RaggedTensor.from_nested_row_splits(items, splits[: feature.ragged_rank], validate=False)


def _ragged_raw(feature: Feature, value: Any, lengths: list[Any]) -> Any:
    """Values whose bytes stand in one string per record (or per step)."""
    import tensorflow as tf

    strings = value.flat_values
    items = tf.reshape(_decode_raw(tf.strings.reduce_join(strings), feature.dtype), [-1, *feature.inner_shape])
    counts = tf.cast(tf.strings.length(strings), tf.int64) // (ITEM_BYTES[feature.dtype] * max(feature.inner_size, 1))
    if feature.per_step:
        inner = items if feature.ragged_rank == 1 else tf.RaggedTensor.from_row_lengths(items, counts, validate=False)
        return tf.RaggedTensor.from_row_splits(inner, value.row_splits, validate=False)
    if not lengths:
        per_record = tf.concat([[0], tf.cumsum(counts)], 0)
        return tf.RaggedTensor.from_row_splits(items, tf.gather(per_record, value.row_splits), validate=False)
    for level in reversed(lengths):
        items = tf.RaggedTensor.from_row_lengths(items, level.flat_values, validate=False)
    return tf.RaggedTensor.from_row_splits(items, lengths[0].row_splits, validate=False)
