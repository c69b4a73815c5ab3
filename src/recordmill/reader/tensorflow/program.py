"""TFRecord files to batches of tensors by TensorFlow's own operations alone.

`recordmill inspect --emit reader` prints this, word for word, after the constants of a data set, so nothing of
recordmill's is imported here.

fixed shape          dense [batch, *shape]; where a record may lack it, zeros or "" and `name/valid` [batch] bool
                     beside it
variable length      tf.RaggedTensor [batch, None, ...]; a list that is missing and one that is empty both come as empty
timestamp            int64 since 1970 in the schema's unit; string and bytes: tf.string
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

DATASET_READ_BYTES = (
    1 << 20
)  # per open file: TensorFlow's default of 256 KiB costs a fifth of the throughput
OPEN_FILES = 16  # read in turn when shuffling, so that a buffer mixes records of many places
TURN_RECORDS = 16  # taken from each of them in turn


def unconverted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for a data set's `map` and the like that AutoGraph leaves as it is: it has no Python `if` or loop over
    tensors, and looking for them takes longer than all else before the first batch.
    """
    converted: Callable[..., Any] = tf.autograph.experimental.do_not_convert(function)
    return converted


def read_records(
    files: Sequence[tuple[str, str, int]], shuffle_records: int = 0, seed: int = 0
) -> tf.data.Dataset:
    """Serialized records of files, in order, or, drawn from a buffer of shuffle_records, of files in random order.

    Args:
        files: (path, compression, records); another number of records than that is an error, since TensorFlow takes a
            file that is cut off inside a record's header for one that ends there.
        shuffle_records: of the buffer; 0: in order.
        seed: of the shuffle.
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

    @unconverted
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
    """Parses [batch] serialized records to tensors by feature name.

    Args:
        serialized: the records.
        features: as tf.io parses Examples; None for records that are neither.
        feature_lists: as tf.io parses the steps of SequenceExamples; None for others.
        tensors: feature name to the arguments of `tensor_of`.
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
    """Returns the tensor of a feature, and `name/valid` where records may lack it, of what tf.io parsed.

    Args:
        name: of the feature.
        parsed: the parsed entries.
        dtype: of the feature.
        shape: of an item, after ragged_rank variable dimensions.
        ragged_rank: how many dimensions vary.
        item_bytes: of a number, where strings hold the memory of numbers.
        lengths: the entries that nest such values.
        per_step: there is a string for each step.
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
    """Returns [batch, size] of lists of size items or none: where there is none, a row of the filler."""
    missing = tf.fill([1, size], tf.constant(filler, value.dtype))
    rows = tf.concat([tf.reshape(value.flat_values, [-1, size]), missing], 0)
    last = tf.shape(rows, out_type=tf.int64)[0] - 1
    return tf.gather(rows, tf.where(valid, tf.cumsum(tf.cast(valid, tf.int64)) - 1, last))


def _decode_raw(value: Any, dtype: str) -> Any:
    """Strings that are the little-endian memory of numbers."""
    if dtype == "uint64":  # which decode_raw does not know
        return tf.bitcast(tf.io.decode_raw(value, tf.int64), tf.uint64)
    return tf.io.decode_raw(value, dtype)


def _raw_lists(
    items: Any, counts: Any, splits: Any, lengths: Sequence[Any], steps_rank: int
) -> Any:
    """Lists of items of which a string held so many (counts).

    Args:
        splits: the strings of each record.
        lengths: of the nested lists, outermost first.
        steps_rank: the variable dimensions, where there is a string per step.
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
