"""A `Dataset` as tf.data: TFRecordDatasets over the shards, parsed in batches from the schema,
with a cardinality that Keras knows.

TensorFlow reads and checks the frames itself, in its own threads. It takes a file that is cut off inside a header for a
clean end, so each shard's record count is asserted too: a shard that is short raises tf.errors.FailedPreconditionError,
and `Dataset` has looked at its size before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from recordmill.base.errors import MissingExtraError, UsageError
from recordmill.reader.faces.readable import Readable
from recordmill.reader.faces.tf_images import batch_decoder, image_features
from recordmill.reader.faces.tf_parse import VALID, Tensors, parser
from recordmill.schemas.feature import Schema
from recordmill.storage.files import check_unchanged

if TYPE_CHECKING:
    import tensorflow as tf

_COMPRESSIONS = {"none": "", "gzip": "GZIP", "zlib": "ZLIB"}
_READ_BYTES = 1 << 20  # 1 MiB per shard that is open: TensorFlow's default of 256 KiB costs a fifth of the throughput
_OPEN_SHARDS = 16  # shards read in turn when shuffling, so that a buffer mixes records of many places
_TURN_RECORDS = 16  # records taken from each of them in turn


@dataclass(frozen=True)
class Options:
    """What `Dataset.to_tf` takes.

    batch_size: rows of a batch; None: single records, parsed in batches all the same.
    shuffle: shards in another order in each epoch, records through a buffer of shuffle_records; the same for the same
    seed. label: the feature that is y in (x, y); None: the schema's label, if it has one and it is read; False: dicts
    only. epochs: how often; None: without end. drop_remainder: leave out an epoch's last batch if it is shorter.
    decode_images: (height, width): encoded images become uint8 [batch, height, width, channels].
    defaults: feature name to what fills records that lack it; without one, `name/valid` says which records have it.
    """

    batch_size: int | None = 256
    shuffle: bool = True
    seed: int = 7
    label: str | Literal[False] | None = None
    epochs: int | None = 1
    drop_remainder: bool = False
    decode_images: tuple[int, int] | None = None
    channels: int = 3
    defaults: Mapping[str, Any] | None = None
    shuffle_records: int = 10_000


def to_tf(dataset: Readable, options: Options) -> tf.data.Dataset:
    """The data set as batches of `(x, y)`, or of x without a label.

    x is a dict of tensors by feature name, or, where only one feature is left beside the label, that tensor itself.

    Raises:
        MissingExtraError: TensorFlow is not installed. UsageError: an option does not fit the data.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        if (error.name or "").split(".")[0] != "tensorflow":
            raise
        raise MissingExtraError("to_tf", "tf", "tensorflow") from None
    _check(options)
    schema, label = _label(dataset.schema, options)
    finish = _finisher(dataset, schema, label, options)
    parse = parser(schema, options.defaults or {})
    records = _records(dataset, options)
    batches = records.batch(
        options.batch_size or 256, drop_remainder=options.drop_remainder and options.batch_size is not None
    )
    result = batches.map(lambda batch: finish(parse(batch)), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    if options.batch_size is None:
        result = result.unbatch().apply(tf.data.experimental.assert_cardinality(len(dataset)))
    if options.epochs != 1:
        result = result.repeat(options.epochs)
    return result.prefetch(tf.data.AUTOTUNE)


def _check(options: Options) -> None:
    if options.batch_size is not None and options.batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, or None for single records, not {options.batch_size}")
    if options.epochs is not None and options.epochs < 1:
        raise UsageError(f"epochs must be at least 1, or None for no end, not {options.epochs}")
    if options.shuffle and options.shuffle_records < 1:
        raise UsageError(f"shuffle_records must be at least 1, not {options.shuffle_records}")
    if options.channels not in (1, 3, 4):
        raise UsageError(f"channels must be 1, 3 or 4, not {options.channels}")


def _label(schema: Schema, options: Options) -> tuple[Schema, str | None]:
    """The schema with the label required (a record without it is an error), and the label.

    Raises:
        UsageError: the label is not read, or the schema says that records may lack it and nothing stands for it.
    """
    name = schema.label if options.label is None else options.label
    if name is False or name is None:
        return schema, None
    if name not in schema:
        raise UsageError(f"label {name!r} is no feature that is read; there are {', '.join(schema.names)}")
    from dataclasses import replace

    if schema[name].ragged_rank or name in (options.defaults or {}):
        return schema, name
    if not schema[name].required:
        raise UsageError(
            f"label {name!r} may be missing in some records, says the schema, and an epoch would end at the first one: "
            f"say what stands for it, defaults={{{name!r}: ...}}, or label=False to get it among the features"
        )
    return replace(schema, features=tuple(replace(f, required=True) if f.name == name else f for f in schema)), name


def _records(dataset: Readable, options: Options) -> tf.data.Dataset:
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

    if not options.shuffle:
        records = shards.flat_map(read)
    else:
        order = shards.shuffle(max(len(files), 1), options.seed, reshuffle_each_iteration=True)
        open_shards = min(max(len(files), 1), _OPEN_SHARDS)
        records = order.interleave(
            read, open_shards, _TURN_RECORDS, num_parallel_calls=min(open_shards, dataset.threads), deterministic=True
        )
        records = records.shuffle(options.shuffle_records, options.seed + 1, reshuffle_each_iteration=True)
    return records.apply(tf.data.experimental.assert_cardinality(len(dataset)))


def _finisher(dataset: Readable, schema: Schema, label: str | None, options: Options) -> Callable[[Tensors], Any]:
    """What is done to a parsed batch: decode images, divide into x and y."""
    images: tuple[str, ...] = ()
    decode: Callable[[Any, Any], Any] | None = None
    if options.decode_images is not None:
        images = image_features(dataset)
        decode = batch_decoder(options.decode_images, options.channels)

    def finish(tensors: Tensors) -> Any:
        for name in images:
            assert decode is not None
            tensors[name] = decode(tensors[name], tensors.get(name + VALID))
        if label is None:
            return tensors
        y = tensors.pop(label)
        return (tensors.popitem()[1] if len(tensors) == 1 else tensors), y

    return finish
