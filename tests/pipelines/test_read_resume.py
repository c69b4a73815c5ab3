"""A killed read goes on to the files of an undisturbed one; what changed meanwhile is read anew."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from killed_read import CHILD, UNITS, check_goes_on, killed, make_inputs, run_of, tree, undisturbed
from made_data_set import FOLDER, mixed_rows, write_data_set

from recordmill.base.errors import RecordmillError, UsageError
from recordmill.base.progress import Progress
from recordmill.exporting.job import OutputAccount
from recordmill.exporting.resume import Finished, accounts_in, fingerprint, read_fingerprint
from recordmill.pipelines.read import read
from recordmill.shards.rejects import Rejected
from recordmill.shards.run import RunFolder

PIECE_BYTES = 5_000


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


_CASES: list[tuple[str, dict[str, Any]]] = [
    ("damaged", {"to": "parquet", "max_rejects": 20}), ("plain", {"to": "npy", "pad": "tokens=4:0"}),
]  # fmt: skip
_MORE: list[tuple[str, dict[str, Any]]] = [
    ("streams", {"to": "parquet"}), ("foreign", {"to": "npz"}),
    ("foreign", {"to": "npy", "where": "id % 3 = 1", "limit": 130}),
    ("gzip", {"to": "arrow"}), ("foreign", {"to": "jsonl"}), ("plain", {"to": "csv", "columns": "id,name,maybe"}),
    ("foreign", {"to": "parquet", "where": "id % 3 = 1"}), ("gzip", {"to": "npy", "threads": 1}),
    ("streams", {"to": "npy"}), ("plain", {"to": "npy", "limit": 450}), ("streams", {"to": "npy", "limit": 520}),
    ("foreign", {"to": "npy", "sample": 0.4, "seed": 3}),
    ("damaged", {"to": "npy", "max_rejects": "50%", "limit": 550}),
]  # fmt: skip


def _few(to: str) -> bool:
    """Whether there is an output for each of the two splits only."""
    return to in ("npy", "npz")


@pytest.mark.parametrize(
    ("name", "options"),
    [*_CASES, *(pytest.param(*case, marks=pytest.mark.sweep) for case in _MORE)],
    ids=[f"{name}-{'-'.join(map(str, options.values()))}" for name, options in _CASES + _MORE],
)
def test_a_killed_read_goes_on_and_ends_with_the_same_files(
    inputs: dict[str, Any], tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    finished = 1 if _few(options["to"]) else 4
    assert killed(f"account:{finished}", inputs[name], out, **options).returncode == -signal.SIGKILL
    assert [path.name for path in out.iterdir()] == [run_of(out).name]
    assert len(accounts_in(run_of(out))) >= finished
    result = check_goes_on(inputs[name], out, **options)
    assert (result.rejected > 0) == ("max_rejects" in options)


@pytest.mark.parametrize("to", [pytest.param("parquet", marks=pytest.mark.sweep), "npy"])
def test_finished_files_stay_where_they_are(inputs: dict[str, Any], tmp_path: Path, to: str) -> None:
    out = tmp_path / "out"
    killed("account:1" if _few(to) else "account:5", inputs["plain"], out, to=to)
    data = run_of(out) / "data"
    before = {path.stat().st_ino for path in data.glob("*.parquet" if to == "parquet" else "train/*.npy")}
    assert before
    check_goes_on(inputs["plain"], out, to=to)
    assert before <= {path.stat().st_ino for path in out.rglob("*") if path.is_file()}


@pytest.mark.sweep
def test_killed_again_and_again(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    counts = []
    for when in ("account:1", "account:2", "sync:3", "account:2"):
        assert killed(when, inputs["plain"], out).returncode == -signal.SIGKILL
        counts.append(len(accounts_in(run_of(out))))
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]
    check_goes_on(inputs["plain"], out)


@pytest.mark.parametrize(
    ("to", "when"),
    [("parquet", "place:14")]
    + [
        pytest.param(*case, marks=pytest.mark.sweep)
        for case in (
            ("parquet", "commit:1"),
            ("parquet", "commit:2"),
            ("npy", "place:3"),
            ("npy", "place:4"),
            ("npz", "place:7"),
        )
    ],
)
def test_a_commit_that_was_killed_is_done_again_or_completed(
    inputs: dict[str, Any], tmp_path: Path, to: str, when: str
) -> None:
    out, progress = tmp_path / "out", Progress()
    options = {"to": to, "max_rejects": 20}
    assert killed(when, inputs["damaged"], out, **options).returncode == -signal.SIGKILL
    whole = undisturbed(inputs["damaged"], out, **options)
    if when == "commit:1":
        assert read(inputs["damaged"], out, progress=progress, **UNITS, **options).rejected == whole.rejected == 12
    else:
        with pytest.raises(UsageError, match="already holds the result of a read"):
            read(inputs["damaged"], out, progress=progress, **UNITS, **options)
    assert progress.records == 0
    assert tree(out) == tree(tmp_path / "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["out", "whole"]


@pytest.mark.sweep
def test_a_commit_over_an_old_result_that_was_killed(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    read(inputs["plain"], out, to="jsonl", **UNITS)
    old = tree(out)
    assert killed("account:3", inputs["plain"], out, overwrite=True).returncode == -signal.SIGKILL
    assert {name: data for name, data in tree(out).items() if not name.startswith("_run")} == old
    with pytest.raises(UsageError, match="overwrite=True"):
        read(inputs["plain"], out, **UNITS)
    assert killed("commit:1", inputs["plain"], out, overwrite=True).returncode == -signal.SIGKILL
    assert {name: data for name, data in tree(out).items() if not name.startswith("_run")} == old
    assert len(list(tmp_path.glob(".out.*.new"))) == 1
    progress = Progress()
    read(inputs["plain"], out, overwrite=True, progress=progress, **UNITS)
    assert progress.records == 0
    assert not list(tmp_path.glob(".out.*.new"))
    undisturbed(inputs["plain"], out)
    assert tree(out) == tree(tmp_path / "whole")


def test_an_input_that_changed_is_read_anew(inputs: dict[str, Any], tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    for path in Path(inputs["foreign"]).glob("*"):
        (source / path.name).write_bytes(path.read_bytes())
    assert killed("account:9", str(source), out, threads=1).returncode == -signal.SIGKILL
    victim = sorted(source.glob("train-*"))[1]
    other = write_data_set(tmp_path / "other", {"train": mixed_rows(100, 100).slice(0, 100)}, shards=1)
    victim.write_bytes(next((other / FOLDER).glob("*.tfrecord")).read_bytes())  # as long as it was
    progress = Progress()
    result = read(str(source), out, progress=progress, **UNITS)
    assert progress.records == result.read
    undisturbed(str(source), out)
    assert tree(out) == tree(tmp_path / "whole")


def test_an_output_that_was_touched_is_written_anew(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed("account:4", inputs["plain"], out)
    first, second = sorted((run_of(out) / "data").glob("*.parquet"))[:2]
    first.write_bytes(first.read_bytes()[:-1])
    second.unlink()
    before = len(accounts_in(run_of(out)))
    result = read(inputs["plain"], out, **UNITS)
    assert f"read: {before - 2} of" in result.notes[-1]
    undisturbed(inputs["plain"], out)
    assert tree(out) == tree(tmp_path / "whole")


@pytest.mark.parametrize(
    "options",
    [{"to": "arrow"}, {"where": pc.field("id") > 3}]
    + [
        pytest.param(options, marks=pytest.mark.sweep)
        for options in (
            {"columns": "id"}, {"max_rejects": 1}, {"file_size": 30_000}, {"where": "id > 3"}, {"sample": 0.5},
            {"reshape": "matrix=[6]"}, {"compression": "none"}, {"limit": 650}, {"split": "train"},
        )
    ],
    ids=str,
)  # fmt: skip
def test_another_command_begins_anew(inputs: dict[str, Any], tmp_path: Path, options: dict[str, Any]) -> None:
    out = tmp_path / "out"
    killed("account:3", inputs["plain"], out)
    dead = run_of(out)
    progress = Progress()
    result = read(inputs["plain"], out, progress=progress, **{**UNITS, **options})
    assert not [note for note in result.notes if "going on" in note]
    assert progress.records == result.read
    assert not dead.exists()


@pytest.mark.parametrize("other", ["where", "isin", "seed", "release"])
def test_what_makes_a_read_another_one(inputs: dict[str, Any], other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from recordmill.exporting import resume as read_resume
    from recordmill.exporting.plan import plan_read
    from recordmill.pipelines.read_options import make_settings

    def mark(**options: Any) -> str:
        return read_resume.fingerprint(plan_read(inputs["plain"], make_settings(**options).plan))

    many = list(range(50))
    before, after = {
        "where": ({"where": "id = 3"}, {"where": "id = 4"}),
        "isin": (
            {"where": pc.field("id").isin(many)},
            {"where": pc.field("id").isin([*many[:25], 7, *many[26:]])},
        ),  # in its text both are the same
        "seed": ({"sample": 0.5, "seed": 1}, {"sample": 0.5, "seed": 2}),
        "release": ({}, {}),
    }[other]
    first = mark(**before)
    assert mark(**before, threads=1, memory="1GiB") == first
    if other == "release":
        monkeypatch.setattr(read_resume, "version", lambda name: "0.0.0" if name == "pyarrow" else "1")
    assert mark(**after) != first


@pytest.mark.sweep
def test_with_a_runner_it_is_another_read(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed("account:3", inputs["plain"], out)
    progress = Progress()
    result = read(inputs["plain"], out, runner="FnApiRunner", progress=progress, **UNITS)
    assert progress.records == result.read
    undisturbed(inputs["plain"], out)
    assert tree(out) == tree(tmp_path / "whole")


@pytest.mark.sweep
def test_a_mistyped_command_leaves_what_is_finished(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed("account:3", inputs["plain"], out)
    with pytest.raises(UsageError, match='columns="nope": no such feature'):
        read(inputs["plain"], out, columns="nope", **UNITS)
    check_goes_on(inputs["plain"], out)


def test_an_error_in_the_data_leaves_nothing(inputs: dict[str, Any], tmp_path: Path) -> None:
    for options in ({}, {"max_rejects": 2}):
        with pytest.raises(RecordmillError, match="CRC"):
            read(inputs["damaged"], tmp_path / "out", **UNITS, **options)
        assert not (tmp_path / "out").exists()


@pytest.mark.sweep
def test_of_two_at_once_one_goes_on_and_the_other_begins_anew(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed("account:3", inputs["plain"], out)
    first = RunFolder.take_over(run_of(out))
    assert first is not None
    assert RunFolder.take_over(first.path) is None
    progress = Progress()
    result = read(inputs["plain"], out, progress=progress, **UNITS)
    assert progress.records == result.read
    assert accounts_in(first.path)
    first.release()
    progress = Progress()
    again = read(inputs["plain"], out, overwrite=True, progress=progress, **UNITS)
    assert progress.records < again.read
    assert not list(out.glob("_run-*"))


@pytest.mark.sweep
def test_two_processes_at_once(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed("account:1", inputs["plain"], out, to="npy")
    command = [
        sys.executable,
        "-c",
        CHILD,
        "never:0",
        json.dumps(inputs["plain"]),
        str(out),
        json.dumps({**UNITS, "to": "npy"}),
    ]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate()[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes.count(0) == 1, errors
    for code, error in zip(codes, errors, strict=True):
        assert code == 0 or "another read wrote its result" in error or "already holds the result" in error
    undisturbed(inputs["plain"], out, to="npy")
    assert tree(out) == tree(tmp_path / "whole")


def test_a_small_read_writes_no_accounts(
    inputs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("an account")

    monkeypatch.setattr(Finished, "begin", refuse)
    monkeypatch.setattr(Finished, "save", refuse)
    for to in ("parquet", "npy"):
        assert read(inputs["plain"], tmp_path / to, to=to).written == 690


def test_an_input_that_changes_while_it_is_read_gets_no_account(inputs: dict[str, Any], tmp_path: Path) -> None:
    from recordmill.exporting.plan import plan_read
    from recordmill.pipelines.read_options import make_settings

    source = tmp_path / "source"
    source.mkdir()
    for path in Path(inputs["foreign"]).glob("*"):
        (source / path.name).write_bytes(path.read_bytes())
    plan = plan_read(str(source), make_settings(file_size=20_000).plan)
    folder = RunFolder.create(tmp_path / "out")
    finished = Finished.begin(folder.path, fingerprint(plan))
    assert read_fingerprint(folder.path) == fingerprint(plan)

    def save(number: int) -> int:
        job = plan.jobs[number]
        (folder.data / f"{job.name}.parquet").write_bytes(b"x")
        account = OutputAccount(job.split, f"{job.name}.parquet", 0, 0, Rejected.zero())
        finished.save(plan, job, folder.data, account)
        return len(accounts_in(folder.path))

    assert save(0) == 1
    for path in source.glob("*"):
        os.utime(path, ns=(1, 1))
    assert save(1) == 1
    for path in source.glob("*"):
        path.unlink()
    assert save(2) == 1
    folder.close()


# A read that is stopped by Ctrl-C, a signal or a full disk keeps what it has finished, says so, and goes on whe


FILES = 100  # so many that the read is still under way when it is stopped after five, however busy the machine


@pytest.mark.sweep
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


@pytest.mark.sweep
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


@pytest.mark.sweep
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


@pytest.mark.sweep
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
