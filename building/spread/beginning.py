"""The begin of a build by many workers, and its end: folders, the plan and what else the driver has go to OUT; what no
manifest names is removed.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recordmill.base.threads import thread_map
from recordmill.building.plan import BuildPlan
from recordmill.building.spread.finishing import committed
from recordmill.building.spread.lease import renew
from recordmill.building.spread.place import DATA, Place, SharedPlan
from recordmill.building.spread.runs import REQUESTS
from recordmill.building.spread.tables import with_far_tables
from recordmill.shards.dead_runs import INTENT_NAME, remove_data, remove_run
from recordmill.shards.manifest import RUN_PREFIX, TRANSFORM_FOLDER
from recordmill.shards.store_run import LEASE, objects_of, results
from recordmill.storage.files import check_uploaded, listed_objects, put_bytes, remove_objects, upload_all
from recordmill.storage.folders import files_below, inode
from recordmill.storage.removal import Folder

_REMOVED = 1_000  # objects that are removed one after the other, while others do the same with others

_log = logging.getLogger(__name__)


def begin(plan: BuildPlan, place: Place) -> SharedPlan:
    """Make the build's folders, and put there what workers need; gives the plan as it travels.

    On a disk that workers share, OUT and the build's own folder are there already.
    """
    renew(place)  # from here on the build can be seen to be alive
    if not place.is_remote:
        place.make_folders()
        # by which a later build knows what this one left, should it die
        intent = {"folder": place.folder, "inode": inode(place.run(DATA)), "rejects": {}}
        put_bytes(place.run(INTENT_NAME), json.dumps(intent).encode())
    saved = plan.transform
    if saved is not None and place.is_remote:  # on a disk it lies there already
        found = {f"{TRANSFORM_FOLDER}/{name}": path for name, path in files_below(saved.folder).items()}
        upload_all(place.data(), found, plan.memory_bytes)
        check_uploaded(place.data(), found)
        plan = replace(plan, transform=replace(saved, folder=place.data(TRANSFORM_FOLDER)))
    return share_plan("plan", plan, place)


def share_plan(what: str, plan: BuildPlan, place: Place) -> SharedPlan:
    """Put the plan where workers find it, its lists of files and units beside it. what: for people who look there."""
    source = None if plan.source is None else with_far_tables(plan.source, place)
    far = plan.moved(folder=place.run(), source=source)
    return place.share(what, far)


def tidy_up(place: Place) -> None:
    """Remove what only the build itself needed; what can't be is left to a later build.

    Workers that were given up may still write there: what they leave is known by its age.
    """
    own = f"{RUN_PREFIX}{place.id}"
    if not place.is_remote:
        with contextlib.suppress(OSError), Folder.open(Path(place.out)) as above, above.enter(own) as folder:
            remove_run(above, own, folder)
        return
    try:
        left = [f"{own}/{item.name}" for item in listed_objects(place.run()) if item.name != LEASE]
        _remove(place.out, left)
        remove_objects(place.out, [f"{own}/{LEASE}"])
    except OSError as error:
        _log.warning("%s: what the build needed can't be removed: %s", place.run(), error.strerror)


def discard(place: Place) -> None:
    """Remove all that the build, or read, has written, unless it has committed; nobody may be at work for it any
    more.
    """
    try:
        is_read = place.is_remote and place.folder in results(place.out).values()
        if committed(place) is None and not is_read:
            if place.is_remote:
                _remove(place.out, objects_of(place.out, place.folder))
            else:
                remove_data(Path(place.out), place.folder)
    except OSError as error:
        _log.warning("%s: what the build left can't be removed: %s", place.out, error.strerror)
    tidy_up(place)


def _remove(out: str, names: Sequence[str]) -> None:
    parts = [names[at : at + _REMOVED] for at in range(0, len(names), _REMOVED)]
    for _ in thread_map(lambda part: remove_objects(out, part), parts, REQUESTS):
        pass
