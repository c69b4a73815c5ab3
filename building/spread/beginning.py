"""The begin of a build by many workers: folders, the plan and what else the driver has go to OUT."""

from __future__ import annotations

from dataclasses import replace

from recordmill.building.plan import BuildPlan
from recordmill.building.spread.place import Place, SharedPlan
from recordmill.building.spread.tables import share_ranges, with_shared_tables
from recordmill.shards.manifest import TRANSFORM_FOLDER
from recordmill.storage.files import check_uploaded, upload_all
from recordmill.storage.folders import files_below


def begin(plan: BuildPlan, place: Place) -> SharedPlan:
    """Make the build's folders, and put there what workers need; gives the plan as it travels.

    On a disk that workers share, OUT and the build's own folder are there already.
    """
    place.attach().renew()  # from here on the build can be seen to be alive
    if not place.is_remote:
        place.make_folders()
    saved = plan.transform
    if saved is not None and place.is_remote:  # on a disk it lies there already
        found = {f"{TRANSFORM_FOLDER}/{name}": path for name, path in files_below(saved.folder).items()}
        upload_all(place.data(), found, plan.memory_bytes)
        check_uploaded(place.data(), found)
        plan = replace(plan, transform=replace(saved, folder=place.data(TRANSFORM_FOLDER)))
    return share_plan(plan, place)


def share_plan(plan: BuildPlan, place: Place) -> SharedPlan:
    """The plan as it travels in the graph; what of it may be long goes to OUT."""
    source = None if plan.source is None else with_shared_tables(plan.source, place)
    groups = share_ranges(place, plan.groups) if plan.groups else ()
    return place.broadcast(plan.moved(folder=place.run(), source=source, groups=groups))
