"""A build by workers that share nothing but OUT, its steps called one after the other, as an engine
would.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import recordmill
from kit.files import files_in
from recordmill.base.progress import Progress
from recordmill.building.class_counter import count_classes
from recordmill.building.plan import BuildPlan
from recordmill.building.sorted_run import Histogram
from recordmill.building.workers.shard_planning import (
    ShardPlan,
    merge_sorted_runs,
    plan_merges,
    plan_shards,
    use_merged_runs,
)
from recordmill.building.workers.shards import (
    FinalShard,
    ShardAttempt,
    commit_shared_build,
    rename_to_final_names,
    write_shard_attempt,
)
from recordmill.building.workers.shared_files import JobFolder, SharedPlanHandle, begin_build
from recordmill.building.workers.sorted_runs import SharedIngestResult, ingest_unit_group
from recordmill.pipelines.append import inherit_options
from recordmill.pipelines.build_options import make_options
from recordmill.pipelines.build_plan import make_plan
from recordmill.pipelines.transform import add_transform
from recordmill.shards.manifest import Manifest, load_manifest
from recordmill.shards.run import RunFolder
from recordmill.sources.common.contract import Unit
from recordmill.storage.files import is_remote


@dataclass
class Steps:
    """The steps of one build, each of which may be called again or left out."""

    plan: SharedPlanHandle
    progress: Progress

    @classmethod
    def begin(cls, inputs: Any, out: str, private: Path, **options: Any) -> "Steps":
        """Plan here, and put the plan into OUT; each file is a group of its own, as if it were
        large.
        """
        settings = make_options(out, runner="PortableRunner", **options)
        settings = inherit_options(out, settings, reads_files=True)
        folder = RunFolder.create(private if is_remote(out) else out)
        base = 0 if settings.base is None else settings.base.number
        plan = make_plan(inputs, folder, out, base, settings, Progress())
        source: Any = plan.source
        each = [
            Unit(at, at + 1, size_bytes=file.stat.size_bytes)
            for at, file in enumerate(source.files)
        ]
        plan = replace(plan, source=replace(source, units=tuple(each)))
        plan = replace(plan, unit_groups=tuple(range(at, at + 1) for at in range(len(each))))
        plan, job_folder = count_classes(plan, Progress()), JobFolder(out, folder.id)
        if settings.base is not None:
            plan = add_transform(plan, settings, Progress(), job_folder)
        return cls(begin_build(plan, job_folder), Progress())

    @property
    def job_folder(self) -> JobFolder:
        return self.plan.job_folder

    @property
    def loaded_plan(self) -> BuildPlan:
        return self.plan.load()

    def ingest(self, group: int) -> tuple[SharedIngestResult, Histogram]:
        return ingest_unit_group(self.plan, group, self.progress)

    def ingest_all(self) -> ShardPlan:
        """All groups, read and surveyed."""
        done = [self.ingest(group) for group in range(len(self.loaded_plan.unit_groups))]
        total = done[0][1]
        for _, histogram in done[1:]:
            total = total + histogram
        return plan_shards(self.plan, [account for account, _ in done], total)

    def merge_runs(self, found: ShardPlan) -> ShardPlan:
        merges = plan_merges(found.layout.load()) if found.num_merges else ()
        return use_merged_runs(
            self.job_folder,
            found,
            [merge_sorted_runs(self.plan, found, merge, self.progress) for merge in merges],
        )

    def write_shards(self, found: ShardPlan) -> list[ShardAttempt]:
        return [
            write_shard_attempt(self.plan, found, number, self.progress)
            for number in range(found.num_shards)
        ]

    def rename_shards(self, made: list[ShardAttempt]) -> list[FinalShard]:
        gaps = [(one.shard.split_id, one.shard.index) for one in made if not one.shard.info.records]
        return [
            placed
            for one in made
            if (placed := rename_to_final_names(self.job_folder, one, gaps)) is not None
        ]

    def finish(self, found: ShardPlan, placed: list[FinalShard]) -> Manifest:
        return commit_shared_build(self.plan, found, placed)

    def run_all(self, between: Callable[[ShardPlan], None] = lambda found: None) -> Manifest:
        found = self.merge_runs(self.ingest_all())
        between(found)
        return self.finish(found, self.rename_shards(self.write_shards(found)))


OPTIONS: dict[str, Any] = {
    "num_shards": 4,
    "splits": "train=0.7,test=0.3",
    "name": "same",
    "max_rejects": 3,
}


def begin_steps(source: str, out: str, tmp_path: Path, **options: Any) -> Steps:
    """With a group for each of the files, as they would be if they were large."""
    planned = {"kind": "csv", **OPTIONS, **options}
    return Steps.begin(source, out, tmp_path / "private", **planned)


def build_on_one_machine(source: str, tmp_path: Path, **options: Any) -> recordmill.BuildResult:
    return recordmill.build(source, tmp_path / "one", kind="csv", **{**OPTIONS, **options})


def check_same(out: str, manifest: Any, one: recordmill.BuildResult) -> None:
    part = one.manifest.parts[0].folder
    assert files_in(out, manifest.parts[0].folder) == files_in(one.out, part)
    assert manifest.fingerprint == one.manifest.fingerprint
    assert load_manifest(out) == manifest
    assert recordmill.verify(out) == []


def discard(place: JobFolder) -> None:
    """What a driver does whose job has failed."""
    run = place.open_run()
    run.discard()
    run.remove_work_files()
