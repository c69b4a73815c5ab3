"""Stops a job at its n-th change of files: `python sweep.py JOB HOW FOLDER [STEP]`.

The process needs LD_PRELOAD=shim.so. Every STEP-th change is tried.
"""

import contextlib
import ctypes
import errno
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import recordmill
from recordmill.base.errors import RecordmillError, UsageError
from recordmill.storage.listing import list_inputs

CODES = {"kill": 0, "EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
SECONDS = 60  # limit for a case
Tree = dict[str, bytes]


def make_job(
    job: str, root: Path
) -> tuple[Callable[[Path], object], Callable[[Path], object] | None]:
    """Returns (the job, a job that makes the old contents of OUT, or None).

    Args:
        job: The name of the job.
        root: The folder for its inputs.
    """
    overwrite = job.startswith("re") and job != "read" and not job.startswith("read-")
    is_append = job == "append"
    rows, old_rows = root / "rows.csv", root / "others.csv"
    rows.write_text("a,b\n" + "".join(f"{i},x{i}\n" for i in range(40)))
    old_rows.write_text("a,b\n" + "".join(f"{i},y{i}\n" for i in range(30)))
    if job.endswith("build") or is_append:
        options: dict[str, Any] = {"splits": "train=0.5,test=0.5", "threads": 1, "name": "x"}
        if job == "files-build":
            rows = root / "documents"
            rows.mkdir()
            for number in range(40):
                (rows / f"{number}.txt").write_text(f"document {number} " * 200)
            options |= {"mode": "documents", "num_shards": 2}
        extra = {"append": True} if is_append else {"overwrite": overwrite}
        new = lambda out: recordmill.build(str(rows), str(out), **extra, **options)  # noqa: E731
        old = lambda out: recordmill.build(str(old_rows), str(out), **options)  # noqa: E731
    else:
        to = job.split("-")[1]
        for name, path in (("new", rows), ("old", old_rows)):
            recordmill.build(str(path), str(root / name), splits="train=0.5,test=0.5", threads=1)
        new = lambda out: _read_all(root / "new", out, to, overwrite)  # noqa: E731
        old = lambda out: _read_all(root / "old", out, to)  # noqa: E731
    return new, old if overwrite or is_append else None


def _read_all(data_set: Path, out: Path, to: str, overwrite: bool = False) -> object:
    return recordmill.read(str(data_set), str(out), to=to, overwrite=overwrite, threads=1)


def content(out: Path) -> Tree | None:
    """Returns the contents of OUT for a reader, or None if nothing is readable.

    The contents are the shards of a data set, or the files of a read.
    """
    if not out.is_dir():
        return None
    if (out / "_manifests").is_dir() and list((out / "_manifests").glob("[0-9]*.json")):
        files = recordmill.open(out).records.catalog.files
        # Shards of several parts may have the same name.
        return {
            f"{number} {file.info.name}": Path(file.path).read_bytes()
            for number, file in enumerate(files)
            if file.info is not None
        }
    if not (out / "_read.json").exists():
        return None
    return {
        name: path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file()
        and not (name := path.relative_to(out).as_posix()).startswith(("_run-", "."))
    }


def list_readable(out: Path) -> list[str]:
    """Returns the names of the files in OUT that a build accepts as inputs."""
    with contextlib.suppress(UsageError):
        return [file.name for file in list_inputs([str(out)]).files]
    return []


def list_litter(folder: Path) -> list[str]:
    """Returns names next to OUT and in OUT that an undisturbed job doesn't leave.

    A run that was killed before it wrote its owner into its lock may belong to another machine. So
    its folder stays for the time of a lease (`test_dead_runs.py`).
    """
    outer_names = [name for name in os.listdir(folder) if name != "out"]
    unowned = {
        run
        for run in (folder / "out").glob("_run-*")
        if os.listdir(run) == ["lock"] and not (run / "lock").stat().st_size
    }
    inner_names = [
        path.relative_to(folder).as_posix()
        for path in (folder / "out").rglob("*")
        if path not in unowned and path.parent not in unowned
    ]
    return outer_names + [name for name in inner_names if "/_run-" in name or "/." in name]


def run_in_fork(work: Callable[[], object], arm: tuple[Path, int, int] | None) -> dict[str, Any]:
    """Runs `work` in a fork.

    Args:
        arm: (folder, number of the change to stop at, error code or 0 to kill), or None.

    Returns:
        A dict with "count" (the number of changes), "error" (its text), "crash" (a traceback) and
            "signal" (the signal that ended the process). A key is missing if it does not apply.
    """
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        signal.alarm(SECONDS)
        report: dict[str, Any] = {}
        shim = ctypes.CDLL(None)
        try:
            if arm is not None:
                shim.faults_arm(os.fsencode(f"{arm[0]}/"), ctypes.c_long(arm[1]), arm[2])
            work()
        except (RecordmillError, OSError) as error:
            report["error"] = str(error)
        except BaseException:
            report["crash"] = traceback.format_exc()[-1500:]
        if arm is not None:
            report["count"] = int(shim.faults_count())
            shim.faults_arm(b"/", ctypes.c_long(-1), 0)
        os.write(writing, json.dumps(report).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        report = json.loads(pipe.read() or b"{}")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        report["signal"] = os.WTERMSIG(status)
    return report


def check(
    case: Path,
    report: dict[str, Any],
    new: Callable[[Path], object],
    states: dict[str, Tree | None],
    is_read: bool,
) -> list[str]:
    """Returns the problems after a case.

    A read that replaces a result may leave none. The next read must complete it.
    """
    problems = []
    out = case / "out"
    if report.get("signal") == signal.SIGALRM:
        problems.append("it hung")
    if "crash" in report:
        problems.append(f"a traceback: {report['crash']}")
    state = content(out)
    if state not in (states["old"], states["new"]) and not (is_read and state is None):
        problems.append(
            f"neither the old result nor the new one: {None if state is None else sorted(state)}"
        )
    if (
        "error" in report
        and state == states["new"] != states["old"]
        and "complete" not in report["error"]
    ):
        problems.append(f"said to have failed, and is there: {report['error']}")
    if "signal" not in report and not report.get("error") and state != states["new"]:
        problems.append("said to be done, and is not there")
    if state is None and out.is_dir() and (names := list_readable(out)):
        problems.append(f"read as whole: {names}")
    if state != states["new"]:
        second_report = run_in_fork(lambda: new(out), None)
        # Without `overwrite`, a read completes the earlier read, and fails because the result
        # exists.
        if second_report and not (
            is_read and "already holds the result" in second_report.get("error", "")
        ):
            problems.append(f"the same command fails: {second_report}")
        elif content(out) != states["new"]:
            problems.append("the same command gives something else")
    elif states["old"] is not None:
        second_report = run_in_fork(lambda: new(out), None)
        if second_report or content(out) != states["new"]:
            problems.append(f"the same command, once more: {second_report}")
    if states["old"] is not None and (leftovers := list_litter(case)):
        problems.append(f"left behind: {leftovers[:5]}")
    return problems


def main(job: str, how: str, folder: str, step: int = 1) -> None:
    root = Path(folder)
    root.mkdir(parents=True)
    new, old = make_job(job, root)
    states: dict[str, Tree | None] = {"old": None}
    (root / "template").mkdir()
    if old is not None:
        old(root / "template" / "out")
        states["old"] = content(root / "template" / "out")
    shutil.copytree(root / "template", root / "whole")
    new(root / "whole" / "out")
    states["new"] = content(root / "whole" / "out")
    assert states["new"] != states["old"]
    cases = 0
    for n in range(0, 100_000, step):
        case = root / "case"
        shutil.copytree(root / "template", case)
        report = run_in_fork(lambda case=case: new(case / "out"), (case, n, CODES[how]))
        is_last = report.get("count", n + 1) <= n and "signal" not in report
        for problem in check(case, report, new, states, is_read="read-" in job):
            print(json.dumps({"job": job, "how": how, "n": n, "problem": problem}), flush=True)
        shutil.rmtree(case)
        cases += 1
        if is_last:
            break
    print(json.dumps({"cases": cases, "changes": n}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 1)
