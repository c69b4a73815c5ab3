"""The transform of a build, fitted by tf.Transform or taken from another data set.

Fitting is a job of its own, which runs before any record is written. `add_transform` returns the
plan with the fitted transform, and with the schema of the transformed records.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from recordmill.base.errors import DataError, MissingExtraError, RecordmillError, UsageError
from recordmill.base.local_value import LocalValue
from recordmill.base.machine import find_exhausted_limit
from recordmill.base.option_names import available_names, option
from recordmill.base.progress import Progress
from recordmill.building.plan import BuildPlan
from recordmill.building.record_keys import DEFAULT_SPLIT
from recordmill.building.workers.shared_files import JobFolder, share_plan
from recordmill.options.build import BuildTransform
from recordmill.options.calls import is_local
from recordmill.pipelines.beam_run import make_plan_handle, run_pipeline
from recordmill.pipelines.build_options import AppendBase, BuildOptions
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
from recordmill.storage.files import is_remote
from recordmill.storage.folders import (
    copy_tree,
    is_folder,
    join,
    sync_tree,
)

PreprocessingFn = Callable[[dict[str, Any]], dict[str, Any]]

_GRAPH_NODE = re.compile(r"\{\{(?:function_)?node ([^}]+)\}\}")


@dataclass(frozen=True)
class SavedTransformOrigin:
    """A data set with a fitted transform that is applied to new data.

    Attributes:
        out: The folder of the data set.
        manifest: The manifest of the data set.
        raw: The schema of the records that the transform accepts.
    """

    out: str
    manifest: Manifest
    raw: Schema

    @property
    def droppable_features(self) -> frozenset[str]:
        """Names of the raw features that new data may lack.

        A feature is required if some output depends on it without depending on the label. All other
        features may be missing. So data without a label can be transformed.
        """
        needs = self.manifest.transform["needs"].values()
        return frozenset(self.raw.names) - {
            name for need in needs if self.raw.label not in need for name in need
        }


def find_transform(out: str | os.PathLike[str]) -> SavedTransformOrigin:
    """Finds the transform of a data set.

    Raises:
        UsageError: The data set was built without a transform.
    """
    manifest = load_manifest(out)
    if not manifest.transform:
        raise UsageError(f"{os.fspath(out)} was built without a transform")
    return SavedTransformOrigin(
        os.fspath(out), manifest, from_pbtxt(manifest.transform["raw_schema"], os.fspath(out))
    )


def add_transform(
    plan: BuildPlan, settings: BuildOptions, progress: Progress, job_folder: JobFolder | None
) -> BuildPlan:
    """Returns the plan with the transform that the options request.

    A plan without a transform is returned as it is.

    Args:
        plan: The plan of the build.
        settings: The checked options.
        progress: Receives the counts of the fit.
        job_folder: The folders that workers share. None means a build in this process.

    Raises:
        UsageError: The transform does not fit the records.
        DataError: The analysis of the records failed.
        MissingExtraError: tf.Transform is not installed.
    """
    if settings.transform is None and settings.transform_from is None:
        return plan
    target = os.path.join(plan.folder, "data", TRANSFORM_FOLDER)
    if settings.base is not None:
        saved = _load_stored_transform(settings.base, plan, job_folder)
        return replace(plan, transform=saved, schema=saved.schema)
    if settings.transform_from is not None:
        saved = _copy_transform(find_transform(settings.transform_from), plan, target)
    else:
        saved = _fit(plan, settings, target, progress, job_folder)
        source: Any = plan.source
        plan = replace(
            plan, source=replace(source, notes=(*source.notes, *describe_uncounted_records(saved)))
        )
    sync_tree(target)
    return replace(plan, transform=saved, schema=saved.schema)


def _copy_transform(origin: SavedTransformOrigin, plan: BuildPlan, target: str) -> SavedTransform:
    """Copies the transform of another data set to `target`, and loads it.

    Args:
        origin: The data set with the transform.
        plan: The plan of the new data set.
        target: The folder for the copy.

    Raises:
        UsageError: The new data have other features than the transform accepts.
        DataError: The files of the transform are missing.
    """
    assert plan.source is not None
    schema = plan.source.schema
    _check_same_features(origin, schema)
    source = join(origin.out, origin.manifest.transform_folder, TRANSFORM_FOLDER)
    if not is_folder(source):
        raise DataError("is missing; the manifest names it", source=source)
    copy_tree(source, target)
    saved = restore_transform(
        target, origin.manifest.transform, from_pbtxt(origin.manifest.schema, origin.out)
    )
    return saved.drop_features({name for name in origin.raw.names if name not in schema})


def _load_stored_transform(
    base: AppendBase, plan: BuildPlan, job_folder: JobFolder | None
) -> SavedTransform:
    """Loads the transform of the data set that records are appended to.

    The files of the transform stay in the folder of the first part. TensorFlow can't load them from
    a store. In this case, this process and each worker make a local copy.

    Raises:
        UsageError: The new records have other features than the transform accepts.
        DataError: The files of the transform are missing or damaged.
    """
    manifest = base.manifest
    raw = from_pbtxt(manifest.transform["raw_schema"], base.out)
    assert plan.source is not None
    _check_same_features(SavedTransformOrigin(base.out, manifest, raw), plan.source.schema)
    stored = folder = join(base.out, manifest.transform_folder, TRANSFORM_FOLDER)
    if not is_folder(stored):
        raise DataError("is missing; the manifest names it", source=stored)
    if is_remote(stored):
        folder = os.path.join(plan.folder, TRANSFORM_FOLDER)
        copy_tree(stored, folder)
    saved = restore_transform(folder, manifest.transform, from_pbtxt(manifest.schema, base.out))
    is_shared = job_folder is not None and job_folder.is_remote
    return replace(saved, folder=stored) if is_shared else saved


def _check_same_features(origin: SavedTransformOrigin, schema: Schema) -> None:
    """Raises UsageError if the schema differs from the one that a transform accepts."""
    for feature in origin.raw:
        if feature.name not in schema and feature.name in origin.droppable_features:
            continue
        if feature.name not in schema or schema[feature.name] != feature:
            detail = schema[feature.name].describe() if feature.name in schema else "not there"
            raise UsageError(
                f"the transform of {origin.out} takes {feature.name!r} as "
                f"{feature.describe()}{', never missing' if feature.required else ''}"
                f"; here it is {detail}"
            )


def _fit(
    plan: BuildPlan,
    settings: BuildOptions,
    target: str,
    progress: Progress,
    job_folder: JobFolder | None,
) -> SavedTransform:
    """Fits the transform on the split `fit_on`, and saves it in `target`.

    Raises:
        UsageError: The split does not exist, or the transform does not fit the features.
        DataError: The analysis of the records failed.
        MissingExtraError: tf.Transform is not installed.
    """
    assert plan.source is not None
    raw, request = plan.source.schema, settings.values[BuildTransform]
    fit_on = DEFAULT_SPLIT if request.fit_on is None else request.fit_on
    if fit_on not in plan.split_names:
        raise UsageError(
            "{fit_on}: no such split; {available_names}",
            fit_on=option("fit_on", fit_on),
            available_names=available_names(fit_on, plan.split_names),
        )
    declared = settings.transform
    if isinstance(declared, str | os.PathLike) and os.fspath(declared).endswith((".yaml", ".yml")):
        declared = read_declaration(declared)
    if isinstance(declared, Mapping):
        declaration = declare_transform(declared, raw)
        _check_installed()
        from recordmill.transforms.tft.declared import DeclaredFunction

        fit = FitOrigin(
            raw,
            _check_inputs(raw, declaration.inputs),
            declaration,
            _to_json_value(declared),
            fit_on,
            request.keep_raw,
        )
        function: PreprocessingFn = DeclaredFunction(declaration)
    else:
        _check_installed()
        function, name = _load_user_function(declared)
        fit = FitOrigin(raw, _check_inputs(raw, raw.names), None, name, fit_on, request.keep_raw)
    # With OUT in a store, the workers can't write to the folder of the transform on this machine.
    if job_folder is not None and job_folder.is_remote:
        _fit_on_workers(plan, settings, fit, function, target, progress, job_folder)
    else:
        _run_fit(plan, settings, fit, function, target, progress, job_folder)
    with _hide_values(fit):
        return describe_transform(target, fit)


def _check_inputs(raw: Schema, names: tuple[str, ...]) -> Schema:
    """Checks that the features which a transform reads can be converted to tensors.

    Args:
        raw: The schema of the raw records.
        names: The features that the transform reads.

    Returns:
        The schema of these features. It has no label.

    Raises:
        UsageError: The type of a feature can't be converted.
    """
    for name in names:
        if (reason := explain_unfit(raw[name])) is not None:
            raise UsageError(
                f"transform: feature {name!r}: {reason}; a declared transform can keep or drop it"
            )
    return replace(raw.select(names), label=None)


def _load_user_function(transform: Any) -> tuple[PreprocessingFn, str]:
    """Loads the user's function, wraps it in checks, and returns it with its name.

    Args:
        transform: A function, or the path of a Python file that defines one.

    Returns:
        (wrapped function, name). The name of a file is its file name without the folder.

    Raises:
        UsageError: `transform` is neither a function nor a path, or the file has no such function.
    """
    from recordmill.transforms.tft.user_function import (
        GuardedFunction,
        load_function,
        register_pickling_by_value,
    )

    if isinstance(transform, str | os.PathLike):
        function, name = load_function(os.fspath(transform)), os.path.basename(os.fspath(transform))
    elif callable(transform):
        function, name = transform, getattr(transform, "__name__", type(transform).__name__)
    else:
        raise UsageError(
            f"transform: {type(transform).__name__} is neither a path, nor a function, nor a dict of steps"
        )
    # Workers may be unable to import the module of the function.
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
    plan_handle = (
        make_plan_handle(plan, settings.run.beam_args)
        if job_folder is None
        else share_plan(plan, job_folder)
    )
    is_local_run = is_local(settings.run.runner)

    def construct(pipeline: Any) -> None:
        import apache_beam as beam

        from recordmill.transforms.tft.analysis import FitTransform, analysis_context

        step = FitTransform(plan_handle, progress, fit.split, fit.inputs, function, target)
        groups = range(len(plan.unit_groups))
        group_tuples = pipeline | "Groups" >> beam.Create(
            [tuple(groups)] if is_local_run else [(group,) for group in groups]
        )
        with analysis_context(plan.folder):
            _ = group_tuples | "Fit" >> step

    progress.begin("fit", None)
    with _hide_values(fit):
        run_pipeline(
            construct,
            settings.run.runner,
            settings.run.beam_args,
            plan.folder,
            progress,
            kind="fit",
        )


def _fit_on_workers(
    plan: BuildPlan,
    settings: BuildOptions,
    fit: FitOrigin,
    function: PreprocessingFn,
    target: str,
    progress: Progress,
    job_folder: JobFolder,
) -> None:
    """Fits the transform on the workers of an engine.

    Use it if the output is in a store. Each worker analyses some unit groups, and this process
    combines the analyses. The records are read again only for analysers that depend on the results
    of others.
    """
    from recordmill.transforms.beam_types import Create
    from recordmill.transforms.build_stages import ElementNumbers
    from recordmill.transforms.tft.analysis import (
        AnalyzeUnitGroups,
        FitFromAnalyses,
        analysis_context,
        read_analyses,
    )

    def construct_analysis(pipeline: Any) -> None:
        step = AnalyzeUnitGroups(shared, fit.split, fit.inputs, function)
        _ = pipeline | "Groups" >> ElementNumbers(len(plan.unit_groups)) | "Fit" >> step

    def construct(pipeline: Any) -> None:
        step = FitFromAnalyses(
            LocalValue.of(plan), progress, fit.split, fit.inputs, function, target, analyses
        )
        group_tuples = pipeline | "Groups" >> Create([tuple(range(len(plan.unit_groups)))])
        with analysis_context(plan.folder):
            _ = group_tuples | "Fit" >> step

    progress.begin("fit", None)
    with _hide_values(fit):
        shared = share_plan(plan, job_folder)
        run_pipeline(
            construct_analysis,
            settings.run.runner,
            settings.run.beam_args,
            job_folder.run_path(),
            progress,
            kind="fit",
        )
        analyses = read_analyses(job_folder)
        if not analyses:
            raise DataError(
                f"the transform can't be fitted on split {fit.split!r}: there is no record in it"
            )
        run_pipeline(construct, None, (), plan.folder, progress)


@contextlib.contextmanager
def _hide_values(fit: FitOrigin) -> Iterator[None]:
    """Replaces errors of TensorFlow inside the `with` block by a DataError.

    The messages of TensorFlow may contain values of the user's data, and the DataError does not.
    These errors are raised unchanged: our own, interrupts, and errors of the system.
    """
    try:
        with _silence_warnings():
            yield
    except GraphError as error:  # the graph that was fitted just now can't be loaded
        raise DataError(_explain_failure(error.__cause__ or error, fit)) from None
    except (RecordmillError, KeyboardInterrupt):
        raise
    except Exception as error:
        # TensorFlow raises errors of operations as OSError, too; those name a node of the graph.
        is_system = isinstance(error, OSError) and not _GRAPH_NODE.search(str(error))
        if is_system or find_exhausted_limit(error) is not None:
            raise
        raise DataError(_explain_failure(error, fit)) from None


@contextlib.contextmanager
def _silence_warnings() -> Iterator[None]:
    """Suppresses the warnings of tf.Transform inside the `with` block.

    A filter suppresses them, because libraries reset the level of the logger.
    """
    log = logging.getLogger("absl")

    def is_error(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    log.addFilter(is_error)
    try:
        yield
    finally:
        log.removeFilter(is_error)


def _explain_failure(error: BaseException, fit: FitOrigin) -> str:
    """Returns the message for a failed fit, without TensorFlow's own message.

    TensorFlow's message may contain values of the user's data.
    """
    node = _GRAPH_NODE.search(str(error))
    location = f" in operation {node[1]}" if node else ""
    return (
        f"the transform can't be fitted on split {fit.split!r}: {type(error).__name__}"
        f"{location}. Either the split has no record, or the function fails for some "
        "records. Analysers and assertions see all records of the split, also those "
        "that would become rejects"
    )


def _check_installed() -> None:
    """Raises MissingExtraError if tf.Transform is not installed."""
    try:
        import tensorflow_transform  # noqa: F401
    except ImportError as error:
        # Another missing module means a broken installation, which is not hidden.
        if (error.name or "").split(".")[0] not in (
            "tensorflow_transform",
            "tensorflow",
            "tfx_bsl",
            "apache_beam",
        ):
            raise
        raise MissingExtraError(option("transform"), "tft", "tensorflow-transform") from None


def _to_json_value(declared: Any) -> Any:
    """Returns a declaration with plain dicts and lists, for JSON."""
    if isinstance(declared, Mapping):
        return {str(name): _to_json_value(value) for name, value in declared.items()}
    if isinstance(declared, list | tuple):
        return [_to_json_value(value) for value in declared]
    return declared
