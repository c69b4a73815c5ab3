"""Tables of names, which the native library fills while it reads: the names of features, or the keys of JSON."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recordmill.base import native
from recordmill.base.buffers import Int64s

_HEAD, _SLOT = np.dtype(native.NamesHead), np.dtype(native.NameSlot)


def make_name_table(
    max_names: int, max_text_bytes: int, names: Sequence[tuple[bytes, int]] = ()
) -> Int64s:
    """Returns a table with room for so many names, of so many bytes, that begins with these names and their parts (see
    native/recordmill.h).

    >>> names_in_table(make_name_table(9, 99, [(b"a", 1), (b"bc", 2)]))
    [(b'a', 1), (b'bc', 2)]
    """
    texts, parts = (
        [np.frombuffer(name, np.uint8) for name, _ in names],
        np.array([part for _, part in names], np.int64),
    )
    table_arguments = max_names, max_text_bytes, texts, parts
    table = np.zeros(native.make_names(None, *table_arguments), np.int64)
    native.make_names(table, *table_arguments)
    return table


def names_in_table(table: Int64s, first: int = 1) -> list[tuple[bytes, int]]:
    """Returns the names in the slots from the first one on, and their parts."""
    head = np.frombuffer(table, _HEAD, 1)[0]
    slots = np.frombuffer(table, _SLOT, head["used"], _HEAD.itemsize)[first:]
    texts = table.view(np.uint8)[_HEAD.itemsize + _SLOT.itemsize * head["slots"] :]
    return [
        (texts[start : start + size].tobytes(), part)
        for start, size, part in slots[["text", "size", "part"]].tolist()
    ]
