"""Progress of long work, and requests to stop it: counters that worker threads add to and one display reads.

Work that may run in another process (a Beam worker) asks for the `Progress` of its job by name and gets a silent one
there, so the same code runs everywhere. These counters are for people; accounts that decide a commit travel with the
data.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from recordmill.base.errors import RecordmillError, UsageError


class RunCancelled(RecordmillError):
    """The user stopped the job; nothing of it is kept."""


@dataclass(frozen=True)
class ProgressUpdate:
    """How far a build, a read or a check is: what a function given as `progress` is called with, about five times a
    second.

    Attributes:
        phase: One of "plan", "classes", "preflight", "fit", "read" and "write" of a build; "plan", "preflight",
            "resume" and "convert" of a read; "verify" of `verify`, "convert" of what else reads.
        done: Records of this phase so far; 0 where an engine counts them.
        total: How many it will have; None: unknown.
        unit: What is counted: "records".
        text: The line that a terminal shows: with the rate, the time left, or what an engine says.
    """

    phase: str
    done: int
    total: int | None
    unit: str
    text: str


class Progress:
    """One job's counters: its stage, how many records it will have (None: unknown), and how many it has.

    on_update: is shown them (`base.display`), from a thread of its own; what it raises ends the job.
    """

    activity = ""  # of the process, for all jobs: what takes its time beside what they count

    def __init__(self, on_update: Callable[[ProgressUpdate], object] | None = None) -> None:
        self.on_update = on_update
        self._lock = threading.Lock()
        self._stop_requested = threading.Event()
        self.is_committing = False
        self.stage = "plan"
        self.total: int | None = None
        self.records = 0
        self.rejects = 0
        self.bytes = 0
        self.stage_started = time.monotonic()
        self.error: BaseException | None = None
        self.engine_text = ""  # what an engine does, where the counters are not in this process

    def begin(self, stage: str, total: int | None = None) -> None:
        """Starts a stage of the job with fresh counters; repeated calls for the same stage change nothing."""
        with self._lock:
            if self.stage != stage:
                self.stage, self.total, self.records, self.bytes = stage, total, 0, 0
                self.stage_started = time.monotonic()

    def advance(self, records: int = 0, rejects: int = 0, bytes: int = 0) -> None:
        """Adds work done; raises RunCancelled if the job is to stop."""
        if self._stop_requested.is_set():
            raise RunCancelled("stopped; nothing was written")
        with self._lock:
            self.records += records
            self.rejects += rejects
            self.bytes += bytes

    def begin_commit(self) -> None:
        """The last moment at which a job that was stopped leaves nothing: raises RunCancelled if it is to stop, and what
        follows is waited for.
        """
        with self._lock:
            if not self._stop_requested.is_set():
                self.is_committing = True
        self.advance()

    def cancel(self) -> None:
        """Makes the next `advance` of every thread raise."""
        with self._lock:
            self._stop_requested.set()

    def fail(self, error: BaseException) -> None:
        """Keeps the first error, which a runner would turn into text, and stops the other threads."""
        with self._lock:
            if self.error is None:
                self.error = error
        self._stop_requested.set()


# what functions take as `progress`
ProgressArgument = Progress | Callable[[ProgressUpdate], object] | None


def to_progress(progress: ProgressArgument) -> Progress:
    """The counters that were given, or those that a function is shown.

    Raises:
        UsageError: it is no function.
    """
    if not (progress is None or isinstance(progress, Progress) or callable(progress)):
        raise UsageError(
            f"progress is {progress!r}; give a function of a recordmill.ProgressUpdate, such as print"
        )
    return progress if isinstance(progress, Progress) else Progress(progress)


_registered: dict[str, Progress] = {}


@contextmanager
def registered_progress(name: str, progress: Progress) -> Iterator[Progress]:
    """Makes the progress known by name in this process while the job runs."""
    _registered[name] = progress
    try:
        yield progress
    finally:
        del _registered[name]


def find_progress(name: str) -> Progress:
    """The progress of a job of this process, or a silent one."""
    return _registered.get(name) or Progress()
