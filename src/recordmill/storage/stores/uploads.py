"""Writes to stores: whole objects, small ones from memory and large ones from files, and their removal.

An object appears whole or not at all, and nothing is renamed. A put whose answer is lost is resolved by reading back.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from recordmill.base.errors import RecordmillError
from recordmill.base.threads import thread_map
from recordmill.storage.stores.address import Address
from recordmill.storage.stores.client import (
    REQUEST_LIMIT,
    get_connection,
    iter_objects,
    request_errors,
    send_request,
    to_store_error,
)

UPLOAD_PART_BYTES = (
    8 << 20
)  # 8 MiB: of a large object, each a request; more where a store would not take so many parts
MAX_PARTS = 9_000  # stores take 10,000
MAX_DELETE_KEYS = 1000  # objects, the most that a store removes by one request
UPLOAD_CONCURRENCY = 4  # parts of one object that are under way, and in memory
UPLOAD_BYTES = UPLOAD_CONCURRENCY * UPLOAD_PART_BYTES  # of one object in memory
_SMALL_BYTES, _SMALL_CONCURRENCY = (
    1 << 20,
    32,
)  # files of up to 1 MiB: how many of them are put at once
_MEMORY_DIVISOR = 8  # of the memory: what a run has used before does not all go back to the system
_LARGE_CONCURRENCY = 8  # of others, of 32 MiB at most in memory each


class ListedObject(NamedTuple):
    """An object below a folder. name: relative to it; changed_sec: by the store's own clock."""

    name: str
    size_bytes: int
    modified_sec: float


def put_objects(root: str, objects: Mapping[str, bytes]) -> None:
    """Make or replace small objects below a folder, at once."""
    for _ in thread_map(
        lambda name: put_object(f"{root}/{name}", objects[name]), objects, _SMALL_CONCURRENCY
    ):
        pass


def put_object(uri: str, data: bytes) -> None:
    """Make or replace a small object."""
    address = Address.from_uri(uri)
    send_request(address, lambda client: client.put(address.key, data))


def upload_file(path: str, uri: str, size_bytes: int) -> None:
    """Make an object of a file of this machine."""
    address, part_bytes = Address.from_uri(uri), max(UPLOAD_PART_BYTES, -(-size_bytes // MAX_PARTS))
    with REQUEST_LIMIT.acquire(
        min(UPLOAD_CONCURRENCY, -(-size_bytes // part_bytes) or 1)
    ) as concurrency:
        send_request(
            address, lambda client: client.upload(address.key, path, part_bytes, concurrency)
        )


def upload_all(
    root: str,
    files: Mapping[str, str],
    memory_bytes: int,
    on_uploaded: Callable[[str], None] = lambda name: None,
) -> None:
    """Make objects of files of this machine, many at once. files: names below the root to paths; memory_bytes: what
    the command may hold, of which parts under way take an eighth; done: called with each name that is there.
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
    """Hold the objects, as the store lists them, against the files of which they were made; names as of `upload_all`.

    Raises:
        RecordmillError: an object is not there, or not as long as its file.
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
            f"{root}/{missing[0]}: is not there as it was put; nothing was committed"
        )


def copy_object(source: str, target: str, size_bytes: int) -> None:
    """Make or replace the object `target` of what `source` holds, within the store.

    Raises:
        OSError: it is larger than what stores copy by one request.
    """
    old, new = Address.from_uri(source), Address.from_uri(target)
    assert old.root == new.root, (source, target)
    max_bytes = get_connection(new).max_copy_bytes
    if max_bytes is None or size_bytes <= max_bytes:
        send_request(new, lambda client: client.move_or_copy(old.key, new.key))
        return
    problem = (
        f"of {size_bytes:,} bytes is more than stores copy ({max_bytes:,}): make smaller shards"
    )
    raise OSError(errno.EFBIG, problem, target)


def put_object_if_absent(uri: str, data: bytes) -> bool:
    """Create the object with this content, which no other writer has, unless it is there; says whether it is ours.

    Raises:
        OSError: the put failed, or its result can't be known; nothing may be concluded from it.
    """
    address = Address.from_uri(uri)
    connection = get_connection(address)
    try:
        with REQUEST_LIMIT.acquire():
            created = connection.create(address.key, data)
    except request_errors() as error:
        if _read_object(address) == data:
            return True
        raise to_store_error(error, address) from None
    # it is ours, too, where the first answer was lost and the request was repeated
    return created or _read_object(address) == data


def supports_conditional_put(uri: str, data: bytes) -> bool:
    """Returns whether the store heeds the condition of such a put; asked by one for an object of its own there."""
    address = Address.from_uri(uri)
    return not send_request(address, lambda client: client.create(address.key, data))


def _read_object(address: Address) -> bytes | None:
    try:
        return bytes(send_request(address, lambda client: client.get(address.key).bytes()))
    except FileNotFoundError:
        return None


def remove_objects(root: str, keys: Sequence[str]) -> None:
    """Removes objects below a folder by their names, in that order; those that are gone already are no error."""
    address = Address.from_uri(root)

    def delete(paths: Sequence[str]) -> None:
        send_request(address, lambda client: client.delete(paths, address.key))

    paths = [f"{address.key}/{name}" if address.key else name for name in keys]
    for begin in range(0, len(paths), MAX_DELETE_KEYS):
        batch = paths[begin : begin + MAX_DELETE_KEYS]
        try:
            delete(batch)
        except FileNotFoundError:  # one of them is gone: the others are asked for by themselves
            for path in batch:
                with contextlib.suppress(FileNotFoundError):
                    delete([path])


def list_objects(folder: str) -> Iterator[ListedObject]:
    """The objects below a folder, as the store has them now."""
    for name, info in iter_objects(Address.from_uri(folder)):
        yield ListedObject(name, info["size"], info["last_modified"].timestamp())
