"""Flink cluster on separate hosts: a JobManager and TaskManagers.

Uses the downloads of `examples/cluster/flink_local.sh fetch`.
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
from hosts import find_obstacle as find_host_obstacle

PORT, POOL = 18081, 50000
_POOL = b"worker_pool_main"


def flink_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FLINK_LOCAL") or Path(cache) / "recordmill" / "flink")


def jar() -> Path:
    return flink_folder() / "flink-job-server.jar"


def find_obstacle() -> str:
    """Returns the reason why this machine cannot run a Flink cluster, or ""."""
    if (
        not list(flink_folder().glob("flink/lib/python3*/site-packages/pyflink"))
        or not jar().exists()
    ):
        return "examples/cluster/flink_local.sh fetch was not run"
    return find_host_obstacle("java")


class FlinkHosts(Hosts):
    """A Flink cluster.

    Attributes:
        hidden: A folder that is empty on the hosts of the TaskManagers.
    """

    def __init__(self, folder: Path, task_managers: int = 2, slots: int = 2) -> None:
        super().__init__(folder, 1 + task_managers)
        self.task_managers, self.slots = range(2, 2 + task_managers), slots
        self.url = f"http://{address(1)}:{PORT}"
        self.home = next(iter(flink_folder().glob("flink/lib/python3*/site-packages/pyflink")))
        self.worker, self.settings = folder / "worker", folder / "settings"

    def up(self) -> None:
        """Starts the cluster."""
        super().up()
        self._make_worker()
        self._java("jobmanager", 1)
        for host in self.task_managers:
            self.start_task_manager(host)
            self._start_pool(host)
        self.wait_for_all(180)

    def wait_for_all(self, seconds: float = 90) -> None:
        """Waits until all slots of all TaskManagers are free."""
        expected = (len(self.task_managers), len(self.task_managers) * self.slots)

        def is_complete() -> bool:
            assert self.is_alive("jobmanager1"), self.read_output("jobmanager1")[-2000:]
            overview = self.request_json("/overview")
            return (overview["taskmanagers"], overview["slots-available"]) == expected

        wait(is_complete, seconds, "TaskManagers")

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
        for folder in (conf, log, self.folder / f"tmp{host}"):
            folder.mkdir(exist_ok=True)
        for properties in (self.home / "conf").glob("*.properties"):
            shutil.copy(properties, conf)
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
        default_config = (self.home / "conf" / "config.yaml").read_text()
        java_options = next(
            line.split("all: ", 1)[1]
            for line in default_config.splitlines()
            if "all: --add" in line
        )
        settings = {
            "env.java.opts.all": java_options,
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
        self.set_worker_environment({})
        self.worker.chmod(0o755)

    @property
    def flags(self) -> list[str]:
        """Flags of recordmill for this cluster. TaskManagers start the workers as processes."""
        return [
            "--runner=FlinkRunner",
            f"--flink_master={self.url}",
            f"--flink_job_server_jar={jar()}",
            "--parallelism=2",
            "--environment_type=PROCESS",
            f"--environment_config={json.dumps({'command': str(self.worker)})}",
        ]

    def set_worker_environment(self, settings: Mapping[str, str]) -> None:
        """Sets environment variables of workers that start later."""
        text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())
        self.settings.write_text(text)

    def request_json(self, path: str, method: str = "GET") -> Any:
        """Returns an answer of the REST interface.

        Returns an overview without TaskManagers and jobs if nothing answers yet.
        """
        try:
            request = urllib.request.Request(self.url + path, method=method)
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except OSError:
            return {"taskmanagers": -1, "slots-available": -1, "jobs": []}

    def _live_job_names(self) -> dict[str, str]:
        """Returns the names of the jobs that have not ended, by ID."""
        ended = ("FINISHED", "FAILED", "CANCELED")
        return {
            job["jid"]: job["name"]
            for job in self.request_json("/jobs/overview")["jobs"]
            if job["state"] not in ended
        }

    def live_jobs(self) -> list[str]:
        """Returns the names of the jobs that have not ended."""
        return list(self._live_job_names().values())

    def count_free_slots(self) -> int:
        """Returns the number of free slots."""
        return int(self.request_json("/overview")["slots-available"])

    def cancel(self, name: str = "") -> None:
        """Cancels the jobs of a name, or all jobs, and waits for their end."""
        for job, job_name in self._live_job_names().items():
            if name in ("", job_name):
                self.request_json(f"/jobs/{job}?mode=cancel", "PATCH")
        wait(
            lambda: not self._live_job_names() if not name else name not in self.live_jobs(),
            90,
            "the end of the jobs",
        )

    def workers(self, host: int = 0) -> list[int]:
        """Returns the process IDs of the Python workers on one host or all."""
        return [
            pid
            for number in ([host] if host else self.task_managers)
            for pid in self.pids(number, b"sdk_worker_main")
        ]

    def kill_task_manager(self, host: int, *spared: bytes) -> None:
        """Kills a TaskManager and its processes at once, as a power failure does.

        Args:
            spared: Processes with one of these words in their commands go on.
        """
        self.kill(host, _POOL, *spared)
