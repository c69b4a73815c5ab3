"""Names and folders: lists, tests, creation, renaming, removal and copies.

See `files` for the contents of files. Functions that read names work on disks and in stores.
Functions that change something work on disks only, unless their docstring mentions stores. All
raise OSError if the system call fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.storage.disk_files import remove_abandoned_files
from recordmill.storage.files import (
    create_file,
    find_storage,
    is_remote,
    iter_object_stats,
    parse_output_path,
    read_blocks,
    sync_file,
    sync_folder,
    write_all,
)

Pathlike = str | os.PathLike[str]
_COPY_BLOCK_BYTES = 8 << 20  # 8 MiB: the part of a copied file in memory


def join(folder: Pathlike, *names: str) -> str:
    """Returns the path or URI of a name below a folder."""
    text = os.fspath(folder)
    return "/".join((text.rstrip("/"), *names)) if is_remote(text) else str(Path(text, *names))


def absolute_path(path: str) -> str:
    """Returns a local path as an absolute path. A URI is returned unchanged."""
    return path if is_remote(path) else os.path.abspath(path)


def exists(path: Pathlike) -> bool:
    """Returns whether a file or folder exists. A link exists if its target does."""
    return find_storage(os.fspath(path)).exists(os.fspath(path))


def check_output_file(path: Pathlike, overwrite: bool) -> str:
    """Checks that a file can be written at `path`, and returns its real path.

    In a store, only `overwrite` is checked. On a disk, this also removes temporary files that
    killed writers left next to the file.

    Raises:
        UsageError: The file exists and `overwrite` is false, its folder is missing, or the path
            names a folder, a pipe or a device.
    """
    target = parse_output_path(path)
    if not is_remote(target) and is_folder(target):
        raise UsageError("{out} is a folder: name a file", out=option("out", target))
    if not is_remote(target) and exists(target) and not is_file(target):
        raise UsageError(
            "{out} is a pipe or a device, which can't be replaced: name a file",
            out=option("out", target),
        )
    if not overwrite and exists(target):
        raise UsageError(
            "{out} already exists; {overwrite} replaces it",
            out=option("out", target),
            overwrite=option("overwrite", True),
        )
    if not is_remote(target) and not is_folder(folder := os.path.dirname(target) or "."):
        raise UsageError(
            "{out}: there is no folder {folder}", out=option("out", target), folder=folder
        )
    real_target = real_path(target) if is_link(target) else target
    if not is_remote(real_target):
        remove_abandoned_files(real_target)
    return real_target


def name_exists(path: Pathlike) -> bool:
    """Returns whether a name is in use, even by a broken link."""
    return os.path.lexists(path) or (is_remote(os.fspath(path)) and exists(path))


def is_file(path: Pathlike) -> bool:
    """Returns whether a path is a regular file or a link to one."""
    return find_storage(os.fspath(path)).is_file(os.fspath(path))


def no_file_message(path: Pathlike) -> str:
    """Returns the error message for a path that is not a regular file."""
    return (
        "is not a regular file (a folder, a pipe or a device)" if exists(path) else "no such file"
    )


def is_folder(path: Pathlike) -> bool:
    """Returns whether a path is a folder or a link to one."""
    return find_storage(os.fspath(path)).is_folder(os.fspath(path))


def is_link(path: Pathlike) -> bool:
    """Returns whether a path is a link."""
    return os.path.islink(path)


def real_path(path: Pathlike) -> str:
    """Returns the absolute path without links. A URI is returned unchanged."""
    return os.fspath(path) if is_remote(os.fspath(path)) else os.path.realpath(path)


def inode_number(path: Pathlike) -> int:
    """Returns the number that identifies a file within its file system."""
    return os.stat(path).st_ino


def list_names(folder: Pathlike) -> list[str]:
    """Returns the sorted names in a folder."""
    return find_storage(os.fspath(folder)).list_names(os.fspath(folder))


def list_names_if_present(folder: Pathlike) -> list[str]:
    """Returns the sorted names in a folder. A missing folder has none.

    In a store this takes no extra request for the folder.
    """
    if not is_remote(os.fspath(folder)) and not is_folder(folder):
        return []
    with contextlib.suppress(FileNotFoundError):
        return list_names(folder)
    return []


def list_paths(folder: Path, pattern: str = "") -> list[Path]:
    """Returns the sorted paths in a folder.

    Args:
        folder: A folder on a disk.
        pattern: A glob for the names, or "" for all. With a glob, a missing folder has no paths.
            `**/*` are the paths of everything below the folder, without following links.
    """
    return sorted(folder.glob(pattern) if pattern else folder.iterdir())


def find_files(folder: Pathlike) -> dict[str, str]:
    """Returns the paths of all files below a folder, by relative name.

    Relative names have `/` on all systems. The folder may be in a store.
    """
    if is_remote(os.fspath(folder)):
        return {name: join(folder, name) for name, _ in iter_object_stats(os.fspath(folder))}
    paths = (path for path in list_paths(Path(folder), "**/*") if path.is_file())
    return {path.relative_to(folder).as_posix(): str(path) for path in paths}


def copy_tree(source: Pathlike, target: Pathlike, *, ignored_names: Collection[str] = ()) -> None:
    """Copies all files below a folder to a local folder, and creates that folder.

    Links are not copied. The source may be in a store.

    Args:
        source: The folder to copy.
        target: The folder of the copies.
        ignored_names: Names of files and folders that are not copied.

    Raises:
        DataError: The name of a file leads out of the folder.
    """
    make_folder(target, exist_ok=True, parents=True)
    for name, path in find_files(source).items():
        parts = name.split("/")
        # Keys of objects are arbitrary strings, so they may lead out of the target folder.
        if {"", ".", ".."} & {*parts}:
            raise DataError(f"{name!r} is not a file name", source=os.fspath(source))
        if is_link(path) or not {*parts}.isdisjoint(ignored_names):
            continue
        copy = Path(target, *parts)
        make_folder(copy.parent, exist_ok=True, parents=True)
        fetch_file(path, copy)


def sync_tree(folder: Pathlike) -> None:
    """Makes all files and folders below a local folder durable on the disk."""
    root = Path(folder)
    for path in (*list_paths(root, "**/*"), root):
        (sync_folder if is_folder(path) else sync_file)(path)


def fetch_file(source: str, target: Pathlike) -> None:
    """Copies a file to a new local file, in blocks. The source may be in a store."""
    with create_file(os.fspath(target)) as file:
        for block in read_blocks(source, _COPY_BLOCK_BYTES):
            write_all(file, block)


def make_folder(path: Pathlike, *, exist_ok: bool = False, parents: bool = False) -> None:
    """Creates a folder.

    Args:
        path: The folder.
        exist_ok: Whether the folder may exist.
        parents: Whether missing parent folders are created, too.
    """
    Path(path).mkdir(exist_ok=exist_ok, parents=parents)


@contextlib.contextmanager
def scratch_folder(prefix: str, folder: str | None = None) -> Iterator[str]:
    """Provides a new folder for the `with` block, and removes it afterwards.

    For the arguments see `make_scratch_folder`.

    Yields:
        The path of the folder.
    """
    path = make_scratch_folder(prefix, folder)
    try:
        yield path
    finally:
        remove(path, ignore_errors=True)


def make_scratch_folder(prefix: str, folder: str | None = None) -> str:
    """Creates a folder with a new name and returns its path.

    Args:
        prefix: Start of the name.
        folder: The parent folder. None means the folder for temporary files.
    """
    return tempfile.mkdtemp(prefix=prefix, dir=folder)


def make_private_folder(name: str) -> str:
    """Returns a folder among the temporary files that only this user can access.

    The folder is created if it is missing.

    Args:
        name: Start of the name. The user's ID follows.

    Raises:
        OSError: The name belongs to a link, or to a folder that others own or can access.
    """
    path = os.path.join(tempfile.gettempdir(), f"{name}-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    # `lstat` does not follow a link, which another user may have put there.
    folder_stat = os.lstat(path)
    if (
        not stat.S_ISDIR(folder_stat.st_mode)
        or folder_stat.st_uid != os.getuid()
        or folder_stat.st_mode & 0o077
    ):
        raise OSError(
            errno.EACCES,
            "is not a private folder of this user; remove it, or set another TMPDIR",
            path,
        )
    return path


def rename(old: Pathlike, new: Pathlike) -> None:
    """Renames a file or folder atomically. Replaces a file, or an empty folder."""
    os.rename(old, new)


def remove_file(path: Pathlike, *, missing_ok: bool = False) -> None:
    """Removes a file or a link."""
    Path(path).unlink(missing_ok=missing_ok)


def remove_empty_folder(folder: Pathlike) -> None:
    """Removes an empty folder."""
    os.rmdir(folder)


def remove(path: Pathlike, *, ignore_errors: bool = False) -> None:
    """Removes a file, a link, or a folder with its contents. Ignores a missing one.

    The caller must own it.
    """
    # Another process may remove it at the same time.
    with contextlib.suppress(OSError if ignore_errors else FileNotFoundError):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=ignore_errors)
        else:
            os.unlink(path)
