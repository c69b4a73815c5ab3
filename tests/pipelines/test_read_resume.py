"""A read that was killed goes on from what it had finished, and ends with the files of an undisturbed read; what changed meanwhile is read anew."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from made_data_set import FOLDER, mixed_rows, write_data_set

from recordmill.pipelines.read import ReadResult, read
from recordmill.schemas.errors import RecordmillError, UsageError
from recordmill.schemas.progress import Progress
from recordmill.shards import pieces, read_resume
from recordmill.shards.read_notes import fingerprint_of, noted_in
from recordmill.shards.run_folder import RunFolder

ROWS = {"train": mixed_rows(600), "test": mixed_rows(90, 600)}
UNITS = {"file_size": 20_000, "threads": 2}  # some 14 units

_CHILD = """
import json, os, sys
from recordmill.shards import pieces, read_commit, read_job, read_notes, read_units
pieces.cut.__defaults__ = (5_000,)
when, count = sys.argv[1].split(":")
left = int(count)
def kill_behind(module, name, of=lambda *args: True):
    inner = getattr(module, name)
    def outer(*args, **named):
        global left
        result = inner(*args, **named)
        left -= of(*args)
        if left == 0:
            os.kill(os.getpid(), 9)
        return result
    setattr(module, name, outer)
if when == "note":
    kill_behind(read_notes.Notes, "save")
elif when == "commit":
    if left:
        kill_behind(os, "rename", lambda path, to: "_run-" in str(path) and "_run-" not in str(to))
    else:
        read_commit.put_if_absent = lambda *args: os.kill(os.getpid(), 9)
elif when == "size":
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, left))
elif when == "sync":
    kill_behind(read_units, "sync_file")
    kill_behind(read_job, "sync_file")
from recordmill.pipelines.read import read
read(json.loads(sys.argv[2]), sys.argv[3], **json.loads(sys.argv[4]))
"""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces.cut, "__defaults__", (5_000,))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same records as a data set, as one of gzip shards, as files of others, as their gzip streams, and with a damaged record in every file."""
    root = tmp_path_factory.mktemp("inputs")
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
    """A read in a process of its own that is killed when so many notes are written, or so many outputs renamed."""
    command = [sys.executable, "-c", _CHILD, when, json.dumps(source), str(out), json.dumps({**UNITS, **options})]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def run_of(out: Path) -> Path:
    (run,) = out.glob("_run-*")
    return run


def records_noted_in(run: Path) -> int:
    """How many records the notes of a dead read speak of: those of each job's last unit that has all before it."""
    by_job: dict[str, list[dict[str, Any]]] = {}
    for path in noted_in(run):
        by_job.setdefault(path.name.split(".")[0], []).append(json.loads(path.read_text()))
    return sum(notes[-1]["read"] for notes in by_job.values())


def undisturbed(source: Any, out: Path, **options: Any) -> ReadResult:
    """The same read without any notes, into `whole` beside out."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(read_resume, "is_noted", lambda plan: False)
        return read(source, out.with_name("whole"), **{**UNITS, **options})


def check_goes_on(source: Any, out: Path, **options: Any) -> ReadResult:
    """Go on with the read that was killed in `out`: the rest alone is read, and all files are those of an undisturbed read."""
    before = records_noted_in(run_of(out))
    count = len(noted_in(run_of(out)))
    progress = Progress()
    result = read(source, out, progress=progress, **{**UNITS, **options})
    whole = undisturbed(source, out, **options)
    assert f"going on from an earlier read: {count} of" in result.notes[-1]
    assert before > 0
    assert progress.records == whole.read - before
    assert (result.read, result.records, result.rejected, result.filtered) == (whole.read, whole.records, whole.rejected, whole.filtered)
    assert result.reject_reasons == whole.reject_reasons
    assert tree(out) == tree(out.with_name("whole"))
    return result


_CASES: list[tuple[str, dict[str, Any]]] = [
    ("gzip", {"to": "arrow"}), ("foreign", {"to": "jsonl"}), ("streams", {"to": "parquet"}), ("plain", {"to": "csv", "features": "id,name,maybe"}),
    ("foreign", {"to": "parquet", "where": "id % 3 = 1"}), ("damaged", {"to": "parquet", "max_rejects": 20}), ("plain", {"to": "npy", "pad": "tokens=4:0"}),
    ("gzip", {"to": "npy", "threads": 1}), ("foreign", {"to": "npz"}), ("streams", {"to": "npy"}), ("plain", {"to": "npy", "limit": 450}),
    ("foreign", {"to": "npy", "where": "id % 3 = 1", "limit": 130}), ("streams", {"to": "npy", "limit": 520}),
    ("foreign", {"to": "npy", "sample": 0.4, "seed": 3}), ("damaged", {"to": "npy", "max_rejects": "50%", "limit": 550}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), _CASES, ids=[f"{name}-{'-'.join(map(str, options.values()))}" for name, options in _CASES])
def test_a_killed_read_goes_on_and_ends_with_the_same_files(inputs: dict[str, Any], tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    out = tmp_path / "out"
    assert killed("note:4", inputs[name], out, **options).returncode == -signal.SIGKILL
    assert [path.name for path in out.iterdir()] == [run_of(out).name]
    assert len(noted_in(run_of(out))) >= 4
    result = check_goes_on(inputs[name], out, **options)
    assert (result.rejected > 0) == ("max_rejects" in options)


@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_finished_files_stay_where_they_are(inputs: dict[str, Any], tmp_path: Path, to: str) -> None:
    out = tmp_path / "out"
    killed("note:5", inputs["plain"], out, to=to)
    data = run_of(out) / "data"
    before = {path.stat().st_ino for path in (data.glob("*.parquet") if to == "parquet" else data.glob(".*.growing/*.npy"))}
    assert before
    check_goes_on(inputs["plain"], out, to=to)
    assert before <= {path.stat().st_ino for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_killed_again_and_again(inputs: dict[str, Any], tmp_path: Path, to: str) -> None:
    out = tmp_path / "out"
    counts = []
    for when in ("note:1", "note:2", "sync:3", "note:2"):
        assert killed(when, inputs["plain"], out, to=to).returncode == -signal.SIGKILL
        counts.append(len(noted_in(run_of(out))))
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]
    check_goes_on(inputs["plain"], out, to=to)


@pytest.mark.parametrize(("to", "renamed"), [("parquet", 1), ("parquet", 14), ("parquet", 0), ("npy", 1), ("npy", 3), ("npz", 1)])
def test_a_commit_that_was_killed_is_undone_and_done_again(inputs: dict[str, Any], tmp_path: Path, to: str, renamed: int) -> None:
    out = tmp_path / "out"
    options = {"to": to, "max_rejects": 20}
    assert killed(f"commit:{renamed}", inputs["damaged"], out, **options).returncode == -signal.SIGKILL
    assert len(list(out.iterdir())) > 1
    progress = Progress()
    result = read(inputs["damaged"], out, progress=progress, **UNITS, **options)
    assert (progress.records == 0) == (to != "npz")  # which is packed anew
    whole = undisturbed(inputs["damaged"], out, **options)
    assert result.rejected == whole.rejected == 12
    assert tree(out) == tree(tmp_path / "whole")


def test_a_commit_over_an_old_result_that_was_killed(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    read(inputs["plain"], out, to="jsonl", **UNITS)
    old = tree(out)
    assert killed("note:3", inputs["plain"], out, overwrite=True).returncode == -signal.SIGKILL
    assert {name: data for name, data in tree(out).items() if not name.startswith("_run")} == old
    with pytest.raises(UsageError, match="--overwrite"):
        read(inputs["plain"], out, **UNITS)
    assert killed("commit:2", inputs["plain"], out, overwrite=True).returncode == -signal.SIGKILL
    progress = Progress()
    read(inputs["plain"], out, overwrite=True, progress=progress, **UNITS)
    assert progress.records == 0
    undisturbed(inputs["plain"], out)
    assert tree(out) == tree(tmp_path / "whole")


@pytest.mark.parametrize("to", ["parquet", "npy"])
@pytest.mark.parametrize("name", ["foreign", "streams"])
def test_an_input_that_changed_is_read_anew(inputs: dict[str, Any], tmp_path: Path, to: str, name: str) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    for path in Path(inputs[name]).glob("*"):
        (source / path.name).write_bytes(path.read_bytes())
    # A value of the second file is another now; names, sizes and times are as they were.
    victim = sorted(source.glob("train-*"))[1]
    data = victim.read_bytes()
    rows = mixed_rows(100, 100)
    other = write_data_set(tmp_path / "other", {"train": rows.set_column(1, rows.schema[1], _one_changed(rows["matrix"]))}, shards=1)
    plain = next((other / FOLDER).glob("*.tfrecord")).read_bytes()
    new = plain if name == "foreign" else _packed_to(plain, len(data))
    if name == "streams":
        victim.write_bytes(_packed_to(gzip.decompress(data), len(new)))
        data = victim.read_bytes()
    assert len(new) == len(data)
    assert new != data
    about = victim.stat()
    assert killed("note:9" if name == "foreign" else "note:4", str(source), out, to=to, threads=1).returncode == -signal.SIGKILL
    noted_before = len(noted_in(run_of(out)))
    victim.write_bytes(new)
    os.utime(victim, ns=(about.st_atime_ns, about.st_mtime_ns))
    progress = Progress()
    result = read(str(source), out, to=to, progress=progress, **UNITS)
    whole = undisturbed(str(source), out, to=to)
    assert 100 <= progress.records < whole.read
    found = int(result.notes[-1].removeprefix("going on from an earlier read: ").split()[0])
    assert 0 < found < noted_before
    assert tree(out) == tree(tmp_path / "whole")


def _one_changed(column: Any) -> Any:
    values = column.combine_chunks()
    flat = np.array(values.values)
    flat[77 * 6] += 1000
    return type(values).from_arrays(flat, type=values.type)


def _packed_to(data: bytes, size: int) -> bytes:
    """A gzip stream of at least that size: a comment in its header takes the room, and 5000 bytes more make any two such streams meet."""
    packed = gzip.compress(data, mtime=0)
    room = max(size, 40_000) - len(packed)
    return packed[:3] + b"\x10" + packed[4:10] + b"x" * (room - 1) + b"\0" + packed[10:]


def test_an_output_that_was_touched_is_written_anew(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed("note:4", inputs["plain"], out)
    first, second = sorted((run_of(out) / "data").glob("*.parquet"))[:2]
    first.write_bytes(first.read_bytes()[:-1])
    second.unlink()
    before = len(noted_in(run_of(out)))
    result = read(inputs["plain"], out, **UNITS)
    assert f"read: {before - 2} of" in result.notes[-1]
    undisturbed(inputs["plain"], out)
    assert tree(out) == tree(tmp_path / "whole")


@pytest.mark.parametrize(
    "options",
    [{"to": "arrow"}, {"features": "id"}, {"file_size": 30_000}, {"max_rejects": 1}, {"where": "id > 3"}, {"where": pc.field("id") > 3}, {"sample": 0.5},
     {"reshape": "matrix=[6]"}, {"compression": "none"}, {"limit": 650}, {"split": "train"}],
    ids=str,
)  # fmt: skip
def test_another_command_begins_anew(inputs: dict[str, Any], tmp_path: Path, options: dict[str, Any]) -> None:
    out = tmp_path / "out"
    killed("note:3", inputs["plain"], out)
    dead = run_of(out)
    progress = Progress()
    result = read(inputs["plain"], out, progress=progress, **{**UNITS, **options})
    assert not [note for note in result.notes if "going on" in note]
    assert progress.records == result.read
    assert not dead.exists()


@pytest.mark.parametrize("other", ["where", "isin", "seed", "release"])
def test_what_makes_a_read_another_one(inputs: dict[str, Any], other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from recordmill.pipelines.read_options import make_settings
    from recordmill.shards import read_notes
    from recordmill.shards.read_plan import plan_read

    def mark(**options: Any) -> str:
        return read_notes.fingerprint(plan_read(inputs["plain"], make_settings(**options).plan))

    many = list(range(50))
    before, after = {
        "where": ({"where": "id = 3"}, {"where": "id = 4"}),
        "isin": ({"where": pc.field("id").isin(many)}, {"where": pc.field("id").isin([*many[:25], 7, *many[26:]])}),  # in its text both are the same
        "seed": ({"sample": 0.5, "seed": 1}, {"sample": 0.5, "seed": 2}),
        "release": ({}, {}),
    }[other]
    first = mark(**before)
    assert mark(**before, threads=1, memory="1GiB") == first
    if other == "release":
        monkeypatch.setattr(read_notes, "version", lambda name: "0.0.0" if name == "pyarrow" else "1")
    assert mark(**after) != first


def test_with_a_runner_it_begins_anew(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed("note:3", inputs["plain"], out)
    progress = Progress()
    result = read(inputs["plain"], out, runner="FnApiRunner", progress=progress, **UNITS)
    assert progress.records == result.read
    undisturbed(inputs["plain"], out)
    assert tree(out) == tree(tmp_path / "whole")


def test_a_mistyped_command_leaves_what_is_finished(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed("note:3", inputs["plain"], out)
    with pytest.raises(UsageError, match="no feature 'nope'"):
        read(inputs["plain"], out, features="nope", **UNITS)
    check_goes_on(inputs["plain"], out)


def test_an_error_in_the_data_leaves_nothing(inputs: dict[str, Any], tmp_path: Path) -> None:
    for options in ({}, {"max_rejects": 2}):
        with pytest.raises(RecordmillError, match="CRC"):
            read(inputs["damaged"], tmp_path / "out", **UNITS, **options)
        assert not (tmp_path / "out").exists()


def test_of_two_at_once_one_goes_on_and_the_other_begins_anew(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed("note:3", inputs["plain"], out)
    first = RunFolder.take_over(run_of(out))
    assert first is not None
    assert RunFolder.take_over(first.path) is None
    progress = Progress()
    result = read(inputs["plain"], out, progress=progress, **UNITS)
    assert progress.records == result.read
    assert noted_in(first.path)
    first.release()
    progress = Progress()
    again = read(inputs["plain"], out, overwrite=True, progress=progress, **UNITS)
    assert progress.records < again.read
    assert not list(out.glob("_run-*"))


def test_two_processes_at_once(inputs: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed("note:3", inputs["plain"], out, to="npy")
    command = [sys.executable, "-c", _CHILD, "never:0", json.dumps(inputs["plain"]), str(out), json.dumps({**UNITS, "to": "npy"})]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate()[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes.count(0) == 1, errors
    for code, error in zip(codes, errors, strict=True):
        assert code == 0 or "another read wrote its result" in error or "already holds the result" in error
    undisturbed(inputs["plain"], out, to="npy")
    assert tree(out) == tree(tmp_path / "whole")


@pytest.mark.parametrize("to", ["npy", "jsonl"])
def test_a_full_disk_keeps_what_is_finished_and_says_so(inputs: dict[str, Any], tmp_path: Path, to: str) -> None:
    out = tmp_path / "out"
    options = {"to": to, "file_size": 20_000 if to == "npy" else 40_000}
    sizes = [path.stat().st_size for path in read(inputs["plain"], tmp_path / "sizes", **{**UNITS, **options}).out.rglob("*") if path.is_file()]
    limit = max(sizes) - (2_000 if to == "npy" else 200)
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
    """Many small files, each of them a unit of its own where --file-size is 1."""
    root.mkdir()
    shards = sorted(Path(inputs["foreign"]).glob("train-*"))
    for number, path in zip(range(times), itertools.cycle(shards), strict=False):
        os.link(path, root / f"{number:04d}.tfrecord")
    return [str(root)]


@pytest.mark.parametrize(("to", "stop"), [("parquet", signal.SIGKILL), ("parquet", signal.SIGTERM), ("npy", signal.SIGKILL), ("npy", signal.SIGINT)])
def test_the_command_line_is_stopped_and_given_again(inputs: dict[str, Any], tmp_path: Path, to: str, stop: signal.Signals) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "recordmill", "read", *_files(tmp_path / "in", inputs, 30), "--to", to, "--file-size", "1", "--features", "id,tokens"]
    process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (runs := list(out.glob("_run-*"))) or len(noted_in(runs[0])) < 5:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(stop)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == (-9 if stop == signal.SIGKILL else 130)
    run = run_of(out)
    count = len(noted_in(run))
    assert 5 <= count < 30
    if stop != signal.SIGKILL:
        assert f"recordmill: error: stopped; {count} finished parts are kept: the same command goes on from there; to drop them, remove {run}" in error
    for folder in (out, tmp_path / "whole"):
        ended = subprocess.run([*command, "--out", str(folder)], check=True, capture_output=True, text=True)
        assert (f"going on from an earlier read: {count} of 30 parts were finished" in ended.stderr) == (folder == out)
        assert (f"note: going on from an earlier read: {count} of 30" in ended.stdout) == (folder == out)
    assert tree(out) == tree(tmp_path / "whole")


def test_stopping_one_of_two_splits_does_not_wait_for_the_other(inputs: dict[str, Any], tmp_path: Path) -> None:
    """Ctrl-C reaches the threads that write the splits at once; else it would take as long as the read."""
    source = f"""
import sys, time
import recordmill.shards.read_units as units
inner = units.read_parts
def slow(*args):
    for part in inner(*args):
        print("part", flush=True)
        time.sleep(0.3)
        yield part
units.read_parts = slow
from recordmill.shards import pieces
pieces.cut.__defaults__ = (500,)
from recordmill.pipelines.read import read
read({inputs["plain"]!r}, {str(tmp_path / "out")!r}, to="npy", features="id", file_size=1000, threads=4)
"""
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(6):
        assert process.stdout.readline() == "part\n"
    process.send_signal(signal.SIGINT)
    rest, error = process.communicate(timeout=60)
    assert "stopped; " in error
    assert rest.count("part") < 20  # of some 300


def test_a_small_read_writes_no_notes(inputs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from recordmill.shards.read_notes import Notes

    def refuse(*args: object) -> None:
        raise AssertionError("a note")

    monkeypatch.setattr(Notes, "begin", refuse)
    monkeypatch.setattr(Notes, "save", refuse)
    for to in ("parquet", "npy"):
        assert read(inputs["plain"], tmp_path / to, to=to).written == 690


def test_an_input_that_changes_while_it_is_read_gets_no_note(inputs: dict[str, Any], tmp_path: Path) -> None:
    from recordmill.pipelines.read_options import make_settings
    from recordmill.shards.read_notes import Note, Notes, fingerprint, units_of
    from recordmill.shards.read_plan import plan_read

    source = tmp_path / "source"
    source.mkdir()
    for path in Path(inputs["foreign"]).glob("*"):
        (source / path.name).write_bytes(path.read_bytes())
    plan = plan_read(str(source), make_settings(file_size=20_000).plan)
    folder = RunFolder.create(tmp_path / "out")
    notes = Notes.begin(folder.path, fingerprint(plan))
    assert fingerprint_of(folder.path) == fingerprint(plan)
    job = plan.jobs[0]
    notes.save(plan, job, 0, units_of(plan, job)[0], Note())
    assert len(noted_in(folder.path)) == 1
    for path in source.glob("*"):
        os.utime(path, ns=(1, 1))
    notes.save(plan, job, 1, units_of(plan, job)[0], Note())
    for path in source.glob("*"):
        path.unlink()
    notes.save(plan, job, 2, units_of(plan, job)[0], Note())
    assert len(noted_in(folder.path)) == 1
    folder.close()
