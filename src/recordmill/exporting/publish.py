"""The commit of a read: finished outputs in `DIR/_run-<id>/data` become DIR's, with `_read.json` as the last of them; a
result is replaced by another in one step, in which a new folder takes the name of DIR while DIR takes its own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.base.option_names import option
from recordmill.exporting.job import OutputAccount, Publication
from recordmill.exporting.resume import is_resumable
from recordmill.shards.dead_runs import READ_NOTE_NAME, claimed, remove_run
from recordmill.shards.manifest import is_data_set
from recordmill.shards.run import RunFolder
from recordmill.storage.files import atomic_write, local_path, sync_file, sync_folder, write_all
from recordmill.storage.folders import (
    exchange,
    exists,
    has_name,
    inode,
    is_file,
    is_folder,
    is_link,
    make_folder,
    names_in,
    paths_in,
    real_path,
    remove,
    remove_empty,
    rename,
    take_mode_of,
)
from recordmill.storage.json_fields import Check, load_as
from recordmill.storage.locks import locked
from recordmill.storage.walk import RUN_PREFIX, SUMMARY_NAME

RESULT_REJECTS = "rejects"
_UNABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV, errno.ENAMETOOLONG, errno.EBUSY)


class _Summary(TypedDict):
    files: Sequence[_OutputName]


class _Intent(TypedDict):
    names: Sequence[_OutputName]
    old: Sequence[_OutputName]


def replace_result(folder: RunFolder, old: Sequence[str], rejects: bool, summary: bytes) -> bool:
    """Replaces the old result by what the run made; False if that can't be done in one step here, and nothing is
    changed then.

    Raises:
        OSError: as the operating system says it; nothing was changed.
    """
    real = Path(real_path(folder.out))
    new, made = real.with_name(f".{real.name}.{folder.id}.new"), inode(folder.data)
    if set(names_in(real)) - ({name.split("/")[0] for name in old} | {SUMMARY_NAME, folder.path.name}):
        return False
    with locked(folder.data):  # it is DIR's lock from the exchange on
        try:
            if not (done := _exchange(folder, new, real, rejects, summary)):
                _put_back(folder, new)
        except BaseException as error:
            done = inode(real) == made
            if not done:
                _put_back(folder, new)
            if not done or isinstance(error, KeyboardInterrupt):
                folder.has_committed = done
                raise
        if done:
            folder.has_committed = True
            with contextlib.suppress(OSError):
                sync_folder(real.parent)
                _remove_old(new, real, old, folder.folder_name)
        return done


def _exchange(folder: RunFolder, new: Path, out: Path, rejects: bool, summary: bytes) -> bool:
    if rejects:
        rename(folder.rejects, folder.data / RESULT_REJECTS)
    with atomic_write(folder.data / SUMMARY_NAME) as file:
        write_all(file, summary)
    take_mode_of(folder.data, out)
    try:
        rename(folder.data, new)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
        return False
    return exchange(new, out)


def _put_back(folder: RunFolder, new: Path) -> None:
    """Puts the new result where it was in the run's folder."""
    if is_folder(new) and not exists(folder.data):
        rename(new, folder.data)
    remove(folder.data / SUMMARY_NAME)
    if is_folder(folder.data / RESULT_REJECTS) and not exists(folder.rejects):
        rename(folder.data / RESULT_REJECTS, folder.rejects)


def _remove_old(before: Path, out: Path, old: Sequence[str], run_name: str) -> None:
    """Removes the old result from its folder, and that, in which what others put meanwhile goes into DIR; the run's
    folder last, by which a later read knows it.
    """
    for name in (*old, SUMMARY_NAME):
        remove(before / name)
    with contextlib.suppress(OSError):
        remove_empty(before / RESULT_REJECTS)
    for path in paths_in(before):
        if path.name != run_name and not has_name(out / path.name):
            rename(path, out / path.name)
    remove_run(before / run_name)
    remove_empty(before)


def mend(out: Path) -> None:
    """Finishes or undoes the replacements of reads that died. The caller holds DIR's lock, and DIR is there."""
    real = Path(real_path(out))
    ours = re.compile(re.escape(f".{real.name}.") + r"([0-9a-f]{12})\.new")
    for path in paths_in(real.parent):
        if (match := ours.fullmatch(path.name)) is None or is_link(path) or not is_folder(path):
            continue
        run = RunFolder.attach(out / f"{RUN_PREFIX}{match[1]}")
        with contextlib.suppress(OSError, DataError), locked(path, wait=False):
            if is_folder(run.path) and not exists(run.data):
                _put_back(run, path)
            elif has_name(path / run.folder_name) or not names_in(path):  # else nothing says that it is a read's
                old = load_as(_Summary, path / SUMMARY_NAME)["files"] if exists(path / SUMMARY_NAME) else ()
                _remove_old(path, real, old, run.folder_name)


def is_output(name: str) -> bool:
    """Whether it may be the name, in DIR, of an output or of a file of rejects: below DIR, and nothing of its own.

    >>> [is_output(name) for name in ("train-00000-of-00001.parquet", "index", "rejects/a.jsonl", "../a", "rejects")]
    [True, True, True, False, False]
    """
    last = name.removeprefix(f"{RESULT_REJECTS}/")
    return (
        last not in ("", ".", "..", RESULT_REJECTS, SUMMARY_NAME)
        and not set(last) & set("/\0")
        and not last.startswith((RUN_PREFIX, "."))
    )


_OutputName = Annotated[str, Check(is_output, "the name of what a read writes")]


_INTENT = "commit.json"  # in the run folder: the names in DIR that a commit adds, and those that it sets aside
_ASIDE = "replaced"


def begin_publication(out: str | os.PathLike[str], overwrite: bool) -> RunFolder:
    """A run folder in DIR, after what dead runs left was cleaned, except for reads that may go on.

    Raises:
        UsageError: DIR holds a data set, an earlier result (without overwrite), or anything else.
    """
    path = Path(local_path(out))
    if is_folder(path):
        if is_data_set(path):
            raise UsageError(f"{path} holds a data set of recordmill; name another folder for {option('out')}")
        with contextlib.suppress(PermissionError):
            _mend(path)
        if _published(path) is not None and not overwrite:
            raise UsageError(f"{path} already holds the result of a read; {option('overwrite', True)} replaces it")
    folder = RunFolder.create(path, keep=is_resumable, index=False)
    try:
        _check_empty(path)
    except BaseException:
        folder.close()
        raise
    return folder


def _mend(out: Path) -> None:
    """Undo, or finish, what the commits of reads that died had begun."""
    with locked(out):
        mend(out)
        with claimed(run for run in paths_in(out, f"{RUN_PREFIX}*") if is_file(run / _INTENT)) as dead:
            for run in dead:
                _undo(RunFolder.attach(run.path))


@dataclass(frozen=True)
class OnDisk(Publication):
    """The result of a read in the folder of its run on a disk."""

    folder: RunFolder
    overwrite: bool

    @property
    def is_complete(self) -> bool:
        return self.folder.has_committed

    def publish(
        self, summary: Mapping[str, Any], results: Sequence[OutputAccount]
    ) -> tuple[Path | str, tuple[Path | str, ...]]:
        names = _publish(self.folder, summary, self.overwrite)
        return self.folder.out, tuple(self.folder.out / name for name in names if name.startswith(f"{RESULT_REJECTS}/"))


def _publish(folder: RunFolder, summary: Mapping[str, Any], overwrite: bool) -> list[str]:
    """Publish everything in the run's data folder; gives the names, which the summary lists as `files`."""
    out = folder.out
    with locked(out):
        old = _published(out)
        if old is not None and not overwrite:
            raise RecordmillError(
                f"{out}: another read wrote its result there while this one ran; nothing of this one was kept"
            )
        names = names_in(folder.data)
        rejects = [name for name in names_in(folder.rejects) if not name.startswith(".")]
        names += [f"{RESULT_REJECTS}/{name}" for name in rejects]
        _sync(folder, names)
        text = json.dumps(
            {"format": "recordmill read", "version": 1, **summary, "files": names}, indent=1, ensure_ascii=False
        )
        data = (text + "\n").encode("utf-8", "backslashreplace")
        if old is None or not replace_result(folder, old, bool(rejects), data):
            try:
                _place(folder, names, old, data)
            except BaseException:
                _undo(folder)
                raise
        with contextlib.suppress(OSError):
            remove(folder.path / READ_NOTE_NAME)  # nothing is left to go on with
    return names


def _sync(folder: RunFolder, names: Sequence[str]) -> None:
    """Make files, then names durable: the summary that says they are there comes after them."""
    for name in names:
        home = _home(folder, name)
        if is_folder(home):
            sync_folder(home)
        elif name.startswith(f"{RESULT_REJECTS}/"):
            sync_file(home)
    sync_folder(folder.rejects)
    sync_folder(folder.data)


def _place(folder: RunFolder, names: Sequence[str], old: Sequence[str] | None, summary: bytes) -> None:
    """Set the old result aside, which removing the run folder removes, and rename the new outputs into DIR."""
    out, aside = folder.out, folder.path / _ASIDE
    make_folder(aside, exist_ok=True)
    with atomic_write(folder.path / _INTENT) as file:
        write_all(file, json.dumps({"names": names, "old": old or []}).encode())
    if old is not None:
        rename(out / SUMMARY_NAME, aside / SUMMARY_NAME)
    for number, name in enumerate(old or ()):
        with contextlib.suppress(FileNotFoundError):  # somebody has removed it already
            rename(out / name, aside / str(number))
    if any(name.startswith(f"{RESULT_REJECTS}/") for name in names):
        make_folder(out / RESULT_REJECTS, exist_ok=True)
    elif old:
        with contextlib.suppress(OSError):
            remove_empty(out / RESULT_REJECTS)
    for name in names:
        rename(_home(folder, name), out / name)
    if is_folder(out / RESULT_REJECTS):
        sync_folder(out / RESULT_REJECTS)
    sync_folder(out)
    if not folder.commit(SUMMARY_NAME, summary):
        raise RecordmillError(f"{out}: another read wrote its result there while this one ran")


def _undo(folder: RunFolder) -> None:
    """Put back what `_place` had done, unless it had come to its end; DIR's summary is the first thing that it takes
    away and the last that it puts there.
    """
    out, intent = folder.out, folder.path / _INTENT
    with contextlib.suppress(FileNotFoundError, DataError):
        known = load_as(_Intent, intent)
        names, old = known["names"], known["old"]
        aside = folder.path / _ASIDE
        if not exists(out / SUMMARY_NAME):
            for name in names:
                if not exists(_home(folder, name)) and exists(out / name):
                    rename(out / name, _home(folder, name))
            for number, name in enumerate(old):
                if has_name(aside / str(number)):
                    make_folder((out / name).parent, exist_ok=True)
                    rename(aside / str(number), out / name)
            if exists(aside / SUMMARY_NAME):
                rename(aside / SUMMARY_NAME, out / SUMMARY_NAME)
            else:
                with contextlib.suppress(OSError):
                    remove_empty(out / RESULT_REJECTS)
            remove(intent)


def _published(out: Path) -> list[str] | None:
    """The names that the result in DIR consists of; None if there is none."""
    try:
        return list(load_as(_Summary, out / SUMMARY_NAME)["files"])
    except FileNotFoundError:
        return None
    except DataError as error:
        raise UsageError(f"{error}: not what a read writes; remove it, or name another folder") from None


def _home(folder: RunFolder, name: str) -> Path:
    """Where an output or a file of rejects is before the commit."""
    if name.startswith(f"{RESULT_REJECTS}/"):
        return folder.rejects / name.removeprefix(f"{RESULT_REJECTS}/")
    return folder.data / name


def _check_empty(out: Path) -> None:
    if exists(out / SUMMARY_NAME):
        return
    strange = [
        name
        for name in names_in(out)
        if not name.startswith((RUN_PREFIX, ".")) and not (name == "rejects" and not names_in(out / name))
    ]
    if strange:
        raise UsageError(
            f"{out} is not empty ({', '.join(strange[:3])}{', ...' if len(strange) > 3 else ''}); name a new "
            f"or an empty folder for {option('out')}"
        )
