"""What is written to stores: whole objects, small ones from memory and large ones from files, and their removal.

An object appears whole or not at all, and nothing is renamed. A put whose answer is lost is resolved by reading back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from recordmill.storage.stores.address import Address
from recordmill.storage.stores.client import ask, client, errors, told

PART_BYTES = 8 << 20  # 8 MiB: of a large object, each a request; more where a store would not take so many parts
MOST_PARTS = 9_000  # stores take 10,000
AT_ONCE = 4  # parts of one object that are under way, and in memory


class Listed(NamedTuple):
    """An object below a folder. name: relative to it; changed_sec: by the store's own clock."""

    name: str
    size_bytes: int
    changed_sec: float


def put(uri: str, data: bytes) -> None:
    """Make or replace a small object."""
    import obstore

    address = _address(uri)
    ask(address, lambda client: obstore.put(client, address.key, data, use_multipart=False))


def upload(path: str, uri: str, size_bytes: int) -> None:
    """Make an object of a file of this machine."""
    import obstore

    address, part_bytes = _address(uri), max(PART_BYTES, -(-size_bytes // MOST_PARTS))
    ask(
        address,
        lambda client: obstore.put(client, address.key, Path(path), chunk_size=part_bytes, max_concurrency=AT_ONCE),
    )


def put_if_absent(uri: str, data: bytes) -> bool:
    """Create the object with this content, which no other writer has, unless it is there; says whether it is ours.

    Raises:
        OSError: the put failed, or its result can't be known; nothing may be concluded from it.
    """
    import obstore
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    address = _address(uri)
    connection = client(address)
    try:
        obstore.put(connection, address.key, data, mode="create", use_multipart=False)
    except (AlreadyExistsError, PreconditionError):
        return _content(address) == data  # ours, where the first answer was lost and the request was repeated
    except errors() as error:
        if _content(address) == data:
            return True
        raise told(error, address) from None
    return True


def _content(address: Address) -> bytes | None:
    import obstore

    try:
        return bytes(ask(address, lambda client: obstore.get(client, address.key).bytes()))
    except FileNotFoundError:
        return None


def remove(root: str, keys: Sequence[str]) -> None:
    """Remove objects below a folder by their names there; those that are gone already are no error."""
    import obstore

    address = _address(root)
    for name in keys:
        key = f"{address.key}/{name}" if address.key else name
        try:
            ask(address, lambda client, key=key: obstore.delete(client, key))  # type: ignore[misc]
        except FileNotFoundError:
            continue


def listed(folder: str) -> Iterator[Listed]:
    """The objects below a folder, as the store has them now."""
    import obstore

    address = _address(folder)
    prefix = f"{address.key}/" if address.key else ""
    pages = ask(address, lambda client: obstore.list(client, address.key or None, chunk_size=1000))
    try:
        for page in pages:
            for about in page:
                if about["path"].startswith(prefix):
                    yield Listed(about["path"][len(prefix) :], about["size"], about["last_modified"].timestamp())
    except errors() as error:
        raise told(error, address) from None


def _address(uri: str) -> Address:
    address = Address.parse(uri)
    assert address is not None, uri
    return address
