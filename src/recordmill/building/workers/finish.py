"""The end of a build by many workers: every shard is looked for, all accounts are held against each other, and then the
manifest is put, by which they become a data set. Nothing that failed or came second is removed here: another attempt
of this very step may have committed meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from recordmill.base.errors import RecordmillError
from recordmill.base.threads import thread_map
from recordmill.building.commit import commit, publish_files, tidy
from recordmill.building.reconcile import AccountsError, Outcome, describe_data_set, write_inputs, write_statistics
from recordmill.building.workers.runs import REQUESTS
from recordmill.building.workers.shards import FinalShard
from recordmill.building.workers.shared_files import NotSharedError, SharedFolder, SharedPlan, workbench
from recordmill.building.workers.survey import Survey
from recordmill.shards.index import add_sums
from recordmill.shards.manifest import INPUTS_NAME, Manifest
from recordmill.storage.files import hand_over, listed_objects, stat


def finish(plan: SharedPlan, survey: Survey, placed: Iterable[FinalShard]) -> Manifest:
    """Look, reconcile and commit; may be called again, and by several at once.

    Raises:
        AccountsError: the records written are not those read. NotSharedError: a shard is not there.
        CommitConflict: another build was first. ExpectationError: the records are not as the plan expects them.
    """
    job_folder, run = plan.job_folder, plan.job_folder.attach()
    if (done := run.committed()) is not None:
        _tidy_again(plan, done)
        return done
    shards = sorted(placed, key=lambda one: (one.split, one.index))
    _reconcile(survey, shards)
    check_all_there(job_folder, [pair for one in shards for pair in one.sizes])
    with workbench(plan) as bench:
        inputs = write_inputs(bench, Path(bench.folder, "data"))
        if bench.source is not None:
            hand_over(str(Path(bench.folder, "data", INPUTS_NAME)), job_folder.data(INPUTS_NAME))
        by_split = itertools.groupby(shards, lambda one: bench.splits[one.split])  # they are in the order of the splits
        splits = {name: tuple(one.info for one in each) for name, each in by_split}
        sketch = None if survey.sketch is None else survey.sketch.read()
        statistics = write_statistics(bench, sketch, job_folder.data())
        rejects = publish_files(run, survey.rejected.files)
        outcome = Outcome(
            job_folder.out, splits, inputs, survey.read, survey.rejected, survey.counts, job_folder.id, statistics
        )
        return commit(run, describe_data_set(bench, outcome, job_folder.folder, rejects), bench.base)


def _reconcile(survey: Survey, shards: Sequence[FinalShard]) -> None:
    total, records = 0, sum(one.info.records for one in shards)
    for one in shards:
        total = add_sums(total, int(one.info.sum, 16))
    if (records, total) != (survey.records, survey.sum):
        raise AccountsError(
            f"the records written ({records}, sum {total:016x}) are not those read ({survey.records}, sum "
            f"{survey.sum:016x}); nothing was committed"
        )
    if len({(one.split, one.index) for one in shards}) != len(shards):
        raise AccountsError("a shard was accounted for twice; nothing was committed")


def check_all_there(job_folder: SharedFolder, wanted: Sequence[tuple[str, int]]) -> None:
    """Raises NotSharedError unless all these files, by their names below the data folder, are there and so large."""
    if job_folder.is_remote:
        there = {item.name: item.size_bytes for item in listed_objects(job_folder.data())}
    else:
        sizes = thread_map(lambda pair: _size(job_folder.data(pair[0])), wanted, REQUESTS)
        there = {name: size for (name, _), size in zip(wanted, sizes, strict=True) if size is not None}
    missing = [name for name, size in wanted if there.get(name) != size]
    if not missing:
        return
    if (size := there.get(missing[0])) is not None:
        raise RecordmillError(
            f"{job_folder.data(missing[0])}: {size} bytes, which is not what was written; not committed"
        )
    raise NotSharedError(f"{job_folder.data(missing[0])} ({len(missing)} of {len(wanted)} files)", job_folder.out)


def _size(path: str) -> int | None:
    try:
        return stat(path).size_bytes
    except FileNotFoundError:
        return None


def _tidy_again(plan: SharedPlan, manifest: Manifest) -> None:
    """What an attempt may have left undone that has committed; the plan is gone where none has."""
    with contextlib.suppress(NotSharedError):
        known = plan.load()
        tidy(plan.job_folder.out, manifest, known.base + 1)
