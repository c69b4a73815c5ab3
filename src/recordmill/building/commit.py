"""Commit of a finished build as the next generation of a data set.

All files first get their final names. Readers don't see them yet, because no manifest names them,
and the names contain the id of the run. Then one atomic step creates the manifest of the next
generation, which fails if another run has created it. Files derived from the manifest are written
after it, and an error there does not undo the commit.

Nothing that was not committed is removed here. The owner of the run does this when it closes the
run.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from recordmill.base.errors import RecordmillError
from recordmill.base.threads import thread_map
from recordmill.shards.dead_runs import load_generations, remove_data_folder
from recordmill.shards.derived_files import is_derived_name, make_derived_files
from recordmill.shards.manifest import (
    APPEND,
    INPUTS_NAME,
    MERGED_FILES,
    Manifest,
    list_generations,
    manifest_path,
)
from recordmill.shards.run import Run, RunFolder
from recordmill.shards.store_run import list_data_objects
from recordmill.storage.files import (
    atomic_write,
    check_uploaded,
    is_remote,
    list_objects,
    move_to_final,
    put_objects,
    remove_objects,
    stat,
    sync_file,
    sync_folder,
    upload_all,
    write_all,
)
from recordmill.storage.folders import find_files, join, list_names, make_folder, remove_file
from recordmill.storage.walk import MANIFESTS_FOLDER

# Files in the data folder that are not shards.
_EXTRA_FILES = (INPUTS_NAME, *MERGED_FILES)
# Number of concurrent requests to a store. Each thread only waits for its answer.
_CONCURRENT_COPIES = 32

_log = logging.getLogger(__name__)


class CommitConflict(RecordmillError):
    """Another run committed to the same output first, or declared this run dead."""


def commit(run: Run, manifest: Manifest, base: int) -> Manifest:
    """Commits the files of a run as generation `base + 1` of the data set.

    The call may be repeated, even by several processes at once. If the run has already committed,
    nothing is written.

    Args:
        run: The run that made the files.
        manifest: The manifest of the new generation.
        base: The newest generation when the run started, or 0 if the output folder had none.

    Returns:
        The committed manifest: `manifest`, or the earlier one if the run had already committed.

    Raises:
        CommitConflict: Another run has committed a generation after `base`, or has declared this
            run dead.
        OSError: The manifest was not created. Or a store did not answer, so it is unknown whether
            the manifest was created.
    """
    if (committed := run.committed_manifest()) is not None:
        return committed
    # File names that are not UTF-8 contain lone surrogates. They become `\udcXX`, which JSON reads
    # back.
    text = manifest.to_json().encode("utf-8", "backslashreplace")
    # Parses the text again, so that a manifest that can't be read fails before the commit.
    Manifest.from_json(text, "the new manifest")
    name = f"{MANIFESTS_FOLDER}/{manifest_path('', base + 1).name}"
    if not (
        run.may_commit(base, list_generations)
        and run.commit(name, text, lambda: _is_complete(run, manifest))
    ):
        # Another attempt of this run may have committed in the meantime. That is not a conflict.
        if (committed := run.committed_manifest()) is not None:
            return committed
        reason = run.explain_conflict("build", base, list_generations)
        raise make_conflict(run.out, reason, manifest.action)
    finish_output(run.out, manifest, base + 1, run.path if isinstance(run, RunFolder) else None)
    return manifest


def make_conflict(out: str | Path, reason: str, action: str) -> CommitConflict:
    """Returns the error for a run that lost a race for the commit.

    Args:
        out: The output folder or store URL.
        reason: See `Run.explain_conflict`.
        action: The kind of the run, one of `manifest.ACTIONS`.
    """
    remedy = "; repeat the command to append to it" if action == APPEND else ""
    return CommitConflict(f"{out}: {reason}; the result of this one was discarded{remedy}")


def _is_complete(run: Run, manifest: Manifest) -> bool:
    """Returns whether the data folder in a store contains all shards of the manifest.

    Compares only the number of the shard files and their total size.
    """
    shard_lists = [
        shards
        for part in manifest.parts
        if part.folder == run.data_name
        for shards in part.splits.values()
    ]
    objects = list_objects(f"{run.out}/{run.data_name}")
    sizes = [
        item.size_bytes
        for item in objects
        if "/" not in item.name and item.name not in _EXTRA_FILES
    ]
    return (len(sizes), sum(sizes)) == (
        sum(map(len, shard_lists)),
        sum(shard.bytes for shards in shard_lists for shard in shards),
    )


def publish_files(run: Run, reject_paths: Sequence[str]) -> list[str]:
    """Moves the files of a run to their final names.

    On a disk, this moves the data folder and the reject files, and makes them durable. In a store
    the shards already have their final names, so only the reject files are copied. The call may be
    repeated, even by several processes at once.

    Args:
        run: The run that made the files.
        reject_paths: The path or URL of each reject file. Files that an earlier call has moved are
            skipped.

    Returns:
        The final name of each reject file, relative to the output folder.
    """
    names = reject_names(run, len(reject_paths))
    if isinstance(run, RunFolder):
        run.publish_data_folder()
    if names and isinstance(run, RunFolder):
        make_folder(run.out / "rejects", exist_ok=True)

    def publish_reject_file(pair: tuple[str, str]) -> None:
        path, target = pair[0], join(run.out, *pair[1].split("/"))
        size = 0
        # The file is missing if an earlier attempt has already moved it.
        with contextlib.suppress(FileNotFoundError):
            size = stat(path).size_bytes
            if isinstance(run, RunFolder):
                sync_file(path)
        move_to_final(path, target, size)

    pairs = list(zip(reject_paths, names, strict=True))
    for _ in thread_map(
        publish_reject_file, pairs, 1 if isinstance(run, RunFolder) else _CONCURRENT_COPIES
    ):
        pass
    if names and isinstance(run, RunFolder):
        sync_folder(run.out / "rejects")
    return names


def upload_files(
    run: Run, local_run: RunFolder, reject_paths: Sequence[str], memory_bytes: int
) -> list[str]:
    """Uploads the data and reject files of a local run folder to a store.

    Args:
        run: The run in the store.
        local_run: The local run folder. Its shards must already have their final numbers.
        reject_paths: The path of each reject file.
        memory_bytes: The memory that the uploads may use.

    Returns:
        The final name of each reject file, relative to the output folder.

    Raises:
        RecordmillError: An object is missing or has another size after the upload.
    """
    names = reject_names(run, len(reject_paths))
    files = {
        f"{run.data_name}/{relative}": path for relative, path in find_files(local_run.data).items()
    }
    files |= dict(zip(names, reject_paths, strict=True))
    upload_all(os.fspath(run.out), files, memory_bytes)
    check_uploaded(os.fspath(run.out), files)
    return names


def reject_names(run: Run, count: int) -> list[str]:
    """Returns the final names of `count` reject files, relative to the output folder."""
    return [f"rejects/{run.id}.{number:05d}.jsonl" for number in range(count)]


def finish_output(
    out: str | Path, manifest: Manifest, generation: int, temporary_in: Path | None = None
) -> None:
    """Writes the files derived from a committed manifest and removes old generations.

    Errors are only logged, because the data set is already complete.

    Args:
        out: The output folder or store URL.
        manifest: The committed manifest.
        generation: The number of the generation that `manifest` describes.
        temporary_in: The folder in which a file is written before it gets its final name. None
            means the folder of its final name. Stores don't use it.
    """
    try:
        # Never overwrite the files of a later build.
        if list_generations(out)[-1:] == [generation]:
            _write_derived(os.fspath(out), manifest, generation, temporary_in)
        _remove_old_generations(os.fspath(out), generation, manifest.keep_generations)
    except (OSError, RecordmillError) as error:
        _log.warning(
            "%s: the data set is complete, but the clean-up after it failed (%s); "
            "`recordmill verify --mend` or the next build writes the files next to "
            "the manifest again",
            out,
            error,
        )


def _write_derived(
    out: str, manifest: Manifest, generation: int, temporary_in: Path | None
) -> None:
    """Writes the files derived from a manifest, and removes derived files of earlier manifests."""
    files = make_derived_files(out, manifest, generation)
    _remove_files(
        out, [name for name in list_names(out) if is_derived_name(name) and name not in files]
    )
    if is_remote(out):
        put_objects(out, files)
        return
    for name, content in files.items():
        with atomic_write(Path(out, name), temporary_in) as file:
            write_all(file, content)


def _remove_old_generations(out: str, current: int, keep: int) -> None:
    """Removes all generations but the newest `keep` up to `current`.

    Newer generations are kept, too. The folders that one of them uses are kept without the files
    that only the removed generations need.
    """
    manifests = load_generations(out)
    # The generation before the current one is kept for readers that opened it before this commit.
    kept_manifests = [manifest for number, manifest in manifests.items() if number > current - keep]
    kept_folders = {part.folder for manifest in kept_manifests for part in manifest.parts}
    statistics_folders = {manifest.statistics_folder for manifest in kept_manifests}
    for number, manifest in manifests.items():
        if number > current - keep:
            continue
        for part in manifest.parts:
            if part.folder not in kept_folders:
                _remove_data_folder(out, part.folder)
        folder = manifest.statistics_folder
        if folder in kept_folders - statistics_folders:
            _remove_files(out, [f"{folder}/{name}" for name in MERGED_FILES])
        # The manifest is last. If the removal is interrupted, the next commit continues it.
        _remove_files(out, [f"{MANIFESTS_FOLDER}/{number:08d}.json"])


def _remove_data_folder(out: str, folder: str) -> None:
    if is_remote(out):
        remove_objects(out, list_data_objects(out, folder))
    else:
        remove_data_folder(Path(out), folder)


def _remove_files(out: str, names: Sequence[str]) -> None:
    if is_remote(out):
        remove_objects(out, names)
        return
    for name in names:
        remove_file(Path(out, name), missing_ok=True)
