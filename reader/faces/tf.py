"""A `Dataset` as tf.data, with a cardinality that Keras knows: fed by the fetcher in blocks of steps, in the order and
with the values of `Dataset.batches`.

An error of the data is a tf.errors.InvalidArgumentError that has the DataError's text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from recordmill.base.errors import MissingExtraError, UsageError
from recordmill.base.people.nearest import there_are
from recordmill.base.room import let_go
from recordmill.base.sizes import whole
from recordmill.reader.collating.course import Course, Lot, make_course
from recordmill.reader.collating.form import Form
from recordmill.reader.collating.ways import Collate, OneHot, Padded, Way, refuse_packed_images
from recordmill.reader.collating.weight import padded_row_bytes
from recordmill.reader.faces.found import OnBad, Refill, finder, order_of
from recordmill.reader.faces.tf_blocks import Sent, block_spec, blocks_of, decoded_schema, sent_features
from recordmill.reader.faces.tf_parse import parser
from recordmill.reader.faces.tf_portable import serialized_records
from recordmill.reader.faces.tf_records import RecordGraph
from recordmill.reader.faces.tf_steps import free_iterators_at_exit, prepared_steps
from recordmill.reader.fetching.beside import Beside
from recordmill.reader.fetching.clock import spent
from recordmill.reader.fetching.fetcher import Fetcher
from recordmill.reader.fetching.order import Order
from recordmill.reader.fetching.readable import Fetchable, Readable
from recordmill.reader.images.features import images_by_feature
from recordmill.reader.images.options import Images, Wanted
from recordmill.reader.images.rows import ImageDecoder
from recordmill.records.columns.parts import is_bytes
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
    images: what encoded images become. on_bad: "skip" leaves out what can't be used, and promises no cardinality.
    defaults: feature name to what fills records that lack it; without one, `name/valid` says which have it.
    collate: feature to way, as for `batches`. weights: the feature that is w in (x, y, w).
    start_step: how many steps of the run have been done. portable: as TensorFlow's own operations, in an order of their
    own, records through a buffer of shuffle_records. ids: `record/shard` and `record/index` beside the features.
    """

    batch_size: int | None
    order: Order
    label: str | Literal[False] | None
    images: Wanted | None
    on_bad: OnBad
    defaults: Mapping[str, Any]
    collate: Mapping[str, Collate]
    weights: str | None
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
        import_module("tensorflow")
    except ImportError as error:
        if (error.name or "").split(".")[0] != "tensorflow":
            raise
        raise MissingExtraError("to_tf", "tf", "tensorflow") from None
    _check(dataset, options)
    schema, label = _label(dataset.schema, options)
    form = Form(options.collate, label, options.weights)
    ways = form.check(dataset.schema)
    images = images_by_feature(dataset, options.images)
    if images:
        refuse_packed_images(ways)
    order_of(options.order, options.on_bad, ways)  # which refuses the same of both
    parser(schema, options.defaults)
    if options.portable:
        return _portable(dataset, options, RecordGraph.of(dataset, schema, form, ways, images, options.defaults))
    return _fed(dataset, schema, form, ways, images, options)


def _portable(dataset: Fetchable, options: Options, graph: RecordGraph) -> tf.data.Dataset:
    import tensorflow as tf

    order, rows = options.order, options.batch_size or _UNBATCHED_ROWS
    records = serialized_records(cast(Readable, dataset), bool(order.shuffle), order.seed, options.shuffle_records)
    drop = order.drop_remainder and options.batch_size is not None
    if options.on_bad == "skip":
        usable = graph.usable(records)
        result = usable if options.batch_size is None else usable.batch(rows, drop_remainder=drop)
    else:
        result = graph.batches(records, rows, drop)
        if options.batch_size is None:
            result = result.unbatch().apply(tf.data.experimental.assert_cardinality(len(dataset)))
    return (result if order.epochs == 1 else result.repeat(order.epochs)).prefetch(tf.data.AUTOTUNE)


def _fed(
    dataset: Fetchable,
    schema: Schema,
    form: Form,
    ways: Mapping[str, Way],
    images: Mapping[str, Images],
    options: Options,
) -> tf.data.Dataset:
    """Batches from the fetcher, as the form wants them."""
    import tensorflow as tf

    drop = options.order.drop_remainder and options.batch_size is not None
    pad = options.order.pad_remainder and options.batch_size is not None
    given = replace(options.order, epochs=None, drop_remainder=drop, pad_remainder=pad)
    order, beside = order_of(given, options.on_bad, ways), Beside(pad, options.ids)
    course = make_course(dataset, options.batch_size or _UNBATCHED_ROWS, order, ways)
    begin = course if options.start_step == 0 else course.begun_after(options.start_step)
    epochs, fetched = options.order.epochs, _without(schema, options.defaults)  # it may be iterated without end
    schema = beside.schema(decoded_schema(fetched, images, options.defaults))
    sent, iterations = sent_features(schema, ways), count()

    def blocks() -> Iterator[dict[str, Any]]:
        course = begin.iteration(next(iterations), epochs)
        yield from _blocks(dataset, course, fetched, sent, ways, images, options, beside)

    free_iterators_at_exit()
    fed = tf.data.Dataset.from_generator(blocks, output_signature=block_spec(sent))
    others = {name: value for name, value in options.defaults.items() if name not in images}
    same = options.batch_size if drop or pad or course.packs is not None else None
    batches = prepared_steps(fed, sent, others, same, form.given)
    if options.batch_size is None:
        batches = batches.unbatch()
    if epochs is None:
        return batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    schedule = begin.schedule
    unknown = begin.packs is not None or options.on_bad == "skip"
    if unknown or begin.done or schedule.position or schedule.epoch % epochs:
        return batches  # nobody knows how long it is, or iterated again it is longer
    once = schedule.steps.count() if options.batch_size is not None else len(dataset)
    return batches.apply(tf.data.experimental.assert_cardinality(epochs * once))


def _blocks(
    dataset: Fetchable,
    course: Course,
    schema: Schema,
    sent: list[Sent],
    ways: Mapping[str, Way],
    images: Mapping[str, Images],
    options: Options,
    beside: Beside,
) -> Iterator[dict[str, Any]]:
    """What one iteration is fed with. schema: as records are fetched."""
    skip = options.on_bad == "skip"
    defaults = {name: options.defaults[name] for name in images if name in options.defaults}
    decoder = ImageDecoder(images, dataset.threads, options.order.seed, options.memory_bytes, defaults)
    memory_bytes = max(options.memory_bytes - decoder.work_bytes, 1)
    made_bytes = decoder.row_bytes + padded_row_bytes(dataset, ways)
    fetcher = Fetcher(dataset, course.schedule, schema, memory_bytes, made_bytes, skip)
    find = finder(dataset, schema, decoder, options.on_bad)

    def blocks(lot: Lot) -> list[dict[str, Any]]:
        with spent("collate"):
            return blocks_of(replace(lot, rows=beside.added(lot.rows, dataset.ends)), sent)

    try:
        if skip:
            drop = options.order.drop_remainder and options.batch_size is not None
            found = Refill(dataset, course.schedule, drop).refilled(fetcher.fetch(lambda rows: find(Lot(rows))))
            yield from chain.from_iterable(map(blocks, found))
        else:
            yield from chain.from_iterable(course.lots(fetcher, lambda lot: blocks(find(lot))))
    finally:
        decoder.close()
        let_go()


def _without(schema: Schema, defaults: Mapping[str, Any]) -> Schema:
    """The schema as the records may be: what has a default may be missing."""
    return replace(schema, features=tuple(replace(f, required=f.required and f.name not in defaults) for f in schema))


def _check(dataset: Fetchable, options: Options) -> None:
    if options.batch_size is not None:
        whole(options.batch_size, "batch_size", 1)
    whole(options.start_step, "start_step", 0)
    _check_defaults(dataset.schema, options.defaults)
    order = options.order
    if order.epochs is not None and order.epochs < 1:
        raise UsageError(f"epochs must be at least 1, or None for no end, not {order.epochs}")
    if options.portable and (
        order.shuffle == "global" or order.num_hosts != 1 or order.state is not None or options.start_step
    ):
        raise UsageError("portable=True has an order of its own: no global shuffle, hosts, state or start_step")
    if options.portable and (order.pad_remainder or options.ids or dataset.mixed is not None):
        raise UsageError("portable=True knows no record's number: no pad_remainder, no ids, no mixture")
    Beside(order.pad_remainder, options.ids).check(dataset.schema)
    if options.on_bad == "skip" and options.start_step:
        raise UsageError('on_bad="skip": nobody knows at which record step start_step begins; give a `state` instead')
    if order.shuffle:
        whole(options.shuffle_records, "shuffle_records", 1)
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


def _check_defaults(schema: Schema, defaults: Mapping[str, Any]) -> None:
    """Refuse what stands for no feature, or is none of its values."""
    if not isinstance(defaults, Mapping):
        raise UsageError(f"defaults is a value by feature name, not {defaults!r}")
    for name, value in defaults.items():
        if name not in schema:
            raise UsageError(f"defaults: {name!r} is no feature that is read; {there_are(name, schema.names)}")
        is_text = np.asarray(value).dtype.kind in "USO"
        if is_text != is_bytes(schema[name]):
            raise UsageError(f"defaults: {name!r} is {schema[name].describe()}, for which {value!r:.99} can't stand")


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
