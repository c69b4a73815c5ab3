"""Running a Beam pipeline in this process, in a thread of its own: of the command itself, or of a worker of an engine
that has a small one to run.

Beam's FnApiRunner is named directly: `DirectRunner` would first try to download Prism, and run a job that failed there
a second time. Imported only when a pipeline runs, since apache_beam takes seconds to import.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from recordmill.base.progress import Progress, registered_progress
from recordmill.base.threads import shared_context

if TYPE_CHECKING:
    from recordmill.transforms.beam_types import Pipeline

_is_own_pipeline: ContextVar[bool] = ContextVar(
    "ours", default=False
)  # whether the pipeline at hand is made here
_MAX_STOP_WAIT_SEC = 7  # with code that hears of no stop: TensorFlow's executor, a function of the user's that sleeps


@contextlib.contextmanager
def mark_own_pipelines() -> Iterator[None]:
    """The pipelines that this thread makes meanwhile are recordmill's own, not a notebook cell's."""
    with _configured_beam():
        token = _is_own_pipeline.set(True)
        try:
            yield
        finally:
            _is_own_pipeline.reset(token)


def run_locally(
    construct: Callable[[Pipeline], None], beam_args: Sequence[str], name: str, progress: Progress
) -> None:
    """Runs the pipeline that `construct(pipeline)` makes to its end in this process, whose threads find `progress` by
    `name`; raises what a stage raised, itself. After KeyboardInterrupt every thread has ended, but those that code
    holds which can't be interrupted: what they find when it ends is that they are to stop.
    """
    with silence_beam_logging():
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    options = PipelineOptions(list(beam_args))
    options.view_as(SetupOptions).save_main_session = False
    failure: list[BaseException] = []
    is_ended = threading.Event()

    def run_pipeline() -> None:
        _is_own_pipeline.set(True)
        try:
            with registered_progress(name, progress):
                pipeline = beam.Pipeline(runner=FnApiRunner(), options=options)
                construct(pipeline)
                pipeline.run().wait_until_finish()
        except BaseException as error:
            failure.append(error)
        finally:
            is_ended.set()

    with _configured_beam():
        # The pipeline runs in a thread of its own: this one stays free to receive Ctrl-C, which the runner's threads
        # would not. It is waited for by an event: a join that Ctrl-C interrupts takes the thread for ended (CPython
        # before 3.13), and it goes on writing.
        try:
            threading.Thread(target=run_pipeline, name="recordmill-pipeline", daemon=True).start()
            while not is_ended.wait(0.2):
                pass
        except BaseException:
            progress.cancel()
            deadline = time.monotonic() + _MAX_STOP_WAIT_SEC
            while not is_ended.wait(0.2) and (
                progress.is_committing or time.monotonic() < deadline
            ):
                pass
            raise
    if failure:
        raise failure[0] if progress.error is None else progress.error


@shared_context
def _configured_beam() -> Iterator[None]:
    """Beam as pipelines made here need it, and as it was before once the last of them has ended."""
    with silence_beam_logging(), _skip_notebook_lookup():
        yield


@shared_context
def silence_beam_logging() -> Iterator[None]:
    """Beam logs nothing, by its own logger or by none: of a failed stage it would be a traceback of what is raised
    anyway, and when it is imported that clients of BigQuery are missing. What others log is not touched.
    """

    def is_not_beams(record: logging.LogRecord) -> bool:
        return "/apache_beam/" not in record.pathname

    logger, root = logging.getLogger("apache_beam"), logging.getLogger()
    level = logger.level
    # logging without a logger would add one to none, for good
    last_resort = None if root.handlers else logging.lastResort
    logger.setLevel(logging.CRITICAL)
    root.addFilter(is_not_beams)
    if last_resort is not None:
        root.addHandler(last_resort)
    try:
        yield
    finally:
        logger.setLevel(level)
        root.removeFilter(is_not_beams)
        if last_resort is not None:
            root.removeHandler(last_resort)


@contextlib.contextmanager
def _skip_notebook_lookup() -> Iterator[None]:
    """Keeps Beam from looking for the pipelines made here in the cells of a notebook.

    Where IPython runs, Beam looks for pipelines among the user's variables to put the cell's number into their labels;
    for that it imports `apache_beam.dataframe`, which fails with pandas 3 and takes seconds with others. It also leaves
    a pipeline's temporary folder there. Pipelines of the user's own are asked about as before.
    """
    from apache_beam import pipeline
    from apache_beam.utils import interactive_utils

    patched = [(module, module.is_in_ipython) for module in (interactive_utils, pipeline)]

    def is_in_ipython() -> bool:
        return not _is_own_pipeline.get() and bool(patched[0][1]())

    for module, _ in patched:
        module.is_in_ipython = is_in_ipython
    try:
        yield
    finally:
        for module, original in patched:
            module.is_in_ipython = original
