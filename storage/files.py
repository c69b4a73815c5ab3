"""Local files: ranges of bytes in, whole files out. Nothing else in recordmill opens a file by itself.

Reads go straight into NumPy arrays (`pread`, no seek, safe from many threads). Remote URIs are refused here, in one
place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError, UsageError
from recordmill.base.room import room

Bytes = npt.NDArray[np.uint8]

# `s3:/` is what pathlib makes of `s3://`
_URI = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(//?)|(?i:(file)):()")
# how file systems without hard links refuse one
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_READ_BYTES = 1 << 30  # Linux moves at most 2 GiB - 4 KiB a call; 1 GiB keeps calls few and the GIL released


@dataclass(frozen=True, slots=True)
class Stat:
    """size_bytes and mtime_ns of a file: equal before and after means that nobody wrote to it in between."""

    size_bytes: int
    mtime_ns: int


def local_path(path: str | os.PathLike[str]) -> str:
    """The path as text; UsageError for a URI, since only local files are served. Every path that a user can type goes
    through here before anything is made.

    >>> local_path("data/a:b.csv"), local_path("file:///tmp/x")
    ('data/a:b.csv', '/tmp/x')
    """
    text = os.fspath(path)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if (match := _URI.match(text)) is None:
        return text
    scheme, slashes = match[1] or match[3], match[2] or ""
    if scheme.lower() == "file" and slashes == "//" and text[match.end() :].startswith("/"):
        return text[match.end() :]
    if slashes != "//" and os.path.lexists(f"{scheme}:" if slashes else text):
        return text  # a folder, or a file, that has such a name
    if scheme.lower() == "file":
        raise UsageError(f"{text}: a file: URI of this machine begins with file:///; or give the path alone")
    raise UsageError(f"{text}: {scheme}:// is not served; copy the files to a local disk, or name a local folder")


def stat(path: str) -> Stat:
    """Size and time of change of the file, or of what a link leads to. Raises OSError as the system says it."""
    about = os.stat(path)
    return Stat(about.st_size, about.st_mtime_ns)


def read_range(path: str, start: int = 0, stop: int | None = None) -> Bytes:
    """Bytes [start, stop) of the file, up to its end if stop is None or beyond it, in memory that is used again
    (`base.room`).

    Raises:
        OSError: as the operating system says it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        stop = size if stop is None else min(stop, size)
        return _fill(descriptor, room(max(stop - start, 0), np.uint8), start)
    finally:
        os.close(descriptor)


def _fill(descriptor: int, into: Bytes, start: int) -> Bytes:
    done = 0
    while done < len(into):
        count = os.preadv(descriptor, [into[done : done + _READ_BYTES]], start + done)
        if count == 0:
            return into[:done]
        done += count
    return into


def read_into(path: str, into: Bytes, before: Stat, source: str) -> None:
    """Fill `into` with the file's first bytes, and make sure that it is still the file that was planned.

    Raises:
        DataError: the file changed, or can't be read; it names the source.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = len(_fill(descriptor, into, 0))
            about = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DataError(f"can't be read: {error.strerror}", source=source) from error
    if done < len(into) or Stat(about.st_size, about.st_mtime_ns) != before:
        raise DataError(
            f"changed while it was read ({before.size_bytes} bytes before, {about.st_size} now); build again",
            source=source,
        )


def read_exactly(path: str, start: int, into: Bytes) -> None:
    """Fill the array with the file's bytes from start on; DataError if the file ends before it is full."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        got = len(_fill(descriptor, into, start))
    finally:
        os.close(descriptor)
    if got != len(into):
        raise DataError(f"ends at byte {start + got}, where {start + len(into)} are needed", source=path)


def read_blocks(path: str, block_bytes: int, start: int = 0, stop: int | None = None) -> Iterator[Bytes]:
    """The file from start to stop (None: its end), in arrays of block_bytes, the last one shorter;
    each is the caller's own.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while True:
            size = block_bytes if stop is None else min(block_bytes, stop - start)
            block = _fill(descriptor, np.empty(size, np.uint8), start)
            if len(block) == 0:
                return
            yield block
            start += len(block)
    finally:
        os.close(descriptor)


def map_file(path: str) -> Bytes:
    """The whole file as a read-only array backed by the page cache; an empty file gives an empty array."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def unmap_pages(mapped: Bytes) -> None:
    """Let go of the pages of a mapped file that this process has touched; who reads on has them again from the page
    cache. Else all that was ever read counts as this process's memory.
    """
    view = mapped.base
    if isinstance(view, memoryview) and isinstance(view.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        view.obj.madvise(mmap.MADV_DONTNEED)


@contextlib.contextmanager
def atomic_write(path: str | Path, temporary_in: Path | None = None) -> Iterator[BinaryIO]:
    """A file that appears under its name whole and on disk (fsync, rename), or not at all. temporary_in: the folder in
    which it has another name until then, and where a kill leaves it; None: its own.
    """
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=temporary_in or path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        os.fchmod(descriptor, 0o666 & ~_umask())
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            yield file
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def create_file(path: str | Path) -> BinaryIO:
    """A new file to write to, unbuffered; FileExistsError if the name is taken.
    `sync_file` it before a rename that counts.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    return os.fdopen(descriptor, "w+b", buffering=0)


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


def write_all(file: BinaryIO, data: bytes | memoryview | Bytes) -> int:
    """Write every byte, also where the operating system takes fewer at once; gives the number written."""
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        done += file.write(view[done : done + _READ_BYTES])
    return done


def put_if_absent(path: str | Path, data: bytes, temporary_in: Path | None = None) -> bool:
    """Create the file with this content, whole and on disk, unless it is there; says whether this call created it.
    temporary_in: as for `atomic_write`.

    `link` is atomic and exclusive on every POSIX file system, also over NFS, where O_EXCL is not always. File systems
    without hard links (FAT, some network and FUSE mounts) get a rename under a lock, which excludes the processes of
    one host.
    """
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=temporary_in or path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        os.fchmod(descriptor, 0o666 & ~_umask())
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if not _link_if_absent(temporary, path):
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
        if error.errno not in _NO_LINKS:
            raise
        return _rename_if_absent(temporary, path)
    return True


def _rename_if_absent(temporary: str, path: Path) -> bool:
    lock = path.parent / f".{path.name}.lock"
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        absent = not path.exists()
        if absent:
            os.rename(temporary, path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(lock)  # whoever waits for it, or makes a new one, finds the file there
        return absent
    finally:
        os.close(descriptor)


def sync_file(path: str | Path) -> None:
    """Make what was written to the file durable."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: str | Path) -> None:
    """Make the names in the folder durable."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: str | Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_unchanged(path: str, before: Stat, source: str) -> None:
    """Raises DataError if the file is another one than when it was planned, or gone."""
    try:
        now = stat(path)
    except OSError as error:
        raise DataError(f"can't be read any more: {error.strerror}", source=source) from error
    if now != before:
        raise DataError(
            f"changed while it was read ({before.size_bytes} bytes before, {now.size_bytes} now); build again",
            source=source,
        )


def _umask() -> int:
    # Reading the mask needs setting it, which is not safe from threads; /proc tells it without.
    try:
        with open("/proc/self/status") as status:
            return int(next(line for line in status if line.startswith("Umask:")).split()[1], 8)
    except (OSError, StopIteration):
        return 0o022
