"""When a run is dead, and on a disk the folders of dead ones: told from live ones by their lock, claimed, and removed
with what else has the run's name in its own.

A lock tells of processes that one kernel runs: of this start of this machine, by whatever name of a host (a container
may have another one each time), or before it restarted. Of another host, or of an engine's job that outlives the
process which submitted it, nobody here can know: but each run renews its lock, so one that has been silent for
LEASE_SEC is dead.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from recordmill.base.errors import DataError
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
from recordmill.storage.json_fields import convert_json, format_json_value, parse_json, read_bounded
from recordmill.storage.locks import LockFile, lock_folder
from recordmill.storage.walk import DATA_PREFIX, READ_SUMMARY_NAME, RUN_PREFIX

LEASE_SEC = 900  # a run that was not heard of for 15 minutes is dead
LOCK_NAME = "lock"
JOB_NOTE_NAME = "job.json"  # which job of an engine works for the run
READ_NOTE_NAME = "read.json"  # which read it is that could go on in this folder
_MAX_OWNER_BYTES = 4096

_log = logging.getLogger(__name__)


def claim_dead_run(path: Path) -> LockFile | None:
    """The lock of the folder of a run, which is held then, if the run is provably dead and nobody else claims it."""
    if is_link(path):
        return None
    try:
        lock = LockFile.open(path / LOCK_NAME)
    except FileNotFoundError:
        return None
    except OSError:
        _log.warning("%s is no folder of a run; it was left alone", path)
        return None
    with contextlib.suppress(OSError, DataError):
        if _is_dead(path, lock) and lock.is_at(path / LOCK_NAME):
            return lock
    lock.close()
    return None


def _is_dead(path: Path, lock: LockFile) -> bool:
    owner = _read_owner(lock)
    # Where it doesn't tell, or after a restart, the lock only excludes those who would claim the folder as well.
    lock.take()
    is_leased = owner.get("leased") is True or exists(path / JOB_NOTE_NAME)
    return (_is_local(owner) and not is_leased) or time.time() - lock.changed > LEASE_SEC


def _read_owner(lock: LockFile) -> Mapping[str, Any]:
    owner: Mapping[str, Any] = convert_json(
        Mapping[str, Any], parse_json(lock.read(_MAX_OWNER_BYTES) or b"{}", LOCK_NAME), LOCK_NAME
    )
    return owner


def _is_local(owner: Mapping[str, Any]) -> bool:
    """Returns whether its processes are, or were, this machine's: the same start of it, or the same name of a host."""
    this_machine = machine_identity()
    return (this_machine["boot"] != "" and owner.get("boot") == this_machine["boot"]) or owner.get(
        "host"
    ) == this_machine["host"]


def find_other_host(run: Path) -> str:
    """The host at which the run of that folder is at work, or was killed, where nobody here can know; else ""."""
    with (
        contextlib.suppress(OSError, DataError),
        contextlib.closing(LockFile.open(run / LOCK_NAME)) as lock,
    ):
        owner = _read_owner(lock)
        if not _is_local(owner):
            return format_json_value(owner.get("host", "of no name"))
    return ""


def list_run_folders(out: Path) -> list[Path]:
    """The folders of runs in OUT, but of reads that only lack their last step, which the next read takes."""
    return [path for path in list_paths(out, f"{RUN_PREFIX}*") if not is_awaiting_publication(path)]


def is_awaiting_publication(run: Path) -> bool:
    """Returns True if the run holds a whole result of a read, which is to be moved into OUT, and OUT holds none."""
    return exists(run / "data" / READ_SUMMARY_NAME) and not exists(run.parent / READ_SUMMARY_NAME)


def remove_dead_runs(out: Path, keep: Callable[[Path], bool] | None = None) -> list[str]:
    """Removes the run folders whose process is provably dead, and what they had already moved; gives their names. keep:
    which ones are left alone.
    """
    folders = list_run_folders(out)
    if not folders:
        return []
    # starts hold OUT until they have locked their folders
    with (
        lock_folder(out),
        claim_dead_runs(path for path in folders if keep is None or not keep(path)) as dead,
    ):
        committed = committed_data_folders(out) if dead else set()
        for run in dead:
            if data_folder_name(run.name) in committed or remove_data_folder(
                out, data_folder_name(run.name)
            ):
                remove_run_folder(run)
        for path in folders:
            with contextlib.suppress(
                OSError
            ):  # what a start makes first, and a removal leaves last
                remove_empty_folder(path)
        return [run.name for run in dead]


def data_folder_name(name: str) -> str:
    """The name of the folder of shards of the run that has a folder of that name."""
    return f"{DATA_PREFIX}{name.removeprefix(RUN_PREFIX)}"


@contextlib.contextmanager
def claim_dead_runs(folders: Iterable[Path]) -> Iterator[list[Path]]:
    """Yields those run folders whose process is provably dead, locked meanwhile, so that nobody else takes them."""
    with contextlib.ExitStack() as locks:
        dead = []
        for path in folders:
            if (lock := claim_dead_run(path)) is not None:
                locks.callback(lock.close)
                dead.append(path)
        yield dead


def load_if_present(out: str | Path, generation: int) -> Manifest | None:
    """Returns a generation of OUT; None where another build has removed it meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return load_manifest(out, generation)
    return None


def load_generations(out: str | Path) -> dict[int, Manifest]:
    """All generations that OUT holds, by number; one that another build removes meanwhile is left out.

    Raises:
        DataError: a manifest is broken.
    """
    manifests = {number: load_if_present(out, number) for number in list_generations(out)}
    return {number: manifest for number, manifest in manifests.items() if manifest is not None}


def committed_data_folders(out: str | Path) -> set[str]:
    """The folders that the data sets at OUT consist of."""
    return {part.folder for manifest in load_generations(out).values() for part in manifest.parts}


def remove_data_folder(out: Path, name: str) -> bool:
    """Removes a data folder, and the reject files that belong to it by their names, unless it is no name of one; says
    whether no such folder is left.
    """
    if not is_data_folder(name):
        return True
    for path in (out / name, *list_paths(out / "rejects", f"{name.removeprefix(DATA_PREFIX)}.*")):
        with contextlib.suppress(OSError):
            remove(path)
    return not name_exists(out / name)


def remove_run_folder(path: Path) -> None:
    """Removes a run folder, its lock last: whoever is killed in between leaves one that can still be proved dead, and
    that no read goes on in.
    """
    removal_order = {READ_NOTE_NAME: 0, LOCK_NAME: 2}
    with contextlib.suppress(OSError):
        for name in sorted(list_names(path), key=lambda name: removal_order.get(name, 1)):
            remove(path / name)
        remove_empty_folder(path)


def machine_identity() -> dict[str, str]:
    """`host`: this machine's name. `boot`: what its kernel calls this start of it, empty where it does not say."""
    boot = ""
    with contextlib.suppress(OSError, DataError):
        boot = read_bounded("/proc/sys/kernel/random/boot_id", _MAX_OWNER_BYTES).decode().strip()
    return {"host": socket.gethostname(), "boot": boot}
