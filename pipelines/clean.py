"""What dead builds and reads left in an OUT, named and, where it is wanted, removed: `clean`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from recordmill.base.errors import UsageError
from recordmill.shards.dead_runs import claimed, clean_dead
from recordmill.shards.manifest import RUN_PREFIX
from recordmill.shards.store_run import StoreRun
from recordmill.storage.files import is_remote, output_path, remove_objects
from recordmill.storage.folders import files_below, is_folder, join, paths_in


def clean(out: str | os.PathLike[str], *, remove: bool = False) -> Mapping[str, list[str]]:
    """Name of each dead run's folder in OUT to the paths of what it left, which no data set consists of.

    remove: remove it. A dead `read` that could go on is among them. On a disk a run is dead when no process of this
    machine holds its lock; in a store, when its lease was not renewed for 15 minutes.

    Raises:
        UsageError: there is no such folder.
    """
    place = output_path(out)
    if not is_folder(place):
        raise UsageError(f"{place}: no such folder")
    if is_remote(place):
        return _in_store(place, remove)
    folders = [*paths_in(Path(place), f"{RUN_PREFIX}*"), *paths_in(Path(place), f".{RUN_PREFIX}*")]
    with claimed(folders) as dead:
        names = [run.name for run in dead]
    found = {name: sorted(files_below(join(place, name)).values()) for name in names}
    if remove and found:
        removed = set(clean_dead(Path(place)))
        return {name: left for name, left in found.items() if name in removed}
    return found


def _in_store(out: str, remove: bool) -> Mapping[str, list[str]]:
    with StoreRun(out, uuid.uuid4().hex[:12]) as run:
        found = run.left_by_dead()
        for left in found.values() if remove else ():
            remove_objects(out, left)
    return {name: [join(out, one) for one in left] for name, left in found.items()}
