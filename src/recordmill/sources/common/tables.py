"""Compact tables for many objects that differ only in numbers, and totals of units."""

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
    """Returns as many of the first files as fit into `max_bytes`.

    Args:
        files: All files.
        ordinals: Indices of the candidates in `files`. At least one.
        max_bytes: Maximum total size. The first file is taken even if it is larger.

    Returns:
        (the files, their total size).
    """
    candidates = files.items_at(ordinals)
    end_bytes = list(accumulate(file.stat.size_bytes for file in candidates))
    # At least one file, so that a file larger than the limit is read too.
    count = max(bisect_right(end_bytes, max_bytes), 1)
    return candidates[:count], end_bytes[count - 1]


def unit_sizes(units: Sequence[Unit]) -> npt.NDArray[np.int64]:
    """Returns the approximate size of each unit in bytes."""
    return np.array([unit.size_bytes for unit in units], np.int64)


def count_unit_rows(units: Sequence[Unit]) -> int | None:
    """Returns the total number of records, or None if it is unknown.

    The total is unknown if the number of records of some unit is unknown.
    """
    rows = [unit.rows for unit in units if unit.rows is not None]
    return sum(rows) if len(rows) == len(units) else None


class CompactTable(ItemTable[Item]):
    """A sequence of dataclass objects that mostly differ only in some integers.

    The integers are stored as columns. The remaining fields are stored once for each distinct
    combination. The dataclass must be frozen and must not have slots.

    Args:
        integer_names: Names of the integer fields that are stored as columns.
        templates: The distinct combinations of the other fields: objects with 0 in each integer
            field.
        template_ids: [items] The index of each item's template.
        integers: [items, integer fields] Their values.
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
        """Returns the values of one integer field, for all items."""
        return self._integers[:, self._names.index(name)]

    @classmethod
    def from_items(cls, items: Iterable[Item], integer_names: Sequence[str]) -> CompactTable[Item]:
        """Creates a table from items.

        Args:
            items: The objects.
            integer_names: Names of the integer fields that are stored as columns.
        """
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
        # Does the same as `dataclasses.replace`, in a tenth of the time.
        item: Item = object.__new__(type(template))
        vars(item).update(vars(template))
        vars(item).update(zip(self._names, self._integers[index].tolist(), strict=True))
        return item
