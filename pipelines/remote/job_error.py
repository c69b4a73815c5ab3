"""Reduction of an engine's error to the message of the failed worker.

An engine reports a Java trace that contains a Python trace. The complete text is saved to a file,
and Beam's own log of the job is suppressed.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from recordmill.base.errors import RecordmillError
from recordmill.base.messages import Message, shorten
from recordmill.base.option_names import option
from recordmill.base.threads import shared_context
from recordmill.storage.files import atomic_write, write_all
from recordmill.storage.folders import join, make_private_folder
from recordmill.transforms.local_run import silence_beam_logging

# the last line of a Python traceback: the dotted name of an exception, and its message
_EXCEPTION_LINE = re.compile(
    r"^(?:[\w.]+: )?((?:\w+\.)*_?[A-Z]\w*(?:Error|Exception|Rejects|Conflict|Cancelled|Interrupt|Exit))(?:: (.*))?$"
)
_MISSING = re.compile(r"No module named '([\w.]+)'")
# Beam adds the name of the step to the message of an error
_STEP = re.compile(r" \[while running '[^']*'\]")
_OOM = re.compile(r"java\.lang\.OutOfMemoryError: ([^\n]*)")
_JAVA = re.compile(r"^(?:Caused by: )?(?:[a-z]\w*\.)+[A-Z]\w*: (.+)$", re.MULTILINE)
_BEAM_PREFIX = re.compile(r"^Pipeline \S+ failed in state \w+: ")
_WORKER_OOM = (
    "a worker ran out of memory{details}: use less {memory}, fewer workers "
    "on a host, or larger hosts"
)
# loggers to which Beam writes the output of job servers
_JOB_SERVER_LOGGERS = (
    "FlinkJarJobServer",
    "PrismJobServer",
    "PrismRunner",
    "SparkJarJobServer",
)
_MAX_CHARACTERS = 600  # maximum length of the message of an EngineError
_MAX_LINES = 5  # maximum number of lines of a message after its first line
_TRACE_LINE = re.compile(
    r"\s*(at |\.\.\. |Traceback|During handling|Caused by|File |raise )|(\w+\.)+[A-Z]"
)


class EngineError(RecordmillError):
    """A job failed on its engine, or did not start there.

    If a worker failed, the text of the error summarizes the worker's error. It also names a file
    with the complete error text of the engine.
    """


def summarize_error(text: str) -> str:
    r"""Returns the one line of an engine's text that explains the failure.

    >>> trace = "SDK harness: Traceback:\n  File 'a.py'\nrecordmill.base.errors.DataError: torn"
    >>> summarize_error(trace + "\n at java.base")
    'torn'
    """
    text = _BEAM_PREFIX.sub("", text)
    lines = [_STEP.sub("", line).rstrip() for line in text.splitlines()]
    errors = [
        (match[1], _join_lines([match[2] or "", *_continuation_lines(lines[i + 1 :])]))
        for i, line in enumerate(lines)
        if (match := _EXCEPTION_LINE.match(line)) is not None and not line.startswith("Caused by")
    ]
    if (module := _MISSING.search(text)) is not None:
        name = module[1].split(".")[0]
        return (
            f"the workers have no module {name!r}: install the same packages there "
            "(docs/cluster.md, Workers)"
        )
    if (memory := _OOM.search(text)) is not None and not errors:
        return (
            f"a TaskManager ran out of memory ({memory[1].strip()}): set "
            "taskmanager.memory.process.size 5120m and "
            "taskmanager.memory.task.off-heap.size 768m"
        )
    # If one error caused another, the last one explains more. Errors of recordmill come before all
    # others, which are mostly their consequences.
    for name, message in sorted(errors, key=lambda error: error[0].startswith("recordmill."))[::-1]:
        kind = name.rpartition(".")[2]
        # Errors of these types only pass on another error.
        if kind in ("RuntimeError", "GeneratorExit") and not message:
            continue
        if kind.endswith("MemoryError"):
            details = f" ({message})" if message else ""
            return shorten(
                Message(_WORKER_OOM, details=details, memory=option("memory")), _MAX_CHARACTERS
            )
        is_own = name.startswith("recordmill.") and message
        return (
            message[:_MAX_CHARACTERS]
            if is_own
            else f"{kind}: {message}"[:_MAX_CHARACTERS].rstrip(": ")
        )
    java_errors = _JAVA.findall(text)
    return (
        java_errors[-1] if java_errors else (lines[0] if lines else ("the engine gave no reason"))
    ).strip()[:_MAX_CHARACTERS]


def _continuation_lines(lines: Sequence[str]) -> Iterator[str]:
    """Yields the lines of a message, up to the next line of a trace."""
    for line in lines[:_MAX_LINES]:
        if not line.strip() or _TRACE_LINE.match(line):
            return
        yield line.strip()


def _join_lines(lines: Sequence[str]) -> str:
    """Joins the lines of a message, and ends each sentence with a full stop.

    >>> _join_lines(["1 record was rejected:", "a.csv: line 5", "Mend it."])
    '1 record was rejected: a.csv: line 5. Mend it.'
    """
    text = ""
    for line in lines:
        stop = "." if text and text[-1] not in ".:;,!?(" and line[:1].isupper() else ""
        text = f"{text}{stop} {line}" if text else line
    return text.strip()


def save_text(text: str, name: str) -> str:
    """Saves a text to a file that only this user can read.

    Returns:
        The path.
    """
    path = join(make_private_folder("recordmill"), f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.txt")
    with atomic_write(path) as file:
        write_all(file, text.encode("utf-8", "replace"))
    return path


def make_engine_error(text: str, name: str) -> EngineError:
    """Returns the error of a failed job, after saving the complete text."""
    return EngineError(
        "{summary} (complete output of the engine: {path})",
        summary=summarize_error(text),
        path=save_text(text, name),
    )


@shared_context
def silence_engine_logs() -> Iterator[None]:
    """Suppresses Beam's log of an engine inside the `with` block.

    The log contains complete traces, and warnings of job servers. Several threads may use this at
    once. Then the log returns when the last block ends. Logs of other libraries are not affected.
    """
    with _hide_grpc_thread_errors(), silence_beam_logging(), _silence_job_servers():
        yield


@contextlib.contextmanager
def _silence_job_servers() -> Iterator[None]:
    def drop_record(record: logging.LogRecord) -> bool:
        return False

    for name in _JOB_SERVER_LOGGERS:
        logging.getLogger(name).addFilter(drop_record)
    try:
        yield
    finally:
        for name in _JOB_SERVER_LOGGERS:
            logging.getLogger(name).removeFilter(drop_record)


@contextlib.contextmanager
def _hide_grpc_thread_errors() -> Iterator[None]:
    """Hides errors of gRPC threads inside a `with` block.

    Without this, Python prints the trace of each thread that has lost its engine.
    """
    hook = threading.excepthook

    def hide_grpc_errors(args: Any) -> None:
        if not str(getattr(args.exc_type, "__module__", "")).startswith("grpc"):
            hook(args)

    threading.excepthook = hide_grpc_errors
    try:
        yield
    finally:
        threading.excepthook = hook
