"""Access to the contents of files on disks, in stores and in archives.

Code outside `storage` never opens a file itself. Files can be read in ranges, but are always
written as complete files. Files that were mapped most recently stay mapped. The number of mapped
files is limited, because each takes a file descriptor and a mapping.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import DataError, UsageError
from recordmill.base.lru import LruLimit
from recordmill.base.machine import limit_descriptors
from recordmill.base.option_names import option
from recordmill.storage import archives
from recordmill.storage.direct_io import DISK_FULL_ERRNOS
from recordmill.storage.disk_files import (
    atomic_write,
    create_file,
    create_if_absent,
    link_or_copy,
    move_file,
    reopen_file,
    replace_file,
    sync_file,
    sync_folder,
    write_all,
)
from recordmill.storage.mapped_files import release_all_pages
from recordmill.storage.stores import uploads
from recordmill.storage.stores.address import (
    expand_home,
    is_remote,
    parse_input_path,
    parse_input_paths,
    parse_local_path,
    parse_output_path,
    unquote_name,
)
from recordmill.storage.stores.client import REQUEST_LIMIT
from recordmill.storage.stores.local import (
    NOT_REGULAR_ERRNOS,
    create_unnamed_file,
    map_open_file,
    stat_from_os,
)
from recordmill.storage.stores.objects import StoreSettings
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

__all__ = [  # includes names of the modules inside `storage`, for all other code
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
    "create_unnamed_file",
    "expand_home",
    "is_remote",
    "list_objects",
    "map_open_file",
    "parse_input_path",
    "parse_input_paths",
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

# More mapped files do not make reads faster. With fewer, each batch would map its files again.
_MIN_MAPPED_FILES, _MAX_MAPPED_FILES = 16, 1024
_OBJECT_STORAGE, _ARCHIVE_STORAGE = archives.OBJECT_STORAGE, archives.ArchiveStorage()
os.register_at_fork(after_in_child=_OBJECT_STORAGE.reset_after_fork)


def find_storage(path: str) -> FileStorage:
    """Returns the storage that contains a path: a disk, the stores, or the archives."""
    if archives.is_archive_member(path):
        return _ARCHIVE_STORAGE
    return archives.find_file_storage(path)


def limit_requests(requests: int | None) -> None:
    """Limits the number of concurrent requests to stores in this process.

    Args:
        requests: The largest number. None means the current limit.

    Raises:
        UsageError: The number is below 1.
    """
    if requests is not None and requests < 1:
        raise UsageError(
            "{storage_requests}: must be 1 or more",
            storage_requests=option("storage_requests", requests),
        )
    _OBJECT_STORAGE.limit_requests(REQUEST_LIMIT.max_requests if requests is None else requests)


@contextlib.contextmanager
def limit_block_memory(memory_bytes: int) -> Iterator[None]:
    """Limits the memory for cached blocks of stores during the `with` block.

    If several `with` blocks overlap, the smallest limit applies. At the end of the last one,
    decompressed tars and members of archives are dropped as well.

    Args:
        memory_bytes: The memory of the caller. Cached blocks may take a part of it.
    """
    with _OBJECT_STORAGE.limit_block_memory(memory_bytes), archives.keep_decompressed_files():
        yield


def make_store_settings(
    paths: Iterable[str], requests: int | None, folder: str, max_bytes: int
) -> StoreSettings:
    """Returns settings for reading these files from stores.

    Any process can apply the settings. This function also creates the folder of the cache.

    Args:
        paths: The files. Files on disks are ignored.
        requests: Maximum number of concurrent requests. None means the current limit.
        folder: The folder of the disk cache. "" means no cache.
        max_bytes: The maximum size of the disk cache.

    Raises:
        UsageError: The cache folder can't be created.
    """
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
        # A full disk only disables the cache, with a warning when the first block can't be kept.
        if error.errno not in DISK_FULL_ERRNOS:
            raise UsageError(
                "{cache}: can't be made: {strerror}",
                cache=option("cache", folder),
                strerror=error.strerror,
            ) from None
    return StoreSettings(requests, os.path.abspath(folder) if files else "", max_bytes, files)


def apply_store_settings(settings: StoreSettings) -> None:
    """Applies settings to all later reads of this process. The second call does nothing."""
    _OBJECT_STORAGE.apply_settings(settings)


def stat(path: str) -> Stat:
    """Returns the current state of a file, or of the target of a link.

    Raises:
        OSError: The file is missing or can't be accessed.
    """
    return find_storage(path).stat(path)


def last_known_stat(path: str) -> Stat:
    """Returns the state of a file when it was last read or listed.

    On a disk this is the current state.
    """
    return find_storage(path).last_known_stat(path)


def refresh_listing(folder: str) -> None:
    """Updates the known sizes and etags of a store's objects, by listing their folder.

    `last_known_stat` returns the new values. Does nothing for a folder on a disk.
    """
    for _ in iter_object_stats(folder) if is_remote(folder) else ():
        pass


def read_range(
    path: str | os.PathLike[str],
    start: int = 0,
    stop: int | None = None,
    *,
    target: Bytes | None = None,
    max_bytes: int | None = None,
) -> Bytes:
    """Returns bytes [start, stop) of a file. The result is shorter at the end of the file.

    The memory of the result comes from `base.buffers`, where later arrays reuse it. The array may
    be read-only.

    Args:
        path: The file to read.
        start: Offset of the first byte.
        stop: Offset after the last byte. None means the end of the file. If `start` is 0, the
            result is then the complete current content. In a store, a small object takes one
            request for it.
        target: The array to fill, instead of a new one. Then `stop` is ignored.
        max_bytes: The largest size of a file that is read completely. Set it for untrusted files.

    Raises:
        OSError: The file can't be opened or read.
        DataError: The file has more than `max_bytes`, grows while it is read, or is not a regular
            file. Only if there is a limit.
    """
    path = os.fspath(path)
    storage = find_storage(path)
    if start or stop is not None or target is not None:
        return storage.read_range(path, start, stop, target)
    try:
        return storage.read_file(path, max_bytes)
    except OSError as error:
        if max_bytes is None or error.errno not in NOT_REGULAR_ERRNOS:
            raise
        raise DataError("is not a regular file", source=path) from None


def start_range_read(path: str, start: int, stop: int) -> Callable[[], Bytes]:
    """Begins a `read_range`, and returns a function that waits for its result.

    An object in a store is requested at once. Any other file is read when the function is called.
    If an object is replaced before the read ends, the function returns the range of the new object.
    """
    read = find_storage(path).start_reading(path, start, stop)
    return partial(read_range, path, start, stop) if read is None else read


def iter_object_stats(folder: str) -> Iterator[tuple[str, Stat]]:
    """Yields (relative name, state) of each object below a folder of a store."""
    return _OBJECT_STORAGE.iter_object_stats(folder)


def prefetch_files(
    items: Iterable[_Item], file_of: Callable[[_Item], tuple[str, Stat] | None]
) -> Iterator[_Item]:
    """Yields the items in their order, while it fetches the start of later files.

    Only objects in stores are fetched in advance.

    Args:
        items: The items. The function may consume some more of them than it has yielded.
        file_of: Returns the (path, state) of the file that an item is the first to read, or None if
            an earlier item reads the same file.
    """
    waiting: deque[_Item] = deque()
    for item in items:
        max_waiting = 0
        if (file := file_of(item)) is not None:
            storage = find_storage(file[0])
            # Items wait until enough later objects are requested.
            if max_waiting := storage.max_prefetched:
                storage.prefetch_start(*file)
        waiting.append(item)
        if len(waiting) > max_waiting:
            yield waiting.popleft()
    yield from waiting


def read_ranges(path: str, ranges: Sequence[tuple[int, Bytes]]) -> None:
    """Reads several ranges of a file, each into its own array.

    In a store, ranges that are close to each other share a request.

    Args:
        path: The file to read.
        ranges: (offset in the file, array to fill) of each range.

    Raises:
        DataError: The file ends inside a range.
    """
    find_storage(path).read_ranges(path, ranges)


def read_spans(
    paths: Sequence[str],
    edges: Int64s,
    starts: Int64s,
    sizes: Int64s,
    out: Bytes,
    targets: Int64s,
) -> None:
    """Reads many small ranges of files to their places in an array.

    Args:
        paths: The files to read, all of one storage.
        edges: int64 [files + 1]. File f has the spans [edges[f], edges[f + 1]).
        starts: int64 [spans]. Offsets in the file, in ascending order. They may repeat.
        sizes: int64 [spans]. The size of each span in bytes.
        out: The array.
        targets: int64 [spans]. The offset in `out` of each span.

    Raises:
        DataError: A file ends inside a span.
    """
    find_storage(paths[0]).read_spans(paths, edges, starts, sizes, out, targets)


def read_blocks(
    path: str, block_bytes: int, start: int = 0, stop: int | None = None
) -> Iterator[Bytes]:
    """Yields bytes [start, stop) of a file in blocks of `block_bytes`.

    Each block is a new array. The last one may be shorter. If `stop` is None, the blocks reach to
    the end of the file.
    """
    with contextlib.closing(find_storage(path).open(path)) as reader:
        while True:
            size = block_bytes if stop is None else min(block_bytes, stop - start)
            block = reader.fill(np.empty(size, np.uint8), start)
            if len(block) == 0:
                return
            yield block
            start += len(block)


def map_file(path: str) -> Bytes:
    """Maps a file into memory as a read-only array. An empty file is an empty array.

    An object in a store is first copied into an unnamed file in the folder for temporary files.
    """
    return find_storage(path).map(path)


def put_if_absent(path: str | Path, data: bytes, temporary_folder: Path | None = None) -> bool:
    """Creates a complete and durable file or object, unless the name exists.

    Args:
        path: A local path or a URI.
        data: The content.
        temporary_folder: See `disk_files.atomic_write`. Ignored in a store.

    Returns:
        Whether this call created it. See `create_if_absent` for the guarantees on a disk.
    """
    if isinstance(path, str) and is_remote(path):
        return uploads.put_object_if_absent(path, data)
    return create_if_absent(Path(path), data, temporary_folder)


def move_to_shared(path: str, target: str) -> None:
    """Moves a local file to a store or a shared disk, for other hosts.

    The target name must belong to the caller alone. On a disk the file is synced first.
    """
    if is_remote(target):
        uploads.upload_file(path, target, os.stat(path).st_size)
        os.unlink(path)
    else:
        sync_file(path)
        os.replace(path, target)


def move_to_final(path: str, target: str, size_bytes: int) -> None:
    """Renames a shared file to its final name. Replaces an existing file.

    In a store this may copy the object. The call may be repeated, even by several processes at
    once.

    Args:
        path: The current name.
        target: The final name, in the same store or file system.
        size_bytes: The size of the file.
    """
    if is_remote(target):
        uploads.copy_object(path, target, size_bytes)
    else:
        move_file(path, target)


def add_name(path: str, target: str) -> None:
    """Adds a second name to a file. Neither name may be used to change it.

    In a store, and on file systems without hard links, the file is copied.

    Args:
        path: The file.
        target: The second name, in the same store or file system. It must be unused.
    """
    if is_remote(target):
        uploads.copy_object(path, target, stat(path).size_bytes)
    else:
        link_or_copy(path, target)


def put_bytes(target: str, data: bytes) -> None:
    """Creates or replaces a file or object. Readers see either the old or the new content."""
    if is_remote(target):
        put_object(target, data)
        return
    with atomic_write(target) as file:
        write_all(file, data)


def check_unchanged(path: str, planned_stat: Stat, source: str) -> None:
    """Raises DataError if a file has changed since planning, or is missing.

    Args:
        path: The file to check.
        planned_stat: State of the file at planning time.
        source: The file's name for messages.
    """
    try:
        current_stat = last_known_stat(path)
    except OSError as error:
        raise DataError(f"can't be read any more: {error.strerror}", source=source) from error
    if planned_stat.is_changed(current_stat):
        raise _changed_error(planned_stat, current_stat, source)


def _changed_error(planned_stat: Stat, current_stat: Stat, source: str) -> DataError:
    sizes = f"{planned_stat.size_bytes} bytes before, {current_stat.size_bytes} now"
    return DataError(f"changed while it was read ({sizes}); start again", source=source)


# Slots for arrays from `map_file`, or views of them.
MAPPED_FILES = LruLimit(limit_descriptors(_MIN_MAPPED_FILES, _MAX_MAPPED_FILES))


def release_mapped_pages() -> None:
    """Reduces the memory of this process by the pages of mapped files.

    Indexes of shards and members of archives are mapped, for example. The pages stay in the page
    cache, so a later access finds them again. Without this call, all mapped data that was ever read
    counts as memory of the process.
    """
    if hasattr(mmap, "MADV_DONTNEED"):  # not on all systems
        for mapped in MAPPED_FILES.values():
            if (file := _find_mapping(mapped)) is not None:
                file.madvise(mmap.MADV_DONTNEED)
        release_all_pages()


def _find_mapping(view: object) -> mmap.mmap | None:
    while isinstance(view, np.ndarray):
        view = view.base
    return view.obj if isinstance(view, memoryview) and isinstance(view.obj, mmap.mmap) else None
