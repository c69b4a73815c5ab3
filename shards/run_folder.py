"""The folder of a build at work, `OUT/_run-<id>/`: created locked, so that a later build can prove it dead and clean it.

The lock is `flock` on a file that names host and boot; the kernel drops it with its process. A folder of another host is never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

from recordmill.schemas.errors import UsageError
from recordmill.shards.manifest import DATA_PREFIX, MANIFESTS, RUN_PREFIX, generations, load

LOCK_NAME, INTENT_NAME = "lock", "intent"
COPIES = ("manifest.json", "schema.pbtxt", "dataset_info.json", "features.json")  # rewritten after each commit; more may follow by `*.labels.txt`
_OURS = (MANIFESTS, "rejects", *COPIES)


class RunFolder:
    """A build's own folder under OUT, held until `close`; every path in it is invisible to readers."""

    def __init__(self, out: Path, identifier: str, descriptor: int, created_out: bool) -> None:
        self.out, self.id, self._descriptor, self._created_out = out, identifier, descriptor, created_out

    @classmethod
    def create(cls, out: str | os.PathLike[str], identifier: str | None = None) -> RunFolder:
        """Make OUT if need be and the locked folder in it, after dead ones were cleaned.

        identifier: a name for the run, where repeated attempts must not make several; by default a new one.

        Raises:
            UsageError: OUT can't be made, or is not a folder.
        """
        path = Path(out)
        created = not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UsageError(f"--out {path} is a file; name a folder") from None
        clean_dead(path)
        identifier = identifier or uuid.uuid4().hex[:12]
        making = path / f".{RUN_PREFIX}{identifier}.tmp"
        making.mkdir()
        descriptor = os.open(making / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, json.dumps({**_machine(), "pid": os.getpid()}).encode())
        folder = path / f"{RUN_PREFIX}{identifier}"
        making.rename(folder)
        for name in ("data", "runs", "rejects", "spool"):
            (folder / name).mkdir()
        (folder / "data" / "index").mkdir()
        return cls(path, identifier, descriptor, created)

    @classmethod
    def attach(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The folder of a run that another process or another part of this one holds; closing it is theirs."""
        folder = Path(path)
        return cls(folder.parent, folder.name.removeprefix(RUN_PREFIX), -1, False)

    @property
    def path(self) -> Path:
        return self.out / f"{RUN_PREFIX}{self.id}"

    @property
    def data(self) -> Path:
        """Where shards are written; renamed to OUT/data-<id> at the commit."""
        return self.path / "data"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def rejects(self) -> Path:
        return self.path / "rejects"

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    def intend(self, folder: str) -> None:
        """Note the name that data is about to get, so that whoever finds this run dead can tell what is its litter."""
        (self.path / INTENT_NAME).write_text(folder)

    def close(self) -> None:
        """Remove the folder, and OUT if this run made it and it stayed empty."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        if self._created_out:
            with contextlib.suppress(OSError):
                self.out.rmdir()


def check_out(out: str | os.PathLike[str], overwrite: bool) -> int:
    """The generation that a build into OUT would follow (0: none); UsageError if OUT must not be written to."""
    path = Path(out)
    numbers = generations(path)
    if numbers and not overwrite:
        raise UsageError(f"{path} already holds a data set; --overwrite replaces it (the old one stays readable until the new one is complete)")
    if numbers:
        return numbers[-1]
    if path.is_dir():
        strange = [name for name in os.listdir(path) if name not in _OURS and not name.startswith((RUN_PREFIX, f".{RUN_PREFIX}", DATA_PREFIX))]
        if strange:
            raise UsageError(f"{path} is not empty ({', '.join(sorted(strange)[:3])}, ...) and holds no data set of recordmill; name a new or an empty folder")
    return 0


def clean_dead(out: Path) -> list[str]:
    """Remove the run folders whose process is provably dead, and what they had already moved; gives their names."""
    dead = [folder for folder in sorted(out.glob(f"{RUN_PREFIX}*")) + sorted(out.glob(f".{RUN_PREFIX}*.tmp")) if _is_dead(folder)]
    kept = _committed_folders(out) | {intent for folder in out.glob(f"{RUN_PREFIX}*") if folder not in dead for intent in _intent(folder)}
    for folder in dead:
        for intent in _intent(folder):
            if intent not in kept:
                shutil.rmtree(out / intent, ignore_errors=True)
                for rejects in (out / "rejects").glob(f"{intent.removeprefix(DATA_PREFIX)}.*"):
                    rejects.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return [folder.name for folder in dead]


def _committed_folders(out: Path) -> set[str]:
    return {part.folder for number in generations(out) for part in load(out, number).parts}


def _intent(folder: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        name = (folder / INTENT_NAME).read_text()
        if name.startswith(DATA_PREFIX) and "/" not in name:
            yield name


def _is_dead(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # no lock to judge by: not provably dead
    try:
        owner = json.loads(os.read(descriptor, 4096) or b"{}")
        here = _machine()
        if owner.get("host") != here["host"]:
            return False
        if owner.get("boot") != here["boot"]:
            return True
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, ValueError):
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _machine() -> dict[str, str]:
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"host": socket.gethostname(), "boot": boot}
