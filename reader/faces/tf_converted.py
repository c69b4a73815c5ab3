"""What `decode_raw` and `reshape` of `open` say, the steps of a `Decoding`, as TensorFlow's own operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.reader.faces.tf_parse import VALID, Tensors
from recordmill.records.columns.convert import DecodeRaw, Reshape, output_schema
from recordmill.records.columns.decoding import Decoding
from recordmill.schemas.feature import ITEM_BYTES, Feature

_Step = Callable[[Any, Any], Any]


def steps_in_graph(decoding: Decoding) -> Callable[[Tensors, Mapping[str, Any]], Tensors]:
    """A function of the parsed tensors of a batch, and of the values that stand for missing features, to the same
    behind the steps.

    Raises:
        UsageError: a step has no such operation.
    """
    schema, done = decoding.stored, []
    for step in decoding.steps:
        feature = schema[step.feature]
        schema = output_schema([step], schema)
        done.append((step.feature, _in_graph(step, feature, schema[step.feature])))

    def finish(tensors: Tensors, defaults: Mapping[str, Any]) -> Tensors:
        import tensorflow as tf

        found = dict(tensors)
        missing = {name: found.pop(name + VALID, None) for name, _ in done}
        for name, convert in done:
            found[name] = convert(found[name], missing[name])
        for name, valid in missing.items():
            if valid is None or isinstance(found[name], tf.RaggedTensor):
                continue
            value = found[name]
            if name in defaults:
                there = tf.reshape(valid, [-1, *[1] * (len(value.shape) - 1)])
                found[name] = tf.where(there, value, tf.cast(defaults[name], value.dtype))
            else:
                found[name + VALID] = valid
        return found

    return finish


def _in_graph(step: object, feature: Feature, out: Feature) -> _Step:
    if isinstance(step, DecodeRaw):
        return lambda value, valid: _raw(value, valid, step, out)
    if isinstance(step, Reshape) and not feature.ragged_rank:
        return lambda value, _: _shaped(value, out)
    raise UsageError(
        f"portable=True can't bring the lists of {feature.name!r} to another shape: leave reshape or portable out"
    )


def _shaped(value: Any, out: Feature) -> Any:
    import tensorflow as tf

    return tf.reshape(value, [tf.shape(value)[0], *out.shape])


def _raw(value: Any, valid: Any, step: DecodeRaw, out: Feature) -> Any:
    """value: [batch] bytes. valid: [batch] whether a record has them; None: all have."""
    import tensorflow as tf

    unit = ITEM_BYTES[step.dtype] * out.inner_size
    if valid is not None:
        value = tf.where(valid, value, tf.constant(b"" if out.ragged_rank else bytes(unit)))
    lengths = tf.strings.length(value)
    if out.ragged_rank:
        whole = tf.debugging.Assert(tf.reduce_all(lengths % unit == 0), [step.feature, "bytes:", lengths, "of", unit])
        with tf.control_dependencies([whole]):
            flat = _numbers(tf.strings.reduce_join(value), step)
        return tf.RaggedTensor.from_row_lengths(
            tf.reshape(flat, [-1, *out.inner_shape]), tf.cast(lengths // unit, tf.int64), validate=False
        )
    right = tf.debugging.Assert(tf.reduce_all(lengths == unit), [step.feature, "bytes:", lengths, "not", unit])
    with tf.control_dependencies([right]):
        numbers = _numbers(value, step)
    return tf.reshape(numbers, [tf.shape(value)[0], *out.shape])


def _numbers(value: Any, step: DecodeRaw) -> Any:
    import tensorflow as tf

    through = {"uint32": tf.int32, "uint64": tf.int64, "bool": tf.uint8}  # what decode_raw does not know, or not so
    numbers = tf.io.decode_raw(value, through.get(step.dtype, tf.as_dtype(step.dtype)), not step.big_endian)
    if step.dtype == "bool":
        return numbers != 0
    return tf.bitcast(numbers, step.dtype) if step.dtype in through else numbers
