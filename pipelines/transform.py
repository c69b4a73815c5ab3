"""The transform of a build: fitted by a job of its own before the records are written, or taken from a data set.
A plan in, the same plan with the transform, and the schema of what it makes, out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recordmill.base.errors import DataError, MissingExtraError, RecordmillError, UsageError
from recordmill.base.machine import exhausted_limit
from recordmill.base.option_names import available_names, option
from recordmill.base.progress import Progress
from recordmill.building.plan import BuildPlan
from recordmill.building.workers.shared_files import JobFolder, share_plan
from recordmill.options.option import is_local
from recordmill.pipelines.beam_run import run_pipeline, sent_plan
from recordmill.pipelines.build_options import BuildOptions
from recordmill.preprocessing.declaration import declare_transform, read_declaration
from recordmill.preprocessing.graph import GraphError
from recordmill.preprocessing.metadata import (
    FitOrigin,
    describe_transform,
    describe_uncounted_records,
    restore_transform,
)
from recordmill.preprocessing.saved_transform import SavedTransform
from recordmill.preprocessing.tensors import explain_unfit
from recordmill.schemas.feature import Schema
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.shards.manifest import TRANSFORM_FOLDER, Manifest, load_manifest
from recordmill.storage.files import is_remote, sync_file, sync_folder
from recordmill.storage.folders import (
    copy_tree,
    fetch_tree,
    is_folder,
    join,
    list_paths_recursively,
    make_folder,
)

PreprocessingFn = Callable[[dict[str, Any]], dict[str, Any]]

_NODE = re.compile(r"\{\{(?:function_)?node ([^}]+)\}\}")


@dataclass(frozen=True)
class SavedBefore:
    """A data set whose transform is to be used. raw: the schema of the records that it takes."""

    out: str
    manifest: Manifest
    raw: Schema

    @property
    def may_lack(self) -> frozenset[str]:
        """Raw features that nothing is made of but what the label gives, which new data may not have."""
        needs = self.manifest.transform["needs"].values()
        return frozenset(self.raw.names) - {
            name for need in needs if self.raw.label not in need for name in need
        }


def find_transform(out: str | os.PathLike[str]) -> SavedBefore:
    """The data set's transform; UsageError if it has none."""
    manifest = load_manifest(out)
    if not manifest.transform:
        raise UsageError(
            f"{os.fspath(out)} was built without a transform: there is none to take from it"
        )
    return SavedBefore(
        os.fspath(out), manifest, from_pbtxt(manifest.transform["raw_schema"], os.fspath(out))
    )


def with_transform(
    plan: BuildPlan, settings: BuildOptions, progress: Progress, job_folder: JobFolder | None
) -> BuildPlan:
    """The plan with what its records are to become. job_folder: of a build on an engine.

    Raises:
        UsageError: the transform doesn't fit the records. DataError: its analysis failed.
        MissingExtraError: tf.Transform is not installed.
    """
    if settings.transform is None and settings.transform_from is None:
        return plan
    target = os.path.join(plan.folder, "data", TRANSFORM_FOLDER)
    if settings.transform_from is not None:
        saved = _take_over(find_transform(settings.transform_from), plan, target)
    else:
        saved = _fit(plan, settings, target, progress, job_folder)
        source: Any = plan.source
        plan = replace(
            plan, source=replace(source, notes=(*source.notes, *describe_uncounted_records(saved)))
        )
    _sync(Path(target))
    return replace(plan, transform=saved, schema=saved.schema)


def _sync(folder: Path) -> None:
    """Make the saved transform durable, as the shards beside it are before the commit."""
    for path in (*list_paths_recursively(folder), folder):
        (sync_folder if is_folder(path) else sync_file)(path)


def _take_over(before: SavedBefore, plan: BuildPlan, target: str) -> SavedTransform:
    """The same transform, its files copied to where this data set's lie."""
    assert plan.source is not None
    given = plan.source.schema
    _check_same(before, given)
    source = join(before.out, before.manifest.parts[-1].folder, TRANSFORM_FOLDER)
    if not is_folder(source):
        raise DataError("is missing; the manifest names it", source=source)
    if is_remote(source):
        make_folder(target)
        fetch_tree(source, target)
    else:
        copy_tree(
            source, target, keep_links=True
        )  # a link is none of the files that the manifest names
    saved = restore_transform(
        target, before.manifest.transform, from_pbtxt(before.manifest.schema, before.out)
    )
    return saved.drop_features({name for name in before.raw.names if name not in given})


def _check_same(before: SavedBefore, given: Schema) -> None:
    for feature in before.raw:
        if feature.name not in given and feature.name in before.may_lack:
            continue
        if feature.name not in given or given[feature.name] != feature:
            there = given[feature.name].describe() if feature.name in given else "not there"
            raise UsageError(
                f"the transform of {before.out} takes {feature.name!r} as {feature.describe()}"
                f"{', always there' if feature.required else ''}; here it is {there}"
            )


def _fit(
    plan: BuildPlan,
    settings: BuildOptions,
    target: str,
    progress: Progress,
    job_folder: JobFolder | None,
) -> SavedTransform:
    """Fits the transform on the records of its split."""
    assert plan.source is not None
    raw = plan.source.schema
    if settings.fit_on not in plan.split_names:
        raise UsageError(
            f"{option('fit_on', settings.fit_on)}: no such split; {available_names(settings.fit_on, plan.split_names)}"
        )
    given = settings.transform
    if isinstance(given, str | os.PathLike) and os.fspath(given).endswith((".yaml", ".yml")):
        given = read_declaration(given)
    if isinstance(given, Mapping):
        declaration = declare_transform(given, raw)
        _check_installed()
        from recordmill.transforms.tft.declared import DeclaredFunction

        fit = FitOrigin(
            raw,
            _inputs(raw, declaration.inputs),
            declaration,
            _plain(given),
            settings.fit_on,
            settings.keep_raw,
        )
        function: PreprocessingFn = DeclaredFunction(declaration)
    else:
        _check_installed()
        function, name = _function(given)
        fit = FitOrigin(
            raw, _inputs(raw, raw.names), None, name, settings.fit_on, settings.keep_raw
        )
    if job_folder is not None and job_folder.is_remote:
        _fit_in_parts(plan, settings, fit, function, target, progress, job_folder)
    else:
        _run_fit(plan, settings, fit, function, target, progress, job_folder)
    with _without_values(fit):
        return describe_transform(target, fit)


def _inputs(raw: Schema, names: tuple[str, ...]) -> Schema:
    for name in names:
        if (reason := explain_unfit(raw[name])) is not None:
            raise UsageError(
                f"transform: feature {name!r}: {reason}; a declared transform can keep or drop it"
            )
    return replace(raw.select(names), label=None)


def _function(given: Any) -> tuple[PreprocessingFn, str]:
    """(the guarded function, what to call it)."""
    from recordmill.transforms.tft.user_function import (
        GuardedFunction,
        load_function,
        register_pickling_by_value,
    )

    if isinstance(given, str | os.PathLike):
        function, name = load_function(os.fspath(given)), os.path.basename(os.fspath(given))
    elif callable(given):
        function, name = given, getattr(given, "__name__", type(given).__name__)
    else:
        raise UsageError(
            f"transform: {type(given).__name__} is neither a path, nor a function, nor a dict of steps"
        )
    register_pickling_by_value(function)
    return GuardedFunction(function), name


def _run_fit(
    plan: BuildPlan,
    settings: BuildOptions,
    fit: FitOrigin,
    function: PreprocessingFn,
    target: str,
    progress: Progress,
    job_folder: JobFolder | None,
) -> None:
    sent = (
        sent_plan(plan, settings.beam_args) if job_folder is None else share_plan(plan, job_folder)
    )
    local = is_local(settings.runner)

    def construct(pipeline: Any) -> None:
        import apache_beam as beam

        from recordmill.transforms.tft.analysis import FitTransform, analysis_context

        step = FitTransform(sent, fit.split, fit.inputs, function, target)
        groups = range(len(plan.unit_groups))
        packs = pipeline | "Groups" >> beam.Create(
            [tuple(groups)] if local else [(group,) for group in groups]
        )
        with analysis_context(plan.folder):
            _ = packs | "Fit" >> step

    progress.begin("fit", None)
    with _without_values(fit):
        run_pipeline(
            construct, settings.runner, settings.beam_args, plan.folder, progress, kind="fit"
        )


def _fit_in_parts(
    plan: BuildPlan,
    settings: BuildOptions,
    fit: FitOrigin,
    function: PreprocessingFn,
    target: str,
    progress: Progress,
    job_folder: JobFolder,
) -> None:
    """Each group of units is analysed by a worker, and what they found becomes the transform here, where analysers that
    need what others found read the records once more.
    """
    from recordmill.transforms.beam_types import Create
    from recordmill.transforms.build_stages import ElementNumbers
    from recordmill.transforms.tft.analysis import (
        AnalyzeUnitGroups,
        FitFromAnalyses,
        analysis_context,
        read_analyses,
    )

    def construct_parts(pipeline: Any) -> None:
        step = AnalyzeUnitGroups(shared, fit.split, fit.inputs, function)
        _ = pipeline | "Groups" >> ElementNumbers(len(plan.unit_groups)) | "Fit" >> step

    def construct(pipeline: Any) -> None:
        step = FitFromAnalyses(plan.local_handle(), fit.split, fit.inputs, function, target, found)
        packs = pipeline | "Groups" >> Create([tuple(range(len(plan.unit_groups)))])
        with analysis_context(plan.folder):
            _ = packs | "Fit" >> step

    progress.begin("fit", None)
    with _without_values(fit):
        shared = share_plan(plan, job_folder)
        run_pipeline(
            construct_parts,
            settings.runner,
            settings.beam_args,
            job_folder.run_path(),
            progress,
            kind="fit",
        )
        found = read_analyses(job_folder)
        if not found:
            raise DataError(
                f"the transform can't be fitted on split {fit.split!r}: there is no record in it"
            )
        run_pipeline(construct, None, (), plan.folder, progress)


@contextlib.contextmanager
def _without_values(fit: FitOrigin) -> Iterator[None]:
    """Replaces what an analysis raises by an error without the values of features."""
    try:
        with _without_warnings():
            yield
    except GraphError as error:  # of the graph that was made just now
        raise DataError(_reason(error.__cause__ or error, fit)) from None
    except (RecordmillError, KeyboardInterrupt):
        raise
    except Exception as error:
        is_system = isinstance(error, OSError) and not _NODE.search(
            str(error)
        )  # and not one of the graph's operations
        if is_system or exhausted_limit(error) is not None:
            raise
        raise DataError(_reason(error, fit)) from None


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Silences warnings of what tf.Transform makes itself, by a filter, since others set the log's level anew."""
    log = logging.getLogger("absl")

    def is_error(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    log.addFilter(is_error)
    try:
        yield
    finally:
        log.removeFilter(is_error)


def _reason(error: BaseException, fit: FitOrigin) -> str:
    """Returns what failed, without TensorFlow's message, which may hold values of features."""
    node = _NODE.search(str(error))
    where = f" in operation {node[1]}" if node else ""
    return (
        f"the transform can't be fitted on split {fit.split!r}: {type(error).__name__}{where}; is there no record in "
        "it, or does the function fail for some of them? Analysers see all records of the split, and assertions are "
        "held before any record is a reject"
    )


def _check_installed() -> None:
    try:
        import tensorflow_transform  # noqa: F401
    except ImportError as error:
        if (error.name or "").split(".")[0] not in (
            "tensorflow_transform",
            "tensorflow",
            "tfx_bsl",
            "apache_beam",
        ):
            raise
        raise MissingExtraError(option("transform"), "tft", "tensorflow-transform") from None


def _plain(declared: Any) -> Any:
    """The declaration as JSON has it."""
    if isinstance(declared, Mapping):
        return {str(name): _plain(value) for name, value in declared.items()}
    if isinstance(declared, list | tuple):
        return [_plain(value) for value in declared]
    return declared
