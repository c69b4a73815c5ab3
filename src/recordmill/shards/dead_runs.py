"""When a run is dead, and on a disk the folders of dead ones: told from live ones by their lock, claimed, and removed
with what else has the run's name in its own.

A lock tells of processes that one kernel runs: of this start of this machine, by whatever name of a host (a container
may have another one each time), or before it restarted. Of another host, or of an engine's job that outlives the
process which submitted it, nobody here can know: but each run renews its lock, so one that has been silent for
LEASE_SEC is dead. Nothing that stands in a folder is taken for a path, and links are left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from recordmill.base.errors import DataError
from recordmill.shards.engine_jobs import JOB_NAME
from recordmill.shards.grammar import is_data_folder
from recordmill.shards.manifest import Manifest, generations, load
from recordmill.storage.json_fields import Count, convert, parse, read_bounded, show
from recordmill.storage.locks import LockFile, lock_folder
from recordmill.storage.removal import Folder
from recordmill.storage.walk import DATA_PREFIX, RUN_PREFIX

LEASE_SEC = 900  # a run that was not heard of for 15 minutes is dead
LOCK_NAME = "lock"
READ_NOTE_NAME = "read.json"  # which read it is that could go on in this folder
_OWNER_BYTES = 4096

_log = logging.getLogger(__name__)


class Claim:
    """A dead run's folder, locked until `close` so that nobody else takes it. lock: None where there is none left."""

    def __init__(self, above: Folder, name: str, folder: Folder, lock: LockFile | None) -> None:
        self.above, self.name, self.folder, self.lock = above, name, folder, lock

    def keep_lock(self) -> LockFile | None:
        """Let go of all but the lock, which is the caller's now."""
        lock, self.lock = self.lock, None
        self.close()
        return lock

    def close(self) -> None:
        self.folder.close()
        if self.lock is not None:
            self.lock.close()


def claim(above: Folder, name: str) -> Claim | None:
    """The run folder of that name, if its process is provably dead and nobody else claims it; else None."""
    try:
        folder = above.enter(name)
    except FileNotFoundError:
        return None
    except OSError:
        _log.warning("%s is no folder of a run, but a link or a file; it was left alone", name)
        return None
    dead, lock = _judge(above, folder, name)
    if dead and above.inode(name) == folder.own_inode:
        return Claim(above, name, folder, lock)
    folder.close()
    if lock is not None:
        lock.close()
    return None


def _judge(above: Folder, folder: Folder, name: str) -> tuple[bool, LockFile | None]:
    """Whether the folder's run is dead, and its lock if there is one left."""
    try:
        lock = LockFile.open(folder, LOCK_NAME)
    except FileNotFoundError:  # none to judge by: what a removal leaves last, or a start that was killed
        if not name.startswith("."):
            return not folder.names(), None
        with contextlib.suppress(OSError):
            return _is_made_here(name) or above.now() - above.changed(name) > LEASE_SEC, None
        return False, None
    except OSError:
        _log.warning("%s: its lock is a link or no file; it was left alone", name)
        return False, None
    with contextlib.suppress(OSError, DataError):
        if not lock.is_own_file:
            _log.warning("%s: its lock is no file of its own; it was left alone", name)
        elif _is_dead(folder, lock, name):
            return True, lock
    return False, lock


def _is_dead(folder: Folder, lock: LockFile, name: str) -> bool:
    owner = _owner(lock)
    unsigned = not owner and _is_made_here(name)  # a start that was killed before it wrote whose it is
    # Where it doesn't tell, or after a restart, the lock only excludes those who would claim the folder as well.
    lock.take()
    if unsigned:
        return True
    has_lease = "lease_sec" in owner and owner.get("boot") == machine()["boot"]
    lease = convert(Count, owner["lease_sec"], LOCK_NAME, "lease_sec") if has_lease else 0
    if not _is_of_here(owner) or folder.inode(JOB_NAME) is not None:
        lease = LEASE_SEC
    return not lease or _silent_sec(folder, lock) > lease


def _owner(lock: LockFile) -> Mapping[str, Any]:
    owner: Mapping[str, Any] = convert(Mapping[str, Any], parse(lock.read(_OWNER_BYTES) or b"{}", LOCK_NAME), LOCK_NAME)
    return owner


def _is_of_here(owner: Mapping[str, Any]) -> bool:
    """Whether its processes are, or were, this machine's: the same start of it, or the same name of a host."""
    here = machine()
    return (here["boot"] != "" and owner.get("boot") == here["boot"]) or owner.get("host") == here["host"]


def other_host(run: Path) -> str:
    """The host at which the run of that folder is at work, or was killed, where nobody here can know; else ""."""
    with contextlib.suppress(OSError, DataError), Folder.open(run.parent) as above, above.enter(run.name) as folder:
        with contextlib.closing(LockFile.open(folder, LOCK_NAME)) as lock:
            owner = _owner(lock)
        if not _is_of_here(owner):
            return show(owner.get("host", "of no name"))
    return ""


def _silent_sec(folder: Folder, lock: LockFile) -> float:
    """For how long nothing has been written in the run's folder, nor its lease renewed, by the disk's own clock."""
    times = [lock.changed]
    for name in ("data", "runs", "rejects"):
        with contextlib.suppress(OSError):
            times.append(folder.changed(name))
    return folder.now() - max(times)


def clean_dead(out: Path, keep: Callable[[Path], bool] | None = None) -> list[str]:
    """Remove the run folders whose process is provably dead, and what they had already moved; gives their names. keep:
    which ones to leave alone.
    """
    with Folder.open(out) as above:
        names = [name for name in above.names() if name.startswith((RUN_PREFIX, f".{RUN_PREFIX}"))]
        if not names:
            return []
        lock_folder(above)  # starts hold it until they have locked their folders
        with claimed(out / name for name in names if keep is None or not keep(out / name)) as dead:
            kept = committed_data(out) if dead else set()
            for run in dead:
                if data_of(run.name) in kept or remove_data(out, data_of(run.name)):
                    remove_run(above, run.name, run.folder)
            return [run.name for run in dead]


def data_of(name: str) -> str:
    """The name of the folder of shards of the run that has a folder of that name."""
    return f"{DATA_PREFIX}{name.removeprefix(RUN_PREFIX)}"


@contextlib.contextmanager
def claimed(folders: Iterable[Path]) -> Iterator[list[Claim]]:
    """Those of the run folders whose process is provably dead, locked meanwhile, so that nobody else takes them."""
    with contextlib.ExitStack() as held:
        dead = []
        for path in folders:
            above = held.enter_context(Folder.open(path.parent))
            if (run := claim(above, path.name)) is not None:
                held.callback(run.close)
                dead.append(run)
        yield dead


def loaded(out: str | Path) -> dict[int, Manifest]:
    """All generations that OUT holds, by number; one that another build removes meanwhile is left out.

    Raises:
        DataError: a manifest is broken.
    """
    manifests = {}
    for number in generations(out):
        with contextlib.suppress(FileNotFoundError):
            manifests[number] = load(out, number)
    return manifests


def committed_data(out: str | Path) -> set[str]:
    """The folders that the data sets at OUT consist of."""
    return {part.folder for manifest in loaded(out).values() for part in manifest.parts}


def remove_data(out: Path, name: str) -> bool:
    """Remove a data folder, and the reject files that belong to it by their names, unless it is no name of one; says
    whether no such folder is left.
    """
    if not is_data_folder(name):
        return True
    with Folder.open(out) as above:
        if above.is_folder(name):
            with contextlib.suppress(OSError):
                above.remove(name)
        with contextlib.suppress(OSError), above.enter("rejects") as rejects:
            for file in rejects.names():
                if file.startswith(f"{name.removeprefix(DATA_PREFIX)}."):
                    rejects.remove(file)
        return not above.is_folder(name)


def remove_run(above: Folder, name: str, folder: Folder) -> None:
    """Remove a run folder, its lock last: whoever is killed in between leaves one that can still be proved dead, and
    that no read goes on in.
    """
    with contextlib.suppress(OSError):
        folder.clear(lambda inner: 0 if inner == READ_NOTE_NAME else 2 if inner == LOCK_NAME else 1)
        folder.remove_itself(above, name)


def temporary_run_name(identifier: str) -> str:
    """A new name for a run's folder while it is made, which says on which machine."""
    return f".{RUN_PREFIX}{identifier}.{uuid.uuid4().hex[:8]}.{_machine_tag()}.tmp"


def _is_made_here(name: str) -> bool:
    """Whether a folder without a lock is what a start on this machine left: starts and cleaners exclude each other."""
    return name.startswith(f".{RUN_PREFIX}") and name.endswith(f".{_machine_tag()}.tmp")


def _machine_tag() -> str:
    return hashlib.sha256(machine()["host"].encode("utf-8", "surrogateescape")).hexdigest()[:8]


def machine() -> dict[str, str]:
    """`host`: this machine's name. `boot`: what its kernel calls this start of it, empty where it does not say."""
    boot = ""
    with contextlib.suppress(OSError, DataError):
        boot = read_bounded("/proc/sys/kernel/random/boot_id", _OWNER_BYTES).decode().strip()
    return {"host": socket.gethostname(), "boot": boot}
