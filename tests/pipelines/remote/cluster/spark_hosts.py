"""Spark cluster on separate hosts: a master and workers.

Uses the downloads of `examples/cluster/spark_local.sh fetch`.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path

from hosts import THIS_MACHINE, Hosts, address, kill, wait
from hosts import find_obstacle as find_host_obstacle

PORT, PAGE = 17077, 18080
_SETTINGS = {
    "spark.driver.host": THIS_MACHINE,
    "spark.driver.bindAddress": THIS_MACHINE,
    "spark.executor.memory": "1g",
}


def spark_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SPARK_LOCAL") or Path(cache) / "recordmill" / "spark")


def jar() -> Path:
    return spark_folder() / "spark-job-server.jar"


def find_obstacle() -> str:
    """Returns the reason why this machine cannot run a Spark cluster, or ""."""
    if (
        not list(spark_folder().glob("pyspark/lib/python3*/site-packages/pyspark"))
        or not jar().exists()
    ):
        return "examples/cluster/spark_local.sh fetch was not run"
    return find_host_obstacle("java")


class SparkHosts(Hosts):
    """A Spark cluster.

    Attributes:
        hidden: A folder that is empty on the hosts of the workers.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        super().__init__(folder, 1 + workers)
        self.workers = range(2, 2 + workers)
        self.worker = folder / "worker"
        self._home = next(iter(spark_folder().glob("pyspark/lib/python3*/site-packages/pyspark")))

    def up(self) -> None:
        """Starts the cluster."""
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
            arguments = [
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
            self._java("worker", host, [*arguments, master])
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
            assert self.is_alive("master1"), self.read_output("master1")[-2000:]
            return -1

    @property
    def flags(self) -> list[str]:
        """Flags of recordmill for this cluster. Executors start the workers as processes."""
        settings = {**_SETTINGS, "spark.executor.extraClassPath": str(jar())}
        return [
            "--runner=SparkRunner",
            f"--spark_master_url=spark://{address(1)}:{PORT}",
            f"--spark_job_server_jar={jar()}",
            *(f"--job_server_jvm_properties=-D{name}={value}" for name, value in settings.items()),
            # An executor lives for one job, so its Python workers may end with it.
            "--environment_cache_millis=30000",
            "--environment_type=PROCESS",
            f"--environment_config={json.dumps({'command': str(self.worker)})}",
        ]

    def executors(self, host: int) -> list[int]:
        """Returns the process IDs of the executors on a host."""
        return self.pids(host, b"CoarseGrainedExecutorBackend")

    def kill_executor(self, host: int) -> None:
        """Kills the executors on a host, but not their Python workers."""
        for pid in self.executors(host):
            kill(pid)
