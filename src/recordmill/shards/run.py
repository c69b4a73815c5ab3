"""A run: a build, or a read, at work on an OUT of a disk or of a store. `Run` is what is the same of both: its names,
its lease, whether it has committed, and the one atomic step by which what it has made becomes a data set, or a result;
`RunFolder` is that of a disk (`store_run` has that of a store).

All that a run writes has its id in its name: `OUT/_run-<id>/` is what only the run itself needs, `OUT/data-<id>/` what
a manifest is to name, and `OUT/rejects/<id>.<n>.jsonl` belongs to that. So what a dead run left is known by its name,
and nothing needs to be undone before a commit is repeated.

A lease is a file of the run's folder that is written anew, or on a disk gets a new time, every RENEW_SEC by whoever
works for the run, its driver or its workers. What follows where it isn't, `dead_runs` says.

A run on a disk is created locked, so that a later one can prove it dead and clean it. The lock is `flock` on a file
that names host and boot, and is the lease; the kernel drops it with its process. Whoever works with the run holds it
shared: several processes may, where an engine starts a step more than once. The last to let go removes the folder, by
descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.base.threads import both, interrupted_later
from recordmill.shards.dead_runs import (
    LOCK_NAME,
    READ_NOTE_NAME,
    claim,
    clean_dead,
    loaded,
    machine,
    remove_data,
    remove_run,
    temporary_run_name,
)
from recordmill.shards.manifest import Manifest, generations
from recordmill.storage.files import is_remote, put_if_absent, read_range, sync_folder
from recordmill.storage.folders import (
    exists,
    has_name,
    is_file,
    is_folder,
    is_link,
    link_target,
    make_folder,
    names_if_there,
    paths_in,
    remove_empty,
    rename,
)
from recordmill.storage.locks import LockFile, locked
from recordmill.storage.removal import Folder
from recordmill.storage.walk import DATA_PREFIX, MANIFESTS, RUN_PREFIX

__all__ = ["READ_NOTE_NAME", "Run", "RunFolder", "check_out"]

RENEW_SEC = 30  # a run is dead after LEASE_SEC
# rewritten after each commit; more may follow by `*.labels.txt`
COPIES = ("manifest.json", "schema.pbtxt", "dataset_info.json", "features.json", "croissant.json")
_OURS = (MANIFESTS, "rejects", *COPIES)
_PARTS = ("data", "runs", "rejects", "spool")
_JOINING = 20  # attempts at a folder that others remove at the same time

_log = logging.getLogger(__name__)
_renewed: dict[tuple[str, str], float] = {}  # (OUT, id) of a run: when this process renewed its lease last


class Run(ABC):
    """A run by its OUT and its id; whoever knows these can say that it is alive, and commit what it has made."""

    has_committed = False  # by this very object; `committed` asks for what others of the run have done

    def __init__(self, out: str | Path, identifier: str) -> None:
        self.out, self.id = out, identifier
        self._manifest: Manifest | None = None

    @property
    def folder_name(self) -> str:
        """The name below OUT of what only the run needs."""
        return f"{RUN_PREFIX}{self.id}"

    @property
    def data_name(self) -> str:
        """The name below OUT of what a manifest is to name."""
        return f"{DATA_PREFIX}{self.id}"

    def committed(self) -> Manifest | None:
        """The manifest that this very run has put: engines repeat the last step as any other."""
        if self._manifest is None:
            own = [manifest for manifest in loaded(self.out).values() if manifest.run.get("id") == self.id]
            self._manifest = own[-1] if own else None
        return self._manifest

    def renew(self) -> None:
        """Say that the run is alive; not more often than every RENEW_SEC from one process."""
        now, key = time.monotonic(), (os.fspath(self.out), self.id)
        if now - _renewed.get(key, -RENEW_SEC) >= RENEW_SEC:
            _renewed[key] = now
            self._sign()

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """The run is alive meanwhile, however long it takes."""
        ended = threading.Event()

        def keep() -> None:
            while not ended.wait(RENEW_SEC):
                try:
                    self.renew()
                except Exception as error:  # the next time may be a better one
                    _log.warning("%s: the lease can't be renewed: %s", self.out, getattr(error, "strerror", error))

        self.renew()
        thread = threading.Thread(target=keep, name="recordmill-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _forget(self) -> None:
        """The lease is gone: whoever goes on in this process signs anew."""
        _renewed.pop((os.fspath(self.out), self.id), None)

    def may_commit(self, base: int, numbers_of: Callable[[str], Sequence[int]]) -> bool:
        """Whether generation `base` is still the newest that OUT holds by `numbers_of`, and nobody has taken this run
        for dead.
        """
        numbers, is_owned = both(lambda: numbers_of(os.fspath(self.out)), lambda: self.is_owned)
        return max(numbers, default=0) == base and is_owned

    @abstractmethod
    def _sign(self) -> None:
        """Write the lease anew; nothing where a disk has no such run any more."""

    @property
    @abstractmethod
    def is_owned(self) -> bool:
        """Whether nobody has taken this run for dead."""

    @abstractmethod
    def commit(self, name: str, data: bytes, is_whole: Callable[[], bool]) -> bool:
        """Create the file below OUT that makes what the run has made a data set, or a result, whole and durable, unless
        it is there; says whether this call did. is_whole: whether all that it names is there; asked behind that where
        somebody may have taken the run for dead meanwhile, and the file is removed again where it isn't.

        Raises:
            OSError: it is not there; of a store: the put failed, or its result can't be known.
        """

    def obstacle(self, what: str, base: int, numbers_of: Callable[[str], Sequence[int]]) -> str:
        """Why it did not, for people. what: it is that follows `base`."""
        newest = max(numbers_of(os.fspath(self.out)), default=0)
        if newest == base:
            return "another run took this one for dead, since it was not heard of"
        return f"another {what} committed generation {newest} while this one ran"

    @abstractmethod
    def discard(self) -> bool:
        """Remove what a manifest was to name, unless it was committed, or that can't be known; says whether the run
        needs nothing more to be found by. Nobody may be at work for it any more.
        """

    @abstractmethod
    def clear(self) -> None:
        """Remove what only the run itself needed; what can't be is left to a later run, which finds its lease."""

    @abstractmethod
    def close(self) -> None:
        """Remove all that the run has made, but what it has committed; nobody else may be at work for it any more."""


class RunFolder(Run):
    """A run on a disk: its own folder under OUT, held until `close`; every path in it is invisible to readers."""

    out: Path

    def __init__(self, out: Path, identifier: str, lock: LockFile | None, made: Sequence[Path] = ()) -> None:
        super().__init__(out, identifier)
        self._lock, self._made = lock, made
        self._kept_alive = contextlib.ExitStack()

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
            folder._kept_alive.enter_context(folder.alive())
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
            making = temporary_run_name(self.id)
            above.make(making)
            try:
                with above.enter(making) as folder:
                    self._lock = LockFile.create(folder, LOCK_NAME)
                    self._lock.share()
                    self._own(self._lock, lease_sec)
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
    def _own(lock: LockFile, lease_sec: int = 0) -> None:
        """Write into the lock whose it is, over what stood there, in one step."""
        lock.write(json.dumps({**machine(), "pid": os.getpid(), "lease_sec": lease_sec}).encode())

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
                folder._own(folder._lock)
                folder._kept_alive.enter_context(folder.alive())
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
        return self.out / self.folder_name

    @property
    def data(self) -> Path:
        """Where shards are: in the run's own folder until `publish_data_folder`."""
        final = self.out / self.data_name
        return final if is_folder(final) and not is_link(final) else self.path / "data"

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

    def _sign(self) -> None:
        with self._entered() as folder, contextlib.suppress(FileNotFoundError):
            if folder is not None:
                with contextlib.closing(LockFile.open(folder, LOCK_NAME)) as lock:
                    lock.renew()

    @property
    def is_owned(self) -> bool:
        """Whether nobody has taken this run for dead."""
        with self._entered() as folder:
            return folder is not None and folder.inode(LOCK_NAME) is not None

    @contextlib.contextmanager
    def _entered(self) -> Iterator[Folder | None]:
        """The run's folder; None where it is gone."""
        with contextlib.ExitStack() as held:
            folder = None
            with contextlib.suppress(FileNotFoundError):
                folder = held.enter_context(held.enter_context(Folder.open(self.out)).enter(self.folder_name))
            yield folder

    def publish_data_folder(self) -> None:
        """Give the folder of shards the name by which a manifest will know it, unless it has that; durable."""
        made = self.path / "data"
        if is_folder(made):
            for inner in paths_in(made):
                if is_folder(inner):
                    sync_folder(inner)
            sync_folder(made)
            with contextlib.suppress(FileNotFoundError):  # another attempt was first
                rename(made, self.out / self.data_name)
        sync_folder(self.out)

    def commit(self, name: str, data: bytes, is_whole: Callable[[], bool] = lambda: True) -> bool:
        """See `Run.commit`. It stands, too, where the disk failed behind that, as at the last sync. Nobody can take the
        run for dead meanwhile; False where somebody has.
        """
        held = None
        with contextlib.suppress(OSError):  # a worker may see OUT by a mount that knows no locks
            if self._lock is None:
                held = self.join(self.path)
            if held is None and not (self._lock is not None and self.is_owned):
                return False
        path = self.out / name
        try:
            make_folder(path.parent, exist_ok=True)
            sync_folder(self.out)
            self.has_committed = put_if_absent(path, data, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.has_committed = read_range(str(path)).tobytes() == data
            if not self.has_committed:
                raise
        finally:
            if held is not None:
                held.release()
        return self.has_committed

    def discard(self) -> bool:
        """Remove the shards, and the files of rejects, unless they were committed."""
        if not has_name(self.out / self.data_name) or self.committed() is not None:
            return True
        return remove_data(self.out, self.data_name)

    def clear(self) -> None:
        """Remove the run's own folder."""
        with contextlib.suppress(OSError), Folder.open(self.out) as above, above.enter(self.folder_name) as folder:
            remove_run(above, self.folder_name, folder)

    def close(self) -> None:
        """Remove the folder, shards that were not committed, and OUT and the folders above it as far as this run made
        them and they stayed empty; nothing if it was released, or if others hold it, too. Whoever stops it meanwhile is
        heard behind that.
        """
        with interrupted_later():
            self._remove_all()

    def _remove_all(self) -> None:
        if self._lock is not None:
            gone = contextlib.suppress(OSError, DataError)
            with gone, Folder.open(self.out) as above, above.enter(self.folder_name) as folder:
                mine = folder.inode(LOCK_NAME) == self._lock.inode
                self._lock.take()
                if mine and self.discard():
                    remove_run(above, self.folder_name, folder)
            self._unlock()
        with contextlib.suppress(OSError):
            for made in self._made:
                remove_empty(made)

    def release(self) -> None:
        """Let go of the folder and leave it there, as a dead one."""
        self._unlock()
        self._made = ()

    def _unlock(self) -> None:
        self._kept_alive.close()
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
    place = os.fspath(out)
    try:
        numbers = generations(place)
        if numbers and not overwrite:
            raise UsageError(
                f"{place} already holds a data set; {option('overwrite', True)} replaces it (the old one stays "
                "readable until the new one is complete)"
            )
        if numbers:
            loaded(place)  # what they name is removed some day: one that can't be understood is refused now
            return numbers[-1]
        strange = [name for name in names_if_there(place) if not _is_ours(name)]
    except OSError as error:
        if not is_remote(place):
            raise
        raise UsageError(f"{option('out', place)}: {error.strerror}") from None
    if strange:
        raise UsageError(
            f"{place} is not empty ({', '.join(strange[:3])}, ...) and holds no data set of recordmill; name a new or "
            "an empty folder"
        )
    return 0


def _is_ours(name: str) -> bool:
    return name in _OURS or name.startswith((RUN_PREFIX, f".{RUN_PREFIX}", DATA_PREFIX))
