"""The replacement of a result by another, in one step: a new folder takes the name of DIR while DIR takes its own.

DIR must hold nothing but the old result and this read's run folder. The new folder stands beside DIR for that moment,
as `.DIR.<run>.new`; behind the step that is the old one's name, which is then removed. Who dies in between leaves it,
and the next read of the same DIR puts it back or removes it (`mend`): whoever works at a result holds the lock of DIR,
the old folder's and the new one's.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Sequence
from pathlib import Path

from recordmill.base.errors import DataError
from recordmill.exporting.plan import SUMMARY_NAME
from recordmill.shards.dead_runs import remove_run
from recordmill.shards.manifest import RUN_PREFIX
from recordmill.shards.run import RunFolder
from recordmill.storage.files import atomic_write, sync_folder, write_all
from recordmill.storage.folders import exists, is_folder, real_path, remove_file, rename
from recordmill.storage.locks import lock_folder
from recordmill.storage.removal import Folder, exchange
from recordmill.storage.strict_json import load_fields

REJECTS = "rejects"
_UNABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV, errno.ENAMETOOLONG, errno.EBUSY)


def replace_result(folder: RunFolder, old: Sequence[str], rejects: bool, summary: bytes) -> bool:
    """Replace the old result by what the run made; False if that can't be done in one step here, and nothing is changed
    then.

    Raises:
        OSError: as the operating system says it; nothing was changed.
        KeyboardInterrupt: it says so if the result was replaced already.
    """
    real = Path(real_path(folder.out))
    with Folder.open(real.parent) as beside, Folder.open(real) as before:
        own = {name.split("/")[0] for name in old} | {SUMMARY_NAME, folder.path.name}
        if beside.inode(real.name) != before.own_inode or set(before.names()) - own:
            return False
        with Folder.open(folder.data) as after:
            lock_folder(after)  # it is DIR's lock from the exchange on
            try:
                done = _exchange(folder, beside, before, after, real.name, rejects, summary)
            except BaseException as error:
                if beside.inode(real.name) != after.own_inode:
                    _put_back(folder, beside, _new_name(real.name, folder.id))
                    raise
                if isinstance(error, KeyboardInterrupt):
                    raise KeyboardInterrupt(f"stopped, but {folder.out} was complete already") from None
                done = True
            if done:
                with contextlib.suppress(OSError):
                    sync_folder(real.parent)
                    _remove_old(beside, before, after, _new_name(real.name, folder.id), old, folder.id)
            return done


def _exchange(
    folder: RunFolder, beside: Folder, before: Folder, after: Folder, name: str, rejects: bool, summary: bytes
) -> bool:
    new = _new_name(name, folder.id)
    if rejects:
        rename(folder.rejects, folder.data / REJECTS)
    with atomic_write(folder.data / SUMMARY_NAME) as file:
        write_all(file, summary)
    after.take_mode_of(before)
    done = False
    try:
        beside.take(folder.data, new)
        done = exchange(beside, new, name)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
    if not done:
        _put_back(folder, beside, new)
    return done


def _put_back(folder: RunFolder, beside: Folder, new: str) -> None:
    """The new result as it was in the run's folder."""
    if beside.is_folder(new) and not exists(folder.data):
        beside.give(new, folder.data)
    with contextlib.suppress(FileNotFoundError):
        remove_file(folder.data / SUMMARY_NAME)
    if is_folder(folder.data / REJECTS) and not exists(folder.rejects):
        rename(folder.data / REJECTS, folder.rejects)


def _remove_old(beside: Folder, before: Folder, after: Folder, new: str, old: Sequence[str], run: str) -> None:
    """Remove the old result, whose folder has the new one's name now; what others put there meanwhile goes into DIR."""
    run_name = f"{RUN_PREFIX}{run}"
    for name in old:
        if not name.startswith(f"{REJECTS}/"):
            before.remove(name)
    if before.is_folder(REJECTS) and any(name.startswith(f"{REJECTS}/") for name in old):
        with before.enter(REJECTS) as rejects:
            for name in old:
                if name.startswith(f"{REJECTS}/"):
                    rejects.remove(name.removeprefix(f"{REJECTS}/"))
        with contextlib.suppress(OSError):
            before.remove_empty(REJECTS)
    if before.is_folder(run_name):
        with before.enter(run_name) as folder:
            remove_run(before, run_name, folder)
    before.remove(SUMMARY_NAME)
    for name in before.names():
        if after.inode(name) is None:
            before.move(name, after, name)
    before.remove_itself(beside, new)


def mend(out: Path) -> None:
    """Finish or undo the replacements of reads that died. The caller holds DIR's lock, and DIR is there."""
    real = Path(real_path(out))
    ours = re.compile(re.escape(f".{real.name}.") + r"([0-9a-f]{12})\.new")
    with contextlib.suppress(PermissionError), Folder.open(real.parent) as beside:
        for name in beside.names():
            if (match := ours.fullmatch(name)) is None or not beside.is_folder(name):
                continue
            with contextlib.suppress(OSError, DataError), beside.enter(name) as found, Folder.open(real) as now:
                lock_folder(found, wait=False)
                run = RunFolder.attach(out / f"{RUN_PREFIX}{match[1]}")
                if now.is_folder(run.path.name) and not exists(run.data):
                    _put_back(run, beside, name)
                    continue
                old: list[str] = []
                if found.inode(SUMMARY_NAME) is not None:
                    old = load_fields(SUMMARY_NAME, dir_fd=found.descriptor).texts("files", is_output, "an output")
                elif not found.is_folder(run.path.name) and found.names():
                    continue  # nothing says that it is a read's
                _remove_old(beside, found, now, name, old, match[1])


def is_output(name: str) -> bool:
    """Whether it may be the name, in DIR, of an output or of a file of rejects: below DIR, and nothing of its own.

    >>> [is_output(name) for name in ("train-00000-of-00001.parquet", "index", "rejects/a.jsonl", "../a", "rejects")]
    [True, True, True, False, False]
    """
    last = name.removeprefix(f"{REJECTS}/")
    return (
        last not in ("", ".", "..", REJECTS, SUMMARY_NAME)
        and not set(last) & set("/\0")
        and not last.startswith((RUN_PREFIX, "."))
    )


def _new_name(name: str, run: str) -> str:
    return f".{name}.{run}.new"
