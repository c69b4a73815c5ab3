"""A killed read resumes, and writes the same files as an undisturbed read.

Inputs and outputs that changed in between are read again.
"""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from kit.data_sets import FOLDER, mixed_rows, write_data_set
from kit.files import tree

from recordmill.base.errors import RecordmillError
from recordmill.base.progress import Progress
from recordmill.exporting import resume
from recordmill.exporting.plan import plan_read
from recordmill.exporting.resume import (
    FinishedOutputs,
    fingerprint_plan,
    list_counts_files,
    read_fingerprint,
)
from recordmill.exporting.task import OutputCounts
from recordmill.pipelines.read import ReadResult, read
from recordmill.pipelines.read_options import make_settings
from recordmill.shards import cutting
from recordmill.shards.rejects import RejectSummary
from recordmill.shards.run import RunFolder


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "PIECE_BYTES", 5_000)


ROWS = {"train": mixed_rows(600), "test": mixed_rows(90, 600)}
UNITS = {"file_size": 20_000, "threads": 2}  # some 14 outputs of about this size

CHILD = """
import json, os, sys
from recordmill.exporting import resume
from recordmill.shards import cutting
cutting.PIECE_BYTES = 5_000
when, count = sys.argv[1].split(":")
left = int(count)
def saved(*args):
    global left
    save(*args)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), 9)
if when == "account":
    save, resume.FinishedOutputs.save = resume.FinishedOutputs.save, saved
elif when == "made":
    from recordmill.exporting import worker_tasks
    save, worker_tasks.put_bytes = worker_tasks.put_bytes, saved
else:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, left))
from recordmill.pipelines.read import read
read(json.loads(sys.argv[2]), sys.argv[3], **json.loads(sys.argv[4]))
"""


def make_inputs(root: Path) -> dict[str, Any]:
    """Writes the same records in five forms, and returns the paths by name.

    The forms are a data set, gzip shards, foreign files, gzip streams, and files with a damaged
    record.
    """
    plain = write_data_set(root / "plain", ROWS, shards=6)
    write_data_set(root / "gzip", ROWS, shards=6, compression="gzip")
    for folder in ("foreign", "streams", "damaged"):
        (root / folder).mkdir()
    for path in sorted((plain / FOLDER).glob("*.tfrecord")):
        data = path.read_bytes()
        (root / "foreign" / path.name).write_bytes(data)
        (root / "streams" / f"{path.name}.gz").write_bytes(gzip.compress(data, mtime=0))
        damaged_data = bytearray(data)
        damaged_data[len(data) // 2] ^= 1
        (root / "damaged" / path.name).write_bytes(damaged_data)
    return {path.name: str(path) for path in root.iterdir()}


def run_killed_read(
    kill_point: str, source: Any, out: Path, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a read in a process that is killed, or cannot write large files.

    Args:
        kill_point: `account:N` kills the process after N counts files, `made:N` after N writes of
            worker tasks. `size:N` limits files to N bytes.
    """
    command = [
        sys.executable,
        "-c",
        CHILD,
        kill_point,
        json.dumps(source),
        str(out),
        json.dumps({**UNITS, **options}),
    ]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def find_run(out: Path) -> Path:
    (run,) = out.glob("_run-*")
    return run


def count_finished_records(run: Path) -> int:
    """Returns the number of records in the counts files of a dead read."""
    return sum(json.loads(path.read_text())["read"] for path in list_counts_files(run))


def read_undisturbed(source: Any, out: Path, **options: Any) -> ReadResult:
    """Repeats a read without saved progress, and checks that it writes the same files.

    The result is in the folder `whole` next to `out`.
    """
    with pytest.MonkeyPatch.context() as context:
        context.setattr(resume, "saves_progress", lambda *_: False)
        result = read(source, out.with_name("whole"), **{**UNITS, **options})
    assert tree(out) == tree(result.out)
    return result


def check_resumes(source: Any, out: Path, **options: Any) -> ReadResult:
    """Resumes the killed read in `out`, and compares it with an undisturbed read.

    The resumed read must read only the remaining records.
    """
    finished_records = count_finished_records(find_run(out))
    count = len(list_counts_files(find_run(out)))
    progress = Progress()
    result = read(source, out, progress=progress, **{**UNITS, **options})
    expected = read_undisturbed(source, out, **options)
    assert f"resuming an earlier read: {count} of" in result.notes[-1]
    assert finished_records > 0
    assert progress.records == expected.read - finished_records
    assert (result.read, result.records, result.rejected, result.filtered) == (
        expected.read,
        expected.records,
        expected.rejected,
        expected.filtered,
    )
    assert result.reject_reasons == expected.reject_reasons
    return result


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


_CASES: list[tuple[str, dict[str, Any]]] = [
    ("damaged", {"to": "parquet", "max_rejects": 20}),
    ("plain", {"to": "npy", "pad": "tokens=4:0"}),
]
_MORE: list[tuple[str, dict[str, Any]]] = [
    ("streams", {"to": "parquet"}),
    ("foreign", {"to": "npz"}),
    ("foreign", {"to": "npy", "where": "id % 3 = 1", "limit": 130}),
    ("gzip", {"to": "arrow"}),
    ("foreign", {"to": "jsonl"}),
    ("plain", {"to": "csv", "columns": "id,name,maybe"}),
    ("foreign", {"to": "parquet", "where": "id % 3 = 1"}),
    ("gzip", {"to": "npy", "threads": 1}),
    ("streams", {"to": "npy"}),
    ("plain", {"to": "npy", "limit": 450}),
    ("streams", {"to": "npy", "limit": 520}),
    ("foreign", {"to": "npy", "sample": 0.4, "seed": 3}),
    ("damaged", {"to": "npy", "max_rejects": "50%", "limit": 550}),
]


def _has_few_outputs(to: str) -> bool:
    """Returns whether each of the two splits has only one output."""
    return to in ("npy", "npz")


@pytest.mark.parametrize(
    ("name", "options"),
    [*_CASES, *(pytest.param(*case, marks=pytest.mark.sweep) for case in _MORE)],
    ids=[f"{name}-{'-'.join(map(str, options.values()))}" for name, options in _CASES + _MORE],
)
def test_killed_read_resumes(
    inputs: dict[str, Any], tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    count = 1 if _has_few_outputs(options["to"]) else 4
    assert (
        run_killed_read(f"account:{count}", inputs[name], out, **options).returncode
        == -signal.SIGKILL
    )
    assert [path.name for path in out.iterdir()] == [find_run(out).name]
    assert len(list_counts_files(find_run(out))) >= count
    result = check_resumes(inputs[name], out, **options)
    assert (result.rejected > 0) == ("max_rejects" in options)


@pytest.mark.parametrize("to", [pytest.param("parquet", marks=pytest.mark.sweep), "npy"])
def test_resumed_read_keeps_finished_files(inputs: dict[str, Any], tmp_path: Path, to: str) -> None:
    out = tmp_path / "out"
    run_killed_read(
        "account:1" if _has_few_outputs(to) else "account:5", inputs["plain"], out, to=to
    )
    data = find_run(out) / "data"
    old_inodes = {
        path.stat().st_ino for path in data.glob("*.parquet" if to == "parquet" else "train/*.npy")
    }
    assert old_inodes
    check_resumes(inputs["plain"], out, to=to)
    assert old_inodes <= {path.stat().st_ino for path in out.rglob("*") if path.is_file()}


def test_changed_input_is_read_again(inputs: dict[str, Any], tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(inputs["foreign"], source)
    assert run_killed_read("account:9", str(source), out, threads=1).returncode == -signal.SIGKILL
    victim = sorted(source.glob("train-*"))[1]
    other_set = write_data_set(
        tmp_path / "other", {"train": mixed_rows(100, 100).slice(0, 100)}, shards=1
    )
    # The size stays the same.
    victim.write_bytes(next((other_set / FOLDER).glob("*.tfrecord")).read_bytes())
    progress = Progress()
    result = read(str(source), out, progress=progress, **UNITS)
    assert progress.records == result.read
    read_undisturbed(str(source), out)


def test_changed_output_is_written_again(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_killed_read("account:4", inputs["plain"], out)
    first, second = sorted((find_run(out) / "data").glob("*.parquet"))[:2]
    first.write_bytes(first.read_bytes()[:-1])
    second.unlink()
    old_count = len(list_counts_files(find_run(out)))
    result = read(inputs["plain"], out, **UNITS)
    assert f"read: {old_count - 2} of" in result.notes[-1]
    read_undisturbed(inputs["plain"], out)


@pytest.mark.parametrize("options", [{"to": "arrow"}, {"where": pc.field("id") > 3}], ids=str)
def test_read_with_other_options_starts_again(
    inputs: dict[str, Any], tmp_path: Path, options: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    run_killed_read("account:3", inputs["plain"], out)
    dead = find_run(out)
    progress = Progress()
    result = read(inputs["plain"], out, progress=progress, **{**UNITS, **options})
    assert not [note for note in result.notes if "resuming" in note]
    assert progress.records == result.read
    assert not dead.exists()


MANY = list(range(50))
CHANGED_OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"where": "id = 3"}, {"where": "id = 4"}),
    ({"sample": 0.5, "seed": 1}, {"sample": 0.5, "seed": 2}),
    # Both conditions have the same text.
    (
        {"where": pc.field("id").isin(MANY)},
        {"where": pc.field("id").isin([*MANY[:25], 7, *MANY[26:]])},
    ),
    *(
        ({}, options)
        for options in (
            {"columns": "id"},
            {"max_rejects": 1},
            {"file_size": 30_000},
            {"where": "id > 3"},
            {"sample": 0.5},
            {"reshape": "matrix=[6]"},
            {"compression": "none"},
            {"limit": 650},
            {"split": "train"},
            {"to": "arrow"},
        )
    ),
]


def test_fingerprint_of_a_read_depends_on_options_that_change_its_files(
    inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fingerprint(**options: Any) -> str:
        return fingerprint_plan(plan_read(inputs["plain"], make_settings(**options).plan))

    for first, second in CHANGED_OPTIONS:
        assert (
            fingerprint(**first, threads=1, memory="1GiB")
            == fingerprint(**first)
            != fingerprint(**second)
        ), second
    first = fingerprint()
    monkeypatch.setattr(resume, "version", lambda name: "0.0.0" if name == "pyarrow" else "1")
    assert fingerprint() != first


@pytest.mark.sweep
def test_read_with_a_runner_does_not_resume_a_local_one(
    inputs: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run_killed_read("account:3", inputs["plain"], out)
    progress = Progress()
    result = read(inputs["plain"], out, runner="FnApiRunner", progress=progress, **UNITS)
    assert progress.records == result.read
    read_undisturbed(inputs["plain"], out)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kill_point", "name", "options"),
    [
        ("made:4", "damaged", {"to": "parquet", "max_rejects": 20}),
        ("made:4", "plain", {"to": "npy"}),  # workers write parts of the outputs
    ],
)
def test_killed_read_with_a_runner_resumes(
    inputs: dict[str, Any],
    tmp_path: Path,
    kill_point: str,
    name: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from recordmill.exporting import worker_tasks

    out, options = tmp_path / "out", {**options, "runner": "FnApiRunner"}
    assert run_killed_read(kill_point, inputs[name], out, **options).returncode == -signal.SIGKILL
    count = len(list_counts_files(find_run(out)))
    assert count >= 4
    job_names, run_task = list[str](), worker_tasks.run_task

    def run_and_log(plan: Any, job: Any, *arguments: Any, **keywords: Any) -> Any:
        job_names.append(job.name)
        return run_task(plan, job, *arguments, **keywords)

    monkeypatch.setattr(worker_tasks, "run_task", run_and_log)
    result = read(inputs[name], out, **UNITS, **options)
    (message,) = (note for note in result.notes if "resuming" in note)
    num_finished, total = map(int, message.removeprefix("resuming an earlier read: ").split()[:3:2])
    assert num_finished == count
    assert len(job_names) == len(set(job_names)) == total - count
    expected = read_undisturbed(inputs[name], out, **{**options, "runner": None})
    assert (result.read, result.rejected, result.records) == (
        expected.read,
        expected.rejected,
        expected.records,
    )


def test_read_that_fails_on_data_leaves_nothing(inputs: dict[str, Any], tmp_path: Path) -> None:
    for options in ({}, {"max_rejects": 2}):
        with pytest.raises(RecordmillError, match="CRC"):
            read(inputs["damaged"], tmp_path / "out", **UNITS, **options)
        assert not (tmp_path / "out").exists()


@pytest.mark.sweep
def test_of_two_concurrent_reads_one_resumes_and_the_other_starts_again(
    inputs: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run_killed_read("account:3", inputs["plain"], out)
    folder = RunFolder.take_over(find_run(out))
    assert folder is not None
    assert RunFolder.take_over(folder.path) is None
    progress = Progress()
    result = read(inputs["plain"], out, progress=progress, **UNITS)
    assert progress.records == result.read
    assert list_counts_files(folder.path)
    folder.release()
    progress = Progress()
    resumed = read(inputs["plain"], out, overwrite=True, progress=progress, **UNITS)
    assert progress.records < resumed.read
    assert not list(out.glob("_run-*"))


def test_small_reads_save_no_counts_files(
    inputs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("an account")

    monkeypatch.setattr(FinishedOutputs, "create", refuse)
    monkeypatch.setattr(FinishedOutputs, "save", refuse)
    for to in ("parquet", "npy"):
        assert read(inputs["plain"], tmp_path / to, to=to).written == 690


def test_input_that_changes_during_a_read_is_not_saved_as_finished(
    inputs: dict[str, Any], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(inputs["foreign"], source)
    plan = plan_read(str(source), make_settings(file_size=20_000).plan)
    folder = RunFolder.create(tmp_path / "out")
    outputs = FinishedOutputs.create(folder.path, fingerprint_plan(plan))
    assert read_fingerprint(folder.path) == fingerprint_plan(plan)

    def save(number: int) -> int:
        job = plan.tasks[number]
        (folder.data / f"{job.name}.parquet").write_bytes(b"x")
        counts = OutputCounts(job.split, f"{job.name}.parquet", 0, 0, RejectSummary.empty())
        outputs.save(plan, job, folder.data, counts)
        return len(list_counts_files(folder.path))

    assert save(0) == 1
    for path in source.glob("*"):
        os.utime(path, ns=(1, 1))
    assert save(1) == 1
    for path in source.glob("*"):
        path.unlink()
    assert save(2) == 1
    folder.close()


@pytest.mark.sweep
def test_full_disk_keeps_finished_files_and_reports_it(
    inputs: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = {"to": "jsonl", "file_size": 40_000}
    sizes = [
        path.stat().st_size
        for path in read(inputs["plain"], tmp_path / "sizes", **{**UNITS, **options}).out.rglob("*")
        if path.is_file()
    ]
    limit = max(sizes) - 200
    process = run_killed_read(f"size:{limit}", inputs["plain"], out, **options)
    assert process.returncode == 1
    assert (
        f"kept: repeat the same command to continue; to discard them, remove {find_run(out)}"
        in process.stderr
    )
    assert "File too large" in process.stderr
    check_resumes(inputs["plain"], out, **options)
