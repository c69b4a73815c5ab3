"""What is noted of an engine's job in the folder of its run, `_run-<id>/job.json`, so that others can tell whether
the run is alive although the process that started it is gone.

The note is asked about only where its file is this user's own: whoever else can write to OUT must not choose whom
this machine asks.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from recordmill.base.errors import DataError
from recordmill.engines.flink import EngineGone, Flink
from recordmill.storage.strict_json import Fields, load_fields

JOB_NAME = "job.json"
RUNNING, ENDED, UNKNOWN = "running", "ended", "unknown"
UNHEARD_SEC = 24 * 3600  # a day: a job that nobody can be asked about is alive so long after anything was written


@dataclass(frozen=True)
class JobNote:
    """A job. runner: Beam's name of it. name: of the job, our own. url: of the engine's REST interface, or of its job
    server. job: the engine's own id, empty as long as it is not known. detached: nobody waits for its end.
    """

    runner: str
    name: str
    url: str = ""
    job: str = ""
    started: float = 0.0
    detached: bool = False

    def to_json(self) -> bytes:
        """The note as it is written."""
        return json.dumps({**asdict(self), "started": self.started or time.time()}).encode()

    @classmethod
    def from_fields(cls, found: Fields) -> JobNote:
        """The note that was read; DataError if it is none."""
        texts = {name: found.text(name) for name in ("runner", "name", "url", "job")}
        started: Any = found.value.get("started", 0.0)
        if isinstance(started, bool) or not isinstance(started, int | float):
            raise DataError("'started' is no time", source=JOB_NAME)
        return cls(**texts, started=float(started), detached=found.value.get("detached") is True)

    @property
    def where(self) -> str:
        """The job, for people: its name, and where it can be looked at."""
        return f"{self.name}{f' on {self.page}' if self.url else ''}"

    @property
    def page(self) -> str:
        """The engine's page of the job, or of all jobs."""
        return f"{self.url}/#/job/running/{self.job}" if self.url.startswith("http") and self.job else self.url


def read_note(folder: int | str) -> JobNote | None:
    """The note in a run's folder, given as a descriptor or a path; None if there is none that can be read."""
    with contextlib.suppress(OSError, DataError):
        if isinstance(folder, int):
            return JobNote.from_fields(load_fields(JOB_NAME, dir_fd=folder))
        return JobNote.from_fields(load_fields(f"{folder}/{JOB_NAME}"))
    return None


def state_of(note: JobNote) -> str:
    """RUNNING, ENDED, or UNKNOWN where the engine can't be asked. Only Flink can: others have no interface that
    outlives the process which submitted the job.
    """
    flink = Flink.of_master(note.url) if note.url.startswith("http") else None
    if flink is None:
        return UNKNOWN
    try:
        job = flink.job(note.job) if note.job else flink.named(note.name)
        if job is not None:
            return ENDED if job.ended else RUNNING
        flink.overview()  # it answers, and knows nothing of the job
    except (EngineGone, AttributeError, KeyError, TypeError, ValueError):
        return UNKNOWN
    # a job that was about to be submitted when its note was written may still come
    return ENDED if note.job or time.time() - note.started > 600 else UNKNOWN
