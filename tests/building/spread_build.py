"""A build by workers that share nothing but OUT, its steps called one after the other, as an engine would."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recordmill.base.progress import Progress
from recordmill.building.plan import BuildPlan
from recordmill.building.run_file import Histogram
from recordmill.building.strata_count import count_strata
from recordmill.building.workers.runs import Account, ingest_group
from recordmill.building.workers.shards import (
    FinalShard,
    ShardAttempt,
    finish,
    gap_of,
    give_final_name,
    make_shard,
)
from recordmill.building.workers.shared_files import SharedFolder, SharedPlan, begin_build
from recordmill.building.workers.survey import Survey, merge_runs, plan_merges, survey, with_merged
from recordmill.pipelines.build import make_plan
from recordmill.pipelines.build_options import make_options
from recordmill.shards.manifest import Manifest
from recordmill.shards.run import RunFolder
from recordmill.sources.common.contract import Unit
from recordmill.storage.files import is_remote


@dataclass
class Steps:
    """The steps of one build, each of which may be called again or left out."""

    plan: SharedPlan
    progress: Progress

    @classmethod
    def begin(cls, inputs: Any, out: str, private: Path, **options: Any) -> "Steps":
        """Plan here, and put the plan into OUT; each file is a group of its own, as if it were large."""
        settings = make_options(out, runner="PortableRunner", **options)
        folder = RunFolder.create(private if is_remote(out) else out)
        plan = make_plan(inputs, folder, out, 0, settings)
        source: Any = plan.source
        each = [
            Unit(at, at + 1, size_bytes=file.stat.size_bytes)
            for at, file in enumerate(source.files)
        ]
        plan = replace(plan, source=replace(source, units=tuple(each)))
        plan = replace(plan, groups=tuple(range(at, at + 1) for at in range(len(each))))
        plan = count_strata(plan, Progress())
        return cls(begin_build(plan, SharedFolder(out, folder.id)), Progress())

    @property
    def job_folder(self) -> SharedFolder:
        return self.plan.job_folder

    @property
    def loaded(self) -> BuildPlan:
        return self.plan.load()

    def ingest(self, group: int) -> tuple[Account, Histogram]:
        return ingest_group(self.plan, group, self.progress)

    def survey(self) -> Survey:
        """All groups, read and surveyed."""
        done = [self.ingest(group) for group in range(len(self.loaded.groups))]
        total = done[0][1]
        for _, histogram in done[1:]:
            total = total + histogram
        return survey(self.plan, [account for account, _ in done], total)

    def merged(self, found: Survey) -> Survey:
        merges = plan_merges(found.layout.load()) if found.merges else ()
        return with_merged(
            self.job_folder,
            found,
            [merge_runs(self.plan, found, merge, self.progress) for merge in merges],
        )

    def make(self, found: Survey) -> list[ShardAttempt]:
        return [
            make_shard(self.plan, found, number, self.progress) for number in range(found.shards)
        ]

    def put(self, made: list[ShardAttempt]) -> list[FinalShard]:
        gaps = [gap for one in made if (gap := gap_of(one)) is not None]
        return [
            placed
            for one in made
            if (placed := give_final_name(self.job_folder, one, gaps)) is not None
        ]

    def finish(self, found: Survey, placed: list[FinalShard]) -> Manifest:
        return finish(self.plan, found, placed)

    def all(self, between: Callable[[Survey], None] = lambda found: None) -> Manifest:
        found = self.merged(self.survey())
        between(found)
        return self.finish(found, self.put(self.make(found)))
