"""A `Dataset` as tf.data, with a cardinality that Keras knows: fed by the fetcher in blocks of steps, in the order and
with the values of `Dataset.batches`.

An error of the data is a tf.errors.InvalidArgumentError that has the DataError's text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Literal

from recordmill.base.errors import MissingExtraError, UsageError
from recordmill.reader.collating.course import Course, make_course
from recordmill.reader.collating.form import Form
from recordmill.reader.collating.ways import Collate, OneHot, Padded, Way, refuse_packed_images
from recordmill.reader.faces.image_rows import image_features
from recordmill.reader.faces.tf_blocks import block_spec, blocks_of, sent_features
from recordmill.reader.faces.tf_images import batch_decoder
from recordmill.reader.faces.tf_parse import VALID, Tensors, parser
from recordmill.reader.faces.tf_portable import collater, parser_of, serialized_records
from recordmill.reader.faces.tf_steps import prepared_steps
from recordmill.reader.fetching.fetcher import Fetcher
from recordmill.reader.fetching.order import Order
from recordmill.reader.fetching.readable import Readable
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
    collate: feature to way, as for `batches`. weights: the feature that is w in (x, y, w).
    start_step: how many steps of the run have been done. portable: as TensorFlow's own operations, in an order of their
    own, records through a buffer of shuffle_records.
    """

    batch_size: int | None
    order: Order
    label: str | Literal[False] | None
    decode_images: tuple[int, int] | None
    channels: int
    antialias: bool
    defaults: Mapping[str, Any]
    collate: Mapping[str, Collate]
    weights: str | None
    start_step: int
    memory_bytes: int
    portable: bool
    shuffle_records: int


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
    form = Form(options.collate, label, options.weights)
    ways = form.check(dataset.schema)
    finish = _finisher(dataset, form, ways, options)
    parser(schema, options.defaults)  # which refuses the same defaults either way
    if options.portable:
        collate = collater(schema, ways)
        parse = parser_of(dataset, schema, options.defaults)
        return _portable(dataset, options, lambda records: finish(collate(parse(records))))
    if options.decode_images is None:
        return _fed(dataset, schema, ways, options, finish)
    batches = _fed(dataset, schema, ways, options, lambda tensors: tensors)
    return batches.map(finish, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(tf.data.AUTOTUNE)


def _portable(dataset: Readable, options: Options, parse: Callable[[Any], Any]) -> tf.data.Dataset:
    import tensorflow as tf

    order = options.order
    records = serialized_records(dataset, bool(order.shuffle), order.seed, options.shuffle_records)
    drop = order.drop_remainder and options.batch_size is not None
    batches = records.batch(options.batch_size or _UNBATCHED_ROWS, drop_remainder=drop)
    result = batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    if options.batch_size is None:
        result = result.unbatch().apply(tf.data.experimental.assert_cardinality(len(dataset)))
    return (result if order.epochs == 1 else result.repeat(order.epochs)).prefetch(tf.data.AUTOTUNE)


def _fed(
    dataset: Readable, schema: Schema, ways: Mapping[str, Way], options: Options, finish: Callable[[Tensors], Any]
) -> tf.data.Dataset:
    """Batches from the fetcher, of tensors by feature name, finished."""
    import tensorflow as tf

    order = replace(options.order, epochs=None)  # it may be iterated as often as one likes
    if options.batch_size is None:
        order = replace(order, drop_remainder=False)
    course = make_course(dataset, options.batch_size or _UNBATCHED_ROWS, order, ways)
    begin = course if options.start_step == 0 else course.begun_after(options.start_step)
    epochs, decoded = options.order.epochs, _without(schema, options.defaults)
    sent, iterations = sent_features(decoded, ways), count()

    def blocks() -> Iterator[dict[str, Any]]:
        this = _iteration(begin, epochs, next(iterations))
        fetcher = Fetcher(dataset, this.schedule, decoded, options.memory_bytes)
        return chain.from_iterable(this.lots(fetcher, lambda lot: blocks_of(lot, sent)))

    fed = tf.data.Dataset.from_generator(blocks, output_signature=block_spec(sent))
    same = options.batch_size if order.drop_remainder or course.packs is not None else None
    batches = prepared_steps(fed, sent, options.defaults, same, finish)
    if options.batch_size is None:
        batches = batches.unbatch()
    if epochs is None:
        return batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    schedule = begin.schedule
    if begin.packs is not None or begin.done or schedule.position or schedule.epoch % epochs:
        return batches  # nobody knows how long it is, or iterated again it is longer
    once = schedule.steps.count() if options.batch_size is not None else len(dataset)
    return batches.apply(tf.data.experimental.assert_cardinality(epochs * once))


def _iteration(begin: Course, epochs: int | None, number: int) -> Course:
    """What an iteration gives: the first one what is left of so many epochs, each other one so many more."""
    if epochs is None:
        return begin
    first = begin.schedule.epoch // epochs + number
    until = replace(begin.schedule, epochs=(first + 1) * epochs)
    if number == 0:
        return replace(begin, schedule=until)
    return replace(begin, schedule=replace(until, epoch=first * epochs, position=0), done=0)


def _without(schema: Schema, defaults: Mapping[str, Any]) -> Schema:
    """The schema as the records may be: what has a default may be missing."""
    return replace(schema, features=tuple(replace(f, required=f.required and f.name not in defaults) for f in schema))


def _check(options: Options) -> None:
    if options.batch_size is not None and options.batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, or None for single records, not {options.batch_size}")
    order = options.order
    if order.epochs is not None and order.epochs < 1:
        raise UsageError(f"epochs must be at least 1, or None for no end, not {order.epochs}")
    if options.portable and (
        order.shuffle == "global" or order.num_hosts != 1 or order.state is not None or options.start_step
    ):
        raise UsageError("portable=True has an order of its own: no global shuffle, hosts, state or start_step")
    if order.shuffle and options.shuffle_records < 1:
        raise UsageError(f"shuffle_records must be at least 1, not {options.shuffle_records}")
    if options.channels not in (1, 3, 4):
        raise UsageError(f"channels must be 1, 3 or 4, not {options.channels}")
    if options.batch_size is None and (
        open_ended := [
            name
            for name, way in options.collate.items()
            if way not in ("ragged", "one_hot")
            and not isinstance(way, OneHot)
            and not (isinstance(way, Padded) and way.length is not None)
        ]
    ):
        raise UsageError(
            f"batch_size=None gives single records, and {open_ended[0]!r} is collated as the batch has it: give "
            "Padded(length)"
        )


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


def _finisher(dataset: Readable, form: Form, ways: Mapping[str, Way], options: Options) -> Callable[[Tensors], Any]:
    """What is done to a collated batch: decode images, divide into x, y and weights."""
    if options.decode_images is None:
        return form.given
    images = image_features(dataset)
    refuse_packed_images(ways)
    decode = batch_decoder(options.decode_images, options.channels, options.antialias)

    def finish(tensors: Tensors) -> Any:
        for name in images:
            tensors[name] = decode(tensors[name], tensors.get(name + VALID))
        return form.given(tensors)

    return finish
