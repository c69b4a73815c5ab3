"""Beam without its words: what it logs of a job goes into the file of the job's error, and not to stderr, where one
sentence says what is wrong.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

from recordmill.base.threads import shared_context
from recordmill.transforms.local_run import no_log_of_beam

_SERVERS = ("FlinkJarJobServer", "PrismJobServer", "PrismRunner", "SparkJarJobServer")  # their output is logged so


@shared_context
def quiet() -> Iterator[None]:
    """Beam logs an engine's whole trace, and its warnings of what it starts: not meanwhile, until the last of those
    who ask for it has ended. What others log in this process is not touched.
    """
    with _no_threads_of_grpc(), _with_handler(), _without_logs_of_beam():
        yield


@contextlib.contextmanager
def _without_logs_of_beam() -> Iterator[None]:
    import apache_beam

    beam = os.path.dirname(apache_beam.__file__)

    def is_others(record: logging.LogRecord) -> bool:  # Beam logs some of it without a logger of its own
        return not record.pathname.startswith(beam)

    def nothing(record: logging.LogRecord) -> bool:
        return False

    filters = [(logging.getLogger(), is_others), *((logging.getLogger(name), nothing) for name in _SERVERS)]
    with no_log_of_beam():
        for logger, keeps in filters:
            logger.addFilter(keeps)
        try:
            yield
        finally:
            for logger, keeps in filters:
                logger.removeFilter(keeps)


@contextlib.contextmanager
def _with_handler() -> Iterator[None]:
    """Where there is no handler, logging without a logger adds one of its own, for good."""
    root = logging.getLogger()
    if root.handlers or logging.lastResort is None:
        yield
        return
    handler = logging.lastResort
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


@contextlib.contextmanager
def _no_threads_of_grpc() -> Iterator[None]:
    """Of the errors in threads of workers whose engine is gone."""
    hook = threading.excepthook

    def not_of_grpc(args: Any) -> None:
        if not str(getattr(args.exc_type, "__module__", "")).startswith("grpc"):
            hook(args)

    threading.excepthook = not_of_grpc
    try:
        yield
    finally:
        threading.excepthook = hook
