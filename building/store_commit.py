"""The commit of a build to a store: what the run made on this machine becomes objects below `data-<run>/`, and then the
manifest is put, if no other build has put the same generation. Nothing is renamed; objects that no manifest names are
nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping

from recordmill.base.errors import RecordmillError
from recordmill.base.threads import thread_map
from recordmill.building.commit import CommitConflict
from recordmill.schemas.tfds import LABELS_SUFFIX
from recordmill.shards.dead_runs import loaded
from recordmill.shards.manifest import DATA_PREFIX, MANIFESTS, Manifest, generations
from recordmill.shards.run_folder import RunFolder
from recordmill.shards.store_run import StoreRun, objects_of
from recordmill.storage.files import (
    listed_objects,
    put_if_absent,
    put_object,
    remove_objects,
    stat,
    upload_file,
)
from recordmill.storage.folders import files_below, paths_in

_UPLOADS = 8  # objects that are put at once, of 32 MiB at most in memory each

_log = logging.getLogger(__name__)


def commit_to_store(
    folder: RunFolder,
    describe: Callable[[str, list[str]], tuple[Manifest, Mapping[str, str]]],
    base: int,
    out: str,
) -> Manifest:
    """Publish the run's data as generation base + 1 of the data set at OUT; see `commit`.

    Raises:
        CommitConflict: another run was first; OUT is as that run left it.
        OSError: a request failed, and nothing was committed, or it can't be known, and nothing was removed.
    """
    name = f"{DATA_PREFIX}{folder.id}"
    with StoreRun(out, folder.id) as run:
        _remove_dead(run)
        try:
            rejects = _put_all(folder, out, name)
            manifest, copies = describe(name, rejects)
            text = manifest.to_json().encode("utf-8", "backslashreplace")
            Manifest.from_json(text, "the new manifest")
            current = generations(out)
            wanted = (current[-1] if current else 0) == base and run.is_held
        except BaseException:
            _discard(out, name)
            raise
        # from here on an error says nothing of whether the manifest stands, so what it names stays
        if not (wanted and put_if_absent(_manifest_uri(out, base + 1), text)):
            _discard(out, name)
            raise CommitConflict(f"{out}: another build committed while this one ran; nothing of this one was kept")
        _tidy(out, manifest, copies, base + 1)
    return manifest


def _manifest_uri(out: str, generation: int) -> str:
    return f"{out}/{MANIFESTS}/{generation:08d}.json"


def _remove_dead(run: StoreRun) -> None:
    for name, left in run.left_by_dead().items():
        _log.warning("%s: removing what the dead build %s left (%d objects)", run.out, name, len(left))
        remove_objects(run.out, left)


def _put_all(folder: RunFolder, out: str, name: str) -> list[str]:
    """Put the shards, their indices and what belongs to them, and the rejects; gives the names of these below OUT."""
    pairs = [(path, f"{name}/{relative}") for relative, path in files_below(folder.data).items()]
    found = [str(path) for path in paths_in(folder.rejects) if stat(str(path)).size_bytes]
    rejects = [f"rejects/{folder.id}.{number:05d}.jsonl" for number in range(len(found))]
    pairs += zip(found, rejects, strict=True)
    wanted = {key: stat(path).size_bytes for path, key in pairs}

    def put(pair: tuple[str, str]) -> None:
        upload_file(pair[0], f"{out}/{pair[1]}", wanted[pair[1]])

    for _ in thread_map(put, pairs, _UPLOADS):
        pass
    there = {f"{name}/{item.name}": item.size_bytes for item in listed_objects(f"{out}/{name}")}
    if missing := [key for key, size in wanted.items() if key.startswith(name) and there.get(key) != size]:
        raise RecordmillError(f"{out}/{missing[0]}: is not there as it was put; nothing was committed")
    return rejects


def _discard(out: str, name: str) -> None:
    """Remove this run's own objects; what can't be is left to the next build."""
    with contextlib.suppress(OSError):
        remove_objects(out, objects_of(out, name))


def _tidy(out: str, manifest: Manifest, copies: Mapping[str, str], generation: int) -> None:
    """What follows a commit and can't undo it: the copies for people and other tools, and what is older than the
    generation before.
    """
    texts = {"manifest.json": manifest.to_json(), "schema.pbtxt": manifest.schema, **copies}
    try:
        if generations(out)[-1:] == [generation]:
            for name, text in texts.items():
                put_object(f"{out}/{name}", text.encode("utf-8", "backslashreplace"))
            top = {item.name for item in listed_objects(out) if "/" not in item.name}
            remove_objects(out, [name for name in top if name.endswith(LABELS_SUFFIX) and name not in copies])
        _remove_old(out, generation)
    except (OSError, RecordmillError) as error:
        _log.warning("%s: the data set is complete, but tidying up after it failed (%s)", out, error)


def _remove_old(out: str, current: int) -> None:
    manifests = loaded(out)
    kept = {part.folder for number, manifest in manifests.items() if number >= current - 1 for part in manifest.parts}
    for number, manifest in manifests.items():
        if number < current - 1:
            for part in manifest.parts:
                if part.folder not in kept:
                    remove_objects(out, objects_of(out, part.folder))
            remove_objects(out, [f"{MANIFESTS}/{number:08d}.json"])
