"""The commit: a finished, reconciled run becomes the next generation of the data set at OUT, in one atomic step.

The folder of shards is renamed to its final name first, which shows nothing, since only the manifest says what the data set is; the
manifest is then created under the next number, which exactly one of several runs can do. A crash before leaves the old data set.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from recordmill.schemas.errors import RecordmillError
from recordmill.shards.manifest import DATA_PREFIX, MANIFESTS, Manifest, generations, load, manifest_path
from recordmill.shards.run_folder import RunFolder
from recordmill.storage.files import atomic_write, put_if_absent, sync_folder, write_all


class CommitConflict(RecordmillError):
    """Another run committed to the same OUT in the meantime; this one's work was discarded."""


def commit(folder: RunFolder, describe: Callable[[str, list[str]], tuple[Manifest, Mapping[str, str]]], fingerprint: str, base: int) -> Manifest:
    """Publish the run's data as generation base + 1.

    describe: gives the manifest, and file name to text of what is written beside it for people and other tools, once the final names of the
    data folder and of the reject files are known. base: the generation that was current when the run began.

    Raises:
        CommitConflict: another run was first; OUT is as that run left it.
    """
    out = folder.out
    name = _place_data(folder, fingerprint)
    rejects = _place_rejects(folder, name)
    try:
        manifest, copies = describe(name, [path.relative_to(out).as_posix() for path in rejects])
        (out / MANIFESTS).mkdir(exist_ok=True)
        current = generations(out)
        published = (current[-1] if current else 0) == base and put_if_absent(manifest_path(out, base + 1), manifest.to_json().encode())
    except BaseException:
        _discard(out, name, rejects)
        raise
    if not published:
        _discard(out, name, rejects)
        raise CommitConflict(f"{out}: another build committed generation {generations(out)[-1]} while this one ran; nothing of this one was kept")
    write_copies(out, manifest, copies)
    remove_old_generations(out, base + 1)
    return manifest


def write_copies(out: Path, manifest: Manifest, copies: Mapping[str, str]) -> None:
    """Write manifest.json and the other copies, each atomically; `verify` mends them if a crash came between."""
    for name, text in {"manifest.json": manifest.to_json(), "schema.pbtxt": manifest.schema, **copies}.items():
        with atomic_write(out / name) as file:
            write_all(file, text.encode())


def remove_old_generations(out: Path, current: int) -> None:
    """Remove what is older than the generation before the current one, whose readers may still be at work."""
    kept = {part.folder for number in generations(out) if number >= current - 1 for part in load(out, number).parts}
    for number in generations(out):
        if number < current - 1:
            for part in load(out, number).parts:
                if part.folder not in kept:
                    shutil.rmtree(out / part.folder, ignore_errors=True)
                    for path in (out / "rejects").glob(f"{part.folder.removeprefix(DATA_PREFIX)}.*"):
                        path.unlink(missing_ok=True)
            manifest_path(out, number).unlink(missing_ok=True)


def _place_data(folder: RunFolder, fingerprint: str) -> str:
    """Rename the data to OUT/data-<first 12 of the fingerprint>, with a number behind it where that name is taken."""
    sync_folder(folder.data / "index")
    sync_folder(folder.data)
    attempt = 1
    while True:
        name = f"{DATA_PREFIX}{fingerprint[:12]}" + (f"-{attempt}" if attempt > 1 else "")
        folder.intend(name)
        if not (folder.out / name).exists():
            with contextlib.suppress(FileExistsError, OSError):
                os.rename(folder.data, folder.out / name)
                sync_folder(folder.out)
                return name
            if not folder.data.exists():
                raise FileNotFoundError(folder.data)
        attempt += 1


def _place_rejects(folder: RunFolder, name: str) -> list[Path]:
    """Move the run's reject files to OUT/rejects/<id>.<n>.jsonl; they belong to this generation by their name."""
    moved = []
    found = sorted(path for path in folder.rejects.iterdir() if path.stat().st_size)
    if found:
        (folder.out / "rejects").mkdir(exist_ok=True)
    for number, path in enumerate(found):
        target = folder.out / "rejects" / f"{name.removeprefix(DATA_PREFIX)}.{number:05d}.jsonl"
        os.replace(path, target)
        moved.append(target)
    return moved


def _discard(out: Path, name: str, rejects: list[Path]) -> None:
    shutil.rmtree(out / name, ignore_errors=True)
    for path in rejects:
        path.unlink(missing_ok=True)
