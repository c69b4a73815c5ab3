"""The door to what is in files: ranges of bytes in, of a disk or of a store; whole files out, to a disk. Nothing
outside this room opens a file by itself. Files stay mapped while they are among the last ones that were read: each
takes a descriptor and a mapping, of which a process has only so many.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from recordmill.base.buffers import Bytes, allocate
from recordmill.base.errors import DataError, UsageError
from recordmill.base.lru import LruLimit
from recordmill.base.option_names import option
from recordmill.storage import archives
from recordmill.storage.disk_files import (
    DISK_FULL_ERRNOS,
    atomic_write,
    create_file,
    create_if_absent,
    move_file,
    open_file,
    reopen_file,
    replace_file,
    sync_file,
    sync_folder,
    write_all,
)
from recordmill.storage.stores import uploads
from recordmill.storage.stores.address import (
    Address,
    parse_input_path,
    parse_local_path,
    parse_output_path,
    unquote_name,
)
from recordmill.storage.stores.client import REQUEST_LIMIT
from recordmill.storage.stores.downloads import ReplacedError
from recordmill.storage.stores.local import stat_from_os
from recordmill.storage.stores.objects import StoreSettings, register_settings_handler
from recordmill.storage.stores.protocol import FileStorage, Reader, SizedFile, Stat
from recordmill.storage.stores.uploads import (
    UPLOAD_BYTES,
    check_uploaded,
    list_objects,
    put_object,
    put_objects,
    remove_objects,
    supports_conditional_put,
    upload_all,
    upload_file,
)

_Item = TypeVar("_Item")

__all__ = [  # of the rooms within, for all
    "DISK_FULL_ERRNOS",
    "UPLOAD_BYTES",
    "Bytes",
    "FileStorage",
    "Reader",
    "SizedFile",
    "Stat",
    "StoreSettings",
    "atomic_write",
    "check_uploaded",
    "create_file",
    "list_objects",
    "open_file",
    "parse_input_path",
    "parse_local_path",
    "parse_output_path",
    "put_object",
    "put_objects",
    "remove_objects",
    "reopen_file",
    "replace_file",
    "stat_from_os",
    "supports_conditional_put",
    "sync_file",
    "sync_folder",
    "unquote_name",
    "upload_all",
    "upload_file",
    "write_all",
]

_MAX_MAPPED_FILES, _MIN_MAPPED_FILES = (
    1024,
    16,
)  # mapped files: more make nothing quicker, with fewer each batch would map its files again
_OBJECT_STORAGE, _ARCHIVE_STORAGE = archives.OBJECT_STORAGE, archives.ArchiveStorage()
os.register_at_fork(after_in_child=_OBJECT_STORAGE.reset_after_fork)
register_settings_handler(
    lambda settings: _OBJECT_STORAGE.apply_settings(settings)
)  # also by a process that unpickles them


def find_storage(path: str) -> FileStorage:
    """Returns the storage of the file of that path, or URI."""
    if archives.is_archive_member(path):
        return _ARCHIVE_STORAGE
    return _OBJECT_STORAGE if is_remote(path) else archives.LOCAL_STORAGE


def is_remote(path: str) -> bool:
    """Returns whether it is in a store, by itself or in an archive."""
    return "://" in path and Address.parse(path) is not None


def _is_object(path: str) -> bool:
    return is_remote(path) and find_storage(path) is _OBJECT_STORAGE


def limit_requests(requests: int | None) -> None:
    """Have at most so many requests to stores under way in this process (None: as before).

    Raises:
        UsageError: fewer than one.
    """
    if requests is not None and requests < 1:
        raise UsageError(f"{option('storage_requests', requests)}: 1 or more")
    _OBJECT_STORAGE.limit_requests(REQUEST_LIMIT.max_requests if requests is None else requests)


@contextlib.contextmanager
def limit_block_memory(memory_bytes: int) -> Iterator[None]:
    """While a call lasts that may hold so much, blocks that were read from stores take a part of it; of several calls
    at once the tightest bound holds, and each one's ends with it. Tars that were decompressed go with the last call.
    """
    with _OBJECT_STORAGE.limit_block_memory(memory_bytes), archives.keep_decompressed_tars():
        yield


def apply_store_settings(
    paths: Iterable[str], requests: int | None, folder: str, max_bytes: int
) -> StoreSettings:
    """Read these files on terms: so many requests at once, those of stores by blocks that are kept in the folder ("":
    nowhere), of so many bytes in all. Gives the terms, which go with what is pickled.
    """
    limit_requests(requests)
    objects = (
        dict.fromkeys(archives.archive_path(path) or path for path in paths if is_remote(path))
        if folder
        else ()
    )
    files = {path: last_known_stat(path) for path in objects}
    try:
        if files:
            os.makedirs(folder, exist_ok=True)
    except OSError as error:
        if (
            error.errno not in DISK_FULL_ERRNOS
        ):  # a cache that has no room is told of when a block is to be kept
            raise UsageError(
                f"{option('cache', folder)}: can't be made: {error.strerror}"
            ) from None
    settings = StoreSettings(requests, os.path.abspath(folder) if files else "", max_bytes, files)
    settings.apply()
    return settings


def stat(path: str) -> Stat:
    """Size and time of change, or etag, of the file, or of what a link leads to; OSError as the system says it."""
    return find_storage(path).stat(path)


def last_known_stat(path: str) -> Stat:
    """Returns what the file was when it was read, or listed, last: of a disk, what it is now."""
    return find_storage(path).last_known_stat(path)


def refresh_listing(folder: str) -> None:
    """Have a store say of all objects below a folder what they are now, which `last_known_stat` then knows of each."""
    for _ in iter_object_stats(folder) if is_remote(folder) else ():
        pass


def _open_reader(path: str) -> contextlib.closing[Reader]:
    """The file as a context manager that gives a `Reader`."""
    return contextlib.closing(find_storage(path).open(path))


def read_range(path: str, start: int = 0, stop: int | None = None) -> Bytes:
    """Bytes [start, stop) of the file, up to its end if stop is None or beyond it, in memory that is used again
    (`base.buffers`).

    Raises:
        OSError: as the operating system says it.
    """
    with _open_reader(path) as reader:
        size = reader.stat().size_bytes
        stop = size if stop is None else min(stop, size)
        return reader.fill(allocate(max(stop - start, 0), np.uint8), start)


def start_range_read(path: str, start: int, stop: int) -> Callable[[], Bytes]:
    """Have bytes [start, stop) of an object of a store asked for; gives what waits for them, and reads them as
    `read_range` does where the object became another one, or where the file is a member of an archive.
    """
    if not _is_object(path):
        return lambda: read_range(path, start, stop)
    object_stat = last_known_stat(path)
    buffer = allocate(max(min(stop, object_stat.size_bytes) - start, 0), np.uint8)
    wait = _OBJECT_STORAGE.start_reading(path, object_stat, buffer, start)

    def read() -> Bytes:
        try:
            wait()
        except ReplacedError:
            return read_range(path, start, stop)
        return buffer

    return read


def read_files(files: Sequence[tuple[str, Stat, str]], buffer: Bytes) -> Iterator[Bytes]:
    """The whole files, (path, state when they were planned, source) each, one after the other in the array; each is
    given when it is there. Those in stores are asked for while others come.

    Raises:
        DataError: A file changed, or can't be read; it names the source.
    """
    offset = 0
    for path, planned_stat, source in prefetch_files(files, lambda file: file[:2]):
        target = buffer[offset : offset + planned_stat.size_bytes]
        offset += planned_stat.size_bytes
        try:
            with _open_reader(path) as reader:
                num_read, current_stat = len(reader.fill(target, 0)), reader.stat()
        except OSError as error:
            raise DataError(f"can't be read: {error.strerror}", source=source) from error
        if num_read < len(target) or planned_stat.is_changed(current_stat):
            raise _changed_error(planned_stat, current_stat, source)
        yield target


def read_object_or_member(path: str, max_bytes: int) -> bytes:
    """An object of a store as it is now, by one request where it is small, or a member of an archive; DataError if it
    has more bytes than that.
    """
    if _is_object(path):
        return _OBJECT_STORAGE.read_object(path, max_bytes)
    if (size := stat(path).size_bytes) > max_bytes:
        raise DataError(f"has {size:,} bytes, above the {max_bytes:,} allowed", source=path)
    return read_range(path).tobytes()


def iter_object_stats(folder: str) -> Iterator[tuple[str, Stat]]:
    """(name relative to it, state) of all objects below a folder of a store."""
    return _OBJECT_STORAGE.iter_object_stats(folder)


def prefetch_files(
    items: Iterable[_Item], file_of: Callable[[_Item], tuple[str, Stat] | None]
) -> Iterator[_Item]:
    """The items in their order; of those to come, the beginnings of the files that are in a store are asked for. of:
    the file that an item begins to read; None: none.
    """
    waiting: deque[_Item] = deque()
    for item in items:
        if (file := file_of(item)) is not None and _is_object(file[0]):
            _OBJECT_STORAGE.prefetch_start(*file)
            waiting.append(item)
            if len(waiting) <= _OBJECT_STORAGE.max_prefetched:
                continue
        elif not waiting:
            yield item
            continue
        else:
            waiting.append(item)
        yield waiting.popleft()
    yield from waiting


def read_ranges(path: str, ranges: Sequence[tuple[int, Bytes]]) -> None:
    """Fill each (start, array) with what lies in the file from there on. In a store, ranges that are close together
    come by one request.

    Raises:
        DataError: The file ends before that.
    """
    if _is_object(path):
        _OBJECT_STORAGE.read_ranges(path, ranges)
        return
    with _open_reader(path) as reader:
        for start, buffer in ranges:
            if (num_read := len(reader.fill(buffer, start))) != len(buffer):
                raise DataError(
                    f"ends at byte {start + num_read}, where {start + len(buffer)} are needed",
                    source=path,
                )


def read_blocks(
    path: str, block_bytes: int, start: int = 0, stop: int | None = None
) -> Iterator[Bytes]:
    """Yields the file from start to stop (None: its end) in new arrays of block_bytes, the last one shorter."""
    with _open_reader(path) as reader:
        while True:
            size = block_bytes if stop is None else min(block_bytes, stop - start)
            block = reader.fill(np.empty(size, np.uint8), start)
            if len(block) == 0:
                return
            yield block
            start += len(block)


def map_file(path: str) -> Bytes:
    """The whole file as a read-only array backed by the page cache; an empty file gives an empty array. What is in a
    store becomes a file without a name in the folder for temporary files.
    """
    return find_storage(path).map(path)


def put_if_absent(path: str | Path, data: bytes, temporary_folder: Path | None = None) -> bool:
    """Create the file with this content, whole and on disk, unless it is there; says whether this call created it.
    temporary_in: as for `atomic_write`, on a disk, where `create_if_absent` says what it stands on.
    """
    if isinstance(path, str) and is_remote(path):
        return uploads.put_object_if_absent(path, data)
    return create_if_absent(Path(path), data, temporary_folder)


def move_to_shared(path: str, target: str) -> None:
    """A file of this machine becomes one that others find: an object, or a file of a disk that they see. The name is
    the caller's alone; the file is gone from where it was.
    """
    if is_remote(target):
        uploads.upload_file(path, target, os.stat(path).st_size)
        os.unlink(path)
    else:
        sync_file(path)
        os.replace(path, target)


def move_to_final(path: str, target: str, size_bytes: int) -> None:
    """Gives what was handed over the name by which it is known, in place of what has it: a copy within a store, another
    name on a disk, where it may have been given before. May be called again, by several at once.
    """
    if is_remote(target):
        uploads.copy_object(path, target, size_bytes)
    else:
        move_file(path, target)


def put_bytes(target: str, data: bytes) -> None:
    """Make or replace an object, or a file, of these bytes; it appears whole."""
    if is_remote(target):
        put_object(target, data)
        return
    with atomic_write(target) as file:
        write_all(file, data)


def check_unchanged(path: str, planned_stat: Stat, source: str) -> None:
    """Raises DataError if the file is another one than when it was planned, or gone."""
    try:
        current_stat = last_known_stat(path)
    except OSError as error:
        raise DataError(f"can't be read any more: {error.strerror}", source=source) from error
    if planned_stat.is_changed(current_stat):
        raise _changed_error(planned_stat, current_stat, source)


def _changed_error(planned_stat: Stat, current_stat: Stat, source: str) -> DataError:
    sizes = f"{planned_stat.size_bytes} bytes before, {current_stat.size_bytes} now"
    return DataError(f"changed while it was read ({sizes}); start again", source=source)


def _mapped_file_limit() -> int:
    """A quarter of the descriptors that the process may have: what else it does needs some, too."""
    max_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        _MAX_MAPPED_FILES
        if max_descriptors == resource.RLIM_INFINITY
        else min(max(max_descriptors // 4, _MIN_MAPPED_FILES), _MAX_MAPPED_FILES)
    )


MAPPED_FILES = LruLimit(
    _mapped_file_limit()
)  # slots of arrays that `storage.files.map_file` gave, or views of them


def release_mapped_pages() -> None:
    """Let go of the pages of mapped files that this process has touched; who reads on has them again from the page
    cache. Else all that was ever read counts as this process's memory.
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        for mapped in MAPPED_FILES.values():
            if (file := _find_mapping(mapped)) is not None:
                file.madvise(mmap.MADV_DONTNEED)


def _find_mapping(view: object) -> mmap.mmap | None:
    while isinstance(view, np.ndarray):
        view = view.base
    return view.obj if isinstance(view, memoryview) and isinstance(view.obj, mmap.mmap) else None
