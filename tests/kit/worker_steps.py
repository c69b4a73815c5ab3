"""The steps of a build by workers that share only OUT."""

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
    """The steps of one build, as an engine calls them.

    Tests may repeat or omit each step.
    """

    plan: SharedPlanHandle
    progress: Progress

    @classmethod
    def begin(cls, inputs: Any, out: str, private: Path, **options: Any) -> "Steps":
        """Makes the plan and writes it to OUT.

        Each file is its own unit group, as if it were large.
        """
        settings = make_options(out, runner="PortableRunner", **options)
        settings = inherit_options(out, settings, reads_files=True)
        folder = RunFolder.create(private if is_remote(out) else out)
        base = 0 if settings.base is None else settings.base.number
        plan = make_plan(inputs, folder, out, base, settings, Progress())
        source: Any = plan.source
        units = [
            Unit(number, number + 1, size_bytes=file.stat.size_bytes)
            for number, file in enumerate(source.files)
        ]
        plan = replace(plan, source=replace(source, units=tuple(units)))
        plan = replace(
            plan, unit_groups=tuple(range(number, number + 1) for number in range(len(units)))
        )
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
        """Ingests all groups and plans the shards."""
        results = [self.ingest(group) for group in range(len(self.loaded_plan.unit_groups))]
        total = results[0][1]
        for _, histogram in results[1:]:
            total = total + histogram
        return plan_shards(self.plan, [result for result, _ in results], total)

    def merge_runs(self, plan: ShardPlan) -> ShardPlan:
        merges = plan_merges(plan.layout.load()) if plan.num_merges else ()
        return use_merged_runs(
            self.job_folder,
            plan,
            [merge_sorted_runs(self.plan, plan, merge, self.progress) for merge in merges],
        )

    def write_shards(self, plan: ShardPlan) -> list[ShardAttempt]:
        return [
            write_shard_attempt(self.plan, plan, number, self.progress)
            for number in range(plan.num_shards)
        ]

    def rename_shards(self, attempts: list[ShardAttempt]) -> list[FinalShard]:
        gaps = [
            (attempt.shard.split_id, attempt.shard.index)
            for attempt in attempts
            if not attempt.shard.info.records
        ]
        return [
            final
            for attempt in attempts
            if (final := rename_to_final_names(self.job_folder, attempt, gaps)) is not None
        ]

    def finish(self, plan: ShardPlan, shards: list[FinalShard]) -> Manifest:
        return commit_shared_build(self.plan, plan, shards)

    def run_all(self, after_plan: Callable[[ShardPlan], None] = lambda plan: None) -> Manifest:
        plan = self.merge_runs(self.ingest_all())
        after_plan(plan)
        return self.finish(plan, self.rename_shards(self.write_shards(plan)))


OPTIONS: dict[str, Any] = {
    "num_shards": 4,
    "splits": "train=0.7,test=0.3",
    "name": "same",
    "max_rejects": 3,
}


def begin_steps(source: str, out: str, tmp_path: Path, **options: Any) -> Steps:
    """Begins a build of CSV files with OPTIONS. Each file is its own unit group."""
    settings = {"kind": "csv", **OPTIONS, **options}
    return Steps.begin(source, out, tmp_path / "private", **settings)


def build_on_one_machine(source: str, tmp_path: Path, **options: Any) -> recordmill.BuildResult:
    return recordmill.build(source, tmp_path / "one", kind="csv", **{**OPTIONS, **options})


def check_same(out: str, manifest: Any, expected: recordmill.BuildResult) -> None:
    part = expected.manifest.parts[0].folder
    assert files_in(out, manifest.parts[0].folder) == files_in(expected.out, part)
    assert manifest.fingerprint == expected.manifest.fingerprint
    assert load_manifest(out) == manifest
    assert recordmill.verify(out) == []


def discard(job_folder: JobFolder) -> None:
    """Removes the run of a failed job, as its driver does."""
    run = job_folder.open_run()
    run.discard()
    run.remove_work_files()
