"""Publication of the result of a read in a folder on a disk.

DIR is the output folder of the read. The result is first completed in `DIR/_run-<id>/data` and made
durable. Its summary `_read.json` lists its files. Then it is moved to DIR: the old summary is set
aside, the old files are removed, and the new files are moved, the new summary last. So DIR has a
summary only while all files of a result are there. If the move is interrupted, the next read into
DIR finishes it.

DIR itself is never renamed, because it may be a mount point or contain files of other programs.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from recordmill.base.documents import Check
from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.base.option_names import option
from recordmill.base.threads import delay_signals
from recordmill.exporting.plan import REJECTS_FOLDER
from recordmill.exporting.resume import is_resumable
from recordmill.exporting.task import OutputCounts, Publication, format_summary
from recordmill.shards.dead_runs import (
    claim_dead_runs,
    is_awaiting_publication,
    remove_dead_runs,
    remove_run_folder,
)
from recordmill.shards.manifest import is_data_set
from recordmill.shards.run import RunFolder
from recordmill.storage.files import parse_local_path, put_bytes, sync_file, sync_folder
from recordmill.storage.folders import (
    is_folder,
    list_names,
    list_paths,
    make_folder,
    name_exists,
    remove,
    remove_empty_folder,
    rename,
)
from recordmill.storage.json_fields import load_json
from recordmill.storage.locks import lock_folder
from recordmill.storage.walk import (
    IGNORED_SYSTEM,
    READ_SUMMARY_NAME,
    RUN_PREFIX,
    ignore_reason,
)

# File in the run folder: the summary of the old result while its files are being removed.
_REPLACED_SUMMARY_NAME = "replaced.json"


class _Summary(TypedDict):
    files: Sequence[_OutputName]


def is_output_name(name: str) -> bool:
    """Returns whether a summary may list this name as a file of a result.

    Names are relative to the output folder. The names are checked before files of an old result are
    removed.

    >>> names = ("train-00000-of-00001.parquet", "index", "rejects/a.jsonl", "../a", "rejects")
    >>> [is_output_name(name) for name in names]
    [True, True, True, False, False]
    """
    last = name.removeprefix(f"{REJECTS_FOLDER}/")
    return (
        last not in ("", ".", "..", REJECTS_FOLDER, READ_SUMMARY_NAME)
        and not set(last) & set("/\0")
        and not (last.startswith(".") or (last.startswith(RUN_PREFIX) and "." not in last))
    )


_OutputName = Annotated[str, Check(is_output_name, "the name of what a read writes")]


def begin_publication(
    out: str | os.PathLike[str], overwrite: bool, uses_engine: bool = False
) -> RunFolder:
    """Checks the output folder of a read, and creates the run folder in it.

    Before that, interrupted publications of earlier reads are finished. Run folders of dead reads
    are removed, unless the reads can be resumed.

    Args:
        out: Path of the output folder, which may not exist yet.
        overwrite: True if the folder may contain an earlier result, which `publish` replaces.
        uses_engine: True if an engine runs the read. Passed to `RunFolder.create`.

    Raises:
        UsageError: The folder contains a data set, other files, or a result although `overwrite` is
            false.
    """
    path = Path(parse_local_path(out))
    if is_folder(path):
        if is_data_set(path):
            raise UsageError(
                "{path} holds a data set of recordmill; name another folder for {out}",
                path=path,
                out=option("out"),
            )
        # A folder without write permission is reported by `RunFolder.create` below.
        with contextlib.suppress(PermissionError):
            with lock_folder(path):
                _finish_dead_reads(path)
            remove_dead_runs(path, is_resumable)
        if _read_file_names(path / READ_SUMMARY_NAME) is None:
            _check_empty(path)
        elif not overwrite:
            raise UsageError(
                "{path} already holds the result of a read; {overwrite} replaces it",
                path=path,
                overwrite=option("overwrite", True),
            )
    return RunFolder.create(path, keep=is_resumable, index=False, uses_engine=uses_engine)


@dataclass(frozen=True)
class DiskPublication(Publication):
    """Publication of a result in a folder on a disk.

    Attributes:
        folder: Run folder of the read.
        overwrite: True if an earlier result may be replaced.
    """

    folder: RunFolder
    overwrite: bool

    @property
    def is_complete(self) -> bool:
        return self.folder.has_committed

    def publish(
        self, summary: Mapping[str, Any], results: Sequence[OutputCounts]
    ) -> tuple[Path | str, tuple[Path | str, ...]]:
        folder, out = self.folder, self.folder.out
        # Signals are delivered after this block, so that Ctrl-C does not stop it halfway.
        with lock_folder(out), delay_signals():
            _finish_dead_reads(out)
            old_names = _read_file_names(out / READ_SUMMARY_NAME)
            if old_names is not None and not self.overwrite:
                raise RecordmillError(
                    f"{out}: another read wrote its result there while this one ran; "
                    "the result of this one was discarded"
                )
            names = _prepare_result(folder, summary)
            try:
                _move_result(folder)
            except BaseException:
                if is_awaiting_publication(folder.path):
                    # The run folder stays, and the next read finishes the publication.
                    folder.release()
                raise
            folder.has_committed = True
        return out, tuple(out / name for name in names if name.startswith(f"{REJECTS_FOLDER}/"))


def _prepare_result(folder: RunFolder, summary: Mapping[str, Any]) -> list[str]:
    """Completes the result in the data folder of the run, and makes it durable.

    Moves the reject files there and writes the summary.

    Returns:
        The names of the files of the result.
    """
    data, names = folder.data, list_names(folder.data)
    for name in names:
        if is_folder(data / name):
            sync_folder(data / name)
    if rejects := [name for name in list_names(folder.rejects) if not name.startswith(".")]:
        for name in rejects:
            sync_file(folder.rejects / name)
        sync_folder(folder.rejects)
        rename(folder.rejects, data / REJECTS_FOLDER)
        names += [f"{REJECTS_FOLDER}/{name}" for name in rejects]
    # The summary is written last. So a data folder with a summary is a complete result.
    put_bytes(str(data / READ_SUMMARY_NAME), format_summary({**summary, "files": names}))
    return names


def _remove_result(folder: Path, summary: Path) -> None:
    """Removes the files that a summary lists, and then the summary."""
    for name in _read_file_names(summary) or ():
        remove(folder / name)
    with contextlib.suppress(OSError):
        remove_empty_folder(folder / REJECTS_FOLDER)
    remove(summary)


def _move_result(folder: RunFolder) -> None:
    """Moves the result to the output folder, and removes the old result.

    The files are moved one by one, and the summary is moved last. If an earlier call was
    interrupted, this one continues.

    Raises:
        OSError: The result can't be moved, and nothing has changed.
        RecordmillError: The move was interrupted. The output folder has no result until the next
            read finishes the move. Or only the last sync failed, and the result is in its place.
    """
    out, data, old_summary = folder.out, folder.data, folder.path / _REPLACED_SUMMARY_NAME
    names = [
        name
        for name in _read_file_names(data / READ_SUMMARY_NAME) or ()
        if name_exists(data / name)
    ]
    old_names = _read_file_names(out / READ_SUMMARY_NAME) or _read_file_names(old_summary) or ()
    for name in names:
        # A file that is not from the old result is never replaced.
        if name_exists(path := out / name) and name not in old_names:
            raise FileExistsError(
                errno.EEXIST,
                "is in the way, and does not belong to the old result; move it",
                str(path),
            )
    with contextlib.suppress(FileNotFoundError):
        rename(out / READ_SUMMARY_NAME, old_summary)
    try:
        sync_folder(out)
        # New files may have the names of old ones. The old summary is removed before new files are
        # moved, so a repeated call never takes a new file for an old one.
        _remove_result(out, old_summary)
        sync_folder(folder.path)
        for name in names:
            make_folder((out / name).parent, exist_ok=True)
            rename(data / name, out / name)
        if is_folder(out / REJECTS_FOLDER):
            sync_folder(out / REJECTS_FOLDER)
        sync_folder(out)
        rename(data / READ_SUMMARY_NAME, out / READ_SUMMARY_NAME)
        sync_folder(out)
    except OSError as error:
        path = error.filename or out
        if name_exists(out / READ_SUMMARY_NAME):
            raise RecordmillError(
                f"{path}: {error.strerror}; the result is complete and in its place, but a power failure may undo that"
            ) from error
        raise RecordmillError(
            "{path}: {strerror}; the result is complete, but not yet moved to its "
            "folder: the next read with {out} moves it",
            path=path,
            strerror=error.strerror,
            out=option("out", out),
        ) from error


def _finish_dead_reads(out: Path) -> None:
    """Finishes the publications of reads that were killed.

    The caller must hold the lock of `out`.
    """
    with claim_dead_runs(
        run for run in list_paths(out, f"{RUN_PREFIX}*") if is_awaiting_publication(run)
    ) as dead_runs:
        for run in dead_runs:
            _move_result(RunFolder.attach(run))
            remove_run_folder(run)


def _read_file_names(summary_path: Path) -> list[str] | None:
    """Returns the names that a summary lists, or None if there is no summary.

    Raises:
        UsageError: The summary is invalid.
    """
    try:
        return list(load_json(_Summary, summary_path)["files"])
    except FileNotFoundError:
        return None
    except DataError as error:
        raise UsageError(
            "{error}: it was not written by a read; remove it, or name another folder", error=error
        ) from None


def _check_empty(out: Path) -> None:
    """Raises UsageError if the output folder contains anything but run folders and hidden files.

    An empty reject folder is ignored, and so are folders of the system. A mount point contains
    `lost+found`.
    """
    other_names = [
        name
        for name in list_names(out)
        if not name.startswith((RUN_PREFIX, "."))
        and ignore_reason(name) != IGNORED_SYSTEM
        and not (name == REJECTS_FOLDER and is_folder(out / name) and not list_names(out / name))
    ]
    if other_names:
        raise UsageError(
            "{out} is not empty ({other_names}{ellipsis}); name a new or an empty folder for {out_option}",
            out=out,
            other_names=", ".join(other_names[:3]),
            ellipsis=", ..." if len(other_names) > 3 else "",
            out_option=option("out"),
        )
