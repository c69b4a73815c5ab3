"""A `Dataset` as a graph of TensorFlow's own operations: TFRecordDatasets over the shards, for tf.data service and for
graphs that are saved.

TensorFlow reads and checks the frames itself, in its own threads. It takes a file that is cut off inside a header for a
clean end, so each shard's record count is asserted too: a shard that is short raises tf.errors.FailedPreconditionError,
and `Dataset` has looked at its size before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from recordmill.base.errors import UsageError
from recordmill.reader.fetching.readable import Readable
from recordmill.storage.files import check_unchanged

if TYPE_CHECKING:
    import tensorflow as tf

_COMPRESSIONS = {"none": "", "gzip": "GZIP", "zlib": "ZLIB"}
_READ_BYTES = 1 << 20  # 1 MiB per shard that is open: TensorFlow's default of 256 KiB costs a fifth of the throughput
_OPEN_SHARDS = 16  # shards read in turn when shuffling, so that a buffer mixes records of many places
_TURN_RECORDS = 16  # records taken from each of them in turn


def serialized_records(dataset: Readable, shuffle: bool, seed: int, shuffle_records: int) -> tf.data.Dataset:
    """Serialized records, one by one, their number asserted per shard and in all."""
    import tensorflow as tf

    files = dataset.catalog.files
    if odd := [file for file in files if file.compression not in _COMPRESSIONS]:
        raise UsageError(
            f"{odd[0].name} is compressed with {odd[0].compression}, which TensorFlow can't read; use "
            "batches(), which can"
        )
    for file in files:
        check_unchanged(file.path, file.stat, file.path)
    counts = dataset.file_records
    paths = [file.path for file in files] or tf.zeros([0], tf.string)
    compressions = [_COMPRESSIONS[file.compression] for file in files] or tf.zeros([0], tf.string)
    firsts = np.cumsum([0, *counts])[: len(counts)]
    shards = tf.data.Dataset.from_tensor_slices(
        (paths, compressions, tf.constant(counts, tf.int64), tf.constant(firsts, tf.int64))
    )

    kept = (
        None
        if dataset.matching is None
        else tf.constant(np.isin(np.arange(sum(counts)), dataset.matching, assume_unique=True))
    )

    def read(path: Any, compression: Any, count: Any, first: Any) -> Any:
        records = tf.data.TFRecordDataset(path, compression, _READ_BYTES).apply(
            tf.data.experimental.assert_cardinality(count)
        )
        if kept is None:
            return records
        return records.enumerate(first).filter(lambda number, _: kept[number]).map(lambda _, record: record)

    if not shuffle:
        records = shards.flat_map(read)
    else:
        order = shards.shuffle(max(len(files), 1), seed, reshuffle_each_iteration=True)
        open_shards = min(max(len(files), 1), _OPEN_SHARDS)
        records = order.interleave(
            read, open_shards, _TURN_RECORDS, num_parallel_calls=min(open_shards, dataset.threads), deterministic=True
        )
        records = records.shuffle(shuffle_records, seed + 1, reshuffle_each_iteration=True)
    return records.apply(tf.data.experimental.assert_cardinality(len(dataset)))


def usable_only(records: tf.data.Dataset, finish: Callable[[Any], Any]) -> tf.data.Dataset:
    """Records that finish (of batches) takes, one by one, each by itself; TensorFlow's log names what it does not take.
    What is wrong with the files stays an error.
    """
    import tensorflow as tf

    def one(record: Any) -> Any:
        return tf.data.Dataset.from_tensors(record[tf.newaxis]).map(finish).ignore_errors(log_warning=True).unbatch()

    return records.interleave(one, _TURN_RECORDS, 1, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
