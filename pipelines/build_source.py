"""Detection of the kind of input, and the plan of its `Source`."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.progress import Progress
from recordmill.building.plan import parsed_cache_bytes
from recordmill.options.build import BuildInputs
from recordmill.options.calls import (
    MEMORY_INPUTS,
    applicable_kinds,
    check_applicable,
    is_local,
)
from recordmill.options.order import BuildOrder
from recordmill.pipelines.append import KnownInputs, stored_schema
from recordmill.pipelines.build_options import BuildOptions
from recordmill.pipelines.parse import parse_files, parse_first_files
from recordmill.schemas.feature import EXAMPLE, Schema
from recordmill.shards.file_names import describe_missing_shards, find_missing_shards
from recordmill.shards.manifest import is_data_set
from recordmill.shards.run import RunFolder
from recordmill.sources.common.content import detect_kind, filter_kind
from recordmill.sources.common.contract import PlanOptions, Source
from recordmill.sources.common.layout import (
    AUTO_LAYOUT,
    NO_LAYOUT,
    drop_sample_submissions,
    note_unused_partitions,
    read_layout,
)
from recordmill.sources.common.options import TableOptions
from recordmill.sources.parser.source import ParsedSource, plan_parsed
from recordmill.sources.registry import DATA_EXTENSIONS, KIND_NAMES, Kind, find_kind
from recordmill.sources.values.column_join import PlanFunction, join_folder_columns
from recordmill.sources.values.text_formats import join_parsed_texts
from recordmill.storage.archives import archive_path
from recordmill.storage.file_table import FileTable
from recordmill.storage.files import is_remote
from recordmill.storage.folders import real_path
from recordmill.storage.listing import Listing, list_inputs
from recordmill.storage.walk import is_within

# Files that a parser of the user parses for a dry run.
_PREVIEWED_FILES = 4
# Kinds whose folders determine classes.
_KINDS_WITH_CLASS_FOLDERS = ("images", "text")


def plan_source(
    source: Any,
    folder: RunFolder,
    out: str,
    settings: BuildOptions,
    progress: Progress,
    *,
    is_preview: bool = False,
    known_schema: Schema | None = None,
    known_inputs: KnownInputs | None = None,
) -> Source:
    """Plans the source of a build.

    Args:
        source: INPUT paths, or data in memory, which is written to files of the run folder.
        folder: The local run folder.
        out: The output folder, which must not be inside an INPUT.
        settings: The checked options.
        progress: Receives the counts of files that the user's parser has parsed.
        is_preview: Whether the user's parser only parses the first files.
        known_schema: The features of the records. If set, the user's parser is not run.
        known_inputs: Files to leave out.

    Raises:
        NothingToAppend: All files are known inputs.
        UsageError: The kind is unknown or can't be detected, or an option does not apply to it.
    """
    common = _make_plan_options(settings, folder)
    inputs = to_paths(source)
    if inputs is None:
        return _plan_data_in_memory(source, folder, settings, common)
    listing = list_inputs(
        inputs, follow_links=settings.records.follow_links, data_extensions=DATA_EXTENSIONS
    )
    _check_out_is_outside(listing, out)
    if settings.parser is None:
        return _plan_files(listing, settings, common, known_inputs)
    files, notes = _list_parser_files(listing, settings)
    if known_inputs is not None:
        files = files.filter(known_inputs.find_new(files))
        notes = (*notes, *known_inputs.notes)
    if known_schema is not None:
        return ParsedSource(known_schema, files)
    reuse_notes: tuple[str, ...] = ()
    if is_preview:
        results = parse_first_files(
            files, _PREVIEWED_FILES, settings.parser, folder, settings, progress
        )
    else:
        results, reuse_notes = parse_files(files, settings.parser, folder, out, settings, progress)
    with closing(results):
        return plan_parsed(files, results, (*notes, *reuse_notes), settings.parser, common)


def _find_label_classes(settings: BuildOptions) -> tuple[str, ...]:
    """Returns the classes of the label of an append.

    Returns:
        The classes in the data set that the records are appended to. () for other builds, and for a
        label without classes.
    """
    label = settings.records.label
    if settings.base is None or label is None:
        return ()
    stored = stored_schema(settings.base.manifest)
    return (stored[label].classes or ()) if label in stored else ()


def _make_plan_options(settings: BuildOptions, folder: RunFolder) -> PlanOptions:
    common = PlanOptions(
        settings.schema,
        settings.records.dtypes or {},
        settings.records.label,
        settings.threads,
        settings.run.memory,
        settings.droppable_features,
        collects_statistics=settings.run.stats,
        label_classes=_find_label_classes(settings),
    )
    if not is_local(settings.run.runner):
        return common
    # CSV and JSON Lines are parsed completely to infer their types. The result is kept for the
    # build, which can use it only in this process.
    return replace(
        common,
        parsed_cache_bytes=parsed_cache_bytes(settings.run.memory),
        parsed_cache_folder=os.fspath(folder.spool),
    )


def _plan_data_in_memory(
    source: Any, folder: RunFolder, settings: BuildOptions, common: PlanOptions
) -> Source:
    check_applicable("build", settings.values.given, inputs=MEMORY_INPUTS)
    if (records := _find_raw_record_files(source)) is not None:
        listing = list_inputs(records, data_extensions=DATA_EXTENSIONS)
        schema = settings.schema or source.full_schema
        return _plan_kind(find_kind("tfrecord"), listing, settings, replace(common, schema=schema))
    from recordmill.sources.arrow.memory import plan_memory

    return plan_memory(source, folder.spool, common)


def _plan_files(
    listing: Listing, settings: BuildOptions, common: PlanOptions, known_inputs: KnownInputs | None
) -> Source:
    """Plans files of the kind that the user has named, or that was detected."""
    name, reason = settings.values[BuildInputs].kind, ""
    if name is None:
        kinds = applicable_kinds("build", settings.values.kind_options)
        name, reason = detect_input_kind(listing, kinds)
    planned = _plan_kind(find_kind(name), listing, settings, common, known_inputs)
    notes = (Message("read as {reason}", reason=reason),) if reason else ()
    skipped = known_inputs.notes if known_inputs is not None else ()
    return replace(planned, notes=(*notes, *skipped, *planned.notes))  # type: ignore[type-var]


def _list_parser_files(
    listing: Listing, settings: BuildOptions
) -> tuple[FileTable, tuple[str, ...]]:
    """Returns the files for the user's parser, and notes.

    Each file has the split that its folder determines.

    Raises:
        UsageError: One of the options is for certain kinds of input only.
    """
    for name in settings.values.kind_options:
        if name in BuildOrder.OPTIONS:
            continue  # `split_from`, which applies to all files
        raise UsageError(
            "{option} is for files that recordmill parses itself, not for {parser}",
            option=option(name),
            parser=option("parser"),
        )
    layout = read_layout(
        listing.files, listing.roots, split_from=settings.order.split_from, class_from=NO_LAYOUT
    )
    notes = (*listing.notes, *layout.notes)
    return listing.files.with_splits(layout.splits), notes


def detect_input_kind(
    listing: Listing, kinds: Collection[str] = KIND_NAMES, *, has_kind_argument: bool = True
) -> tuple[str, str]:
    """Detects the kind of the inputs from their content.

    Args:
        listing: The files.
        kinds: The kinds that the user's options apply to. They are preferred.
        has_kind_argument: Whether the user can choose a kind with an argument of the command.

    Returns:
        (kind, reason), where the reason is a text for users, such as "csv: ...".

    Raises:
        UsageError: The kind can't be detected.
    """
    # Data sets come first, because their folders also contain JSON and NumPy files.
    return (
        _detect_data_sets(listing)
        or _detect_samples(listing)
        or detect_kind(listing, kinds, has_kind_argument=has_kind_argument)
    )


def _detect_samples(listing: Listing) -> tuple[str, str] | None:
    if not all(archive_path(file.path) for file in listing.files):
        return None
    # Imported here, because most builds need no module for images.
    from recordmill.sources.images.samples import detect_samples

    return detect_samples(listing)


def to_paths(source: Any) -> list[str] | None:
    """Returns the paths of the inputs, or None if `source` is data in memory."""
    if isinstance(source, str | os.PathLike):
        return [os.fspath(source)]
    if (
        isinstance(source, Sequence)
        and source
        and all(isinstance(item, str | os.PathLike) for item in source)
    ):
        return [os.fspath(item) for item in source]
    return None


def _find_raw_record_files(source: Any) -> list[str] | None:
    """Returns the files of a data set if its records must be copied unparsed.

    SequenceExamples and other records that are not Examples must be copied, because a table can't
    represent them.

    Args:
        source: An open data set or any other source.

    Returns:
        The paths, or None for a source with a table.

    Raises:
        UsageError: Only some of the records or features are selected, which requires a table.
    """
    schema, records = getattr(source, "schema", None), getattr(source, "records", None)
    if not isinstance(schema, Schema) or records is None or schema.message == EXAMPLE:
        return None
    files = records.open_files
    if records.filter.is_active or files.infer_from is not None or schema != files.schema:
        raise UsageError(
            "a selection of records or features can't be built if the records are of "
            f"type {schema.message}: open all of them"
        )
    return [file.path for file in files.catalog.files]


def _detect_data_sets(listing: Listing) -> tuple[str, str] | None:
    """Returns (kind, reason) if each INPUT is the folder of a data set, else None.

    The JSON and NumPy files in such a folder are not data.
    """
    if not all(root.is_folder for root in listing.roots):
        return None
    with_description, with_records = set[int](), set[int]()
    for number, name in listing.files.roots_and_names():
        base = name.rpartition("/")[2]
        with_description.update((number,) if base in ("dataset_info.json", "features.json") else ())
        with_records.update((number,) if "tfrecord" in base else ())
    for ordinal, root in enumerate(listing.roots):
        if ordinal not in with_records or not (
            ordinal in with_description or is_data_set(root.path)
        ):
            return None
    return "tfrecord", f"tfrecord: {listing.roots[0].argument} is a data set's folder"


def _check_out_is_outside(listing: Listing, out: str) -> None:
    """Raises UsageError if OUT is inside an INPUT folder.

    A later build would read its own shards as inputs.
    """
    target = real_path(out)  # OUT may be a link into an INPUT
    for root in listing.roots:
        if (
            root.is_folder
            and is_remote(root.path) == is_remote(target)
            and is_within(target, root.path.rstrip("/") or "/")
        ):
            raise UsageError(
                "{out} is inside the INPUT {argument}, so a later build would read "
                "its own output; choose a folder outside of it",
                out=option("out", out),
                argument=root.argument,
            )


def _plan_kind(
    kind: Kind,
    listing: Listing,
    settings: BuildOptions,
    common: PlanOptions,
    known_inputs: KnownInputs | None = None,
) -> Source:
    options = settings.values.plugin(kind.name)
    # All files determine splits and classes. Known ones are left out after that.
    find_new = None if known_inputs is None else known_inputs.find_new
    if not kind.is_table and kind.name in _KINDS_WITH_CLASS_FOLDERS:
        return kind.planner(listing, options, replace(common, find_new=find_new))
    if not kind.is_table:
        if find_new is not None:
            listing = replace(listing, files=listing.files.filter(find_new(listing.files)))
        return kind.planner(listing, options, common)
    files, notes = _choose_table_files(kind.name, listing, options.split_from)
    if find_new is not None:
        files = files.filter(find_new(files))

    def plan_tables(files: FileTable, common: PlanOptions) -> Source:
        return kind.planner(files, options, common)

    plan: PlanFunction = plan_tables
    # Each step joins columns to the records of the steps before.
    if isinstance(options, TableOptions):
        plan = partial(join_parsed_texts, plan, options=options)
        if options.file_columns:
            # Imported here, because most builds need no module for images.
            from recordmill.sources.images.file_columns import join_named_files

            plan = partial(
                join_named_files, plan, options=options, follow_links=settings.records.follow_links
            )
        plan = partial(join_folder_columns, plan, options=options)
    planned = plan(files, common)
    notes = (*notes, *planned.notes, *note_unused_partitions(files, planned.schema.names))
    return replace(planned, notes=notes)  # type: ignore[type-var]


def _choose_table_files(
    kind: str, listing: Listing, split_from: str
) -> tuple[FileTable, tuple[str, ...]]:
    """Selects the files of a kind that has many records per file.

    Returns:
        (files, notes). Each file has the split that its folder or name determines.
    """
    chosen_files = filter_kind(listing, kind)
    if split_from == AUTO_LAYOUT:
        chosen_files = drop_sample_submissions(chosen_files)
    layout = read_layout(
        chosen_files.files, chosen_files.roots, split_from=split_from, class_from=NO_LAYOUT
    )
    notes = (*chosen_files.notes, *_note_missing_shards(chosen_files), *layout.notes)
    return chosen_files.files.with_splits(layout.splits), notes


def _note_missing_shards(listing: Listing) -> list[str]:
    """Returns a note on shards that are missing, judged by other shards' names.

    For example, the name `a-00000-of-00002.parquet` shows that there must be a second shard. A
    shard that the user named explicitly is read without the others. Shards of data sets are not
    checked here, because manifests list them.
    """
    named = (listing.files[i] for i, name in enumerate(listing.files.names()) if "-of-" in name)
    missing = [
        path
        for path in find_missing_shards(
            file.path for file in named if not listing.is_explicit(file)
        )
        if not is_data_set(os.path.dirname(os.path.dirname(path)))
    ]
    return [describe_missing_shards(missing)] if missing else []
