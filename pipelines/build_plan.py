"""The plan of a build: source, order of the records, and shards."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import available_names, option
from recordmill.base.progress import Progress
from recordmill.building.class_counter import check_class_feature
from recordmill.building.plan import BuildPlan, group_units
from recordmill.building.record_keys import KeyAssigner, convert_split_boundaries, find_split_names
from recordmill.building.sorted_run import KeyBuckets
from recordmill.checks.constraints import read_expectations
from recordmill.options.build import BuildShards
from recordmill.pipelines.append import KnownInputs, explain_no_statistics, plan_appended
from recordmill.pipelines.build_options import BuildOptions
from recordmill.pipelines.build_source import plan_source
from recordmill.pipelines.transform import find_transform
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.shards.run import RunFolder
from recordmill.sources.common.contract import Source
from recordmill.sources.common.tables import unit_sizes
from recordmill.storage.files import is_remote


def make_plan(
    source: Any,
    folder: RunFolder,
    out: str,
    base_generation: int,
    settings: BuildOptions,
    progress: Progress,
    *,
    is_preview: bool = False,
    known_schema: Schema | None = None,
) -> BuildPlan:
    """Plans a build: lists and scans the inputs, and infers the schema.

    Args:
        source: As for `build`.
        folder: The local run folder.
        out: The output folder.
        base_generation: The newest generation in `out`, or 0.
        settings: The checked options.
        progress: Receives the counts of files that the user's parser has parsed.
        is_preview: Whether the user's parser only parses the first files.
        known_schema: The features of the records. If set, the user's parser is not run.

    Raises:
        NothingToAppend: The data set has all inputs already.
        UsageError: An option does not fit the inputs.
        DataError: An input is damaged.
    """
    rules = None if settings.run.expect is None else read_expectations(settings.run.expect)
    # New data are read with the schema of the records on which the transform was fitted.
    if settings.transform_from is not None and settings.schema is None and settings.base is None:
        saved = find_transform(settings.transform_from)
        settings = replace(settings, schema=saved.raw, droppable_features=saved.droppable_features)
    base = settings.base
    plan_inputs = functools.partial(
        plan_source,
        source,
        folder,
        out,
        progress=progress,
        is_preview=is_preview,
        known_schema=known_schema,
        known_inputs=None if base is None else KnownInputs(base),
    )
    planned = plan_inputs(settings) if base is None else plan_appended(settings, base, plan_inputs)
    _check_columns(planned, settings)
    schema = _drop_split_column(planned, settings)
    splits = find_split_names(settings.order, planned.files)
    options = settings.shards.scaled_to(planned.files.size_bytes)
    shards = options.num_shards or int(unit_sizes(planned.units).sum()) // options.shard_bytes + 1
    if base is not None:
        notes = explain_no_statistics(base, settings)
        planned = replace(planned, notes=(*planned.notes, *notes))  # type: ignore[type-var]
    plan = BuildPlan(
        folder=str(folder.path.absolute()),
        base_generation=base_generation,
        base_manifest=None if base is None else base.manifest,
        schema=schema,
        split_names=splits,
        key_buckets=KeyBuckets.for_shards(
            len(splits), KeyAssigner(settings.order, planned).key_limit, shards
        ),
        source=planned,
        key_options=settings.order,
        shard_options=options,
        compression=settings.values[BuildShards].compression,
        threads=settings.threads,
        memory_bytes=settings.run.memory,
        budget=settings.budget,
        name=settings.name,
        source_options=settings.source_options(),
        store_url=out if is_remote(out) else "",
        has_statistics=settings.run.stats
        and (base is None or "sketch" in base.manifest.statistics),
        rules=rules,
        description=settings.description,
        keep_generations=settings.records.keep_generations,
    )
    return replace(plan, unit_groups=group_units(planned, plan.max_run_buffer_bytes, plan.threads))


def _drop_split_column(source: Source, settings: BuildOptions) -> Schema:
    """Returns the schema of the source without the column of `split_column`.

    The column is kept in two cases: TFRecords are copied with all features, and a transform
    receives all columns.

    Raises:
        UsageError: The column does not contain single strings.
    """
    name = settings.order.split_column
    if name is None:
        return source.schema
    _check_column(source, "split_column", name)
    if source.schema[name].dtype != "string" or source.schema[name].shape:
        described = source.schema[name].describe()
        raise UsageError(
            ("{split_column}: the column is {described}, and only text can name a split"),
            split_column=option("split_column", name),
            described=described,
        )
    if (
        source.kind == "tfrecord"
        or settings.transform is not None
        or settings.transform_from is not None
    ):
        return source.schema
    return source.schema.select(
        [feature_name for feature_name in source.schema.names if feature_name != name]
    )


def _check_columns(source: Source, settings: BuildOptions) -> None:
    """Raises UsageError if the options that order records name columns that do not fit."""
    order = settings.order
    for keyword, column in (
        ("key", order.key),
        ("split_by", order.split_by),
        ("stratify", order.stratify),
    ):
        _check_column(source, keyword, column)
    if order.stratify is not None:
        check_class_feature(source.schema[order.stratify])
    if order.split_at is not None:
        _check_column(source, "split_at", name := order.split_at[0])
        convert_split_boundaries(order, to_arrow(source.schema).field(name).type)


def _check_column(source: Source, keyword: str, column: str | None) -> None:
    """Raises UsageError if a column is missing or its values are not scalars.

    Args:
        source: The planned source.
        keyword: The option that names the column, for messages.
        column: The name of the column. None is always valid.
    """
    if column is None:
        return
    names = source.schema.names
    if column not in names:
        raise UsageError(
            "{option}: no such column; {available_names}",
            option=option(keyword, column),
            available_names=available_names(column, names),
        )
    if source.schema[column].shape:
        raise UsageError(
            "{option}: the column holds {schema}; name a column of single values",
            option=option(keyword, column),
            schema=source.schema[column].describe(),
        )
