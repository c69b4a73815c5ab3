"""A `Dataset` as a graph of TensorFlow's own operations: TFRecordDatasets over the shards, for tf.data service and for
graphs that are saved.

TensorFlow reads and checks the frames itself, in its own threads. It takes a file that is cut off inside a header for a
clean end, so each shard's record count is asserted too: a shard that is short raises tf.errors.FailedPreconditionError,
and `Dataset` has looked at its size before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from recordmill.base.errors import UsageError
from recordmill.reader.collating.form import LENGTH
from recordmill.reader.collating.ways import Bucketed, OneHot, Packed, Padded, Way
from recordmill.reader.faces.tf_converted import steps_in_graph
from recordmill.reader.faces.tf_parse import VALID, Tensors, as_it_is, parser
from recordmill.reader.faces.tf_steps import padded_tensor
from recordmill.reader.fetching.readable import Fetchable, Readable
from recordmill.schemas.feature import Schema
from recordmill.storage.files import check_unchanged, is_remote

if TYPE_CHECKING:
    import tensorflow as tf

_READ_BYTES = 1 << 20  # 1 MiB per shard that is open: TensorFlow's default of 256 KiB costs a fifth of the throughput
_OPEN_SHARDS = 16  # shards read in turn when shuffling, so that a buffer mixes records of many places
TURN_RECORDS = 16  # records taken from each of them in turn


def serialized_records(dataset: Readable, shuffle: bool, seed: int, shuffle_records: int) -> tf.data.Dataset:
    """Serialized records, one by one, their number asserted per shard and in all."""
    import tensorflow as tf

    files = dataset.catalog.files
    if odd := [file for file in files if file.codec.tensorflow is None]:
        raise UsageError(
            f"{odd[0].name} is compressed with {odd[0].compression}, which TensorFlow can't read; leave portable out"
        )
    if remote := [file for file in files if is_remote(file.path)]:
        raise UsageError(
            f"{remote[0].path}: portable=True has TensorFlow open the files, which may know nothing of the store; "
            "leave it out"
        )
    for file in files:
        check_unchanged(file.path, file.stat, file.path)
    counts = dataset.file_records
    paths = [file.path for file in files] or tf.zeros([0], tf.string)
    compressions = [file.codec.tensorflow for file in files] or tf.zeros([0], tf.string)
    firsts = np.cumsum([0, *counts])[: len(counts)]
    shards = tf.data.Dataset.from_tensor_slices(
        (paths, compressions, tf.constant(counts, tf.int64), tf.constant(firsts, tf.int64))
    )

    kept = None if dataset.matching is None else tf.constant(dataset.matching.mask(0, sum(counts)))

    @as_it_is
    def read(path: Any, compression: Any, count: Any, first: Any) -> Any:
        records = tf.data.TFRecordDataset(path, compression, _READ_BYTES).apply(
            tf.data.experimental.assert_cardinality(count)
        )
        if kept is None:
            return records
        numbered = records.enumerate(first).filter(as_it_is(lambda number, _: kept[number]))
        return numbered.map(as_it_is(lambda _, record: record))

    if not shuffle:
        records = shards.flat_map(read)
    else:
        order = shards.shuffle(max(len(files), 1), seed, reshuffle_each_iteration=True)
        open_shards = min(max(len(files), 1), _OPEN_SHARDS)
        records = order.interleave(
            read, open_shards, TURN_RECORDS, num_parallel_calls=min(open_shards, dataset.threads), deterministic=True
        )
        records = records.shuffle(shuffle_records, seed + 1, reshuffle_each_iteration=True)
    return records.apply(tf.data.experimental.assert_cardinality(len(dataset)))


def parser_of(dataset: Fetchable, schema: Schema, defaults: Mapping[str, Any]) -> Callable[[Any], Tensors]:
    """`tf_parse.parser` for features that may have other names than in the records."""
    decoding = dataset.stored(schema)
    stored = decoding.stored
    shown = dict(zip(stored.names, schema.names, strict=True))
    steps = steps_in_graph(decoding)
    own = {name: defaults[new] for name, new in shown.items() if new in defaults}
    converted = {step.feature for step in decoding.steps}
    parse = parser(stored, {name: value for name, value in own.items() if name not in converted})
    both = {**shown, **{name + VALID: new + VALID for name, new in shown.items()}}
    return lambda records: {both[name]: tensor for name, tensor in steps(parse(records), own).items()}


def collater(schema: Schema, ways: Mapping[str, Way]) -> Callable[[Tensors], Tensors]:
    """A function of a parsed batch to the same, collated.

    Raises:
        UsageError: a way needs more than one batch.
    """
    if others := [name for name, way in ways.items() if isinstance(way, Bucketed | Packed)]:
        raise UsageError(
            f"portable=True takes its batches as they come: {others[0]!r} can't be {ways[others[0]]} there"
        )

    def collate(tensors: Tensors) -> Tensors:
        for name, way in ways.items():
            if isinstance(way, OneHot):
                tensors[name] = _one_hot(tensors[name], tensors.pop(name + VALID, None), way)
            elif way == "dense":
                tensors[name] = _dense(name, tensors[name], schema)
            elif isinstance(way, Padded):
                tensors |= _padded(name, tensors[name], way, schema)
        return tensors

    return collate


def _one_hot(numbers: Any, valid: Any, way: OneHot) -> Any:
    import tensorflow as tf

    there = numbers if valid is None else tf.boolean_mask(numbers, valid)
    inside = tf.debugging.Assert(tf.reduce_all((there >= 0) & (there < way.depth)), ["no class", there])
    with tf.control_dependencies([inside]):
        return tf.one_hot(numbers if valid is None else tf.where(valid, numbers, -tf.ones_like(numbers)), way.depth)


def _dense(name: str, ragged: Any, schema: Schema) -> Any:
    import tensorflow as tf

    lengths = ragged.row_lengths()
    same = tf.debugging.Assert(tf.reduce_all(lengths == lengths[0]), [name, "is not dense", lengths])
    with tf.control_dependencies([same]):
        return padded_tensor(ragged, lengths[0], None, schema[name])


def _padded(name: str, ragged: Any, way: Padded, schema: Schema) -> Tensors:
    import tensorflow as tf

    lengths = ragged.row_lengths()
    longest = tf.reduce_max(lengths) if way.length is None else way.length
    length = -(-longest // way.multiple) * way.multiple
    return {name: padded_tensor(ragged, length, way.value, schema[name]), name + LENGTH: lengths}
