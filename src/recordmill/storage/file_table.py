"""The input files of a plan as one Arrow record batch in memory: files are objects only while they are asked for.

What each file is stands in columns of their own, its split in another; a kind of input adds what it knows of each file
(a class, where its rows begin). A column of few different values is dictionary-encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.storage.stores.protocol import Stat

SPLIT_COLUMN = "split"
_NAME_ENCODING = ("utf-8", "surrogateescape")
_FILE_BATCH = 1 << 12  # files that are Python's objects at once
_ITEM_BATCH = 256  # of any table
Item = TypeVar("Item")

Integers = npt.NDArray[np.integer[Any]]
Indices = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input file.

    Attributes:
        root: The ordinal of the INPUT it was found under.
        name: Its path relative to that root, with `/`; never absolute.
        path: Where to open it.
        stat: What it was when it was listed.
        split: What its folders or its name say, or None.
    """

    root: int
    name: str
    path: str
    stat: Stat
    split: str | None = None


_FILE_SCHEMA = pa.schema(
    {
        "file/root": pa.int32(),
        "file/stem": pa.int32(),  # what stands in front of the name in the path; dictionary-encoded in a table
        "file/name": pa.binary(),
        "file/path": pa.binary(),  # of files whose path doesn't end with the name
        "file/size_bytes": pa.int64(),
        "file/mtime_ns": pa.int64(),
        "file/etag": pa.string(),
        "file/ctime_ns": pa.int64(),
    }
)


class ItemTable(Sequence[Item]):
    """The common part of tables: slices, and comparison with any sequence of such items. Each gives `_item_connector`, or `some`
    where many items take little more time than one.
    """

    def _item(self, index: int) -> Item:
        return self.items_at(range(index, index + 1))[0]

    def items_at(self, indices: Sequence[int]) -> Sequence[Item]:
        """The items at these places."""
        return [self._item(index) for index in indices]

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Item, ...]: ...

    def __getitem__(self, index: int | slice) -> Item | tuple[Item, ...]:
        if isinstance(index, slice):
            return tuple(self.items_at(range(*index.indices(len(self)))))
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"{index}: there are {len(self)}")
        return self._item(row)

    def __iter__(self) -> Iterator[Item]:
        for first in range(0, len(self), _ITEM_BATCH):
            yield from self.items_at(range(first, min(first + _ITEM_BATCH, len(self))))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(
            own_item == other_item for own_item, other_item in zip(self, other, strict=True)
        )

    def __hash__(self) -> int:
        return hash((type(self), len(self)))


class FileTable(ItemTable[InputFile]):
    """A sequence of input files, with columns that sources add."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows

    @classmethod
    def from_files(cls, files: Iterable[InputFile]) -> FileTable:
        """The same files in the same order."""
        if isinstance(files, FileTable):
            return files
        stems, splits = dict[bytes, int](), dict[str | None, int]()
        split_indices, batches, remaining = list[Integers](), [_to_batch([], stems)], iter(files)
        while batch := list(islice(remaining, _FILE_BATCH)):
            split_indices.append(
                np.array([splits.setdefault(file.split, len(splits)) for file in batch])
            )
            batches.append(_to_batch(batch, stems))
        rows = pa.concat_batches(batches)
        stem_index = _FILE_SCHEMA.get_field_index("file/stem")
        stem = make_dictionary_column(
            rows.column(stem_index).to_numpy(), pa.array(list(stems), pa.binary())
        )
        table = cls(rows.set_column(stem_index, "file/stem", stem))
        return (
            table.with_splits(make_dictionary_column(np.concatenate(split_indices), list(splits)))
            if any(splits)
            else table
        )

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """The names of the columns beside those that all files have."""
        return tuple(name for name in self._rows.schema.names if name not in _FILE_SCHEMA.names)

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def filter(self, keep: npt.NDArray[np.bool_]) -> FileTable:
        """Returns those files where keep, [files], is true."""
        if keep.all():
            return self
        return FileTable(_drop_unused_values(self._rows.filter(pa.array(keep))))

    def take_files(self, ordinals: Integers) -> FileTable:
        """The files of these ordinals, in this order."""
        return FileTable(_drop_unused_values(self._rows.take(pa.array(ordinals))))

    def concat(self, other: FileTable) -> FileTable:
        """Returns these files and then the others, which have no value in the columns that they lack."""
        names = self._rows.schema.names
        tables = [
            pa.table({name: _decode_dictionary(rows.column(name)) for name in rows.schema.names})
            for rows in (self._rows, other._rows)
        ]
        joined = (
            pa.concat_tables(tables, promote_options="default")
            .select(names)
            .combine_chunks()
            .to_batches()[0]
        )
        for column_index, column in enumerate(self._rows.columns):
            if isinstance(column, pa.DictionaryArray):
                joined = joined.set_column(
                    column_index,
                    names[column_index],
                    joined.column(column_index).dictionary_encode("encode"),
                )
        return FileTable(joined)

    def with_column(self, name: str, values: pa.Array) -> FileTable:
        """The files with one more column, or another in place of that: [files]."""
        rows = self.drop_columns((name,))._rows
        return FileTable(_drop_unused_values(rows.append_column(name, values)))

    def drop_columns(self, names: Sequence[str]) -> FileTable:
        """The files without these columns."""
        return FileTable(
            self._rows.drop_columns([name for name in names if name in self.extra_columns])
        )

    def without_ctimes(self) -> FileTable:
        """The files without the times of their last change of state, which copies on other hosts have of their own."""
        column_index = _FILE_SCHEMA.get_field_index("file/ctime_ns")
        return FileTable(
            self._rows.set_column(
                column_index, "file/ctime_ns", pa.array(np.zeros(len(self), np.int64))
            )
        )

    def with_splits(self, splits: pa.DictionaryArray) -> FileTable:
        """The files with these splits, one per file."""
        return self.with_column(SPLIT_COLUMN, splits)

    @property
    def splits(self) -> pa.DictionaryArray:
        """The split of each file."""
        return (
            self.column(SPLIT_COLUMN)
            if SPLIT_COLUMN in self.extra_columns
            else null_column(len(self))
        )

    def dictionary_values(self, name: str) -> pa.Array:
        """The values that files have in the column: of one that is dictionary-encoded each of them once."""
        return (
            self.column(name).dictionary if self.is_dictionary_encoded(name) else self.column(name)
        )

    def column(self, name: str) -> pa.Array:
        """The values of all files, dictionary-encoded where they are few."""
        return self._rows.column(name)

    def is_dictionary_encoded(self, name: str) -> bool:
        """Returns whether the column is dictionary-encoded."""
        return bool(pa.types.is_dictionary(self.column(name).type))

    def take_columns(self, files: Indices, names: Sequence[str]) -> dict[str, pa.Array]:
        """Returns these columns of the files of these ordinals."""
        rows = self._take_rows(files, names)
        return {
            name: _decode_dictionary(column)
            for name, column in zip(names, rows.columns, strict=True)
        }

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """[files] in bytes."""
        sizes: npt.NDArray[np.int64] = self.column("file/size_bytes").to_numpy()
        return sizes

    def dictionary_indices(self, name: str, files: Indices) -> Integers:
        """Returns the places of these files' values in the words of a column that is dictionary-encoded."""
        indices: Integers = self._take_rows(files, (name,)).column(0).indices.to_numpy()
        return indices

    def with_flags(self, name: str, files: Iterable[int]) -> FileTable:
        """The files with a column of truth values, which holds of these; without it where it holds of none."""
        flags = np.zeros(len(self), np.bool_)
        flags[list(files)] = True
        return self.with_column(name, pa.array(flags)) if flags.any() else self

    def has_flag(self, name: str, file: int) -> bool:
        """Returns whether a column of truth values, which need not be there, says it of that file."""
        return name in self.extra_columns and bool(self.column(name)[file].as_py())

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return int(self.sizes.sum())

    def names(self) -> Iterator[str]:
        """The name of each file."""
        for _, name in self.roots_and_names():
            yield name

    def roots_and_names(self) -> Iterator[tuple[int, str]]:
        """(root, name) of each file."""
        rows = self._rows.select(["file/root", "file/name"])
        for first in range(0, len(self), _FILE_BATCH):
            roots, names = (column.to_pylist() for column in rows.slice(first, _FILE_BATCH).columns)
            yield from zip(roots, (name.decode(*_NAME_ENCODING) for name in names), strict=True)

    def items_at(self, indices: Sequence[int]) -> list[InputFile]:
        rows = self._take_rows(indices, _FILE_SCHEMA.names)
        splits = (
            self.take_columns(indices, (SPLIT_COLUMN,))[SPLIT_COLUMN].to_pylist()
            if SPLIT_COLUMN in self.extra_columns
            else [None] * len(rows)
        )
        columns = [_decode_dictionary(column).to_pylist() for column in rows.columns]
        return [
            InputFile(
                root,
                name.decode(*_NAME_ENCODING),
                (stem + name if path is None else path).decode(*_NAME_ENCODING),
                Stat(size, mtime, etag, ctime),
                split,
            )
            for root, stem, name, path, size, mtime, etag, ctime, split in zip(
                *columns, splits, strict=True
            )
        ]

    def _take_rows(self, files: Indices, names: Sequence[str]) -> pa.RecordBatch:
        rows = self._rows.select(list(names))
        if isinstance(files, range) and files.step == 1:
            return rows.slice(files.start, len(files))
        return rows.take(pa.array(np.asarray(files, np.int64)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileTable):
            return super().__eq__(other)
        if {*self.extra_columns} != {*other.extra_columns} or not super().__eq__(other):
            return False
        return all(
            self.column(name).to_pylist() == other.column(name).to_pylist()
            for name in self.extra_columns
        )

    __hash__ = ItemTable.__hash__


def _decode_dictionary(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def make_dictionary_column(
    indices: npt.NDArray[Any], values: Sequence[Any] | pa.Array
) -> pa.DictionaryArray:
    """A dictionary-encoded column: [files] each one's place in the words, in as few bytes as these need."""
    dictionary = values if isinstance(values, pa.Array) else pa.array(values, pa.large_string())
    index_dtype = np.min_scalar_type(max(len(dictionary) - 1, 0))
    return pa.DictionaryArray.from_arrays(
        pa.array(indices.astype(index_dtype, copy=False)), dictionary
    )


def encode_column(items: Iterable[str | None], count: int) -> pa.DictionaryArray:
    """The same items in the same order, of which there are `count`."""
    positions: dict[str | None, int] = {}
    indices = np.fromiter(
        (positions.setdefault(item, len(positions)) for item in items), np.uint32, count
    )
    return make_dictionary_column(indices, list(positions))


def null_column(count: int) -> pa.DictionaryArray:
    """A column without a value."""
    return make_dictionary_column(np.zeros(count, np.uint8), [None])


def count_column_values(column: pa.DictionaryArray) -> dict[Any, int]:
    """The values that files have, in the order in which they come first, and how many have each."""
    indices, first, counts = np.unique(
        column.indices.to_numpy(), return_index=True, return_counts=True
    )
    values = column.dictionary.to_pylist()
    return {
        values[indices[position]]: int(counts[position]) for position in np.argsort(first).tolist()
    }


def null_mask(column: pa.DictionaryArray) -> npt.NDArray[np.bool_]:
    """[files] which have no value."""
    is_null = np.array(column.dictionary.is_null(), np.bool_)
    mask: npt.NDArray[np.bool_] = is_null[column.indices.to_numpy()]
    return mask


def _drop_unused_values(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, where dictionaries hold the words that some row has."""
    columns = [
        _without_unused_values(column) if isinstance(column, pa.DictionaryArray) else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, rows.schema.names)


def _without_unused_values(column: pa.DictionaryArray) -> pa.DictionaryArray:
    values, indices = column.dictionary, column.indices.to_numpy()
    is_used = np.bincount(indices, minlength=len(values)) > 0
    return (
        column
        if is_used.all()
        else make_dictionary_column(
            np.maximum(np.cumsum(is_used) - 1, 0)[indices], values.filter(pa.array(is_used))
        )
    )


def _to_batch(files: Sequence[InputFile], stems: dict[bytes, int]) -> pa.RecordBatch:
    """Their columns, with the number of each one's stem."""
    columns: dict[str, list[Any]] = {name: [] for name in _FILE_SCHEMA.names}
    for file in files:
        name, path, stat = (
            file.name.encode(*_NAME_ENCODING),
            file.path.encode(*_NAME_ENCODING),
            file.stat,
        )
        ends_with_name = path.endswith(name)
        stem = path[: len(path) - len(name)] if ends_with_name else b""
        values = (
            *(
                file.root,
                stems.setdefault(stem, len(stems)),
                name,
                None if ends_with_name else path,
            ),
            *(stat.size_bytes, stat.mtime_ns, stat.etag, stat.ctime_ns),
        )
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return pa.RecordBatch.from_pydict(columns, _FILE_SCHEMA)
