"""Many steps at once as flat arrays (a block), and in the graph a step's tensors out of them.

TensorFlow takes about a thousand elements a second from Python, whatever their size: so it gets blocks, and cuts the
batches out of them itself. The tensors are those of `tf_parse`, in which the table of types stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from recordmill.reader.faces.found import Found
from recordmill.reader.faces.tf_parse import VALID, Tensors
from recordmill.reader.faces.tf_strings import as_tensor_proto
from recordmill.reader.images.options import Images
from recordmill.records.columns.parts import is_bytes, numpy_dtype, take_apart
from recordmill.schemas.feature import Feature, Schema

_SIZE = "size"  # [2]: steps of the block, rows of each of them
_NUMBER = "\x00number"  # of a step in its block


def decoded_schema(schema: Schema, images: Mapping[str, Images], defaults: Mapping[str, Any]) -> Schema:
    """The schema of what blocks hold: images are tensors, which only lack where nothing stands for them."""
    features = tuple(
        Feature(f.name, images[f.name].numpy_dtype.name, images[f.name].shape, f.required or f.name in defaults)
        if f.name in images
        else f
        for f in schema
    )
    return replace(schema, features=features)


def blocks_of(found: Found, schema: Schema) -> list[dict[str, Any]]:
    """The flat arrays of each feature of a `decoded_schema`: values, the splits of each variable dimension, which rows
    have a value. Steps of a block have equally many rows, so a shorter last one is a block of its own.
    """
    edges = found.rows.edges
    sizes = np.diff(edges)
    if len(sizes) > 1 and sizes[-1] != sizes[0]:
        cut = int(edges[-2])
        return [_block(found, 0, cut, len(sizes) - 1, schema), _block(found, cut, int(edges[-1]), 1, schema)]
    return [_block(found, 0, int(edges[-1]), len(sizes), schema)]


def _block(found: Found, begin: int, end: int, steps: int, schema: Schema) -> dict[str, Any]:
    block: dict[str, Any] = {_SIZE: np.array([steps, (end - begin) // steps], np.int64)}
    columns = found.rows.batch.slice(begin, end - begin).columns
    for at, (feature, column) in enumerate(zip(schema, columns, strict=True)):
        if feature.name in found.images:
            block[f"{at}/values"] = found.images[feature.name][begin:end]
            if _has_valid(feature):
                block[f"{at}/valid"] = column.is_valid().to_numpy(zero_copy_only=False)
            continue
        parts = take_apart(column, feature)
        values, splits = parts.values, list(parts.splits)
        if is_bytes(feature):
            block[f"{at}/values"] = np.array(as_tensor_proto(values, splits.pop()), object)
        else:
            block[f"{at}/values"] = values.view(np.int64) if feature.timestamp else values
        for level, offsets in enumerate(splits):
            block[f"{at}/splits{level}"] = offsets
        if _has_valid(feature):
            block[f"{at}/valid"] = parts.valid
    return block


def block_spec(schema: Schema) -> dict[str, Any]:
    """The tf.TensorSpec of each array of a block."""
    import tensorflow as tf

    spec = {_SIZE: tf.TensorSpec([2], tf.int64)}
    for at, feature in enumerate(schema):
        if is_bytes(feature):
            spec[f"{at}/values"] = tf.TensorSpec([], tf.string)
        else:
            dtype = tf.int64 if feature.timestamp else tf.as_dtype(numpy_dtype(feature))
            spec[f"{at}/values"] = tf.TensorSpec([None, *feature.inner_shape], dtype)
        for level in range(feature.ragged_rank):
            spec[f"{at}/splits{level}"] = tf.TensorSpec([None], tf.int64)
        if _has_valid(feature):
            spec[f"{at}/valid"] = tf.TensorSpec([None], tf.bool)
    return spec


def steps_of(schema: Schema, defaults: Mapping[str, Any], batch_size: int | None) -> Callable[[Tensors], Any]:
    """A function for `tf.data.Dataset.flat_map`: a block to a data set of its steps, tensors by feature name.

    batch_size: rows of every step, where all have as many; None: where the last may be shorter.
    """
    import tensorflow as tf

    lists = [(at, feature) for at, feature in enumerate(schema) if feature.ragged_rank]

    def steps(block: Tensors) -> Any:
        steps, rows = block[_SIZE][0], block[_SIZE][1]
        sliced: Tensors = {}
        for at, feature in enumerate(schema):
            if not feature.ragged_rank:
                sliced |= _dense(block, at, feature, defaults)
        for name, value in sliced.items():
            sliced[name] = tf.reshape(value, tf.concat([[steps, rows], tf.shape(value, tf.int64)[1:]], 0))
            sliced[name].set_shape([None, batch_size, *value.shape[1:]])
        if not lists:
            return tf.data.Dataset.from_tensor_slices(sliced)
        whole = {at: _values(block, at, feature) for at, feature in lists}

        def step(found: Tensors) -> Tensors:
            begin = found.pop(_NUMBER) * rows
            for at, feature in lists:
                splits = [block[f"{at}/splits{level}"] for level in range(feature.ragged_rank)]
                found[feature.name] = _lists(whole[at], splits, begin, begin + rows)
            return found

        return tf.data.Dataset.from_tensor_slices({**sliced, _NUMBER: tf.range(steps)}).map(step)

    return steps


def _dense(block: Tensors, at: int, feature: Feature, defaults: Mapping[str, Any]) -> Tensors:
    """[rows, *shape] of a feature without variable dimensions, and which rows have it."""
    value = _values(block, at, feature)
    if not _has_valid(feature):
        return {feature.name: value}
    valid = block[f"{at}/valid"]
    if feature.name in defaults:
        return {feature.name: _filled(value, valid, defaults[feature.name], feature)}
    return {feature.name: value, feature.name + VALID: valid}


def _has_valid(feature: Feature) -> bool:
    return not feature.required and not feature.ragged_rank


def _values(block: Tensors, at: int, feature: Feature) -> Any:
    import tensorflow as tf

    values = block[f"{at}/values"]
    if feature.dtype == "bfloat16":
        return tf.cast(values, tf.bfloat16)
    if not is_bytes(feature):
        return values
    texts = tf.io.parse_tensor(values, tf.string)
    texts.set_shape([None])
    return tf.reshape(texts, [-1, *feature.inner_shape]) if feature.inner_shape else texts


def _lists(values: Any, splits: list[Any], begin: Any, end: Any) -> Any:
    """Rows [begin, end) of a column of lists."""
    import tensorflow as tf

    own = []
    for offsets in splits:
        part = offsets[begin : end + 1]
        begin, end = part[0], part[-1]
        own.append(part - begin)
    return tf.RaggedTensor.from_nested_row_splits(values[begin:end], own, validate=False)


def _filled(value: Any, valid: Any, default: Any, feature: Feature) -> Any:
    import tensorflow as tf

    there = tf.reshape(valid, [-1, *[1] * len(feature.inner_shape)])
    return tf.where(there, value, tf.cast(default, value.dtype) if value.dtype != tf.string else default)
