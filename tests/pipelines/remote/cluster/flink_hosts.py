"""Flink over hosts of its own, of what `examples/cluster/flink_local.sh fetch` got: a JobManager
and TaskManagers.
"""

import json
import os
import shlex
import shutil
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hosts import Hosts, address, wait
from hosts import why_not as why_no_hosts

PORT, POOL = 18081, 50000
_POOL = b"worker_pool_main"


def flink_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FLINK_LOCAL") or Path(cache) / "recordmill" / "flink")


def jar() -> Path:
    return flink_folder() / "flink-job-server.jar"


def why_not() -> str:
    """Why no such cluster can be had here; "" if one can."""
    if (
        not list(flink_folder().glob("flink/lib/python3*/site-packages/pyflink"))
        or not jar().exists()
    ):
        return "examples/cluster/flink_local.sh fetch was not run"
    return why_no_hosts("java")


class FlinkHosts(Hosts):
    """A cluster. hidden: a folder that the TaskManagers' hosts have empty."""

    def __init__(self, folder: Path, task_managers: int = 2, slots: int = 2) -> None:
        super().__init__(folder, 1 + task_managers)
        self.task_managers, self.slots = range(2, 2 + task_managers), slots
        self.url = f"http://{address(1)}:{PORT}"
        self.home = next(iter(flink_folder().glob("flink/lib/python3*/site-packages/pyflink")))
        self.worker, self.settings = folder / "worker", folder / "settings"

    def up(self) -> None:
        """Bring all of it up."""
        super().up()
        self._make_worker()
        self._java("jobmanager", 1)
        for host in self.task_managers:
            self.start_task_manager(host)
            self._start_pool(host)
        self.wait_for_all(180)

    def wait_for_all(self, seconds: float = 90) -> None:
        """Until each TaskManager has told its slots."""
        wanted = (len(self.task_managers), len(self.task_managers) * self.slots)

        def there() -> bool:
            assert self.is_alive("jobmanager1"), self.said("jobmanager1")[-2000:]
            found = self.ask("/overview")
            return (found["taskmanagers"], found["slots-available"]) == wanted

        wait(there, seconds, "TaskManagers")

    def start_task_manager(self, host: int) -> None:
        self._java("taskmanager", host)

    def _start_pool(self, host: int) -> None:
        command = [
            sys.executable,
            "-m",
            "apache_beam.runners.worker.worker_pool_main",
            f"--service_port={POOL}",
        ]
        self.start(f"pool{host}", host, command, self._environment())

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def _java(self, kind: str, host: int) -> None:
        conf, log = self.folder / f"conf{host}", self.folder / "log"
        for made in (conf, log, self.folder / f"tmp{host}"):
            made.mkdir(exist_ok=True)
        for found in (self.home / "conf").glob("*.properties"):
            shutil.copy(found, conf)
        (conf / "config.yaml").write_text(self._config(host))
        environment = {
            **self._environment(),
            "FLINK_HOME": str(self.home),
            "FLINK_CONF_DIR": str(conf),
            "FLINK_LOG_DIR": str(log),
        }
        command = ["bash", str(self.home / "bin" / f"{kind}.sh"), "start-foreground"]
        self.start(f"{kind}{host}", host, command, environment)

    def _config(self, host: int) -> str:
        shipped = (self.home / "conf" / "config.yaml").read_text()
        opened = next(
            line.split("all: ", 1)[1] for line in shipped.splitlines() if "all: --add" in line
        )
        settings = {
            "env.java.opts.all": opened,
            "jobmanager.rpc.address": address(1),
            "jobmanager.rpc.port": 18123,
            "jobmanager.bind-host": "0.0.0.0",
            "jobmanager.memory.process.size": "1200m",
            "rest.address": address(1),
            "rest.bind-address": address(1),
            "rest.port": PORT,
            "taskmanager.host": address(host),
            "taskmanager.bind-host": "0.0.0.0",
            "taskmanager.numberOfTaskSlots": self.slots,
            "taskmanager.memory.process.size": "2560m",
            "taskmanager.memory.managed.size": "256m",
            "taskmanager.memory.task.off-heap.size": "512m",
            "io.tmp.dirs": self.folder / f"tmp{host}",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 10,
            "restart-strategy.fixed-delay.delay": "1 s",
            "heartbeat.interval": 1000,
            "heartbeat.timeout": 6000,
        }
        return "".join(f"{name}: {value}\n" for name, value in settings.items())

    def _make_worker(self) -> None:
        path = os.environ.get("PYTHONPATH", "")
        command = f'exec "{sys.executable}" -m recordmill.transforms.worker "$@"'
        self.worker.write_text(
            f'#!/bin/sh\nexport PYTHONPATH="{path}"\n. "{self.settings}"\n{command}\n'
        )
        self.give({})
        self.worker.chmod(0o755)

    @property
    def flags(self) -> list[str]:
        """What recordmill is given to run here, its workers as processes that the TaskManagers
        start.
        """
        return [
            "--runner=FlinkRunner",
            f"--flink_master={self.url}",
            f"--flink_job_server_jar={jar()}",
            "--parallelism=2",
            "--environment_type=PROCESS",
            f"--environment_config={json.dumps({'command': str(self.worker)})}",
        ]

    def give(self, settings: Mapping[str, str]) -> None:
        """What workers that are started from now on have in their environment."""
        text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())
        self.settings.write_text(text)

    def ask(self, path: str, method: str = "GET") -> Any:
        """What the REST interface answers; no TaskManager where nobody does yet."""
        try:
            request = urllib.request.Request(self.url + path, method=method)
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except OSError:
            return {"taskmanagers": -1, "slots-available": -1, "jobs": []}

    def _live(self) -> dict[str, str]:
        """Id to name of the jobs that have not ended."""
        ended = ("FINISHED", "FAILED", "CANCELED")
        return {
            job["jid"]: job["name"]
            for job in self.ask("/jobs/overview")["jobs"]
            if job["state"] not in ended
        }

    def live(self) -> list[str]:
        """Names of the jobs that have not ended."""
        return list(self._live().values())

    def free(self) -> int:
        """Slots that no job has."""
        return int(self.ask("/overview")["slots-available"])

    def cancel(self, name: str = "") -> None:
        """End the jobs of that name, or all that a test which failed has left."""
        for job, called in self._live().items():
            if name in ("", called):
                self.ask(f"/jobs/{job}?mode=cancel", "PATCH")
        wait(
            lambda: not self._live() if not name else name not in self.live(),
            90,
            "the end of the jobs",
        )

    def workers(self, host: int = 0) -> list[int]:
        """The Python workers on that host, or on all."""
        return [
            pid
            for one in ([host] if host else self.task_managers)
            for pid in self.pids(one, b"sdk_worker_main")
        ]

    def kill_task_manager(self, host: int, *spared: bytes) -> None:
        """End it and what it had started at once, as a host does that loses power. spared: words of
        what goes on.
        """
        self.kill(host, _POOL, *spared)
