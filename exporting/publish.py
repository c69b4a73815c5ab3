"""The commit of a read: finished outputs in `DIR/_run-<id>/data` become DIR's, with `_read.json` as the last of them.

A folder of plain files has no manifest that readers ask first, so the outputs are renamed one after the other, which
takes milliseconds, and `_read.json` says that all are there. A crash in between is undone by the next read: what a read
that can go on (`read_resume`) had placed goes back into its run folder, what any other had placed is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.exporting.plan import OWN_NAMES, SUMMARY_NAME
from recordmill.exporting.resume import is_resumable
from recordmill.shards.dead_runs import ABOUT_NAME, claimed
from recordmill.shards.manifest import RUN_PREFIX, is_data_set
from recordmill.shards.run_folder import RunFolder
from recordmill.storage.files import atomic_write, local_path, put_if_absent, sync_folder, write_all
from recordmill.storage.removal import remove_below
from recordmill.storage.strict_json import load_fields

_INTENT = "commit.json"  # in the run folder: the names in DIR that a commit adds or removes


def begin(out: str | os.PathLike[str], overwrite: bool) -> RunFolder:
    """A run folder in DIR, after what dead runs left was cleaned, except for reads that may go on.

    Raises:
        UsageError: DIR holds a data set, an earlier result (without overwrite), or anything else.
    """
    path = Path(local_path(out))
    if path.is_dir():
        if is_data_set(path):
            raise UsageError(f"{path} holds a data set of recordmill; name another folder for --out")
        if (path / SUMMARY_NAME).exists() and not overwrite:
            raise UsageError(f"{path} already holds the result of a read; --overwrite replaces it")
    intents = {folder: _intent(folder) for folder in path.glob(f"{RUN_PREFIX}*")} if path.is_dir() else {}
    folder = RunFolder.create(path, keep=is_resumable, index=False)
    try:
        _put_back(path)
        _undo(path, [names for dead, names in intents.items() if not dead.exists()])
        _check_empty(path)
    except BaseException:
        folder.close()
        raise
    return folder


def publish(folder: RunFolder, summary: Mapping[str, Any], overwrite: bool) -> list[str]:
    """Publish everything in the run's data folder; gives the names, which the summary lists as `files`.

    Raises:
        RecordmillError: another read was first.
    """
    out = folder.out
    with _locked(out):
        old = _published(out)
        if old is not None and not overwrite:
            raise RecordmillError(
                f"{out}: another read wrote its result there while this one ran; nothing of this one was kept"
            )
        names = sorted(path.name for path in folder.data.iterdir())
        rejects = sorted(path.name for path in folder.rejects.iterdir() if not path.name.startswith("."))
        names += [f"rejects/{name}" for name in rejects]
        with atomic_write(folder.path / _INTENT) as file:
            write_all(file, json.dumps({"names": [*(old or ()), *names]}).encode())
        (out / SUMMARY_NAME).unlink(missing_ok=True)
        _set_aside(folder, old or ())
        if rejects:
            (out / "rejects").mkdir(exist_ok=True)
        for name in names:
            os.rename(_home(folder, name), out / name)
        sync_folder(out)
        text = json.dumps(
            {"format": "recordmill read", "version": 1, **summary, "files": names}, indent=1, ensure_ascii=False
        )
        if not put_if_absent(out / SUMMARY_NAME, (text + "\n").encode()):
            raise RecordmillError(f"{out}: another read wrote its result there while this one ran")
        (folder.path / ABOUT_NAME).unlink(missing_ok=True)  # nothing is left to go on with
    return names


def _set_aside(folder: RunFolder, old: Sequence[str]) -> None:
    """Move what is replaced into the run folder, which goes at the end:
    removing it takes minutes where it is a million files.
    """
    aside = folder.path / f"replaced-{uuid.uuid4().hex}"
    aside.mkdir()
    for number, name in enumerate(old):
        with contextlib.suppress(FileNotFoundError):  # somebody has removed it already
            os.rename(folder.out / name, aside / str(number))


def _published(out: Path) -> list[str] | None:
    """The names that the result in DIR consists of; None if there is none."""
    try:
        return load_fields(out / SUMMARY_NAME).texts("files", is_output, "the name of what a read writes")
    except FileNotFoundError:
        return None
    except DataError as error:
        raise UsageError(f"{error}: not what a read writes; remove it, or name another folder") from None


def is_output(name: str) -> bool:
    """Whether it may be the name, in DIR, of an output or of a file of rejects: below DIR, and nothing of its own.

    >>> [is_output(name) for name in ("train-00000-of-00001.parquet", "index", "rejects/a.jsonl", "../a", "rejects")]
    [True, True, True, False, False]
    """
    last = name.removeprefix("rejects/")
    return (
        last not in ("", ".", "..", *OWN_NAMES)
        and not set(last) & set("/\0")
        and not last.startswith((RUN_PREFIX, "."))
    )


def _intent(folder: Path) -> list[str]:
    with contextlib.suppress(OSError, DataError):
        return load_fields(folder / _INTENT).texts("names", is_output, "the name of what a read writes")
    return []


def _put_back(out: Path) -> None:
    """Undo what commits of reads that may go on had done when they died."""
    with _locked(out), claimed(run for run in sorted(out.glob(f"{RUN_PREFIX}*")) if is_resumable(run)) as dead:
        published = set(_published(out) or ())
        for run in dead:
            for name in set(_intent(out / run.name)) - published:
                home = _home(RunFolder.attach(out / run.name), name)
                # it was not placed yet: what has its name is an old result, half removed
                if home.exists() or not (out / name).exists():
                    _remove(out / name)
                else:
                    os.rename(out / name, home)
            (out / run.name / _INTENT).unlink(missing_ok=True)


def _home(folder: RunFolder, name: str) -> Path:
    """Where an output or a file of rejects is before the commit."""
    return folder.rejects / name.removeprefix("rejects/") if name.startswith("rejects/") else folder.data / name


def _undo(out: Path, intents: Sequence[Sequence[str]]) -> None:
    """Remove what commits that died in between had placed, or were about to remove."""
    published = set(_published(out) or ())
    for name in {name for names in intents for name in names} - published:
        _remove(out / name)


def _check_empty(out: Path) -> None:
    if (out / SUMMARY_NAME).exists():
        return
    strange = sorted(
        name
        for name in os.listdir(out)
        if not name.startswith((RUN_PREFIX, ".")) and not (name == "rejects" and not os.listdir(out / name))
    )
    if strange:
        raise UsageError(
            f"{out} is not empty ({', '.join(strange[:3])}{', ...' if len(strange) > 3 else ''}); name a new "
            "or an empty folder for --out"
        )


def _remove(path: Path) -> None:
    if not path.parent.is_symlink() or path.parent.name != "rejects":
        remove_below(path.parent, path.name)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
