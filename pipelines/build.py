"""`build`: raw inputs to a committed data set of shuffled TFRecord shards.

This process plans the inputs. Its threads, or one Beam job, then read, sort and write the records,
and commit the data set at the end. Other packages do the work on records: `sources` reads them,
`building` orders and writes them, and `transforms` runs these steps in Beam.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recordmill.base import html
from recordmill.base.arguments import suggest_keywords
from recordmill.base.display import Display, completion_notice
from recordmill.base.errors import RecordmillError, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.progress import Progress, ProgressArgument, to_progress
from recordmill.base.sizes import format_count, format_size
from recordmill.building.commit import finish_output
from recordmill.building.finish_build import find_identical_build
from recordmill.building.plan import BuildPlan
from recordmill.options.calls import is_local, with_keywords
from recordmill.pipelines.append import (
    NothingToAppend,
    inherit_options,
)
from recordmill.pipelines.beam_run import check_runner
from recordmill.pipelines.build_job import run_plan
from recordmill.pipelines.build_options import BuildOptions, make_options
from recordmill.pipelines.build_plan import make_plan
from recordmill.pipelines.build_source import to_paths
from recordmill.pipelines.output_run import open_run
from recordmill.pipelines.remote.status import RunState, status
from recordmill.schemas.feature import Schema
from recordmill.schemas.tfds import tfds_notes
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.shards.manifest import Manifest, load_manifest, load_newest_manifest
from recordmill.shards.run import RunFolder, check_output_folder
from recordmill.shards.verify import check_derived
from recordmill.storage.files import (
    is_remote,
    limit_block_memory,
    limit_requests,
    parse_output_path,
    stat,
)
from recordmill.storage.folders import exists, join
from recordmill.storage.walk import DATA_PREFIX

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from recordmill.options.keywords import BuildKeywords


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
        unchanged: True if the data set is up to date, so that nothing was built. Either
            `if_changed` found the same inputs and options, or `append` found no new input.
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
        MissingExtraError: An option needs a package that is not installed.
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
    job. Parsing files with a `parser` and fitting a transform come before the submission. This
    function waits for them.

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
        quiet: Whether to print no progress.
        checks: Receives a function that is appended. The function returns whether the run has
            committed.
        detach: Whether to only submit the job.

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
        open_run(out, runner=settings.run.runner, uses_parser=settings.parser is not None) as (
            folder,
            run,
        ),
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
        plan = run_plan(plan, run, settings, progress, detach=detach)
        if detach:
            folder.release()  # the job still uses it
            return None
        manifest = run.committed_manifest()
        if manifest is None:
            raise RecordmillError(
                f"{out}: the runner ended without an error and without a commit; nothing was written"
            )
    return _Built(manifest, plan)


def _finish_killed_commit(out: str) -> None:
    """Writes the files next to the manifests, if a killed run left them out.

    Every commit does this, but a run that finds nothing new does not commit.
    """
    number, manifest = load_newest_manifest(out)
    if check_derived(out, manifest, number):
        finish_output(out, manifest, number)


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
