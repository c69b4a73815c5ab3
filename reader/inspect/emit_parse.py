"""What `reader.faces.tf_parse` does with a parsed batch, as Python source: one or two lines per feature, and the
functions that they call.

The functions are put in only where a feature needs them, so that the source of a plain data set stays plain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from recordmill.reader.faces.tf_parse import VALID
from recordmill.schemas import tfio
from recordmill.schemas.feature import ITEM_BYTES, PAYLOAD, Feature, Schema

_FILL_MISSING = '''
def fill_missing(value, size, filler):
    """A feature that may be missing: [batch, size] with filler where it is, and [batch] bool: where it is there."""
    valid = value.row_lengths() > 0
    missing = tf.fill([1, size], tf.constant(filler, value.dtype))
    rows = tf.concat([tf.reshape(value.flat_values, [-1, size]), missing], 0)
    last = tf.shape(rows, out_type=tf.int64)[0] - 1
    return tf.gather(rows, tf.where(valid, tf.cumsum(tf.cast(valid, tf.int64)) - 1, last)), valid

'''

_NESTED = '''
def nested(value, ragged_rank, shape):
    """Lists nested ragged_rank deep, of tensors of a shape."""
    splits = value.nested_row_splits[:ragged_rank]
    return tf.RaggedTensor.from_nested_row_splits(tf.reshape(value.flat_values, [-1, *shape]), splits, validate=False)

'''

_DECODE_RAW = '''
def decode_raw(value, dtype):
    """Strings that are the little-endian memory of numbers."""
    if dtype == tf.uint64:
        return tf.bitcast(tf.io.decode_raw(value, tf.int64), tf.uint64)
    return tf.io.decode_raw(value, dtype)

'''

_RAW_LISTS = '''
def raw_lists(value, dtype, shape, item_bytes, lengths, per_step):
    """Lists of tensors of a shape, held as one string per record (or step); lengths: of the nested lists, outermost
    first.
    """
    strings = value.flat_values
    items = tf.reshape(decode_raw(tf.strings.reduce_join(strings), dtype), [-1, *shape])
    counts = tf.cast(tf.strings.length(strings), tf.int64) // item_bytes
    if per_step:
        inner = items if per_step == 1 else tf.RaggedTensor.from_row_lengths(items, counts, validate=False)
        return tf.RaggedTensor.from_row_splits(inner, value.row_splits, validate=False)
    if not lengths:
        ends = tf.concat([[0], tf.cumsum(counts)], 0)
        return tf.RaggedTensor.from_row_splits(items, tf.gather(ends, value.row_splits), validate=False)
    for level in reversed(lengths):
        items = tf.RaggedTensor.from_row_lengths(items, level.flat_values, validate=False)
    return tf.RaggedTensor.from_row_splits(items, lengths[0].row_splits, validate=False)

'''


def quoted(text: str) -> str:
    """A Python string literal, in double quotes where JSON's escapes are Python's.

    >>> print(quoted('a "b"'))
    "a \\"b\\""
    """
    return json.dumps(text, ensure_ascii=False) if text.isprintable() else repr(text)


def helpers(schema: Schema) -> Iterator[str]:
    """The functions that the lines of `steps` call, in the order in which they are needed."""
    if schema.message == PAYLOAD:
        return
    spec = tfio.parse_spec(schema)
    if any(not f.ragged_rank and isinstance(spec[f.name], tfio.RaggedSpec) for f in schema):
        yield _FILL_MISSING
    if any(_is_nested(f) for f in schema):
        yield _NESTED
    if any(f.raw for f in schema):
        yield _DECODE_RAW
    if any(f.raw and f.ragged_rank for f in schema):
        yield _RAW_LISTS


def _is_nested(feature: Feature) -> bool:
    return not feature.raw and bool(feature.ragged_rank) and len(feature.shape) > 1


def steps(feature: Feature, parse: tfio.Parse) -> Iterator[str]:
    """Lines that put the feature's tensor, made of the tensors `found`, into `result`."""
    name = quoted(feature.name)
    value, into = f"found[{name}]", f"result[{name}]"
    if feature.raw and feature.ragged_rank:
        yield f"{into} = {_raw_lists(feature, parse, value)}"
    elif feature.ragged_rank:
        value = f"nested({value}, {feature.ragged_rank}, {list(feature.inner_shape)})" if _is_nested(feature) else value
        yield f"{into} = {_cast(value, parse)}"
    elif isinstance(parse, tfio.FixedLen):
        yield f"{into} = {_fixed(value, feature, parse)}"
    else:
        size = 1 if feature.raw else feature.inner_size
        filler = (
            f"bytes({ITEM_BYTES[feature.dtype] * feature.inner_size})"
            if feature.raw
            else '""'
            if parse.dtype == "string"
            else "0"
        )
        yield f"values, result[{quoted(feature.name + VALID)}] = fill_missing({value}, {size}, {filler})"
        shaped = f"tf.reshape(values, {[-1] if feature.raw else [-1, *feature.inner_shape]})"
        yield f"{into} = {_fixed(shaped, feature, parse)}"


def _fixed(value: str, feature: Feature, parse: tfio.Parse) -> str:
    if feature.raw:
        return f"tf.reshape(decode_raw({value}, tf.{feature.dtype}), {[-1, *feature.inner_shape]})"
    return _cast(value, parse)


def _cast(value: str, parse: tfio.Parse) -> str:
    return value if parse.finish.cast is None else f"tf.cast({value}, tf.{parse.finish.cast})"


def _raw_lists(feature: Feature, parse: tfio.Parse, value: str) -> str:
    if isinstance(parse, tfio.FixedLen):
        value = f"tf.RaggedTensor.from_uniform_row_length({value}, 1)"
    lengths = ", ".join(f"found[{quoted(entry)}]" for entry in parse.finish.row_lengths)
    item_bytes = ITEM_BYTES[feature.dtype] * max(feature.inner_size, 1)
    per_step = feature.ragged_rank if feature.per_step else 0
    return f"raw_lists({value}, tf.{feature.dtype}, {list(feature.inner_shape)}, {item_bytes}, [{lengths}], {per_step})"
