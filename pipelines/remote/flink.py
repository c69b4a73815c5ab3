"""A Flink cluster by its REST interface: what is free, what a job does, and its end; and what is noted of an engine's
job in the folder of its run, `_run-<id>/job.json`, by which `status` finds it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from recordmill.base.errors import DataError
from recordmill.shards.dead_runs import JOB_NOTE_NAME
from recordmill.storage.json_fields import load_json

_TIMEOUT_SEC = 10.0
_MAX_ANSWER_BYTES = 16 << 20  # 16 MiB: the plan of a job of thousands of tasks is far below
_END_STATES = frozenset({"FINISHED", "FAILED", "CANCELED"})
_JOB_ID = re.compile("[0-9a-f]{32}")
_WAITING_STATES = frozenset({"CREATED", "SCHEDULED"})


class EngineGone(Exception):
    """The engine gave no answer, or none that can be understood. code: of HTTP, 0 where there was none."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Overview:
    """The resources of a cluster. slots, free: task slots. version: `1.19.3`. jobs: how many run."""

    task_managers: int
    slots: int
    free: int
    version: str
    jobs: int = 0


@dataclass(frozen=True)
class FlinkJob:
    """A job. state: Flink's own word. tasks: a state of its tasks to how many are in it."""

    id: str
    name: str
    state: str
    tasks: Mapping[str, int]

    @property
    def ended(self) -> bool:
        """True if nothing of it runs any more."""
        return self.state in _END_STATES

    @property
    def waits_for_slots(self) -> bool:
        """True if none of its tasks has been given a slot."""
        is_running = any(
            count for state, count in self.tasks.items() if state not in _WAITING_STATES
        )
        return not self.ended and not is_running

    @property
    def progress(self) -> str:
        """How far it is, for people: `12 of 40 tasks finished`, or `waits for slots`."""
        if self.waits_for_slots:
            return "waits for slots"
        return f"{self.tasks.get('FINISHED', 0)} of {sum(self.tasks.values())} tasks finished"


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _requires_flink(ask: _Method) -> _Method:
    """The same question; an answer that is none of Flink's is `EngineGone`, too."""

    @functools.wraps(ask)
    def wrapper(flink: Flink, *arguments: Any) -> Any:
        try:
            return ask(flink, *arguments)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise EngineGone(f"{flink.url} is no REST address of Flink") from None

    return wrapper  # type: ignore[return-value]


@dataclass(frozen=True)
class Flink:
    """A cluster. url: of its REST interface and its web page."""

    url: str

    @classmethod
    def of_master(cls, master: str | None) -> Flink | None:
        """The cluster that `--flink_master` names; None for one that lives inside the job server. A user and a password
        are left out: they are no part of a request, and the URL stands in messages.

        >>> Flink.of_master("host:8081"), Flink.of_master("https://me:secret@host/"), Flink.of_master("[auto]")
        (Flink(url='http://host:8081'), Flink(url='https://host'), None)
        """
        if not master or master.startswith("["):
            return None
        scheme, _, rest = (master if "://" in master else f"http://{master}").partition("://")
        return cls(f"{scheme}://{rest.rpartition('@')[2].rstrip('/')}")

    @_requires_flink
    def overview(self) -> Overview:
        """Returns what the cluster has and what of it is free; raises EngineGone if nobody answers."""
        answer = self._get("/overview")
        counts = [int(answer[name]) for name in ("taskmanagers", "slots-total", "slots-available")]
        return Overview(
            counts[0],
            counts[1],
            counts[2],
            str(answer.get("flink-version", "")),
            int(answer.get("jobs-running") or 0),
        )

    @_requires_flink
    def find_job(self, name: str) -> FlinkJob | None:
        """The youngest job of that name, or None."""
        jobs = [
            job for job in self._get("/jobs/overview").get("jobs", []) if job.get("name") == name
        ]
        if not jobs:
            return None
        return self.job(str(max(jobs, key=lambda job: job.get("start-time", 0))["jid"]))

    @_requires_flink
    def job(self, job_id: str) -> FlinkJob | None:
        """The job of that id; None if the cluster knows of none such."""
        if _JOB_ID.fullmatch(job_id) is None:
            return None
        try:
            answer = self._get(f"/jobs/{job_id}")
        except EngineGone as error:
            if error.code == 404:
                return None
            raise
        vertices = answer.get("vertices", [])
        tasks: Counter[str] = Counter()
        for vertex in vertices:
            tasks.update(
                {state: int(count) for state, count in (vertex.get("tasks") or {}).items() if count}
            )
        return FlinkJob(job_id, str(answer.get("name", "")), str(answer.get("state", "")), tasks)

    @_requires_flink
    def reason(self, job_id: str) -> str:
        """The whole text of what made a job fail; empty where Flink keeps none."""
        answer = self._get(f"/jobs/{job_id}/exceptions")
        entries = (answer.get("exceptionHistory") or {}).get("entries") or []
        texts = [
            str(answer.get("root-exception") or ""),
            *(str(entry.get("stacktrace") or "") for entry in entries),
        ]
        return "\n".join(dict.fromkeys(text for text in texts if text))

    def cancel(self, job_id: str) -> None:
        """Ask for a job's end; one that has ended is let be."""
        try:
            self._ask(f"/jobs/{job_id}?mode=cancel", "PATCH")
        except EngineGone as error:
            if error.code not in (404, 409):  # none such, or ended already
                raise

    def wait_until_ended(self, job_id: str, timeout_sec: float) -> FlinkJob | None:
        """The job when it has ended, None if it is not known any more; TimeoutError if it goes on."""
        started = time.monotonic()
        while True:
            job = self.job(job_id)
            if job is None or job.ended:
                return job
            if time.monotonic() - started > timeout_sec:
                raise TimeoutError(f"job {job_id} is still {job.state}")
            time.sleep(0.3)

    def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = json.loads(self._ask(path, "GET"))
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise EngineGone(f"{self.url}{path}: no answer of Flink's")
        return answer

    def _ask(self, path: str, method: str) -> bytes:
        # they take as long to import as everything else, and few commands have an engine
        import http.client
        import urllib.error
        import urllib.request

        if not self.url.startswith(("http://", "https://")):
            raise EngineGone(f"{self.url} is no http address")
        try:
            request = urllib.request.Request(self.url + path, method=method)
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SEC) as answer:
                return bytes(answer.read(_MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            error.close()
            raise EngineGone(f"{self.url}{path}: {error}", error.code) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise EngineGone(f"{self.url}{path}: {getattr(error, 'reason', error)}") from None


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

    @property
    def where(self) -> str:
        """The job, for people: its name, and where it can be looked at."""
        return f"{self.name}{f' on {self.page}' if self.url else ''}"

    @property
    def page(self) -> str:
        """The engine's page of the job, or of all jobs."""
        return (
            f"{self.url}/#/job/running/{self.job}"
            if self.url.startswith("http") and self.job
            else self.url
        )


def read_note(folder: str) -> JobNote | None:
    """The note in a run's folder; None if there is none that can be read."""
    with contextlib.suppress(OSError, DataError):
        note: JobNote = load_json(JobNote, f"{folder}/{JOB_NOTE_NAME}")
        return note
    return None
