"""Stopped builds and reads leave OUT consistent.

These tests stop them at some changes of the file system. `.ci/faults` tries all changes.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit.files import damaged_copies, tree

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.shards.verify import verify

pytestmark = pytest.mark.sweep

HERE = Path(__file__).parent
# (job, way to stop it, step). Reads have about 60 changes, and builds about 115.
SAMPLE = [
    ("reread-parquet", "kill", 9),
    ("reread-npy", "EIO", 17),
    ("read-jsonl", "ENOSPC", 11),
    ("rebuild", "kill", 31),
    ("files-build", "EIO", 19),
    ("append", "kill", 23),
    ("append", "ENOSPC", 29),
]
ALL_CASES = [
    (job, how, 1)
    for job in (
        "build",
        "files-build",
        "rebuild",
        "append",
        *(f"{read}-{to}" for read in ("read", "reread") for to in ("parquet", "npy", "npz")),
    )
    for how in ("kill", "EIO", "ENOSPC")
]
CASES = ALL_CASES if os.environ.get("RECORDMILL_FAULTS") == "all" else SAMPLE


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The compiled library that counts the changes of files and lets them fail."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("the library that lets system calls fail is compiled by gcc, on Linux")
    target = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", "-o", target, HERE / "shim.c", "-ldl"], check=True
    )
    return str(target)


@pytest.mark.faults
@pytest.mark.parametrize(("job", "how", "step"), CASES)
def test_stop_at_any_change_of_the_file_system_leaves_out_consistent(
    shim: str, tmp_path: Path, job: str, how: str, step: int
) -> None:
    command = [sys.executable, str(HERE / "sweep.py"), job, how, str(tmp_path / "sweep"), str(step)]
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LD_PRELOAD": shim}
    )
    assert process.returncode == 0, process.stderr[-2000:]
    *problems, last = map(json.loads, process.stdout.splitlines())
    assert not problems, "\n".join(map(str, problems[:5]))
    assert last["changes"] > 30
    assert last["cases"] > last["changes"] // step


@pytest.mark.faults
@pytest.mark.parametrize(
    ("crowd", "all_rounds", "sample"), [("crowd.py", 200, 3), ("growing_crowd.py", 50, 3)]
)
def test_concurrent_builds_or_appends_leave_one_data_set_consistent(
    tmp_path: Path, crowd: str, all_rounds: int, sample: int
) -> None:
    rounds = str(all_rounds if CASES is ALL_CASES else sample)
    command = [sys.executable, str(HERE / crowd), str(tmp_path / "crowd"), rounds]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    *problems, _ = map(json.loads, process.stdout.splitlines())
    assert not problems, "\n".join(map(str, problems[:5]))


# By part: the distance between damaged bytes in the sample.
PARTS = {
    "_manifests/*.json": 97,
    "manifest.json": 499,
    "schema.pbtxt": 199,
    "data-*/index/*.npy": 61,
    "data-*/*.tfrecord": 41,
}


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """Folder with two inputs, a data set and another folder.

    The inputs are old.csv and new.csv. The data set is in `template`, and a build must not touch
    the folder `beside`.
    """
    for name, letter in (("old", "x"), ("new", "y")):
        (tmp_path / f"{name}.csv").write_text(
            "a,b\n" + "".join(f"{i},{letter}{i}\n" for i in range(5))
        )
    recordmill.build(tmp_path / "old.csv", tmp_path / "template", threads=1, name="x")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "kept").write_text("kept")
    return tmp_path


def build_over(source: Path, out: Path) -> str | None:
    """Builds over OUT. Returns the error message, or None if it succeeds."""
    try:
        recordmill.build(source, out, threads=1, name="x", overwrite=True)
    except RecordmillError as error:
        return str(error)
    return None


@pytest.mark.faults
@pytest.mark.parametrize("part", PARTS)
def test_build_over_damaged_files_commits_or_keeps_every_old_byte(case: Path, part: str) -> None:
    out = case / "out"
    (path,) = (case / "template").glob(part)
    (folder,) = (path.name for path in (case / "template").glob("data-*"))
    name, content = path.relative_to(case / "template"), path.read_bytes()
    built, step = 0, 1 if CASES is ALL_CASES else PARTS[part]
    for data in damaged_copies(content, step, 3 * step):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(case / "template", out)
        (out / name).write_bytes(data)
        before, refusal = tree(out), build_over(case / "new.csv", out)
        if refusal is not None:
            assert refusal.strip(), data
            assert tree(out) == before, (data, refusal)
        else:
            built += 1
            values = recordmill.open(out, threads=1).to_table()["b"].to_pylist()
            assert sorted(values) == [f"y{i}" for i in range(5)], data
            # No manifest names this folder any more. It is never removed, but `verify` reports it.
            stray = f"{out / folder}: belongs to no committed generation"
            assert [str(problem) for problem in verify(out, threads=1)] in ([], [stray]), data
        assert tree(case / "beside") == {"kept": b"kept"}
        assert sorted(os.listdir(case)) == ["beside", "new.csv", "old.csv", "out", "template"]
    assert built or part == "_manifests/*.json"
