"""The commit: what a run has made becomes the next generation of the data set at OUT, in one atomic step, on a disk and
in a store, by one process and by an engine's workers.

All of it gets its names first, which shows nothing, since only the manifest says what the data set is; these names are
the run's own, so whatever stopped an attempt, the next one goes on. The manifest is then created under the next number,
which exactly one of several runs can do. A crash before leaves the old data set, and nothing that happens after makes
the new one less committed. Nothing is removed here: whoever holds the run removes what was not committed when it closes
it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from recordmill.base.errors import RecordmillError
from recordmill.base.threads import thread_map
from recordmill.shards.dead_runs import loaded, remove_data
from recordmill.shards.derived import derived_files, is_derived
from recordmill.shards.manifest import INPUTS_NAME, STATISTICS_NAME, Manifest, generations, manifest_path
from recordmill.shards.run import Run, RunFolder
from recordmill.shards.store_run import objects_of
from recordmill.storage.files import (
    atomic_write,
    check_uploaded,
    give_name,
    is_remote,
    listed_objects,
    put_objects,
    remove_objects,
    stat,
    sync_file,
    sync_folder,
    upload_all,
    write_all,
)
from recordmill.storage.folders import files_below, join, make_folder, names_in, remove_file
from recordmill.storage.walk import MANIFESTS

_BESIDE = (INPUTS_NAME, STATISTICS_NAME)  # the shards, in their folder
_NAMED_AT_ONCE = 32  # requests of a store: each waits

_log = logging.getLogger(__name__)


class CommitConflict(RecordmillError):
    """Another run committed to the same OUT in the meantime; this one's work was discarded."""


def commit(run: Run, manifest: Manifest, base: int) -> Manifest:
    """Publish what the run has made, and placed, as generation base + 1; where it has done that already, gives what it
    published. May be called again, and by several at once.

    base: the generation that was current when the run began.

    Raises:
        CommitConflict: another run was first; OUT is as that run left it.
        OSError: as the operating system, or the store, says it; nothing was committed, or it can't be known.
    """
    if (done := run.committed()) is not None:
        return done
    # a lone surrogate, from a name that is no UTF-8, as JSON escapes it
    text = manifest.to_json().encode("utf-8", "backslashreplace")
    Manifest.from_json(text, "the new manifest")  # nothing is committed that nobody could open
    name = f"{MANIFESTS}/{manifest_path('', base + 1).name}"
    if not (run.may_commit(base, generations) and run.commit(name, text, lambda: _is_whole(run, manifest))):
        if (done := run.committed()) is not None:
            return done
        raise CommitConflict(f"{run.out}: {run.obstacle('build', base, generations)}; nothing of this one was kept")
    tidy(run.out, manifest, base + 1, run.path if isinstance(run, RunFolder) else None)
    return manifest


def _is_whole(run: Run, manifest: Manifest) -> bool:
    """Returns whether a store holds as many shards, of as many bytes, as the run has put there by the manifest."""
    made = [shards for part in manifest.parts if part.folder == run.data_name for shards in part.splits.values()]
    there = listed_objects(f"{run.out}/{run.data_name}")
    sizes = [item.size_bytes for item in there if "/" not in item.name and item.name not in _BESIDE]
    return (len(sizes), sum(sizes)) == (sum(map(len, made)), sum(shard.bytes for shards in made for shard in shards))


def publish_files(run: Run, rejects: Sequence[str]) -> list[str]:
    """Give the folder of shards, on a disk, and the files of rejects the names by which the manifest will know them,
    durably; gives the names of these below OUT. May be called again, by several at once.

    rejects: paths, or URIs, where the run has put them; none where they were placed before.
    """
    names = reject_names(run, len(rejects))
    if isinstance(run, RunFolder):
        run.publish_data_folder()
    if names and isinstance(run, RunFolder):
        make_folder(run.out / "rejects", exist_ok=True)

    def give(pair: tuple[str, str]) -> None:
        path, target = pair[0], join(run.out, *pair[1].split("/"))
        size = 0
        with contextlib.suppress(FileNotFoundError):  # an attempt has placed it that died
            size = stat(path).size_bytes
            if isinstance(run, RunFolder):
                sync_file(path)
        give_name(path, target, size)

    pairs = list(zip(rejects, names, strict=True))
    for _ in thread_map(give, pairs, 1 if isinstance(run, RunFolder) else _NAMED_AT_ONCE):
        pass
    if names and isinstance(run, RunFolder):
        sync_folder(run.out / "rejects")
    return names


def upload_files(run: Run, made: RunFolder, rejects: Sequence[str], memory_bytes: int) -> list[str]:
    """Put what one process has made on this machine into the run's store, under the names by which the manifest will
    know it; gives those of the files of rejects below OUT.
    """
    names = reject_names(run, len(rejects))
    files = {f"{run.data_name}/{relative}": path for relative, path in files_below(made.data).items()}
    files |= dict(zip(names, rejects, strict=True))
    upload_all(os.fspath(run.out), files, memory_bytes)
    check_uploaded(os.fspath(run.out), files)
    return names


def reject_names(run: Run, count: int) -> list[str]:
    """The names below OUT of so many files of rejects."""
    return [f"rejects/{run.id}.{number:05d}.jsonl" for number in range(count)]


def tidy(out: str | Path, manifest: Manifest, generation: int, temporary_in: Path | None = None) -> None:
    """Does what follows a commit and can't undo it: an error is told, and the build has succeeded."""
    try:
        if generations(out)[-1:] == [generation]:  # a later build's files are not to be replaced by ours
            _write_derived(os.fspath(out), manifest, generation, temporary_in)
        _remove_old_generations(os.fspath(out), generation)
    except (OSError, RecordmillError) as error:
        _log.warning(
            "%s: the data set is complete, but tidying up after it failed (%s); `recordmill verify --mend` writes "
            "the files beside the manifest anew, and so does the next build",
            out,
            error,
        )


def _write_derived(out: str, manifest: Manifest, generation: int, temporary_in: Path | None) -> None:
    """Writes what follows from the manifest, each file atomically, and removes what followed from an earlier one."""
    files = derived_files(out, manifest, generation)
    _remove_files(out, [name for name in names_in(out) if is_derived(name) and name not in files])
    if is_remote(out):
        put_objects(out, files)
        return
    for name, content in files.items():
        with atomic_write(Path(out, name), temporary_in) as file:
            write_all(file, content)


def _remove_old_generations(out: str, current: int) -> None:
    """Remove what is older than the generation before the current one, whose readers may still be at work."""
    for number, folders in _outdated(loaded(out), current):
        for folder in folders:
            if is_remote(out):
                remove_objects(out, objects_of(out, folder))
            else:
                remove_data(Path(out), folder)
        _remove_files(out, [f"{MANIFESTS}/{number:08d}.json"])


def _remove_files(out: str, names: Sequence[str]) -> None:
    if is_remote(out):
        remove_objects(out, names)
        return
    for name in names:
        remove_file(Path(out, name), missing_ok=True)


def _outdated(manifests: Mapping[int, Manifest], current: int) -> Iterator[tuple[int, list[str]]]:
    """(number, folders that no later manifest names) of each generation older than the one before the current one."""
    kept = {part.folder for number, manifest in manifests.items() if number >= current - 1 for part in manifest.parts}
    for number, manifest in manifests.items():
        if number < current - 1:
            yield number, [part.folder for part in manifest.parts if part.folder not in kept]
