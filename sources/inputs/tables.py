"""Input files and units as columns: about a hundred bytes of a file, 56 of a unit, where objects take five to ten times
as much. A table is a sequence whose items are made when they are asked for, and can be pickled.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import accumulate, islice
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.sources.inputs.contract import Source, Unit
from recordmill.storage.digest import BLAKE3, combine
from recordmill.storage.files import Stat
from recordmill.storage.listed.coded import Coded
from recordmill.storage.listed.files import InputFile, ListedFiles, StoredFiles
from recordmill.storage.listed.table import Item, Table

_AT_ONCE = 1 << 12  # files whose objects are there at once
_NAMES = tuple(Unit.__dataclass_fields__)
_ROWS, _SIZES = (_NAMES.index(name) for name in ("rows", "size_bytes"))
_fields = attrgetter(*_NAMES)


class FileTable(ListedFiles):
    """The files of a plan.

    A path is a stem, of which many files share one, and the file's name; of files whose path does not end with the
    name the stem is all of it.
    """

    def __init__(self, columns: pa.RecordBatch, stems: Sequence[str], splits: Sequence[str]) -> None:
        self._columns, self._stems, self._splits = columns, tuple(stems), tuple(splits)
        self._open()

    def _open(self) -> None:
        self._split, self._size = (self._columns[name].to_numpy() for name in ("split", "size_bytes"))

    @classmethod
    def of(cls, files: Iterable[InputFile]) -> FileTable:
        """The same files in the same order."""
        stems: dict[str, int] = {}
        splits: dict[str, int] = {}
        parts, left = [], iter(files)
        while some := list(islice(left, _AT_ONCE)):
            parts.append(_columns(some, stems, splits))
        table = pa.Table.from_batches(parts, _SCHEMA).combine_chunks()
        batches = table.to_batches()
        return cls(batches[0] if batches else _columns([], stems, splits), list(stems), list(splits))

    def __len__(self) -> int:
        return int(self._columns.num_rows)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """[files] in bytes."""
        sizes: npt.NDArray[np.int64] = self._size
        return sizes

    @property
    def splits(self) -> Coded:
        return Coded(np.where(self._split < 0, len(self._splits), self._split).astype(np.uint32), (*self._splits, None))

    def _item(self, at: int) -> InputFile:
        return self.some((at,))[0]

    def some(self, places: Sequence[int]) -> list[InputFile]:
        if isinstance(places, range) and places.step == 1:  # a part of the columns, as it is
            some = self._columns.slice(places.start, len(places))
        else:
            some = self._columns.take(pa.array(places, pa.int64()))
        return list(map(self._file, *(column.to_pylist() for column in some.columns)))

    def __iter__(self) -> Iterator[InputFile]:
        for first in range(0, len(self), _AT_ONCE):
            yield from self.some(range(first, min(first + _AT_ONCE, len(self))))

    def _file(self, root: int, name: bytes, stem: int, split: int, size: int, mtime: int, etag: bytes) -> InputFile:
        text = os.fsdecode(name)
        path = self._stems[stem] + text if stem >= 0 else self._stems[-1 - stem]
        about = Stat(size, mtime, etag.decode())
        return InputFile(root, text, path, about, None if split < 0 else self._splits[split])

    def __getstate__(self) -> Any:
        return self._columns, self._stems, self._splits

    def __setstate__(self, state: Any) -> None:
        self._columns, self._stems, self._splits = state
        self._open()


_SCHEMA = pa.schema(
    {
        "root": pa.int32(),
        "name": pa.large_binary(),
        "stem": pa.int32(),
        "split": pa.int32(),
        "size_bytes": pa.int64(),
        "mtime_ns": pa.int64(),
        "etag": pa.large_binary(),
    }
)


def _columns(files: Sequence[InputFile], stems: dict[str, int], splits: dict[str, int]) -> pa.RecordBatch:
    def stem(file: InputFile) -> int:
        if file.path.endswith(file.name):
            return stems.setdefault(file.path[: len(file.path) - len(file.name)], len(stems))
        return -1 - stems.setdefault(file.path, len(stems))

    def split(file: InputFile) -> int:
        return -1 if file.split is None else splits.setdefault(file.split, len(splits))

    values = {
        "root": [file.root for file in files],
        "name": [os.fsencode(file.name) for file in files],
        "stem": [stem(file) for file in files],
        "split": [split(file) for file in files],
        "size_bytes": [file.stat.size_bytes for file in files],
        "mtime_ns": [file.stat.mtime_ns for file in files],
        "etag": [file.stat.etag.encode() for file in files],
    }
    return pa.RecordBatch.from_pydict(values, _SCHEMA)


class UnitTable(Table[Unit]):
    """The units of a plan. values: [units, 7] int64, the fields of each in their order; rows are -1 where unknown."""

    def __init__(self, values: npt.NDArray[np.int64]) -> None:
        self._values = values

    @classmethod
    def of(cls, units: Sequence[Unit]) -> UnitTable:
        """The same units in the same order."""
        values = np.empty((len(units), len(_NAMES)), np.int64)
        for at, unit in enumerate(units):
            values[at] = [-1 if value is None else value for value in _fields(unit)]
        return cls(values)

    def __len__(self) -> int:
        return len(self._values)

    def _item(self, at: int) -> Unit:
        row: list[Any] = self._values[at].tolist()
        row[_ROWS] = None if row[_ROWS] < 0 else row[_ROWS]
        return Unit(*row)

    @property
    def values(self) -> npt.NDArray[np.int64]:
        """[units, 7]."""
        return self._values


def sizes_of(files: Sequence[InputFile]) -> npt.NDArray[np.int64]:
    """[files] how large each is; a table makes no objects for it."""
    if isinstance(files, FileTable):
        return files.sizes
    return np.array([file.stat.size_bytes for file in files], np.int64)


def files_at(files: Sequence[InputFile], ordinals: Sequence[int]) -> Sequence[InputFile]:
    """The files of these ordinals, of which a table makes objects at once."""
    return files.some(ordinals) if isinstance(files, Table) else [files[ordinal] for ordinal in ordinals]


def batch_of(files: Sequence[InputFile], ordinals: Sequence[int], most_bytes: int) -> tuple[Sequence[InputFile], int]:
    """(of the files of these ordinals the first that together have no more bytes, or the first one; their bytes)."""
    some = files_at(files, ordinals)
    ends = list(accumulate(file.stat.size_bytes for file in some))
    count = max(bisect_right(ends, most_bytes), 1)
    return some[:count], ends[count - 1]


def bytes_of(files: Sequence[InputFile]) -> int:
    """How large all of them are together."""
    if isinstance(files, FileTable):
        return int(files.sizes.sum())
    return sum(file.stat.size_bytes for file in files)


def unit_sizes(units: Sequence[Unit]) -> npt.NDArray[np.int64]:
    """[units] about how many bytes of records each gives."""
    if isinstance(units, UnitTable):
        return units.values[:, _SIZES]
    return np.array([unit.size_bytes for unit in units], np.int64)


def rows_of(units: Sequence[Unit]) -> int | None:
    """How many records all of them give; None if the plan does not know it of each."""
    table = units if isinstance(units, UnitTable) else UnitTable.of(units)
    rows = table.values[:, _ROWS]
    return None if (rows < 0).any() else int(rows.sum())


def as_tables(source: Source, here: bool = True) -> Source:
    """The source with its files and units as tables; a user's own stays as it was made. here: this process reads the
    files, in any order; else a list of them on a disk is left there.
    """
    names: set[str] = {field.name for field in fields(source)} if is_dataclass(source) else set()
    if not {"files", "units"} <= names:
        return source
    files = source.files if isinstance(source.files, StoredFiles) and not here else FileTable.of(source.files)
    table: Source = replace(source, files=files, units=UnitTable.of(source.units))  # type: ignore[type-var]
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
        self._names, self._kinds, self._which, self._numbers = tuple(names), tuple(kinds), which, numbers

    @classmethod
    def of(cls, items: Iterable[Item], names: Sequence[str]) -> Alike[Item]:
        """The same items in the same order. names: of the fields that are such integers."""
        kinds: dict[Item, int] = {}
        which, numbers, nothing = array("I"), array("q"), dict.fromkeys(names, 0)
        for item in items:
            numbers.extend(getattr(item, name) for name in names)
            which.append(kinds.setdefault(replace(item, **nothing), len(kinds)))  # type: ignore[type-var]
        values = np.frombuffer(numbers, np.int64).reshape(-1, len(names))
        return cls(names, list(kinds), np.frombuffer(which, np.uint32), values)

    def __len__(self) -> int:
        return len(self._which)

    def _item(self, at: int) -> Item:
        kind = self._kinds[self._which[at]]
        item: Item = object.__new__(type(kind))  # as replace makes it, in a tenth of the time
        vars(item).update(vars(kind))
        vars(item).update(zip(self._names, self._numbers[at].tolist(), strict=True))
        return item


class DigestTable(Mapping[int, str]):
    """Ordinal of a file to its digest, of files [0, n) that all have one, 32 bytes each."""

    def __init__(self, values: bytes) -> None:
        self._values = values

    def __getitem__(self, file: int) -> str:
        if not 0 <= file < len(self):
            raise KeyError(file)
        return f"{BLAKE3}:{self._values[32 * file : 32 * file + 32].hex()}"

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self._values) // 32


class ChunkDigests:
    """Digests of the chunks of all files as they come, file by file and in order, to those of the files."""

    def __init__(self) -> None:
        self._values, self._file, self._held = bytearray(), -1, list[bytes]()

    def add(self, file: int, digests: Iterable[bytes]) -> None:
        """The next chunks, of the same file as before or the next one."""
        if file != self._file:
            self._end()
        self._file = file
        self._held.extend(digests)

    def table(self) -> DigestTable:
        """Those of the files, when all have come."""
        self._end()
        return DigestTable(bytes(self._values))

    def _end(self) -> None:
        if self._file >= 0:
            self._values += bytes.fromhex(combine(self._held).removeprefix(f"{BLAKE3}:"))
        self._file, self._held = -1, []


class RangeTable(Table[range]):
    """Consecutive ranges of numbers, by where each begins and the last one ends: [ranges + 1]."""

    def __init__(self, edges: npt.NDArray[np.int64]) -> None:
        self._edges = edges

    def __len__(self) -> int:
        return len(self._edges) - 1

    def _item(self, at: int) -> range:
        return range(int(self._edges[at]), int(self._edges[at + 1]))
