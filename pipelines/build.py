"""`build`: raw inputs to a committed data set of shuffled TFRecord shards.

This process plans the inputs. One Beam job then reads, sorts and writes the records, and its last
step commits the data set. The work on records is done in other rooms: `sources` reads them,
`building` orders and writes them, and `transforms` runs these steps in Beam.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recordmill.base import html
from recordmill.base.arguments import suggest_keywords
from recordmill.base.display import Display, completion_notice
from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import available_names, option
from recordmill.base.progress import Progress, ProgressArgument, to_progress
from recordmill.base.sizes import format_count, format_size
from recordmill.building.class_counter import check_class_feature, count_classes
from recordmill.building.commit import finish_output
from recordmill.building.finish_build import find_identical_build
from recordmill.building.plan import BuildPlan, group_units
from recordmill.building.record_keys import KeyAssigner, convert_split_boundaries, find_split_names
from recordmill.building.sorted_run import KeyBuckets
from recordmill.building.workers.shared_files import JobFolder, begin_build
from recordmill.checks.constraints import read_expectations
from recordmill.options.build import BuildShards
from recordmill.options.calls import is_local, with_keywords
from recordmill.pipelines.append import (
    KnownInputs,
    NothingToAppend,
    explain_no_statistics,
    inherit_options,
    plan_appended,
)
from recordmill.pipelines.beam_run import check_runner, make_plan_handle, run_pipeline
from recordmill.pipelines.build_options import BuildOptions, make_options
from recordmill.pipelines.parsed_files import has_parsed_files, keep_parsed_files
from recordmill.pipelines.plan import plan_source, to_paths
from recordmill.pipelines.remote.job_error import EngineError
from recordmill.pipelines.remote.preflight import ProbeResult, preflight, sample_files
from recordmill.pipelines.remote.status import RunState, status
from recordmill.pipelines.remote.submission import MayBeRunning, remove_on_failure
from recordmill.pipelines.transform import add_transform, find_transform
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.schemas.tfds import tfds_notes
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.shards.manifest import Manifest, load_manifest, load_newest_manifest
from recordmill.shards.run import Run, RunFolder, check_output_folder
from recordmill.shards.store_run import StoreRun, attach_run, find_local_work_folder
from recordmill.shards.verify import check_derived
from recordmill.sources.common.contract import Source
from recordmill.sources.common.tables import count_unit_rows, unit_sizes
from recordmill.storage.files import (
    DISK_FULL_ERRNOS,
    is_remote,
    limit_block_memory,
    limit_requests,
    move_to_shared,
    parse_output_path,
    stat,
)
from recordmill.storage.folders import exists, join
from recordmill.storage.walk import DATA_PREFIX

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from recordmill.options.keywords import BuildKeywords
    from recordmill.transforms.beam_types import Pipeline

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuildResult:
    """The result of a build: a committed data set.

    Attributes:
        out: The output folder, a string if it is in a store. The paths of files have the same type.
        kind: The kind of the inputs, such as "csv".
        schema: The features of the records.
        records: The number of records by split.
        read: The number of records read, which is the number written plus `rejected`.
        rejected: The number of records that could not be used.
        reject_reasons: The number of rejected records by reason.
        shards: The path of each shard.
        rejects: The paths of the files that list the rejected records.
        notes: Observations of the plan, such as why a column has its type.
        seconds: The duration in seconds of wall time.
        manifest: The manifest of the data set.
        unchanged: True if the data set is up to date, so that nothing was built: `if_changed` found
            the same inputs and options, or `append` no new input.
        appended: True if the records were appended to a data set that existed before. `read`,
            `rejected`, `reject_reasons` and `rejects` are about the new records then, and `records`
            about all.
    """

    out: Path | str
    kind: str
    schema: Schema
    records: Mapping[str, int]
    read: int
    rejected: int
    reject_reasons: Mapping[str, int]
    shards: tuple[Path | str, ...]
    rejects: tuple[Path | str, ...]
    notes: tuple[str, ...]
    seconds: float
    manifest: Manifest
    unchanged: bool = False
    appended: bool = False

    def __repr__(self) -> str:
        splits = ", ".join(f"{name} {count:,}" for name, count in self.records.items())
        size = format_size(sum(stat(str(path)).size_bytes for path in self.shards if exists(path)))
        rejects = f", {self.rejected:,} rejected" if self.rejected else ""
        features, shards = (
            format_count(len(self.schema), "feature"),
            format_count(len(self.shards), "shard"),
        )
        return f"<recordmill data set {self.out}: {splits} records{rejects}, {features}, {shards}, {size}>"

    def _repr_html_(self) -> str:
        """Returns the summary that notebooks show: the location, splits, features and notes."""
        splits = html.table(
            ["split", "records"], [(name, f"{count:,}") for name, count in self.records.items()]
        )
        features = html.table(["feature", "holds"], [(f.name, f.describe()) for f in self.schema])
        return html.section(
            repr(self).strip("<>"),
            splits,
            features,
            lines=[Message("note: {note}", note=note) for note in self.notes],
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the machine-readable summary that `--json` prints."""
        return {
            "out": str(self.out),
            "kind": self.kind,
            "records": dict(self.records),
            "read": self.read,
            "rejected": self.rejected,
            "reject_reasons": dict(self.reject_reasons),
            "shards": [str(path) for path in self.shards],
            "rejects": [str(path) for path in self.rejects],
            "features": {feature.name: feature.describe() for feature in self.schema},
            "label": self.schema.label,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
            "unchanged": self.unchanged,
            "appended": self.appended,
        }


@dataclass(frozen=True)
class Submitted:
    """A build that continues on an engine.

    Attributes:
        out: The output folder.
        runs: The jobs of engines that write to it.
    """

    out: str
    runs: tuple[RunState, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the machine-readable summary that `--json` prints."""
        return {"out": self.out, "runs": [run.to_json() for run in self.runs]}


@suggest_keywords
@with_keywords("build")
def build(
    source: Any,
    out: str | os.PathLike[str],
    *,
    quiet: bool = True,
    progress: ProgressArgument = None,
    **options: Unpack[BuildKeywords],
) -> BuildResult:
    """Builds a data set of shuffled TFRecord shards.

    The data set appears in `out` when everything is complete. If the build fails, `out` keeps its
    old content.

    Args:
        source: A path, a glob, `@list.txt`, or a list of these. For data in memory: a pyarrow
            Table, RecordBatch or RecordBatchReader, a pandas DataFrame, a dict of arrays, an
            iterator of dicts, or an open data set.
        out: The output folder, also in a store (`s3://bucket/folder`).
        quiet: False prints the progress to stderr.
        progress: A function that is called with a `ProgressUpdate` about five times a second and at
            the end. If it raises an error, the build stops and raises the same error.
        **options: The options of `recordmill build`, as keywords. docs/reference.md lists them.

    Returns:
        The committed data set.

    Raises:
        UsageError: An option or an input is not supported.
        DataError: An input is damaged.
        TooManyRejects: More records than `max_rejects` could not be used.
        CommitConflict: Another build committed to `out` first.
        ExpectationError: The records do not meet the rules of `expect`.
        MissingExtraError: Apache Beam is not installed.
        RecordmillError: The build failed for another reason, such as a full disk or a failed job.
            All errors above are subclasses.

    Examples:
        >>> result = recordmill.build({"id": [1, 2, 3], "text": ["a", "b", "c"]}, "letters")
        >>> result.records, result.schema.names
        ({'train': 3}, ('id', 'text'))

        An open data set is a source, too:

        >>> animals = recordmill.open("shards").select(["id", "animal"])
        >>> recordmill.build(animals, "animals", splits="train=0.5,test=0.5").read
        10
    """
    started = time.monotonic()
    out = parse_output_path(out)
    settings = _make_settings(source, out, options)
    with completion_notice(out) as checks:
        built = _plan_and_run(source, out, settings, to_progress(progress), quiet, checks)
        assert built is not None
        if built.unchanged:
            _finish_killed_commit(out)
        return _make_result(out, built, settings, seconds=time.monotonic() - started)


@suggest_keywords
@with_keywords("build")
def submit(
    source: Any,
    out: str | os.PathLike[str],
    *,
    quiet: bool = True,
    **options: Unpack[BuildKeywords],
) -> Submitted:
    """Submits a build to an engine without waiting for its end (`--detach`).

    The last step of the job commits the data set. `recordmill.status(out)` reports the state of the
    job. If there is a parser or a transform, the files are parsed and the transform is fitted
    before the build is submitted, and this function waits for that.

    Args:
        source: As for `build`.
        out: As for `build`.
        quiet: False prints the progress to stderr.
        **options: The options of `recordmill build`, as keywords.

    Returns:
        The output folder and the jobs that write to it.

    Raises:
        UsageError: An option or an input is not supported, `runner` does not name an engine, or the
            job would end with this process.
    """
    out = parse_output_path(out)
    settings = _make_settings(source, out, options)
    if is_local(settings.run.runner):
        raise UsageError(
            "{detach} needs an engine: give {runner}",
            detach=option("detach", True),
            runner=option("runner"),
        )
    if settings.records.if_changed:
        raise UsageError(
            "{detach} and {if_changed} exclude each other",
            detach=option("detach", True),
            if_changed=option("if_changed", True),
        )
    _plan_and_run(source, out, settings, Progress(), quiet, [], detach=True)
    return Submitted(out, tuple(run for run in status(out).runs if run.state != "ended"))


def _make_settings(source: Any, out: str, options: Mapping[str, Any]) -> BuildOptions:
    settings = make_options(out, **options)
    return inherit_options(out, settings, reads_files=to_paths(source) is not None)


@dataclass(frozen=True)
class _Built:
    """Result of a build before the user receives it.

    Attributes:
        manifest: The manifest of the data set.
        plan: The plan. None if there was nothing to append.
        unchanged: Whether the data set was up to date, so nothing was built.
        notes: Notes for the user in addition to those of the manifest.
    """

    manifest: Manifest
    plan: BuildPlan | None
    unchanged: bool = False
    notes: tuple[str, ...] = ()


def _plan_and_run(
    source: Any,
    out: str,
    settings: BuildOptions,
    progress: Progress,
    quiet: bool,
    checks: list[Callable[[], bool]],
    *,
    detach: bool = False,
) -> _Built | None:
    """Plans, runs and commits a build.

    Args:
        source: As for `build`.
        out: The output folder.
        settings: The checked options.
        progress: Receives the counts.
        quiet: Prints no progress.
        checks: Receives a function that is appended. The function returns whether the run has
            committed.
        detach: Only submits the job.

    Returns:
        The result, or None if the job was submitted.
    """
    limit_requests(settings.run.storage_requests)
    check_runner(settings.run.runner, settings.run.beam_args)
    # The commit succeeds only if this is still the newest generation then.
    base_generation = check_output_folder(
        out, settings.records.overwrite or settings.records.if_changed or settings.records.append
    )
    if settings.base is not None:
        base_generation = settings.base.number
    with (
        limit_block_memory(settings.run.memory),
        Display(progress, quiet),
        _begin_run(out, settings) as (folder, run),
    ):
        checks.append(lambda: run.committed_manifest() is not None)
        unparsed = _find_unparsed_build(source, folder, out, base_generation, settings)
        if unparsed is not None:
            return unparsed
        try:
            plan = make_plan(source, folder, out, base_generation, settings, progress)
        except NothingToAppend as nothing:
            return _Built(nothing.manifest, None, unchanged=True, notes=(nothing.note,))
        if settings.records.if_changed and (identical := find_identical_build(plan)) is not None:
            return _Built(identical, plan, unchanged=True)
        plan = _run_plan(plan, run, settings, progress, detach=detach)
        if detach:
            folder.release()  # the job goes on using it
            return None
        manifest = run.committed_manifest()
        if manifest is None:
            raise RecordmillError(
                f"{out}: the runner ended without an error and without a commit; nothing was written"
            )
    return _Built(manifest, plan)


def _finish_killed_commit(out: str) -> None:
    """Writes the files next to the manifests, if a killed run left them out.

    A run that commits does this anyway, but one that finds nothing new does not commit.
    """
    number, manifest = load_newest_manifest(out)
    if check_derived(out, manifest, number):
        finish_output(out, manifest, number)


@contextlib.contextmanager
def _begin_run(out: str, settings: BuildOptions) -> Iterator[tuple[RunFolder, Run]]:
    """Creates the folder of a run, and closes it after the `with` block.

    If the block fails, everything that the run has written is removed, except in two cases: the run
    has parsed files for the next build, or a job may still be writing.

    Yields:
        (folder on this machine in which the run works, run). They are the same object, unless OUT
        is in a store.

    Raises:
        RecordmillError: The block raised an error of the system about OUT.
    """
    path = find_local_work_folder(out) if is_remote(out) else Path(out)
    uses_parser = settings.parser is not None
    folder = RunFolder.create(
        path,
        keep=has_parsed_files if uses_parser else None,
        # The workers of an engine can outlive this process and its lock, so they need a lease.
        uses_engine=not is_local(settings.run.runner),
    )
    run: Run = attach_run(out, folder.id) if is_remote(out) else folder

    def keeps_parsed_files(_: BaseException) -> bool:
        with contextlib.suppress(OSError):
            return uses_parser and has_parsed_files(join(out, run.folder_name))
        return False

    try:
        with _explain_output_errors(out, path, run), contextlib.ExitStack() as stack:
            # A store that refuses writes does so here, and not after all work is done.
            if not is_local(settings.run.runner):
                job_folder = JobFolder(out, folder.id)
                stack.enter_context(
                    remove_on_failure(
                        job_folder, keeps_parsed_files, removes_dead_runs=not uses_parser
                    )
                )
            elif isinstance(run, StoreRun):
                with run:
                    pass
            yield folder, run
    except MayBeRunning:
        folder.release()
        raise
    except BaseException:
        if uses_parser and run.committed_manifest() is None:
            keep_parsed_files(folder, run)
        raise
    finally:
        folder.close()  # does nothing after `release`


@contextlib.contextmanager
def _explain_output_errors(out: str, path: Path, run: Run) -> Iterator[None]:
    """Turns an OSError about OUT, such as a full disk, into a RecordmillError.

    The message contains the path, and whether the data set was committed.

    Args:
        out: The output folder.
        path: The folder on this machine in which the run works.
        run: The run.

    Raises:
        RecordmillError: The `with` block raised OSError about OUT. Other errors are unchanged.
    """
    try:
        yield
    except OSError as error:
        if not _is_output_error(error, path):
            raise
        raise RecordmillError(
            f"{_describe_location(path, out, error)}: {os.strerror(error.errno or 0)}; {_describe_outcome(run)}"
        ) from error


def _run_plan(
    plan: BuildPlan, run: Run, settings: BuildOptions, progress: Progress, *, detach: bool
) -> BuildPlan:
    """Runs a planned build, from the checks of the engine to the commit.

    Args:
        plan: The plan of the inputs.
        run: The run.
        settings: The checked options.
        progress: Receives the counts.
        detach: Only submits the job.

    Returns:
        The plan with the parts that needed a pass over the records: classes and transform.
    """
    _run_preflight(plan, settings, progress)
    plan = count_classes(plan, progress)
    job_folder = (
        None
        if is_local(settings.run.runner)
        else _make_job_folder(plan, settings.run.storage_requests)
    )
    plan = _move_data_to_out(plan, job_folder)
    plan = add_transform(plan, settings, progress, job_folder)
    # The rules are about the written records, so they need the transformed schema.
    if plan.rules is not None:
        plan = replace(plan, rules=plan.rules.fit_to_schema(plan.schema, plan.split_names))
    assert plan.source is not None
    progress.begin("read", count_unit_rows(plan.source.units))
    try:
        run_build(plan, settings, progress, job_folder, detach=detach)
    except EngineError as error:
        # A job can fail in its last moments, after its commit. The data set is complete then,
        # and the failure is only worth a warning.
        if job_folder is None or run.committed_manifest() is None:
            raise
        _log.warning(
            "%s: the data set is complete; its job failed after the commit: %s", run.out, error
        )
        run.remove_work_files()
    return plan


def _describe_location(path: Path, out: str, error: OSError) -> str:
    """Returns the path that failed, for messages.

    This is the path in the error, or OUT if the error has none. If OUT is in a store, it is the
    local folder in which the output is prepared.
    """
    if is_remote(out):
        return f"{path} (in TMPDIR, where the files for {out} are prepared)"
    return str(path) if error.filename is None else os.fspath(error.filename)


def _describe_outcome(run: Run) -> str:
    """Returns the state of OUT after a failed build, for messages."""
    try:
        return (
            "nothing was written"
            if run.committed_manifest() is None
            else "the data set is complete"
        )
    except (OSError, DataError):
        return (
            "it is unknown whether the data set was written: run `recordmill "
            "verify` when the disk can be read"
        )


def _is_output_error(error: OSError, out: Path) -> bool:
    """Returns whether an error concerns OUT and not an input.

    A full disk without a path in the error concerns OUT, because only writes can fail for this
    reason.
    """
    if isinstance(error.filename, str):
        # The joined "" adds a slash, so that OUT2/x is not taken for a path in OUT.
        return os.path.abspath(error.filename).startswith(os.path.join(os.path.abspath(out), ""))
    return error.errno in DISK_FULL_ERRNOS


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
        is_preview: Limits the user's parser to the first files.
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


def _find_unparsed_build(
    source: Any, folder: RunFolder, out: str, base: int, settings: BuildOptions
) -> _Built | None:
    """Returns the newest generation if a build with a parser would only repeat it.

    The records depend on the files and the parser only, so no file is parsed. For the arguments see
    `make_plan`.

    Returns:
        None if `if_changed` or `parser` is not set, or if files, parser or options have changed.
    """
    if settings.parser is None or not settings.records.if_changed:
        return None
    if not base or settings.order.split_column is not None:
        return None
    # If the options do not fit the features of this data set, they have changed.
    with contextlib.suppress(UsageError):
        schema = from_pbtxt(load_manifest(out, base).schema)
        plan = make_plan(source, folder, out, base, settings, Progress(), known_schema=schema)
        if (identical := find_identical_build(plan)) is not None:
            return _Built(identical, plan, unchanged=True)
    return None


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


def _run_preflight(plan: BuildPlan, settings: BuildOptions, progress: Progress) -> None:
    """Checks that the workers of an engine can see OUT and the inputs.

    Does nothing without an engine, or if the user has turned the check off. A parser of the user
    has run on the workers already, after the same check.
    """
    if settings.run.runner is None or is_local(settings.run.runner) or not settings.run.preflight:
        return
    if settings.parser is not None:
        return
    files = plan.source.files if plan.source is not None else ()
    probe = ProbeResult(_make_job_folder(plan).run_path(), sample_files(files))
    preflight(settings.run.runner, settings.run.beam_args, probe, progress)


def run_build(
    plan: BuildPlan,
    settings: BuildOptions,
    progress: Progress,
    job_folder: JobFolder | None,
    *,
    detach: bool = False,
) -> None:
    """Runs the job that builds and commits a planned data set.

    Args:
        plan: The plan of the build.
        settings: The checked options.
        progress: Receives the counts.
        job_folder: The folders that the workers of an engine share. None runs the build in this
            process.
        detach: Returns as soon as the engine has accepted the job.
    """
    if job_folder is not None:
        shared = begin_build(plan, job_folder)
    else:
        plan_handle = make_plan_handle(plan, settings.run.beam_args)

    def construct(pipeline: Pipeline) -> None:
        from recordmill.transforms.beam_types import Impulse, Map
        from recordmill.transforms.build_stages import BuildStages, ElementNumbers
        from recordmill.transforms.local_build import build_locally

        if job_folder is not None:
            _ = (
                pipeline
                | "Groups" >> ElementNumbers(len(plan.unit_groups))
                | "Build" >> BuildStages(shared, progress)
            )
        else:
            _ = (
                pipeline
                | "Once" >> Impulse()
                | "Build" >> Map(build_locally, plan_handle, progress)
            )

    folder = plan.folder if job_folder is None else job_folder.run_path()
    run_pipeline(
        construct, settings.run.runner, settings.run.beam_args, folder, progress, detach=detach
    )


def _make_job_folder(plan: BuildPlan, requests: int | None = None) -> JobFolder:
    """Returns the folders that the workers of an engine share.

    Args:
        plan: The plan of the build.
        requests: Maximum number of concurrent store requests of each worker. None keeps the
            default.
    """
    return JobFolder(plan.out, RunFolder.attach(plan.folder).id, requests)


def _move_data_to_out(plan: BuildPlan, job_folder: JobFolder | None) -> BuildPlan:
    """Moves records that `plan_source` has written to local files to the store of OUT.

    They come from data in memory. The workers read them there. Other sources, and an OUT on a
    disk, need no move.

    Returns:
        The plan with the new paths.
    """
    from recordmill.sources.arrow.memory import MemorySource

    source = plan.source
    if job_folder is None or not job_folder.is_remote:
        return plan
    if not isinstance(source, MemorySource):
        return plan
    for path in source.segments:
        move_to_shared(path, job_folder.run_path("spool", os.path.basename(path)))
    return replace(plan, source=source.with_folder(job_folder.run_path("spool")))


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


def _make_result(out: str, built: _Built, settings: BuildOptions, *, seconds: float) -> BuildResult:
    manifest, plan = built.manifest, built.plan
    part, schema = manifest.parts[-1], from_pbtxt(manifest.schema)

    # The manifest has the text of the notes only. Those of the plan still have their parts.
    planned_notes = {
        note: note
        for planned in ((plan.source, plan.stratified_splits) if plan is not None else ())
        if planned is not None
        for note in planned.notes
    }
    notes = built.notes or tuple(
        planned_notes.get(note, note) for note in manifest.statistics.get("notes", ())
    )
    is_written = plan is not None
    run_id = part.folder.removeprefix(DATA_PREFIX)

    # The manifest counts the rejects of all parts.
    reasons = Counter(manifest.rejects["reasons"] if is_written else {})
    if settings.base is not None:
        reasons -= Counter(settings.base.manifest.rejects["reasons"])

    def path(*names: str) -> Path | str:
        return join(out, *names) if is_remote(out) else Path(out, *names)

    return BuildResult(
        out=path(),
        kind=part.kind,
        schema=schema,
        records=manifest.records,
        read=part.records_read if is_written else 0,
        rejected=part.records_rejected if is_written else 0,
        reject_reasons=dict(reasons),
        shards=tuple(path(part.folder, shard.name) for _, part, shard in manifest.shards()),
        rejects=tuple(
            path(name)
            for name in manifest.rejects["files"]
            if is_written and name.startswith(f"rejects/{run_id}")
        ),
        notes=(*notes, *tfds_notes(schema)),
        seconds=seconds,
        manifest=manifest,
        unchanged=built.unchanged,
        appended=settings.base is not None,
    )
