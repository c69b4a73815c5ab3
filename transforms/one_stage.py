"""A build whose records are read and whose shards are written by one process, as one stage: the functions of the other
stages, one after the other, without a runner between them, so that runs can stay in memory.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass

from recordmill.base.progress import progress_of
from recordmill.building.conclude import committed_by
from recordmill.building.plan import load_plan
from recordmill.building.run_file import Held
from recordmill.building.straight.write import straight_stripes, write_straight
from recordmill.shards.manifest import Manifest
from recordmill.transforms.beam_types import Map, PCollection, PTransform
from recordmill.transforms.stages import PlanPath, Reported, cut_run, finish_build, ingest_pack, plan_cuts, write_pack


@dataclass
class BuildHere(PTransform):
    """An impulse to a committed data set; gives the one Manifest. Each transform more takes Beam some 10 ms.

    plan: the path of the pickled plan.
    """

    plan: PlanPath

    def expand(self, impulse: PCollection) -> PCollection:  # b"" -> Manifest
        return impulse | Map(build_here, self.plan)


def build_here(_: bytes, plan_path: PlanPath) -> Manifest:
    """Groups to runs, of which as many stay in memory as `BuildPlan.held_bytes` allows, to shards, to the commit."""
    plan = load_plan(plan_path)
    if (done := committed_by(plan)) is not None:  # runners may repeat any stage
        return done
    if (stripes := straight_stripes(plan)) is not None:
        with Reported(plan):
            return finish_build([], *write_straight(plan, stripes, progress_of(plan.folder)), plan_path)
    ingested = list(ingest_pack(range(len(plan.groups)), plan_path, Held(plan.held_bytes)))
    footers = [run.histogram for one in ingested for run in one.runs]
    cuts = plan_cuts(functools.reduce(operator.add, footers) if footers else None, plan_path)
    blocks = (block for one in ingested for _, block in cut_run(one, cuts, plan_path, 1))
    shards = list(write_pack((0, blocks), cuts, plan_path))
    return finish_build(cuts, ingested, shards, plan_path)
