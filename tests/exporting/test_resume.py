"""A killed read resumes to the files of an undisturbed one, and what changed in between is read
again.
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
    """The same records as a data set, gzip shards, files of others, gzip streams, and files with a
    damaged record.
    """
    plain = write_data_set(root / "plain", ROWS, shards=6)
    write_data_set(root / "gzip", ROWS, shards=6, compression="gzip")
    for folder in ("foreign", "streams", "damaged"):
        (root / folder).mkdir()
    for path in sorted((plain / FOLDER).glob("*.tfrecord")):
        data = path.read_bytes()
        (root / "foreign" / path.name).write_bytes(data)
        (root / "streams" / f"{path.name}.gz").write_bytes(gzip.compress(data, mtime=0))
        broken = bytearray(data)
        broken[len(data) // 2] ^= 1
        (root / "damaged" / path.name).write_bytes(broken)
    return {path.name: str(path) for path in root.iterdir()}


def killed(when: str, source: Any, out: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """A read in a process of its own that is killed when so many accounts are written, or can write
    files so large.
    """
    command = [
        sys.executable,
        "-c",
        CHILD,
        when,
        json.dumps(source),
        str(out),
        json.dumps({**UNITS, **options}),
    ]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def run_of(out: Path) -> Path:
    (run,) = out.glob("_run-*")
    return run


def records_finished_in(run: Path) -> int:
    """How many records the accounts of a dead read speak of."""
    return sum(json.loads(path.read_text())["read"] for path in list_counts_files(run))


def undisturbed(source: Any, out: Path, **options: Any) -> ReadResult:
    """The same read without any accounts, into `whole` beside out, which must hold the same
    files.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(resume, "saves_progress", lambda *_: False)
        result = read(source, out.with_name("whole"), **{**UNITS, **options})
    assert tree(out) == tree(result.out)
    return result


def check_goes_on(source: Any, out: Path, **options: Any) -> ReadResult:
    """Goes on with the read killed in `out`: the rest alone is read, and the files are those of an
    undisturbed one.
    """
    before = records_finished_in(run_of(out))
    count = len(list_counts_files(run_of(out)))
    progress = Progress()
    result = read(source, out, progress=progress, **{**UNITS, **options})
    whole = undisturbed(source, out, **options)
    assert f"resuming an earlier read: {count} of" in result.notes[-1]
    assert before > 0
    assert progress.records == whole.read - before
    assert (result.read, result.records, result.rejected, result.filtered) == (
        whole.read,
        whole.records,
        whole.rejected,
        whole.filtered,
    )
    assert result.reject_reasons == whole.reject_reasons
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


def _few(to: str) -> bool:
    """Whether there is an output for each of the two splits only."""
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
    finished = 1 if _few(options["to"]) else 4
    assert killed(f"account:{finished}", inputs[name], out, **options).returncode == -signal.SIGKILL
    assert [path.name for path in out.iterdir()] == [run_of(out).name]
    assert len(list_counts_files(run_of(out))) >= finished
    result = check_goes_on(inputs[name], out, **options)
    assert (result.rejected > 0) == ("max_rejects" in options)


@pytest.mark.parametrize("to", [pytest.param("parquet", marks=pytest.mark.sweep), "npy"])
def test_resumed_read_keeps_finished_files(inputs: dict[str, Any], tmp_path: Path, to: str) -> None:
    out = tmp_path / "out"
    killed("account:1" if _few(to) else "account:5", inputs["plain"], out, to=to)
    data = run_of(out) / "data"
    before = {
        path.stat().st_ino for path in data.glob("*.parquet" if to == "parquet" else "train/*.npy")
    }
    assert before
    check_goes_on(inputs["plain"], out, to=to)
    assert before <= {path.stat().st_ino for path in out.rglob("*") if path.is_file()}


def test_changed_input_is_read_again(inputs: dict[str, Any], tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(inputs["foreign"], source)
    assert killed("account:9", str(source), out, threads=1).returncode == -signal.SIGKILL
    victim = sorted(source.glob("train-*"))[1]
    other = write_data_set(
        tmp_path / "other", {"train": mixed_rows(100, 100).slice(0, 100)}, shards=1
    )
    victim.write_bytes(next((other / FOLDER).glob("*.tfrecord")).read_bytes())  # as long as it was
    progress = Progress()
    result = read(str(source), out, progress=progress, **UNITS)
    assert progress.records == result.read
    undisturbed(str(source), out)


def test_changed_output_is_written_again(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed("account:4", inputs["plain"], out)
    first, second = sorted((run_of(out) / "data").glob("*.parquet"))[:2]
    first.write_bytes(first.read_bytes()[:-1])
    second.unlink()
    before = len(list_counts_files(run_of(out)))
    result = read(inputs["plain"], out, **UNITS)
    assert f"read: {before - 2} of" in result.notes[-1]
    undisturbed(inputs["plain"], out)


@pytest.mark.parametrize("options", [{"to": "arrow"}, {"where": pc.field("id") > 3}], ids=str)
def test_read_with_other_options_starts_again(
    inputs: dict[str, Any], tmp_path: Path, options: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    killed("account:3", inputs["plain"], out)
    dead = run_of(out)
    progress = Progress()
    result = read(inputs["plain"], out, progress=progress, **{**UNITS, **options})
    assert not [note for note in result.notes if "resuming" in note]
    assert progress.records == result.read
    assert not dead.exists()


MANY = list(range(50))
ANOTHER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"where": "id = 3"}, {"where": "id = 4"}),
    ({"sample": 0.5, "seed": 1}, {"sample": 0.5, "seed": 2}),
    # in their texts both are the same
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


def test_fingerprint_of_a_read_depends_on_what_changes_its_files(
    inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mark(**options: Any) -> str:
        return fingerprint_plan(plan_read(inputs["plain"], make_settings(**options).plan))

    for before, after in ANOTHER:
        assert mark(**before, threads=1, memory="1GiB") == mark(**before) != mark(**after), after
    before = mark()
    monkeypatch.setattr(resume, "version", lambda name: "0.0.0" if name == "pyarrow" else "1")
    assert mark() != before


@pytest.mark.sweep
def test_read_with_a_runner_does_not_resume_a_local_one(
    inputs: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    killed("account:3", inputs["plain"], out)
    progress = Progress()
    result = read(inputs["plain"], out, runner="FnApiRunner", progress=progress, **UNITS)
    assert progress.records == result.read
    undisturbed(inputs["plain"], out)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("when", "name", "options"),
    [
        ("made:4", "damaged", {"to": "parquet", "max_rejects": 20}),
        ("made:4", "plain", {"to": "npy"}),  # of which workers write parts
    ],
)
def test_killed_read_with_a_runner_resumes(
    inputs: dict[str, Any],
    tmp_path: Path,
    when: str,
    name: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from recordmill.exporting import worker_tasks

    out, options = tmp_path / "out", {**options, "runner": "FnApiRunner"}
    assert killed(when, inputs[name], out, **options).returncode == -signal.SIGKILL
    count = len(list_counts_files(run_of(out)))
    assert count >= 4
    made, run_job = list[str](), worker_tasks.run_task

    def watched(plan: Any, job: Any, *given: Any, **how: Any) -> Any:
        made.append(job.name)
        return run_job(plan, job, *given, **how)

    monkeypatch.setattr(worker_tasks, "run_task", watched)
    result = read(inputs[name], out, **UNITS, **options)
    (said,) = (note for note in result.notes if "resuming" in note)
    finished, of = map(int, said.removeprefix("resuming an earlier read: ").split()[:3:2])
    assert finished == count
    assert len(made) == len(set(made)) == of - count
    whole = undisturbed(inputs[name], out, **{**options, "runner": None})
    assert (result.read, result.rejected, result.records) == (
        whole.read,
        whole.rejected,
        whole.records,
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
    killed("account:3", inputs["plain"], out)
    first = RunFolder.take_over(run_of(out))
    assert first is not None
    assert RunFolder.take_over(first.path) is None
    progress = Progress()
    result = read(inputs["plain"], out, progress=progress, **UNITS)
    assert progress.records == result.read
    assert list_counts_files(first.path)
    first.release()
    progress = Progress()
    again = read(inputs["plain"], out, overwrite=True, progress=progress, **UNITS)
    assert progress.records < again.read
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
    finished = FinishedOutputs.create(folder.path, fingerprint_plan(plan))
    assert read_fingerprint(folder.path) == fingerprint_plan(plan)

    def save(number: int) -> int:
        job = plan.tasks[number]
        (folder.data / f"{job.name}.parquet").write_bytes(b"x")
        account = OutputCounts(job.split, f"{job.name}.parquet", 0, 0, RejectSummary.empty())
        finished.save(plan, job, folder.data, account)
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
    ended = killed(f"size:{limit}", inputs["plain"], out, **options)
    assert ended.returncode == 1
    assert (
        f"kept: repeat the same command to continue; to discard them, remove {run_of(out)}"
        in ended.stderr
    )
    assert "File too large" in ended.stderr
    check_goes_on(inputs["plain"], out, **options)
