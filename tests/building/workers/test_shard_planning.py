"""The shards of workers are planned from all sorted runs, of which many are merged first."""

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
    before = steps.ingest_all()
    layout = before.layout.load()
    assert len(layout.sorted_runs) == 12
    assert before.num_merges > 4  # groups of at most 3 runs, in several ranges of the keys
    found = steps.merge_runs(before)
    runs = found.layout.load().sorted_runs
    assert len(runs) == before.num_merges
    assert (
        len(
            {tuple(one) for one in np.stack([runs["begin_bucket"], runs["end_bucket"]], 1).tolist()}
        )
        > 1
    )
    for number in range(found.num_shards):
        first, last = layout.boundaries.table[["begin_bucket", "end_bucket"]][number].item()
        near, far = (
            find_bucket_slices(steps.job_folder, some, first, last)
            for some in (runs, layout.sorted_runs)
        )
        assert sum(piece.records for piece in near) == sum(piece.records for piece in far) > 0
    check_same(
        out,
        steps.finish(found, steps.rename_shards(steps.write_shards(found))),
        build_on_one_machine(source, tmp_path),
    )


def test_build_over_the_reject_limit_ends_before_a_shard_is_made(
    source: str, out: str, tmp_path: Path
) -> None:
    steps = begin_steps(source, out, tmp_path, max_rejects=0)
    with pytest.raises(TooManyRejects, match="1 of 1201 records was rejected"):
        steps.ingest_all()
    other = begin_steps(source, f"{out}-2", tmp_path, num_shards=1100)
    with pytest.raises(UsageError, match="has only"):
        other.ingest_all()
