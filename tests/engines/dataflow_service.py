"""Dataflow's interface for jobs on loopback: it takes a job, keeps what was asked, and says that the job runs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from kit import served

JOBS = "/v1b3/projects/project/locations/region/jobs"


@dataclass
class Service:
    """jobs: as they were submitted. flags: by which `DataflowRunner` stages below `folder` and asks at `url`."""

    url: str
    folder: Path
    jobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def flags(self) -> tuple[str, ...]:
        where = ("--project=project", "--region=region", f"--temp_location={self.folder}")
        return (*where, "--no_auth", f"--dataflow_endpoint={self.url}")

    def staged(self) -> dict[str, Path]:
        """Name to path of what the job's workers are to get."""
        return {path.name: path for path in self.folder.rglob("*") if path.is_file()}


@contextmanager
def dataflow(folder: Path) -> Iterator[Service]:
    """The service; folder: stands for the bucket of --temp_location."""
    folder.mkdir()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path.partition("?")[0] == JOBS
            service.jobs.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._say("JOB_STATE_PENDING")

        def do_GET(self) -> None:
            self._say("JOB_STATE_RUNNING")

        def _say(self, state: str) -> None:
            name = service.jobs[-1]["name"]
            answer = json.dumps(
                {"id": "2026-job", "name": name, "currentState": state, "projectId": "project"}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with served(Handler) as port:
        service = Service(f"http://localhost:{port}", folder)
        yield service
