"""A `Dataset` as tf.data, with a cardinality that Keras knows: fed by the fetcher in blocks of steps, in the order and
with the values of `Dataset.batches`.

An error of the data is a tf.errors.InvalidArgumentError that has the DataError's text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Literal, cast

from recordmill.base.errors import MissingExtraError, UsageError
from recordmill.reader.faces.image_rows import image_features
from recordmill.reader.faces.tf_blocks import block_spec, blocks_of, steps_of
from recordmill.reader.faces.tf_images import batch_decoder
from recordmill.reader.faces.tf_parse import VALID, Tensors, parser
from recordmill.reader.faces.tf_portable import serialized_records
from recordmill.reader.fetching.beside import Beside
from recordmill.reader.fetching.fetcher import Fetcher
from recordmill.reader.fetching.order import Order, make_schedule
from recordmill.reader.fetching.readable import Fetchable, Readable
from recordmill.schemas.feature import Schema

if TYPE_CHECKING:
    import tensorflow as tf

_UNBATCHED_ROWS = 256  # rows that are handed over together where single records are wanted


@dataclass(frozen=True)
class Options:
    """What `Dataset.to_tf` takes.

    batch_size: rows of a batch; None: single records, handed over in batches all the same.
    order: see `fetching.order`; a data set that is iterated again goes on with the next epochs.
    label: the feature that is y in (x, y); None: the schema's label, if it has one and it is read; False: dicts only.
    decode_images: (height, width): encoded images become uint8 [batch, height, width, channels]. antialias: resize them
    with it. defaults: feature name to what fills records that lack it; without one, `name/valid` says which have it.
    start_step: how many steps of the run have been done. portable: as TensorFlow's own operations, in an order of their
    own, records through a buffer of shuffle_records. ids: `record/shard` and `record/index` beside the features.
    """

    batch_size: int | None
    order: Order
    label: str | Literal[False] | None
    decode_images: tuple[int, int] | None
    channels: int
    antialias: bool
    defaults: Mapping[str, Any]
    start_step: int
    memory_bytes: int
    portable: bool
    shuffle_records: int
    ids: bool


def to_tf(dataset: Fetchable, options: Options) -> tf.data.Dataset:
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
    _check(dataset, options)
    schema, label = _label(dataset.schema, options)
    finish = _finisher(dataset, schema, label, options)
    parse = parser(schema, options.defaults)  # which refuses the same defaults either way
    if options.portable:
        return _portable(dataset, options, lambda records: finish(parse(records)))
    batches = _fed(dataset, schema, options)
    if label is not None or options.decode_images is not None:
        batches = batches.map(finish, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return batches.prefetch(tf.data.AUTOTUNE)


def _portable(dataset: Fetchable, options: Options, parse: Callable[[Any], Any]) -> tf.data.Dataset:
    import tensorflow as tf

    order = options.order
    assert dataset.mixed is None
    records = serialized_records(cast(Readable, dataset), bool(order.shuffle), order.seed, options.shuffle_records)
    drop = order.drop_remainder and options.batch_size is not None
    batches = records.batch(options.batch_size or _UNBATCHED_ROWS, drop_remainder=drop)
    result = batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    if options.batch_size is None:
        result = result.unbatch().apply(tf.data.experimental.assert_cardinality(len(dataset)))
    return (result if order.epochs == 1 else result.repeat(order.epochs)).prefetch(tf.data.AUTOTUNE)


def _fed(dataset: Fetchable, schema: Schema, options: Options) -> tf.data.Dataset:
    """Batches of tensors by feature name, from the fetcher."""
    import tensorflow as tf

    order = replace(options.order, epochs=None)  # it may be iterated as often as one likes
    if options.batch_size is None:
        order = replace(order, drop_remainder=False, pad_remainder=False)
    begin = make_schedule(dataset, options.batch_size or _UNBATCHED_ROWS, order).after(options.start_step)
    epochs, decoded = options.order.epochs, _without(schema, options.defaults)
    iterations = count()

    given = Beside(order.pad_remainder, options.ids).schema(decoded)

    def blocks() -> Iterator[dict[str, Any]]:
        schedule = begin.iteration(next(iterations), epochs)
        fetcher = Fetcher(dataset, schedule, decoded, options.memory_bytes, ids=options.ids)
        return chain.from_iterable(fetcher.fetch(lambda rows: blocks_of(rows, given)))

    fed = tf.data.Dataset.from_generator(blocks, output_signature=block_spec(given)).prefetch(1)
    same = options.batch_size if order.drop_remainder or order.pad_remainder else None
    batches = fed.flat_map(steps_of(given, options.defaults, same))
    if options.batch_size is None:
        batches = batches.unbatch()
    if epochs is None:
        return batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    if begin.position or begin.epoch % epochs:
        return batches  # iterated again it is longer
    once = begin.steps.count() if options.batch_size is not None else len(dataset)
    return batches.apply(tf.data.experimental.assert_cardinality(epochs * once))


def _without(schema: Schema, defaults: Mapping[str, Any]) -> Schema:
    """The schema as the records may be: what has a default may be missing."""
    return replace(schema, features=tuple(replace(f, required=f.required and f.name not in defaults) for f in schema))


def _check(dataset: Fetchable, options: Options) -> None:
    if options.batch_size is not None and options.batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, or None for single records, not {options.batch_size}")
    order = options.order
    if order.epochs is not None and order.epochs < 1:
        raise UsageError(f"epochs must be at least 1, or None for no end, not {order.epochs}")
    if options.portable and (
        order.shuffle == "global" or order.num_hosts != 1 or order.state is not None or options.start_step
    ):
        raise UsageError("portable=True has an order of its own: no global shuffle, hosts, state or start_step")
    if options.portable and (order.pad_remainder or options.ids):
        raise UsageError("portable=True knows no record's number: no pad_remainder, no ids")
    Beside(order.pad_remainder, options.ids).check(dataset.schema)
    if options.portable and dataset.mixed is not None:
        raise UsageError("portable=True is of one data set, not of a mixture")
    if order.shuffle and options.shuffle_records < 1:
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
    if schema[name].ragged_rank or name in options.defaults:
        return schema, name
    if not schema[name].required:
        raise UsageError(
            f"label {name!r} may be missing in some records, says the schema, and an epoch would end at the first one: "
            f"say what stands for it, defaults={{{name!r}: ...}}, or label=False to get it among the features"
        )
    return replace(schema, features=tuple(replace(f, required=True) if f.name == name else f for f in schema)), name


def _finisher(dataset: Fetchable, schema: Schema, label: str | None, options: Options) -> Callable[[Tensors], Any]:
    """What is done to a parsed batch: decode images, divide into x and y."""
    images: tuple[str, ...] = ()
    decode: Callable[[Any, Any], Any] | None = None
    if options.decode_images is not None:
        images = image_features(dataset)
        decode = batch_decoder(options.decode_images, options.channels, options.antialias)

    def finish(tensors: Tensors) -> Any:
        for name in images:
            assert decode is not None
            tensors[name] = decode(tensors[name], tensors.get(name + VALID))
        if label is None:
            return tensors
        y = tensors.pop(label)
        return (tensors.popitem()[1] if len(tensors) == 1 else tensors), y

    return finish
