"""A server on loopback with a part of Flink's REST interface.

It reports jobs and slots.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from kit.web_files import serve_requests


@dataclass
class FlinkServer:
    """State of the server, which tests set and read.

    Attributes:
        jobs: (name, state) of each job, by its id.
        slots: Number of task slots.
        free: Number of free task slots.
        managers: Number of task managers.
        cancelled: The ids of the jobs that were cancelled.
        failure: The error text of each failed job.
    """

    url: str = ""
    jobs: dict[str, tuple[str, str]] = field(default_factory=dict)
    slots: int = 2
    free: int = 2
    managers: int = 2
    cancelled: list[str] = field(default_factory=list)
    failure: str = "java.lang.X: Traceback\nrecordmill.base.errors.DataError: a.csv: torn\n at y"

    def answer(self, path: str) -> object:
        if path == "/overview":
            return {
                "taskmanagers": self.managers,
                "slots-total": self.slots,
                "slots-available": self.free,
                "flink-version": "1.19.3",
            }
        if path == "/jobs/overview":
            return {
                "jobs": [
                    {"jid": job, "name": name, "start-time": 1}
                    for job, (name, _) in self.jobs.items()
                ]
            }
        job = path.removeprefix("/jobs/")
        if job.endswith("/exceptions"):
            return {"root-exception": self.failure}
        if job not in self.jobs:
            return None
        name, state = self.jobs[job]
        task = (
            {"FINISHED": 1}
            if state == "FINISHED"
            else {"SCHEDULED": 1}
            if state == "CREATED"
            else {"RUNNING": 1}
        )
        return {
            "name": name,
            "state": state,
            "vertices": [{"tasks": task, "metrics": {"read-bytes": 5}}],
        }


@contextmanager
def flink_server() -> Iterator[FlinkServer]:
    """Runs a server inside the `with` block."""
    state = FlinkServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = state.answer(self.path)
            data = json.dumps(answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_PATCH(self) -> None:
            job = self.path.removeprefix("/jobs/").partition("?")[0]
            state.cancelled.append(job)
            state.jobs[job] = (state.jobs[job][0], "CANCELED")
            self.send_response(202)
            self.end_headers()

    with serve_requests(Handler) as port:
        state.url = f"http://127.0.0.1:{port}"
        yield state
