"""Writing of shards by workers, and the commit of such a build.

A worker writes a shard under names of its own attempt. The engine may run several attempts of a
task, and accepts one. Attempts never share a name, so a late one changes nothing that others read.
Then the files of the accepted attempt are renamed to their final names, which may be repeated.

At the end, all files must exist and all record counts must agree before the manifest is committed.
No file is removed after an error, because another attempt of this step may have committed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recordmill.base.errors import RecordmillError
from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.building.commit import commit, finish_output, publish_files
from recordmill.building.finish_build import (
    BuildOutcome,
    RecordCountError,
    make_manifest,
    write_input_list,
    write_statistics,
)
from recordmill.building.shard_writer import FinishedShard, write_shards
from recordmill.building.workers.shard_planning import ShardPlan
from recordmill.building.workers.shared_files import (
    ATTEMPTS_FOLDER,
    JobFolder,
    NotSharedError,
    SharedPlanHandle,
    task_workspace,
)
from recordmill.building.workers.sorted_runs import (
    STORE_CONCURRENCY,
    download_slices,
    find_shard_slices,
)
from recordmill.shards.file_names import ShardName
from recordmill.shards.index import add_checksums
from recordmill.shards.manifest import (
    INDEX_FOLDER,
    INPUTS_NAME,
    Manifest,
    ShardInfo,
    parse_shard_name,
)
from recordmill.storage.files import list_objects, move_to_final, move_to_shared, stat

# Slices of up to 4 times the size of their shard are downloaded first. Larger slices belong to a
# frequent key and contain mostly other shards, so the merge reads what it needs from the store.
_MAX_DOWNLOAD_RATIO = 4


@dataclass(frozen=True)
class ShardAttempt:
    """A shard that one attempt of a task has written to the job folder.

    Attributes:
        shard: The shard.
        files: (path or URL, name relative to the data folder, bytes) of each file, the shard last.
    """

    shard: FinishedShard
    files: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class FinalShard:
    """A shard under its final names.

    Attributes:
        split_id: Ordinal of the split.
        index: Its number within the split, without gaps.
        info: Its entry in the manifest.
        files: (name relative to the data folder, bytes) of each file.
    """

    split_id: int
    index: int
    info: ShardInfo
    files: tuple[tuple[str, int], ...]


def write_shard_attempt(
    plan: SharedPlanHandle, shard_plan: ShardPlan, shard_number: int, progress: Progress
) -> ShardAttempt:
    """Writes one shard and its index, and moves them to the job folder.

    Args:
        plan: The handle of the plan.
        shard_plan: The boundaries and sorted runs of all shards.
        shard_number: The row of the shard in the table of all boundaries.
        progress: Receives the number of written records.

    Raises:
        DataError: A record was damaged since it was written to a sorted run.
        NotSharedError: This worker can't see a sorted run.
    """
    layout, job_folder = shard_plan.layout.load(), plan.job_folder
    shard_range, run_slices = find_shard_slices(
        job_folder, layout.sorted_runs, layout.boundaries, shard_number
    )
    with task_workspace(plan) as local_plan:
        data, scratch = Path(local_plan.folder, "data"), Path(local_plan.folder, "runs")
        frames_bytes = sum(run_slice.frames_bytes for run_slice in run_slices)
        slices_size = (
            sum(run_slice.records for run_slice in run_slices)
            if shard_range.measure == "records"
            else frames_bytes
        )
        if job_folder.is_remote and slices_size <= _MAX_DOWNLOAD_RATIO * shard_range.size:
            run_slices = download_slices(run_slices, str(scratch / "gathered"))
        name = ShardName(
            local_plan.split_names[shard_range.split_id],
            index=shard_range.index,
            num_shards=shard_range.num_shards,
            compression=local_plan.compression,
        )
        memory = local_plan.memory_bytes // (2 * local_plan.threads)
        (staged,) = write_shards(
            folder=data,
            scratch=scratch,
            names=[name],
            shard_range=shard_range,
            slices=run_slices,
            memory_bytes=memory,
            progress=progress,
        )
        files = []
        for temporary, path in staged.files:
            frames_bytes = stat(str(temporary)).size_bytes
            files.append(
                (
                    job_folder.move_in(str(temporary), ATTEMPTS_FOLDER),
                    path.relative_to(data).as_posix(),
                    frames_bytes,
                )
            )
    return ShardAttempt(staged.shard, tuple(files))


def rename_to_final_names(
    job_folder: JobFolder, attempt: ShardAttempt, empty_shards: Iterable[tuple[int, int]]
) -> FinalShard | None:
    """Renames the files of the accepted attempt to their final names.

    Empty shards get no number, so the numbers of later shards become smaller. The call may be
    repeated.

    Args:
        job_folder: The folders of the run.
        attempt: The accepted attempt.
        empty_shards: (split_id, index) of every empty shard.

    Returns:
        The shard, or None if it is empty.

    Raises:
        NotSharedError: This worker can't see a file of the attempt.
        RecordmillError: A renamed file has another size than was written.
    """
    shard = attempt.shard
    if not shard.info.records:
        return None
    empty_indices = [index for split, index in empty_shards if split == shard.split_id]
    old = parse_shard_name(shard.info)
    new = replace(
        old,
        index=old.index - sum(index < old.index for index in empty_indices),
        num_shards=old.num_shards - len(empty_indices),
    )
    final_names = {
        str(old): str(new),
        f"{INDEX_FOLDER}/{old.index_name}": f"{INDEX_FOLDER}/{new.index_name}",
        f"{INDEX_FOLDER}/{old.members_name}": f"{INDEX_FOLDER}/{new.members_name}",
    }
    for path, name, num_bytes in attempt.files:
        target = job_folder.data_path(*final_names[name].split("/"))
        try:
            move_to_final(path, target, num_bytes)
        except FileNotFoundError:
            raise NotSharedError(path, job_folder.out) from None
        if (actual_size := stat(target).size_bytes) != num_bytes:
            raise RecordmillError(
                f"{target}: {actual_size} bytes, where {num_bytes} were written; nothing was committed"
            )
    final_files = tuple((final_names[name], num_bytes) for _, name, num_bytes in attempt.files)
    return FinalShard(
        split_id=shard.split_id,
        index=new.index,
        info=replace(shard.info, name=str(new)),
        files=final_files,
    )


def commit_shared_build(
    plan: SharedPlanHandle, shard_plan: ShardPlan, final_shards: Iterable[FinalShard]
) -> Manifest:
    """Verifies and commits a build by workers.

    The call may be repeated, even by several processes at once. If the run has committed already,
    its manifest is returned.

    Args:
        plan: The handle of the plan.
        shard_plan: The record counts and checksum of all unit groups.
        final_shards: All shards that are not empty.

    Returns:
        The committed manifest.

    Raises:
        RecordCountError: The shards don't contain the records that were read.
        NotSharedError: A shard is missing.
        RecordmillError: A file has another size than was written.
        ExpectationError: The statistics violate the user's rules.
        CommitConflict: Another run committed first.
    """
    job_folder, build_run = plan.job_folder, plan.job_folder.open_run()
    if (committed := build_run.committed_manifest()) is not None:
        # Nothing is left to tidy if the plan is gone.
        with contextlib.suppress(NotSharedError):
            finish_output(job_folder.out, committed, plan.load().base_generation + 1)
        return committed
    shards = sorted(final_shards, key=lambda shard: (shard.split_id, shard.index))
    _check_record_counts(shard_plan, shards)
    check_files_exist(job_folder, [pair for shard in shards for pair in shard.files])
    with task_workspace(plan) as local_plan:
        input_list = write_input_list(local_plan, Path(local_plan.folder, "data"))
        if local_plan.source is not None:
            move_to_shared(
                str(Path(local_plan.folder, "data", INPUTS_NAME)), job_folder.data_path(INPUTS_NAME)
            )
        # Shards are sorted by split, as `groupby` needs.
        by_split = itertools.groupby(shards, lambda shard: local_plan.split_names[shard.split_id])
        shards_by_split = {name: tuple(shard.info for shard in group) for name, group in by_split}
        sketch = None if shard_plan.sketch is None else shard_plan.sketch.load_copy()
        statistics = write_statistics(local_plan, sketch, job_folder.data_path(), job_folder.out)
        rejects = publish_files(build_run, shard_plan.rejected.files)
        outcome = BuildOutcome(
            out=job_folder.out,
            shards_by_split=shards_by_split,
            inputs=input_list,
            records_read=shard_plan.records_read,
            rejected=shard_plan.rejected,
            note_counts=shard_plan.note_counts,
            run_id=job_folder.id,
            statistics=statistics,
        )
        return commit(
            build_run,
            make_manifest(local_plan, outcome, job_folder.data_folder_name, rejects),
            local_plan.base_generation,
        )


def _check_record_counts(shard_plan: ShardPlan, shards: Sequence[FinalShard]) -> None:
    checksum, records = 0, sum(shard.info.records for shard in shards)
    for shard in shards:
        checksum = add_checksums(checksum, int(shard.info.sum, 16))
    if (records, checksum) != (shard_plan.records, shard_plan.checksum):
        raise RecordCountError(
            f"the records written ({records}, sum {checksum:016x}) differ from those read ({shard_plan.records}, sum "
            f"{shard_plan.checksum:016x}); nothing was committed"
        )
    if len({(shard.split_id, shard.index) for shard in shards}) != len(shards):
        raise RecordCountError("a shard was reported twice; nothing was committed")


def check_files_exist(job_folder: JobFolder, files: Sequence[tuple[str, int]]) -> None:
    """Checks that all files are in the data folder with the right size.

    Args:
        job_folder: The folders of the run.
        files: (name relative to the data folder, bytes) of each file.

    Raises:
        NotSharedError: A file is missing.
        RecordmillError: A file has another size.
    """
    if job_folder.is_remote:
        sizes_by_name = {
            item.name: item.size_bytes for item in list_objects(job_folder.data_path())
        }
    else:
        sizes = thread_map(
            lambda pair: _file_size(job_folder.data_path(pair[0])), files, STORE_CONCURRENCY
        )
        sizes_by_name = {
            name: size for (name, _), size in zip(files, sizes, strict=True) if size is not None
        }
    bad_files = [name for name, size in files if sizes_by_name.get(name) != size]
    if not bad_files:
        return
    if (size := sizes_by_name.get(bad_files[0])) is not None:
        raise RecordmillError(
            f"{job_folder.data_path(bad_files[0])}: {size} bytes, not those that were "
            "written; nothing was committed"
        )
    raise NotSharedError(
        f"{job_folder.data_path(bad_files[0])} ({len(bad_files)} of {len(files)} files)",
        job_folder.out,
    )


def _file_size(path: str) -> int | None:
    try:
        return stat(path).size_bytes
    except FileNotFoundError:
        return None
