"""Data sets with the same records and different features, read side by side: `zip`."""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.arguments import suggest_fields, suggest_keywords
from recordmill.base.buffers import Int64s
from recordmill.base.errors import UsageError
from recordmill.base.option_names import available_names
from recordmill.base.threads import thread_map
from recordmill.reader.dataset import Dataset
from recordmill.reader.prefetch.prefetcher import PREFETCH_RANGE_BYTES
from recordmill.reader.records import Records
from recordmill.reader.selection import make_not_dropped_error
from recordmill.reader.take import resolve_record_numbers, to_map_style
from recordmill.reader.training import Trainable
from recordmill.records.columns.conversions import Decoding
from recordmill.records.columns.numpy_arrays import iter_rows
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.shards.record_files import RecordFiles
from recordmill.shards.tfrecord_file import IndexedShard, group_by_file

_KEY_BATCH = 1 << 20  # keys that are compared together: 8 MiB of each data set


@suggest_keywords
def zip(datasets: Sequence[Dataset]) -> Zip:
    """Combines the features of data sets that have the same records.

    The order of the records must be the same, too. Data sets that are built with the same seed and
    the same unique `--key` have the same order, regardless of their shards. The keys of all records
    are compared. For TFRecord files without a manifest only the numbers of records are compared.

    Args:
        datasets: Two or more data sets. The label is the first label among them.

    Returns:
        The combined data set.

    Raises:
        UsageError: The data sets have different numbers of records or keys, two of them have a
            feature of the same name, or records were selected by `where` or `filter`.

    Examples:
        >>> ds = recordmill.open("shards")
        >>> ids = ds.select(["id"])
        >>> sizes = ds.select(["size"])
        >>> recordmill.zip([ids, sizes])[0] == {"id": 7, "size": 3.5}
        True
    """
    if (
        not isinstance(datasets, list | tuple)
        or len(datasets) < 2
        or not all(isinstance(dataset, Dataset) for dataset in datasets)
    ):
        raise UsageError(
            "zip takes a list of two or more data sets, each as open() returns it, "
            f"not {datasets!r:.99}"
        )
    names: set[str] = set()
    parts = tuple(dataset.records for dataset in datasets)
    for index, part in enumerate(parts):
        if part.filter.is_active:
            raise UsageError(
                f"zip: records of data set {index} were selected by where or filter: "
                "zip complete data sets"
            )
        if common := names.intersection(part.schema.names):
            raise UsageError(
                f"zip: {min(common)!r} is a feature of two data sets: drop or rename it in one of them"
            )
        names.update(part.schema.names)
        if index:
            _check_aligned(parts[0], part, index)
    return Zip(ZippedRecords(parts))


def _check_aligned(first: Records, other: Records, index: int) -> None:
    if len(first) != len(other):
        raise UsageError(
            f"zip: data set 0 has {len(first):,} records, and data set {index} has {len(other):,}"
        )
    # only shards with a manifest have an index with the keys
    if first.catalog.manifest is None or other.catalog.manifest is None:
        return
    for start in range(0, len(first), _KEY_BATCH):
        numbers = np.arange(start, min(start + _KEY_BATCH, len(first)))
        differs = _read_keys(first, numbers) != _read_keys(other, numbers)
        if len(rows := np.flatnonzero(differs)):
            raise UsageError(
                f"zip: data sets 0 and {index} are not in the same order: record {numbers[rows[0]]} has another key in "
                f"each; build both with the same seed, splits and key, a column whose values are unique"
            )


def _read_keys(dataset: Records, numbers: Int64s) -> npt.NDArray[np.uint64]:
    # the numbers are consecutive, so the keys in each file are one slice of its index
    parts = []
    for file_index, first, rows in group_by_file(dataset.files.ends, numbers):
        file = dataset.files[file_index]
        assert isinstance(file, IndexedShard)
        begin, end = int(numbers[rows.start]) - first, int(numbers[rows.stop - 1]) - first + 1
        parts.append(file.index["key"][begin:end])
    return np.concatenate(parts)


@suggest_fields
class Zip(Trainable["ZippedRecords"]):
    """Data sets with the same records, side by side.

    The methods for records, columns, tables and batches are those of a `Dataset`.

    Use `zip` to create one.

    Attributes:
        records: The records of the data sets.
    """

    def select(self, columns: Sequence[str]) -> Zip:
        """Returns the same records with some of the features.

        Args:
            columns: Names of features.

        Raises:
            UsageError: A feature is unknown.
        """
        return Zip(self.records.select(columns))

    def __getitem__(self, key: Any) -> Any:
        """Returns records or columns, as `Dataset.__getitem__` does for the same key."""
        if isinstance(key, str):
            records = self.select([key]).records  # refuses an unknown name
            return Dataset(next(part for part in records.parts if key in part.schema))[key]
        if isinstance(key, list) and key and all(isinstance(name, str) for name in key):
            return self.select(key)
        if isinstance(key, int | np.integer) and not isinstance(key, bool):
            return next(self._rows([int(key)]))
        return self.take(np.arange(*key.indices(len(self))) if isinstance(key, slice) else key)

    def __getitems__(self, records: Sequence[int]) -> list[dict[str, Any]]:
        """Returns the records with these numbers as dicts."""
        return to_map_style(self._rows(records))

    def _rows(self, records: Sequence[int]) -> Iterator[dict[str, Any]]:
        numbers = resolve_record_numbers(records, len(self))
        return iter_rows(self.records.read(numbers, self.schema), self.schema)

    def take(self, records: Sequence[int] | npt.NDArray[Any]) -> pa.Table:
        """Returns the records with these numbers as a `pyarrow.Table`, in this order.

        Args:
            records: Record numbers, also repeated. Negative numbers count from the end.

        Raises:
            IndexError: A number is out of range.
            TypeError: `records` is not a list of numbers.
        """
        return self.records.take(records)

    def head(self, records: int = 5) -> pa.Table:
        """Returns the first records as a `pyarrow.Table`."""
        return self.records.head(records)

    def to_table(self) -> pa.Table:
        """Returns all records as a `pyarrow.Table`."""
        return pa.Table.from_batches(self.records.record_batches(), to_arrow(self.schema))

    def __repr__(self) -> str:
        return f"<Zip of {len(self.records.parts)} data sets: {len(self):,} records of {', '.join(self.schema.names)}>"


@dataclass(frozen=True, eq=False)
class ZippedRecords:
    """Immutable view of the records of several data sets, side by side.

    It implements `Fetchable`.

    Attributes:
        parts: The records of each data set.
        columns: Names of the features to read. If None, all are read.
    """

    parts: tuple[Records, ...]
    columns: tuple[str, ...] | None = None

    @property
    def threads(self) -> int:
        """Number of threads that read and decode."""
        return max(part.threads for part in self.parts)

    @property
    def files(self) -> RecordFiles:
        """The open files of the first data set."""
        return self.parts[0].files

    @property
    def mixed(self) -> None:
        """None, because it is not a mixture."""

    @property
    def record_subset(self) -> None:
        """None, because all records of the data sets are read."""

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the combined data sets: a hash of their fingerprints."""
        words = "\n".join(part.fingerprint for part in self.parts)
        return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()

    @property
    def generations(self) -> tuple[tuple[str, int], ...]:
        """(folder, generation) of each data set that has generations."""
        return tuple(pair for part in self.parts for pair in part.generations)

    @cached_property
    def schema(self) -> Schema:
        """The features of all data sets, or the selected ones.

        The label is the first label among the data sets.
        """
        schemas = [part.schema for part in self.parts]
        label = next((schema.label for schema in schemas if schema.label is not None), None)
        features = tuple(feature for schema in schemas for feature in schema)
        full_schema = replace(schemas[0], features=features, label=label)
        return full_schema if self.columns is None else full_schema.select(self.columns)

    @property
    def images(self) -> Mapping[str, Any]:
        """Targets of the images that are decoded, by feature name."""
        images = {name: image for part in self.parts for name, image in part.images.items()}
        return {name: image for name, image in images.items() if name in self.schema}

    def __len__(self) -> int:
        return len(self.parts[0])

    def may_lack(self, name: str) -> bool:
        """Returns whether a record may lack a feature. Reads no records."""
        return any(name in part.schema and part.may_lack(name) for part in self.parts)

    def select(self, columns: Sequence[str]) -> ZippedRecords:
        """Returns the same records with some of the features.

        Raises:
            UsageError: A feature is unknown.
        """
        if unknown := [name for name in columns if name not in self.schema]:
            raise UsageError(
                f"no feature {unknown[0]!r}; {available_names(unknown[0], self.schema.names)}"
            )
        return replace(self, columns=tuple(columns))

    def drop_missing(self, names: Sequence[str]) -> ZippedRecords:
        """Raises UsageError, because a condition belongs to one data set."""
        raise make_not_dropped_error(names[0])

    @cached_property
    def encoded_view(self) -> ZippedRecords:
        """These records, with images as stored bytes. Their fingerprint is the same."""
        return replace(self, parts=tuple(part.encoded_view for part in self.parts))

    @property
    def lenient_view(self) -> ZippedRecords:
        """Raises UsageError, because zipped data sets can't leave out records."""
        raise UsageError('on_bad="skip" does not work for data sets that are zipped')

    def make_decoding(self, schema: Schema) -> Decoding:
        """Returns a conversion without steps, because each data set converts its own features."""
        return Decoding(schema)

    def read(self, numbers: Int64s, schema: Schema, *, use_mapping: bool = True) -> pa.RecordBatch:
        """Reads each feature of records from the data set that has it."""
        columns: dict[str, pa.Array] = {}
        for part in self.parts:
            part_schema = schema.select([name for name in schema.names if name in part.schema])
            if part_schema.names:
                part_columns = part.read(numbers, part_schema, use_mapping=use_mapping).columns
                columns |= builtins.zip(part_schema.names, part_columns, strict=True)
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in schema.names], names=list(schema.names)
        )

    def take(self, records: Sequence[int] | npt.NDArray[Any]) -> pa.Table:
        """Returns the records with these numbers, in this order."""
        return pa.Table.from_batches([self._read_shown(resolve_record_numbers(records, len(self)))])

    def head(self, records: int = 5) -> pa.Table:
        """Returns the first records."""
        return self.take(np.arange(min(records, len(self))))

    def record_batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Reads records [start, stop) in order, in batches of some MiB."""
        first, end, _ = slice(start, stop).indices(len(self))
        # blocks of about PREFETCH_RANGE_BYTES, by the average size of a record
        framed_bytes = sum(file.framed_bytes for part in self.parts for file in part.files)
        rows = max(PREFETCH_RANGE_BYTES * len(self) // max(framed_bytes, 1), 1)
        blocks = (np.arange(row, min(row + rows, end)) for row in range(first, end, rows))
        return thread_map(self._read_shown, blocks, self.threads)

    def _read_shown(self, numbers: Int64s) -> pa.RecordBatch:
        batch = self.read(numbers, self.schema)
        return pa.RecordBatch.from_arrays(batch.columns, schema=to_arrow(self.schema))
