"""The commands of docs/cluster.md for a Flink on one machine work."""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from engines import Clusters
from flink_hosts import flink_folder, jar, why_not

import recordmill as package

pytestmark = pytest.mark.cluster


def test_commands_of_the_page_for_flink_on_one_machine_work(
    clusters: Clusters, tmp_path: Path
) -> None:
    """Its commands as they are written, beside what is installed: the distribution, and the jar."""
    if shutil.which("java") is None or not jar().exists():
        pytest.skip(why_not() or "java is not there")
    clusters.bring_down()  # memory holds one
    root, local = Path(__file__).parents[4], tmp_path / "flink"
    local.mkdir()
    for name in ("flink", jar().name):
        (local / name).symlink_to(flink_folder() / name)
    (tmp_path / "examples").symlink_to(root / "examples")
    rows = (f"{n % 60},{('UA', 'B6', 'EV')[n % 3]}\n" for n in range(1000))
    (tmp_path / "flights.csv").write_text("delay,carrier\n" + "".join(rows))
    page = (root / "docs" / "cluster.md").read_text()
    (block,) = re.findall(
        r"(?s)### On one machine\n[^#]*?```bash\n(examples/cluster/flink_local.sh up\n.*?)```", page
    )
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    settings = {**os.environ, "FLINK_LOCAL": str(local), "FLINK_PORT": str(port)}

    def shell(command: str) -> str:
        words = command.split()
        done = subprocess.run(
            words, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=900
        )
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
