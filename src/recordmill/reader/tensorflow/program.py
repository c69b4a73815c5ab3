"""Batches of tensors from TFRecord files, made by TensorFlow's own operations only.

`recordmill inspect --emit reader` prints this module after the constants of a data set, so it
imports nothing from recordmill. The tensors of a feature are:

    fixed shape        dense [batch, *shape]. If records may lack the feature, their rows are zeros
                       or "", and `name/valid` is a bool tensor [batch].
    variable length    tf.RaggedTensor [batch, None, ...]. Missing and empty lists are both empty.
    timestamp          int64 since 1970, in the unit of the schema
    string, bytes      tf.string
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

# Buffer per open file. TensorFlow's default of 256 KiB costs a fifth of the throughput.
DATASET_READ_BYTES = 1 << 20
# Number of files that are read in turn for shuffling, so that the buffer mixes records of many
# files.
OPEN_FILES = 16
# Number of consecutive records that are taken from each of these files.
TURN_RECORDS = 16


def without_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function for `map` that AutoGraph does not convert.

    Only functions with a Python `if` or loop over tensors need the conversion. The search for such
    code takes longer than everything else before the first batch.
    """
    return tf.autograph.experimental.do_not_convert(function)


def read_records(
    files: Sequence[tuple[str, str, int]], shuffle_records: int = 0, seed: int = 0
) -> tf.data.Dataset:
    """Returns a tf.data.Dataset of the serialized records of files.

    Args:
        files: (path, compression, number of records) of each file. A file with another number of
            records is an error. TensorFlow alone does not notice if a file is truncated inside the
            header of a record.
        shuffle_records: Size of the shuffle buffer, in records. Files are then read in random
            order. If 0, records are read in stored order.
        seed: Seed of the random order.
    """
    paths, compressions = (
        [path for path, _, _ in files],
        [compression for _, compression, _ in files],
    )
    counts = [count for _, _, count in files]
    shards = tf.data.Dataset.from_tensor_slices(
        (
            tf.constant(paths, tf.string),
            tf.constant(compressions, tf.string),
            tf.constant(counts, tf.int64),
        )
    )

    @without_autograph
    def read(path: Any, compression: Any, count: Any) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(path, compression, DATASET_READ_BYTES)
        return records.apply(tf.data.experimental.assert_cardinality(count))

    if shuffle_records:
        order = shards.shuffle(max(len(files), 1), seed, reshuffle_each_iteration=True)
        concurrent_files = min(max(len(files), 1), OPEN_FILES)
        records = order.interleave(
            read,
            concurrent_files,
            TURN_RECORDS,
            num_parallel_calls=concurrent_files,
            deterministic=True,
        ).shuffle(shuffle_records, seed + 1, reshuffle_each_iteration=True)
    else:
        records = shards.flat_map(read)
    return records.apply(tf.data.experimental.assert_cardinality(sum(counts)))


def parse_records(
    serialized: Any,
    features: Mapping[str, Any] | None,
    feature_lists: Mapping[str, Any] | None,
    tensors: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Parses serialized records [batch] into tensors by feature name.

    Args:
        features: The features for tf.io.parse_example. If None, the serialized records are
            returned.
        feature_lists: The features of the steps, for tf.io.parse_sequence_example. None if the
            records are Examples.
        tensors: Arguments of `tensor_of`, by feature name.
    """
    if features is None:
        return dict.fromkeys(tensors, serialized)
    if feature_lists is None:
        parsed = tf.io.parse_example(serialized, features)
    else:
        context, lists, _ = tf.io.parse_sequence_example(
            serialized, features or None, feature_lists or None
        )
        parsed = {**context, **lists}
    result: dict[str, Any] = {}
    for name, arguments in tensors.items():
        result |= tensor_of(name, parsed, **arguments)
    return result


def tensor_of(
    name: str,
    parsed: Mapping[str, Any],
    dtype: str,
    shape: Sequence[int] = (),
    ragged_rank: int = 0,
    item_bytes: int = 0,
    lengths: Sequence[str] = (),
    per_step: bool = False,
) -> dict[str, Any]:
    """Returns the tensor of a feature, and `name/valid` if records may lack it.

    Args:
        name: Name of the feature.
        parsed: The entries that tf.io has parsed, by name.
        dtype: Name of the dtype of the tensor.
        shape: Shape of an item, without the dimensions of variable length.
        ragged_rank: Number of dimensions of variable length.
        item_bytes: Size of a number, if the entry contains the memory of numbers as a string.
            Otherwise 0.
        lengths: Names of the entries with the lengths of nested lists, outermost first.
        per_step: True if each step of a SequenceExample has a string of its own.
    """
    value, valid = parsed[name], {}
    if ragged_rank and item_bytes:
        if not isinstance(value, tf.RaggedTensor):
            value = tf.RaggedTensor.from_uniform_row_length(value, 1)
        strings = value.flat_values
        items = tf.reshape(_decode_raw(tf.strings.reduce_join(strings), dtype), [-1, *shape])
        counts = tf.cast(tf.strings.length(strings), tf.int64) // (
            item_bytes * max(math.prod(shape), 1)
        )
        nested = [parsed[entry] for entry in lengths]
        return {
            name: _raw_lists(
                items, counts, value.row_splits, nested, ragged_rank if per_step else 0
            )
        }
    if ragged_rank:
        items = tf.reshape(tf.cast(value.flat_values, dtype), [-1, *shape])
        splits = value.nested_row_splits[:ragged_rank]
        return {name: tf.RaggedTensor.from_nested_row_splits(items, splits, validate=False)}
    if isinstance(value, tf.RaggedTensor):
        size = math.prod(shape)
        filler = bytes(item_bytes * size) if item_bytes else "" if value.dtype == tf.string else 0
        valid = {name + "/valid": value.row_lengths() > 0}
        value = _fill_missing(value, valid[name + "/valid"], 1 if item_bytes else size, filler)
        value = tf.reshape(value, [-1] if item_bytes else [-1, *shape])
    if item_bytes:
        return {name: tf.reshape(_decode_raw(value, dtype), [-1, *shape]), **valid}
    return {name: tf.cast(value, dtype), **valid}


def _fill_missing(value: Any, valid: Any, size: int, filler: Any) -> Any:
    """Returns a tensor [batch, size] of lists that have either `size` items or none.

    Rows of empty lists contain the filler.
    """
    # The filler is appended as the last row, and missing rows are gathered from it.
    missing = tf.fill([1, size], tf.constant(filler, value.dtype))
    rows = tf.concat([tf.reshape(value.flat_values, [-1, size]), missing], 0)
    last = tf.shape(rows, out_type=tf.int64)[0] - 1
    return tf.gather(rows, tf.where(valid, tf.cumsum(tf.cast(valid, tf.int64)) - 1, last))


def _decode_raw(value: Any, dtype: str) -> Any:
    """Converts strings with the little-endian memory of numbers to numbers."""
    if dtype == "uint64":  # tf.io.decode_raw does not support uint64
        return tf.bitcast(tf.io.decode_raw(value, tf.int64), tf.uint64)
    return tf.io.decode_raw(value, dtype)


def _raw_lists(
    items: Any, counts: Any, splits: Any, lengths: Sequence[Any], steps_rank: int
) -> Any:
    """Returns a ragged tensor of the items that were decoded from strings.

    Args:
        items: The items of all strings.
        counts: Number of items of each string.
        splits: Row splits of the strings: records to strings.
        lengths: Lengths of nested lists, outermost first.
        steps_rank: Number of dimensions of variable length, if each step has a string. Otherwise 0.
    """
    if steps_rank:
        inner = (
            items
            if steps_rank == 1
            else tf.RaggedTensor.from_row_lengths(items, counts, validate=False)
        )
        return tf.RaggedTensor.from_row_splits(inner, splits, validate=False)
    if not lengths:
        ends = tf.concat([[0], tf.cumsum(counts)], 0)
        return tf.RaggedTensor.from_row_splits(items, tf.gather(ends, splits), validate=False)
    for level in reversed(lengths):
        items = tf.RaggedTensor.from_row_lengths(items, level.flat_values, validate=False)
    return tf.RaggedTensor.from_row_splits(items, lengths[0].row_splits, validate=False)
