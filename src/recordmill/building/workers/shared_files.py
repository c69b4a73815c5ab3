"""The files of a build by many workers, all of them below OUT, and how it begins. What passes between workers is a
`Shared`: the name of such a file, with the digest without which it is not unpickled. Beam carries these to workers in
the graph, as it does the functions that they call.

`OUT/_run-<id>/` holds what the build alone needs: `shared/` (lists), `runs/`, `made/` (shards under names of
the attempt that made them), `rejects/`, and on a disk `data/` until the last step. `OUT/data-<id>/` holds what the
manifest names, and `OUT/rejects/<id>.*`.
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
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from recordmill.base.errors import DataError, RecordmillError
from recordmill.base.option_names import option
from recordmill.building.plan import BuildPlan, PlanReference
from recordmill.preprocessing.metadata import check_files
from recordmill.shards.manifest import INDEX_FOLDER, TRANSFORM_FOLDER
from recordmill.shards.run import Run
from recordmill.shards.store_run import run_at
from recordmill.storage import folders
from recordmill.storage.codecs import find_codec
from recordmill.storage.files import (
    DISK_FULL,
    StoreSettings,
    check_uploaded,
    hand_over,
    is_remote,
    put_bytes,
    read_range,
    upload_all,
)
from recordmill.storage.walk import DATA_PREFIX, RUN_PREFIX

SHARED, RUNS, ATTEMPTS_FOLDER, REJECTS_FOLDER, DATA = "shared", "runs", "made", "rejects", "data"
PARTS = (SHARED, RUNS, ATTEMPTS_FOLDER, REJECTS_FOLDER)
_SCRATCH = ("runs", "rejects", "data", f"data/{INDEX_FOLDER}")

_Value = TypeVar("_Value")


class NotSharedError(RecordmillError):
    """A worker, or who is named, does not find what another has written: they don't share OUT."""

    def __init__(self, path: str, out: str, who: str = "the worker") -> None:
        super().__init__(
            f"{path} can't be seen on {who} {socket.gethostname()}, although another part of the job has "
            f"written it: all workers must share {out}; name a folder that each of them mounts, or, for a build, one "
            "in a store (s3://, gs://, az://). Nothing was committed"
        )
        self._path, self._out, self._who = path, out, who

    def __reduce__(self) -> tuple[object, ...]:
        return NotSharedError, (self._path, self._out, self._who)


@dataclass(frozen=True)
class SharedFolder:
    """The files of one build, or read. out: absolute, or a URI; id: the build's. terms: on which whoever unpickles it
    reads from stores and writes to them.
    """

    out: str
    id: str
    store_settings: StoreSettings | None = field(default=None, compare=False, repr=False)

    @property
    def is_remote(self) -> bool:
        return is_remote(self.out)

    @property
    def folder(self) -> str:
        """The name of the folder that the manifest will name."""
        return f"{DATA_PREFIX}{self.id}"

    def run(self, *names: str) -> str:
        """A path in the build's own folder."""
        return folders.join(self.out, f"{RUN_PREFIX}{self.id}", *names)

    def data(self, *names: str) -> str:
        """Returns a path among what the manifest will name: on a disk in the build's folder until the last step."""
        final = folders.join(self.out, self.folder)
        return folders.join(final if self.is_remote or folders.is_folder(final) else self.run(DATA), *names)

    def attach(self) -> Run:
        """The run that has its files here; holding and closing it is its driver's."""
        return run_at(self.out, self.id)

    def hand_over(self, path: str, part: str) -> str:
        """The file of this worker under a new name where all workers find it; gives that."""
        target = self.run(part, f"{uuid.uuid4().hex[:12]}-{os.path.basename(path).lstrip('.')}")
        hand_over(path, target)
        return target

    def share(self, what: str, value: _Value) -> Shared[_Value]:
        """Keeps the value where every worker can load it. what: for people who look into the folder."""
        data = pickle.dumps(value, 5)
        name = f"{what}-{uuid.uuid4().hex[:12]}.bin"
        put_bytes(self.run(SHARED, name), data)
        return Shared(self, name, hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class Shared(Generic[_Value]):
    """A value that lies in the build's folder; what travels is this. Nothing is unpickled that has another digest."""

    job_folder: SharedFolder
    name: str
    sha256: str

    def load(self) -> _Value:
        """The value, loaded once in each process. NotSharedError: it is not there. RecordmillError: this worker lacks
        the module of a class of the user's own.
        """
        value: _Value = _loaded(self)
        return value

    def read(self) -> _Value:
        """Reads the value anew, as `load` does, for what is used once: few of those that are loaded are kept."""
        path = self.job_folder.run(SHARED, self.name)
        try:
            data = read_range(path)
        except FileNotFoundError:
            raise NotSharedError(path, self.job_folder.out) from None
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise DataError("is not what this build has written there", source=path)
        try:
            value: _Value = pickle.loads(data)
        except (AttributeError, ModuleNotFoundError) as error:
            raise RecordmillError(
                f"the worker on {socket.gethostname()} can't load what was planned ({error}): a class of your own, as "
                "of a Source, must stand in a module that is installed there, not in the script that is run"
            ) from error
        return value


@functools.lru_cache(maxsize=8)
def _loaded(shared: Shared[Any]) -> Any:
    return shared.read()


SharedPlan = Shared[BuildPlan]
SentPlan = PlanReference | SharedPlan  # to stages of this process, or of others


def begin_build(plan: BuildPlan, job_folder: SharedFolder) -> SharedPlan:
    """Makes the build's folders, and puts there what workers need.

    On a disk that workers share, OUT and the build's own folder are there already.
    """
    job_folder.attach().renew()  # from here on the build can be seen to be alive
    saved = plan.transform
    if saved is not None and job_folder.is_remote:  # on a disk it lies there already
        found = {f"{TRANSFORM_FOLDER}/{name}": path for name, path in folders.files_below(saved.folder).items()}
        upload_all(job_folder.data(), found, plan.memory_bytes)
        check_uploaded(job_folder.data(), found)
        plan = replace(plan, transform=replace(saved, folder=job_folder.data(TRANSFORM_FOLDER)))
    return share_plan(plan, job_folder)


def share_plan(plan: BuildPlan, job_folder: SharedFolder) -> SharedPlan:
    """Puts the plan where workers load it."""
    for name in () if job_folder.is_remote else (*PARTS, DATA, f"{DATA}/{INDEX_FOLDER}"):
        folders.make_folder(job_folder.run(name), exist_ok=True)
    source = plan.source
    if is_dataclass(source) and "files" in {one.name for one in fields(source)}:  # else a user's own
        source = replace(source, files=source.files.for_other_hosts())
    return job_folder.share("plan", plan.moved(folder=job_folder.run(), source=source))


@contextmanager
def workbench(plan: SharedPlan) -> Iterator[BuildPlan]:
    """The plan with a folder of this worker's own, in which it makes files before others are to find them; removed at
    the end with all that is left there.

    On a disk that workers share it lies there, so that files only get another name, else among temporary files.

    Raises:
        NotSharedError, RecordmillError: as `scratch` does. RecordmillError: compressed shards of this worker would have
            other bytes, and a late attempt of one worker could then take the job_folder of another's.
    """
    job_folder = plan.job_folder
    with scratch(job_folder) as folder:
        for name in _SCRATCH:
            folders.make_folder(Path(folder, name))
        loaded = plan.load()
        _check_library(loaded)
        yield _with_transform_here(loaded).moved(folder=folder)


@contextmanager
def scratch(job_folder: SharedFolder) -> Iterator[str]:
    """A folder of this worker's own, removed at the end with all that is left there. NotSharedError: the build's folder
    is not there. RecordmillError: the disk was full meanwhile.
    """
    try:
        folder = folders.make_scratch("work-", None if job_folder.is_remote else job_folder.run())
    except FileNotFoundError:
        raise NotSharedError(job_folder.run(), job_folder.out) from None
    try:
        yield folder
    except OSError as error:
        if error.errno not in DISK_FULL or is_remote(str(error.filename or "")):
            raise
        where = f"{os.path.dirname(folder)} on {socket.gethostname()}"
        raise RecordmillError(f"{where}: {error.strerror}; nothing was written") from error
    finally:
        folders.remove_tree(folder, ignore_errors=True)


def _check_library(plan: BuildPlan) -> None:
    if plan.library != (here := find_codec(plan.compression).library):
        raise RecordmillError(
            f"the worker on {socket.gethostname()} compresses with {here}, and this was planned with {plan.library}: "
            f"{plan.compression} shards would depend on who writes them. Install the same, or build with "
            f"{option('compression', 'none')}"
        )


def _with_transform_here(plan: BuildPlan) -> BuildPlan:
    """The plan with the files of its transform on this machine, where TensorFlow finds them."""
    saved = plan.transform
    if saved is None or not is_remote(saved.folder):
        return plan
    own = folders.private_folder("recordmill")
    # by its files: two fits of one transform may compute the same, and have graphs of other bytes
    files = json.dumps(saved.about["files"], sort_keys=True)
    folder = folders.join(own, f"transform-{hashlib.sha256(files.encode()).hexdigest()}")
    if not folders.is_folder(folder):
        made = folders.make_scratch("transform-", own)
        folders.fetch_tree(saved.folder, made)
        try:
            folders.rename(made, folder)
        except OSError:  # another worker was first
            folders.remove_tree(made, ignore_errors=True)
    check_files(folder, saved.about)
    return plan.moved(transform=replace(saved, folder=folder))
