"""The folder of a build at work, `OUT/_run-<id>/`: created locked, so that a later build can prove it dead and clean it
(`dead_runs`).

The lock is `flock` on a file that names host and boot; the kernel drops it with its process. Whoever works with the run
holds it shared: several processes may, where an engine starts a step more than once. The last to let go removes the
folder, by descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.shards.dead_runs import (
    ABOUT_NAME,
    LOCK_NAME,
    claim,
    clean_dead,
    loaded,
    machine,
    making_name,
    remove_run,
)
from recordmill.shards.manifest import DATA_PREFIX, MANIFESTS, RUN_PREFIX, generations
from recordmill.storage.folders import (
    exists,
    is_file,
    is_folder,
    is_link,
    link_target,
    make_folder,
    names_in,
    remove_empty,
)
from recordmill.storage.locks import LockFile, locked
from recordmill.storage.removal import Folder

__all__ = ["ABOUT_NAME", "RunFolder", "check_out"]

# rewritten after each commit; more may follow by `*.labels.txt`
COPIES = ("manifest.json", "schema.pbtxt", "dataset_info.json", "features.json")
_OURS = (MANIFESTS, "rejects", *COPIES)
_PARTS = ("data", "runs", "rejects", "spool")
_JOINING = 20  # attempts at a folder that others remove at the same time


class RunFolder:
    """A run's own folder under OUT, held until `close`; every path in it is invisible to readers."""

    def __init__(self, out: Path, identifier: str, lock: LockFile | None, made: Sequence[Path] = ()) -> None:
        self.out, self.id, self._lock, self._made = out, identifier, lock, made

    @classmethod
    def create(
        cls,
        out: str | os.PathLike[str],
        identifier: str | None = None,
        keep: Callable[[Path], bool] | None = None,
        index: bool = True,
        lease_sec: int = 0,
    ) -> RunFolder:
        """Make OUT if need be and the locked folder in it, after dead ones were cleaned; where the run has one already,
        hold that.

        identifier: a name for the run, where repeated attempts must not make several; by default a new one. keep: which
        dead folders are left alone. index: data is to have the folder that indexes of shards stand in. lease_sec: how
        long the run counts as alive while no process holds it, since `renew`.

        Raises:
            UsageError: OUT can't be made, is not a folder, or can't be written to.
        """
        path = Path(out)
        folder = cls(path, identifier or uuid.uuid4().hex[:12], None, _make_out(path))
        try:
            _check_no_links(path)
            clean_dead(path, keep)
            folder._hold(index, lease_sec)
        except OSError as error:
            folder.close()
            raise UsageError(f"{option('out', path)}: can't be written to: {error.strerror}") from None
        except BaseException:
            folder.close()
            raise
        return folder

    def _hold(self, index: bool, lease_sec: int) -> None:
        for _ in range(_JOINING):
            with Folder.open(self.out) as above:
                if self._make(above, index, lease_sec) or self._join(above):
                    return
        raise OSError(errno.EBUSY, "others keep removing the run's folder")

    def _make(self, above: Folder, index: bool, lease_sec: int) -> bool:
        """Make the folder under another name, lock it, and only then give it its own, so that nobody finds it unlocked;
        False if the run has one.
        """
        with locked(above):  # under which others may take an unlocked one for dead
            if not above.is_at(self.out):
                return False  # a read has replaced OUT meanwhile
            making = making_name(self.id)
            above.make(making)
            try:
                with above.enter(making) as folder:
                    self._lock = LockFile.create(folder, LOCK_NAME)
                    self._lock.share()
                    self._sign(self._lock, lease_sec)
                    for name in (*_PARTS, "data/index") if index else _PARTS:
                        folder.make(name)
                above.move(making, above, self.path.name)
            except BaseException as error:
                self._unlock()
                above.remove(making)
                if isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    return False
                raise
        return True

    def _join(self, above: Folder) -> bool:
        """Hold the folder that the run has; False if it is gone meanwhile."""
        with contextlib.suppress(FileNotFoundError), above.enter(self.path.name) as folder:
            lock = LockFile.open(folder, LOCK_NAME)
            lock.share()
            if above.inode(self.path.name) == folder.own_inode and folder.inode(LOCK_NAME) is not None:
                self._lock = lock
                return True
            lock.close()
        return False

    @staticmethod
    def _sign(lock: LockFile, lease_sec: int = 0) -> None:
        """Write into the lock whose it is, over what stood there, in one step."""
        lock.write(json.dumps({**machine(), "pid": os.getpid(), "lease_sec": lease_sec}).encode())

    def renew(self) -> None:
        """Say that the run is alive: its lease begins anew."""
        if self._lock is not None:
            self._lock.renew()

    @classmethod
    def take_over(cls, path: Path) -> RunFolder | None:
        """The folder of a dead run with all that is in it, from now on this process's own; None if its run is alive, or
        someone else was first.
        """
        with contextlib.suppress(FileNotFoundError), Folder.open(path.parent) as above:
            dead = claim(above, path.name)
            if dead is None:
                return None
            folder = cls(path.parent, path.name.removeprefix(RUN_PREFIX), dead.keep_lock())
            if folder._lock is not None:
                folder._sign(folder._lock)
                return folder
        return None

    @classmethod
    def join(cls, path: Path) -> RunFolder | None:
        """Hold the folder of a run that other processes of it hold, too; None if it is gone."""
        folder = cls(path.parent, path.name.removeprefix(RUN_PREFIX), None)
        with contextlib.suppress(FileNotFoundError), Folder.open(folder.out) as above:
            return folder if folder._join(above) else None
        return None

    @classmethod
    def attach(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The folder of a run that another process or another part of this one holds; closing it is theirs."""
        folder = Path(path)
        return cls(folder.parent, folder.name.removeprefix(RUN_PREFIX), None)

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

    @property
    def is_sound(self) -> bool:
        """Whether its parts are folders of its own, and no links to others."""
        with contextlib.suppress(OSError), Folder.open(self.path) as folder:
            return all(folder.is_folder(name) for name in _PARTS)
        return False

    def close(self) -> None:
        """Remove the folder, and OUT and the folders above it as far as this run made them and they stayed empty;
        nothing if it was released, or if others hold it, too.
        """
        if self._lock is not None:
            with contextlib.suppress(OSError), Folder.open(self.out) as above, above.enter(self.path.name) as folder:
                mine = folder.inode(LOCK_NAME) == self._lock.inode
                self._lock.take()
                if mine:
                    remove_run(above, self.path.name, folder)
            self._unlock()
        with contextlib.suppress(OSError):
            for made in self._made:
                remove_empty(made)

    def release(self) -> None:
        """Let go of the folder and leave it there, as a dead one."""
        self._unlock()
        self._made = ()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _check_no_links(out: Path) -> None:
    for name in (MANIFESTS, "rejects"):
        if is_link(out / name):
            raise UsageError(
                f"{option('out', out)}: {name} in it is a link to {link_target(out / name)}; remove the link"
            )


def _make_out(path: Path) -> list[Path]:
    """Make OUT; gives the folders that were not there, the innermost first."""
    try:
        missing = [folder for folder in (path, *path.parents) if not exists(folder)]
        make_folder(path, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(
            f"{option('out', path)} {'is a file' if is_file(path) else 'is no folder, and none can be made there'}; "
            "name a folder"
        ) from None
    except OSError as error:
        raise UsageError(f"{option('out', path)}: can't be made: {error.strerror}") from None
    return missing


def check_out(out: str | os.PathLike[str], overwrite: bool) -> int:
    """The generation that a build into OUT would follow (0: none); UsageError if OUT must not be written to, DataError
    if it holds a manifest that no build wrote.
    """
    path = Path(out)
    numbers = generations(path)
    if numbers and not overwrite:
        raise UsageError(
            f"{path} already holds a data set; {option('overwrite', True)} replaces it (the old one stays readable "
            "until the "
            "new one is complete)"
        )
    if numbers:
        loaded(path)  # what they name is removed some day: one that can't be understood is refused now
        return numbers[-1]
    if is_folder(path):
        strange = [
            name
            for name in names_in(path)
            if name not in _OURS and not name.startswith((RUN_PREFIX, f".{RUN_PREFIX}", DATA_PREFIX))
        ]
        if strange:
            raise UsageError(
                f"{path} is not empty ({', '.join(sorted(strange)[:3])}, ...) and holds no data set of "
                "recordmill; name a new or an empty folder"
            )
    return 0
