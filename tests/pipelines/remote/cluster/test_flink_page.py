"""The commands of docs/cluster.md for Flink on one machine work."""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from engines import Clusters
from flink_hosts import find_obstacle, flink_folder, jar

import recordmill as package

pytestmark = pytest.mark.cluster


def test_commands_of_the_page_for_flink_on_one_machine_work(
    clusters: Clusters, tmp_path: Path
) -> None:
    """Runs the commands of the page with the installed distribution and jar."""
    if shutil.which("java") is None or not jar().exists():
        pytest.skip(find_obstacle() or "java is not there")
    clusters.bring_down()  # the memory is enough for one cluster
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
    with socket.create_server(("localhost", 0)) as free_socket:
        port = free_socket.getsockname()[1]
    settings = {**os.environ, "FLINK_LOCAL": str(local), "FLINK_PORT": str(port)}

    def shell(command: str) -> str:
        words = command.split()
        process = subprocess.run(
            words, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=900
        )
        assert process.returncode == 0, (command, process.stdout, process.stderr)
        return process.stdout

    *commands, down = block.splitlines()
    try:
        for command in commands:
            shell(command)
    finally:
        output = shell(down)
    assert "3 processes stopped" in output
    assert package.verify(tmp_path / "shards") == []
    assert package.open(tmp_path / "shards").schema.label == "carrier"
    assert list((tmp_path / "table").glob("*.parquet"))
