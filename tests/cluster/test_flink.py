"""Builds and reads on a Flink of two hosts: the bytes are those of one process, and what can't be is refused."""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from conftest import Clusters, shards, tree
from driver import Driver, recordmill, run
from flink_hosts import POOL, FlinkHosts, flink_folder, jar, why_not

import recordmill as package

pytestmark = pytest.mark.cluster


def test_a_table_gives_the_same_shards(flink: FlinkHosts, table: Path, built: Path, tmp_path: Path) -> None:
    """With the look beforehand, which finds both hosts."""
    run("build", "csv", table, "--out", tmp_path / "out", "--num-shards=6", "--splits=train=0.8,test=0.2", *flink.flags)
    assert shards(tmp_path / "out") == shards(built)
    assert package.verify(tmp_path / "out") == []
    assert flink.live() == []


def test_images_give_the_same_shards(flink: FlinkHosts, images: Path, tmp_path: Path) -> None:
    package.build(images, tmp_path / "local", num_shards=3)
    run("build", "images", images, "--out", tmp_path / "out", "--num-shards=3", "--no-preflight", *flink.flags)
    assert shards(tmp_path / "out") == shards(tmp_path / "local")


@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_a_read_of_a_relative_path_gives_the_same_files(
    flink: FlinkHosts, built: Path, tmp_path: Path, to: str
) -> None:
    run("read", built, "--out", tmp_path / "local", "--to", to)
    run("read", built.name, "--out", tmp_path / "out", "--to", to, "--no-preflight", *flink.flags, cwd=built.parent)
    assert tree(tmp_path / "out") == tree(tmp_path / "local")


def test_doctor_asks_workers_of_pools_and_says_what_they_do_not_see(flink: FlinkHosts, table: Path) -> None:
    """The folder is there for this process, and empty on the TaskManagers' hosts."""
    pools = ("--environment_type=EXTERNAL", f"--environment_config=localhost:{POOL}")
    flags = [flag for flag in flink.flags if "environment" not in flag]
    said, err = recordmill("doctor", table, "--out", flink.hidden / "out", *flags, *pools)
    assert "ok  slots: 4 of 4 free, on 2 TaskManagers" in said, err
    assert "NO  --out: a worker on" in said
    assert "name a folder that all workers see" in said
    assert "NO  INPUT" not in said
    assert not (flink.hidden / "out").exists()


def test_a_build_that_workers_could_not_see_is_refused(flink: FlinkHosts, table: Path) -> None:
    code, err = Driver("build", "csv", table, "--out", flink.hidden / "out", "--quiet", *flink.flags).end()
    assert code == 2
    assert "does not see it" in err
    assert "name a folder that all workers see" in err
    assert not (flink.hidden / "out").exists()


def test_what_a_worker_says_is_the_sentence_and_the_trace_a_file(flink: FlinkHosts, tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text('{"x": 1}\n' * 5)
    package.build(tmp_path / "good.jsonl", tmp_path / "good")
    source = tmp_path / "a.jsonl"
    source.write_text('{"x": 1}\n' * 500 + '{"x": [1, 2]}\n')
    options = ("--out", tmp_path / "out", "--schema", tmp_path / "good" / "schema.pbtxt", "--no-preflight", "--quiet")
    code, err = Driver("build", "jsonl", source, *options, *flink.flags).end()
    assert code == 1
    (line,) = err.splitlines()  # and nothing of Beam's or Java's
    assert line.startswith("recordmill: error: ")
    assert "line 501" in line
    trace = Path(line.rpartition("all that the engine said: ")[2].rstrip(")"))
    assert "Traceback (most recent call last)" in trace.read_text()
    trace.unlink()
    assert not (tmp_path / "out").exists()


def test_the_page_of_flink_on_one_machine_holds(clusters: Clusters, tmp_path: Path) -> None:
    """Its commands as they are written, beside what is installed: the distribution, and the jar."""
    if shutil.which("java") is None or not jar().exists():
        pytest.skip(why_not() or "java is not there")
    clusters.bring_down()  # memory holds one
    root, local = Path(__file__).parents[2], tmp_path / "flink"
    local.mkdir()
    for name in ("flink", jar().name):
        (local / name).symlink_to(flink_folder() / name)
    (tmp_path / "examples").symlink_to(root / "examples")
    rows = (f"{n % 60},{('UA', 'B6', 'EV')[n % 3]}\n" for n in range(1000))
    (tmp_path / "flights.csv").write_text("delay,carrier\n" + "".join(rows))
    page = (root / "docs" / "cluster.md").read_text()
    (block,) = re.findall(r"(?s)### On one machine\n[^#]*?```bash\n(examples/cluster/flink_local.sh up\n.*?)```", page)
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    settings = {**os.environ, "FLINK_LOCAL": str(local), "FLINK_PORT": str(port)}

    def shell(command: str) -> str:
        words = command.split()
        done = subprocess.run(words, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    *commands, down = block.splitlines()
    try:
        for command in commands:
            shell(command)
    finally:
        ended = shell(down)
    assert "3 processes stopped" in ended
    assert package.verify(tmp_path / "shards") == []
    assert package.open(tmp_path / "shards").schema.label == "carrier"
    assert list((tmp_path / "table").glob("*.parquet"))
