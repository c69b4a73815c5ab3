"""Detection and removal of dead runs.

A run on a disk is dead if no process holds its lock. In addition, one of these must hold:

* its lock file names this machine, so that the kernel has released the lock at the end of its
  process, or
* its lease was not renewed for LEASE_SEC.

A run on an engine names no machine, because its job outlives the process that submitted it. A run
in a store has no lock, only the lease.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from recordmill.base.documents import describe_value
from recordmill.base.errors import DataError
from recordmill.base.machine import read_boot_id
from recordmill.shards.file_names import is_data_folder
from recordmill.shards.manifest import Manifest, list_generations, load_manifest
from recordmill.storage.folders import (
    exists,
    is_link,
    list_names,
    list_paths,
    name_exists,
    remove,
    remove_empty_folder,
)
from recordmill.storage.json_fields import convert_json, parse_json
from recordmill.storage.locks import LockFile, lock_folder
from recordmill.storage.walk import DATA_PREFIX, READ_SUMMARY_NAME, RUN_PREFIX

LEASE_SEC = 900  # 15 minutes
LOCK_NAME = "lock"
# File in a run folder: the job of an engine that works for the run.
JOB_NOTE_NAME = "job.json"
# File in a run folder: the fingerprint of a read that can be resumed.
READ_NOTE_NAME = "read.json"
_MAX_OWNER_BYTES = 4096

_log = logging.getLogger(__name__)


def claim_dead_run(path: Path) -> LockFile | None:
    """Locks the folder of a dead run.

    Returns:
        The lock, which the caller closes. None if the run may be alive, if another process has
        locked the folder, or if the folder does not belong to a run.
    """
    # A link could lead out of OUT, so it never counts as the folder of a run.
    if is_link(path):
        return None
    try:
        lock = LockFile.open(path / LOCK_NAME)
    except FileNotFoundError:
        return None
    except OSError:
        _log.warning("%s is not the folder of a run, and was left alone", path)
        return None
    with contextlib.suppress(OSError, DataError):
        # Another process may have removed the folder before this one got the lock.
        if _is_dead(lock) and lock.is_at(path / LOCK_NAME):
            return lock
    lock.close()
    return None


def _is_dead(lock: LockFile) -> bool:
    owner = _read_owner(lock)
    # The lock may not exclude an owner on another machine, so its lease must have expired, too. The
    # lock still excludes other processes that try to claim the folder.
    lock.acquire()
    return owner.get("machine") == read_machine_id() or time.time() - lock.modified_sec > LEASE_SEC


def _read_owner(lock: LockFile) -> Mapping[str, Any]:
    return convert_json(
        Mapping[str, Any], parse_json(lock.read(_MAX_OWNER_BYTES) or b"{}", LOCK_NAME), LOCK_NAME
    )


def find_other_host(run: Path) -> str:
    """Returns the host that a run belongs to, unless it is this machine.

    Only that host can know at once whether the run is alive.

    Returns:
        The host name, for messages. "" if the run belongs to this machine, or if the lock can't be
        read.
    """
    with (
        contextlib.suppress(OSError, DataError),
        contextlib.closing(LockFile.open(run / LOCK_NAME)) as lock,
    ):
        owner = _read_owner(lock)
        if owner.get("machine") != read_machine_id():
            return describe_value(owner.get("host", "of no name"))
    return ""


def list_run_folders(out: Path) -> list[Path]:
    """Returns the run folders in an output folder.

    Runs that are awaiting publication are left out. The next read completes them.
    """
    return [path for path in list_paths(out, f"{RUN_PREFIX}*") if not is_awaiting_publication(path)]


def is_awaiting_publication(run: Path) -> bool:
    """Returns whether a read was stopped just before its last step.

    The run folder of such a read contains the complete result, and the output folder has no result.
    The next read moves the result there.
    """
    return exists(run / "data" / READ_SUMMARY_NAME) and not exists(run.parent / READ_SUMMARY_NAME)


def remove_dead_runs(out: Path, keep: Callable[[Path], bool] | None = None) -> list[str]:
    """Removes dead runs with everything that they have not committed.

    Args:
        out: Output folder on a disk.
        keep: Returns whether the folder of a dead run must be kept. Its data folder is removed
            nevertheless.

    Returns:
        The names of the removed run folders.
    """
    folders = list_run_folders(out)
    if not folders:
        return []
    # A starting run holds the lock of the output folder until its run folder is locked.
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock_folder(out))
        kept = {path for path in folders if keep is not None and keep(path)}
        # A kept run that has no data folder is not locked, because another run may take it over.
        unwanted = [
            path
            for path in folders
            if path not in kept or name_exists(out / data_folder_name(path.name))
        ]
        dead = stack.enter_context(claim_dead_runs(unwanted))
        committed = list_committed_folders(out) if dead else set()
        for run in dead:
            name = data_folder_name(run.name)
            # If the data folder can't be removed, the run folder stays, so that a later run tries
            # again.
            if (name in committed or remove_data_folder(out, name)) and run not in kept:
                remove_run_folder(run)
        for path in folders:
            # a run that was killed during its start, or a removal, can leave an empty folder
            with contextlib.suppress(OSError):
                remove_empty_folder(path)
        return [run.name for run in dead if run not in kept]


def data_folder_name(name: str) -> str:
    """Returns the name of the data folder of a run.

    >>> data_folder_name("_run-0123456789ab")
    'data-0123456789ab'

    Args:
        name: Name of the run folder.
    """
    return f"{DATA_PREFIX}{name.removeprefix(RUN_PREFIX)}"


@contextlib.contextmanager
def claim_dead_runs(folders: Iterable[Path]) -> Iterator[list[Path]]:
    """Locks the folders of dead runs during the `with` block.

    So no other process can take these runs over.

    Yields:
        The folders that were locked.
    """
    with contextlib.ExitStack() as locks:
        dead = []
        for path in folders:
            if (lock := claim_dead_run(path)) is not None:
                locks.callback(lock.close)
                dead.append(path)
        yield dead


def load_if_present(out: str | Path, generation: int) -> Manifest | None:
    """Loads a generation, or returns None if another build has removed it."""
    with contextlib.suppress(FileNotFoundError):
        return load_manifest(out, generation)
    return None


def load_generations(out: str | Path) -> dict[int, Manifest]:
    """Loads all generations of a data set, by number.

    If another build removes a generation in the meantime, it is left out.

    Raises:
        DataError: A manifest is invalid.
    """
    manifests = {number: load_if_present(out, number) for number in list_generations(out)}
    return {number: manifest for number, manifest in manifests.items() if manifest is not None}


def list_committed_folders(out: str | Path) -> set[str]:
    """Returns the names of the data folders that any generation uses."""
    return {part.folder for manifest in load_generations(out).values() for part in manifest.parts}


def remove_data_folder(out: Path, name: str) -> bool:
    """Removes a data folder and its reject files.

    A name that is not the name of a data folder is ignored.

    Returns:
        True if the folder does not exist any more.
    """
    if not is_data_folder(name):
        return True
    for path in (out / name, *list_paths(out / "rejects", f"{name.removeprefix(DATA_PREFIX)}.*")):
        with contextlib.suppress(OSError):
            remove(path)
    return not name_exists(out / name)


def remove_run_folder(path: Path) -> None:
    """Removes a run folder.

    If the process is killed during the removal, the folder still has its lock file. So a later run
    can prove that the run is dead, and no read resumes in the folder.
    """
    # The read note goes first, so that nothing resumes in a half-removed folder. The lock goes
    # last.
    removal_order = {READ_NOTE_NAME: 0, LOCK_NAME: 2}
    with contextlib.suppress(OSError):
        for name in sorted(list_names(path), key=lambda name: removal_order.get(name, 1)):
            remove(path / name)
        remove_empty_folder(path)


def read_machine_id() -> str:
    """Returns a text that identifies this machine until it is restarted.

    The text is the boot id of the kernel, which all containers of a machine have in common. Systems
    without one have the host name instead.
    """
    return read_boot_id() or socket.gethostname()
