"""A REST interface that answers as Flink's does, asked of jobs and slots; over real HTTP, on
loopback.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from kit.web_files import serve_requests


@dataclass
class FlinkServer:
    """url: where it is. jobs: id to (name, state). slots, free, managers: what it has. cancelled:
    ids. failure: the error text of each failed job.
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
    """One that runs."""
    told = FlinkServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = told.answer(self.path)
            data = json.dumps(found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_PATCH(self) -> None:
            job = self.path.removeprefix("/jobs/").partition("?")[0]
            told.cancelled.append(job)
            told.jobs[job] = (told.jobs[job][0], "CANCELED")
            self.send_response(202)
            self.end_headers()

    with serve_requests(Handler) as port:
        told.url = f"http://127.0.0.1:{port}"
        yield told
