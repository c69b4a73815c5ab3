"""Runs: executions of a build or a read that write to an output folder.

`Run` is common to disks and stores: names, lease, and the atomic step that commits the result.
`RunFolder` is a run on a disk. `store_run.StoreRun` is a run in a store.

The id of the run is part of the name of everything that it writes. So the files of a dead run are
found by their names, and a commit can be repeated without undoing the first attempt. A run writes
these files:

    OUT/_run-<id>/               files that only the run itself needs
    OUT/data-<id>/               the files that a manifest will name
    OUT/rejects/<id>.<n>.jsonl   the rejects of this data folder

A lease is a file in the folder of the run. The driver or a worker of the run renews it every
LEASE_RENEWAL_SEC. See `dead_runs` for runs that stop renewing it.

On a disk the lease is also a lock (`flock`) that the kernel releases when its process ends. The
file names the host and its boot id. So a later run on the same machine can prove at once that the
process is dead.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
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
from recordmill.shards.file_names import is_data_folder
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
from recordmill.storage.walk import (
    DATA_PREFIX,
    IGNORED_SYSTEM,
    MANIFESTS_FOLDER,
    RUN_PREFIX,
    ignore_reason,
)

# Must be much shorter than `dead_runs.LEASE_SEC`, after which a run counts as dead.
LEASE_RENEWAL_SEC = 30
_SUBFOLDERS = ("data", "runs", "rejects", "spool")

_log = logging.getLogger(__name__)
# time of the last renewal by this process, by (output folder, run id)
_last_renewals: dict[tuple[str, str], float] = {}


class Run(ABC):
    """A run, identified by its output folder and its id.

    Any process that knows both can renew the lease, and can commit the result.

    Attributes:
        out: Output folder or store URL.
        id: Id of the run.
        folder_name: Name of the folder in `out` that only the run needs.
        data_name: Name of the data folder in `out`.
        has_committed: True if this object has committed. `committed_manifest` also finds commits by
            other processes of the run.
    """

    has_committed = False

    def __init__(self, out: str | Path, identifier: str) -> None:
        self.out, self.id = out, identifier
        self.folder_name = f"{RUN_PREFIX}{identifier}"
        self.data_name = f"{DATA_PREFIX}{identifier}"
        self._manifest: Manifest | None = None

    def committed_manifest(self) -> Manifest | None:
        """Returns the manifest that this run has committed. None if it has not committed.

        Engines may repeat the last step of a build, so this is checked before each commit.
        """
        # The newest generations are loaded first, because the commit of this run is usually among
        # them.
        if self._manifest is None:
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
        """Renews the lease, at most once per LEASE_RENEWAL_SEC in each process."""
        now, key = time.monotonic(), (os.fspath(self.out), self.id)
        if now - _last_renewals.get(key, -LEASE_RENEWAL_SEC) >= LEASE_RENEWAL_SEC:
            _last_renewals[key] = now
            self._write_lease()

    @contextlib.contextmanager
    def keep_alive(self) -> Iterator[None]:
        """Renews the lease in a thread while the `with` block is active.

        A failed renewal is logged and tried again later.
        """
        ended = threading.Event()

        def renew_until_ended() -> None:
            while not ended.wait(LEASE_RENEWAL_SEC):
                try:
                    self.renew_lease()
                except Exception as error:
                    # The next renewal may succeed.
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
        except GeneratorExit:
            # The garbage collector closes the generator, maybe while a thread is being started.
            # Joining a thread there would never return.
            is_exited = False
            raise
        finally:
            ended.set()
            if is_exited:
                thread.join()

    def _forget_renewal(self) -> None:
        """Makes the next `renew_lease` write the lease at once. Call this after removing it."""
        _last_renewals.pop((os.fspath(self.out), self.id), None)

    def may_commit(self, base: int, list_numbers: Callable[[str], Sequence[int]]) -> bool:
        """Returns whether `base` is still the newest generation and the run holds its lease.

        Args:
            base: Generation that was the newest one when this run started.
            list_numbers: Returns the numbers of the generations in an output folder, ascending.
        """
        numbers, is_owned = run_both(
            lambda: list_numbers(os.fspath(self.out)), lambda: self.holds_lease
        )
        return max(numbers, default=0) == base and is_owned

    @abstractmethod
    def _write_lease(self) -> None:
        """Writes the lease. A run on a disk does nothing if its folder was removed."""

    @property
    @abstractmethod
    def holds_lease(self) -> bool:
        """True unless another run has treated this one as dead."""

    @abstractmethod
    def commit(self, name: str, data: bytes, is_complete: Callable[[], bool]) -> bool:
        """Creates the file that makes the output a data set or a result.

        The file is complete and durable, and an existing file is never replaced.

        Args:
            name: Name of the file, relative to the output folder.
            data: Content of the file.
            is_complete: Returns whether all files that `data` names exist. In a store, another run
                may have removed some of them, so it is called after the file is created. If it
                returns False, the file is removed again.

        Returns:
            Whether this call has created the file.

        Raises:
            OSError: The file was not created. In a store, it may be unknown whether it was.
        """

    def explain_conflict(
        self, kind: str, base: int, list_numbers: Callable[[str], Sequence[int]]
    ) -> str:
        """Returns the reason why the run could not commit, for a message.

        Args:
            kind: Kind of the other run that may have committed, "build" or "read".
            base: Generation that was the newest one when this run started.
            list_numbers: See `may_commit`.
        """
        newest = max(list_numbers(os.fspath(self.out)), default=0)
        if newest == base:
            return "another run treated this one as dead, because it gave no sign of life"
        return f"another {kind} committed generation {newest} while this one ran"

    @abstractmethod
    def discard(self) -> bool:
        """Removes the data folder and the reject files unless they were committed.

        Files are kept if it is unknown whether they were committed. No process of the run may be
        active.

        Returns:
            True if no such files are left. False if some may be left. The caller then keeps the
            lease, so that a later run finds them.
        """

    @abstractmethod
    def remove_work_files(self) -> None:
        """Removes the files that only the run itself needs.

        If this fails, a later run finds them by the lease.
        """

    @abstractmethod
    def close(self) -> None:
        """Removes everything that the run has written but not committed.

        No other process of the run may be active.
        """


class RunFolder(Run):
    """A run on a disk.

    The run folder is locked until `close` or `release`. Readers ignore everything in it.

    Attributes:
        path: The run folder.
        intermediate: Folder for intermediate files, such as sorted runs.
        rejects: Folder for reject files.
        spool: Folder for copies of inputs.
        created_folders: Folders that the run has created, `out` and parents of it, innermost first.
    """

    out: Path

    def __init__(self, out: Path, identifier: str, created_folders: Sequence[Path] = ()) -> None:
        super().__init__(out, identifier)
        self._lock: LockFile | None = None
        self.created_folders = created_folders
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
        uses_engine: bool = False,
    ) -> RunFolder:
        """Creates the output folder if necessary, and a locked run folder in it.

        Folders of dead runs are removed first.

        Args:
            out: The output folder.
            keep: Returns whether the folder of a dead run must be kept.
            index: If True, the folder for the indexes of shards is created.
            uses_engine: True if the run may go on while no process of this machine holds the lock.

        Raises:
            UsageError: The output folder can't be created or written to, or is not a folder.
        """
        path = Path(out)
        folder = cls(path, uuid.uuid4().hex[:12], _make_output_folder(path))
        try:
            dead_runs.remove_dead_runs(path, keep)
            # Other runs remove dead folders under this lock, so they never see a folder without its
            # own lock.
            with lock_folder(path):
                make_folder(folder.path)
                folder._take_lock(
                    LockFile.open(folder.path / dead_runs.LOCK_NAME, create=True), uses_engine
                )
                for name in (*_SUBFOLDERS, "data/index") if index else _SUBFOLDERS:
                    make_folder(folder.path / name)
            folder._heartbeats.enter_context(folder.keep_alive())
        except OSError as error:
            folder.close()
            raise UsageError(
                "{out}: can't be written to: {strerror}",
                out=option("out", path),
                strerror=error.strerror,
            ) from None
        except BaseException:
            folder.close()
            raise
        return folder

    def _take_lock(self, lock: LockFile, uses_engine: bool) -> None:
        """Takes the lock and writes the owner into its file.

        The owner replaces the previous content in one step.
        """
        self._lock = lock
        # Waits for processes that only inspect the lock.
        lock.acquire(wait=True)
        self._write_owner(lock, uses_engine)

    @staticmethod
    def _write_owner(lock: LockFile, uses_engine: bool) -> None:
        owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "machine": None if uses_engine else dead_runs.read_machine_id(),
        }
        lock.write(json.dumps(owner).encode())

    @classmethod
    def take_over(cls, path: Path, uses_engine: bool = False) -> RunFolder | None:
        """Takes over the folder of a dead run with all its files.

        Args:
            path: The run folder.
            uses_engine: See `create`.

        Returns:
            The run. None if it is alive, or if another process has taken it over first.
        """
        if (lock := dead_runs.claim_dead_run(path)) is None:
            return None
        folder = cls.attach(path)
        folder._take_lock(lock, uses_engine)
        folder._heartbeats.enter_context(folder.keep_alive())
        return folder

    @classmethod
    def attach(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Returns the run of an existing folder without locking it.

        Another process, or another part of this one, holds the lock and closes the run.
        """
        folder = Path(path)
        return cls(folder.parent, folder.name.removeprefix(RUN_PREFIX))

    @property
    def data(self) -> Path:
        """Folder of the shards.

        The folder is in the run folder until `publish_data_folder` moves it.
        """
        final = self.out / self.data_name
        return final if is_folder(final) and not is_link(final) else self.path / "data"

    def _write_lease(self) -> None:
        with (
            contextlib.suppress(FileNotFoundError),
            contextlib.closing(LockFile.open(self.path / dead_runs.LOCK_NAME)) as lock,
        ):
            lock.refresh()

    @property
    def holds_lease(self) -> bool:
        return exists(self.path / dead_runs.LOCK_NAME)

    def publish_data_folder(self) -> None:
        """Moves the data folder to the output folder, and makes it durable.

        Does nothing if an earlier attempt has moved it.
        """
        unpublished = self.path / "data"
        if is_folder(unpublished):
            # The names of the files must be durable before the folder gets its final name.
            for inner in list_paths(unpublished):
                if is_folder(inner):
                    sync_folder(inner)
            sync_folder(unpublished)
            # Another attempt may rename the folder at the same time.
            with contextlib.suppress(FileNotFoundError):
                rename(unpublished, self.out / self.data_name)
        sync_folder(self.out)

    def commit(
        self, name: str, data: bytes, is_complete: Callable[[], bool] = lambda: True
    ) -> bool:
        """Creates the file, see `Run.commit`.

        If an error occurs, but the file then exists with this content, the commit is successful. An
        example is a disk that fails during the last sync.
        """
        path = self.out / name
        try:
            make_folder(path.parent, exist_ok=True)
            sync_folder(self.out)
            self.has_committed = put_if_absent(path, data, self.path)
        except BaseException:
            # The file may have been created before the error occurred.
            with contextlib.suppress(OSError):
                self.has_committed = read_range(str(path)).tobytes() == data
            if not self.has_committed:
                raise
        return self.has_committed

    def discard(self) -> bool:
        """Removes the data folder and the reject files unless they were committed."""
        if not name_exists(self.out / self.data_name) or self.committed_manifest() is not None:
            return True
        return dead_runs.remove_data_folder(self.out, self.data_name)

    def remove_work_files(self) -> None:
        """Removes the run folder."""
        dead_runs.remove_run_folder(self.path)

    def close(self) -> None:
        """Removes the run folder and everything that was not committed.

        Also removes the empty folders that the run has created. Does nothing after `release`. A
        KeyboardInterrupt during the removal is raised after it.
        """
        with delay_signals():
            self._remove_all()

    def _remove_all(self) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError, DataError):
                # Another run may have declared this one dead and removed its folder.
                if self._lock.is_at(self.path / dead_runs.LOCK_NAME) and self.discard():
                    dead_runs.remove_run_folder(self.path)
            self._unlock()
        with contextlib.suppress(OSError):
            for folder in self.created_folders:
                remove_empty_folder(folder)

    def release(self, *, has_ended: bool = False) -> None:
        """Unlocks the run folder, but keeps it, as if this process had died.

        Args:
            has_ended: True if no engine works for the run any more. The run is then dead at once.
        """
        if has_ended and self._lock is not None:
            self._write_owner(self._lock, uses_engine=False)
        self._unlock()
        self.created_folders = ()

    def _unlock(self) -> None:
        self._heartbeats.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _make_output_folder(path: Path) -> list[Path]:
    """Creates the output folder.

    Returns:
        The folders that did not exist before, innermost first.

    Raises:
        UsageError: The folder can't be created.
    """
    try:
        missing = [folder for folder in (path, *path.parents) if not exists(folder)]
        make_folder(path, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(
            "{out} {problem}; name a folder",
            out=option("out", path),
            problem="is a file"
            if is_file(path)
            else "is not a folder, and no folder can be made there",
        ) from None
    except OSError as error:
        raise UsageError(
            "{out}: can't be made: {strerror}", out=option("out", path), strerror=error.strerror
        ) from None
    return missing


def check_output_folder(out: str | os.PathLike[str], overwrite: bool) -> int:
    """Checks that a build may write to the output folder.

    Returns:
        The newest generation in the folder, or 0.

    Raises:
        UsageError: The folder contains a data set and `overwrite` is False, or it contains other
            files.
        DataError: A manifest in the folder is invalid.
    """
    output = os.fspath(out)
    try:
        numbers = list_generations(output)
        if numbers and not overwrite:
            raise UsageError(
                "{output} already holds a data set; {overwrite} replaces it (the old one "
                "stays readable until the new one is complete)",
                output=output,
                overwrite=option("overwrite", True),
            )
        if numbers:
            # The commit will remove old generations and has to read their manifests. An invalid one
            # is refused now, before the build does its work.
            dead_runs.load_generations(output)
            return numbers[-1]
        other_names = [
            name for name in list_names_if_present(output) if not _may_be_in_output(name)
        ]
    except OSError as error:
        if not is_remote(output):
            raise
        raise UsageError(
            "{out}: {strerror}", out=option("out", output), strerror=error.strerror
        ) from None
    if other_names:
        raise UsageError(
            f"{output} is not empty ({', '.join(other_names[:3])}{', ...' if len(other_names) > 3 else ''}) and holds no "
            "data set of recordmill; name a new or an empty folder"
        )
    return 0


def _may_be_in_output(name: str) -> bool:
    """Returns whether a name may be in OUT before its first data set.

    A build that is killed before its first commit leaves such names. Derived files are not among
    them, because they are written after the manifest.
    """
    return (
        name in (MANIFESTS_FOLDER, "rejects")
        or ignore_reason(name) == IGNORED_SYSTEM  # a mount point contains `lost+found`
        or name.startswith(RUN_PREFIX)
        or is_data_folder(name)
    )
