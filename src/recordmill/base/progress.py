"""Progress of long work, and requests to stop it.

Worker threads add to the counters of a `Progress`, and one display reads them. The counters are
only shown. The record counts that decide about a commit travel with the data.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from recordmill.base.errors import RecordmillError, UsageError
from recordmill.base.local_value import LocalValue


class RunCancelled(RecordmillError):
    """The user stopped the run, and no output is kept."""


@dataclass(frozen=True)
class ProgressUpdate:
    """The progress of a build, a read or a check.

    A function that is passed as `progress` receives an update about five times a second.

    Attributes:
        phase: The current phase. A build has "plan", "parse" (with `parser`), "classes",
            "preflight", "fit", "read" and "write". A read has "plan", "preflight", "resume" and
            "convert". `verify` has "verify", and everything else that reads has "convert".
        done: Number of records or files of this phase so far. 0 while an engine counts them.
        total: Number of records or files of the phase, or None if it is unknown.
        unit: The unit of `done` and `total`: "records", or "files" in the phase "parse".
        text: The line that a terminal shows. It contains the rate and the time left, or the message
            of an engine.
    """

    phase: str
    done: int
    total: int | None
    unit: str
    text: str


class Progress:
    """Counters of one run, safe to use from several threads.

    Steps of a Beam pipeline receive it as an argument, which Beam pickles. In this process the copy
    is the same object. In another process, such as a worker of an engine, it has new counters that
    nothing displays.

    Args:
        on_update: A function that receives the progress, from a thread of the display
            (`base.display`). An error that it raises ends the run.

    Attributes:
        activity: A text about other work of this process, such as "decompressing a.tar.gz", or "".
            All runs of the process share it.
        stage: Name of the current stage.
        total: Number of records or files of the stage, or None if it is unknown.
        unit: The unit of `total` and `records`, "records" or "files".
        records: Records or files of the stage so far.
        rejects: Rejects of the run so far.
        engine_text: The status of the engine, if it does the work in other processes, else "".
        error: The first error that a thread reported with `fail`.
        is_committing: The commit has begun, so a request to stop comes too late.
    """

    activity = ""  # a class attribute, because all runs of the process share it

    def __init__(self, on_update: Callable[[ProgressUpdate], object] | None = None) -> None:
        self.on_update = on_update
        self._lock = threading.Lock()
        self._stop_requested = threading.Event()
        self.is_committing = False
        self.stage = "plan"
        self.total: int | None = None
        self.unit = "records"
        self.records = 0
        self.rejects = 0
        self.stage_started = time.monotonic()
        self.error: BaseException | None = None
        self.engine_text = ""

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickle, (LocalValue.of(self),)

    def begin(self, stage: str, total: int | None = None, unit: str = "records") -> None:
        """Starts a stage with fresh counters.

        Another call for the same stage has no effect.
        """
        with self._lock:
            if self.stage != stage:
                self.stage, self.total, self.records = stage, total, 0
                self.unit = unit
                self.stage_started = time.monotonic()

    def advance(self, records: int = 0, rejects: int = 0) -> None:
        """Adds finished work to the counters.

        Raises:
            RunCancelled: The run was stopped.
        """
        if self._stop_requested.is_set():
            raise RunCancelled("stopped; nothing was written")
        with self._lock:
            self.records += records
            self.rejects += rejects

    def begin_commit(self) -> None:
        """Marks the start of the commit. Later the run can't be stopped.

        Before this call, `cancel` stops the run and no output appears. After it, the caller
        completes the commit.

        Raises:
            RunCancelled: The run was stopped before this call. The commit must not start.
        """
        # `cancel` takes the same lock, so a run that was stopped before never starts to commit.
        with self._lock:
            if not self._stop_requested.is_set():
                self.is_committing = True
        self.advance()

    def cancel(self) -> None:
        """Makes the next call of `advance` raise RunCancelled, in all threads."""
        with self._lock:
            self._stop_requested.set()

    def fail(self, error: BaseException) -> None:
        """Stores the exception of a worker thread, and asks all other threads to stop.

        The caller of the run can then raise the original exception from `error`. A Beam runner
        would only report its text. Exceptions after the first one are ignored.
        """
        with self._lock:
            if self.error is None:
                self.error = error
        self._stop_requested.set()


def _unpickle(handle: LocalValue[Progress]) -> Progress:
    progress = handle.find()
    return Progress() if progress is None else progress


# the `progress` argument of public functions
ProgressArgument = Progress | Callable[[ProgressUpdate], object] | None


def to_progress(progress: ProgressArgument) -> Progress:
    """Returns the counters for a `progress` argument of a public function.

    Args:
        progress: A Progress, which is returned as it is, or a function for updates, or None.

    Raises:
        UsageError: The argument is not a function.
    """
    if not (progress is None or isinstance(progress, Progress) or callable(progress)):
        raise UsageError(
            f"progress is {progress!r}; give a function of a recordmill.ProgressUpdate, such as print"
        )
    return progress if isinstance(progress, Progress) else Progress(progress)
