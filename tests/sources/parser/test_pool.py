"""Processes that parse files may die, hang or be stopped without changing the result."""

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.files import tree
from kit.parsing import parsed_files, records, start_build, wait_until_parsed
from kit.runs import run_python

import recordmill


def shards(out: Path) -> dict[str, bytes]:
    files = tree(out).items()
    return {Path(name).name: data for name, data in files if name.endswith("tfrecord")}


def test_bytes_are_the_same_for_any_number_of_processes(folder: Path) -> None:
    for threads in (1, 3):
        recordmill.build(
            "in", f"out{threads}", parser="my.py:parse", name="n", threads=threads, num_shards=2,
            splits="train=0.7,test=0.3",
        )  # fmt: skip
    assert shards(folder / "out1") == shards(folder / "out3")


def test_worker_that_dies_is_a_reject_of_its_file(folder: Path) -> None:
    result = recordmill.build("in", "out", parser="my.py:parse_or_die", max_rejects=1)
    assert {row["file"] for row in records("out")} == {f"{n}.dat" for n in (0, 1, 3, 4, 5)}
    assert "its process was killed by SIGKILL" in Path(result.rejects[0]).read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_stopped_build_continues_without_parsing_files_again(folder: Path, number: int) -> None:
    recordmill.build("in", "undisturbed", parser="my.py:parse_slowly", name="n")
    (folder / "log").unlink()
    process = start_build(folder, "out", "my.py:parse_slowly", PARSER_SLEEP="0.5")
    wait_until_parsed(folder, 2)
    process.send_signal(number)
    process.communicate(timeout=60)
    num_started = len(parsed_files(folder))
    num_complete = len(list(folder.glob("out/_run-*/spool/parsed/*.json")))
    assert 2 <= num_complete <= num_started
    recordmill.build("in", "out", parser="my.py:parse_slowly", name="n")
    assert len(parsed_files(folder)) == num_started + 6 - num_complete
    assert shards(folder / "out") == shards(folder / "undisturbed")
    assert not list(folder.glob("out/_run-*"))


@pytest.mark.sweep
def test_build_that_is_killed_50_times_parses_only_files_in_work_again(folder: Path) -> None:
    begin = time.monotonic()
    start_build(folder, "undisturbed", "my.py:parse_slowly", PARSER_SLEEP="0.4").communicate()
    build_sec = time.monotonic() - begin
    random = np.random.default_rng(1)
    total_killed, round_number = 0, 0
    while total_killed < 50:
        round_number += 1
        out, num_killed = folder / f"out{round_number}", 0
        (folder / "log").unlink(missing_ok=True)
        while True:
            process = start_build(folder, out.name, "my.py:parse_slowly", PARSER_SLEEP="0.4")
            try:
                process.communicate(timeout=build_sec * float(random.uniform(0.2, 1.1)))
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                num_killed += 1
        total_killed += num_killed
        assert shards(out) == shards(folder / "undisturbed")
        assert 6 <= len(parsed_files(folder)) <= 6 + 2 * num_killed
        # If a build is killed after its commit, it is complete, and another build is refused.
        assert process.returncode == 0 or num_killed
        assert process.returncode or not list(out.glob("_run-*"))


def test_full_disk_ends_the_build_and_is_not_a_reject(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers inherit this limit of file sizes, which simulates a full disk.
    def parse(path: str) -> dict[str, Any]:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        return {"number": 1, "data": bytes(1 << 20)}

    with pytest.raises(recordmill.RecordmillError, match="File too large"):
        recordmill.build("in", "out", parser=parse, max_rejects=9)
    assert not (folder / "out" / "manifest.json").exists()


@pytest.mark.parametrize(("setting", "expected"), [(None, 1), ("3", 3)])
def test_libraries_use_one_thread_in_each_process_unless_the_user_sets_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None, expected: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if setting is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", setting)

    def parse(path: str) -> dict[str, Any]:
        import pyarrow

        return {"threads": pyarrow.cpu_count()}

    recordmill.build("in", "out", parser=parse)
    assert recordmill.open("out").to_table().column("threads").to_pylist() == [expected] * 6


def test_parser_that_never_returns_is_interrupted(folder: Path) -> None:
    process = start_build(folder, "out", "my.py:parse_for_ever")
    deadline = time.monotonic() + 60
    while not list(folder.glob("out/_run-*/spool/parsed")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    workers = run_python(
        "-c",
        "import subprocess; print(subprocess.run(['ps', '-eo', 'args'], capture_output=True, text=True).stdout)",
    )
    assert "sources.parser.worker" not in workers.stdout
