"""A client of Flink's REST interface, and notes about jobs.

A note is the file `_run-<id>/job.json` in the run folder. `status` finds a job with the help of its
note.
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

_TIMEOUT_SEC = 10.0  # the most time for one request
_MAX_ANSWER_BYTES = 16 << 20  # 16 MiB: far above the answer about a job with thousands of tasks
_END_STATES = frozenset({"FINISHED", "FAILED", "CANCELED"})
_JOB_ID = re.compile("[0-9a-f]{32}")
_WAITING_STATES = frozenset({"CREATED", "SCHEDULED"})


class EngineGone(Exception):
    """The engine did not answer, or its answer has an unknown form.

    Attributes:
        code: The HTTP status, or 0 without an answer.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Overview:
    """The resources of a cluster.

    Attributes:
        task_managers: The number of TaskManagers.
        slots: The number of task slots.
        free: The number of free task slots.
        version: The version of Flink, such as `1.19.3`.
        jobs: The number of running jobs.
    """

    task_managers: int
    slots: int
    free: int
    version: str
    jobs: int = 0


@dataclass(frozen=True)
class FlinkJob:
    """A job of Flink.

    Attributes:
        id: Flink's id of the job.
        name: The name of the job, which the submitter has chosen.
        state: Flink's word for its state, such as RUNNING.
        tasks: The number of its tasks by state.
    """

    id: str
    name: str
    state: str
    tasks: Mapping[str, int]

    @property
    def has_ended(self) -> bool:
        """True if no part of the job runs any more."""
        return self.state in _END_STATES

    @property
    def waits_for_slots(self) -> bool:
        """True if no task of the job has a slot yet."""
        is_running = any(
            count for state, count in self.tasks.items() if state not in _WAITING_STATES
        )
        return not self.has_ended and not is_running

    @property
    def progress(self) -> str:
        """A readable progress: `12 of 40 tasks finished`, or `waits for slots`."""
        if self.waits_for_slots:
            return "waits for slots"
        return f"{self.tasks.get('FINISHED', 0)} of {sum(self.tasks.values())} tasks finished"


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _requires_flink(method: _Method) -> _Method:
    """Makes a method raise EngineGone if the answer is from another kind of server."""

    @functools.wraps(method)
    def wrapper(flink: Flink, *arguments: Any) -> Any:
        try:
            return method(flink, *arguments)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise EngineGone(f"{flink.url} is not a REST address of Flink") from None

    return wrapper  # type: ignore[return-value]


@dataclass(frozen=True)
class Flink:
    """A Flink cluster.

    Attributes:
        url: The address of its REST interface and web page.
    """

    url: str

    @classmethod
    def from_master(cls, master: str | None) -> Flink | None:
        """Returns the cluster that `--flink_master` names.

        A user name and password are removed, because the URL appears in messages and requests do
        not need them.

        Returns:
            The cluster. None if the job server contains it.

        >>> Flink.from_master("host:8081"), Flink.from_master("https://me:secret@host/")
        (Flink(url='http://host:8081'), Flink(url='https://host'))
        >>> Flink.from_master("[auto]") is None
        True
        """
        if not master or master.startswith("["):
            return None
        scheme, _, rest = (master if "://" in master else f"http://{master}").partition("://")
        return cls(f"{scheme}://{rest.rpartition('@')[2].rstrip('/')}")

    @_requires_flink
    def get_overview(self) -> Overview:
        """Returns the resources of the cluster.

        Raises:
            EngineGone: The cluster does not answer.
        """
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
        """Returns the newest job with this name, or None."""
        jobs = [
            job for job in self._get("/jobs/overview").get("jobs", []) if job.get("name") == name
        ]
        if not jobs:
            return None
        return self.get_job(str(max(jobs, key=lambda job: job.get("start-time", 0))["jid"]))

    @_requires_flink
    def get_job(self, job_id: str) -> FlinkJob | None:
        """Returns the job with this id, or None if it is unknown."""
        # The id may come from a note in OUT, and becomes a part of the URL.
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
    def get_failure_text(self, job_id: str) -> str:
        """Returns the complete error text of a failed job, or ""."""
        answer = self._get(f"/jobs/{job_id}/exceptions")
        entries = (answer.get("exceptionHistory") or {}).get("entries") or []
        texts = [
            str(answer.get("root-exception") or ""),
            *(str(entry.get("stacktrace") or "") for entry in entries),
        ]
        return "\n".join(dict.fromkeys(text for text in texts if text))

    def cancel(self, job_id: str) -> None:
        """Requests the end of a job. Does nothing if the job has ended."""
        try:
            self._request(f"/jobs/{job_id}?mode=cancel", "PATCH")
        except EngineGone as error:
            if error.code not in (404, 409):  # 404: no such job; 409: it has ended
                raise

    def wait_until_ended(self, job_id: str, timeout_sec: float) -> FlinkJob | None:
        """Waits for the end of a job.

        Returns:
            The job, or None if the cluster does not know it any more.

        Raises:
            TimeoutError: The job is still running.
        """
        started = time.monotonic()
        while True:
            job = self.get_job(job_id)
            if job is None or job.has_ended:
                return job
            if time.monotonic() - started > timeout_sec:
                raise TimeoutError(f"job {job_id} is still {job.state}")
            time.sleep(0.3)

    def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = json.loads(self._request(path, "GET"))
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise EngineGone(f"{self.url}{path}: no answer of Flink's")
        return answer

    def _request(self, path: str, method: str) -> bytes:
        # Imported here because they take as long to import as all the rest, and few commands need
        # an engine.
        import http.client
        import urllib.error
        import urllib.request

        # urlopen would open other schemes, too, such as file:
        if not self.url.startswith(("http://", "https://")):
            raise EngineGone(f"{self.url} is not an http address")
        try:
            request = urllib.request.Request(self.url + path, method=method)
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SEC) as answer:
                return bytes(answer.read(_MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            error.close()  # it holds the connection
            raise EngineGone(f"{self.url}{path}: {error}", error.code) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise EngineGone(f"{self.url}{path}: {getattr(error, 'reason', error)}") from None


@dataclass(frozen=True)
class JobNote:
    """A note about a job, in its run folder.

    Attributes:
        runner: The Beam runner.
        name: The name of the job, which recordmill has chosen.
        url: The address of the engine's REST interface, or of its job server.
        job: The engine's id of the job. "" until it is known.
        started: The time of the submission in seconds since 1970.
        detached: True if no process waits for the end of the job.
    """

    runner: str
    name: str
    url: str = ""
    job: str = ""
    started: float = 0.0
    detached: bool = False

    def to_json(self) -> bytes:
        """Returns the content of the file."""
        return json.dumps({**asdict(self), "started": self.started or time.time()}).encode()

    @property
    def where(self) -> str:
        """The name of the job and its web page, for messages."""
        return f"{self.name}{f' on {self.page}' if self.url else ''}"

    @property
    def page(self) -> str:
        """The web page of the job, or of the engine."""
        return (
            f"{self.url}/#/job/running/{self.job}"
            if self.url.startswith("http") and self.job
            else self.url
        )


def read_note(folder: str) -> JobNote | None:
    """Returns the note in a run folder, or None if it can't be read."""
    with contextlib.suppress(OSError, DataError):
        return load_json(JobNote, f"{folder}/{JOB_NOTE_NAME}")
    return None
