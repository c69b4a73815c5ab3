"""Running a Beam pipeline on whatever runner is named,
so that Ctrl-C works and the error that comes back is the one that was raised: in a thread here, or on an engine
(`remote`).

The default is Beam's FnApiRunner, named directly: `DirectRunner` would first try to download Prism, and run a job that
failed there a second time. Imported only when a pipeline runs, since apache_beam takes seconds to import.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING

from recordmill.base.errors import MissingExtraError
from recordmill.base.progress import Progress, job
from recordmill.pipelines.remote.flags import check_flags
from recordmill.pipelines.remote.submission import Submission, run_on_engine
from recordmill.shards.manifest import RUN_PREFIX

if TYPE_CHECKING:
    from recordmill.transforms.beam_types import Pipeline

_ours: ContextVar[bool] = ContextVar("ours", default=False)  # whether the pipeline at hand is made here
_asking = threading.Lock()

LOCAL_RUNNERS = ("directrunner", "direct", "fnapirunner", "fn_api")


def is_local(runner: str | None) -> bool:
    """Whether the runner is this process; its name is read as Beam reads it, whatever its case."""
    return runner is None or runner.lower() in LOCAL_RUNNERS


def check_runner(runner: str | None, beam_args: Sequence[str]) -> None:
    """That Beam is there and knows these flags, before anything is planned for it.

    Raises:
        MissingExtraError: apache_beam is not installed. UsageError: a Beam option is unknown, or its value can't be.
    """
    if not _has_beam():
        raise MissingExtraError("build" if runner is None else "--runner", "beam", "apache_beam")
    if beam_args:  # the flags themselves only Beam knows, which takes seconds to import
        from apache_beam.options.pipeline_options import PipelineOptions

        named = None if is_local(runner) else runner
        check_flags([*([] if named is None else [f"--runner={named}"]), *beam_args], named, PipelineOptions)


def _has_beam() -> bool:
    """Whether apache_beam is installed; nothing is imported."""
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
    _tell_cells_apart()
    if not is_local(runner):
        assert runner is not None
        folder = name if os.path.basename(name).startswith(RUN_PREFIX) else os.path.dirname(name)
        submission = Submission(runner, beam_args, _job_name(kind, folder), folder, detach)
        token = _ours.set(True)
        try:
            with job(name, progress):
                run_on_engine(construct, submission, progress)
        finally:
            _ours.reset(token)
        return
    _run_here(construct, beam_args, name, progress)


def _job_name(kind: str, folder: str) -> str:
    """`recordmill-build-flowers-3f2a1b`: of letters that every engine takes, and new for each run."""
    out = re.sub("[^a-z0-9]+", "-", os.path.basename(os.path.dirname(folder)).lower()).strip("-")[:24]
    run = os.path.basename(folder).removeprefix(RUN_PREFIX)
    return "-".join(part for part in ("recordmill", kind, out, run) if part)


def _run_here(construct: Callable[[Pipeline], None], beam_args: Sequence[str], name: str, progress: Progress) -> None:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    # its log of a failed stage is a traceback of what is raised below anyway
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    options = PipelineOptions(list(beam_args))
    options.view_as(SetupOptions).save_main_session = False
    failure: list[BaseException] = []
    ended = threading.Event()

    def work() -> None:
        _ours.set(True)
        try:
            pipeline = beam.Pipeline(runner=FnApiRunner(), options=options)
            construct(pipeline)
            pipeline.run().wait_until_finish()
        except BaseException as error:
            failure.append(error)
        finally:
            ended.set()

    with job(name, progress):
        # The pipeline runs in a thread of its own: this one stays free to receive Ctrl-C, which the runner's threads
        # would not. It is waited for by an event: a join that Ctrl-C interrupts takes the thread for ended (CPython
        # before 3.13), and it goes on writing.
        threading.Thread(target=work, name="recordmill-pipeline", daemon=True).start()
        try:
            while not ended.wait(0.2):
                pass
        except BaseException:
            progress.cancel()
            ended.wait()
            raise
    if failure:
        raise failure[0] if progress.error is None else progress.error


def _tell_cells_apart() -> None:
    """Tell Beam that the pipelines made here are not a notebook cell's, wherever they run.

    Where IPython runs, Beam looks for pipelines among the user's variables to put the cell's number into their labels;
    for that it imports `apache_beam.dataframe`, which fails with pandas 3 and takes seconds with others. It also leaves
    a pipeline's temporary folder behind there. Pipelines of the user's own are asked about as before.
    """
    from apache_beam import pipeline
    from apache_beam.utils import interactive_utils

    with _asking:
        asked = interactive_utils.is_in_ipython
        if getattr(asked, "by_recordmill", False):
            return

        def is_in_ipython() -> bool:
            return not _ours.get() and bool(asked())

        is_in_ipython.by_recordmill = True  # type: ignore[attr-defined]
        interactive_utils.is_in_ipython = pipeline.is_in_ipython = is_in_ipython
