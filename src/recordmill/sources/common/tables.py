"""Tables of a plan's units, and of very many files that are almost alike."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.sources.common.contract import Unit
from recordmill.storage.file_table import FileTable, InputFile, Item, ItemTable


def take_file_batch(
    files: FileTable, ordinals: Sequence[int], most_bytes: int
) -> tuple[Sequence[InputFile], int]:
    """Returns (the first of these files that have no more bytes together, at least one; their bytes)."""
    some = files.items_at(ordinals)
    ends = list(accumulate(file.stat.size_bytes for file in some))
    count = max(bisect_right(ends, most_bytes), 1)
    return some[:count], ends[count - 1]


def unit_sizes(units: Sequence[Unit]) -> npt.NDArray[np.int64]:
    """[units] about how many bytes of records each gives."""
    return np.array([unit.size_bytes for unit in units], np.int64)


def count_unit_rows(units: Sequence[Unit]) -> int | None:
    """Returns how many records all of them give; None if the plan does not know it of each."""
    rows = [unit.rows for unit in units if unit.rows is not None]
    return sum(rows) if len(rows) == len(units) else None


class CompactTable(ItemTable[Item]):
    """Items of one frozen dataclass, without slots, that differ in some integers, and in little else: these as columns,
    and one item of each kind.

    templates: the items, with 0 in place of these integers; which: [items] each one's place among them; numbers: [items,
    names] int64.
    """

    def __init__(
        self,
        names: Sequence[str],
        kinds: Sequence[Item],
        which: npt.NDArray[np.unsignedinteger[Any]],
        numbers: npt.NDArray[np.int64],
    ) -> None:
        self._names, self.templates, self.template_ids, self._integers = (
            tuple(names),
            tuple(kinds),
            which,
            numbers,
        )

    def integers(self, name: str) -> npt.NDArray[np.int64]:
        """[items] that integer of each."""
        return self._integers[:, self._names.index(name)]

    @classmethod
    def from_items(cls, items: Iterable[Item], names: Sequence[str]) -> CompactTable[Item]:
        """Makes a table of items. names: of the fields that are such integers."""
        kinds: dict[Item, int] = {}
        which, numbers, nothing = array("I"), array("q"), dict.fromkeys(names, 0)
        for item in items:
            numbers.extend(getattr(item, name) for name in names)
            which.append(kinds.setdefault(replace(item, **nothing), len(kinds)))  # type: ignore[type-var]
        values = np.frombuffer(numbers, np.int64).reshape(-1, len(names))
        return cls(names, list(kinds), np.frombuffer(which, np.uint32), values)

    def __len__(self) -> int:
        return len(self.template_ids)

    def _item(self, at: int) -> Item:
        kind = self.templates[self.template_ids[at]]
        item: Item = object.__new__(type(kind))  # as replace makes it, in a tenth of the time
        vars(item).update(vars(kind))
        vars(item).update(zip(self._names, self._integers[at].tolist(), strict=True))
        return item
