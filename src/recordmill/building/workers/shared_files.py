"""Files that the workers of a build share, and the creation of these files.

All of them are below the output folder OUT:

* `OUT/_run-<id>/`: files of the build alone. They are `shared/` (pickled values), `runs/` (sorted
  runs), `made/` (shards of attempts), `rejects/`, and on a disk `data/` until the commit.
* `OUT/data-<id>/`: files that the manifest names.
* `OUT/rejects/<id>.*`: reject files.

Workers exchange `SharedValue` objects: the name of a file, and its digest. A worker unpickles a
file only if it has this digest. Beam sends these objects to the workers in the graph, as it does
with functions.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from recordmill.base.errors import DataError, RecordmillError
from recordmill.base.local_value import LocalValue
from recordmill.base.option_names import option
from recordmill.building.plan import BuildPlan
from recordmill.preprocessing.metadata import check_transform_files
from recordmill.shards.manifest import INDEX_FOLDER, TRANSFORM_FOLDER
from recordmill.shards.run import Run
from recordmill.shards.store_run import attach_run
from recordmill.storage import folders
from recordmill.storage.codecs import find_codec
from recordmill.storage.files import (
    DISK_FULL_ERRNOS,
    check_uploaded,
    is_remote,
    limit_requests,
    move_to_shared,
    put_bytes,
    read_range,
    upload_all,
)
from recordmill.storage.walk import DATA_PREFIX, RUN_PREFIX

SHARED_VALUES_FOLDER = "shared"
SORTED_RUNS_FOLDER = "runs"
ATTEMPTS_FOLDER = "made"
REJECTS_FOLDER = "rejects"
DATA_FOLDER = "data"
PARSED_FOLDER = "spool/parsed"  # the files that the user's function has parsed
SUBFOLDERS = (SHARED_VALUES_FOLDER, SORTED_RUNS_FOLDER, ATTEMPTS_FOLDER, REJECTS_FOLDER)
_SCRATCH_SUBFOLDERS = ("runs", "rejects", "data", f"data/{INDEX_FOLDER}")

_Value = TypeVar("_Value")


class NotSharedError(RecordmillError):
    """A process can't see a file that another one has written.

    The usual reason is that the processes don't share the output folder.

    Args:
        path: The file.
        out: The output folder or store URL.
        process: The role of the process in the error message, such as "the worker".
    """

    def __init__(self, path: str, out: str, process: str = "the worker") -> None:
        super().__init__(
            f"{path} can't be seen on {process} {socket.gethostname()}, although another part of the job has "
            f"written it: all workers must share {out}; name a folder that each of them mounts, or, for a build, one "
            "in a store (s3://, gs://, az://). Nothing was committed"
        )
        self._path, self._out, self._process = path, out, process

    # The default would pass the message alone to `__init__`, and fail on another process.
    def __reduce__(self) -> tuple[object, ...]:
        return NotSharedError, (self._path, self._out, self._process)


@dataclass(frozen=True)
class JobFolder:
    """The folders of a build or read that all its workers see.

    Attributes:
        out: The output folder, absolute, or the URL in a store.
        id: Id of the run.
        storage_requests: Maximum number of concurrent requests to stores of each worker. None means
            the default. `begin_step` applies it.
    """

    out: str
    id: str
    storage_requests: int | None = field(default=None, compare=False, repr=False)

    @property
    def is_remote(self) -> bool:
        return is_remote(self.out)

    @property
    def data_folder_name(self) -> str:
        """Name of the data folder after the commit, relative to the output folder."""
        return f"{DATA_PREFIX}{self.id}"

    def run_path(self, *names: str) -> str:
        """Returns the path or URL of `names`, joined below the run's folder."""
        return folders.join(self.out, f"{RUN_PREFIX}{self.id}", *names)

    def data_path(self, *names: str) -> str:
        """Returns the path or URL of `names`, joined below the data folder.

        On a disk, the data folder is in the run's folder until the commit moves it.
        """
        final = folders.join(self.out, self.data_folder_name)
        return folders.join(
            final if self.is_remote or folders.is_folder(final) else self.run_path(DATA_FOLDER),
            *names,
        )

    def open_run(self) -> Run:
        """Returns the run, to renew its lease or commit it.

        Only the driver, the process that has started the run, may close it.
        """
        return attach_run(self.out, self.id)

    def begin_step(self) -> None:
        """Applies the settings of the run to this process.

        Every step of a job calls this first, or `work`, because any step may be the first one in a
        worker.
        """
        limit_requests(self.storage_requests)

    @contextmanager
    def work(self) -> Iterator[None]:
        """Begins a step, and keeps the run's lease alive in the `with` block."""
        self.begin_step()
        with self.open_run().keep_alive():
            yield

    def move_in(self, path: str, subfolder: str) -> str:
        """Moves a local file to the run's folder, under a unique name.

        Args:
            path: The local file.
            subfolder: The folder within the run's folder, such as one of SUBFOLDERS.

        Returns:
            The new path or URL.
        """
        target = self.run_path(
            subfolder, f"{uuid.uuid4().hex[:12]}-{os.path.basename(path).lstrip('.')}"
        )
        move_to_shared(path, target)
        return target

    def share_value(self, name_prefix: str, value: _Value) -> SharedValue[_Value]:
        """Writes a value to a file in the run's folder, for all workers.

        Args:
            name_prefix: The start of the file name. It has no meaning for the workers.
            value: The value, which must be picklable.

        Returns:
            A small handle, which can be sent to the workers.
        """
        data = pickle.dumps(value, 5)
        name = f"{name_prefix}-{uuid.uuid4().hex[:12]}.bin"
        put_bytes(self.run_path(SHARED_VALUES_FOLDER, name), data)
        return SharedValue(self, name, hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class SharedValue(Generic[_Value]):
    """Handle of a pickled value in the run's folder.

    Attributes:
        job_folder: The folders of the run.
        name: Name of the file.
        sha256: Digest of its contents. A worker unpickles nothing else.
    """

    job_folder: JobFolder
    name: str
    sha256: str

    def load(self) -> _Value:
        """Returns the value.

        Each process reads the file once, and keeps the last 8 values. So all callers in a process
        get the same object, and must not change it.

        Raises:
            NotSharedError: This worker can't see the file.
            DataError: The contents of the file do not have the digest.
            RecordmillError: A class of the value can't be imported on this worker.
        """
        return _load_cached(self)

    def load_copy(self) -> _Value:
        """Reads the value from the file and returns a new object.

        Unlike `load`, it keeps nothing in memory. Use it for large values that are needed once.

        Raises:
            NotSharedError: This worker can't see the file.
            DataError: The file has changed since it was written.
            RecordmillError: A class of the value can't be imported on this worker.
        """
        path = self.job_folder.run_path(SHARED_VALUES_FOLDER, self.name)
        try:
            data = read_range(path)
        except FileNotFoundError:
            raise NotSharedError(path, self.job_folder.out) from None
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise DataError("was changed after this build had written it", source=path)
        try:
            value: _Value = pickle.loads(data)
        except (AttributeError, ModuleNotFoundError) as error:
            raise RecordmillError(
                f"the worker on {socket.gethostname()} can't load the plan ({error}): "
                "your own classes must be in a module that is installed there, not "
                "in the script that is run"
            ) from error
        return value


@functools.lru_cache(maxsize=8)
def _load_cached(shared: SharedValue[Any]) -> Any:
    return shared.load_copy()


SharedPlanHandle = SharedValue[BuildPlan]
# A plan for steps of this process, or for workers. A pickled copy of the plan would need much
# memory, because a plan lists every input.
PlanHandle = LocalValue[BuildPlan] | SharedPlanHandle


def begin_build(plan: BuildPlan, job_folder: JobFolder) -> SharedPlanHandle:
    """Creates the folders and files that the workers of a build need.

    On a disk, the output folder and the run's folder must exist. In a store, a saved transform is
    uploaded.

    Returns:
        The handle of the plan, for the workers.
    """
    # Without this, other builds would treat the run as dead.
    job_folder.open_run().renew_lease()
    saved = plan.transform
    # On a disk, the transform is in the data folder already. An append uses the one of the data
    # set.
    if saved is not None and job_folder.is_remote and not is_remote(saved.folder):
        files = {
            f"{TRANSFORM_FOLDER}/{name}": path
            for name, path in folders.find_files(saved.folder).items()
        }
        upload_all(job_folder.data_path(), files, plan.memory_bytes)
        check_uploaded(job_folder.data_path(), files)
        plan = replace(
            plan, transform=replace(saved, folder=job_folder.data_path(TRANSFORM_FOLDER))
        )
    return share_plan(plan, job_folder)


def share_plan(plan: BuildPlan, job_folder: JobFolder) -> SharedPlanHandle:
    """Writes the plan to the run's folder and returns its handle.

    On a disk, also creates the folders of the build.
    """
    for name in (
        () if job_folder.is_remote else (*SUBFOLDERS, DATA_FOLDER, f"{DATA_FOLDER}/{INDEX_FOLDER}")
    ):
        folders.make_folder(job_folder.run_path(name), exist_ok=True)
    source = plan.source
    # A source of the user's own class may have no such table.
    if is_dataclass(source) and "files" in {source_field.name for source_field in fields(source)}:
        source = replace(source, files=source.files.without_ctimes())
    return job_folder.share_value(
        "plan", plan.with_changes(folder=job_folder.run_path(), source=source)
    )


@contextmanager
def task_workspace(plan: SharedPlanHandle) -> Iterator[BuildPlan]:
    """Provides a scratch folder for one task inside a `with` block.

    The folder is removed at the end of the block, so the task must move its results to the job
    folder before. On a shared disk the scratch folder is in the run's folder, so that this move is
    a rename. For a store it is a local temporary folder.

    Yields:
        The plan, with the scratch folder as its `folder`.

    Raises:
        NotSharedError: This worker can't see the run's folder.
        RecordmillError: The disk is full, or this worker has another compression library than
            planned.
    """
    job_folder = plan.job_folder
    with scratch(job_folder) as folder:
        for name in _SCRATCH_SUBFOLDERS:
            folders.make_folder(Path(folder, name))
        loaded = plan.load()
        _check_codec_version(loaded)
        yield _localize_transform(loaded).with_changes(folder=folder)


@contextmanager
def scratch(job_folder: JobFolder) -> Iterator[str]:
    """Provides an empty folder for one task inside a `with` block.

    The folder is removed at the end of the block.

    Yields:
        The path of the folder.

    Raises:
        NotSharedError: This worker can't see the run's folder.
        RecordmillError: The disk of the folder is full.
    """
    parent = None if job_folder.is_remote else job_folder.run_path()
    if parent is not None and not folders.exists(parent):
        raise NotSharedError(parent, job_folder.out)
    with folders.scratch_folder("work-", parent) as folder:
        try:
            yield folder
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS or is_remote(str(error.filename or "")):
                raise
            location = f"{os.path.dirname(folder)} on {socket.gethostname()}"
            raise RecordmillError(f"{location}: {error.strerror}; nothing was written") from error


def _check_codec_version(plan: BuildPlan) -> None:
    # Another library compresses to other bytes. A late attempt of this worker could replace the
    # shard of another one.
    if plan.codec_version != (codec_version := find_codec(plan.compression).library_version):
        raise RecordmillError(
            "the worker on {host} compresses with {codec_version}, and the build was "
            "planned with {planned_version}: {compression} shards would have bytes "
            "that depend on the worker. Install the same version, or build with "
            "{uncompressed}",
            host=socket.gethostname(),
            codec_version=codec_version,
            planned_version=plan.codec_version,
            compression=plan.compression,
            uncompressed=option("compression", "none"),
        )


def _localize_transform(plan: BuildPlan) -> BuildPlan:
    """Returns the plan with a local copy of its transform.

    TensorFlow can't load a transform from a store. The copy is kept in a private folder of the
    machine, for later tasks and builds.
    """
    saved = plan.transform
    if saved is None or not is_remote(saved.folder):
        return plan
    cache_folder = folders.make_private_folder("recordmill")
    # Named after its files and not its digest: two fits with equal results may differ in the bytes
    # of their graphs.
    files = json.dumps(saved.manifest_entry["files"], sort_keys=True)
    folder = folders.join(cache_folder, f"transform-{hashlib.sha256(files.encode()).hexdigest()}")
    if not folders.is_folder(folder):
        with folders.scratch_folder("transform-", cache_folder) as temporary:
            folders.copy_tree(saved.folder, temporary)
            with suppress(OSError):  # another worker was first
                folders.rename(temporary, folder)
    check_transform_files(folder, saved.manifest_entry)
    return plan.with_changes(transform=replace(saved, folder=folder))
