"""Flink over hosts of its own: a JobManager here, and TaskManagers each in a network and a mount namespace, with a
Beam worker pool beside it. What `scripts/flink_local.sh fetch` got is run; everything that is started here is stopped
here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PORT, POOL = 18081, 50000
_NET = "10.79.0"
_MARK = "rmt"  # of names of namespaces and links, at most 15 letters


def flink_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FLINK_LOCAL") or Path(cache) / "recordmill" / "flink")


def why_not() -> str:
    """Why no such cluster can be had here; "" if one can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("java", "ip", "unshare", "curl") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is not there"
    if not list(flink_folder().glob("flink/lib/python3*/site-packages/pyflink")) or not jar().exists():
        return "scripts/flink_local.sh fetch was not run"
    probe = subprocess.run(["ip", "netns", "add", f"{_MARK}0"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", f"{_MARK}0"], capture_output=True, check=False)
    return "" if probe.returncode == 0 else "no network namespace can be made here"


def jar() -> Path:
    return flink_folder() / "jar" / "target" / "flink-job-server-1.jar"


class FlinkHosts:
    """A cluster. hidden: a folder that the TaskManagers' hosts have empty."""

    def __init__(self, folder: Path, hosts: int = 2, slots: int = 2) -> None:
        self.folder, self.hosts, self.slots = folder, hosts, slots
        self.hidden = folder / "hidden"
        self.hidden.mkdir(parents=True)
        self.url = f"http://{_NET}.1:{PORT}"
        self.home = next(iter(flink_folder().glob("flink/lib/python3*/site-packages/pyflink")))
        self.worker = folder / "worker"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def up(self) -> FlinkHosts:
        self._make_worker()
        _ip("link", "add", f"{_MARK}br", "type", "bridge")
        _ip("addr", "add", f"{_NET}.1/24", "dev", f"{_MARK}br")
        _ip("link", "set", f"{_MARK}br", "up")
        self._java("jobmanager", 1, [])
        for host in range(2, 2 + self.hosts):
            self._host(host)
            self.start_task_manager(host)
            self._start_pool(host)
        wait(lambda: self.ask("/overview")["taskmanagers"] == self.hosts, 90, "TaskManagers")
        return self

    def _host(self, host: int) -> None:
        name = f"{_MARK}{host}"
        _ip("netns", "add", name)
        _ip("link", "add", f"{_MARK}v{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", f"{_MARK}v{host}", "master", f"{_MARK}br", "up")
        _ip("-n", name, "addr", "add", f"{_NET}.{host}/24", "dev", "eth0")
        for link in ("eth0", "lo"):
            _ip("-n", name, "link", "set", link, "up")

    def _within(self, host: int) -> list[str]:
        """The words before a command that run it on that host, where the hidden folder is empty."""
        script = f'mount --make-rprivate / && mount -t tmpfs none "{self.hidden}" && exec "$@"'
        return ["ip", "netns", "exec", f"{_MARK}{host}", "unshare", "-m", "sh", "-c", script, "sh"]

    def start_task_manager(self, host: int) -> None:
        self._java("taskmanager", host, self._within(host))

    def _start_pool(self, host: int) -> None:
        command = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={POOL}"]
        self._start(f"pool{host}", [*self._within(host), *command], self._environment())

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def _java(self, kind: str, host: int, before: list[str]) -> None:
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
        self._start(
            f"{kind}{host}", [*before, "bash", str(self.home / "bin" / f"{kind}.sh"), "start-foreground"], environment
        )

    def _config(self, host: int) -> str:
        shipped = (self.home / "conf" / "config.yaml").read_text()
        opened = next(line.split("all: ", 1)[1] for line in shipped.splitlines() if "all: --add" in line)
        settings = {
            "env.java.opts.all": opened,
            "jobmanager.rpc.address": f"{_NET}.1",
            "jobmanager.rpc.port": 18123,
            "jobmanager.bind-host": "0.0.0.0",
            "jobmanager.memory.process.size": "1200m",
            "rest.address": f"{_NET}.1",
            "rest.bind-address": f"{_NET}.1",
            "rest.port": PORT,
            "taskmanager.host": f"{_NET}.{host}",
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
        text = f'#!/bin/sh\nexport PYTHONPATH="{path}"\nexec "{sys.executable}" -m recordmill.transforms.worker "$@"\n'
        self.worker.write_text(text)
        self.worker.chmod(0o755)

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    @property
    def flags(self) -> list[str]:
        """What recordmill is given to run here, its workers as processes that the TaskManagers start."""
        return [
            "--runner=FlinkRunner",
            f"--flink_master={self.url}",
            f"--flink_job_server_jar={jar()}",
            "--parallelism=2",
            "--environment_type=PROCESS",
            f"--environment_config={json.dumps({'command': str(self.worker)})}",
        ]

    def ask(self, path: str) -> Any:
        """What the REST interface answers; {} with no TaskManager where nobody does yet."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return json.load(answer)
        except OSError:
            return {"taskmanagers": -1, "jobs": []}

    def live(self) -> list[str]:
        """Names of the jobs that have not ended."""
        ended = ("FINISHED", "FAILED", "CANCELED")
        return [job["name"] for job in self.ask("/jobs/overview")["jobs"] if job["state"] not in ended]

    def workers(self, host: int) -> list[int]:
        """The Python workers on that host."""
        found = subprocess.run(["ip", "netns", "pids", f"{_MARK}{host}"], capture_output=True, text=True, check=False)
        return [pid for pid in map(int, found.stdout.split()) if b"sdk_worker_main" in _command(pid)]

    def kill_task_manager(self, host: int) -> None:
        """End it and what it had started at once, as a host does that loses power."""
        found = subprocess.run(["ip", "netns", "pids", f"{_MARK}{host}"], capture_output=True, text=True, check=False)
        for pid in map(int, found.stdout.split()):
            if b"worker_pool_main" not in _command(pid):
                _kill(pid)
        self._processes.pop(f"taskmanager{host}").wait()

    def down(self) -> None:
        for host in range(2, 2 + self.hosts):
            found = subprocess.run(
                ["ip", "netns", "pids", f"{_MARK}{host}"], capture_output=True, text=True, check=False
            )
            for pid in map(int, found.stdout.split()):
                _kill(pid)
            subprocess.run(["ip", "netns", "del", f"{_MARK}{host}"], capture_output=True, check=False)
        for process in self._processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        subprocess.run(["ip", "link", "del", f"{_MARK}br"], capture_output=True, check=False)


def wait(until: Any, seconds: float, what: str) -> None:
    before = time.monotonic()
    while not until():
        assert time.monotonic() - before < seconds, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.2)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
