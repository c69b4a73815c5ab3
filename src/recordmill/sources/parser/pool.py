"""Worker processes that parse files with the user's function."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.sources.parser.function import ParserFunction

# A new interpreter, because a forked process of a program with threads can hang.
_WORKER_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from recordmill.sources.parser.worker import main; main()"
)
# Libraries such as OpenBLAS start a thread for each core, and their threads spin while they wait.
# With a worker for each core, matrix products took 20 times the processor time on a busy machine.
_WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
# The fields of a `ParserFunction` that a worker gets.
_SENT_FIELDS = ("name", "reference", "pickled", "digest", "source")

_log = logging.getLogger(__name__)


class WorkerDied(Exception):
    """A worker process ended while it parsed a file. The text describes its end."""


class WorkerPool:
    """Worker processes for the user's function. Each starts when it is first needed.

    Args:
        function: The user's function.
        logs_output: Whether the output that the function prints is logged, line by line. Otherwise
            it goes to standard error.
    """

    def __init__(self, function: ParserFunction, *, logs_output: bool = False) -> None:
        self._function = function
        self._logs_output = logs_output
        self._idle = queue.SimpleQueue[_Worker]()
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._is_closed = False

    def parse(self, path: str, prefix: str) -> dict[str, Any]:
        """Parses a file in an idle worker, or in a new one.

        Any number of threads can call this at the same time.

        Args:
            path: Path of a local file.
            prefix: Start of the paths of the Arrow files to write.

        Returns:
            The answer of the worker, see `worker.py`.

        Raises:
            WorkerDied: The process ended, or `close` was called.
            UsageError: The function can't be loaded.
        """
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            worker = self._start()
        answer = worker.ask({"path": path, "prefix": prefix})
        self._idle.put(worker)
        return answer

    def _start(self) -> _Worker:
        with self._lock:
            if self._is_closed:
                raise WorkerDied("was stopped")
            worker = _Worker(self._logs_output)
            self._workers.append(worker)
        fields = {field: getattr(self._function, field) for field in _SENT_FIELDS}
        answer = worker.ask(fields)
        if "error" in answer:
            raise UsageError(
                "{parser}: {error}",
                parser=option("parser", self._function.name),
                error=answer["error"],
            )
        return worker

    def close(self) -> None:
        """Kills all processes, even while they parse a file."""
        with self._lock:
            self._is_closed = True
        for worker in self._workers:
            worker.kill()


class _Worker:
    def __init__(self, logs_output: bool) -> None:
        # A session of its own, so that Ctrl-C stops this process first, which then ends the worker.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER_CODE, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if logs_output else None,
            start_new_session=True,
            env=_WORKER_ENVIRONMENT | os.environ,
            text=True,
            encoding="utf-8",
            errors="backslashreplace",
        )
        if logs_output:
            threading.Thread(target=self._log_output, daemon=True).start()

    def _log_output(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            _log.info("%s", line.rstrip())

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            # a process that has already ended keeps its exit code
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)
            self.kill()
            raise WorkerDied(_describe_end(self._process.returncode))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _describe_end(exit_code: int) -> str:
    """Returns how a process has ended.

    >>> _describe_end(-9)
    'its process was killed by SIGKILL, maybe because the memory was full'
    >>> _describe_end(3)
    'its process ended with exit code 3'
    """
    if exit_code >= 0:
        return f"its process ended with exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    reason = ", maybe because the memory was full" if name == "SIGKILL" else ""
    return f"its process was killed by {name}{reason}"
