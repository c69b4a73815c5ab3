"""Whole new files of a disk: those that appear at once, those that are written to, names that nobody else got, and
what makes all of it durable.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError
from recordmill.storage.direct_io import DirectFile
from recordmill.storage.stores.local import open_regular

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room for more
FILE_CREATED, NAME_TAKEN, NAME_UNFIT = "created", "taken", "unfit"

_UNFIT_ERRNOS = (
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.EILSEQ,
    errno.ENOTDIR,
    errno.ELOOP,
)  # how file systems refuse a name
_ABANDONED_SEC = 3600.0
_WRITE_BYTES = 1 << 30  # Linux moves at most 2 GiB - 4 KiB a call
# how file systems without hard links refuse one
_NO_LINK_ERRNOS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@contextlib.contextmanager
def atomic_write(path: str | Path, temporary_folder: Path | None = None) -> Iterator[BinaryIO]:
    """A file that appears under its name whole and on disk (fsync, rename), or not at all. temporary_in: the folder in
    which it has another name until then, and where a kill leaves it; None: its own.
    """
    path = Path(path)
    temporary = (temporary_folder or path.parent) / f".{path.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        with create_file(temporary) as file:
            yield file
            _fsync(file.fileno(), path)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if (
            isinstance(error, OSError)
            and error.filename is None
            and error.errno in DISK_FULL_ERRNOS
        ):
            error.filename = str(path)
        raise
    sync_folder(path.parent)


def remove_abandoned_files(path: str | Path) -> None:
    """Removes what writers of this file that were killed over an hour ago left beside it."""
    path = Path(path)
    temporary = re.compile(
        rf"\.{re.escape(path.name)}\.([a-z0-9_]{{8}}|[0-9a-f]{{32}})\.tmp"
    )  # mkstemp's and uuid4's
    with contextlib.suppress(OSError):  # nothing fails because of it
        for entry in os.scandir(path.parent):
            if (
                temporary.fullmatch(entry.name)
                and time.time() - entry.stat().st_mtime > _ABANDONED_SEC
            ):
                os.unlink(entry)


def create_file(path: str | Path) -> BinaryIO:
    """Opens a new file to write, unbuffered; FileExistsError if it is there. Sync it before it is renamed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    return os.fdopen(descriptor, "w+b", buffering=0)


def replace_file(path: str | Path) -> BinaryIO:
    """A file to write to, unbuffered, whether it is there or not; what it held is gone."""
    return os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666),
        "wb",
        buffering=0,
    )


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file to read from its start."""
    return os.fdopen(open_regular(path), "rb")


def reopen_file(path: str | Path, size_bytes: int) -> BinaryIO:
    """A file that is there, cut to size_bytes, to write to behind them, unbuffered; DataError if it is shorter."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "r+b", buffering=0)
    try:
        if os.fstat(file.fileno()).st_size < size_bytes:
            raise DataError(f"ends before byte {size_bytes}", source=str(path))
        file.truncate(size_bytes)
        file.seek(size_bytes)
    except BaseException:
        file.close()
        raise
    return file


def write_all(file: BinaryIO | DirectFile, data: bytes | memoryview | npt.NDArray[np.uint8]) -> int:
    """Write every byte, also where the operating system takes fewer at once; gives the number written."""
    view = memoryview(data).cast("B")
    num_written = 0
    while num_written < len(view):
        num_written += file.write(view[num_written : num_written + _WRITE_BYTES])
    return num_written


class NewFiles:
    """Many small new files below `path`, a folder that this makes, whose names come from data: relative, with `/`, and
    neither absolute nor with `..` (a ValueError). Each is made nowhere else, and never twice.

    The file system alone is asked whether a name is free, by exclusive creation, so memory does not grow with the
    files. Nothing is synced file by file, which would cost milliseconds for each: `sync` makes all of them durable.
    """

    def __init__(self, path: str | Path) -> None:
        os.mkdir(path)
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def create(self, name: str, data: bytes | memoryview | npt.NDArray[np.uint8]) -> str:
        """Write a new file; `taken` if the name has one or is a folder, `unfit` if the file system can't have it, say
        since `a` of `a/b` is a file.

        Raises:
            OSError: anything else, such as no space.
        """
        parts = name.split("/")
        if not all(parts) or ".." in parts or "\0" in name:
            raise ValueError(f"{name!r} is no name of a file below a folder")
        try:
            descriptor = self._open(name, parts)
        except FileExistsError:
            return NAME_TAKEN
        except OSError as error:
            if error.errno in _UNFIT_ERRNOS:
                return NAME_UNFIT
            raise
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            write_all(file, data)
        return FILE_CREATED

    def sync(self) -> None:
        """Make all files and their names durable."""
        _sync_file_system(self._folder)

    def close(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _open(self, name: str, parts: Sequence[str]) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(name, flags, 0o666, dir_fd=self._folder)
        except FileNotFoundError:  # a folder is not there yet
            for end in range(1, len(parts)):
                with contextlib.suppress(FileExistsError):
                    os.mkdir("/".join(parts[:end]), dir_fd=self._folder)
            return os.open(name, flags, 0o666, dir_fd=self._folder)


def _sync_file_system(descriptor: int) -> None:
    """Write what the descriptor's file system holds back in memory: syncfs(2) on Linux, which is one journal commit;
    all file systems elsewhere.
    """
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
    elif syncfs(descriptor):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def create_if_absent(path: Path, data: bytes, temporary_folder: Path | None = None) -> bool:
    """Create the file with this content, whole and on disk, unless it is there; says whether this call created it.
    temporary_in: as for `atomic_write`.

    `link` is atomic and exclusive on every POSIX file system, also over NFS, where O_EXCL is not always. File systems
    without hard links (FAT, some network and FUSE mounts) get a rename under a lock, which excludes the processes of
    one host.
    """
    temporary = (temporary_folder or path.parent) / f".{path.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        with create_file(temporary) as file:
            write_all(file, data)
            _fsync(file.fileno(), path)
        if not _link_if_absent(str(temporary), path):
            return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    sync_folder(path.parent)
    return True


def _link_if_absent(temporary: str, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        # NFS may repeat a request whose answer was lost: the link is there, and it is ours
        return os.stat(temporary).st_nlink > 1
    except OSError as error:
        if error.errno not in _NO_LINK_ERRNOS:
            raise
        return _rename_if_absent(temporary, path)
    return True


def _rename_if_absent(temporary: str, path: Path) -> bool:
    lock = path.parent / f".{path.name}.lock"
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        is_absent = not path.exists()
        if is_absent:
            os.rename(temporary, path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(lock)  # whoever waits for it, or makes a new one, finds the file there
        return is_absent
    finally:
        os.close(descriptor)


def move_file(source: str, target: str) -> None:
    """Give a file of a disk the name, in place of what has it; nothing where that was done before: the source is gone,
    and the name taken.
    """
    try:
        os.replace(source, target)
    except FileNotFoundError:
        os.stat(target)


def sync_file(path: str | Path) -> None:
    """Make what was written to the file durable."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: str | Path) -> None:
    """Make the names in the folder durable."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: str | Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        _fsync(descriptor, path)
    finally:
        os.close(descriptor)


def _fsync(descriptor: int, path: str | Path) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:  # which does not say of what
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
