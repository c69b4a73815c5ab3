"""Units and what else a plan knows of very many things as columns: 64 bytes of a unit, where an object takes five times
as much. A table is a sequence whose items are made when they are asked for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.sources.common.contract import Source, Unit
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.lazy_table import Item, Table

_FILES = ("first_file", "last_file")
_SCHEMA = pa.schema([(field.name, pa.uint32() if field.name in _FILES else pa.int64()) for field in fields(Unit)])


class UnitTable(Table[Unit]):
    """The units of a plan, a column for each of their fields."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows

    @classmethod
    def of(cls, units: Sequence[Unit]) -> UnitTable:
        """Makes a table of units."""
        values = ([getattr(unit, name) for unit in units] for name in _SCHEMA.names)
        columns = [pa.array(some, kind) for some, kind in zip(values, _SCHEMA.types, strict=True)]
        return cls(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def some(self, places: Sequence[int]) -> list[Unit]:
        if isinstance(places, range) and places.step == 1:
            rows = self._rows.slice(places.start, len(places))
        else:
            rows = self._rows.take(pa.array(places, pa.int64()))
        return [Unit(*values) for values in zip(*(column.to_pylist() for column in rows.columns), strict=True)]

    def column(self, name: str) -> pa.Array:
        """Returns one field of all units."""
        return self._rows.column(name)


def batch_of(files: FileTable, ordinals: Sequence[int], most_bytes: int) -> tuple[Sequence[InputFile], int]:
    """Returns (the first of these files that have no more bytes together, at least one; their bytes)."""
    some = files.some(ordinals)
    ends = list(accumulate(file.stat.size_bytes for file in some))
    count = max(bisect_right(ends, most_bytes), 1)
    return some[:count], ends[count - 1]


def unit_sizes(units: Sequence[Unit]) -> npt.NDArray[np.int64]:
    """[units] about how many bytes of records each gives."""
    if isinstance(units, UnitTable):
        sizes: npt.NDArray[np.int64] = units.column("size_bytes").to_numpy()
        return sizes
    return np.array([unit.size_bytes for unit in units], np.int64)


def table_rows(units: Sequence[Unit]) -> int | None:
    """Returns how many records all of them give; None if the plan does not know it of each."""
    rows = (units if isinstance(units, UnitTable) else UnitTable.of(units)).column("rows")
    return None if rows.null_count else int(pc.sum(rows).as_py() or 0)


def with_unit_table(source: Source) -> Source:
    """Returns the source with its units as a table; a user's own stays as it was made."""
    names: set[str] = {field.name for field in fields(source)} if is_dataclass(source) else set()
    if "units" not in names:
        return source
    table: Source = replace(source, units=UnitTable.of(source.units))  # type: ignore[type-var]
    return table


class Alike(Table[Item]):
    """Items of one frozen dataclass, without slots, that differ in some integers, and in little else: these as columns,
    and one item of each kind.

    kinds: the items, with 0 in place of these integers; which: [items] each one's place among them; numbers: [items,
    names] int64.
    """

    def __init__(
        self,
        names: Sequence[str],
        kinds: Sequence[Item],
        which: npt.NDArray[np.unsignedinteger[Any]],
        numbers: npt.NDArray[np.int64],
    ) -> None:
        self._names, self.kinds, self.which, self._numbers = tuple(names), tuple(kinds), which, numbers

    def numbers(self, name: str) -> npt.NDArray[np.int64]:
        """[items] that integer of each."""
        return self._numbers[:, self._names.index(name)]

    @classmethod
    def of(cls, items: Iterable[Item], names: Sequence[str]) -> Alike[Item]:
        """Makes a table of items. names: of the fields that are such integers."""
        kinds: dict[Item, int] = {}
        which, numbers, nothing = array("I"), array("q"), dict.fromkeys(names, 0)
        for item in items:
            numbers.extend(getattr(item, name) for name in names)
            which.append(kinds.setdefault(replace(item, **nothing), len(kinds)))  # type: ignore[type-var]
        values = np.frombuffer(numbers, np.int64).reshape(-1, len(names))
        return cls(names, list(kinds), np.frombuffer(which, np.uint32), values)

    def __len__(self) -> int:
        return len(self.which)

    def _item(self, at: int) -> Item:
        kind = self.kinds[self.which[at]]
        item: Item = object.__new__(type(kind))  # as replace makes it, in a tenth of the time
        vars(item).update(vars(kind))
        vars(item).update(zip(self._names, self._numbers[at].tolist(), strict=True))
        return item


class RangeTable(Table[range]):
    """Consecutive ranges of numbers, by where each begins and the last one ends: [ranges + 1]."""

    def __init__(self, edges: npt.NDArray[np.int64]) -> None:
        self._edges = edges

    def __len__(self) -> int:
        return len(self._edges) - 1

    def _item(self, at: int) -> range:
        return range(int(self._edges[at]), int(self._edges[at + 1]))
