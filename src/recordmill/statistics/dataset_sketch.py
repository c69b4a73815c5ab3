"""Sketches that count the values of a data set batch by batch.

A sketch depends only on the records, and not on their order or their division into batches. The sum
of two sketches is equal, to the bit, to the sketch of all their records.

All counts are exact, with two exceptions. If a feature has many different values, their number is
an estimate. If it has many different texts, the counts of the most frequent ones are estimated from
a sample of their occurrences. The keys of the records determine the sample.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.buffers import Bytes, Int64s, to_offsets
from recordmill.base.errors import DataError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.siphash import U64
from recordmill.records.example.flat_arrays import FlatEntry, flatten_column
from recordmill.records.images.pixels import PixelSums
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.tfmd import from_pbtxt, to_pbtxt
from recordmill.statistics import value_sketch
from recordmill.statistics.element_sketch import ElementSketch
from recordmill.statistics.number_sketch import NumberSketch
from recordmill.statistics.pixel_sketch import PixelSketch

# Largest and smallest number of different values that a sketch of a feature keeps. The sample of
# the occurrences of texts has half this size.
MAX_VALUES, MIN_VALUES = 4096, 64
# Number of different values that are kept for a label.
MAX_LABEL_VALUES = 1 << 16
# Number of values that all features and splits keep together. This bounds the memory of a sketch,
# see SKETCH_BYTES.
_MAX_TEXTS_IN_SKETCH, _MAX_NUMBERS_IN_SKETCH = 1 << 17, 1 << 18
# This many columns of numbers take at most as much memory as one column of texts.
_NUMBER_COLUMNS_PER_TEXT_COLUMN = 4
# Memory of a sketch in the worst case: long texts that are all different. Numbers take at most 30
# MiB.
SKETCH_BYTES = 120 << 20
# Number of features times splits. With more of them, a sketch takes more than SKETCH_BYTES, because
# each of them keeps MIN_VALUES.
MAX_SKETCHED_COLUMNS = _MAX_TEXTS_IN_SKETCH // MIN_VALUES
# Maximum number of sketches in a pool.
_MAX_SKETCHES = 4
# The key of an occurrence is the key of its record plus this step times its position in the record.
# So the occurrences of a text in one record have different keys.
_KEY_STEP = np.uint64(0x9E3779B97F4A7C15)
# Number of values that are counted at once. This bounds the arrays of positions, hashes and keys.
_BLOCK_VALUES = 1 << 16
# Maximum number of values that a feature collects before they are counted.
_MAX_PENDING_TEXTS, _MAX_PENDING_NUMBERS = MAX_VALUES, 4 * MAX_VALUES

# The columns of a sketch file, and the key of its metadata.
_FILE_VERSION = 1
_FILE_SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("feature", pa.string()),
        ("array", pa.string()),
        ("dtype", pa.string()),
        ("data", pa.large_binary()),
    ]
)
_HEADER_KEY = b"recordmill"

_NO_PIXELS: Mapping[str, PixelSums] = {}

# The attributes of a FeatureSketch that are sketches or None.
_SKETCH_NAMES = ("lengths", "numbers", "sizes", "values", "sample", "pixels", "elements")


def max_values_per_column(columns: int, are_texts: bool) -> int:
    """Returns the number of different values to keep for each column.

    The result is a power of two from MIN_VALUES to MAX_VALUES. It decreases with the number of
    columns, so that the memory of a sketch is bounded.

    Args:
        columns: The number of features times the number of splits.
        are_texts: True if the columns contain texts, which take more memory than numbers.

    >>> [max_values_per_column(columns, False) for columns in (12, 40, 1_000)]
    [4096, 4096, 256]
    >>> [max_values_per_column(columns, True) for columns in (12, 40, 1_000)]
    [4096, 2048, 128]
    """
    room = (_MAX_TEXTS_IN_SKETCH if are_texts else _MAX_NUMBERS_IN_SKETCH) // max(columns, 1)
    return max(min(MAX_VALUES, 1 << (room.bit_length() - 1)) if room else 0, MIN_VALUES)


def has_elements(feature: Feature) -> bool:
    """Returns whether a feature may have statistics of each element.

    Numbers of a fixed shape have elements, and so have lists of them. Lists of single numbers have
    elements only if all lists have the same length, which the sketch finds out.
    """
    are_amounts = (
        feature.dtype not in ("string", "bytes") and not feature.timestamp and not feature.classes
    )
    return are_amounts and (feature.inner_size > 1 or feature.ragged_rank == 1)


class FeatureSketch:
    """Sketch of one feature in one split.

    Small batches are collected before they are counted. `flush` counts them, and must be called
    before the attributes are read.

    Args:
        feature: The feature.
        max_values: The number of different values to keep with their counts.
        is_label: True if the feature is the label. More of its values are kept.
        pixels: Sketch for the images in a bytes feature, or None.
        elements: Sketch for the elements of a numeric feature, or None, see `has_elements`.

    Attributes:
        present: The number of records that have the feature.
        missing: The number of records without it.
        lengths: Sketch of the number of values per record. None if it is the same for all records.
        numbers: Sketch of the numbers. None for texts and binary values.
        sizes: Sketch of the sizes in bytes of texts or binary values. None for numbers.
        values: Counts of the different values. None for numeric features with several fixed values
            per item, such as images or vectors.
        sample: A sample of the occurrences of texts. None for other features.
        pixels: Sketch of the pixels of images, or None.
        elements: Sketch of each element of the arrays in the feature, or None.
    """

    def __init__(
        self,
        feature: Feature,
        max_values: int,
        is_label: bool,
        pixels: PixelSketch | None = None,
        elements: ElementSketch | None = None,
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
        self.pixels, self.elements = pixels, elements
        if is_float:  # few floats occur often, so fewer counts are worth their memory
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
        elif self.sizes is not None and self.values is not None:
            # Binary values are never shown, so their hashes are counted without the values.
            self._pending_sizes = value_sketch.PendingNumbers(pending, self.sizes.add)
            self._pending_hashes = value_sketch.PendingNumbers(pending, self.values.add)
            self._pending += [self._pending_sizes, self._pending_hashes]
        else:
            self._pending_numbers = value_sketch.PendingNumbers(pending, self._count_numbers)
            self._pending.append(self._pending_numbers)

    def add(
        self, flat: FlatEntry, keys: U64, rows: Int64s | None, sums: PixelSums | None = None
    ) -> None:
        """Counts the values of one column of a batch.

        Args:
            flat: The column.
            keys: [records] The sort key of each record of the batch. It determines the occurrences
                of texts that are sampled.
            rows: The indexes of the records to count, ascending. If None, all are counted.
            sums: [records, NUM_PIXEL_SUMS] The pixel sums of the images, if the caller has decoded
                them. If None, a sample of the images is decoded.
        """
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
        if self.elements is not None:
            self._add_elements(self.elements, flat, keys, rows)
        for indices, records, position in _value_blocks(
            splits, length, flat.rows, rows, with_records=self.is_text
        ):
            if self.is_bytes:
                occurrence_keys = keys[records] + position * _KEY_STEP if self.is_text else None
                self._add_texts(flat, indices, occurrence_keys, sums is None)
            else:
                self._pending_numbers.add(_numbers(flat, self.feature)[indices])

    def _add_elements(
        self, elements: ElementSketch, flat: FlatEntry, keys: U64, rows: Int64s | None
    ) -> None:
        """Counts the arrays of a column element by element.

        A list of numbers is one array, if all lists have the same length. Otherwise each item of a
        record is an array.
        """
        if elements.dropped:
            return
        splits, length = _row_splits(flat, self.feature)
        numbers, size = _numbers(flat, self.feature), self.feature.inner_size
        if size == 1 and splits is not None:
            row_numbers = np.arange(flat.rows) if rows is None else rows
            starts = splits[row_numbers]
            lengths = splits[row_numbers + 1] - starts
            if not len(lengths):
                return
            size = int(lengths[0])
            if (lengths != size).any() or size < 2:
                elements.drop()
                return
            block_rows = max(_BLOCK_VALUES // size, 1)
            for begin in range(0, len(starts), block_rows):
                end = begin + block_rows
                indices = starts[begin:end, None] + np.arange(size)
                elements.add(numbers[indices], keys[row_numbers[begin:end]])
            return
        arrays = numbers[: len(numbers) // size * size].reshape(-1, size)
        for block, records, position in _value_blocks(
            None if splits is None else splits // size,
            length // size,
            flat.rows,
            rows,
            with_records=True,
            block_values=max(_BLOCK_VALUES // size, 1),
        ):
            elements.add(arrays[block], keys[records] + position * _KEY_STEP)

    def flush(self) -> None:
        """Counts the values that were collected from small batches."""
        for pending in self._pending:
            pending.flush()

    def _count_numbers(self, numbers: npt.NDArray[Any]) -> None:
        assert self.numbers is not None
        self.numbers.add(numbers)
        if self.values is None:
            return
        if self.is_float:
            # `+ 0.0` turns -0.0 into 0.0. NaN is counted in `numbers` only.
            numbers = numbers[~np.isnan(numbers)].astype(np.float64) + 0.0
        self.values.add(value_sketch.hash_numbers(numbers))

    def _add_texts(
        self, flat: FlatEntry, indices: slice | Int64s, keys: U64 | None, decode_images: bool
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
        # Each occurrence has a hash of its own, from the text and its key. The occurrences with the
        # lowest hashes are a random sample that does not depend on the order of the records.
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
        """Returns the texts that a sketch has kept, by their hashes.

        Long texts are cut after MAX_TEXT_BYTES + 1 bytes.

        Args:
            name: The name of the sketch: "values" or "sample".
        """
        hashes, _ = getattr(self, name).smallest()
        return dict(zip(hashes.tolist(), self._texts[name].keep(hashes).to_pylist(), strict=True))

    def counts_by_value(self) -> dict[Any, int] | None:
        """Returns the number of each text or integer. None if the sketch does not have all."""
        if self.values is None or not self.values.is_complete or self.is_float:
            return None
        hashes, counts = self.values.smallest()
        if self.is_text:
            texts = self.texts("values")
            if any(len(text) > value_sketch.MAX_TEXT_BYTES for text in texts.values()):
                return None  # texts that were cut may be equal
            values = [texts[hash_].decode("utf-8", "replace") for hash_ in hashes.tolist()]
        elif self.is_bytes:
            return None
        else:
            values = value_sketch.unhash_numbers(hashes).tolist()
        return dict(zip(values, counts.tolist(), strict=True))

    def merge(self, source: FeatureSketch) -> None:
        """Adds the counts of another sketch of the same feature.

        Both sketches must have been flushed. The feature of `source` may be narrower: a smaller
        integer type, or a fixed length instead of a variable one.
        """
        self.present, self.missing = self.present + source.present, self.missing + source.missing
        for name in _SKETCH_NAMES:
            own_part, source_part = getattr(self, name), getattr(source, name)
            if own_part is not None and source_part is not None:
                own_part.merge(source_part)
        if source.present:
            self._add_fixed_lengths(source)
        for name, sketch in (("values", self.values), ("sample", self.sample)):
            if self.is_text and sketch is not None:
                self._texts[name].merge(source._texts[name])
                self._texts[name].keep(sketch.smallest()[0])

    def _add_fixed_lengths(self, source: FeatureSketch) -> None:
        """Adds the lengths from a sketch of a feature with a fixed length.

        Such a sketch does not count them, because the feature determines them.
        """
        if self.lengths is not None and source.lengths is None:
            self.lengths.add_repeated(source.feature.inner_size, source.present)
        if self.elements is not None and source.elements is None:
            self.elements.drop()
        if source.values is None:
            self.values = None

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the state as arrays by name, for a file. `from_arrays` reads them."""
        self.flush()
        arrays: dict[str, npt.NDArray[Any]] = {
            "records": np.array([self.present, self.missing], np.int64)
        }
        for sketch_name in _SKETCH_NAMES:
            if (sketch := getattr(self, sketch_name)) is not None:
                parts = sketch.to_arrays()
                arrays |= {f"{sketch_name}/{name}": array for name, array in parts.items()}
        for name in self._texts if self.is_text else ():
            hashes, _ = getattr(self, name).smallest()
            arrays |= {
                f"{name}/texts/{part}": array
                for part, array in _texts_to_arrays(self._texts[name].keep(hashes)).items()
            }
        return arrays

    @classmethod
    def from_arrays(cls, feature: Feature, arrays: Mapping[str, npt.NDArray[Any]]) -> FeatureSketch:
        """Creates a sketch from the arrays of `to_arrays`.

        The new sketch can be merged into another one, but can't count records.
        """
        sketch = cls(feature, MIN_VALUES, False)
        sketch.present, sketch.missing = arrays["records"].tolist()
        parts_by_sketch: dict[str, dict[str, npt.NDArray[Any]]] = {}
        for name, array in arrays.items():
            sketch_name, _, part = name.partition("/")
            parts_by_sketch.setdefault(sketch_name, {})[part] = array
        for name in _SKETCH_NAMES:
            parts = parts_by_sketch.get(name)
            setattr(sketch, name, None if parts is None else _READERS[name](sketch, parts))
        for name in sketch._texts if sketch.is_text else ():
            parts = parts_by_sketch[name]
            texts = _arrays_to_texts(parts["texts/offsets"], parts["texts/data"])
            sketch._texts[name].put_texts(parts["hashes"], texts)
        return sketch

    def __getstate__(self) -> dict[str, Any]:
        self.flush()  # the pickled state has no pending values
        for name, texts in self._texts.items() if self.is_text else ():
            texts.keep(getattr(self, name).smallest()[0])
        return self.__dict__


# The function that reads each sketch of a feature from arrays.
_READERS: Mapping[str, Callable[[FeatureSketch, Mapping[str, npt.NDArray[Any]]], Any]] = {
    "lengths": lambda feature, arrays: NumberSketch.from_arrays(True, arrays),
    "numbers": lambda feature, arrays: NumberSketch.from_arrays(not feature.is_float, arrays),
    "sizes": lambda feature, arrays: NumberSketch.from_arrays(True, arrays),
    "values": lambda feature, arrays: value_sketch.ValueSketch.from_arrays(arrays),
    "sample": lambda feature, arrays: value_sketch.ValueSketch.from_arrays(arrays),
    "pixels": lambda feature, arrays: PixelSketch.from_arrays(arrays),
    "elements": lambda feature, arrays: ElementSketch.from_arrays(arrays),
}


def _texts_to_arrays(texts: pa.Array) -> dict[str, npt.NDArray[Any]]:
    lengths = pc.binary_length(texts).to_numpy(zero_copy_only=False).astype(np.int64)
    data = b"".join(texts.to_pylist())
    return {"offsets": to_offsets(lengths), "data": np.frombuffer(data, np.uint8)}


def _arrays_to_texts(offsets: Int64s, data: Bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


class DatasetSketch:
    """Sketches of all features in all splits.

    Args:
        schema: The features.
        splits: The names of the splits.

    Attributes:
        records: The number of counted records of each split, in the order of `splits`.
    """

    def __init__(self, schema: Schema, splits: Sequence[str]) -> None:
        self.schema, self.splits = schema, tuple(splits)
        self.records, split_count = [0] * len(self.splits), len(self.splits)
        text_columns = sum(feature.dtype == "string" for feature in schema) * split_count
        columns = len(schema) * split_count
        max_texts = max_values_per_column(
            text_columns + -(-(columns - text_columns) // _NUMBER_COLUMNS_PER_TEXT_COLUMN), True
        )
        max_numbers = max_values_per_column(columns, False)
        binary_columns = sum(feature.dtype == "bytes" for feature in schema) * split_count
        element_columns = sum(has_elements(feature) for feature in schema) * split_count

        def make_sketch(feature: Feature) -> FeatureSketch:
            is_binary = feature.dtype == "bytes"
            pixels = (
                PixelSketch.of_features(binary_columns, len(self.splits), max_numbers)
                if is_binary
                else None
            )
            elements = ElementSketch(element_columns) if has_elements(feature) else None
            max_values = max_texts if feature.dtype == "string" else max_numbers
            return FeatureSketch(
                feature, max_values, feature.name == schema.label, pixels, elements
            )

        self._features = [[make_sketch(feature) for feature in schema] for _ in self.splits]

    @property
    def features(self) -> list[list[FeatureSketch]]:
        """The sketches as `features[split][feature]`, with all values counted."""
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
        """Counts the records of a batch.

        Args:
            batch: The records. The features of the schema are among its columns.
            keys: [records] The sort key of each record.
            splits: [records] The index of the split of each record. None means that all records
                belong to the first split.
            pixels: The pixel sums [records, NUM_PIXEL_SUMS] of image features, by name, if the
                caller has decoded the images.
        """
        flats = [flatten_column(batch.column(feature.name), feature)[0] for feature in self.schema]
        self.add_flat(flats, keys, splits, pixels or {})

    def add_flat(
        self,
        flats: Sequence[FlatEntry],
        keys: U64,
        splits: npt.NDArray[np.integer[Any]] | None = None,
        pixels: Mapping[str, PixelSums] = _NO_PIXELS,
    ) -> None:
        """Counts the records of a batch, like `add`, from columns that are already flat.

        `add` describes the other arguments.

        Args:
            flats: The columns, in the order of the schema.
        """
        for split_id, features in enumerate(self._features):
            rows = (
                None
                if splits is None or len(self.splits) == 1
                else np.flatnonzero(splits == split_id)
            )
            if rows is not None and len(rows) == len(keys):
                rows = None
            elif (rows is not None and not len(rows)) or (splits is None and split_id):
                continue  # no record of the batch is in this split
            self.records[split_id] += len(keys) if rows is None else len(rows)
            for feature, flat in zip(features, flats, strict=True):
                feature.add(flat, keys, rows, pixels.get(feature.feature.name))

    def merge(self, source: DatasetSketch) -> None:
        """Adds the counts of another sketch.

        `source` may have fewer features and splits than this sketch. The features that it lacks are
        missing in its records. `FeatureSketch.merge` describes other differences.
        """
        assert {*source.splits} <= {*self.splits}
        assert {*source.schema.names} <= {*self.schema.names}
        own_features = self.features
        for split, features, records in zip(
            source.splits, source.features, source.records, strict=True
        ):
            split_id = self.splits.index(split)
            self.records[split_id] += records
            by_name = {feature.feature.name: feature for feature in features}
            for feature in own_features[split_id]:
                source_feature = by_name.get(feature.feature.name)
                if source_feature is None:
                    feature.missing += records
                else:
                    feature.merge(source_feature)

    def to_bytes(self) -> bytes:
        """Returns the content of a sketch file. Equal sketches become equal bytes.

        The file is an Arrow IPC file with one row for each array of the state of a feature sketch.
        The metadata contains the schema, the splits and their numbers of records.
        """
        rows = [
            (split, feature.feature.name, name, array.dtype.str, array.tobytes())
            for split, features in zip(self.splits, self.features, strict=True)
            for feature in features
            for name, array in feature.to_arrays().items()
        ]
        header = {
            "version": _FILE_VERSION,
            "schema": to_pbtxt(self.schema),
            "records": dict(zip(self.splits, self.records, strict=True)),
        }
        schema = _FILE_SCHEMA.with_metadata({_HEADER_KEY: json.dumps(header)})
        arrays = [
            pa.array([row[column] for row in rows], field.type)
            for column, field in enumerate(schema)
        ]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return sink.getvalue().to_pybytes()

    @classmethod
    def from_bytes(cls, data: bytes, source: str = "sketch.arrow") -> DatasetSketch:
        """Reads the content of a sketch file.

        The result can be merged into another sketch, but can't count records.

        Args:
            data: The content.
            source: Path of the file, for messages.

        Raises:
            DataError: The content is not a sketch file of this version.
        """
        try:
            table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
            header = json.loads(table.schema.metadata[_HEADER_KEY])
            if header["version"] != _FILE_VERSION:
                raise DataError(f"has version {header['version']}", source=source)
            sketch = cls(from_pbtxt(header["schema"], source), tuple(header["records"]))
            sketch.records = list(header["records"].values())
            arrays_by_feature: dict[tuple[str, str], dict[str, npt.NDArray[Any]]] = {}
            columns = [column.to_pylist() for column in table.columns[:4]]
            for split, feature_name, name, dtype, array in zip(
                *columns, table.column("data"), strict=True
            ):
                arrays = arrays_by_feature.setdefault((split, feature_name), {})
                arrays[name] = np.frombuffer(array.as_buffer(), dtype)
            sketch._features = [
                [
                    FeatureSketch.from_arrays(feature, arrays_by_feature[split, feature.name])
                    for feature in sketch.schema
                ]
                for split in sketch.splits
            ]
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise DataError(f"is not a file of sketches: {error}", source=source) from None
        return sketch


class SketchPool:
    """A few sketches that several threads share.

    A thread borrows a sketch and counts in it alone. It waits if all sketches are borrowed. At the
    end, the sketches are added.

    Args:
        schema: The features to count.
        splits: The names of the splits.
        memory_bytes: Memory limit of the run. All sketches together take at most an eighth of it,
            but there is always one.
        max_sketches: Maximum number of sketches. Each one takes time to create and to add. Threads
            that do little else than counting need more of them.
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
        self._available = threading.Semaphore(
            max(min(memory_bytes // 8 // SKETCH_BYTES, max_sketches, _MAX_SKETCHES), 1)
        )

    @contextmanager
    def borrow(self) -> Iterator[DatasetSketch]:
        """Lends a sketch to this thread inside the `with` block."""
        with self._available:
            try:
                sketch = self._free.pop()
            except IndexError:
                sketch = self._new()
            yield sketch
            self._free.append(sketch)

    def total(self) -> DatasetSketch:
        """Returns the sum of all sketches, and empties the pool.

        No thread may have a sketch at this time. Without counted records, the result is an empty
        sketch.
        """
        total = self._free.pop() if self._free else self._new()
        while self._free:
            total.merge(self._free.pop())
        return total


def payloads_to_flat(data: npt.NDArray[np.uint8], offsets: Int64s, schema: Schema) -> FlatEntry:
    """Returns unparsed records as the only column of their schema.

    Args:
        data: The payloads of the records, one after the other.
        offsets: [records + 1] The start of each payload, and the end of the last one.
        schema: A schema with a single bytes feature.
    """
    (feature,) = schema
    return FlatEntry(feature.storage()[0], len(offsets) - 1, data, value_splits=offsets)


def _row_splits(flat: FlatEntry, feature: Feature) -> tuple[Int64s | None, int]:
    """Returns the boundaries between the rows in the array of all values.

    Returns:
        (splits, 0) if the rows have different lengths. Row r then has the values from splits[r] to
        splits[r + 1]. Otherwise (None, number of values of each row).
    """
    if not feature.raw:
        return flat.splits, flat.length
    item = _raw_dtype(feature).itemsize
    return (
        (None, flat.width // item) if flat.value_splits is None else (flat.value_splits // item, 0)
    )


def _raw_dtype(feature: Feature) -> np.dtype[Any]:
    return np.dtype(feature.dtype).newbyteorder("<")


def _numbers(flat: FlatEntry, feature: Feature) -> npt.NDArray[Any]:
    return flat.values.view(_raw_dtype(feature)) if feature.raw else flat.values


def _value_blocks(
    splits: Int64s | None,
    length: int,
    rows: int,
    selected_rows: Int64s | None,
    *,
    with_records: bool,
    block_values: int = _BLOCK_VALUES,
) -> Iterator[tuple[slice | Int64s, slice | Int64s | None, U64 | int]]:
    """Yields the positions of the values of some rows, block by block.

    Args:
        splits: [rows + 1] The first value of each row. None if each row has `length` values.
        length: The number of values of each row, if `splits` is None.
        rows: The number of rows.
        selected_rows: The rows to use, ascending. If None, all are used.
        with_records: If True, the row and the position of each value are yielded, too.
        block_values: The largest number of values of a block.

    Yields:
        (index of each value in the array of all values, its row, its position in the row). Ignore
        the last two if `with_records` is false.
    """
    # Scalars are the common case: the index of a value is the index of its row.
    if splits is None and length == 1:
        for begin in range(0, rows if selected_rows is None else len(selected_rows), block_values):
            part = (
                slice(begin, min(begin + block_values, rows))
                if selected_rows is None
                else selected_rows[begin : begin + block_values]
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
    for begin in range(0, total, block_values):
        end = min(begin + block_values, total)
        if selected_rows is None and not with_records:
            yield slice(int(starts[0]) + begin, int(starts[0]) + end), None, 0
            continue
        # The rows with values in this block. A long row may continue in the next blocks.
        row_range = slice(
            int(np.searchsorted(ends, begin, "right")), int(np.searchsorted(ends, end, "left")) + 1
        )
        block_starts = (ends - sizes)[row_range]
        first_in_record = np.maximum(begin - block_starts, 0)
        counts = np.minimum(end - block_starts, sizes[row_range]) - first_in_record
        position = np.repeat(first_in_record - np.cumsum(counts) + counts, counts) + np.arange(
            end - begin
        )
        # The values of all rows are contiguous, so a slice is enough. Those of some rows are not.
        indices: slice | Int64s = slice(int(starts[0]) + begin, int(starts[0]) + end)
        if selected_rows is not None:
            indices = np.repeat(starts[row_range], counts) + position
        records = np.repeat(row_numbers[row_range], counts) if with_records else None
        yield indices, records, position.astype(np.uint64) if with_records else 0
