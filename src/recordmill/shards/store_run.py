"""A run (of a build, or a read) at work on an OUT in a store: its lease, `OUT/_run-<id>/lease.json`, what runs left
whose lease has run out, and which results reads committed; and `clean`, which is for any OUT.

Where nothing was put into the run's folder for LEASE_SEC, by the store's own clock, the run is dead: its objects, which
nothing committed names, may be removed, its lease last, so that the next takes up a removal that is stopped. Who
commits looks before that whether its lease is there, and behind that whether all is that it names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypedDict

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.base.threads import thread_map
from recordmill.shards.dead_runs import (
    LEASE_SEC,
    claim_dead_runs,
    committed_data_folders,
    data_folder_name,
    list_run_folders,
    machine_identity,
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
    list_names_if_present,
    list_paths,
    make_private_folder,
)
from recordmill.storage.json_fields import load_json, matches
from recordmill.storage.walk import DATA_PREFIX, READS_FOLDER, RUN_PREFIX

__all__ = ["LEASE_SEC", "StoreRun", "attach_run", "clean", "list_results", "local_work_folder"]

LEASE_NAME = "lease.json"
_REMOVE_BATCH, _REMOVE_CONCURRENCY = (
    1_000,
    32,
)  # objects that are removed one after the other, while others do so with others
_RESULT_NAME = re.compile(r"([0-9]{8})\.json")

_log = logging.getLogger(__name__)


class _Result(TypedDict):
    folder: Annotated[str, matches(f"{DATA_PREFIX}[0-9a-f]{{12}}", "the folder of a result")]


def local_work_folder(out: str) -> Path:
    """Returns the folder of this machine in which runs prepare what they put into that OUT; the same for each of
    them.
    """
    return Path(make_private_folder("recordmill"), hashlib.sha256(out.encode()).hexdigest()[:16])


def result_name(generation: int) -> str:
    """The name below OUT of what commits a read's result."""
    return f"{READS_FOLDER}/{generation:08d}.json"


def list_results(out: str) -> dict[int, str]:
    """Number of each result of a read that OUT holds to its folder there, ascending; the last one is the result.

    Raises:
        DataError: one of them is none that a read writes.
    """
    folders = {}
    for number in list_result_numbers(out):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            folders[number] = load_json(_Result, join(out, result_name(number)))["folder"]
    return folders


def list_result_numbers(out: str) -> list[int]:
    """The numbers of the results of reads that OUT holds, ascending."""
    names = list_names_if_present(join(out, READS_FOLDER))
    return sorted(int(match[1]) for name in names if (match := _RESULT_NAME.fullmatch(name)))


class StoreRun(Run):
    """A run in a store. As a context it holds the run's lease, renewed by a thread of its own."""

    out: str

    def __init__(self, out: str, identifier: str) -> None:
        super().__init__(out, identifier)
        self._lease = f"{self.folder_name}/{LEASE_NAME}"
        self._lease_content = json.dumps(
            {"host": machine_identity()["host"], "leased": True}
        ).encode()
        self._is_commit_unknown = False  # whether it is unknown if the run has committed
        self._heartbeats = contextlib.ExitStack()

    def _write_lease(self) -> None:
        put_object(f"{self.out}/{self._lease}", self._lease_content)

    def __enter__(self) -> StoreRun:
        """UsageError if the store is none in which one of two runs alone can commit."""
        self._forget_renewal()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.keep_alive())
            if not supports_conditional_put(f"{self.out}/{self._lease}", self._lease_content):
                remove_objects(self.out, [self._lease])
                raise UsageError(
                    f"{option('out', self.out)}: the store replaces an object that is only to be made where there is "
                    "none (it ignores If-None-Match), so of two builds at once both would seem to commit; name another "
                    "store, or have its server mended"
                )
            self._heartbeats = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._heartbeats.close()
        self._forget_renewal()
        if self._is_commit_unknown:  # who finds the lease expired knows by then
            return
        try:
            remove_objects(self.out, [self._lease])
        except OSError as failure:
            _log.warning(
                "%s: the lease of this run can't be removed: %s", self.out, failure.strerror
            )

    @property
    def holds_lease(self) -> bool:
        """True if nobody has taken this run for dead."""
        return exists(f"{self.out}/{self._lease}")

    def commit(self, name: str, data: bytes, is_complete: Callable[[], bool]) -> bool:
        """See `Run.commit`. Where it can't be known, nothing is removed, and the lease is left to run out."""
        self._is_commit_unknown = True
        committed = is_valid = put_if_absent(f"{self.out}/{name}", data)
        with contextlib.suppress(OSError):  # it was put, all the same
            is_valid = committed and is_complete()
        if committed and not is_valid:
            remove_objects(self.out, [name])
        self._is_commit_unknown, self.has_committed = False, is_valid
        return is_valid

    def release(self) -> None:
        """Leave all as it is, as a dead run leaves it."""
        self._is_commit_unknown = True

    def discard(self) -> bool:
        """Remove the objects below the data folder, and the files of rejects, unless they were committed, also where
        that was not heard; what can't be is left to the next run, which finds the lease.
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
        """Remove the run's own objects, its lease last. Workers that were given up may still put others: what they
        leave is known by its age.
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
        """Remove all that the run has put, but what it has committed."""
        if self.discard():
            self.remove_work_files()

    def remove_dead_runs(self) -> None:
        """Remove what dead runs left."""
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
        """Remove what `find_dead_objects` has found, but what was committed since."""
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
        """The folders of data that something committed names."""
        return committed_data_folders(self.out) | {*list_results(self.out).values()}

    def find_dead_objects(self) -> dict[str, list[str]]:
        """Name of each dead run's folder to the names of what it left."""
        runs: dict[str, list[str]] = {}
        last_changes: dict[
            str, float
        ] = {}  # when something was put into the folder last: its lease, or what workers made
        for item in list_objects(self.out):
            name, _, rest = item.name.partition("/")
            if rest and name.startswith(RUN_PREFIX):
                runs.setdefault(name, []).append(item.name)
                last_changes[name] = max(last_changes.get(name, item.changed_sec), item.changed_sec)
        now = last_changes.pop(
            self.folder_name, 0.0
        )  # unless somebody took this one for dead: then nothing can be told
        dead = {name for name, changed_sec in last_changes.items() if now - changed_sec > LEASE_SEC}
        committed = self._committed_folders() if dead else set()
        return {
            name: [*self._list_uncommitted_data(name, committed), *_move_lease_last(runs[name])]
            for name in sorted(dead)
        }

    def _list_uncommitted_data(self, name: str, committed: set[str]) -> list[str]:
        return (
            []
            if data_folder_name(name) in committed
            else list_data_objects(self.out, data_folder_name(name))
        )


def attach_run(out: str, identifier: str) -> Run:
    """A run that another process or another part of this one holds, at an OUT of a disk or a store."""
    return StoreRun(out, identifier) if is_remote(out) else RunFolder(Path(out), identifier)


def _remove_objects_in_order(out: str, names: Sequence[str]) -> None:
    """Remove what a run left, and when all of it is gone the last one, by which the run is found."""
    batches = [
        names[begin : begin + _REMOVE_BATCH] for begin in range(0, len(names) - 1, _REMOVE_BATCH)
    ]
    for _ in thread_map(lambda batch: remove_objects(out, batch), batches, _REMOVE_CONCURRENCY):
        pass
    remove_objects(out, names[-1:])


def _move_lease_last(names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: name.endswith(f"/{LEASE_NAME}"))


def list_data_objects(out: str, data: str) -> list[str]:
    """The names below OUT of all objects that belong to a data folder: its own, and its files of rejects."""
    prefixes = {data: "", "rejects": f"{data.removeprefix(DATA_PREFIX)}."}

    def below(folder: str) -> list[str]:
        names = (item.name for item in list_objects(f"{out}/{folder}"))
        return [f"{folder}/{name}" for name in names if name.startswith(prefixes[folder])]

    return [
        name for folder_names in thread_map(below, prefixes, len(prefixes)) for name in folder_names
    ]


def clean(
    out: str | os.PathLike[str], *, remove: bool = False, storage_requests: int | None = None
) -> Mapping[str, list[str]]:
    """Name of each dead run's folder in OUT to the paths of what it left, which no data set consists of.

    remove: remove it. A dead `read` that could go on is among them. On a disk a run of this machine is dead when no
    process holds its lock; one of another host or of an engine, and any in a store, when it was not heard of for 15
    minutes. Of an OUT in a store, what its runs left among the temporary files of this machine is named, too, by its
    whole path.

    Raises:
        UsageError: there is no such folder.
    """
    output = parse_output_path(out)
    limit_requests(storage_requests)
    if not is_remote(output):
        if not is_folder(output):
            raise UsageError(f"{output}: no such folder")
        return _clean_disk(Path(output), remove)
    local_runs = _clean_disk(local_work_folder(output), remove)
    if not local_runs and not is_folder(output):
        raise UsageError(f"{output}: no such folder")
    return {
        **_clean_store(output, remove),
        **{join(str(local_work_folder(output)), name): paths for name, paths in local_runs.items()},
    }


def _clean_disk(output: Path, remove: bool) -> dict[str, list[str]]:
    if not is_folder(output):
        return {}
    with claim_dead_runs(list_run_folders(output)) as dead:
        names = [run.name for run in dead]
    committed = committed_data_folders(output) if names else set()
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
    """Returns what a dead run had placed that no data set consists of."""
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
