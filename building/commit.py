"""The commit: a finished, reconciled run becomes the next generation of the data set at OUT, in one atomic step.

The folder of shards is renamed to its final name first, which shows nothing, since only the manifest says what the data
set is; the manifest is then created under the next number, which exactly one of several runs can do. A crash before
leaves the old data set, and nothing that happens after makes the new one less committed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from recordmill.base.errors import DataError, RecordmillError
from recordmill.schemas.tfds import LABELS_SUFFIX
from recordmill.shards.dead_runs import INTENT_NAME, loaded, remove_data
from recordmill.shards.entries.grammar import is_data_folder
from recordmill.shards.entries.pages import PAGES_FOLDER
from recordmill.shards.manifest import DATA_PREFIX, INDEX_FOLDER, MANIFESTS, Manifest, generations, manifest_path
from recordmill.shards.run_folder import RunFolder
from recordmill.storage.files import atomic_write, put_if_absent, read_range, stat, sync_file, sync_folder, write_all
from recordmill.storage.folders import exists, inode, make_folder, paths_in, remove_file, rename
from recordmill.storage.removal import Folder
from recordmill.storage.strict_json import load_fields

_log = logging.getLogger(__name__)


class CommitConflict(RecordmillError):
    """Another run committed to the same OUT in the meantime; this one's work was discarded."""


def commit(
    folder: RunFolder,
    describe: Callable[[str, list[str]], tuple[Manifest, Mapping[str, str]]],
    fingerprint: str,
    base: int,
) -> Manifest:
    """Publish the run's data as generation base + 1.

    describe: gives the manifest, and file name to text of what is written beside it for people and other tools, once
    the final names of the data folder and of the reject files are known. base: the generation that was current when the
    run began.

    Raises:
        CommitConflict: another run was first; OUT is as that run left it.
        OSError: as the operating system says it; nothing was committed.
    """
    out = folder.out
    text = b""
    put_back(folder)
    name = _place_data(folder, fingerprint)
    try:
        sync_folder(out)
        rejects = _place_rejects(folder, name)
        manifest, copies = describe(name, [path.relative_to(out).as_posix() for path in rejects])
        # a lone surrogate, from a name that is no UTF-8, as JSON escapes it
        text = manifest.to_json().encode("utf-8", "backslashreplace")
        Manifest.from_json(text, "the new manifest")  # nothing is committed that nobody could open
        make_folder(out / MANIFESTS, exist_ok=True)
        sync_folder(out)
        current = generations(out)
        published = (current[-1] if current else 0) == base and put_if_absent(
            manifest_path(out, base + 1), text, folder.path
        )
    except BaseException:
        if not _is_published(out, base + 1, text):
            put_back(folder)
            raise
        published = True
    if not published:
        remove_data(out, name)
        raise CommitConflict(
            f"{out}: another build committed generation {generations(out)[-1]} while this one ran; nothing "
            "of this one was kept"
        )
    tidy(out, manifest, copies, base + 1, folder.path)
    return manifest


def _is_published(out: Path, generation: int, text: bytes) -> bool:
    """Whether the manifest stands although its creation ended in an error, as when the disk fails at the last sync."""
    with contextlib.suppress(OSError):
        return bool(text) and read_range(str(manifest_path(out, generation))).tobytes() == text
    return False


def tidy(
    out: Path, manifest: Manifest, copies: Mapping[str, str], generation: int, temporary_in: Path | None = None
) -> None:
    """What follows a commit and can't undo it: an error is told, and the build has succeeded."""
    try:
        if generations(out)[-1:] == [generation]:  # a later build's copies are not to be replaced by ours
            write_copies(out, manifest, copies, temporary_in)
        remove_old_generations(out, generation)
    except (OSError, RecordmillError) as error:
        _log.warning(
            "%s: the data set is complete, but tidying up after it failed (%s); `recordmill verify --mend` writes "
            "manifest.json and schema.pbtxt anew, and the next build all copies",
            out,
            error,
        )


def write_copies(out: Path, manifest: Manifest, copies: Mapping[str, str], temporary_in: Path | None = None) -> None:
    """Write manifest.json and the other copies, each atomically,
    and remove class names of an earlier generation's labels.

    `verify --mend` mends the first two if a crash came between, the next build all.
    """
    for stale in paths_in(out, f"*{LABELS_SUFFIX}"):
        if stale.name not in copies:
            remove_file(stale, missing_ok=True)
    for name, text in {"manifest.json": manifest.to_json(), "schema.pbtxt": manifest.schema, **copies}.items():
        with atomic_write(out / name, temporary_in) as file:
            write_all(file, text.encode("utf-8", "backslashreplace"))


def remove_old_generations(out: Path, current: int) -> None:
    """Remove what is older than the generation before the current one, whose readers may still be at work."""
    for number, folders in outdated(loaded(out), current):
        for folder in folders:
            remove_data(out, folder)
        remove_file(manifest_path(out, number), missing_ok=True)


def outdated(manifests: Mapping[int, Manifest], current: int) -> Iterator[tuple[int, list[str]]]:
    """(number, folders that no later manifest names) of each generation older than the one before the current one."""
    kept = {part.folder for number, manifest in manifests.items() if number >= current - 1 for part in manifest.parts}
    for number, manifest in manifests.items():
        if number < current - 1:
            yield number, [part.folder for part in manifest.parts if part.folder not in kept]


def put_back(folder: RunFolder) -> None:
    """Undo what an attempt at this commit had placed, so that it can be repeated; where that fails, remove it."""
    with contextlib.suppress(FileNotFoundError, DataError):
        intent = load_fields(folder.path / INTENT_NAME)
        name, rejects = intent.text("folder"), intent.object("rejects")
        if not is_data_folder(name):
            return
        placed = folder.out / name
        if not exists(folder.data) and exists(placed) and inode(placed) == intent.count("inode"):
            try:
                rename(placed, folder.data)
            except OSError:
                remove_data(folder.out, name)
                raise
        with contextlib.suppress(OSError), Folder.open(folder.out) as above, above.enter("rejects") as placed_rejects:
            for number, (before, number_of) in enumerate(sorted(rejects.value.items())):
                target = _reject_name(name, number)
                found = placed_rejects.inode(target)
                if found is not None and found[1] == number_of and "/" not in before:
                    placed_rejects.give(target, folder.rejects / before)


def _place_data(folder: RunFolder, fingerprint: str) -> str:
    """Rename the data to OUT/data-<first 12 of the fingerprint>, with a number behind it where that name is taken."""
    for path in _reject_files(folder):
        sync_file(path)
    sync_folder(folder.rejects)
    for inner in (INDEX_FOLDER, PAGES_FOLDER):
        if exists(folder.data / inner):
            sync_folder(folder.data / inner)
    sync_folder(folder.data)
    for attempt in itertools.count(1):
        name = f"{DATA_PREFIX}{fingerprint[:12]}" + (f"-{attempt}" if attempt > 1 else "")
        if exists(folder.out / name):
            continue
        _intend(folder, name)
        try:
            rename(folder.data, folder.out / name)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # else another run took the name just now
                raise
        else:
            return name
    raise AssertionError("unreachable")


def _intend(folder: RunFolder, name: str) -> None:
    """Note the name that data is about to get, and which folder and files it is, so that whoever finds this run dead
    can tell its litter from others' data, and a repeated commit can begin anew.
    """
    rejects = {path.name: inode(path) for path in _reject_files(folder)}
    text = json.dumps({"folder": name, "inode": inode(folder.data), "rejects": rejects})
    with atomic_write(folder.path / INTENT_NAME) as file:
        write_all(file, text.encode())


def _reject_files(folder: RunFolder) -> list[Path]:
    return [path for path in paths_in(folder.rejects) if stat(str(path)).size_bytes]


def _reject_name(name: str, number: int) -> str:
    return f"{name.removeprefix(DATA_PREFIX)}.{number:05d}.jsonl"


def _place_rejects(folder: RunFolder, name: str) -> list[Path]:
    """Move the run's reject files to OUT/rejects/<id>.<n>.jsonl; they belong to this generation by their name."""
    moved = []
    found = _reject_files(folder)
    if found:
        make_folder(folder.out / "rejects", exist_ok=True)
    for number, path in enumerate(found):
        target = folder.out / "rejects" / _reject_name(name, number)
        rename(path, target)
        moved.append(target)
    if found:
        sync_folder(folder.out / "rejects")
    return moved
