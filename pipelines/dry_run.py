"""Builds that write nothing: a preview of a build, and statistics of raw inputs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from recordmill.base.arguments import suggest_keywords
from recordmill.base.errors import UsageError
from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.building.finish_build import write_plan_rejects
from recordmill.building.ingest import (
    apply_transform,
    assign_keys,
    create_sketches,
    encode_chunk,
    read_first_records,
    read_unit_group,
    update_statistics,
)
from recordmill.building.plan import BuildPlan
from recordmill.options.calls import with_keywords
from recordmill.pipelines.append import NothingToAppend, inherit_options
from recordmill.pipelines.build_options import make_options
from recordmill.pipelines.build_plan import make_plan
from recordmill.pipelines.build_source import detect_input_kind, to_paths
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.shards.catalog import sniff_compression
from recordmill.shards.rejects import RejectSummary, RejectWriter
from recordmill.shards.run import RunFolder
from recordmill.sources.common.contract import Source
from recordmill.sources.common.tables import count_unit_rows, unit_sizes
from recordmill.sources.parser.source import is_partly_parsed
from recordmill.sources.registry import DATA_EXTENSIONS
from recordmill.statistics.dataset_sketch import DatasetSketch, SketchPool
from recordmill.storage.files import parse_output_path
from recordmill.storage.folders import scratch_folder
from recordmill.storage.listing import list_inputs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from recordmill.options.keywords import BuildKeywords

_JSON_FIELDS = ("kind", "files", "size_bytes", "records", "shards", "rejects", "memory_bytes")
# The time of a build as a multiple of the time to read and encode, measured with CSV and images.
# The rest is sorting and writing.
_TOTAL_TO_ENCODING_TIME = 3.0
_TRIAL_SEC = 2.0  # the most time for reading records of the first unit


@dataclass(frozen=True)
class BuildPreview:
    """A preview of a build.

    Attributes:
        kind: The kind of the inputs, such as "csv".
        files: The number of input files.
        size_bytes: The total size of the input files.
        records: The number of records. None if only reading all inputs would determine it.
        schema: The features of the records, before a transform.
        splits: The names of the splits.
        shards: The estimated number of shards.
        rejects: The number of records that the plan already rejects.
        notes: Observations of the plan, such as why a column has its type.
        first: The first records, before the shuffle.
        seconds: The estimated duration of the build after its start, from the plan and the first
            records.
        memory_bytes: The most memory that the build uses, without the interpreter.
    """

    kind: str
    files: int
    size_bytes: int
    records: int | None
    schema: Schema
    splits: tuple[str, ...]
    shards: int
    rejects: int
    notes: tuple[str, ...]
    first: pa.Table
    seconds: float
    memory_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Returns the machine-readable summary that `--json` prints."""
        return {
            **{name: getattr(self, name) for name in _JSON_FIELDS},
            "seconds": round(self.seconds, 1),
            "splits": list(self.splits),
            "features": {feature.name: feature.describe() for feature in self.schema},
            "label": self.schema.label,
            "notes": list(self.notes),
        }


@suggest_keywords
@with_keywords("build")
def preview(
    inputs: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    shown: int = 3,
    **options: Unpack[BuildKeywords],
) -> BuildPreview:
    """Plans a build and reads its first records, without writing anything.

    Types are inferred from all data, as in the build. There is one exception: the user's `parser`
    parses only the first files.

    Args:
        inputs: As the `source` of `build`.
        out: The output folder. Only `append` needs it, and previews the new inputs.
        shown: The number of records to read.
        **options: The options of `recordmill build`, as keywords.

    Raises:
        UsageError: As for `build`.
        DataError: As for `build`.

    Examples:
        >>> preview = recordmill.preview({"id": [1, 2, 3], "text": ["a", "b", "c"]}, shown=1)
        >>> preview.records, preview.first.num_rows
        (3, 1)
    """
    started = time.monotonic()
    try:
        return _preview(inputs, out, shown, options, started)
    except NothingToAppend as nothing:
        manifest = nothing.manifest
        schema = from_pbtxt(manifest.schema)
        return BuildPreview(
            kind=manifest.parts[-1].kind,
            files=0,
            size_bytes=0,
            records=0,
            schema=schema,
            splits=manifest.splits,
            shards=0,
            rejects=0,
            notes=(nothing.note,),
            first=to_arrow(schema).empty_table(),
            seconds=0.0,
            memory_bytes=0,
        )


def _preview(
    inputs: Any,
    out: str | os.PathLike[str] | None,
    shown: int,
    options: Mapping[str, Any],
    started: float,
) -> BuildPreview:
    with _temporary_plan(inputs, options, out) as plan:
        seconds, source = time.monotonic() - started, plan.source
        assert source is not None
        return BuildPreview(
            source.kind,
            len(source.files),
            source.files.size_bytes,
            None if is_partly_parsed(source) else count_unit_rows(source.units),
            plan.schema,
            plan.split_names,
            _estimate_shards(plan, source),
            len(source.plan_rejects),
            source.notes,
            read_first_records(plan, shown),
            seconds + _estimate_seconds(plan, source),
            plan.memory_bytes,
        )


def _estimate_seconds(plan: BuildPlan, source: Source) -> float:
    """Estimates the duration of a build in seconds.

    Reads and encodes the first unit for this. A large unit, such as a compressed file, is read for
    _TRIAL_SEC only.
    """
    started, sizes, sketches, rows, read_fraction = (
        time.monotonic(),
        unit_sizes(source.units),
        create_sketches(plan),
        0,
        1.0,
    )
    for chunk in source.read(source.units[0]) if len(sizes) else ():
        rows += chunk.rows + len(chunk.rejects)
        # A unit with an unknown number of rows is read completely, because the fraction that was
        # read would be unknown.
        if (unit_rows := source.units[0].rows) and time.monotonic() - started > _TRIAL_SEC:
            read_fraction = rows / max(unit_rows, rows)
            break
        keyed_chunk, _ = apply_transform(plan, assign_keys(plan, chunk)[0])
        if keyed_chunk.rows:
            update_statistics(plan, sketches, keyed_chunk)
            encode_chunk(plan, keyed_chunk)
    # One thread reads a unit, so more threads than units are of no use.
    concurrency = max(min(plan.threads, len(sizes)), 1)
    return (
        _TOTAL_TO_ENCODING_TIME
        * (time.monotonic() - started)
        * int(sizes.sum())
        / max(int(sizes[:1].sum()) * read_fraction * concurrency, 1.0)
    )


@contextmanager
def _temporary_plan(
    inputs: Any, options: Mapping[str, Any], out: str | os.PathLike[str] | None = None
) -> Iterator[BuildPlan]:
    """Plans a build in a temporary folder, which is removed after the `with` block.

    Args:
        inputs: As the `source` of `build`.
        options: The options of the build.
        out: The data set that `append` adds to.

    Yields:
        The plan.
    """
    with scratch_folder("plan-") as scratch:
        folder = RunFolder.create(scratch)
        try:
            output = None if out is None else parse_output_path(out)
            settings = make_options(scratch if output is None else output, **options)
            if output is not None:
                reads_files = to_paths(inputs) is not None
                settings = inherit_options(output, settings, reads_files=reads_files)
            yield make_plan(inputs, folder, scratch, 0, settings, Progress(), is_preview=True)
        finally:
            folder.close()


def _estimate_shards(plan: BuildPlan, source: Source) -> int:
    # `num_shards` is a number per split. The other estimate covers all splits together, and each
    # split has at least one shard.
    num_shards = plan.shard_options.num_shards or max(
        round(int(unit_sizes(source.units).sum()) / plan.shard_options.shard_bytes), 1
    )
    return (
        num_shards * len(plan.split_names)
        if plan.shard_options.num_shards
        else max(num_shards, len(plan.split_names))
    )


def is_raw_input(inputs: Sequence[str]) -> bool:
    """Returns whether `build` must read these inputs, because they are not TFRecord files.

    Raises:
        UsageError: The kind of the inputs can't be detected.
    """
    listing = list_inputs(inputs, data_extensions=DATA_EXTENSIONS)
    try:
        return detect_input_kind(listing, has_kind_argument=False)[0] != "tfrecord"
    except UsageError:
        # A truncated TFRecord file is no input of a build. A reader explains what is wrong with it.
        if all(sniff_compression(file.path) is not None for file in listing.files):
            return False
        raise


def count_raw(inputs: Sequence[str], progress: Progress, **options: Any) -> DatasetSketch:
    """Returns the statistics of the records that a build of these inputs would write.

    Args:
        inputs: As the `source` of `build`.
        progress: Receives the counts.
        **options: The options of `recordmill build`, as keywords.

    Raises:
        UsageError: As for `build`.
        DataError: As for `build`.
        TooManyRejects: More records than `max_rejects` could not be used.
    """
    with _temporary_plan(list(inputs), options) as plan:
        return _count_groups(plan, progress)


def _count_groups(plan: BuildPlan, progress: Progress) -> DatasetSketch:
    sketches = SketchPool(plan.schema, plan.split_names, plan.memory_bytes)

    def count(group: int) -> tuple[int, RejectSummary]:
        rejects = RejectWriter(
            Path(plan.folder, "rejects", f"{group:06d}.jsonl"), max_rejects=plan.max_rejects
        )
        rows = 0
        for chunk in read_unit_group(plan, group):
            keyed_chunk, unsplit = assign_keys(plan, chunk)
            if keyed_chunk.rows:
                update_statistics(plan, sketches, keyed_chunk)
            rejected = rejects.write((*chunk.rejects, *unsplit))
            rows += keyed_chunk.rows + rejected
            progress.advance(keyed_chunk.rows, rejected)
        return rows, rejects.close()

    plan_rejects = plan.source.plan_rejects if plan.source else ()
    read, rejected = len(plan_rejects), write_plan_rejects(plan, plan_rejects)
    for rows, group_rejects in thread_map(count, range(len(plan.unit_groups)), plan.threads):
        read, rejected = read + rows, rejected + group_rejects
    rejected.check_budget(plan.budget, read)
    rejected.check_any_left(read)
    return sketches.total()
