"""Creation of files on a disk: atomic writes, exclusive names and durability."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError
from recordmill.storage.direct_io import DISK_FULL_ERRNOS, DirectFile, add_path

FILE_CREATED, NAME_TAKEN, NAME_UNFIT = "created", "taken", "unfit"

# Errors of file systems that refuse a name.
_UNFIT_ERRNOS = (
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.EILSEQ,
    errno.ENOTDIR,
    errno.ELOOP,
)
_ABANDONED_SEC = 3600.0
_WRITE_BYTES = 1 << 30  # Linux writes at most 2 GiB - 4 KiB per call
# Errors of file systems without hard links.
_NO_LINK_ERRNOS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@contextlib.contextmanager
def atomic_write(path: str | Path, temporary_folder: Path | None = None) -> Iterator[BinaryIO]:
    """Opens a file that replaces `path` at the end of the `with` block.

    Until then, readers see the old file or none. At the end the new file is complete and durable.
    If the block raises an error, nothing changes.

    Args:
        path: The final path.
        temporary_folder: Folder of the file until the rename, on the same file system. A killed
            process leaves the file there. None means the folder of `path`.
    """
    path = Path(path)
    temporary = (temporary_folder or path.parent) / f".{path.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        with create_file(temporary) as file:
            yield file
            _fsync(file.fileno(), path)
        os.replace(temporary, path)  # atomic, and only after the content is on the disk
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and (
            error.filename == str(temporary)
            or (error.filename is None and error.errno in DISK_FULL_ERRNOS)
        ):
            error.filename = str(path)  # users do not know the temporary name
        raise
    sync_folder(path.parent)


def remove_abandoned_files(path: str | Path) -> None:
    """Removes the temporary files that killed writers of `path` left over an hour ago.

    Errors are ignored.
    """
    path = Path(path)
    # The random part is from `mkstemp` or `uuid4`.
    temporary = re.compile(rf"\.{re.escape(path.name)}\.([a-z0-9_]{{8}}|[0-9a-f]{{32}})\.tmp")
    with contextlib.suppress(OSError):  # the removal is optional
        for entry in os.scandir(path.parent):
            if (
                temporary.fullmatch(entry.name)
                and time.time() - entry.stat().st_mtime > _ABANDONED_SEC
            ):
                os.unlink(entry)


def create_file(path: str | Path) -> BinaryIO:
    """Creates a new file for unbuffered reading and writing.

    The caller must sync the file before it renames it.

    Raises:
        FileExistsError: The path exists.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    return os.fdopen(descriptor, "w+b", buffering=0)


def replace_file(path: str | Path) -> BinaryIO:
    """Opens a file for unbuffered writing. Empties it if it exists."""
    return os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666),
        "wb",
        buffering=0,
    )


def reopen_file(path: str | Path, size_bytes: int) -> BinaryIO:
    """Opens an existing file to append after its first `size_bytes` bytes.

    The rest of the file is cut off. Writes are unbuffered.

    Raises:
        DataError: The file is shorter than `size_bytes`.
    """
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
    """Writes all bytes and returns their number.

    Repeats the call of the operating system if it takes fewer bytes.

    Raises:
        OSError: The file can't be written. The error names it.
    """
    view = memoryview(data).cast("B")
    num_written = 0
    try:
        while num_written < len(view):
            num_written += file.write(view[num_written : num_written + _WRITE_BYTES])
    except OSError as error:
        # a direct file names itself
        if error.filename is not None or isinstance(file, DirectFile):
            raise
        raise add_path(error, file.fileno()) from None
    return num_written


class NewFiles:
    """Creates many small files in a new folder.

    The names may come from untrusted data. So each name is checked, and no file is ever replaced. A
    name may contain `/`, but must not be absolute or contain `..`. Only the file system knows which
    names exist, so the memory does not grow with the number of files.

    Files are not synced one by one, which would cost milliseconds each. `sync` makes all of them
    durable.

    Args:
        path: The folder. It must not exist.
    """

    def __init__(self, path: str | Path) -> None:
        os.mkdir(path)
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def create(self, name: str, data: bytes | memoryview | npt.NDArray[np.uint8]) -> str:
        """Writes a new file.

        Returns:
            FILE_CREATED, NAME_TAKEN if a file or folder has this name, or NAME_UNFIT if the file
            system refuses the name. For example, `a/b` is refused if `a` is a file.

        Raises:
            ValueError: The name is absolute, or has an empty part, `..` or a NUL.
            OSError: Another error, such as a full disk.
        """
        parts = name.split("/")
        if not all(parts) or ".." in parts or "\0" in name:
            raise ValueError(f"{name!r} is not a safe file name")
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
        """Makes all files and their names durable."""
        _sync_file_system(self._folder)

    def close(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _open(self, name: str, parts: Sequence[str]) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(name, flags, 0o666, dir_fd=self._folder)
        except FileNotFoundError:  # a folder does not exist yet
            for end in range(1, len(parts)):
                with contextlib.suppress(FileExistsError):
                    os.mkdir("/".join(parts[:end]), dir_fd=self._folder)
            return os.open(name, flags, 0o666, dir_fd=self._folder)


def _sync_file_system(descriptor: int) -> None:
    """Writes all cached data of a file system to its disk.

    Uses syncfs(2) of Linux, which needs one journal commit. Other systems sync all file systems.
    """
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
    elif syncfs(descriptor):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def create_if_absent(path: Path, data: bytes, temporary_folder: Path | None = None) -> bool:
    """Creates a complete and durable file, unless the name exists.

    Of several concurrent calls, exactly one creates the file. `link` guarantees this on every POSIX
    file system, even on NFS, where O_EXCL is unreliable. File systems without hard links (FAT, some
    network and FUSE mounts) get a rename under a lock, which excludes only the processes of one
    host.

    Args:
        path: The path of the file.
        data: The content.
        temporary_folder: See `atomic_write`.

    Returns:
        Whether this call created the file.
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
        # NFS may repeat a request if its answer was lost. Then the existing link is our own.
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
            # Removing the lock file is safe, because every later owner of this or a new lock file
            # finds that `path` exists.
            os.unlink(lock)
        return is_absent
    finally:
        os.close(descriptor)


def link_or_copy(source: str, target: str) -> None:
    """Creates a hard link to a file, or a copy if the file system has no links.

    Nothing may exist at `target`.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK_ERRNOS:
            raise
        shutil.copyfile(source, target)


def move_file(source: str, target: str) -> None:
    """Renames a file on a disk. An existing target is replaced.

    The call may be repeated. If the source is missing and the target exists, nothing is done.

    Raises:
        FileNotFoundError: Neither of them exists.
    """
    try:
        os.replace(source, target)
    except FileNotFoundError:
        os.stat(target)  # fails unless an earlier call has moved the file


def sync_file(path: str | Path) -> None:
    """Makes the content of a file durable."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: str | Path) -> None:
    """Makes the names in a folder durable."""
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
    except OSError as error:  # it does not name the file
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
