"""Running a Beam pipeline on whatever runner is named,
so that Ctrl-C works and the error that comes back is the one that was raised.

The default is Beam's FnApiRunner, named directly: `DirectRunner` would first try to download Prism, and run a job that
failed there a second time. Imported only when a pipeline runs, since apache_beam takes seconds to import.
"""

from __future__ import annotations

import argparse
import logging
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from recordmill.base.errors import MissingExtraError, UsageError
from recordmill.base.people.nearest import did_you_mean
from recordmill.base.progress import Progress, job
from recordmill.pipelines.options.commands import flags_of

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

        _check_arguments([*([] if is_local(runner) else [f"--runner={runner}"]), *beam_args], PipelineOptions)


def _has_beam() -> bool:
    """Whether apache_beam is installed; nothing is imported."""
    try:
        return find_spec("apache_beam") is not None
    except ValueError:  # it was kept from being imported
        return False


def run_pipeline(
    construct: Callable[[Pipeline], None], runner: str | None, beam_args: Sequence[str], name: str, progress: Progress
) -> None:
    """Build the graph with `construct(pipeline)` and run it to its end; `check_runner` has looked at the flags.

    name: by which worker threads of this process find `progress`.

    Raises:
        KeyboardInterrupt: the user stopped it; every thread has ended by then.
        Exception: what a stage raised, itself where it ran in this process, else as the runner tells it.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    # Its log of a failed stage is a traceback of what is raised below anyway; on engines it is all there is.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL if is_local(runner) else logging.WARNING)
    arguments = list(beam_args) if is_local(runner) else [f"--runner={runner}", *beam_args]
    _tell_cells_apart()
    options = PipelineOptions(arguments)
    options.view_as(SetupOptions).save_main_session = False
    failure: list[BaseException] = []
    ended = threading.Event()

    def work() -> None:
        _ours.set(True)
        try:
            pipeline = beam.Pipeline(runner=FnApiRunner() if is_local(runner) else None, options=options)
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


class _Options(Protocol):
    """A class of Beam's options, which adds its flags to a parser."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None: ...


def _check_arguments(arguments: Sequence[str], options: type[_Options]) -> None:
    """Beam warns of unknown flags and goes on;
    a mistyped flag, or an INPUT that slipped in behind one, must not pass.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    for known in options.__subclasses__():
        if known.__module__.startswith("apache_beam"):
            known._add_argparse_args(parser)
    _, unknown = parser.parse_known_args([argument for argument in arguments if argument])
    if unknown:
        flag = unknown[0].partition("=")[0]
        beams = [word for action in parser._actions for word in action.option_strings]
        own = {word: name for name in ("build", "read") for option in flags_of(name) for word in option.all_flags}
        whose = f"; {flag} is an option of `recordmill {own[flag]}`" if flag in own else ""
        meant = whose or did_you_mean(flag, [*own, *beams])
        raise UsageError(f"unknown option {' '.join(unknown)}: neither recordmill nor Apache Beam has it{meant}")


class _Parser(argparse.ArgumentParser):
    """Lets two option classes define the same flag, as Beam's own do, and raises what is wrong."""

    def add_argument(self, *names: Any, **settings: Any) -> Any:
        try:
            return super().add_argument(*names, **settings)
        except argparse.ArgumentError:
            return None

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)
