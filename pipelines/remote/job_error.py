"""Reduces what an engine says of a failed job to one sentence: the worker's own message. The whole text, which is a
Java trace with a Python trace in it, goes to a file, and nothing that Beam logs of the job to stderr.
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
from recordmill.base.option_names import option
from recordmill.base.threads import shared_context
from recordmill.storage.files import atomic_write, write_all
from recordmill.storage.folders import join, make_private_folder
from recordmill.transforms.local_run import silence_beam_logging

# the last line of a Python traceback: a dotted name that is an exception's, and its message
_RAISED = re.compile(
    r"^(?:[\w.]+: )?((?:\w+\.)*_?[A-Z]\w*(?:Error|Exception|Rejects|Conflict|Cancelled|Interrupt|Exit))(?:: (.*))?$"
)
_MISSING = re.compile(r"No module named '([\w.]+)'")
_STEP = re.compile(r" \[while running '[^']*'\]")
_OOM = re.compile(r"java\.lang\.OutOfMemoryError: ([^\n]*)")
_JAVA = re.compile(r"^(?:Caused by: )?(?:[a-z]\w*\.)+[A-Z]\w*: (.+)$", re.MULTILINE)
_OF_BEAM = re.compile(r"^Pipeline \S+ failed in state \w+: ")
_WORKER_OOM = f"a worker ran out of memory{{}}: give less {option('memory')}, fewer workers on a host, or larger hosts"
_SERVERS = (
    "FlinkJarJobServer",
    "PrismJobServer",
    "PrismRunner",
    "SparkJarJobServer",
)  # their output is logged so
_LONGEST, _MOST_LINES = 600, 5
_GOES_ON = re.compile(
    r"\s*(at |\.\.\. |Traceback|During handling|Caused by|File |raise )|(\w+\.)+[A-Z]"
)


class EngineError(RecordmillError):
    """A job failed on its engine; the message is a worker's own, and names the file with all that the engine said."""


def sentence(text: str) -> str:
    """The one line that says what went wrong.

    >>> trace = "SDK harness: Traceback (most recent call):\\n  File 'a.py'\\nrecordmill.base.errors.DataError: torn"
    >>> sentence(trace + "\\n at java.base")
    'torn'
    """
    text = _OF_BEAM.sub("", text)
    lines = [_STEP.sub("", line).rstrip() for line in text.splitlines()]
    found = [
        (match[1], _joined([match[2] or "", *_more(lines[at + 1 :])]))
        for at, line in enumerate(lines)
        if (match := _RAISED.match(line)) is not None and not line.startswith("Caused by")
    ]
    if (module := _MISSING.search(text)) is not None:
        name = module[1].split(".")[0]
        return f"the workers have no module {name!r}: install there what is installed here (docs/cluster.md, Workers)"
    if (memory := _OOM.search(text)) is not None and not found:
        return (
            f"a TaskManager ran out of memory ({memory[1].strip()}): give taskmanager.memory.process.size 5120m and "
            "taskmanager.memory.task.off-heap.size 768m"
        )
    # where one failed for another, the last one is told, and what recordmill says before what else comes of it
    for name, message in sorted(found, key=lambda one: one[0].startswith("recordmill."))[::-1]:
        kind = name.rpartition(".")[2]
        if kind in ("RuntimeError", "GeneratorExit") and not message:
            continue
        if kind.endswith("MemoryError"):
            return _WORKER_OOM.format(f" ({message})" if message else "")[:_LONGEST]
        ours = name.startswith("recordmill.") and message
        return message[:_LONGEST] if ours else f"{kind}: {message}"[:_LONGEST].rstrip(": ")
    told = _JAVA.findall(text)
    return (told[-1] if told else (lines[0] if lines else "it said nothing")).strip()[:_LONGEST]


def _more(lines: Sequence[str]) -> Iterator[str]:
    """Yields what follows the first line of a message, up to where Python or Java goes on."""
    for line in lines[:_MOST_LINES]:
        if not line.strip() or _GOES_ON.match(line):
            return
        yield line.strip()


def _joined(lines: Sequence[str]) -> str:
    """Lines of a message as one, with a full stop where the next begins a sentence.

    >>> _joined(["1 record was rejected:", "a.csv: line 5", "Mend it."])
    '1 record was rejected: a.csv: line 5. Mend it.'
    """
    text = ""
    for line in lines:
        stop = "." if text and text[-1] not in ".:;,!?(" and line[:1].isupper() else ""
        text = f"{text}{stop} {line}" if text else line
    return text.strip()


def save_text(text: str, name: str) -> str:
    """Write all that an engine said to a file of this user's own; gives its path."""
    path = join(make_private_folder("recordmill"), f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.txt")
    with atomic_write(path) as file:
        write_all(file, text.encode("utf-8", "replace"))
    return path


def error_sentence(text: str, name: str) -> EngineError:
    """The error of a job that failed, its text kept."""
    return EngineError(f"{sentence(text)} (all that the engine said: {save_text(text, name)})")


@shared_context
def quiet() -> Iterator[None]:
    """Beam logs an engine's whole trace, and its warnings of what it starts: not meanwhile, until the last of those
    who ask for it has ended. What others log in this process is not touched.
    """
    with _no_threads_of_grpc(), silence_beam_logging(), _no_log_of_servers():
        yield


@contextlib.contextmanager
def _no_log_of_servers() -> Iterator[None]:
    def nothing(record: logging.LogRecord) -> bool:
        return False

    for name in _SERVERS:
        logging.getLogger(name).addFilter(nothing)
    try:
        yield
    finally:
        for name in _SERVERS:
            logging.getLogger(name).removeFilter(nothing)


@contextlib.contextmanager
def _no_threads_of_grpc() -> Iterator[None]:
    """Hides the errors in threads of workers whose engine is gone."""
    hook = threading.excepthook

    def not_of_grpc(args: Any) -> None:
        if not str(getattr(args.exc_type, "__module__", "")).startswith("grpc"):
            hook(args)

    threading.excepthook = not_of_grpc
    try:
        yield
    finally:
        threading.excepthook = hook
