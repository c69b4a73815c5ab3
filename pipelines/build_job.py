"""The execution of a planned build, on this machine or on an engine.

Some steps come before the job that writes the records: an engine is checked, classes are counted,
and a transform is fitted. The last step of the job commits the data set.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from recordmill.base.progress import Progress
from recordmill.base.threads import run_stoppable
from recordmill.building.class_counter import count_classes
from recordmill.building.local_build import build_locally
from recordmill.building.plan import BuildPlan
from recordmill.building.workers.shared_files import JobFolder, begin_build
from recordmill.options.calls import is_local
from recordmill.pipelines.beam_run import make_plan_handle, run_pipeline
from recordmill.pipelines.build_options import BuildOptions
from recordmill.pipelines.remote.job_error import EngineError
from recordmill.pipelines.remote.preflight import ProbeResult, preflight, sample_files
from recordmill.pipelines.transform import add_transform
from recordmill.shards.run import Run
from recordmill.sources.common.tables import count_unit_rows
from recordmill.storage.files import move_to_shared

if TYPE_CHECKING:
    from recordmill.transforms.beam_types import Pipeline

_log = logging.getLogger(__name__)


def run_plan(
    plan: BuildPlan, run: Run, settings: BuildOptions, progress: Progress, *, detach: bool
) -> BuildPlan:
    """Runs a planned build, from the checks of the engine to the commit.

    Args:
        plan: The plan of the inputs.
        run: The run.
        settings: The checked options.
        progress: Receives the counts.
        detach: Whether to only submit the job.

    Returns:
        The plan with the parts that needed a pass over the records: classes and transform.
    """
    job_folder = (
        None
        if is_local(settings.run.runner)
        else JobFolder(plan.out, run.id, settings.run.storage_requests)
    )
    if job_folder is not None:
        _run_preflight(plan, settings, progress, job_folder)
    plan = count_classes(plan, progress)
    plan = _move_data_to_out(plan, job_folder)
    plan = add_transform(plan, settings, progress, job_folder)
    # The rules are about the written records, so they need the transformed schema.
    if plan.rules is not None:
        plan = replace(plan, rules=plan.rules.fit_to_schema(plan.schema, plan.split_names))
    assert plan.source is not None
    progress.begin("read", count_unit_rows(plan.source.units))
    try:
        run_job(plan, settings, progress, job_folder, detach=detach)
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


def _run_preflight(
    plan: BuildPlan, settings: BuildOptions, progress: Progress, job_folder: JobFolder
) -> None:
    """Checks that the workers of an engine can see OUT and the inputs.

    Does nothing if the user has turned the check off. A parser of the user has run on the workers
    already, after the same check.
    """
    if not settings.run.preflight or settings.parser is not None:
        return
    assert settings.run.runner is not None
    assert plan.source is not None
    probe = ProbeResult(job_folder.run_path(), sample_files(plan.source.files))
    preflight(settings.run.runner, settings.run.beam_args, probe, progress)


def _move_data_to_out(plan: BuildPlan, job_folder: JobFolder | None) -> BuildPlan:
    """Moves records that `plan_source` has written to local files to the store of OUT.

    Only data in memory has such files. The workers then read them from the store. Nothing is moved
    for other sources, or if OUT is on a disk.

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


def run_job(
    plan: BuildPlan,
    settings: BuildOptions,
    progress: Progress,
    job_folder: JobFolder | None,
    *,
    detach: bool = False,
) -> None:
    """Runs the job that builds and commits a planned data set.

    Without a runner and flags for Beam, threads of this process do the work, without Beam.

    Args:
        plan: The plan of the build.
        settings: The checked options.
        progress: Receives the counts.
        job_folder: The folders that the workers of an engine share. If None, the build runs in this
            process.
        detach: Whether to return as soon as the engine has accepted the job.
    """
    if settings.run.runner is None and not settings.run.beam_args:
        # Beam would take longer to import than a small build takes.
        run_stoppable(lambda: build_locally(plan, progress), progress)
        return
    if job_folder is not None:
        shared = begin_build(plan, job_folder)
    else:
        plan_handle = make_plan_handle(plan, settings.run.beam_args)

    def construct(pipeline: Pipeline) -> None:
        from recordmill.transforms.beam_types import Impulse, Map
        from recordmill.transforms.build_stages import (
            BuildStages,
            ElementNumbers,
            build_in_one_step,
        )

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
                | "Build" >> Map(build_in_one_step, plan_handle, progress)
            )

    folder = plan.folder if job_folder is None else job_folder.run_path()
    run_pipeline(
        construct, settings.run.runner, settings.run.beam_args, folder, progress, detach=detach
    )
