"""`zip`: data sets with the same records in the same order to a `Zip`, which has the features of all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.errors import UsageError
from recordmill.base.option_names import available_names
from recordmill.base.threads import thread_map
from recordmill.reader.dataset import Dataset
from recordmill.reader.prefetch.prefetcher import PREFETCH_RANGE_BYTES, decode_records
from recordmill.reader.take import resolve_record_numbers
from recordmill.reader.training import Trainable
from recordmill.records.columns.conversions import Decoding
from recordmill.records.columns.numpy_arrays import rows_of
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.shards.access import group_by_file

_KEY_BATCH = 1 << 20  # compared at once: 8 MiB of each data set


def zip(datasets: Sequence[Dataset]) -> Zip:
    """Joins data sets with the same records in the same order to one that has the features of all.

    Data sets that are built with the same seed and the same unique `--key` have one order, however they are sharded;
    the keys of all records are compared here. Of TFRecord files of others only the number of records is.

    Args:
        datasets: two or more, as `open` gives them. The label is that of the first one that has one.

    Raises:
        UsageError: they have not the same number of records or other keys, two have a feature of one name, records
            were chosen by `where` or `filter`, or files can be read from the front only.
    """
    if (
        isinstance(datasets, Dataset)
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
        if streamed_files := [file.file.name for file in dataset.files if not file.seekable]:
            raise UsageError(
                f"zip: {streamed_files[0]} can be read from the front only: `recordmill build` makes shards of it"
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
    parts = [
        dataset.files[file_index].index["key"][
            int(numbers[rows.start]) - first : int(numbers[rows.stop - 1]) - first + 1
        ]
        for file_index, first, rows in group_by_file(dataset.ends, numbers)
    ]
    return np.concatenate(parts)


class Zip(Trainable):
    """Data sets side by side, as `zip` makes it: records by number, columns, tables, and batches as of a `Dataset`."""

    mixed = matching = None

    def __init__(self, zipped: tuple[Dataset, ...], columns: Sequence[str] | None = None) -> None:
        self.zipped, self._columns = zipped, columns
        self.files, self.threads = zipped[0].files, max(dataset.threads for dataset in zipped)

    @cached_property
    def schema(self) -> Schema:
        """The features of all data sets, or those that are selected."""
        schemas = [dataset.schema for dataset in self.zipped]
        label = next((schema.label for schema in schemas if schema.label is not None), None)
        features = tuple(feature for schema in schemas for feature in schema)
        full_schema = replace(schemas[0], features=features, label=label)
        return full_schema if self._columns is None else full_schema.select(self._columns)

    @property
    def ends(self) -> Int64s:
        """The number of records up to and with each file of the first data set."""
        return self.zipped[0].ends

    @property
    def file_records(self) -> list[int]:
        """The number of records of each file of the first data set."""
        return self.zipped[0].file_records

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the data sets together."""
        words = "\n".join(dataset.fingerprint for dataset in self.zipped)
        return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()

    @property
    def images(self) -> Mapping[str, Any]:
        """Images that are decoded, by feature."""
        images = {name: image for dataset in self.zipped for name, image in dataset.images.items()}
        return {name: image for name, image in images.items() if name in self.schema}

    @cached_property
    def encoded(self) -> Zip:
        """Returns the same with the images as they are stored."""
        encoded = Zip(tuple(dataset.encoded for dataset in self.zipped), self._columns)
        encoded.__dict__["fingerprint"] = self.fingerprint
        return encoded

    @property
    def lenient(self) -> Zip:
        """Refuses to leave out records."""
        raise UsageError('on_bad="skip" has no meaning for data sets that are zipped')

    def stored(self, schema: Schema) -> Decoding:
        """Returns the features under the names that they have here."""
        return Decoding(schema)

    def select(self, columns: Sequence[str]) -> Zip:
        """Returns the same records with these features only."""
        if unknown := [name for name in columns if name not in self.schema]:
            raise UsageError(
                f"no feature {unknown[0]!r}; {available_names(unknown[0], self.schema.names)}"
            )
        return Zip(self.zipped, tuple(columns))

    def __len__(self) -> int:
        return len(self.zipped[0])

    def __getitem__(self, key: Any) -> Any:
        """Returns a record as a dict, some as a table, a column as an array or some columns, as a `Dataset` does."""
        if isinstance(key, str):
            return next(part for part in self.select([key]).zipped if key in part)[key]
        if isinstance(key, list) and key and all(isinstance(name, str) for name in key):
            return self.select(key)
        if isinstance(key, int | np.integer) and not isinstance(key, bool):
            return self.__getitems__([int(key)])[0]
        return self.take(np.arange(*key.indices(len(self))) if isinstance(key, slice) else key)

    def __getitems__(self, records: Sequence[int]) -> list[dict[str, Any]]:
        """Returns the records of these numbers as dicts."""
        return list(
            rows_of(self._decode_numbers(resolve_record_numbers(records, len(self))), self.schema)
        )

    def take(self, records: Sequence[int] | npt.NDArray[Any]) -> pa.Table:
        """Returns the records of these numbers, in this order."""
        return self._make_table([self._decode_numbers(resolve_record_numbers(records, len(self)))])

    def head(self, records: int = 5) -> pa.Table:
        """Returns the first records."""
        return self.take(np.arange(min(records, len(self))))

    def to_table(self) -> pa.Table:
        """Returns all records."""
        return self._make_table(list(self.record_batches()))

    def record_batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Returns records [start, stop) in order, some MiB at once."""
        first, end, _ = slice(start, stop).indices(len(self))
        framed_bytes = sum(file.framed_bytes for dataset in self.zipped for file in dataset.files)
        rows = max(PREFETCH_RANGE_BYTES * len(self) // max(framed_bytes, 1), 1)
        blocks = (np.arange(row, min(row + rows, end)) for row in range(first, end, rows))
        return thread_map(self._decode_numbers, blocks, self.threads)

    def _decode_numbers(self, numbers: Int64s) -> pa.RecordBatch:
        return decode_records(self, numbers, {}, self.stored(self.schema))

    def _make_table(self, batches: list[pa.RecordBatch]) -> pa.Table:
        schema = to_arrow(self.schema)
        return pa.Table.from_batches(
            [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches], schema
        )

    def __repr__(self) -> str:
        return f"<Zip of {len(self.zipped)} data sets: {len(self):,} records of {', '.join(self.schema.names)}>"
