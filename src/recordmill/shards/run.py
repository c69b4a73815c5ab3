"""A run: a build, or a read, at work on an OUT of a disk or of a store. `Run` is what is the same of both: its names,
its lease, whether it has committed, and the one atomic step by which what it has made becomes a data set, or a result;
`RunFolder` is that of a disk (`store_run` has that of a store).

All that a run writes has its id in its name: `OUT/_run-<id>/` is what only the run itself needs, `OUT/data-<id>/` what
a manifest is to name, and `OUT/rejects/<id>.<n>.jsonl` belongs to that. So what a dead run left is known by its name,
and nothing needs to be undone before a commit is repeated.

A lease is a file of the run's folder that is written anew, or on a disk gets a new time, every RENEW_SEC by whoever
works for the run, its driver or its workers. What follows where it isn't, `dead_runs` says.

On a disk the lease is also a lock, `flock` on a file that names host and boot, which the kernel drops with its process:
so a later run can prove it dead at once.
"""

from __future__ import annotations

import contextlib
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
from recordmill.base.threads import delay_signals, run_both
from recordmill.shards import dead_runs
from recordmill.shards.derived_files import is_derived_name
from recordmill.shards.manifest import Manifest, list_generations
from recordmill.storage.files import is_remote, put_if_absent, read_range, sync_folder
from recordmill.storage.folders import (
    exists,
    is_file,
    is_folder,
    is_link,
    list_names_if_present,
    list_paths,
    make_folder,
    name_exists,
    remove_empty_folder,
    rename,
)
from recordmill.storage.locks import LockFile, lock_folder
from recordmill.storage.walk import DATA_PREFIX, MANIFESTS_FOLDER, RUN_PREFIX

LEASE_RENEWAL_SEC = 30  # a run is dead after LEASE_SEC
_SUBFOLDERS = ("data", "runs", "rejects", "spool")

_log = logging.getLogger(__name__)
_last_renewals: dict[
    tuple[str, str], float
] = {}  # (OUT, id) of a run: when this process renewed its lease last


class Run(ABC):
    """A run by its OUT and its id; whoever knows these can say that it is alive, and commit what it has made."""

    has_committed = (
        False  # by this very object; `committed` asks for what others of the run have done
    )

    def __init__(self, out: str | Path, identifier: str) -> None:
        self.out, self.id = out, identifier
        self.folder_name = f"{RUN_PREFIX}{identifier}"  # below OUT, what only the run needs
        self.data_name = f"{DATA_PREFIX}{identifier}"  # and what a manifest is to name
        self._manifest: Manifest | None = None

    def committed_manifest(self) -> Manifest | None:
        """The manifest that this very run has put: engines repeat the last step as any other."""
        if self._manifest is None:  # the newest first: others need not be read where it is that
            newest_first = (
                dead_runs.load_if_present(self.out, number)
                for number in list_generations(self.out)[::-1]
            )
            self._manifest = next(
                (
                    manifest
                    for manifest in newest_first
                    if manifest and manifest.run.get("id") == self.id
                ),
                None,
            )
        return self._manifest

    def renew_lease(self) -> None:
        """Say that the run is alive; not more often than every RENEW_SEC from one process."""
        now, key = time.monotonic(), (os.fspath(self.out), self.id)
        if now - _last_renewals.get(key, -LEASE_RENEWAL_SEC) >= LEASE_RENEWAL_SEC:
            _last_renewals[key] = now
            self._write_lease()

    @contextlib.contextmanager
    def keep_alive(self) -> Iterator[None]:
        """The run is alive meanwhile, however long it takes."""
        ended = threading.Event()

        def renew_until_ended() -> None:
            while not ended.wait(LEASE_RENEWAL_SEC):
                try:
                    self.renew_lease()
                except Exception as error:  # the next time may be a better one
                    _log.warning(
                        "%s: the lease can't be renewed: %s",
                        self.out,
                        getattr(error, "strerror", error),
                    )

        self.renew_lease()
        is_exited = True
        thread = threading.Thread(target=renew_until_ended, name="recordmill-lease", daemon=True)
        thread.start()
        try:
            yield
        except (
            GeneratorExit
        ):  # nobody has left it: the garbage collector does, maybe where a thread starts
            is_exited = False  # which a join there would wait for without end
            raise
        finally:
            ended.set()
            if is_exited:
                thread.join()

    def _forget_renewal(self) -> None:
        """The lease is gone: whoever goes on in this process signs anew."""
        _last_renewals.pop((os.fspath(self.out), self.id), None)

    def may_commit(self, base: int, list_numbers: Callable[[str], Sequence[int]]) -> bool:
        """Returns True if generation `base` is still the newest of OUT, and nobody has taken this run for dead."""
        numbers, is_owned = run_both(
            lambda: list_numbers(os.fspath(self.out)), lambda: self.holds_lease
        )
        return max(numbers, default=0) == base and is_owned

    @abstractmethod
    def _write_lease(self) -> None:
        """Write the lease anew; nothing where a disk has no such run any more."""

    @property
    @abstractmethod
    def holds_lease(self) -> bool:
        """True if nobody has taken this run for dead."""

    @abstractmethod
    def commit(self, name: str, data: bytes, is_complete: Callable[[], bool]) -> bool:
        """Create the file below OUT that makes what the run has made a data set, or a result, whole and durable, unless
        it is there; says whether this call did. is_whole: whether all that it names is there; asked behind that where
        somebody may have taken the run for dead meanwhile, and the file is removed again where it isn't.

        Raises:
            OSError: it is not there; of a store: the put failed, or its result can't be known.
        """

    def conflict_message(
        self, kind: str, base: int, list_numbers: Callable[[str], Sequence[int]]
    ) -> str:
        """Why it did not, for people. what: it is that follows `base`."""
        newest = max(list_numbers(os.fspath(self.out)), default=0)
        if newest == base:
            return "another run took this one for dead, since it was not heard of"
        return f"another {kind} committed generation {newest} while this one ran"

    @abstractmethod
    def discard(self) -> bool:
        """Remove what a manifest was to name, unless it was committed, or that can't be known; says whether the run
        needs nothing more to be found by. Nobody may be at work for it any more.
        """

    @abstractmethod
    def remove_work_files(self) -> None:
        """Remove what only the run itself needed; what can't be is left to a later run, which finds its lease."""

    @abstractmethod
    def close(self) -> None:
        """Remove all that the run has made, but what it has committed; nobody else may be at work for it any more."""


class RunFolder(Run):
    """A run on a disk: its own folder under OUT, held until `close`; every path in it is invisible to readers."""

    out: Path

    def __init__(self, out: Path, identifier: str, created_folders: Sequence[Path] = ()) -> None:
        super().__init__(out, identifier)
        self._lock: LockFile | None = None
        self.created_folders = (
            created_folders  # OUT, and the folders above it, as far as this run has made them
        )
        self.path = out / self.folder_name
        self.intermediate, self.rejects, self.spool = (
            self.path / name for name in ("runs", "rejects", "spool")
        )
        self._heartbeats = contextlib.ExitStack()

    @classmethod
    def create(
        cls,
        out: str | os.PathLike[str],
        keep: Callable[[Path], bool] | None = None,
        index: bool = True,
        leased: bool = False,
    ) -> RunFolder:
        """Make OUT if need be and the locked folder in it, after dead ones were cleaned.

        Args:
            out: The folder.
            keep: Which dead folders are left alone.
            index: Whether data is to have the folder that indexes of shards stand in.
            leased: Whether the run may go on while no process of this machine holds it.

        Raises:
            UsageError: OUT can't be made, is not a folder, or can't be written to.
        """
        path = Path(out)
        folder = cls(path, uuid.uuid4().hex[:12], _make_output_folder(path))
        try:
            dead_runs.remove_dead_runs(path, keep)
            with lock_folder(path):  # under which nobody takes a folder without a lock for dead
                make_folder(folder.path)
                folder._take_lock(
                    LockFile.open(folder.path / dead_runs.LOCK_NAME, create=True), leased
                )
                for name in (*_SUBFOLDERS, "data/index") if index else _SUBFOLDERS:
                    make_folder(folder.path / name)
            folder._heartbeats.enter_context(folder.keep_alive())
        except OSError as error:
            folder.close()
            raise UsageError(
                f"{option('out', path)}: can't be written to: {error.strerror}"
            ) from None
        except BaseException:
            folder.close()
            raise
        return folder

    def _take_lock(self, lock: LockFile, leased: bool = False) -> None:
        """Holds the lock, and writes into it whose it is, over what stood there, in one step."""
        self._lock = lock
        lock.take(wait=True)  # for who only looks
        lock.write(
            json.dumps(
                {**dead_runs.machine_identity(), "pid": os.getpid(), "leased": leased}
            ).encode()
        )

    @classmethod
    def take_over(cls, path: Path) -> RunFolder | None:
        """The folder of a dead run with all that is in it, from now on this process's own; None if its run is alive, or
        someone else was first.
        """
        if (lock := dead_runs.claim_dead_run(path)) is None:
            return None
        folder = cls.attach(path)
        folder._take_lock(lock)
        folder._heartbeats.enter_context(folder.keep_alive())
        return folder

    @classmethod
    def attach(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The folder of a run that another process or another part of this one holds; closing it is theirs."""
        folder = Path(path)
        return cls(folder.parent, folder.name.removeprefix(RUN_PREFIX))

    @property
    def data(self) -> Path:
        """The folder of shards: the run's own until `publish_data_folder`."""
        final = self.out / self.data_name
        return final if is_folder(final) and not is_link(final) else self.path / "data"

    def _write_lease(self) -> None:
        with (
            contextlib.suppress(FileNotFoundError),
            contextlib.closing(LockFile.open(self.path / dead_runs.LOCK_NAME)) as lock,
        ):
            lock.renew()

    @property
    def holds_lease(self) -> bool:
        """True if nobody has taken this run for dead."""
        return exists(self.path / dead_runs.LOCK_NAME)

    def publish_data_folder(self) -> None:
        """Give the folder of shards the name by which a manifest will know it, unless it has that; durable."""
        unpublished = self.path / "data"
        if is_folder(unpublished):
            for inner in list_paths(unpublished):
                if is_folder(inner):
                    sync_folder(inner)
            sync_folder(unpublished)
            with contextlib.suppress(FileNotFoundError):  # another attempt was first
                rename(unpublished, self.out / self.data_name)
        sync_folder(self.out)

    def commit(
        self, name: str, data: bytes, is_complete: Callable[[], bool] = lambda: True
    ) -> bool:
        """See `Run.commit`. It stands, too, where the disk failed behind that, as at the last sync."""
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
        return self.has_committed

    def discard(self) -> bool:
        """Remove the shards, and the files of rejects, unless they were committed."""
        if not name_exists(self.out / self.data_name) or self.committed_manifest() is not None:
            return True
        return dead_runs.remove_data_folder(self.out, self.data_name)

    def remove_work_files(self) -> None:
        """Remove the run's own folder."""
        dead_runs.remove_run_folder(self.path)

    def close(self) -> None:
        """Remove the folder, shards that were not committed, and OUT and the folders above it as far as this run made
        them and they stayed empty; nothing if it was released. Whoever stops it meanwhile is
        heard behind that.
        """
        with delay_signals():
            self._remove_all()

    def _remove_all(self) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError, DataError):
                if self._lock.is_at(self.path / dead_runs.LOCK_NAME) and self.discard():
                    dead_runs.remove_run_folder(self.path)
            self._unlock()
        with contextlib.suppress(OSError):
            for folder in self.created_folders:
                remove_empty_folder(folder)

    def release(self) -> None:
        """Let go of the folder and leave it there, as a dead one."""
        self._unlock()
        self.created_folders = ()

    def _unlock(self) -> None:
        self._heartbeats.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _make_output_folder(path: Path) -> list[Path]:
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


def check_output_folder(out: str | os.PathLike[str], overwrite: bool) -> int:
    """The generation that a build into OUT would follow (0: none); UsageError if OUT must not be written to, DataError
    if it holds a manifest that no build wrote.
    """
    output = os.fspath(out)
    try:
        numbers = list_generations(output)
        if numbers and not overwrite:
            raise UsageError(
                f"{output} already holds a data set; {option('overwrite', True)} replaces it (the old one stays "
                "readable until the new one is complete)"
            )
        if numbers:
            dead_runs.load_generations(
                output
            )  # what they name is removed some day: one that can't be understood is refused now
            return numbers[-1]
        other_names = [name for name in list_names_if_present(output) if not _is_build_output(name)]
    except OSError as error:
        if not is_remote(output):
            raise
        raise UsageError(f"{option('out', output)}: {error.strerror}") from None
    if other_names:
        raise UsageError(
            f"{output} is not empty ({', '.join(other_names[:3])}, ...) and holds no data set of recordmill; name a new or "
            "an empty folder"
        )
    return 0


def _is_build_output(name: str) -> bool:
    return (
        name in (MANIFESTS_FOLDER, "rejects")
        or is_derived_name(name)
        or name.startswith((RUN_PREFIX, DATA_PREFIX))
    )
