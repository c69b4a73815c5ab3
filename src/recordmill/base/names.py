"""Tables of names that the native library extends while it reads.

A name is the name of a feature, or a key of JSON objects.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recordmill.base import native
from recordmill.base.buffers import Int64s

_HEAD, _SLOT = np.dtype(native.NamesHead), np.dtype(native.NameSlot)


def make_name_table(
    max_names: int, max_text_bytes: int, names: Sequence[tuple[bytes, int]] = ()
) -> Int64s:
    """Returns a table for the native library that contains `names`.

    A name has a part: a number that distinguishes equal names. See native/recordmill.h.

    >>> names_in_table(make_name_table(9, 99, [(b"a", 1), (b"bc", 2)]))
    [(b'a', 1), (b'bc', 2)]

    Args:
        max_names: The maximum number of names in the table.
        max_text_bytes: The maximum total size of the names.
        names: (name, part) of each initial name.
    """
    texts, parts = (
        [np.frombuffer(name, np.uint8) for name, _ in names],
        np.array([part for _, part in names], np.int64),
    )
    table_arguments = max_names, max_text_bytes, texts, parts
    # Without a table, the function returns the size that the table needs.
    table = np.empty(native.make_names(None, *table_arguments), np.int64)
    native.make_names(table, *table_arguments)
    return table


def names_in_table(table: Int64s, first: int = 1) -> list[tuple[bytes, int]]:
    """Returns the names in a table and their parts, in the order of insertion.

    See `make_name_table` for the meaning of a part.

    Args:
        table: A table from `make_name_table`, perhaps with names that the native library has added.
        first: Index of the first slot to return. The default 1 skips slot 0, which represents the
            start of a record and has no name.

    Returns:
        (name, part) of each name.
    """
    # The table consists of its head, the slots and the bytes of the names.
    head = np.frombuffer(table, _HEAD, 1)[0]
    slots = np.frombuffer(table, _SLOT, head["used_slots"], _HEAD.itemsize)[first:]
    texts = table.view(np.uint8)[_HEAD.itemsize + _SLOT.itemsize * head["slots"] :]
    return [
        (texts[start : start + size].tobytes(), part)
        for start, size, part in slots[["text", "size", "part"]].tolist()
    ]
