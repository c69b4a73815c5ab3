"""The commit of a build to a store: what the run made on this machine becomes objects below `data-<run>/`, and then the
manifest is put, if no other build has put the same generation. Nothing is renamed; objects that no manifest names are
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from recordmill.base.errors import RecordmillError
from recordmill.base.threads import both
from recordmill.building.commit import CommitConflict, outdated
from recordmill.schemas.tfds import LABELS_SUFFIX
from recordmill.shards.dead_runs import loaded
from recordmill.shards.manifest import DATA_PREFIX, MANIFESTS, Manifest, generations
from recordmill.shards.run_folder import RunFolder
from recordmill.shards.store_run import StoreRun, objects_of
from recordmill.storage.files import check_uploaded, put_objects, remove_objects, stat, upload_all
from recordmill.storage.folders import files_below, names_in, paths_in

_log = logging.getLogger(__name__)


def commit_to_store(
    folder: RunFolder,
    describe: Callable[[str, list[str]], tuple[Manifest, Mapping[str, str]]],
    base: int,
    out: str,
    memory_bytes: int,
) -> Manifest:
    """Publish the run's data as generation base + 1 of the data set at OUT; see `commit`.

    Raises:
        CommitConflict: another run was first; OUT is as that run left it.
        OSError: a request failed, and nothing was committed, or it can't be known, and nothing was removed.
    """
    name = f"{DATA_PREFIX}{folder.id}"
    with StoreRun(out, folder.id) as run:
        try:
            rejects, _ = both(lambda: _put_all(folder, out, name, memory_bytes), run.remove_dead)
            manifest, copies = describe(name, rejects)
            text = manifest.to_json().encode("utf-8", "backslashreplace")
            Manifest.from_json(text, "the new manifest")
            wanted = run.may_commit(base, generations)
        except BaseException:
            run.discard()
            raise
        if not (wanted and run.commit(f"{MANIFESTS}/{base + 1:08d}.json", text)):
            run.discard()
            raise CommitConflict(f"{out}: another build committed while this one ran; nothing of this one was kept")
        tidy(out, manifest, copies, base + 1)
    return manifest


def _put_all(folder: RunFolder, out: str, name: str, memory_bytes: int) -> list[str]:
    """Put the shards, their indices and what belongs to them, and the rejects; gives the names of these below OUT."""
    files = {f"{name}/{relative}": path for relative, path in files_below(folder.data).items()}
    found = [str(path) for path in paths_in(folder.rejects) if stat(str(path)).size_bytes]
    rejects = [f"rejects/{folder.id}.{number:05d}.jsonl" for number in range(len(found))]
    files |= dict(zip(rejects, found, strict=True))
    upload_all(out, files, memory_bytes)
    check_uploaded(out, files)
    return rejects


def tidy(out: str, manifest: Manifest, copies: Mapping[str, str], generation: int) -> None:
    """What follows a commit and can't undo it: the copies for people and other tools, and what is older than the
    generation before.
    """
    texts = {"manifest.json": manifest.to_json(), "schema.pbtxt": manifest.schema, **copies}
    try:
        if generations(out)[-1:] == [generation]:
            put_objects(out, {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()})
            labels = [name for name in names_in(out) if name.endswith(LABELS_SUFFIX)]
            remove_objects(out, [name for name in labels if name not in copies])
        _remove_old(out, generation)
    except (OSError, RecordmillError) as error:
        _log.warning("%s: the data set is complete, but tidying up after it failed (%s)", out, error)


def _remove_old(out: str, current: int) -> None:
    for number, folders in outdated(loaded(out), current):
        for folder in folders:
            remove_objects(out, objects_of(out, folder))
        remove_objects(out, [f"{MANIFESTS}/{number:08d}.json"])
