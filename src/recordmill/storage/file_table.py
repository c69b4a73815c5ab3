"""Table of the input files of a plan, as one Arrow record batch.

Files are Python objects only while they are used, so a plan can have millions of them. Sources add
columns of their own, such as the class or the first row of each file. Columns with few distinct
values are dictionary-encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError
from recordmill.storage.files import Stat, check_unchanged, prefetch_files, read_range

SPLIT_COLUMN = "split"
_NAME_ENCODING = ("utf-8", "surrogateescape")
_FILE_BATCH = 1 << 12  # the number of files that are Python objects at a time
_ITEM_BATCH = 256  # the number of Python objects at a time while iterating over a table
Item = TypeVar("Item")

Integers = npt.NDArray[np.integer[Any]]
Indices = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input file.

    Attributes:
        root: Ordinal of the INPUT that contains the file.
        name: The path relative to the root, with `/`. Never absolute.
        path: The path or URI to open.
        stat: State of the file when it was listed.
        split: The split that the folders or the name of the file specify, or None.
    """

    root: int
    name: str
    path: str
    stat: Stat
    split: str | None = None


_FILE_SCHEMA = pa.schema(
    {
        "file/root": pa.int32(),
        # The part of the path before the name. It is dictionary-encoded in a `FileTable`.
        "file/path_prefix": pa.int32(),
        "file/name": pa.binary(),
        "file/path": pa.binary(),  # null if the path is the prefix and the name
        "file/size_bytes": pa.int64(),
        "file/mtime_ns": pa.int64(),
        "file/etag": pa.string(),
        "file/ctime_ns": pa.int64(),
    }
)


class ItemTable(Sequence[Item]):
    """Base class of tables that create their items on demand.

    Supports slices, and is equal to any sequence of equal items. A subclass defines `_item`, or
    `items_at` if many items take little more time than one.
    """

    def _item(self, index: int) -> Item:
        return self.items_at(range(index, index + 1))[0]

    def items_at(self, indices: Sequence[int]) -> Sequence[Item]:
        """Returns the items at `indices`, in that order."""
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
    """Sequence of input files, with extra columns."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows

    @classmethod
    def from_files(cls, files: Iterable[InputFile]) -> FileTable:
        """Creates a table of files, in the same order. Returns a table unchanged."""
        if isinstance(files, FileTable):
            return files
        # Files become columns in batches, so that not all of them are Python objects at once. The
        # dictionaries of prefixes and splits are common to all batches.
        prefixes, splits = dict[bytes, int](), dict[str | None, int]()
        split_indices, batches, remaining = list[Integers](), [_to_batch([], prefixes)], iter(files)
        while batch := list(islice(remaining, _FILE_BATCH)):
            split_indices.append(
                np.array([splits.setdefault(file.split, len(splits)) for file in batch])
            )
            batches.append(_to_batch(batch, prefixes))
        rows = pa.concat_batches(batches)
        prefix_index = _FILE_SCHEMA.get_field_index("file/path_prefix")
        prefix = make_dictionary_column(
            rows.column(prefix_index).to_numpy(), pa.array(list(prefixes), pa.binary())
        )
        table = cls(rows.set_column(prefix_index, "file/path_prefix", prefix))
        return (
            table.with_splits(make_dictionary_column(np.concatenate(split_indices), list(splits)))
            if any(splits)
            else table
        )

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """Names of the columns that sources have added to the columns of all tables."""
        return tuple(name for name in self._rows.schema.names if name not in _FILE_SCHEMA.names)

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def filter(self, keep: npt.NDArray[np.bool_]) -> FileTable:
        """Returns the files that `keep` selects.

        Args:
            keep: Whether to keep each file, [files].
        """
        if keep.all():
            return self
        return FileTable(_drop_unused_values(self._rows.filter(pa.array(keep))))

    def take_files(self, ordinals: Integers) -> FileTable:
        """Returns the files at `ordinals`, in that order."""
        return FileTable(_drop_unused_values(self._rows.take(pa.array(ordinals))))

    def concat(self, other: FileTable) -> FileTable:
        """Returns the files of this table, followed by the files of `other`.

        The result has the columns of this table. If the other table lacks one, its files have null
        there.
        """
        # The two tables have different dictionaries, so columns are decoded and encoded again.
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
        """Returns the table with a column added or replaced.

        Args:
            name: The name of the column.
            values: The value of each file, [files].
        """
        rows = self.drop_columns((name,))._rows
        return FileTable(_drop_unused_values(rows.append_column(name, values)))

    def drop_columns(self, names: Sequence[str]) -> FileTable:
        """Returns the table without these extra columns. Unknown names are ignored."""
        return FileTable(
            self._rows.drop_columns([name for name in names if name in self.extra_columns])
        )

    def without_ctimes(self) -> FileTable:
        """Returns the table with all ctimes set to 0.

        Copies of a file on other hosts have other ctimes.
        """
        column_index = _FILE_SCHEMA.get_field_index("file/ctime_ns")
        return FileTable(
            self._rows.set_column(
                column_index, "file/ctime_ns", pa.array(np.zeros(len(self), np.int64))
            )
        )

    def with_splits(self, splits: pa.DictionaryArray) -> FileTable:
        """Returns the table with the split of each file, [files]."""
        return self.with_column(SPLIT_COLUMN, splits)

    @property
    def splits(self) -> pa.DictionaryArray:
        """The split of each file, [files]. Null for files without a split."""
        return (
            self.column(SPLIT_COLUMN)
            if SPLIT_COLUMN in self.extra_columns
            else null_column(len(self))
        )

    def dictionary_values(self, name: str) -> pa.Array:
        """Returns the distinct values of a dictionary-encoded column.

        For any other column, returns the value of each file.
        """
        return (
            self.column(name).dictionary if self.is_dictionary_encoded(name) else self.column(name)
        )

    def column(self, name: str) -> pa.Array:
        """Returns a column by name, with one value per file."""
        return self._rows.column(name)

    def is_dictionary_encoded(self, name: str) -> bool:
        """Returns whether a column is dictionary-encoded."""
        return bool(pa.types.is_dictionary(self.column(name).type))

    def take_columns(self, files: Indices, names: Sequence[str]) -> dict[str, pa.Array]:
        """Returns columns for some files, by name, without dictionary encoding.

        Args:
            files: Ordinals of the files.
            names: Names of the columns.
        """
        rows = self._take_rows(files, names)
        return {
            name: _decode_dictionary(column)
            for name, column in zip(names, rows.columns, strict=True)
        }

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Size of each file in bytes, [files]."""
        return self.column("file/size_bytes").to_numpy()

    def dictionary_indices(self, name: str, files: Indices) -> Integers:
        """Returns the index of each file's value in `dictionary_values`.

        The column must be dictionary-encoded.

        Args:
            name: The name of the column.
            files: Ordinals of the files.
        """
        return self._take_rows(files, (name,)).column(0).indices.to_numpy()

    def with_flags(self, name: str, files: Iterable[int]) -> FileTable:
        """Returns the table with a boolean column that is true for some files.

        The column is omitted if `files` is empty.

        Args:
            name: The name of the column.
            files: Ordinals of the files to mark.
        """
        flags = np.zeros(len(self), np.bool_)
        flags[list(files)] = True
        return self.with_column(name, pa.array(flags)) if flags.any() else self

    def has_flag(self, name: str, file: int) -> bool:
        """Returns whether a boolean column is true for a file. A missing column is false."""
        return name in self.extra_columns and bool(self.column(name)[file].as_py())

    @property
    def size_bytes(self) -> int:
        """Total size of the files in bytes."""
        return int(self.sizes.sum())

    def names(self) -> Iterator[str]:
        """Yields the name of each file."""
        for _, name in self.roots_and_names():
            yield name

    def roots_and_names(self) -> Iterator[tuple[int, str]]:
        """Yields (root, name) of each file."""
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
                (prefix + name if path is None else path).decode(*_NAME_ENCODING),
                Stat(size, mtime, etag, ctime),
                split,
            )
            for root, prefix, name, path, size, mtime, etag, ctime, split in zip(
                *columns, splits, strict=True
            )
        ]

    def _take_rows(self, files: Indices, names: Sequence[str]) -> pa.RecordBatch:
        rows = self._rows.select(list(names))
        if isinstance(files, range) and files.step == 1:  # a slice copies nothing
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


def read_files(files: Sequence[InputFile], buffer: Bytes) -> Iterator[Bytes]:
    """Reads complete files, one after the other, into `buffer`.

    Objects in stores are prefetched.

    Args:
        files: The files. `InputFile.stat` is the state at planning time.
        buffer: The array to fill. It must have the total size of the files.

    Yields:
        The part of the buffer with the content of the next file.

    Raises:
        DataError: A file has changed since planning or can't be read.
    """
    offset = 0
    for file in prefetch_files(files, lambda file: (file.path, file.stat)):
        target = buffer[offset : offset + file.stat.size_bytes]
        offset += file.stat.size_bytes
        try:
            read_range(file.path, target=target)
        except OSError as error:
            raise DataError(f"can't be read: {error.strerror}", source=file.name) from error
        # A file that was too short has changed, too.
        check_unchanged(file.path, file.stat, file.name)
        yield target


def _decode_dictionary(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def make_dictionary_column(
    indices: npt.NDArray[Any], values: Sequence[Any] | pa.Array
) -> pa.DictionaryArray:
    """Returns a dictionary-encoded column with the smallest possible index type.

    Args:
        indices: The index of each row in `values`.
        values: The distinct values. A sequence becomes an array of large_string.
    """
    dictionary = values if isinstance(values, pa.Array) else pa.array(values, pa.large_string())
    index_dtype = np.min_scalar_type(max(len(dictionary) - 1, 0))
    return pa.DictionaryArray.from_arrays(
        pa.array(indices.astype(index_dtype, copy=False)), dictionary
    )


def encode_column(items: Iterable[str | None], count: int) -> pa.DictionaryArray:
    """Returns strings as a dictionary-encoded column.

    Args:
        items: The strings, or None for null.
        count: The number of items.
    """
    positions: dict[str | None, int] = {}
    indices = np.fromiter(
        (positions.setdefault(item, len(positions)) for item in items), np.uint32, count
    )
    return make_dictionary_column(indices, list(positions))


def null_column(count: int) -> pa.DictionaryArray:
    """Returns a dictionary-encoded column of `count` nulls."""
    return make_dictionary_column(np.zeros(count, np.uint8), [None])


def count_column_values(column: pa.DictionaryArray) -> dict[Any, int]:
    """Returns the number of rows of each value, in the order of first appearance."""
    # `np.unique` sorts by index, so the values are put back into the order of their first rows.
    indices, first, counts = np.unique(
        column.indices.to_numpy(), return_index=True, return_counts=True
    )
    values = column.dictionary.to_pylist()
    return {
        values[indices[position]]: int(counts[position]) for position in np.argsort(first).tolist()
    }


def null_mask(column: pa.DictionaryArray) -> npt.NDArray[np.bool_]:
    """Returns which rows of a column are null, [rows]."""
    is_null = np.array(column.dictionary.is_null(), np.bool_)
    return is_null[column.indices.to_numpy()]


def _drop_unused_values(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Returns rows with smaller dictionaries, without values that no row uses."""
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
        # The running count of used values is the new index of each used value.
        else make_dictionary_column(
            np.maximum(np.cumsum(is_used) - 1, 0)[indices], values.filter(pa.array(is_used))
        )
    )


def _to_batch(files: Sequence[InputFile], prefixes: dict[bytes, int]) -> pa.RecordBatch:
    """Returns the columns of files. Adds each new prefix to `prefixes`."""
    columns: dict[str, list[Any]] = {name: [] for name in _FILE_SCHEMA.names}
    for file in files:
        name, path, stat = (
            file.name.encode(*_NAME_ENCODING),
            file.path.encode(*_NAME_ENCODING),
            file.stat,
        )
        ends_with_name = path.endswith(name)
        prefix = path[: len(path) - len(name)] if ends_with_name else b""
        values = (
            *(
                file.root,
                prefixes.setdefault(prefix, len(prefixes)),
                name,
                None if ends_with_name else path,
            ),
            *(stat.size_bytes, stat.mtime_ns, stat.etag, stat.ctime_ns),
        )
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return pa.RecordBatch.from_pydict(columns, _FILE_SCHEMA)
