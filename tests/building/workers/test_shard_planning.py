"""Workers plan shards from all sorted runs, after merges of many runs."""

from pathlib import Path

import numpy as np
import pytest
from kit.worker_steps import begin_steps, build_on_one_machine, check_same

from recordmill.base.errors import UsageError
from recordmill.building.workers import shard_planning as surveys
from recordmill.building.workers.sorted_runs import find_bucket_slices
from recordmill.shards.rejects import TooManyRejects


def test_many_sorted_runs_are_merged_before_shards_are_written(
    source: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveys, "FAN_IN", 3)
    monkeypatch.setattr(surveys, "MERGED_RUN_BYTES", 4000)
    steps = begin_steps(source, out, tmp_path)
    first_plan = steps.ingest_all()
    layout = first_plan.layout.load()
    assert len(layout.sorted_runs) == 12
    assert first_plan.num_merges > 4  # groups of at most 3 runs, in several ranges of keys
    merged_plan = steps.merge_runs(first_plan)
    runs = merged_plan.layout.load().sorted_runs
    assert len(runs) == first_plan.num_merges
    assert (
        len(
            {tuple(row) for row in np.stack([runs["begin_bucket"], runs["end_bucket"]], 1).tolist()}
        )
        > 1
    )
    for number in range(merged_plan.num_shards):
        first, last = layout.boundaries.table[["begin_bucket", "end_bucket"]][number].item()
        merged_slices, original_slices = (
            find_bucket_slices(steps.job_folder, sorted_runs, first, last)
            for sorted_runs in (runs, layout.sorted_runs)
        )
        assert (
            sum(piece.records for piece in merged_slices)
            == sum(piece.records for piece in original_slices)
            > 0
        )
    check_same(
        out,
        steps.finish(merged_plan, steps.rename_shards(steps.write_shards(merged_plan))),
        build_on_one_machine(source, tmp_path),
    )


def test_build_over_the_reject_limit_ends_before_a_shard_is_made(
    source: str, out: str, tmp_path: Path
) -> None:
    steps = begin_steps(source, out, tmp_path, max_rejects=0)
    with pytest.raises(TooManyRejects, match="1 of 1201 records was rejected"):
        steps.ingest_all()
    small_steps = begin_steps(source, f"{out}-2", tmp_path, num_shards=1100)
    with pytest.raises(UsageError, match="has only"):
        small_steps.ingest_all()
