"""Running a Beam pipeline on whatever runner is named,
so that Ctrl-C works and the error that comes back is the one that was raised: in a thread here
(`transforms.local_run`), or on an engine (`remote`); and which flags Beam and an engine's job server take. Beam is
imported only when a pipeline runs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from recordmill.base.errors import MissingExtraError, UsageError
from recordmill.base.option_names import available_names, option
from recordmill.base.progress import Progress, registered_progress
from recordmill.building.plan import BuildPlan
from recordmill.building.workers.shared_files import SHARED_VALUES_FOLDER, JobFolder, PlanHandle
from recordmill.options.commands import explain_unknown_flags, flags_of
from recordmill.options.option import is_local
from recordmill.pipelines.remote.submission import Submission, run_on_engine
from recordmill.shards.run import RunFolder
from recordmill.storage.folders import make_folder
from recordmill.storage.walk import RUN_PREFIX
from recordmill.transforms.local_run import mark_own_pipelines, run_locally, silence_beam_logging

if TYPE_CHECKING:
    from recordmill.transforms.beam_types import Pipeline

# flags that a job server alone knows: words with underscores
_JOB_SERVER_FLAG = re.compile(r"--(parallelism|[a-z0-9]+(_[a-z0-9]+)+)(=.*)?", re.DOTALL)


def check_runner(runner: str | None, beam_args: Sequence[str]) -> None:
    """Checks that Beam is installed and knows these flags, before anything is planned for it.

    Raises:
        MissingExtraError: apache_beam is not installed. UsageError: a Beam option is unknown, or its value can't be, or
            there is no such runner.
    """
    if not _has_beam():
        raise MissingExtraError(
            "build" if runner is None else option("runner"), "beam", "apache_beam"
        )
    if runner is not None and not is_local(runner):
        check_name(runner)
    if beam_args:
        engine_name = None if is_local(runner) else runner
        check_flags(
            [*([] if engine_name is None else [f"--runner={engine_name}"]), *beam_args], engine_name
        )


def make_plan_handle(plan: BuildPlan, beam_args: Sequence[str]) -> PlanHandle:
    """The plan as the stages of a job on this machine get it: in this process, unless Beam was told to have others."""
    if any("multi_processing" in arg for arg in beam_args):
        job_folder = JobFolder(os.path.dirname(plan.folder), RunFolder.attach(plan.folder).id)
        make_folder(job_folder.run_path(SHARED_VALUES_FOLDER), exist_ok=True)
        return job_folder.share_value("plan", plan)
    return plan.local_handle()


def _has_beam() -> bool:
    """Returns whether apache_beam is installed; nothing is imported."""
    try:
        return find_spec("apache_beam") is not None
    except ValueError:  # it was kept from being imported
        return False


def run_pipeline(
    construct: Callable[[Pipeline], None],
    runner: str | None,
    beam_args: Sequence[str],
    name: str,
    progress: Progress,
    *,
    kind: str = "build",
    detach: bool = False,
) -> None:
    """Build the graph with `construct(pipeline)` and run it to its end; `check_runner` has looked at the flags.

    name: the folder of the run, or a file in it, by which worker threads of this process find `progress`. kind: of
    job, for its name on an engine. detach: return when the engine has it.

    Raises:
        KeyboardInterrupt: the user stopped it; every thread has ended by then, and an engine's job is gone.
        MayBeRunning: it was stopped, and whether the engine's job is gone is not known.
        Exception: what a stage raised, itself where it ran in this process, else what the engine tells of it.
    """
    if not is_local(runner):
        assert runner is not None
        folder = name if os.path.basename(name).startswith(RUN_PREFIX) else os.path.dirname(name)
        submission = Submission(runner, beam_args, _job_name(kind, folder), folder, detach)
        with mark_own_pipelines(), registered_progress(name, progress):
            run_on_engine(construct, submission, progress)
        return
    run_locally(construct, beam_args, name, progress)


def _job_name(kind: str, folder: str) -> str:
    """`recordmill-build-flowers-3f2a1b`: of letters that every engine takes, and new for each run."""
    out = re.sub("[^a-z0-9]+", "-", os.path.basename(os.path.dirname(folder)).lower()).strip("-")[
        :24
    ]
    run = os.path.basename(folder).removeprefix(RUN_PREFIX)
    return "-".join(part for part in ("recordmill", kind, out, run) if part)


def as_flags(arguments: Sequence[str]) -> tuple[str, ...]:
    """The flags; UsageError for a text, whose letters would be taken for them.

    >>> as_flags(["--parallelism=2"])
    ('--parallelism=2',)
    """
    if isinstance(arguments, str):
        raise UsageError(f"beam_args is a text; give a list: beam_args={arguments.split()}")
    return tuple(arguments)


def check_flags(arguments: Sequence[str], runner: str | None) -> None:
    """Checks that somebody knows these flags: Beam passes over those that nobody knows. A job server of Flink or Spark
    has flags of its own, which it checks itself: words with underscores, and `--parallelism`.

    Raises:
        UsageError: a flag is unknown, or its value can't be.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    flags = [argument for argument in arguments if argument]
    has_server = any(engine in (runner or "").lower() for engine in ("flink", "spark", "portable"))
    unknown: list[str] = []
    known_flags: list[str] = []

    def look(parser: argparse.ArgumentParser) -> None:
        unparsed = parser.parse_known_args(flags)[1]
        words = [word for word in unparsed if word.startswith("-")] or unparsed
        unknown.extend(
            word for word in words if not (has_server and _JOB_SERVER_FLAG.fullmatch(word))
        )
        known_flags.extend(re.findall(r"--\w+", parser.format_help()))

    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr), silence_beam_logging():
            PipelineOptions(flags).get_all_options(add_extra_args_fn=look)
    except SystemExit:
        raise UsageError(stderr.getvalue().rpartition("error: ")[2].strip()) from None
    if unknown:
        own_flags = [
            flag
            for name in ("build", "read")
            for option in flags_of(name)
            for flag in option.all_flags
        ]
        suggestion = explain_unknown_flags(
            unknown, "build", [*own_flags, *dict.fromkeys(known_flags)]
        )
        raise UsageError(
            f"unknown option {' '.join(unknown)}: neither recordmill nor Apache Beam has it{suggestion}"
        )


def check_name(runner: str) -> None:
    """UsageError unless Beam has that runner, as it reads names, or it is a class that can be imported."""
    from apache_beam.options.pipeline_options import StandardOptions
    from apache_beam.runners.runner import create_runner

    try:
        create_runner(runner)
    except (ImportError, AttributeError, TypeError) as error:
        raise UsageError(f"--runner {runner}: can't be imported: {error}") from None
    except ValueError:
        raise UsageError(
            f"--runner {runner}: {available_names(runner, StandardOptions.KNOWN_RUNNER_NAMES)}"
        ) from None
