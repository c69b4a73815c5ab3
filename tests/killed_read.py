"""Reads that are killed for real, in processes of their own, and what they must end with when they are called again."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit import tree
from made_data_set import FOLDER, mixed_rows, write_data_set

from recordmill.base.progress import Progress
from recordmill.exporting import resume as read_resume
from recordmill.exporting.resume import accounts_in
from recordmill.pipelines.read import ReadResult, read

ROWS = {"train": mixed_rows(600), "test": mixed_rows(90, 600)}
UNITS = {"file_size": 20_000, "threads": 2}  # some 14 outputs of about this size

CHILD = """
import json, os, sys
from recordmill.exporting import job, publish, resume
from recordmill.shards import cutting
cutting.PIECE_BYTES = 5_000
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
if when == "account":
    kill_behind(resume.Finished, "save")
elif when in ("commit", "place"):
    if when == "place":  # as where folders can't be exchanged
        publish.exchange = lambda *_: False
    kill_behind(publish, "rename")
elif when == "size":
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, left))
elif when == "sync":
    kill_behind(resume, "sync_file")
    kill_behind(job, "sync_file")
from recordmill.pipelines.read import read
read(json.loads(sys.argv[2]), sys.argv[3], **json.loads(sys.argv[4]))
"""


def make_inputs(root: Path) -> dict[str, Any]:
    """The same records as a data set, gzip shards, files of others, gzip streams, and files with a damaged record."""
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
    """A read in a process of its own that is killed when so many accounts are written, or so many outputs renamed."""
    command = [sys.executable, "-c", CHILD, when, json.dumps(source), str(out), json.dumps({**UNITS, **options})]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def run_of(out: Path) -> Path:
    (run,) = out.glob("_run-*")
    return run


def records_finished_in(run: Path) -> int:
    """How many records the accounts of a dead read speak of."""
    return sum(json.loads(path.read_text())["read"] for path in accounts_in(run))


def undisturbed(source: Any, out: Path, **options: Any) -> ReadResult:
    """The same read without any accounts, into `whole` beside out."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(read_resume, "is_noted", lambda *_: False)
        return read(source, out.with_name("whole"), **{**UNITS, **options})


def check_goes_on(source: Any, out: Path, **options: Any) -> ReadResult:
    """Goes on with the read killed in `out`: the rest alone is read, and the files are those of an undisturbed one."""
    before = records_finished_in(run_of(out))
    count = len(accounts_in(run_of(out)))
    progress = Progress()
    result = read(source, out, progress=progress, **{**UNITS, **options})
    whole = undisturbed(source, out, **options)
    assert f"going on from an earlier read: {count} of" in result.notes[-1]
    assert before > 0
    assert progress.records == whole.read - before
    assert (result.read, result.records, result.rejected, result.filtered) == (
        whole.read, whole.records, whole.rejected, whole.filtered,
    )  # fmt: skip
    assert result.reject_reasons == whole.reject_reasons
    assert tree(out) == tree(out.with_name("whole"))
    return result
