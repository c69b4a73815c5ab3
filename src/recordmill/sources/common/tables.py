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
    files: FileTable, ordinals: Sequence[int], max_bytes: int
) -> tuple[Sequence[InputFile], int]:
    """Returns (the first of these files that have no more bytes together, at least one; their bytes)."""
    candidates = files.items_at(ordinals)
    end_bytes = list(accumulate(file.stat.size_bytes for file in candidates))
    count = max(bisect_right(end_bytes, max_bytes), 1)
    return candidates[:count], end_bytes[count - 1]


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
        integer_names: Sequence[str],
        templates: Sequence[Item],
        template_ids: npt.NDArray[np.unsignedinteger[Any]],
        integers: npt.NDArray[np.int64],
    ) -> None:
        self._names = tuple(integer_names)
        self.templates = tuple(templates)
        self.template_ids = template_ids
        self._integers = integers

    def integers(self, name: str) -> npt.NDArray[np.int64]:
        """[items] that integer of each."""
        return self._integers[:, self._names.index(name)]

    @classmethod
    def from_items(cls, items: Iterable[Item], integer_names: Sequence[str]) -> CompactTable[Item]:
        """Makes a table of items. names: of the fields that are such integers."""
        ids_by_template: dict[Item, int] = {}
        template_ids, integers, zeros = array("I"), array("q"), dict.fromkeys(integer_names, 0)
        for item in items:
            integers.extend(getattr(item, name) for name in integer_names)
            template = replace(item, **zeros)  # type: ignore[type-var]
            template_ids.append(ids_by_template.setdefault(template, len(ids_by_template)))
        values = np.frombuffer(integers, np.int64).reshape(-1, len(integer_names))
        return cls(
            integer_names, list(ids_by_template), np.frombuffer(template_ids, np.uint32), values
        )

    def __len__(self) -> int:
        return len(self.template_ids)

    def _item(self, index: int) -> Item:
        template = self.templates[self.template_ids[index]]
        item: Item = object.__new__(type(template))  # as replace makes it, in a tenth of the time
        vars(item).update(vars(template))
        vars(item).update(zip(self._names, self._integers[index].tolist(), strict=True))
        return item
