"""The folder of a build at work, `OUT/_run-<id>/`:
created locked, so that a later build can prove it dead and clean it.

The lock is `flock` on a file that names host and boot; the kernel drops it with its process. A folder of another host
is never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from recordmill.base.errors import UsageError
from recordmill.shards.manifest import DATA_PREFIX, MANIFESTS, RUN_PREFIX, Manifest, generations, load

LOCK_NAME, INTENT_NAME = "lock", "intent"
ABOUT_NAME = "read.json"  # which read it is that could go on in this folder
# rewritten after each commit; more may follow by `*.labels.txt`
COPIES = ("manifest.json", "schema.pbtxt", "dataset_info.json", "features.json")
_OURS = (MANIFESTS, "rejects", *COPIES)


class RunFolder:
    """A build's own folder under OUT, held until `close`; every path in it is invisible to readers."""

    def __init__(self, out: Path, identifier: str, descriptor: int, made: Sequence[Path] = ()) -> None:
        self.out, self.id, self._descriptor, self._made = out, identifier, descriptor, made
        self._kept = False

    @classmethod
    def create(
        cls,
        out: str | os.PathLike[str],
        identifier: str | None = None,
        keep: Callable[[Path], bool] | None = None,
        index: bool = True,
    ) -> RunFolder:
        """Make OUT if need be and the locked folder in it, after dead ones were cleaned.

        identifier: a name for the run, where repeated attempts must not make several; by default a new one. keep: which
        dead folders are left alone. index: data is to have the folder that indexes of shards stand in.

        Raises:
            UsageError: OUT can't be made, is not a folder, or can't be written to.
        """
        path = Path(out)
        identifier = identifier or uuid.uuid4().hex[:12]
        folder = cls(path, identifier, -1, _make_out(path))
        try:
            clean_dead(path, keep)
            folder._lock(index)
        except OSError as error:
            folder.close()
            raise UsageError(f"--out {path}: can't be written to: {error.strerror}") from None
        except BaseException:
            folder.close()
            raise
        return folder

    def _lock(self, index: bool) -> None:
        """Make the folder under another name, lock it, and only then give it its own,
        so that nobody finds it unlocked.
        """
        making = self._making
        making.mkdir()
        self._descriptor = os.open(making / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        self._sign()
        for name in ("data", "runs", "rejects", "spool"):
            (making / name).mkdir()
        if index:
            (making / "data" / "index").mkdir()
        making.rename(self.path)

    def _sign(self) -> None:
        """Write into the lock whose it is, over what stood there, in one step."""
        text = json.dumps({**_machine(), "pid": os.getpid()}).encode()
        os.pwrite(self._descriptor, text.ljust(os.fstat(self._descriptor).st_size), 0)

    @classmethod
    def take_over(cls, path: Path) -> RunFolder | None:
        """The folder of a dead run with all that is in it, from now on this process's own; None if its run is alive, or
        someone else was first.
        """
        descriptor = _claim(path)
        if descriptor is None:
            return None
        folder = cls(path.parent, path.name.removeprefix(RUN_PREFIX), descriptor)
        if descriptor < 0 or not path.is_dir():  # empty, or removed between the look and the lock
            folder.close()
            return None
        folder._sign()
        return folder

    @classmethod
    def attach(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The folder of a run that another process or another part of this one holds; closing it is theirs."""
        folder = Path(path)
        return cls(folder.parent, folder.name.removeprefix(RUN_PREFIX), -1)

    @property
    def path(self) -> Path:
        return self.out / f"{RUN_PREFIX}{self.id}"

    @property
    def _making(self) -> Path:
        return self.out / f".{RUN_PREFIX}{self.id}.tmp"

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
        """Note the name that data is about to get, and which folder it is, so that whoever finds this run dead can tell
        its litter from others' data.
        """
        (self.path / INTENT_NAME).write_text(json.dumps({"folder": folder, "inode": self.data.stat().st_ino}))

    def close(self) -> None:
        """Remove the folder, and OUT and the folders above it as far as this run made them and they stayed empty;
        nothing if it was released.
        """
        if self._kept:
            return
        _remove_run(self.path)
        _remove_run(self._making)
        self._unlock()
        with contextlib.suppress(OSError):
            for folder in self._made:
                folder.rmdir()

    def release(self) -> None:
        """Let go of the folder and leave it there, as a dead one."""
        self._kept = True
        self._unlock()

    def _unlock(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _make_out(path: Path) -> list[Path]:
    """Make OUT; gives the folders that were not there, the innermost first."""
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(
            f"--out {path} {'is a file' if path.is_file() else 'is no folder, and none can be made there'}; "
            "name a folder"
        ) from None
    except OSError as error:
        raise UsageError(f"--out {path}: can't be made: {error.strerror}") from None
    return missing


def check_out(out: str | os.PathLike[str], overwrite: bool) -> int:
    """The generation that a build into OUT would follow (0: none); UsageError if OUT must not be written to, DataError
    if it holds a manifest that no build wrote.
    """
    path = Path(out)
    numbers = generations(path)
    if numbers and not overwrite:
        raise UsageError(
            f"{path} already holds a data set; --overwrite replaces it (the old one stays readable until the "
            "new one is complete)"
        )
    if numbers:
        loaded(path)  # what they name is removed some day: one that can't be understood is refused now
        return numbers[-1]
    if path.is_dir():
        strange = [
            name
            for name in os.listdir(path)
            if name not in _OURS and not name.startswith((RUN_PREFIX, f".{RUN_PREFIX}", DATA_PREFIX))
        ]
        if strange:
            raise UsageError(
                f"{path} is not empty ({', '.join(sorted(strange)[:3])}, ...) and holds no data set of "
                "recordmill; name a new or an empty folder"
            )
    return 0


def clean_dead(out: Path, keep: Callable[[Path], bool] | None = None) -> list[str]:
    """Remove the run folders whose process is provably dead, and what they had already moved; gives their names. keep:
    which ones to leave alone.
    """
    folders = sorted(out.glob(f"{RUN_PREFIX}*")) + sorted(out.glob(f".{RUN_PREFIX}*.tmp"))
    with claimed(folder for folder in folders if keep is None or not keep(folder)) as dead:
        kept = {part.folder for manifest in loaded(out).values() for part in manifest.parts} if dead else set()
        for folder in dead:
            litter = _placed_by(folder)
            if litter is not None and litter not in kept:
                remove_data(out, litter)
            _remove_run(folder)
        return [folder.name for folder in dead]


@contextlib.contextmanager
def claimed(folders: Iterable[Path]) -> Iterator[list[Path]]:
    """Those of the run folders whose process is provably dead, locked meanwhile, so that nobody else takes them."""
    with contextlib.ExitStack() as locks:
        dead = []
        for folder in folders:
            descriptor = _claim(folder)
            if descriptor is not None:
                dead.append(folder)
            if descriptor is not None and descriptor >= 0:
                locks.callback(os.close, descriptor)
        yield dead


def loaded(out: Path) -> dict[int, Manifest]:
    """All generations that OUT holds, by number; one that another build removes meanwhile is left out.

    Raises:
        DataError: a manifest is broken.
    """
    manifests = {}
    for number in generations(out):
        with contextlib.suppress(FileNotFoundError):
            manifests[number] = load(out, number)
    return manifests


def remove_data(out: Path, name: str) -> None:
    """Remove a data folder, and the reject files that belong to it by their names."""
    shutil.rmtree(out / name, ignore_errors=True)
    for path in (out / "rejects").glob(f"{name.removeprefix(DATA_PREFIX)}.*"):
        path.unlink(missing_ok=True)


def _remove_run(folder: Path) -> None:
    """Remove a run folder, its lock last: whoever is killed in between leaves one that can still be proved dead, and
    that no read goes on in.
    """
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder), key=lambda name: name not in (INTENT_NAME, ABOUT_NAME)):
            if name != LOCK_NAME:
                shutil.rmtree(folder / name, ignore_errors=True)
                (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _placed_by(folder: Path) -> str | None:
    """The data folder that a dead run had moved to its final name. A live run may have taken that name since:
    the inode tells them apart.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        intent = json.loads((folder / INTENT_NAME).read_text())
        name = str(intent["folder"])
        if name.startswith(DATA_PREFIX) and "/" not in name and (folder.parent / name).stat().st_ino == intent["inode"]:
            return name
    return None


def _claim(folder: Path) -> int | None:
    """The lock of a run folder whose process is provably dead; -1 if it is the empty folder that a removal leaves last,
    None if it may be alive.
    """
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no lock to judge by
        with contextlib.suppress(OSError):
            return -1 if not folder.name.startswith(".") and not os.listdir(folder) else None
        return None
    with contextlib.suppress(OSError, ValueError):
        owner = json.loads(os.read(descriptor, 4096) or b"{}")
        if owner.get("host") == _machine()["host"]:
            # After a reboot it is dead for certain; the lock is then only to exclude those who would claim it as well.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    os.close(descriptor)
    return None


def _machine() -> dict[str, str]:
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"host": socket.gethostname(), "boot": boot}
