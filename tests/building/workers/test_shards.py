"""Workers write the same shards as one machine, after any number of attempts.

Wrong shards are not committed.
"""

from pathlib import Path

import pytest
from kit.worker_steps import begin_steps, build_on_one_machine, check_same, discard

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.building.commit import CommitConflict
from recordmill.building.finish_build import RecordCountError
from recordmill.building.workers.shards import commit_shared_build, write_shard_attempt
from recordmill.building.workers.shared_files import NotSharedError, _load_cached
from recordmill.shards.manifest import list_generations
from recordmill.storage.files import put_bytes
from recordmill.storage.folders import exists, find_files


def test_empty_shards_leave_no_gap_in_the_numbers(out: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "a\n" + "".join(f"{'x' * (5000 if row % 3 == 0 else 10)}\n" for row in range(30))
    )
    options = {"num_shards": None, "shard_size": 600, "splits": None}
    manifest = begin_steps(str(tmp_path / "a.csv"), out, tmp_path, **options).run_all()
    check_same(out, manifest, build_on_one_machine(str(tmp_path / "a.csv"), tmp_path, **options))
    assert (
        len(manifest.shards()) < sum(shard.framed_bytes for *_, shard in manifest.shards()) // 600
    )


def test_repeated_steps_and_a_late_worker_do_not_change_the_data_set(
    source: str, out: str, tmp_path: Path
) -> None:
    steps = begin_steps(source, out, tmp_path)
    steps.ingest(3)  # the result of this attempt is lost
    first_plan = steps.ingest_all()
    plan = steps.ingest_all()
    assert first_plan.layout != plan.layout
    first = steps.write_shards(plan)
    second_attempts = steps.write_shards(plan)
    mixed_attempts = [
        pair[number % 2] for number, pair in enumerate(zip(first, second_attempts, strict=True))
    ]
    shards = steps.rename_shards(mixed_attempts)
    # Another attempt renames different files with the same bytes.
    assert steps.rename_shards(second_attempts) == shards
    manifest = steps.finish(plan, shards)
    assert steps.finish(plan, shards) == manifest
    write_shard_attempt(steps.plan, plan, 0, steps.progress)  # by a late worker
    assert steps.finish(plan, steps.rename_shards(first)) == manifest
    check_same(out, manifest, build_on_one_machine(source, tmp_path))
    steps.job_folder.open_run().remove_work_files()
    _load_cached.cache_clear()
    with pytest.raises((NotSharedError, FileNotFoundError)):
        write_shard_attempt(steps.plan, plan, 0, steps.progress)
    # The commit can be repeated after all work files were removed.
    assert commit_shared_build(steps.plan, plan, shards) == manifest
    check_same(out, manifest, build_on_one_machine(source, tmp_path, overwrite=True))


def test_shard_of_another_size_or_checksum_is_not_committed(
    source: str, out: str, tmp_path: Path
) -> None:
    steps = begin_steps(source, out, tmp_path)
    plan = steps.ingest_all()
    shards = steps.rename_shards(steps.write_shards(plan))
    with pytest.raises(RecordCountError, match="differ from those read"):
        steps.finish(plan, shards[1:])
    with pytest.raises(RecordCountError, match="differ from those read"):
        steps.finish(plan, [*shards, shards[0]])
    name, size = shards[0].files[-1]
    put_bytes(steps.job_folder.data_path(*name.split("/")), b"short")
    with pytest.raises(RecordmillError, match=f"5 bytes, not those that were written|{size}"):
        steps.finish(plan, shards)
    assert list_generations(out) == []
    discard(steps.job_folder)
    assert not [name for name in find_files(out) if exists(out)] or not exists(out)


def test_of_two_builds_one_commits_and_the_other_removes_its_files(
    source: str, out: str, tmp_path: Path
) -> None:
    first, second = (begin_steps(source, out, tmp_path) for _ in range(2))
    manifest = first.run_all()
    with pytest.raises(CommitConflict, match="another build committed"):
        second.run_all()
    discard(second.job_folder)
    discard(first.job_folder)  # a driver does this if it lost the answer of its job
    assert first.job_folder.open_run().committed_manifest() == manifest
    folders = {
        name.split("/")[0] for name in find_files(out) if name.startswith(("data-", "_run-"))
    }
    assert folders == {first.job_folder.data_folder_name}
    assert recordmill.verify(out) == []
