"""Counts the values of a data set batch by batch, for each split and feature (`DatasetSketch`).

It is a function of the records alone, in whatever order and portions they come, and two of them add up to that of all
records, to the bit. Only how often a text occurs of which there are too many to keep is an estimate, of a sample of the
occurrences; which ones these are, the records' keys decide.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.siphash import U64
from recordmill.records.example.flat_arrays import Flat, to_flat
from recordmill.records.images.pixels import PixelSums
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics import value_sketch
from recordmill.statistics.number_sketch import NumberSketch
from recordmill.statistics.pixel_sketch import PixelSketch

MAX_VALUES, MIN_VALUES = (
    4096,
    64,
)  # that a feature keeps with their counts, and as many occurrences of texts
MAX_LABEL_VALUES = 1 << 16  # values of a label that are all kept
_MAX_TEXTS_IN_SKETCH, _MAX_NUMBERS_IN_SKETCH = (
    1 << 17,
    1 << 18,
)  # values of all features and splits; see SKETCH_BYTES
_NUMBER_COLUMNS_PER_TEXT_COLUMN = 4  # of numbers, that take as much as one of texts at most
# 120 MiB: a sketch of long texts that all differ; one of numbers has 30 MiB at most
SKETCH_BYTES = 120 << 20
MAX_SKETCHED_COLUMNS = (
    _MAX_TEXTS_IN_SKETCH // MIN_VALUES
)  # features, splits counted, whose sketches take no more
_MAX_SKETCHES = 4  # at once
_KEY_STEP = np.uint64(0x9E3779B97F4A7C15)
_BLOCK_VALUES = 1 << 16  # values, whose positions, hashes and keys are arrays
_MAX_PENDING_TEXTS, _MAX_PENDING_NUMBERS = (
    MAX_VALUES,
    4 * MAX_VALUES,
)  # values of a feature that wait for one pass

_NO_PIXELS: Mapping[str, PixelSums] = {}

_SKETCH_NAMES = ("lengths", "numbers", "sizes", "values", "sample", "pixels")  # of a FeatureSketch


def max_values_per_column(columns: int, are_texts: bool) -> int:
    """Returns how many values are kept of each of so many columns: a power of two, as the memory of all of them is
    bounded.

    >>> [(max_values_per_column(columns, False), max_values_per_column(columns, True)) for columns in (12, 40, 1_000)]
    [(4096, 4096), (4096, 2048), (256, 128)]
    """
    room = (_MAX_TEXTS_IN_SKETCH if are_texts else _MAX_NUMBERS_IN_SKETCH) // max(columns, 1)
    return max(min(MAX_VALUES, 1 << (room.bit_length() - 1)) if room else 0, MIN_VALUES)


class FeatureSketch:
    """One feature in one split. present, missing: records that have it, and that don't. lengths: how many values each
    record has, where that varies. numbers: of a feature of numbers; sizes: the bytes of each text or binary value.
    values: how often each value occurs; None for tensors of floats. sample: occurrences of texts. pixels: of binary
    values that are images.
    """

    def __init__(
        self, feature: Feature, max_values: int, is_label: bool, pixels: PixelSketch | None = None
    ) -> None:
        is_float = feature.dtype.startswith(("float", "bfloat"))
        self.feature, self.is_bytes, self.is_float = (
            feature,
            feature.dtype in ("string", "bytes"),
            is_float,
        )
        self.present = self.missing = 0
        self.lengths = NumberSketch(True, 2 * max_values) if feature.ragged_rank else None
        self.numbers = None if self.is_bytes else NumberSketch(not is_float, 2 * max_values)
        self.sizes = NumberSketch(True, 2 * max_values) if self.is_bytes else None
        pending, pending_texts = (
            min(4 * max_values, _MAX_PENDING_NUMBERS),
            min(max_values, _MAX_PENDING_TEXTS),
        )
        if is_label:
            max_values = max(MAX_LABEL_VALUES, len(feature.classes or ()))
        self.is_text = feature.dtype == "string"
        self.sample = (
            value_sketch.ValueSketch(min(max_values, MAX_VALUES) // 2) if self.is_text else None
        )
        self.pixels = pixels
        if is_float:  # of which no value is frequent, mostly
            max_values //= 4
        self.values = (
            value_sketch.ValueSketch(max_values)
            if self.is_bytes or feature.inner_size == 1
            else None
        )
        self._texts = {"values": value_sketch.ValueTexts(), "sample": value_sketch.ValueTexts()}
        self._pending: list[value_sketch.PendingNumbers | value_sketch.PendingTexts] = []
        if self.lengths is not None:
            self._pending_lengths = value_sketch.PendingNumbers(pending, self.lengths.add)
            self._pending.append(self._pending_lengths)
        if self.is_text:
            self._pending_texts = value_sketch.PendingTexts(pending_texts, self._count_texts)
            self._pending.append(self._pending_texts)
        elif (
            self.sizes is not None and self.values is not None
        ):  # of binary values, which nobody reads
            self._pending_sizes = value_sketch.PendingNumbers(pending, self.sizes.add)
            self._pending_hashes = value_sketch.PendingNumbers(pending, self.values.add)
            self._pending += [self._pending_sizes, self._pending_hashes]
        else:
            self._pending_numbers = value_sketch.PendingNumbers(pending, self._count_numbers)
            self._pending.append(self._pending_numbers)

    def add(
        self, flat: Flat, keys: U64, rows: Int64s | None, sums: PixelSums | None = None
    ) -> None:
        """Counts these rows of the column, or all. keys: [records]; sums: [records, SUMS] of their pixels, if known."""
        count = flat.rows if rows is None else len(rows)
        if flat.valid is not None:
            rows = np.flatnonzero(flat.valid) if rows is None else rows[flat.valid[rows] != 0]
        present = flat.rows if rows is None else len(rows)
        self.present, self.missing = self.present + present, self.missing + count - present
        if self.pixels is not None and sums is not None:
            self.pixels.add_sums(sums if rows is None else sums[rows])
        splits, length = _row_splits(flat, self.feature)
        if self.lengths is not None and splits is not None:
            lengths = np.diff(splits) if rows is None else splits[rows + 1] - splits[rows]
            self._pending_lengths.add(lengths)
        for indices, records, position in _value_blocks(
            splits, length, flat.rows, rows, with_records=self.is_text
        ):
            if self.is_bytes:
                occurrence_keys = keys[records] + position * _KEY_STEP if self.is_text else None
                self._add_texts(flat, indices, occurrence_keys, sums is None)
            else:
                self._pending_numbers.add(_numbers(flat, self.feature)[indices])

    def flush(self) -> None:
        """Counts what waits for others of its kind."""
        for pending in self._pending:
            pending.flush()

    def _count_numbers(self, numbers: npt.NDArray[Any]) -> None:
        assert self.numbers is not None
        self.numbers.add(numbers)
        if self.values is None:
            return
        if self.is_float:
            numbers = numbers[~np.isnan(numbers)].astype(np.float64) + 0.0  # -0.0 becomes 0.0
        self.values.add(value_sketch.hash_numbers(numbers))

    def _add_texts(
        self, flat: Flat, indices: slice | Int64s, keys: U64 | None, decode_images: bool
    ) -> None:
        assert flat.value_splits is not None
        starts = np.ascontiguousarray(flat.value_splits[:-1][indices])
        ends = np.ascontiguousarray(flat.value_splits[1:][indices])
        hashes = value_sketch.hash_texts(flat.values, starts, ends)
        if keys is not None:
            self._pending_texts.add(hashes, keys, flat.values, starts, ends)
            return
        self._pending_sizes.add(ends - starts)
        self._pending_hashes.add(hashes)
        if self.pixels is not None and decode_images:
            self.pixels.add(hashes, flat.values, starts, ends)

    def _count_texts(
        self, hashes: U64, keys: U64, sizes: Int64s, data: Bytes, starts: Int64s, ends: Int64s
    ) -> None:
        assert self.sizes is not None
        assert self.values is not None
        assert self.sample is not None
        self.sizes.add(sizes)
        occurrences = value_sketch.hash_numbers(hashes ^ value_sketch.hash_numbers(keys))
        for name, sketch, sketch_hashes in (
            ("values", self.values, hashes),
            ("sample", self.sample, occurrences),
        ):
            new, positions = sketch.add(sketch_hashes)
            if len(new):
                self._texts[name].put(new, data, starts[positions], ends[positions])
            if self._texts[name].is_full(2 * sketch.max_values):
                self._texts[name].keep(sketch.smallest()[0])

    def texts(self, name: str) -> dict[int, bytes]:
        """Returns the first bytes of the values that `values` or `sample` keeps, by their hashes there."""
        hashes, _ = getattr(self, name).smallest()
        return dict(zip(hashes.tolist(), self._texts[name].keep(hashes).to_pylist(), strict=True))

    def merge(self, source: FeatureSketch) -> None:
        """Adds what another one has counted of the same feature."""
        self.present, self.missing = self.present + source.present, self.missing + source.missing
        for name in _SKETCH_NAMES:
            own_part, source_part = getattr(self, name), getattr(source, name)
            if own_part is not None:
                own_part.merge(source_part)
        for name, sketch in (("values", self.values), ("sample", self.sample)):
            if self.is_text and sketch is not None:
                self._texts[name].merge(source._texts[name])
                self._texts[name].keep(sketch.smallest()[0])

    def __getstate__(self) -> dict[str, Any]:
        self.flush()
        for name, texts in self._texts.items() if self.is_text else ():
            texts.keep(getattr(self, name).smallest()[0])
        return self.__dict__


class DatasetSketch:
    """Sketches of all features of a schema in each of these splits. records: [splits] how many were counted."""

    def __init__(self, schema: Schema, splits: Sequence[str]) -> None:
        self.schema, self.splits = schema, tuple(splits)
        self.records, split_count = [0] * len(self.splits), len(self.splits)
        text_columns = sum(feature.dtype == "string" for feature in schema) * split_count
        columns = len(schema) * split_count
        max_texts = max_values_per_column(
            text_columns + -(-(columns - text_columns) // _NUMBER_COLUMNS_PER_TEXT_COLUMN), True
        )
        max_numbers = max_values_per_column(columns, False)
        binary_columns = sum(feature.dtype == "bytes" for feature in schema) * len(self.splits)

        def sketch_of(feature: Feature) -> FeatureSketch:
            is_binary = feature.dtype == "bytes"
            pixels = (
                PixelSketch.of_features(binary_columns, len(self.splits), max_numbers)
                if is_binary
                else None
            )
            max_values = max_texts if feature.dtype == "string" else max_numbers
            return FeatureSketch(feature, max_values, feature.name == schema.label, pixels)

        self._features = [[sketch_of(feature) for feature in schema] for _ in self.splits]

    @property
    def features(self) -> list[list[FeatureSketch]]:
        """Sketches by split and feature, with all that was added."""
        for features in self._features:
            for feature in features:
                feature.flush()
        return self._features

    def add(
        self,
        batch: pa.RecordBatch,
        keys: U64,
        splits: npt.NDArray[np.integer[Any]] | None = None,
        pixels: Mapping[str, PixelSums] | None = None,
    ) -> None:
        """Counts the records of a batch that has the schema's features as columns. keys: [records]; splits: [records]
        in which split each of them is; None: all in the first one. pixels: [records, SUMS] of features whose images
        were decoded.
        """
        flats = [to_flat(batch.column(feature.name), feature)[0] for feature in self.schema]
        self.add_flat(flats, keys, splits, pixels or {})

    def add_flat(
        self,
        flats: Sequence[Flat],
        keys: U64,
        splits: npt.NDArray[np.integer[Any]] | None = None,
        pixels: Mapping[str, PixelSums] = _NO_PIXELS,
    ) -> None:
        """Counts the records of a batch whose columns are flat arrays."""
        for split_id, features in enumerate(self._features):
            rows = (
                None
                if splits is None or len(self.splits) == 1
                else np.flatnonzero(splits == split_id)
            )
            if rows is not None and len(rows) == len(keys):
                rows = None
            elif (rows is not None and not len(rows)) or (splits is None and split_id):
                continue
            self.records[split_id] += len(keys) if rows is None else len(rows)
            for feature, flat in zip(features, flats, strict=True):
                feature.add(flat, keys, rows, pixels.get(feature.feature.name))

    def merge(self, source: DatasetSketch) -> None:
        """Adds what another one has counted of records of the same schema and splits."""
        assert (self.schema, self.splits) == (source.schema, source.splits)
        self.records = [
            own_count + source_count
            for own_count, source_count in zip(self.records, source.records, strict=True)
        ]
        for feature, source_feature in zip(self._flat(), source._flat(), strict=True):
            feature.merge(source_feature)

    def _flat(self) -> list[FeatureSketch]:
        """Returns all sketches, by split and feature."""
        return [feature for features in self.features for feature in features]


class SketchPool:
    """Sketches that threads count in, each by itself: a few, for which the threads wait.

    memory_bytes: of which they may take an eighth, or as much as one of them needs. most: sketches; each costs as much
    again to begin and to add up, and threads that do little else than to count need more of them.
    """

    def __init__(
        self,
        schema: Schema,
        splits: Sequence[str],
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        max_sketches: int = _MAX_SKETCHES,
    ) -> None:
        self._new = functools.partial(DatasetSketch, schema, splits)
        self._free: list[DatasetSketch] = []
        self._room = threading.Semaphore(
            max(min(memory_bytes // 8 // SKETCH_BYTES, max_sketches, _MAX_SKETCHES), 1)
        )

    @contextmanager
    def borrow(self) -> Iterator[DatasetSketch]:
        """Yields one that is this thread's, meanwhile."""
        with self._room:
            try:
                sketch = self._free.pop()
            except IndexError:
                sketch = self._new()
            yield sketch
            self._free.append(sketch)

    def total(self) -> DatasetSketch:
        """Returns what all threads have counted, when they are done."""
        total = self._free.pop() if self._free else self._new()
        while self._free:
            total.merge(self._free.pop())
        return total


def payloads_to_flat(data: npt.NDArray[np.uint8], offsets: Int64s, schema: Schema) -> Flat:
    """Records that are kept as they are, as the one column that their schema has."""
    (feature,) = schema
    return Flat(feature.storage()[0], len(offsets) - 1, data, value_splits=offsets)


def _row_splits(flat: Flat, feature: Feature) -> tuple[Int64s | None, int]:
    """Returns (row r has the values splits[r] up to splits[r + 1], 0), or (None, how many each row has)."""
    if not feature.raw:
        return flat.splits, flat.length
    item = _raw_dtype(feature).itemsize
    return (
        (None, flat.width // item) if flat.value_splits is None else (flat.value_splits // item, 0)
    )


def _raw_dtype(feature: Feature) -> np.dtype[Any]:
    return np.dtype(feature.dtype).newbyteorder("<")


def _numbers(flat: Flat, feature: Feature) -> npt.NDArray[Any]:
    return flat.values.view(_raw_dtype(feature)) if feature.raw else flat.values


def _value_blocks(
    splits: Int64s | None,
    length: int,
    rows: int,
    selected_rows: Int64s | None,
    *,
    with_records: bool,
) -> Iterator[tuple[slice | Int64s, slice | Int64s | None, U64 | int]]:
    """Yields (where values stand, for each its record, its number in that) of these rows, or of all, so many values at
    once. with_records: else there are no records and numbers.
    """
    if splits is None and length == 1:
        for begin in range(0, rows if selected_rows is None else len(selected_rows), _BLOCK_VALUES):
            part = (
                slice(begin, min(begin + _BLOCK_VALUES, rows))
                if selected_rows is None
                else selected_rows[begin : begin + _BLOCK_VALUES]
            )
            yield part, part, 0
        return
    row_numbers = np.arange(rows) if selected_rows is None else selected_rows
    starts = row_numbers * length if splits is None else splits[row_numbers]
    sizes = (
        np.full(len(row_numbers), length) if splits is None else splits[row_numbers + 1] - starts
    )
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, _BLOCK_VALUES):
        end = min(begin + _BLOCK_VALUES, total)
        row_range = slice(
            int(np.searchsorted(ends, begin, "right")), int(np.searchsorted(ends, end, "left")) + 1
        )
        block_starts = (ends - sizes)[row_range]
        first_in_record = np.maximum(begin - block_starts, 0)
        counts = np.minimum(end - block_starts, sizes[row_range]) - first_in_record
        position = np.repeat(first_in_record - np.cumsum(counts) + counts, counts) + np.arange(
            end - begin
        )
        indices: slice | Int64s = slice(int(starts[0]) + begin, int(starts[0]) + end)
        if selected_rows is not None:
            indices = np.repeat(starts[row_range], counts) + position
        records = np.repeat(row_numbers[row_range], counts) if with_records else None
        yield indices, records, position.astype(np.uint64) if with_records else 0
