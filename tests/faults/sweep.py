"""One job stopped at its n-th change of files: `LD_PRELOAD=shim.so python sweep.py JOB HOW FOLDER
[STEP]`.
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
SECONDS = 60  # a case that takes longer hangs
Tree = dict[str, bytes]


def make_job(
    job: str, root: Path
) -> tuple[Callable[[Path], object], Callable[[Path], object] | None]:
    """(what is stopped, what made the OUT that it replaces, or None)."""
    overwrite = job.startswith("re") and job != "read" and not job.startswith("read-")
    is_append = job == "append"
    rows, others = root / "rows.csv", root / "others.csv"
    rows.write_text("a,b\n" + "".join(f"{i},x{i}\n" for i in range(40)))
    others.write_text("a,b\n" + "".join(f"{i},y{i}\n" for i in range(30)))
    if job.endswith("build") or is_append:
        options: dict[str, Any] = {"splits": "train=0.5,test=0.5", "threads": 1, "name": "x"}
        if job == "files-build":
            rows = root / "documents"
            rows.mkdir()
            for number in range(40):
                (rows / f"{number}.txt").write_text(f"document {number} " * 200)
            options |= {"mode": "documents", "num_shards": 2}
        how = {"append": True} if is_append else {"overwrite": overwrite}
        new = lambda out: recordmill.build(str(rows), str(out), **how, **options)  # noqa: E731
        old = lambda out: recordmill.build(str(others), str(out), **options)  # noqa: E731
    else:
        to = job.split("-")[1]
        for name, path in (("new", rows), ("old", others)):
            recordmill.build(str(path), str(root / name), splits="train=0.5,test=0.5", threads=1)
        new = lambda out: _read_all(root / "new", out, to, overwrite)  # noqa: E731
        old = lambda out: _read_all(root / "old", out, to)  # noqa: E731
    return new, old if overwrite or is_append else None


def _read_all(data_set: Path, out: Path, to: str, overwrite: bool = False) -> object:
    return recordmill.read(str(data_set), str(out), to=to, overwrite=overwrite, threads=1)


def content(out: Path) -> Tree | None:
    """What a reader finds: of a data set its shards, of a read's result its files; None if there is
    none.
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


def readable(out: Path) -> list[str]:
    """What is taken for an input of what was stopped."""
    with contextlib.suppress(UsageError):
        return [file.name for file in list_inputs([str(out)]).files]
    return []


def litter(folder: Path) -> list[str]:
    """Names beside and in OUT that no undisturbed job leaves.

    A run that was killed before it wrote its owner into its lock may belong to another machine. So
    its folder stays for the time of a lease (`test_dead_runs.py`).
    """
    beside = [name for name in os.listdir(folder) if name != "out"]
    unowned = {
        run
        for run in (folder / "out").glob("_run-*")
        if os.listdir(run) == ["lock"] and not (run / "lock").stat().st_size
    }
    inside = [
        path.relative_to(folder).as_posix()
        for path in (folder / "out").rglob("*")
        if path not in unowned and path.parent not in unowned
    ]
    return beside + [name for name in inside if "/_run-" in name or "/." in name]


def forked(work: Callable[[], object], arm: tuple[Path, int, int] | None) -> dict[str, Any]:
    """Run it in a fork; gives count, error (text), crash (a traceback), killed."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        signal.alarm(SECONDS)
        told: dict[str, Any] = {}
        shim = ctypes.CDLL(None)
        try:
            if arm is not None:
                shim.faults_arm(os.fsencode(f"{arm[0]}/"), ctypes.c_long(arm[1]), arm[2])
            work()
        except (RecordmillError, OSError) as error:
            told["error"] = str(error)
        except BaseException:
            told["crash"] = traceback.format_exc()[-1500:]
        if arm is not None:
            told["count"] = int(shim.faults_count())
            shim.faults_arm(b"/", ctypes.c_long(-1), 0)
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = json.loads(pipe.read() or b"{}")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        told["signal"] = os.WTERMSIG(status)
    return told


def check(
    case: Path,
    told: dict[str, Any],
    new: Callable[[Path], object],
    states: dict[str, Tree | None],
    is_read: bool,
) -> list[str]:
    """What is wrong after a case.

    A read that replaces a result may leave none, which the next one then completes.
    """
    wrong = []
    out = case / "out"
    if told.get("signal") == signal.SIGALRM:
        wrong.append("it hung")
    if "crash" in told:
        wrong.append(f"a traceback: {told['crash']}")
    found = content(out)
    if found not in (states["old"], states["new"]) and not (is_read and found is None):
        wrong.append(
            f"neither the old result nor the new one: {None if found is None else sorted(found)}"
        )
    if (
        "error" in told
        and found == states["new"] != states["old"]
        and "complete" not in told["error"]
    ):
        wrong.append(f"said to have failed, and is there: {told['error']}")
    if "signal" not in told and not told.get("error") and found != states["new"]:
        wrong.append("said to be done, and is not there")
    if found is None and out.is_dir() and (taken := readable(out)):
        wrong.append(f"read as whole: {taken}")
    if found != states["new"]:
        again = forked(lambda: new(out), None)
        # Without `overwrite`, a read completes the earlier one, and says that its result is there.
        if again and not (is_read and "already holds the result" in again.get("error", "")):
            wrong.append(f"the same command fails: {again}")
        elif content(out) != states["new"]:
            wrong.append("the same command gives something else")
    elif states["old"] is not None:
        again = forked(lambda: new(out), None)
        if again or content(out) != states["new"]:
            wrong.append(f"the same command, once more: {again}")
    if states["old"] is not None and (left := litter(case)):
        wrong.append(f"left behind: {left[:5]}")
    return wrong


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
        told = forked(lambda case=case: new(case / "out"), (case, n, CODES[how]))
        ended = told.get("count", n + 1) <= n and "signal" not in told
        for problem in check(case, told, new, states, is_read="read-" in job):
            print(json.dumps({"job": job, "how": how, "n": n, "problem": problem}), flush=True)
        shutil.rmtree(case)
        cases += 1
        if ended:
            break
    print(json.dumps({"cases": cases, "changes": n}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 1)
