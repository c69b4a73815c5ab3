"""Writing and removal of objects in stores.

An object appears complete or not at all, and is never renamed. If the response to a put is lost,
the object is read back to find out whether it was written.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from recordmill.base.errors import RecordmillError
from recordmill.base.threads import thread_map
from recordmill.storage.stores.address import Address
from recordmill.storage.stores.client import (
    MAX_COPY_BYTES,
    REQUEST_LIMIT,
    get_connection,
    iter_objects,
    request_errors,
    send_request,
    to_store_error,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# 8 MiB: the size of a part, each of which is a request. Very large files have larger parts.
UPLOAD_PART_BYTES = 8 << 20
MAX_PARTS = 9_000  # stores permit 10,000 parts per object
MAX_DELETE_KEYS = 1000  # stores permit this many keys in one request
UPLOAD_CONCURRENCY = 4  # parts of one object that are in memory and sent concurrently
UPLOAD_BYTES = UPLOAD_CONCURRENCY * UPLOAD_PART_BYTES  # memory for one object
# Files of up to 1 MiB are uploaded with this concurrency.
_SMALL_BYTES, _SMALL_CONCURRENCY = 1 << 20, 32
# Uploads use an eighth of the memory limit, because a run that has freed its memory has not
# returned all of it to the system.
_MEMORY_DIVISOR = 8
_LARGE_CONCURRENCY = 8  # for larger files: each takes at most 32 MiB of memory


class ListedObject(NamedTuple):
    """An object below a folder.

    Attributes:
        name: The name relative to the folder.
        modified_sec: Modification time by the store's clock, in seconds since the epoch.
    """

    name: str
    size_bytes: int
    modified_sec: float


def put_objects(root: str, objects: Mapping[str, bytes]) -> None:
    """Creates or replaces small objects below a folder, concurrently."""
    for _ in thread_map(
        lambda name: put_object(f"{root}/{name}", objects[name]), objects, _SMALL_CONCURRENCY
    ):
        pass


def put_object(uri: str, data: bytes) -> None:
    """Creates or replaces a small object."""
    address = Address.from_uri(uri)
    send_request(address, lambda store: store.put(address.key, data, use_multipart=False))


def upload_file(path: str, uri: str, size_bytes: int) -> None:
    """Creates or replaces an object from a local file of `size_bytes`."""
    address, part_bytes = Address.from_uri(uri), max(UPLOAD_PART_BYTES, -(-size_bytes // MAX_PARTS))
    with REQUEST_LIMIT.acquire(
        min(UPLOAD_CONCURRENCY, -(-size_bytes // part_bytes) or 1)
    ) as concurrency:
        send_request(
            address,
            lambda store: store.put(
                address.key, Path(path), chunk_size=part_bytes, max_concurrency=concurrency
            ),
        )


def upload_all(
    root: str,
    files: Mapping[str, str],
    memory_bytes: int,
    on_uploaded: Callable[[str], None] = lambda name: None,
) -> None:
    """Creates or replaces objects from local files, concurrently.

    Args:
        root: The URI of the folder.
        files: The path of each file, by the name relative to the folder.
        memory_bytes: The memory limit of the command. Parts in progress take at most an eighth.
        on_uploaded: Called with the name of each finished object.
    """
    sizes = {name: Path(path).stat().st_size for name, path in files.items()}

    def put_one(name: str) -> None:
        upload_file(files[name], f"{root}/{name}", sizes[name])
        on_uploaded(name)

    small = [name for name, size in sizes.items() if size <= _SMALL_BYTES]
    large = [name for name, size in sizes.items() if size > _SMALL_BYTES]
    for names, file_bytes, max_concurrency in (
        (small, _SMALL_BYTES, _SMALL_CONCURRENCY),
        (large, UPLOAD_BYTES, _LARGE_CONCURRENCY),
    ):
        for _ in thread_map(
            put_one,
            names,
            max(1, min(max_concurrency, memory_bytes // _MEMORY_DIVISOR // file_bytes)),
        ):
            pass


def check_uploaded(root: str, files: Mapping[str, str]) -> None:
    """Checks that uploaded objects have the sizes of their files.

    Args:
        root: The URI of the folder.
        files: The path of each file, by the name relative to the folder.

    Raises:
        RecordmillError: An object is missing or has another size.
    """
    sizes = {name: Path(path).stat().st_size for name, path in files.items() if "/" in name}
    folders = {name.partition("/")[0] for name in sizes}
    object_sizes = {
        f"{folder}/{item.name}": item.size_bytes
        for folder in folders
        for item in list_objects(f"{root}/{folder}")
    }
    if missing := [name for name, size in sizes.items() if object_sizes.get(name) != size]:
        raise RecordmillError(
            f"{root}/{missing[0]}: is missing or changed after the upload; nothing was committed"
        )


def copy_object(source: str, target: str, size_bytes: int) -> None:
    """Copies an object within its store. Replaces an existing target.

    Args:
        source: The URI of the object.
        target: The URI of the copy.
        size_bytes: The size of the object.

    Raises:
        OSError: The object is larger than a store copies in one request, or the request failed.
    """
    old, new = Address.from_uri(source), Address.from_uri(target)
    assert old.root == new.root, (source, target)
    if size_bytes > MAX_COPY_BYTES:
        problem = f"of {size_bytes:,} bytes is more than stores copy ({MAX_COPY_BYTES:,}): make smaller shards"
        raise OSError(errno.EFBIG, problem, target)
    send_request(new, lambda store: store.copy(old.key, new.key))


def put_object_if_absent(uri: str, data: bytes) -> bool:
    """Creates an object, unless it exists.

    The content must be unique to the caller. If a response is lost, a comparison of the content
    shows whether this call created the object.

    Returns:
        Whether this caller created the object.

    Raises:
        OSError: The request failed, or its result is unknown.
    """
    address = Address.from_uri(uri)
    store = get_connection(address)
    try:
        with REQUEST_LIMIT.acquire():
            created = _create(store, address.key, data)
    except request_errors() as error:
        if _read_object(address) == data:
            return True
        raise to_store_error(error, address) from None
    # If the first response was lost and the request was repeated, `created` is false although this
    # call created the object.
    return created or _read_object(address) == data


def supports_conditional_put(uri: str, data: bytes) -> bool:
    """Returns whether the store refuses to create an object that exists.

    The object must exist and belong to the caller.
    """
    address = Address.from_uri(uri)
    return not send_request(address, lambda store: _create(store, address.key, data))


def _create(store: ObjectStore, key: str, data: bytes) -> bool:
    """Creates a small object unless it exists, and returns whether it was created."""
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    try:
        store.put(key, data, mode="create", use_multipart=False)
    except (AlreadyExistsError, PreconditionError):
        return False
    return True


def _read_object(address: Address) -> bytes | None:
    try:
        return bytes(send_request(address, lambda store: store.get(address.key).bytes()))
    except FileNotFoundError:
        return None


def remove_objects(root: str, keys: Sequence[str]) -> None:
    """Removes objects below a folder in the given order. Missing objects are ignored."""
    address = Address.from_uri(root)

    def delete(paths: Sequence[str]) -> None:
        send_request(address, lambda store: store.delete(paths))

    paths = [f"{address.key}/{name}" if address.key else name for name in keys]
    for begin in range(0, len(paths), MAX_DELETE_KEYS):
        batch = paths[begin : begin + MAX_DELETE_KEYS]
        try:
            delete(batch)
        except FileNotFoundError:  # one is missing, so the others are deleted one by one
            for path in batch:
                with contextlib.suppress(FileNotFoundError):
                    delete([path])


def list_objects(folder: str) -> Iterator[ListedObject]:
    """Yields the current objects below a folder."""
    for name, info in iter_objects(Address.from_uri(folder)):
        yield ListedObject(name, info["size"], info["last_modified"].timestamp())
