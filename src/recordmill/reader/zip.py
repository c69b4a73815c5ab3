"""Data sets with the same records and different features, read side by side: `zip`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
from recordmill.reader.map_style import to_map_style
from recordmill.reader.prefetch.prefetcher import PREFETCH_RANGE_BYTES, decode_records
from recordmill.reader.take import resolve_record_numbers
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
            f"zip takes a list of two or more data sets, each as open() gives it, not {datasets!r:.99}"
        )
    names: set[str] = set()
    for index, dataset in enumerate(datasets):
        if dataset.view.is_filtered:
            raise UsageError(
                f"zip: records of data set {index} were chosen by where or filter: zip whole data sets"
            )
        if common := names.intersection(dataset.schema.names):
            raise UsageError(
                f"zip: {min(common)!r} is a feature of two data sets: drop or rename it in one of them"
            )
        names.update(dataset.schema.names)
        if index:
            _check_aligned(datasets[0], dataset, index)
    return Zip(tuple(datasets))


def _check_aligned(first: Dataset, other: Dataset, index: int) -> None:
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


def _read_keys(dataset: Dataset, numbers: Int64s) -> npt.NDArray[np.uint64]:
    # the numbers are consecutive, so the keys in each file are one slice of its index
    parts = []
    for file_index, first, rows in group_by_file(dataset.ends, numbers):
        file = dataset.files[file_index]
        assert isinstance(file, IndexedShard)
        begin, end = int(numbers[rows.start]) - first, int(numbers[rows.stop - 1]) - first + 1
        parts.append(file.index["key"][begin:end])
    return np.concatenate(parts)


@suggest_fields
class Zip(Trainable):
    """Data sets side by side, with records, columns, tables and batches as a `Dataset`.

    Use `zip` to create one.

    Args:
        zip_parts: The data sets.
        columns: Names of the features to read. None reads all.
    """

    mixture_parts = record_subset = None

    def __init__(
        self, zip_parts: tuple[Dataset, ...], columns: Sequence[str] | None = None
    ) -> None:
        self.zip_parts, self._columns = zip_parts, columns
        self.threads = max(dataset.threads for dataset in zip_parts)

    @property
    def files(self) -> RecordFiles:
        """The open files of the first data set."""
        return self.zip_parts[0].files

    def apply_store_settings(self) -> None:
        """Applies the settings of each data set for reads from stores to this process."""
        for dataset in self.zip_parts:
            dataset.apply_store_settings()

    @cached_property
    def schema(self) -> Schema:
        """The features of all data sets, or the selected ones."""
        schemas = [dataset.schema for dataset in self.zip_parts]
        label = next((schema.label for schema in schemas if schema.label is not None), None)
        features = tuple(feature for schema in schemas for feature in schema)
        full_schema = replace(schemas[0], features=features, label=label)
        return full_schema if self._columns is None else full_schema.select(self._columns)

    @property
    def ends(self) -> Int64s:
        """Number of records up to the end of each file.

        The files belong to the first data set. The array is int64 [files].
        """
        return self.zip_parts[0].ends

    @property
    def file_records(self) -> list[int]:
        """Number of records of each file of the first data set."""
        return self.zip_parts[0].file_records

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the data sets together."""
        words = "\n".join(dataset.fingerprint for dataset in self.zip_parts)
        return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()

    @property
    def images(self) -> Mapping[str, Any]:
        """Targets of the images that are decoded, by feature name."""
        images = {
            name: image for dataset in self.zip_parts for name, image in dataset.images.items()
        }
        return {name: image for name, image in images.items() if name in self.schema}

    @cached_property
    def encoded_view(self) -> Zip:
        """These records, with images as stored bytes."""
        encoded = Zip(tuple(dataset.encoded_view for dataset in self.zip_parts), self._columns)
        encoded.__dict__["fingerprint"] = self.fingerprint
        return encoded

    @property
    def lenient_view(self) -> Zip:
        """Raises UsageError, because zipped data sets can't leave out records."""
        raise UsageError('on_bad="skip" has no meaning for data sets that are zipped')

    def make_decoding(self, schema: Schema) -> Decoding:
        """Returns a conversion without steps, because each data set converts its own features."""
        return Decoding(schema)

    def select(self, columns: Sequence[str]) -> Zip:
        """Returns the same records with some of the features.

        Args:
            columns: Names of features.

        Raises:
            UsageError: A feature is unknown.
        """
        if unknown := [name for name in columns if name not in self.schema]:
            raise UsageError(
                f"no feature {unknown[0]!r}; {available_names(unknown[0], self.schema.names)}"
            )
        return Zip(self.zip_parts, tuple(columns))

    def __len__(self) -> int:
        return len(self.zip_parts[0])

    def __getitem__(self, key: Any) -> Any:
        """Returns what `Dataset.__getitem__` returns for the same key."""
        if isinstance(key, str):
            return next(part for part in self.select([key]).zip_parts if key in part)[key]
        if isinstance(key, list) and key and all(isinstance(name, str) for name in key):
            return self.select(key)
        if isinstance(key, int | np.integer) and not isinstance(key, bool):
            return next(self._rows([int(key)]))
        return self.take(np.arange(*key.indices(len(self))) if isinstance(key, slice) else key)

    def __getitems__(self, records: Sequence[int]) -> list[dict[str, Any]]:
        """Returns the records with these numbers as dicts."""
        return to_map_style(self._rows(records))

    def _rows(self, records: Sequence[int]) -> Iterator[dict[str, Any]]:
        batch = self._decode_numbers(resolve_record_numbers(records, len(self)))
        return iter_rows(batch, self.schema)

    def take(self, records: Sequence[int] | npt.NDArray[Any]) -> pa.Table:
        """Returns the records with these numbers as a `pyarrow.Table`, in this order.

        Args:
            records: Record numbers, also repeated. Negative numbers count from the end.

        Raises:
            IndexError: A number is out of range.
            TypeError: `records` is not a list of numbers.
        """
        return self._make_table([self._decode_numbers(resolve_record_numbers(records, len(self)))])

    def head(self, records: int = 5) -> pa.Table:
        """Returns the first records as a `pyarrow.Table`."""
        return self.take(np.arange(min(records, len(self))))

    def to_table(self) -> pa.Table:
        """Returns all records as a `pyarrow.Table`."""
        return self._make_table(list(self.record_batches()))

    def record_batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Reads records [start, stop) in order, in batches of some MiB."""
        first, end, _ = slice(start, stop).indices(len(self))
        # blocks of about PREFETCH_RANGE_BYTES, by the average size of a record
        framed_bytes = sum(
            file.framed_bytes for dataset in self.zip_parts for file in dataset.files
        )
        rows = max(PREFETCH_RANGE_BYTES * len(self) // max(framed_bytes, 1), 1)
        blocks = (np.arange(row, min(row + rows, end)) for row in range(first, end, rows))
        return thread_map(self._decode_numbers, blocks, self.threads)

    def _decode_numbers(self, numbers: Int64s) -> pa.RecordBatch:
        return decode_records(self, numbers, self.make_decoding(self.schema))

    def _make_table(self, batches: list[pa.RecordBatch]) -> pa.Table:
        schema = to_arrow(self.schema)
        return pa.Table.from_batches(
            [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches], schema
        )

    def __repr__(self) -> str:
        return f"<Zip of {len(self.zip_parts)} data sets: {len(self):,} records of {', '.join(self.schema.names)}>"
