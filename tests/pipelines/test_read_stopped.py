"""A read that is stopped by Ctrl-C, a signal or a full disk keeps what it has finished, says so, and goes on when the
command is given again.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from killed_read import UNITS, check_goes_on, killed, make_inputs, run_of, tree

from recordmill.exporting.resume import accounts_in
from recordmill.pipelines.read import read
from recordmill.shards import cutting

pytestmark = pytest.mark.sweep

FILES = 100  # so many that the read is still under way when it is stopped after five, however busy the machine


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "PIECE_BYTES", 5_000)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def test_a_full_disk_keeps_what_is_finished_and_says_so(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = {"to": "jsonl", "file_size": 40_000}
    sizes = [
        path.stat().st_size
        for path in read(inputs["plain"], tmp_path / "sizes", **{**UNITS, **options}).out.rglob("*")
        if path.is_file()
    ]
    limit = max(sizes) - 200
    ended = killed(f"size:{limit}", inputs["plain"], out, **options)
    assert ended.returncode == 1
    assert f"kept: the same command goes on from there; to drop them, remove {run_of(out)}" in ended.stderr
    assert "File too large" in ended.stderr
    check_goes_on(inputs["plain"], out, **options)


def test_a_full_disk_before_anything_is_finished_leaves_nothing(inputs: dict[str, Any], tmp_path: Path) -> None:
    ended = killed("size:300", inputs["plain"], tmp_path / "out", to="npy")
    assert ended.returncode == 1
    assert "File too large" in ended.stderr
    assert not (tmp_path / "out").exists()


def _files(root: Path, inputs: dict[str, Any], times: int) -> list[str]:
    """Many small files, each of them an output of its own where --file-size is 1."""
    root.mkdir()
    shards = sorted(Path(inputs["foreign"]).glob("train-*"))
    for number, path in zip(range(times), itertools.cycle(shards), strict=False):
        os.link(path, root / f"{number:04d}.tfrecord")
    return [str(root)]


@pytest.mark.parametrize(
    ("to", "stop"), [("parquet", signal.SIGKILL), ("parquet", signal.SIGTERM), ("arrow", signal.SIGINT)]
)
def test_the_command_line_is_stopped_and_given_again(
    inputs: dict[str, Any], tmp_path: Path, to: str, stop: signal.Signals
) -> None:
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "recordmill",
        "read",
        *_files(tmp_path / "in", inputs, FILES),
        "--to",
        to,
        "--file-size",
        "1",
        "--columns",
        "id,tokens",
    ]
    process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (runs := list(out.glob("_run-*"))) or len(accounts_in(runs[0])) < 5:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(stop)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == (-9 if stop == signal.SIGKILL else 130)
    run = run_of(out)
    count = len(accounts_in(run))
    assert 5 <= count < FILES
    if stop != signal.SIGKILL:
        assert (
            f"recordmill: error: stopped; {count} finished outputs are kept: the same command goes on from "
            f"there; to drop them, remove {run}" in error
        )
    for folder in (out, tmp_path / "whole"):
        ended = subprocess.run([*command, "--out", str(folder)], check=True, capture_output=True, text=True)
        assert (f"going on from an earlier read: {count} of {FILES} outputs were finished" in ended.stderr) == (
            folder == out
        )
        assert (f"note: going on from an earlier read: {count} of {FILES}" in ended.stderr) == (folder == out)
    assert tree(out) == tree(tmp_path / "whole")


def test_stopping_one_of_two_splits_does_not_wait_for_the_other(inputs: dict[str, Any], tmp_path: Path) -> None:
    """Ctrl-C reaches the threads that write the splits at once; else it would take as long as the read."""
    source = f"""
import os, time
import recordmill.exporting.job as job
inner = job.read_parts
def slow(*args):
    for part in inner(*args):
        os.write(1, b"part\\n")  # print() of two threads may put both words on one line
        time.sleep(0.3)
        yield part
job.read_parts = slow
from recordmill.shards import cutting
cutting.PIECE_BYTES = 500
from recordmill.pipelines.read import read
read({inputs["plain"]!r}, {str(tmp_path / "out")!r}, to="npy", columns="id", file_size=1000, threads=4)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(12):
        assert process.stdout.readline() == "part\n"
    process.send_signal(signal.SIGINT)
    rest, error = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in error
    assert rest.count("part") < 20  # of some 300
