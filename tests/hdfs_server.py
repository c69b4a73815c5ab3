"""A real HDFS on loopback, of one NameNode and one DataNode, by the jars that `.ci/servers`
installs; else skipped.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest
from store_server import BUCKET, Store, free_port

HOST = "127.0.0.1"
START_SEC = (
    90  # alone it starts within 10 seconds, beside other tests on all cores within some times that
)
_JARS = Path(
    os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "recordmill", "servers", "hadoop"
)
_SERVERS = "org.apache.hadoop.hdfs.server"
# Short-lived and small: what the compiler of hot code and parallel collectors win does not come
# back here.
_JAVA = (
    "-Xmx256m",
    "-Xshare:auto",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
)
_LOGGED = """\
log4j.rootLogger=INFO, err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""


@contextmanager
def hdfs_server(folder: Path) -> Iterator[str]:
    """Starts both servers over an empty folder, and gives the URI of the root once a file can be
    written there.
    """
    java = [
        _find_java(),
        *_JAVA,
        f"-Djava.io.tmpdir={folder / 'tmp'}",
    ]  # where web servers unpack their pages
    command = [*java, "-cp", f"{folder / 'conf'}:{_find_jars()}/*"]
    client = pytest.importorskip(
        "hdfs_native", reason="no hdfs-native: it asks HDFS whether it is ready"
    )
    uri = f"hdfs://{HOST}:{free_port()}"
    _configure(folder, uri)
    with ExitStack() as servers:
        # the DataNode asks for the NameNode until that is there
        data = servers.enter_context(
            _running([*command, f"{_SERVERS}.datanode.DataNode"], folder / "datanode.log")
        )
        _format(
            [*command, f"{_SERVERS}.namenode.NameNode", "-format", "-force", "-nonInteractive"],
            folder,
        )
        name = servers.enter_context(
            _running([*command, f"{_SERVERS}.namenode.NameNode"], folder / "namenode.log")
        )
        _wait_until_written(
            client, uri, {folder / "datanode.log": data, folder / "namenode.log": name}
        )
        yield uri


@dataclass
class HadoopStore(Store):
    """HDFS as a store of tests, of which a folder stands for the bucket; client: hdfs-native's
    own.
    """

    def put(self, key: str, data: bytes) -> str:
        from hdfs_native import WriteOptions

        with self.client.create(
            f"/{BUCKET}/{key}", WriteOptions(overwrite=True, create_parent=True)
        ) as file:
            file.write(data)
        return f"{self.root}/{key}"

    def keys(self) -> list[str]:
        found = self.client.list_status(f"/{BUCKET}", True)
        return [about.path.removeprefix(f"/{BUCKET}/") for about in found if not about.isdir]

    def objects(self, out: str) -> dict[str, bytes]:
        prefix = out.removeprefix(self.root).strip("/") + "/"
        found = [key for key in self.keys() if key.startswith(prefix)]
        return {
            key.removeprefix(prefix): self.client.read(f"/{BUCKET}/{key}").read() for key in found
        }


@contextmanager
def hadoop_server(folder: Path) -> Iterator[Store]:
    """HDFS as a `Store`."""
    with hdfs_server(folder) as uri:
        from hdfs_native import Client

        yield HadoopStore(f"{uri}/{BUCKET}", uri, Client(uri))


def _find_java() -> str:
    """The program; skips the test where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else None
    found = found or shutil.which("java")
    if found is None:
        pytest.skip("no java: HDFS runs on it")
    return found


def _find_jars() -> Path:
    """The folder of Hadoop's jars; skips the test where they are absent, or were not copied to the
    end.
    """
    if not (_JARS / "complete").exists():
        pytest.skip(
            f"no jars of Hadoop in {_JARS}: .ci/servers installs them, where Java and Maven are there"
        )
    return _JARS


def _configure(folder: Path, uri: str) -> None:
    """Writes the settings of both servers; those without a port of their own listen where there is
    one free.
    """
    settings = {
        "fs.defaultFS": uri,
        "hadoop.tmp.dir": folder,
        "dfs.namenode.name.dir": (folder / "name").as_uri(),
        "dfs.datanode.data.dir": (folder / "data").as_uri(),
        "dfs.namenode.http-address": f"{HOST}:0",
        "dfs.datanode.address": f"{HOST}:0",
        "dfs.datanode.http.address": f"{HOST}:0",
        "dfs.datanode.ipc.address": f"{HOST}:0",
        "dfs.datanode.hostname": HOST,
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.permissions.enabled": "false",
        "dfs.replication": 1,
        "dfs.namenode.fs-limits.min-block-size": 512,  # files of some blocks need not be large
        "dfs.namenode.safemode.extension": 0,
        "dfs.namenode.resource.du.reserved": 0,
        "dfs.namenode.edits.noeditlogchannelflush": "true",  # nothing here outlives the test
        "ipc.client.connect.retry.interval": 100,  # milliseconds, as long as the NameNode is not there
        "ipc.client.connect.max.retries": START_SEC * 10,
    }
    named = (
        f"<name>{name}</name><value>{escape(str(value))}</value>"
        for name, value in settings.items()
    )
    listed = "".join(f"<property>{each}</property>\n" for each in named)
    conf = folder / "conf"
    conf.mkdir(parents=True)
    (conf / "hdfs-site.xml").write_text(f"<configuration>\n{listed}</configuration>\n")
    (conf / "log4j.properties").write_text(_LOGGED)
    (folder / "tmp").mkdir()
    for pages in (
        "hdfs",
        "datanode",
    ):  # of their web servers, which don't start without the folders
        (conf / "webapps" / pages).mkdir(parents=True)


def _format(command: list[str], folder: Path) -> None:
    """An empty file system, which the NameNode asks for."""
    done = subprocess.run(
        command, capture_output=True, text=True, env=_environment(), timeout=START_SEC, check=False
    )
    assert done.returncode == 0, f"the NameNode can't format {folder}: {done.stderr[-2000:]}"


def _environment() -> dict[str, str]:
    """Whoever runs the tests may do all there, with a name in the system's list of users or
    without.
    """
    return {**os.environ, "HADOOP_USER_NAME": "recordmill"}


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a process group of its own, which is killed in the end."""
    with open(log, "wb") as written:
        process = subprocess.Popen(
            command, env=_environment(), stdout=written, stderr=written, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_written(
    client: Any, uri: str, servers: dict[Path, subprocess.Popen[bytes]]
) -> None:
    """Tries to write a file until the NameNode listens and the DataNode takes the file's block."""
    ends, last = time.monotonic() + START_SEC, "the NameNode does not listen"
    while time.monotonic() < ends:
        for log, process in servers.items():
            assert process.poll() is None, f"the server has ended: {log.read_text()[-2000:]}"
        if _listens(uri):
            try:
                return _write_one(client, uri)
            except (OSError, RuntimeError) as error:
                last = str(error)
        time.sleep(0.1)
    raise AssertionError(f"HDFS takes no file after {START_SEC} seconds: {last}")


def _listens(uri: str) -> bool:
    """Whether the NameNode does: the client would wait ever longer between its own tries."""
    with socket.socket() as asked:
        return asked.connect_ex((HOST, int(uri.rpartition(":")[2]))) == 0


def _write_one(client: Any, uri: str) -> None:
    """A file with one block, written, read and deleted by a client of its own."""
    asked = client.Client(uri, {"dfs.client.failover.max.attempts": "1"})
    with asked.create("/ready", client.WriteOptions(overwrite=True)) as written:
        written.write(b"ready")
    assert asked.read("/ready").read() == b"ready"
    asked.delete("/ready")
