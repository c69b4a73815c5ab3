"""Spark over hosts of its own, of what `examples/cluster/spark_local.sh fetch` got: a master and
workers.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path

from hosts import HERE, Hosts, address, kill, wait
from hosts import why_not as why_no_hosts

PORT, PAGE = 17077, 18080
_SETTINGS = {
    "spark.driver.host": HERE,
    "spark.driver.bindAddress": HERE,
    "spark.executor.memory": "1g",
}


def spark_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SPARK_LOCAL") or Path(cache) / "recordmill" / "spark")


def jar() -> Path:
    return spark_folder() / "spark-job-server.jar"


def why_not() -> str:
    """Why no such cluster can be had here; "" if one can."""
    if (
        not list(spark_folder().glob("pyspark/lib/python3*/site-packages/pyspark"))
        or not jar().exists()
    ):
        return "examples/cluster/spark_local.sh fetch was not run"
    return why_no_hosts("java")


class SparkHosts(Hosts):
    """A cluster. hidden: a folder that the workers' hosts have empty."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        super().__init__(folder, 1 + workers)
        self.workers = range(2, 2 + workers)
        self.worker = folder / "worker"
        self._home = next(iter(spark_folder().glob("pyspark/lib/python3*/site-packages/pyspark")))

    def up(self) -> None:
        """Bring all of it up."""
        super().up()
        path = os.environ.get("PYTHONPATH", "")
        text = f'#!/bin/sh\nexport PYTHONPATH="{path}"\nexec "{sys.executable}" -m recordmill.transforms.worker "$@"\n'
        self.worker.write_text(text)
        self.worker.chmod(0o755)
        master = f"spark://{address(1)}:{PORT}"
        self._java(
            "master", 1, ["--host", address(1), "--port", str(PORT), "--webui-port", str(PAGE)]
        )
        for host in self.workers:
            given = [
                "--host",
                address(host),
                "--webui-port",
                "0",
                "-c",
                "1",
                "-m",
                "1g",
                "-d",
                self._work(host),
            ]
            self._java("worker", host, [*given, master])
        wait(lambda: self._alive() == len(self.workers), 180, "Spark's workers")

    def _work(self, host: int) -> str:
        work = self.folder / f"work{host}"
        work.mkdir(exist_ok=True)
        return str(work)

    def _java(self, kind: str, host: int, arguments: list[str]) -> None:
        environment = {**os.environ, "SPARK_HOME": str(self._home), "SPARK_LOCAL_IP": address(host)}
        name = f"org.apache.spark.deploy.{kind}.{kind.capitalize()}"
        command = [str(self._home / "bin" / "spark-class"), name, *arguments]
        self.start(f"{kind}{host}", host, command, environment)

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"http://{address(1)}:{PAGE}/json/", timeout=10) as answer:
                return int(json.load(answer)["aliveworkers"])
        except OSError:
            assert self.is_alive("master1"), self.said("master1")[-2000:]
            return -1

    @property
    def flags(self) -> list[str]:
        """What recordmill is given to run here, its workers as processes that the executors
        start.
        """
        settings = {**_SETTINGS, "spark.executor.extraClassPath": str(jar())}
        return [
            "--runner=SparkRunner",
            f"--spark_master_url=spark://{address(1)}:{PORT}",
            f"--spark_job_server_jar={jar()}",
            *(f"--job_server_jvm_properties=-D{name}={value}" for name, value in settings.items()),
            "--environment_cache_millis=30000",  # an executor lives for one job: its Python workers may, too
            "--environment_type=PROCESS",
            f"--environment_config={json.dumps({'command': str(self.worker)})}",
        ]

    def executors(self, host: int) -> list[int]:
        """The executors on that host."""
        return self.pids(host, b"CoarseGrainedExecutorBackend")

    def kill_executor(self, host: int) -> None:
        """End it, and leave its Python workers to themselves."""
        for pid in self.executors(host):
            kill(pid)
