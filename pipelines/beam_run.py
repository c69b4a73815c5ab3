"""Execution of a Beam pipeline, on this machine or on an engine.

Ctrl-C stops a pipeline on any runner. If a step fails, the caller gets the error of that step. A
local pipeline runs in `transforms.local_run`, and a job of an engine in `pipelines.remote`. This
module also checks the flags of Beam and of job servers.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from recordmill.base.errors import MissingExtraError, UsageError
from recordmill.base.local_value import LocalValue
from recordmill.base.option_names import available_names, option
from recordmill.base.progress import Progress
from recordmill.building.plan import BuildPlan
from recordmill.building.workers.shared_files import SHARED_VALUES_FOLDER, JobFolder, PlanHandle
from recordmill.options.calls import CALLS, is_local
from recordmill.options.flags import explain_unknown_flags
from recordmill.pipelines.remote.submission import Submission, run_on_engine
from recordmill.shards.run import RunFolder
from recordmill.storage.folders import make_folder
from recordmill.storage.walk import RUN_PREFIX
from recordmill.transforms.local_run import mark_own_pipelines, run_locally, silence_beam_logging

if TYPE_CHECKING:
    from recordmill.transforms.beam_types import Pipeline

# Flags that Beam does not know, but a job server may: `--parallelism` and words with underscores.
_JOB_SERVER_FLAG = re.compile(r"--(parallelism|[a-z0-9]+(_[a-z0-9]+)+)(=.*)?", re.DOTALL)


def check_runner(runner: str | None, beam_args: Sequence[str]) -> None:
    """Checks the runner and the flags of Beam before anything is planned.

    Raises:
        MissingExtraError: There is a runner, but apache_beam is not installed.
        UsageError: There is no such runner, a flag is unknown, or its value is invalid.
    """
    if runner is not None:
        require_beam(option("runner"))
        if not is_local(runner):
            check_runner_name(runner)
    if beam_args:
        engine_name = None if is_local(runner) else runner
        check_flags(
            [*([] if engine_name is None else [f"--runner={engine_name}"]), *beam_args], engine_name
        )


def make_plan_handle(plan: BuildPlan, beam_args: Sequence[str]) -> PlanHandle:
    """Returns a handle that loads the plan in the steps of a local job.

    Normally the steps load it from the memory of this process. If the flags make Beam start worker
    processes, the plan is written to a file in the run folder, and they load it from there.
    """
    if any("multi_processing" in arg for arg in beam_args):
        job_folder = JobFolder(os.path.dirname(plan.folder), RunFolder.attach(plan.folder).id)
        make_folder(job_folder.run_path(SHARED_VALUES_FOLDER), exist_ok=True)
        return job_folder.share_value("plan", plan)
    return LocalValue.of(plan)


def require_beam(needed_for: str) -> None:
    """Raises MissingExtraError if apache_beam is not installed, without importing it.

    Args:
        needed_for: The option or feature that needs Beam.
    """
    if not _has_beam():
        raise MissingExtraError(needed_for, "beam", "apache_beam")


def _has_beam() -> bool:
    """Returns whether apache_beam is installed, without importing it."""
    try:
        return find_spec("apache_beam") is not None
    except ValueError:  # sys.modules["apache_beam"] is None, which blocks the import
        return False


def run_pipeline(
    construct: Callable[[Pipeline], None],
    runner: str | None,
    beam_args: Sequence[str],
    folder: str,
    progress: Progress,
    *,
    kind: str = "build",
    detach: bool = False,
) -> None:
    """Creates a pipeline, lets `construct` fill it, and runs it to its end.

    `check_runner` must have accepted the runner and the flags.

    Args:
        construct: Adds the transforms to the pipeline.
        runner: The Beam runner. None means this machine.
        beam_args: Flags for Beam and the job server.
        folder: The run folder, which receives a note about the job of an engine.
        progress: Shows the state of the job on an engine. It is cancelled on Ctrl-C.
        kind: The kind of job, such as "build", for its name on an engine.
        detach: Whether to return as soon as the engine has accepted the job.

    Raises:
        KeyboardInterrupt: The user stopped the pipeline. All threads have ended, and the job of an
            engine is gone.
        MayBeRunning: The user stopped the pipeline, but the job of the engine may still be running.
        EngineError: The job of an engine failed.
        Exception: A step of a local pipeline failed. This is the error of the step itself.
    """
    if not is_local(runner):
        assert runner is not None
        submission = Submission(runner, beam_args, _make_job_name(kind, folder), folder, detach)
        with mark_own_pipelines():
            run_on_engine(construct, submission, progress)
        return
    run_locally(construct, beam_args, progress)


def _make_job_name(kind: str, folder: str) -> str:
    """Returns a job name that every engine accepts, such as `recordmill-build-flowers-3f2a1b`.

    The name contains the id of the run, so no two runs have the same name.

    Args:
        kind: The kind of job.
        folder: The run folder, in the output folder.
    """
    out = re.sub("[^a-z0-9]+", "-", os.path.basename(os.path.dirname(folder)).lower()).strip("-")[
        :24
    ]
    run = os.path.basename(folder).removeprefix(RUN_PREFIX)
    return "-".join(part for part in ("recordmill", kind, out, run) if part)


def check_flags(arguments: Sequence[str], runner: str | None) -> None:
    """Raises UsageError if neither Beam nor a job server accepts a flag.

    Beam itself ignores unknown flags. The job servers of Flink and Spark have further flags, which
    Beam does not know: words with underscores, and `--parallelism`.

    Args:
        arguments: All flags, `--runner` included.
        runner: The name of an engine, or None for this machine.

    Raises:
        UsageError: A flag is unknown, or its value is invalid.
    """
    flags = [argument for argument in arguments if argument]
    if not _has_beam():
        raise UsageError(
            f"unknown option {' '.join(flags)}: recordmill does not have it, and Apache Beam is not "
            f"installed{_suggest_flags(flags)}"
        )
    from apache_beam.options.pipeline_options import PipelineOptions

    # A portable runner may use the job server of either engine.
    has_server = any(engine in (runner or "").lower() for engine in ("flink", "spark", "portable"))
    unknown: list[str] = []
    known_flags: list[str] = []

    def parse_flags(parser: argparse.ArgumentParser) -> None:
        # The value of an unknown flag may be a word of its own. Only flags are reported, if there
        # are any.
        unparsed = parser.parse_known_args(flags)[1]
        words = [word for word in unparsed if word.startswith("-")] or unparsed
        unknown.extend(
            word for word in words if not (has_server and _JOB_SERVER_FLAG.fullmatch(word))
        )
        known_flags.extend(re.findall(r"--\w+", parser.format_help()))

    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr), silence_beam_logging():
            PipelineOptions(flags).get_all_options(add_extra_args_fn=parse_flags)
    except SystemExit:  # argparse exits if a value is invalid, after printing why
        raise UsageError(stderr.getvalue().rpartition("error: ")[2].strip()) from None
    if unknown:
        raise UsageError(
            f"unknown option {' '.join(unknown)}: neither recordmill nor Apache Beam has "
            f"it{_suggest_flags(unknown, dict.fromkeys(known_flags))}"
        )


def _suggest_flags(unknown: Sequence[str], beam_flags: Iterable[str] = ()) -> str:
    """Returns a hint about unknown flags for the end of a message."""
    own_flags = [
        flag
        for name in ("build", "read")
        for own_option in CALLS[name].flags
        for flag in own_option.all_flags
    ]
    return explain_unknown_flags(unknown, "build", [*own_flags, *beam_flags])


def check_runner_name(runner: str) -> None:
    """Raises UsageError if there is no such runner, or its class can't be imported.

    A runner is a name that Beam knows, or the import path of a class.
    """
    from apache_beam.options.pipeline_options import StandardOptions
    from apache_beam.runners.runner import create_runner

    try:
        create_runner(runner)
    except (ImportError, AttributeError, TypeError) as error:
        raise UsageError(
            "{runner}: can't be imported: {error}", runner=option("runner", runner), error=error
        ) from None
    except ValueError:
        raise UsageError(
            "{runner}: {known_runners}",
            runner=option("runner", runner),
            known_runners=available_names(runner, StandardOptions.KNOWN_RUNNER_NAMES),
        ) from None
