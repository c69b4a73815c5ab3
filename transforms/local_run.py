"""Runs a Beam pipeline in this process.

The process is either the command itself, or a worker of an engine that runs a small pipeline within
a task.

Beam's FnApiRunner is selected by its own name. `DirectRunner` would first try to download Prism,
and would run a failed job a second time. Beam is imported only when a pipeline runs, because
importing it takes seconds.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from recordmill.base.progress import Progress
from recordmill.base.threads import run_stoppable, shared_context

if TYPE_CHECKING:
    from recordmill.transforms.beam_types import Pipeline

# Whether the current thread or context runs a pipeline of recordmill, not of the user.
_is_own_pipeline: ContextVar[bool] = ContextVar("ours", default=False)


@contextlib.contextmanager
def mark_own_pipelines() -> Iterator[None]:
    """Marks pipelines that this thread creates inside of the `with` block as recordmill's own.

    In a notebook, Beam then does not search the cells for them, see `_skip_notebook_lookup`.
    """
    with _configured_beam():
        token = _is_own_pipeline.set(True)
        try:
            yield
        finally:
            _is_own_pipeline.reset(token)


def run_locally(
    construct: Callable[[Pipeline], None], beam_args: Sequence[str], progress: Progress
) -> None:
    """Runs a pipeline in this process, and waits until it ends or is stopped.

    Args:
        construct: Adds the stages to the pipeline.
        beam_args: Flags for Beam.
        progress: The progress of the job. It is cancelled after KeyboardInterrupt, and may contain
            the error of a stage.

    Raises:
        BaseException: The error that a stage has raised, and not one that Beam has made from it.
    """
    with silence_beam_logging():
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    options = PipelineOptions(list(beam_args))
    options.view_as(SetupOptions).save_main_session = False

    def run_pipeline() -> None:
        _is_own_pipeline.set(True)
        pipeline = beam.Pipeline(runner=FnApiRunner(), options=options)
        construct(pipeline)
        pipeline.run().wait_until_finish()

    with _configured_beam():
        run_stoppable(run_pipeline, progress)


@shared_context
def _configured_beam() -> Iterator[None]:
    """Configures Beam for our pipelines.

    The previous state is restored when the last of them has ended.
    """
    with silence_beam_logging(), _skip_notebook_lookup():
        yield


@shared_context
def silence_beam_logging() -> Iterator[None]:
    """Silences Beam's logging inside of the `with` block.

    Without this, Beam would log a second traceback for each error that we raise, and a warning
    about BigQuery on import. Log records of other packages are not affected.
    """

    def is_not_beams(record: logging.LogRecord) -> bool:
        return "/apache_beam/" not in record.pathname

    logger, root = logging.getLogger("apache_beam"), logging.getLogger()
    level = logger.level
    # If the root logger has no handler, logging to it would add one, permanently.
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
    """Prevents Beam from searching the cells of a notebook for our pipelines.

    Under IPython, Beam searches the user's variables for pipelines, to put the number of the cell
    into their labels. It imports `apache_beam.dataframe` for this. This import fails with pandas 3
    and takes seconds with other versions. Beam also leaves a temporary folder of the pipeline
    there. Beam still does all of this for the user's own pipelines.
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
