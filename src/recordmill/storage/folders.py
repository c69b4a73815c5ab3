"""Names: what is there, on a disk or in a store; and on a disk new folders, other names, removal, copies. What stands
in files is `files`' matter.

Each is one call of the system, or a walk of such calls, and raises OSError as the system says it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import tempfile
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
    write_all,
)

Pathlike = str | os.PathLike[str]
_RENAME_EXCHANGE, _AT_FDCWD = 2, -100  # RENAME_EXCHANGE of <linux/fs.h>, AT_FDCWD of <fcntl.h>
_COPY_BLOCK_BYTES = 8 << 20  # 8 MiB: what is held of a file that is copied


def join(folder: Pathlike, *names: str) -> str:
    """The path of a name below a folder, or the URI."""
    text = os.fspath(folder)
    return "/".join((text.rstrip("/"), *names)) if is_remote(text) else str(Path(text, *names))


def absolute_path(path: str) -> str:
    """The path from the root, whoever opens it from whatever folder; the URI of an object is one."""
    return path if is_remote(path) else os.path.abspath(path)


def exists(path: Pathlike) -> bool:
    """Returns whether something is there, or where a link leads to."""
    return find_storage(os.fspath(path)).exists(os.fspath(path))


def check_output_file(path: Pathlike, overwrite: bool) -> str:
    """The path of a file that `out` names and that can be written, as far as can be seen before there is anything to
    write; of a link, where it leads.

    Raises:
        UsageError: the file is there and may not be replaced, it is a folder, a pipe or a device, or there is no folder
            for it.
    """
    target = parse_output_path(path)
    if not is_remote(target) and is_folder(target):
        raise UsageError(f"{option('out', target)} is a folder: name a file")
    if not is_remote(target) and exists(target) and not is_file(target):
        raise UsageError(
            f"{option('out', target)} is a pipe or a device, which is not replaced: name a file"
        )
    if not overwrite and exists(target):
        raise UsageError(
            f"{option('out', target)} is there already: give {option('overwrite', True)} to replace it"
        )
    if not is_remote(target) and not is_folder(folder := os.path.dirname(target) or "."):
        raise UsageError(f"{option('out', target)}: there is no folder {folder}")
    real_target = real_path(target) if is_link(target) else target
    if not is_remote(real_target):
        remove_abandoned_files(real_target)
    return real_target


def name_exists(path: Pathlike) -> bool:
    """Returns whether the name is taken, also by a link that leads nowhere."""
    return os.path.lexists(path) or (is_remote(os.fspath(path)) and exists(path))


def is_file(path: Pathlike) -> bool:
    """Returns whether it is a regular file, or a link to one."""
    return find_storage(os.fspath(path)).is_file(os.fspath(path))


def no_file_message(path: Pathlike) -> str:
    """Returns what to say of a path at which a regular file was to be, and is none."""
    return "is no regular file (a folder, a pipe or a device)" if exists(path) else "no such file"


def is_folder(path: Pathlike) -> bool:
    """Returns whether it is a folder, or a link to one."""
    return find_storage(os.fspath(path)).is_folder(os.fspath(path))


def is_link(path: Pathlike) -> bool:
    """Returns whether the name itself is a link."""
    return os.path.islink(path)


def real_path(path: Pathlike) -> str:
    """The absolute path without a link in it; the URI of an object is one."""
    return os.fspath(path) if is_remote(os.fspath(path)) else os.path.realpath(path)


def inode_number(path: Pathlike) -> int:
    """The number by which its file system knows it, whatever it is called."""
    return os.stat(path).st_ino


def list_names(folder: Pathlike) -> list[str]:
    """The names in a folder, sorted."""
    return find_storage(os.fspath(folder)).list_names(os.fspath(folder))


def list_names_if_present(folder: Pathlike) -> list[str]:
    """The names in a folder, sorted; none where there is no such folder, which a store need not be asked beforehand."""
    if not is_remote(os.fspath(folder)) and not is_folder(folder):
        return []
    with contextlib.suppress(FileNotFoundError):
        return list_names(folder)
    return []


def list_paths(folder: Path, pattern: str = "") -> list[Path]:
    """The folder's files and folders, or those whose names match the glob, sorted; none match where no folder is."""
    return sorted(folder.glob(pattern) if pattern else folder.iterdir())


def list_paths_recursively(folder: Pathlike) -> list[Path]:
    """Everything below the folder, sorted; no linked folder is entered."""
    return sorted(Path(folder).rglob("*"))


def find_files(folder: Pathlike) -> dict[str, str]:
    """Name relative to the folder, with `/`, to path of all files below it."""
    if is_remote(os.fspath(folder)):
        return {name: join(folder, name) for name, _ in iter_object_stats(os.fspath(folder))}
    paths = (path for path in list_paths_recursively(folder) if path.is_file())
    return {path.relative_to(folder).as_posix(): str(path) for path in paths}


def fetch_tree(source: Pathlike, target: Pathlike) -> None:
    """Copies all files below a folder, or in a store, to a folder here; DataError for a name that leads out."""
    for name, path in find_files(source).items():
        parts = name.split("/")
        if {"", ".", ".."} & {*parts}:
            raise DataError(f"{name!r} is no name of a file", source=os.fspath(source))
        copy = Path(target, *parts)
        make_folder(copy.parent, exist_ok=True, parents=True)
        fetch_file(path, copy)


def fetch_file(source: str, target: Pathlike) -> None:
    """Copy a file, in a store, too, to a new one of this machine, in bounded memory."""
    with create_file(os.fspath(target)) as file:
        for block in read_blocks(source, _COPY_BLOCK_BYTES):
            write_all(file, block)


def make_folder(path: Pathlike, *, exist_ok: bool = False, parents: bool = False) -> None:
    """Make a folder; exist_ok: it may be there already; parents: with the folders above it."""
    Path(path).mkdir(exist_ok=exist_ok, parents=parents)


def make_scratch_folder(prefix: str, folder: str | None = None) -> str:
    """A new folder of a new name in that folder, or in the system's folder for temporary files; gives its path."""
    return tempfile.mkdtemp(prefix=prefix, dir=folder)


def make_private_folder(name: str) -> str:
    """A folder of that name among the system's temporary files, which only this user may enter; made if need be.

    Raises:
        OSError: somebody else's folder, or a link, has the name.
    """
    path = os.path.join(tempfile.gettempdir(), f"{name}-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    folder_stat = os.lstat(path)
    if (
        not stat.S_ISDIR(folder_stat.st_mode)
        or folder_stat.st_uid != os.getuid()
        or folder_stat.st_mode & 0o077
    ):
        raise OSError(
            errno.EACCES, "is no private folder of yours; remove it, or name another TMPDIR", path
        )
    return path


def rename(old: Pathlike, new: Pathlike) -> None:
    """Renames a file or folder in one step; replaces a file, and a folder that is empty."""
    os.rename(old, new)


def remove_file(path: Pathlike, *, missing_ok: bool = False) -> None:
    """Remove a file or a link."""
    Path(path).unlink(missing_ok=missing_ok)


def remove_empty_folder(folder: Pathlike) -> None:
    """Remove a folder in which nothing is."""
    os.rmdir(folder)


def remove_tree(folder: Pathlike, *, ignore_errors: bool = False) -> None:
    """Remove a folder of one's own with all that is in it."""
    shutil.rmtree(folder, ignore_errors=ignore_errors)


def remove(path: Pathlike) -> None:
    """Removes a file, a link, or a folder with all that is in it; nothing if it is not there."""
    with contextlib.suppress(FileNotFoundError):  # somebody else removes it, too
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def copy_mode(folder: Pathlike, model: Pathlike) -> None:
    """Makes a folder usable by those who may use the other one."""
    os.chmod(folder, stat.S_IMODE(os.stat(model).st_mode))


def exchange_names(first: Pathlike, second: Pathlike) -> bool:
    """Exchanges two names in one step (renameat2, RENAME_EXCHANGE); False if that can't be, and nothing changed."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    return (
        renameat2 is not None
        and renameat2(
            _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
        )
        == 0
    )


def copy_tree(
    source: Pathlike,
    target: Pathlike,
    *,
    ignored_patterns: tuple[str, ...] = (),
    keep_links: bool = False,
    exist_ok: bool = False,
) -> None:
    """Copy a folder with all that is in it. leave_out: globs of names that are not copied; links: a link stays one;
    into: the target may be there already.
    """
    ignore = shutil.ignore_patterns(*ignored_patterns) if ignored_patterns else None
    shutil.copytree(source, target, symlinks=keep_links, ignore=ignore, dirs_exist_ok=exist_ok)
