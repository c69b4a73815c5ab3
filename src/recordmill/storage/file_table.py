"""The input files of a plan as one Arrow table: in memory, or beyond HELD_ROWS in a file of the run, of which workers
read slices. Files are objects only while they are asked for.

What each file is stands in columns of their own, its split in another; a kind of input adds what it knows of each file
(a class, where its rows begin). A column of few different values is dictionary-encoded: a narrow number for each file,
and the values once (`words`), which stay in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.storage import external_sort
from recordmill.storage.lazy_table import FILE_ROWS, BlockTable, FileBatches, TableBatches
from recordmill.storage.stores.protocol import Stat

SPLIT_COLUMN = "split"
_AS_NAMES = ("utf-8", "surrogateescape")
_AT_ONCE = 1 << 12  # files that are Python's objects at once

Numbers = npt.NDArray[np.integer[Any]]
Ordinals = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input file.

    root: the ordinal of the INPUT it was found under; name: its path relative to that root, with `/`; never absolute.
    path: where to open it. stat: what it was when it was listed. split: what its folders or its name say, or None.
    """

    root: int
    name: str
    path: str
    stat: Stat
    split: str | None = None


# stem: the number of what stands in front of the name in the path; path: of files whose path doesn't end with the name
_SCHEMA = pa.schema(
    {
        "file/root": pa.int32(),
        "file/name": pa.binary(),
        "file/stem": pa.int32(),
        "file/path": pa.binary(),
        "file/size_bytes": pa.int64(),
        "file/mtime_ns": pa.int64(),
        "file/etag": pa.binary(),
        "file/ctime_ns": pa.int64(),
    }
)
_STEM = "file/stem"


class FileTable(BlockTable[InputFile]):
    """stored: the columns as they were listed. words: of the columns that are dictionary-encoded, which then hold
    numbers, the values. chosen: [files] which rows are meant, ascending; None: all. added: [files] further columns.
    """

    def __init__(
        self,
        stored: TableBatches,
        words: Mapping[str, pa.Array],
        chosen: npt.NDArray[np.uint32] | None = None,
        added: Mapping[str, pa.Array] | None = None,
    ) -> None:
        self._stored, self._words, self._chosen, self._added = stored, dict(words), chosen, dict(added or {})
        self._stems = [stem.decode(*_AS_NAMES) for stem in self._words[_STEM].to_pylist()]

    @classmethod
    def of(cls, files: Iterable[InputFile], folder: str | None = None) -> FileTable:
        """The same files in the same order. folder: where a file of very many lies; None: among the system's temporary
        files.
        """
        if isinstance(files, FileTable):
            return files
        stems, splits = dict[str, int](), dict[str | None, int]()
        numbers = list[Numbers]()

        def each() -> Iterator[pa.RecordBatch]:
            left = iter(files)
            while some := list(islice(left, FILE_ROWS)):
                told = np.array([splits.setdefault(file.split, len(splits)) for file in some])
                numbers.append(told.astype(np.min_scalar_type(len(splits))))
                yield _batch(some, stems)

        coming, held, count = each(), [_batch([], stems)], 0
        while count < external_sort.HELD_ROWS and (batch := next(coming, None)) is not None:
            held.append(batch)
            count += batch.num_rows
        stored = TableBatches(pa.concat_batches(held))
        if count >= external_sort.HELD_ROWS:
            stored = FileBatches.write(_SCHEMA, chain(held[1:], coming), FILE_ROWS, folder)
        table = cls(stored, {_STEM: _words(stems)})
        return table.with_column(SPLIT_COLUMN, coded(np.concatenate(numbers), list(splits))) if any(splits) else table

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns beside those that all files have."""
        own = (name for name in self._stored.schema.names if name not in _SCHEMA.names)
        return (*(name for name in own if name not in self._added), *self._added)

    def __len__(self) -> int:
        return self._stored.length if self._chosen is None else len(self._chosen)

    def filter(self, keep: npt.NDArray[np.bool_]) -> FileTable:
        """Those files where keep says so: [files]."""
        if keep.all():
            return self
        places = np.flatnonzero(keep).astype(np.uint32)
        rows = places if self._chosen is None else self._chosen[places]
        words, added, mask = dict(self._words), dict[str, pa.Array](), pa.array(keep)
        for name, values in self._added.items():
            added[name] = values.filter(mask)
            if name in words:
                words[name], added[name] = _used(words[name], added[name])
        return FileTable(self._stored, words, rows, added)

    def with_column(self, name: str, values: pa.Array) -> FileTable:
        """The files with one more column, or another in place of that: [files]."""
        words = {other: kept for other, kept in self._words.items() if other != name}
        if isinstance(values, pa.DictionaryArray):
            words[name], values = _used(values.dictionary, values.indices)
        return FileTable(self._stored, words, self._chosen, {**self._added, name: values})

    def without(self, names: Sequence[str]) -> FileTable:
        """The files without these columns, which were added here."""
        words, added = (
            {name: kept for name, kept in some.items() if name not in names} for some in (self._words, self._added)
        )
        return FileTable(self._stored, words, self._chosen, added)

    def with_splits(self, splits: pa.DictionaryArray) -> FileTable:
        """The files with these splits, one per file."""
        return self.with_column(SPLIT_COLUMN, splits)

    @property
    def splits(self) -> pa.DictionaryArray:
        """The split of each file."""
        return self.column(SPLIT_COLUMN) if SPLIT_COLUMN in self.columns else nothing(len(self))

    def words(self, name: str) -> pa.Array:
        """The values that files have in the column: of one that is dictionary-encoded each of them once."""
        return self._words[name] if name in self._words else self.column(name)

    def column(self, name: str) -> pa.Array:
        """The values of all files, dictionary-encoded where they are few."""
        if (values := self._added.get(name)) is None:
            parts = [batch.column(name) for batch in self.batches((name,))]
            values = pa.concat_arrays([pa.array([], self._stored.schema.field(name).type), *parts])
        return pa.DictionaryArray.from_arrays(values, self._words[name]) if name in self._words else values

    def is_coded(self, name: str) -> bool:
        """Whether the column is dictionary-encoded."""
        return name in self._words

    def take(self, files: Ordinals, names: Sequence[str]) -> dict[str, pa.Array]:
        """These columns of the files of these ordinals."""
        rows = self._rows(files, names)
        values = dict(zip(names, rows.columns, strict=True))
        return {n: self._words[n].take(column) if n in self._words else column for n, column in values.items()}

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """[files] in bytes."""
        return np.concatenate([np.empty(0, np.int64), *self.sizes_in_parts()])

    def numbers(self, name: str, files: Ordinals) -> Numbers:
        """Of a column that is dictionary-encoded, the places in its words of these files' values."""
        found: Numbers = self._rows(files, (name,)).column(0).to_numpy()
        return found

    def marked(self, name: str, files: Iterable[int]) -> FileTable:
        """The files with a column of truth values, which holds of these; without it where it holds of none."""
        marks = np.zeros(len(self), np.bool_)
        marks[list(files)] = True
        return self.with_column(name, pa.array(marks)) if marks.any() else self

    def is_marked(self, name: str, file: int) -> bool:
        """Whether a column of truth values, which need not be there, says it of that file."""
        return name in self.columns and bool(self.take((file,), (name,))[name][0].as_py())

    def sizes_in_parts(self) -> Iterator[npt.NDArray[np.int64]]:
        """`sizes`, some after the other."""
        for batch in self.batches(("file/size_bytes",)):
            yield batch.column(0).to_numpy()

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(int(sizes.sum()) for sizes in self.sizes_in_parts())

    def names(self) -> Iterator[str]:
        """The name of each file."""
        for _, name in self.named():
            yield name

    def named(self) -> Iterator[tuple[int, str]]:
        """(root, name) of each file."""
        for batch in self.batches(("file/root", "file/name")):
            for first in range(0, batch.num_rows, _AT_ONCE):
                roots, names = (column.to_pylist() for column in batch.slice(first, _AT_ONCE).columns)
                yield from zip(roots, (name.decode(*_AS_NAMES) for name in names), strict=True)

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of all files, in order and in parts, numbers where they are dictionary-encoded."""
        first = start = 0
        for stored in self._stored.passed():
            stop = start + stored.num_rows
            if self._chosen is None:
                rows, count = stored, stored.num_rows
            else:
                count = int(np.searchsorted(self._chosen, stop)) - first
                rows = (
                    stored.take(pa.array(self._chosen[first : first + count] - start)) if count else stored.slice(0, 0)
                )
            if count:
                yield self._joined(rows, names, lambda values, at=first, n=count: values.slice(at, n))  # type: ignore[misc]
            first, start = first + count, stop

    def _rows(self, files: Ordinals, names: Sequence[str]) -> pa.RecordBatch:
        """As `batches`, of these files."""
        is_added = all(name in self._added for name in names)
        places = (
            files if self._chosen is None or is_added else self._chosen[np.asarray(files, np.int64)].astype(np.int64)
        )
        rows = _NO_COLUMNS if is_added else self._stored.take(places)
        index = pa.array(np.asarray(files, np.int64))
        return self._joined(rows, names, lambda values: values.take(index))

    def _joined(self, rows: pa.RecordBatch, names: Sequence[str], of: Callable[[pa.Array], pa.Array]) -> pa.RecordBatch:
        each = [of(self._added[name]) if name in self._added else rows.column(name) for name in names]
        return pa.RecordBatch.from_arrays(each, list(names))

    @property
    def _physical(self) -> tuple[str, ...]:
        return (*_SCHEMA.names, *self.columns)

    @property
    def schema(self) -> pa.Schema:
        """Of all columns, as `batches` gives them."""
        stored = self._stored.schema
        each = ((n, self._added[n].type if n in self._added else stored.field(n).type) for n in self._physical)
        return pa.schema(list(each))

    def rebatched(self, rows: int) -> Iterator[pa.RecordBatch]:
        """All columns in batches of so many files, the last of fewer, for other hosts, whose copies of the files may
        have times of their own.
        """
        at = self._physical.index("file/ctime_ns")
        for first in range(0, len(self), rows):
            batch = self._rows(range(first, min(first + rows, len(self))), self._physical)
            unknown = pa.array(np.zeros(batch.num_rows, np.int64))
            yield batch.set_column(at, batch.schema.field(at), unknown)

    def moved(self, stored: TableBatches) -> FileTable:
        """The same files where all columns stand in another place."""
        return FileTable(stored, self._words)

    def some(self, places: Sequence[int]) -> list[InputFile]:
        return list(self._files(self._rows(places, self._of_files)))

    def __iter__(self) -> Iterator[InputFile]:
        for batch in self.batches(self._of_files):
            for first in range(0, batch.num_rows, _AT_ONCE):
                yield from self._files(batch.slice(first, _AT_ONCE))

    @property
    def _of_files(self) -> tuple[str, ...]:
        return (*_SCHEMA.names, SPLIT_COLUMN) if SPLIT_COLUMN in self.columns else tuple(_SCHEMA.names)

    def _files(self, rows: pa.RecordBatch) -> Iterator[InputFile]:
        columns = [column.to_pylist() for column in rows.columns[: len(_SCHEMA)]]
        splits = (
            self._words[SPLIT_COLUMN].take(rows.column(SPLIT_COLUMN)).to_pylist()
            if SPLIT_COLUMN in self.columns
            else [None] * len(rows)
        )
        for root, name, stem, path, size, mtime, etag, ctime, split in zip(*columns, splits, strict=True):
            text = name.decode(*_AS_NAMES)
            where = self._stems[stem] + text if path is None else path.decode(*_AS_NAMES)
            yield InputFile(root, text, where, Stat(size, mtime, etag.decode(), ctime), split)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileTable):
            return super().__eq__(other)
        if {*self.columns} != {*other.columns} or not super().__eq__(other):
            return False
        return all(self.column(name).to_pylist() == other.column(name).to_pylist() for name in self.columns)

    __hash__ = BlockTable.__hash__


_NO_COLUMNS = pa.RecordBatch.from_arrays([], [])


def coded(numbers: npt.NDArray[Any], words: Sequence[Any] | pa.Array) -> pa.DictionaryArray:
    """A dictionary-encoded column: [files] each one's place in the words, in as few bytes as these need."""
    values = words if isinstance(words, pa.Array) else pa.array(words, pa.large_string())
    width = np.min_scalar_type(max(len(values) - 1, 0))
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(width, copy=False)), values)


def coded_of(items: Iterable[str | None], count: int) -> pa.DictionaryArray:
    """The same items in the same order, of which there are `count`."""
    words: dict[str | None, int] = {}
    numbers = np.fromiter((words.setdefault(item, len(words)) for item in items), np.uint32, count)
    return coded(numbers, list(words))


def nothing(count: int) -> pa.DictionaryArray:
    """A column without a value."""
    return coded(np.zeros(count, np.uint8), [None])


def counted(column: pa.DictionaryArray) -> dict[Any, int]:
    """The values that files have, in the order in which they come first, and how many have each."""
    numbers, first, counts = np.unique(column.indices.to_numpy(), return_index=True, return_counts=True)
    words = column.dictionary.to_pylist()
    return {words[numbers[at]]: int(counts[at]) for at in np.argsort(first).tolist()}


def where_none(column: pa.DictionaryArray) -> npt.NDArray[np.bool_]:
    """[files] which have no value."""
    lacking = np.array(pc.is_null(column.dictionary), np.bool_)
    found: npt.NDArray[np.bool_] = lacking[column.indices.to_numpy()]
    return found


def _used(words: pa.Array, numbers: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The words that some file has, and the numbers of these."""
    each = numbers.to_numpy()
    used = np.bincount(each, minlength=len(words)) > 0
    if used.all():
        return words, numbers
    again = coded(np.maximum(np.cumsum(used) - 1, 0)[each], words.filter(pa.array(used)))
    return again.dictionary, again.indices


def _words(numbers: Mapping[str, int]) -> pa.Array:
    return pa.array([text.encode(*_AS_NAMES) for text in numbers], pa.binary())


def _batch(files: Sequence[InputFile], stems: dict[str, int]) -> pa.RecordBatch:
    below = [file.path.endswith(file.name) for file in files]
    each = zip(files, below, strict=True)
    values = {
        "file/root": [file.root for file in files],
        "file/name": [file.name.encode(*_AS_NAMES) for file in files],
        "file/stem": [
            stems.setdefault(file.path[: len(file.path) - len(file.name)], len(stems)) if ends else -1
            for file, ends in each
        ],
        "file/path": [None if ends else file.path.encode(*_AS_NAMES) for file, ends in zip(files, below, strict=True)],
        "file/size_bytes": [file.stat.size_bytes for file in files],
        "file/mtime_ns": [file.stat.mtime_ns for file in files],
        "file/etag": [file.stat.etag.encode() for file in files],
        "file/ctime_ns": [file.stat.ctime_ns for file in files],
    }
    return pa.RecordBatch.from_pydict(values, _SCHEMA)
