"""Runs that write to a store, and `clean` for dead runs everywhere.

The lease of such a run is the object `OUT/_run-<id>/lease.json`. A run is dead if no object was put
into its folder for LEASE_SEC, by the clock of the store. Its objects may then be removed unless a
manifest or a result names them. The lease is removed last, so that an interrupted removal can be
continued.

A run checks that its lease exists before it commits. After the commit it checks that all committed
objects exist.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from recordmill.base.arguments import suggest_keywords
from recordmill.base.documents import matches
from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.base.threads import thread_map
from recordmill.options.calls import Values, with_keywords
from recordmill.options.read import CleanOptions
from recordmill.shards.dead_runs import (
    LEASE_SEC,
    claim_dead_runs,
    data_folder_name,
    list_committed_folders,
    list_run_folders,
    remove_dead_runs,
)
from recordmill.shards.file_names import is_data_folder
from recordmill.shards.run import Run, RunFolder
from recordmill.storage.files import (
    is_remote,
    limit_requests,
    list_objects,
    parse_output_path,
    put_if_absent,
    put_object,
    remove_objects,
    supports_conditional_put,
)
from recordmill.storage.folders import (
    exists,
    find_files,
    is_folder,
    join,
    list_paths,
    make_private_folder,
)
from recordmill.storage.json_fields import load_json
from recordmill.storage.walk import DATA_PREFIX, READS_FOLDER, RUN_PREFIX, list_numbered_files

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from recordmill.options.keywords import CleanKeywords

__all__ = ["LEASE_SEC", "StoreRun", "attach_run", "clean", "find_local_work_folder", "list_results"]

LEASE_NAME = "lease.json"
# Number of objects in a batch, and number of batches that are removed at the same time.
_REMOVE_BATCH, _REMOVE_CONCURRENCY = (1_000, 32)

_log = logging.getLogger(__name__)


class _Result(TypedDict):
    folder: Annotated[str, matches(f"{DATA_PREFIX}[0-9a-f]{{12}}", "the folder of a result")]


def find_local_work_folder(out: str) -> Path:
    """Returns the folder on this machine in which runs prepare files for this output.

    All runs with the same output have the same folder.
    """
    return Path(make_private_folder("recordmill"), hashlib.sha256(out.encode()).hexdigest()[:16])


def result_name(generation: int) -> str:
    """Returns the name of the object that commits the result of a read.

    The name is relative to the output.

    >>> result_name(3)
    '_reads/00000003.json'
    """
    return f"{READS_FOLDER}/{generation:08d}.json"


def list_results(out: str) -> dict[int, str]:
    """Returns the data folder of each committed result of a read, by number.

    The numbers ascend. The last result is the current one.

    Raises:
        DataError: A result object is invalid.
    """
    folders = {}
    for number in list_result_numbers(out):
        # Another read may have removed the result since it was listed.
        with contextlib.suppress(FileNotFoundError):
            folders[number] = load_json(_Result, join(out, result_name(number)))["folder"]
    return folders


def list_result_numbers(out: str) -> list[int]:
    """Returns the numbers of the committed results of reads, in ascending order."""
    return list_numbered_files(join(out, READS_FOLDER))


class StoreRun(Run):
    """A run in a store.

    Inside a `with` block it holds the lease, and a thread renews it.
    """

    out: str

    def __init__(self, out: str, identifier: str) -> None:
        super().__init__(out, identifier)
        self._lease = f"{self.folder_name}/{LEASE_NAME}"
        self._lease_content = json.dumps({"host": socket.gethostname()}).encode()
        # If True, the objects and the lease of the run are not removed.
        self._is_commit_unknown = False
        self._heartbeats = contextlib.ExitStack()

    def _write_lease(self) -> None:
        put_object(f"{self.out}/{self._lease}", self._lease_content)

    def __enter__(self) -> StoreRun:
        """Creates the lease.

        Raises:
            UsageError: The store does not support conditional puts, so two runs could commit at
                once.
        """
        self._forget_renewal()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.keep_alive())
            if not supports_conditional_put(f"{self.out}/{self._lease}", self._lease_content):
                remove_objects(self.out, [self._lease])
                raise UsageError(
                    "{out}: the store ignores If-None-Match and replaces existing "
                    "objects, so two builds at the same time would both seem to "
                    "commit; use another store, or fix its server",
                    out=option("out", self.out),
                )
            self._heartbeats = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._heartbeats.close()
        self._forget_renewal()
        if self._is_commit_unknown:
            # When the lease has expired, another run finds out whether this one has committed.
            return
        try:
            remove_objects(self.out, [self._lease])
        except OSError as failure:
            _log.warning(
                "%s: the lease of this run can't be removed: %s", self.out, failure.strerror
            )

    @property
    def holds_lease(self) -> bool:
        return exists(f"{self.out}/{self._lease}")

    def commit(self, name: str, data: bytes, is_complete: Callable[[], bool]) -> bool:
        """Creates the object, see `Run.commit`.

        If it is unknown whether the object was created, nothing is removed, and the lease expires.
        """
        # If the next line raises an exception, the store may have created the object or not.
        self._is_commit_unknown = True
        committed = is_valid = put_if_absent(f"{self.out}/{name}", data)
        # an error of the check alone does not undo the commit
        with contextlib.suppress(OSError):
            is_valid = committed and is_complete()
        if committed and not is_valid:
            remove_objects(self.out, [name])
        self._is_commit_unknown, self.has_committed = False, is_valid
        return is_valid

    def release(self) -> None:
        """Keeps the lease and all objects, as if this process had died."""
        self._is_commit_unknown = True

    def discard(self) -> bool:
        """Removes the data folder and the reject files unless they were committed.

        A commit is found even if the answer of the store was lost. If the removal fails, the lease
        is kept, and a later run removes the objects.
        """
        try:
            is_committed = (
                self._is_commit_unknown
                or self.has_committed
                or self.committed_manifest() is not None
            )
            if not (is_committed or self.data_name in list_results(self.out).values()):
                _remove_objects_in_order(self.out, list_data_objects(self.out, self.data_name))
        except (OSError, DataError) as error:
            _log.warning("%s: what the run left can't be removed: %s", self.out, error)
            self._is_commit_unknown = True
        return not self._is_commit_unknown

    def remove_work_files(self) -> None:
        """Removes the run folder. The lease is removed last.

        A worker that the engine no longer waits for may still create objects. A later run removes
        them because of their age.
        """
        try:
            names = [
                f"{self.folder_name}/{item.name}"
                for item in list_objects(f"{self.out}/{self.folder_name}")
            ]
            _remove_objects_in_order(self.out, _move_lease_last(names))
        except OSError as error:
            _log.warning(
                "%s/%s: what the run needed can't be removed: %s",
                self.out,
                self.folder_name,
                error.strerror,
            )
        self._forget_renewal()

    def close(self) -> None:
        if self.discard():
            self.remove_work_files()

    def remove_dead_runs(self) -> None:
        """Removes the objects of dead runs."""
        if dead := self.find_dead_objects():
            for name, names in dead.items():
                _log.warning(
                    "%s: removing what the dead run %s left (%d objects)",
                    self.out,
                    name,
                    len(names),
                )
            self.remove_objects(dead)

    def remove_objects(self, dead: Mapping[str, Sequence[str]]) -> None:
        """Removes objects that `find_dead_objects` has returned.

        Data folders that were committed since then are kept.
        """
        committed = self._committed_folders()
        for run_name, names in dead.items():
            _remove_objects_in_order(
                self.out,
                [
                    name
                    for name in names
                    if data_folder_name(run_name) not in committed
                    or name.startswith(f"{run_name}/")
                ],
            )

    def _committed_folders(self) -> set[str]:
        """Returns the data folders that a manifest or a result names."""
        return list_committed_folders(self.out) | {*list_results(self.out).values()}

    def find_dead_objects(self) -> dict[str, list[str]]:
        """Returns the names of the objects of each dead run, by run folder.

        The lease is the last name in each list.
        """
        runs: dict[str, list[str]] = {}
        # time at which the newest object of a run folder was put, by run folder
        last_changes: dict[str, float] = {}
        for item in list_objects(self.out):
            name, _, rest = item.name.partition("/")
            if rest and name.startswith(RUN_PREFIX):
                runs.setdefault(name, []).append(item.name)
                last_changes[name] = max(
                    last_changes.get(name, item.modified_sec), item.modified_sec
                )
        # This run has just renewed its lease, so the time of the lease is the current time of the
        # store's clock. If another run has removed the lease, no run counts as dead.
        now = last_changes.pop(self.folder_name, 0.0)
        dead = {name for name, changed_sec in last_changes.items() if now - changed_sec > LEASE_SEC}
        committed = self._committed_folders() if dead else set()
        objects = {}
        for name in sorted(dead):
            data = data_folder_name(name)
            uncommitted = [] if data in committed else list_data_objects(self.out, data)
            objects[name] = [*uncommitted, *_move_lease_last(runs[name])]
        return objects


def attach_run(out: str, identifier: str) -> Run:
    """Returns the run with this id, on a disk or in a store.

    The caller does not own the run: another part of the program holds its lease and closes it.
    """
    return StoreRun(out, identifier) if is_remote(out) else RunFolder(Path(out), identifier)


def _remove_objects_in_order(out: str, names: Sequence[str]) -> None:
    """Removes objects. The last one is removed after all others.

    The last object is the lease. A later run needs it to continue an interrupted removal.
    """
    batches = [
        names[begin : begin + _REMOVE_BATCH] for begin in range(0, len(names) - 1, _REMOVE_BATCH)
    ]
    for _ in thread_map(lambda batch: remove_objects(out, batch), batches, _REMOVE_CONCURRENCY):
        pass
    remove_objects(out, names[-1:])


def _move_lease_last(names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: name.endswith(f"/{LEASE_NAME}"))


def list_data_objects(out: str, data: str) -> list[str]:
    """Returns the names of all objects of a data folder and its reject files.

    The names are relative to the output.
    """
    prefixes = {data: "", "rejects": f"{data.removeprefix(DATA_PREFIX)}."}

    def list_names(folder: str) -> list[str]:
        names = (item.name for item in list_objects(f"{out}/{folder}"))
        return [f"{folder}/{name}" for name in names if name.startswith(prefixes[folder])]

    return [
        name
        for folder_names in thread_map(list_names, prefixes, len(prefixes))
        for name in folder_names
    ]


@suggest_keywords
@with_keywords("clean")
def clean(out: str | os.PathLike[str], **options: Unpack[CleanKeywords]) -> Mapping[str, list[str]]:
    """Lists what dead runs have left in an output folder, and optionally removes it.

    A run of this machine on a disk is dead if no process holds its lock. Any other run is dead if
    it has not renewed its lease for 15 minutes: a run of another host, of an engine, or in a store.
    The list includes stopped reads that could be resumed.

    Args:
        out: Folder or store URL. For a store, the temporary files of its runs on this machine are
            included, with absolute paths.
        **options: The options of `recordmill clean`, as keywords. docs/reference.md lists them.

    Returns:
        The paths of the files of each dead run, by the name of its run folder. No data set uses
        these files.

    Raises:
        UsageError: The folder does not exist.
    """
    output, chosen = parse_output_path(out), Values("clean", options)[CleanOptions]
    limit_requests(chosen.storage_requests)
    if not is_remote(output):
        if not is_folder(output):
            raise UsageError(f"{output}: no such folder")
        return _clean_disk(Path(output), chosen.remove)
    local_runs = _clean_disk(find_local_work_folder(output), chosen.remove)
    if not local_runs and not is_folder(output):
        raise UsageError(f"{output}: no such folder")
    return {
        **_clean_store(output, chosen.remove),
        **{
            join(str(find_local_work_folder(output)), name): paths
            for name, paths in local_runs.items()
        },
    }


def _clean_disk(output: Path, remove: bool) -> dict[str, list[str]]:
    if not is_folder(output):
        return {}
    with claim_dead_runs(list_run_folders(output)) as dead:
        names = [run.name for run in dead]
    committed = list_committed_folders(output) if names else set()
    paths_by_run = {
        name: sorted(
            [
                *find_files(join(output, name)).values(),
                *_list_published_files(output, name, committed),
            ]
        )
        for name in names
    }
    if remove and paths_by_run:
        removed = set(remove_dead_runs(output))
        return {name: paths for name, paths in paths_by_run.items() if name in removed}
    return paths_by_run


def _list_published_files(output: Path, name: str, committed: set[str]) -> list[str]:
    """Returns the uncommitted files of a dead run outside of its run folder."""
    data = data_folder_name(name)
    if data in committed or not is_data_folder(data):
        return []
    rejects = list_paths(output / "rejects", f"{data.removeprefix(DATA_PREFIX)}.*")
    return [*find_files(output / data).values(), *map(str, rejects)]


def _clean_store(out: str, remove: bool) -> dict[str, list[str]]:
    if not is_folder(out):
        return {}
    with StoreRun(out, uuid.uuid4().hex[:12]) as run:
        dead = run.find_dead_objects()
        older = {
            name: names
            for name in list(list_results(out).values())[:-1]
            if (names := list_data_objects(out, name))
        }
        if remove and dead:
            run.remove_objects(dead)
        for names in older.values() if remove else ():
            _remove_objects_in_order(out, names)
    return {
        name: [join(out, object_name) for object_name in names]
        for name, names in (dead | older).items()
    }
