"""Work below an open folder, by descriptor: new folders, other names, and removal, by which a name goes with all that
is in it. No link is followed, and nothing is removed by a path that somebody could have bent meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import uuid
from collections.abc import Callable

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_IS_FOLDER = (errno.EISDIR, errno.EPERM)  # how systems refuse to unlink a folder
_EXCHANGE = 2  # RENAME_EXCHANGE of <linux/fs.h>
# how systems say that they can't, not that it failed: no such call, another file system, a mount point
_UNABLE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV, errno.EBUSY, errno.EPERM, errno.EACCES)


class Folder:
    """An open folder. It stays the same one whatever becomes of its name; usable as a context manager."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Folder:
        """The folder that a user named, also by a link."""
        return cls(os.open(path, _FOLDER))

    def enter(self, name: str) -> Folder:
        """The folder of that name in this one; OSError if it is a link or no folder."""
        return Folder(os.open(_single(name), _FOLDER | os.O_NOFOLLOW, dir_fd=self.descriptor))

    def names(self) -> list[str]:
        """What is in it, sorted."""
        with os.scandir(self.descriptor) as entries:
            return sorted(entry.name for entry in entries)

    def inode(self, name: str) -> tuple[int, int] | None:
        """(device, inode) of a name, of a link its own; None if it is not there."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            about = os.stat(_single(name), dir_fd=self.descriptor, follow_symlinks=False)
            return about.st_dev, about.st_ino
        return None

    @property
    def own_inode(self) -> tuple[int, int]:
        about = os.fstat(self.descriptor)
        return about.st_dev, about.st_ino

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Whether the path leads to it now."""
        return os.path.samestat(os.stat(path), os.fstat(self.descriptor))

    def changed(self, name: str) -> float:
        """The time of the last change of a name in it, of a link its own, in seconds."""
        return os.stat(_single(name), dir_fd=self.descriptor, follow_symlinks=False).st_mtime

    def now(self) -> float:
        """The time in seconds by the clock that stamps files in it: on a network's disk that is not this machine's."""
        name = f".{uuid.uuid4().hex}.now"
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.descriptor)
        try:
            return os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
            os.unlink(name, dir_fd=self.descriptor)

    def take_mode_of(self, other: Folder) -> None:
        """Who may use it: as of the other."""
        os.fchmod(self.descriptor, stat.S_IMODE(os.fstat(other.descriptor).st_mode))

    def make(self, path: str) -> None:
        """Make a folder in it, or below it (`data/index`), whose names nobody else gives."""
        os.mkdir(path, dir_fd=self.descriptor)

    def move(self, name: str, to: Folder, new: str) -> None:
        """Move a name of it into that folder."""
        os.rename(_single(name), _single(new), src_dir_fd=self.descriptor, dst_dir_fd=to.descriptor)

    def take(self, path: str | os.PathLike[str], new: str) -> None:
        """Move what is at the path into it."""
        os.rename(path, _single(new), dst_dir_fd=self.descriptor)

    def give(self, name: str, path: str | os.PathLike[str]) -> None:
        """Move a name of it to the path."""
        os.rename(_single(name), path, src_dir_fd=self.descriptor)

    def remove_empty(self, name: str) -> None:
        """Remove a folder in which nothing is."""
        os.rmdir(_single(name), dir_fd=self.descriptor)

    def is_folder(self, name: str) -> bool:
        """Whether the name is a folder itself, and no link to one."""
        with contextlib.suppress(OSError):
            return stat.S_ISDIR(os.stat(_single(name), dir_fd=self.descriptor, follow_symlinks=False).st_mode)
        return False

    def remove(self, name: str) -> None:
        """Remove a file, a link or a folder with all that is in it; nothing if it is not there.

        Raises:
            OSError: as the operating system says it.
        """
        with contextlib.suppress(FileNotFoundError):  # somebody else removes it, too
            if self._unlink(name):
                return
            with self.enter(name) as folder:
                for inner in folder.names():
                    folder.remove(inner)
            os.rmdir(name, dir_fd=self.descriptor)

    def _unlink(self, name: str) -> bool:
        """Remove a file or a link; False if it is a folder."""
        try:
            os.unlink(_single(name), dir_fd=self.descriptor)
        except OSError as error:
            if error.errno not in _IS_FOLDER or not self.is_folder(name):
                raise
            return False
        return True

    def clear(self, last: Callable[[str], int] = lambda name: 0) -> None:
        """Remove everything in it, by ascending `last` of the names."""
        for name in sorted(self.names(), key=last):
            self.remove(name)

    def remove_itself(self, above: Folder, name: str) -> None:
        """Remove this folder, which is empty, from the one above, if it still has that name there."""
        if above.inode(name) == self.own_inode:
            os.rmdir(name, dir_fd=above.descriptor)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _single(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is no name in a folder")
    return name


def exchange(folder: Folder, one: str, other: str) -> bool:
    """Exchange two names in a folder in one step (renameat2, RENAME_EXCHANGE); False where the system can't, and
    nothing has happened then.

    Raises:
        OSError: anything else.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(folder.descriptor, os.fsencode(one), folder.descriptor, os.fsencode(other), _EXCHANGE) == 0:
        return True
    if (code := ctypes.get_errno()) in _UNABLE:
        return False
    raise OSError(code, os.strerror(code), one)
