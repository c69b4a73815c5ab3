"""Files that other machines are to find, on a disk that they share or in a store: made whole under a name of their own
first, then given the name by which others know them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial

import numpy as np

from recordmill.storage.stores.address import Address
from recordmill.storage.stores.client import ask, client, told
from recordmill.storage.stores.limit import LIMIT
from recordmill.storage.stores.objects import ObjectStorage
from recordmill.storage.stores.writing import MOST_PARTS, PART_BYTES


def copy_object(objects: ObjectStorage, source: str, target: str, size_bytes: int) -> None:
    """Make or replace the object `target` of what `source` holds, within the store where it does that."""
    old, new = Address.parse(source), Address.parse(target)
    assert old is not None
    assert new is not None
    assert old.root == new.root, (source, target)
    most = client(new).most_named_bytes
    if most is None or size_bytes <= most:
        ask(new, lambda client: client.name(old.key, new.key))
        return

    part_bytes = max(PART_BYTES, -(-size_bytes // MOST_PARTS))
    # what is not closed is no object; reading and writing take turns with the slots, for who reads may wait for others
    writer = ask(new, lambda client: client.writer(new.key, part_bytes))
    with contextlib.closing(objects.open(source)) as reader:
        for at in range(0, size_bytes, PART_BYTES):
            block = reader.fill(np.empty(min(PART_BYTES, size_bytes - at), np.uint8), at)
            _within(new, partial(writer.write, block.tobytes()))
    _within(new, writer.close)


def _within(address: Address, call: Callable[[], object]) -> None:
    """Do it in a slot for requests; what the store says of it is said in a sentence of our own."""
    with LIMIT.slots():
        try:
            call()
        except OSError as error:
            raise told(error, address) from None


def move_file(source: str, target: str) -> None:
    """Give a file of a disk the name, in place of what has it; nothing where that was done before: the source is gone,
    and the name taken.
    """
    try:
        os.replace(source, target)
    except FileNotFoundError:
        os.stat(target)
