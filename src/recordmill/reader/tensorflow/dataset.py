"""A data set as tf.data.Dataset, fed from this process in blocks of steps.

`batches` returns the same values in the same order. Keras knows the cardinality. A DataError
becomes a tf.errors.InvalidArgumentError with the same text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, count
from typing import Any

import numpy as np
import tensorflow as tf

from recordmill.base.errors import UsageError
from recordmill.base.option_names import available_names
from recordmill.base.stages import time_stage
from recordmill.options.shared import BATCH_SIZE
from recordmill.reader.batches.plan import StepBlock, StepPlan
from recordmill.reader.batches.source import BatchSource
from recordmill.reader.options.collation import Collation, OneHot, Padded
from recordmill.reader.options.training import Training
from recordmill.reader.prefetch.protocols import Fetchable
from recordmill.reader.tensorflow.blocks import (
    BlockColumn,
    free_iterators_at_exit,
    join_element,
    make_block_columns,
    make_block_spec,
    make_decoded_schema,
    split_into_steps,
    to_flat_blocks,
)
from recordmill.records.columns.numpy_arrays import is_bytes
from recordmill.schemas.feature import Schema


def tf_dataset(dataset: Fetchable, options: Training) -> tf.data.Dataset:
    """Returns the batches of a data set.

    A batch is `(x, y)`, or `x` without a label. `x` is a dict of tensors by feature name. If the
    label leaves only one other feature, it is that tensor itself.

    Raises:
        UsageError: An option does not fit the features.
    """
    defaults = options.graph.defaults or {}
    _check_defaults(dataset.schema, defaults)
    source = BatchSource.from_options(dataset, options)
    if options.batch_size is None:
        _check_single_records(source.collator.collations)
    _check_label(source, defaults)
    image_defaults = {name: defaults[name] for name in source.images if name in defaults}
    return _feed_batches(
        replace(
            source, schema=_allow_missing(source.schema, defaults), image_defaults=image_defaults
        ),
        defaults,
    )


def _feed_batches(source: BatchSource, defaults: Mapping[str, Any]) -> tf.data.Dataset:
    batch_size, order = source.options.batch_size, source.options.order
    first_plan = source.plan(batch_size or BATCH_SIZE).skip_finished_epoch()
    schema = source.collator.extras.schema(
        make_decoded_schema(source.schema, source.images, defaults)
    )
    columns, iterations = make_block_columns(schema, source.collator.collations), count()

    def blocks() -> Iterator[dict[str, Any]]:
        # tf.data calls this function again for each iteration, which continues with the next epochs
        yield from _iter_flat_blocks(
            source, first_plan.select_iteration(next(iterations), order.epochs), columns
        )

    free_iterators_at_exit()
    flat_blocks = tf.data.Dataset.from_generator(blocks, output_signature=make_block_spec(columns))
    feature_defaults = {
        name: value for name, value in defaults.items() if name not in source.images
    }
    # only then do all batches have the same number of rows, which makes their shape static
    fixed_batch_size = (
        batch_size
        if order.drop_remainder or order.pad_remainder or first_plan.packing is not None
        else None
    )
    batches = split_into_steps(
        flat_blocks,
        columns,
        defaults=feature_defaults,
        batch_size=fixed_batch_size,
        assemble=source.collator.assemble,
    )
    if batch_size is None:
        batches = batches.unbatch()
    if (function := source.options.form.map) is not None:
        batches = batches.map(
            lambda *batch: function(join_element(batch)), tf.data.AUTOTUNE, deterministic=True
        )
    if (length := _cardinality(source, first_plan)) is not None:
        batches = batches.apply(tf.data.experimental.assert_cardinality(length))
    return batches if order.num_hosts is None else _forbid_resharding(batches, order.num_hosts)


def _cardinality(source: BatchSource, first_plan: StepPlan) -> int | None:
    """Returns the number of elements. None if it is unknown or differs between iterations."""
    order, schedule = source.options.order, first_plan.schedule
    if order.epochs is None:
        return int(tf.data.INFINITE_CARDINALITY)
    if (
        first_plan.packing is not None
        or source.skips_bad_records
        or first_plan.skipped_steps
        or schedule.position
        or schedule.epoch % order.epochs
    ):
        return None
    return order.epochs * (
        len(source.dataset)
        if source.options.batch_size is None
        else schedule.epoch_steps.count_steps()
    )


def _forbid_resharding(batches: tf.data.Dataset, hosts: int) -> tf.data.Dataset:
    """Prevents a distribution strategy from dividing the share of this host once more.

    TensorFlow's strategies respect an option of the data set. Keras's `DataParallel` ignores it and
    calls `rebatch`, so the methods `rebatch` and `shard` of the result raise UsageError.
    """
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    batches = batches.with_options(options)

    def raise_usage_error(*_: Any, **__: Any) -> None:
        raise UsageError(
            f"these batches already are the share of one of {hosts} hosts, and "
            "dividing them again would lose records: for Keras use "
            "DataParallel(auto_shard_dataset=False), or leave out num_hosts"
        )

    batches.rebatch = batches.shard = raise_usage_error
    return batches


def _iter_flat_blocks(
    source: BatchSource, plan: StepPlan, columns: list[BlockColumn]
) -> Iterator[dict[str, Any]]:
    """Yields the flat arrays of the blocks of one iteration."""

    def blocks(block: StepBlock) -> list[dict[str, Any]]:
        with time_stage("collate"):
            rows = source.collator.extras.add_to_rows(
                block.rows, source.schema, source.dataset.files.ends
            )
            return to_flat_blocks(replace(block, rows=rows), columns)

    yield from chain.from_iterable(source.map_blocks(plan, blocks, source.make_refiller(plan)))


def _allow_missing(schema: Schema, defaults: Mapping[str, Any]) -> Schema:
    """Returns the schema in which features with a default may be missing."""
    return replace(
        schema,
        features=tuple(replace(f, required=f.required and f.name not in defaults) for f in schema),
    )


def _check_single_records(collations: Mapping[str, Collation]) -> None:
    """Raises UsageError if a collation depends on the batch, but single records are requested."""
    for name, collation in collations.items():
        if not isinstance(collation, OneHot) and not (
            isinstance(collation, Padded) and collation.length is not None
        ):
            raise UsageError(
                f"batch_size=None returns single records, but {name!r} is padded for "
                "each batch: use Padded(length)"
            )


def _check_defaults(schema: Schema, defaults: Mapping[str, Any]) -> None:
    """Raises UsageError if a default does not belong to a feature."""
    for name, value in defaults.items():
        if name not in schema:
            raise UsageError(
                f"defaults: {name!r} is not a selected feature; "
                f"{available_names(name, schema.names)}"
            )
        if schema[name].ragged_rank:
            raise UsageError(
                f"defaults: {name!r} is {schema[name].describe()}, which has a "
                "variable length and takes no default"
            )
        is_text = np.asarray(value).dtype.kind in "USO"
        if is_text != is_bytes(schema[name]):
            raise UsageError(
                f"defaults: {name!r} is {schema[name].describe()}, which {value!r:.99}"
                " can't replace"
            )


def _check_label(source: BatchSource, defaults: Mapping[str, Any]) -> None:
    """Raises UsageError if the label may be missing and has no default."""
    name = source.collator.label
    if name is None or name in defaults:
        return
    if not source.options.drops_nulls and source.dataset.may_lack(name):
        raise UsageError(
            f'some records may have no label {name!r}, and training can\'t use them. Leave them out (nulls="drop", or '
            f"ds.filter('\"{name}\" is not null')), give a replacement (defaults={{{name!r}: ...}}), or get it as a "
            "feature (label=False)"
        )
