"""Sketch of the values with the lowest hashes.

The values alone decide which of them are kept, so two sketches add up to the sketch of all values.
If there are not more different values than the limit, all of them are kept. Otherwise the sketch
estimates the number of different values.

The estimate is from Bar-Yossef et al., "Counting distinct elements in a data stream", 2002, and
Beyer et al., "On synopses for distinct-value estimation", 2007. Its standard error is 1 /
sqrt(max_values).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.siphash import GOLDEN_RATIO, U64, mix64

_ALL_HASHES = (1 << 64) - 1
_MIN_SLOTS = 64
# Arrays of a ValueTexts. Later batches have fewer and fewer new texts, so the arrays become small.
_MAX_TEXT_BLOCKS = 16
# Bytes of a text that are kept. The hash and the size are of the complete text.
MAX_TEXT_BYTES = 100

# takes (hashes, keys, sizes, data, starts, ends)
CountTexts = Callable[..., None]


class ValueSketch:
    """Counts of the values with the lowest hashes.

    The hashes are in a table with open addressing, which the native library fills.

    Args:
        max_values: The number of values to keep.

    Attributes:
        max_values: The number of values to keep.
        threshold: Values with a higher hash are not counted. It is the largest hash while all
            values are kept.
    """

    def __init__(self, max_values: int) -> None:
        self.max_values, self.threshold = max_values, _ALL_HASHES
        self._used_slots = 0
        self._slots, self._counts, self._positions = (
            np.empty(0, np.uint64),
            np.empty(0, np.int64),
            np.empty(0, np.int32),
        )
        # All tables have a power of two of slots.
        self._max_slots = max(_MIN_SLOTS, 1 << (4 * max_values - 1).bit_length())
        self._reset_table(_MIN_SLOTS)

    def _reset_table(self, slots: int) -> None:
        if slots == len(self._slots):  # new memory would take longer than all other work here
            self._slots[:], self._counts[:], self._positions[:] = 0, 0, -1
            return
        self._slots = np.zeros(slots, np.uint64)
        self._counts = np.zeros(slots, np.int64)
        self._positions = np.full(slots, -1, np.int32)

    def add(self, hashes: U64) -> tuple[U64, npt.NDArray[np.int32]]:
        """Counts the values of these hashes.

        Returns:
            (hashes that are new and kept, index of the first occurrence of each in `hashes`).
        """
        start = 0
        while True:
            result = native.count_hashes(
                hashes,
                start,
                self.threshold,
                self._used_slots,
                self._slots,
                self._counts,
                self._positions,
            )
            # The function stops early if the table has no room for more hashes.
            self._used_slots, start = result >> 32, result & 0xFFFFFFFF
            if start == len(hashes):
                break
            self._make_room()
        # Surplus hashes are dropped in bulk, when there are 1.5 times as many as the limit.
        if 2 * self._used_slots > 3 * self.max_values:
            self._drop_largest()
        is_new = self._positions >= 0
        if not is_new.any():
            return np.empty(0, np.uint64), np.empty(0, np.int32)
        new_hashes, positions = self._slots[is_new], self._positions[is_new]
        self._positions[is_new] = -1
        return new_hashes, positions

    def _make_room(self) -> None:
        if len(self._slots) == self._max_slots:
            self._drop_largest()
        else:
            used_slots = np.flatnonzero(self._slots)
            self._fill(
                self._slots[used_slots], self._counts[used_slots], self._positions[used_slots]
            )

    def _drop_largest(self) -> None:
        """Drops all but the `max_values` lowest hashes."""
        used_slots = np.flatnonzero(self._slots)
        hashes = self._slots[used_slots]
        self.threshold = int(np.partition(hashes, self.max_values - 1)[self.max_values - 1])
        used_slots = used_slots[hashes <= np.uint64(self.threshold)]
        self._fill(self._slots[used_slots], self._counts[used_slots], self._positions[used_slots])

    def _sorted_table(self) -> tuple[U64, Int64s, npt.NDArray[np.int32]]:
        """Returns the hashes in ascending order, with their counts and positions."""
        used_slots = np.flatnonzero(self._slots)
        used_slots = used_slots[np.argsort(self._slots[used_slots])]
        return self._slots[used_slots], self._counts[used_slots], self._positions[used_slots]

    def _fill(self, hashes: U64, counts: Int64s, positions: npt.NDArray[np.int32]) -> None:
        # At most a third of the slots are used.
        size = max(_MIN_SLOTS, 1 << (3 * len(hashes)).bit_length())
        self._reset_table(min(size, self._max_slots))
        native.count_hashes(hashes, 0, _ALL_HASHES, 0, self._slots, self._counts, self._positions)
        used_slots = np.flatnonzero(self._slots)
        sources = self._positions[used_slots]
        self._counts[used_slots], self._positions[used_slots] = counts[sources], positions[sources]
        self._used_slots = len(hashes)

    def smallest(self) -> tuple[U64, Int64s]:
        """Returns the kept hashes in ascending order, and the count of each."""
        hashes, counts, _ = self._sorted_table()
        return hashes[: self.max_values], counts[: self.max_values]

    @property
    def is_complete(self) -> bool:
        """True if all values are kept."""
        return self.threshold == _ALL_HASHES and self._used_slots <= self.max_values

    def distinct(self) -> int:
        """Returns the number of different values, estimated if not all are kept."""
        hashes, _ = self.smallest()
        return len(hashes) if self.is_complete else ((self.max_values - 1) << 64) // int(hashes[-1])

    def merge(self, source: ValueSketch) -> None:
        """Adds the counts of another sketch."""
        assert self.max_values == source.max_values
        (own_hashes, own_counts), (source_hashes, source_counts) = (
            self.smallest(),
            source.smallest(),
        )
        is_complete = self.is_complete and source.is_complete
        hashes, targets = np.unique(
            np.concatenate([own_hashes, source_hashes]), return_inverse=True
        )
        counts = np.zeros(len(hashes), np.int64)
        np.add.at(counts, targets, np.concatenate([own_counts, source_counts]))
        self.set_smallest(hashes, counts, is_complete)

    def set_smallest(self, hashes: U64, counts: Int64s, is_complete: bool) -> None:
        """Replaces all counts.

        Args:
            hashes: The hashes, ascending. Only the first `max_values` are kept.
            counts: The count of each hash.
            is_complete: These are the hashes of all values.
        """
        if len(hashes) > self.max_values:
            hashes, counts, is_complete = (
                hashes[: self.max_values],
                counts[: self.max_values],
                False,
            )
        self.threshold = _ALL_HASHES if is_complete else int(hashes[-1])
        self._fill(hashes, counts, np.full(len(hashes), -1, np.int32))

    def __reduce__(self) -> tuple[object, ...]:
        return ValueSketch.from_smallest, (self.max_values, *self.smallest(), self.is_complete)

    @classmethod
    def from_smallest(
        cls, max_values: int, hashes: U64, counts: Int64s, is_complete: bool
    ) -> ValueSketch:
        """Creates a sketch from the result of `smallest`."""
        sketch = cls(max_values)
        sketch.set_smallest(hashes, counts, is_complete)
        return sketch

    def most_frequent(self) -> Iterator[tuple[int, int]]:
        """Yields (hash, count), the most frequent first.

        Equally frequent values are in the order of their hashes.
        """
        hashes, counts = self.smallest()
        order = np.argsort(-counts, kind="stable")
        yield from zip(hashes[order].tolist(), counts[order].tolist(), strict=True)


def hash_numbers(values: npt.NDArray[Any]) -> U64:
    """Returns the hash of each float64 number or integer.

    The hash determines the number again, see `unhash_numbers`.
    """
    bits = np.ascontiguousarray(
        values if values.dtype in (np.float64, np.uint64) else values.astype(np.int64)
    )
    return np.maximum(mix64(bits.view(np.uint64) + np.uint64(GOLDEN_RATIO)), np.uint64(1))


def unhash_numbers(hashes: U64) -> Int64s:
    """Returns the bits of the numbers with these hashes, as int64."""
    first, second = (
        pow(factor, -1, 1 << 64) for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
    )
    # Each step inverts one step of `mix64`, from the last to the first.
    word = hashes ^ (hashes >> np.uint64(31)) ^ (hashes >> np.uint64(62))
    word = word * np.uint64(second)
    word = word ^ (word >> np.uint64(27)) ^ (word >> np.uint64(54))
    word = word * np.uint64(first)
    word = word ^ (word >> np.uint64(30)) ^ (word >> np.uint64(60))
    return np.asarray((word - np.uint64(GOLDEN_RATIO)).view(np.int64))


def hash_texts(data: Bytes, starts: Int64s, ends: Int64s) -> U64:
    """Returns the hash of each text `data[starts[i]:ends[i]]`."""
    hashes = np.empty(len(starts), np.uint64)
    native.hash_texts(data, starts, ends, hashes)
    return hashes


def gather_texts(data: Bytes, starts: Int64s, ends: Int64s) -> tuple[Int64s, Bytes]:
    """Copies texts into one array, and cuts long ones.

    A text of more than MAX_TEXT_BYTES is cut after one byte more, so that a reader can detect the
    cut.

    Args:
        data: The bytes of the texts.
        starts: The first byte of each text in `data`.
        ends: The end of each text in `data`.

    Returns:
        (offsets [texts + 1], bytes of the texts).
    """
    sizes = np.minimum(ends - starts, MAX_TEXT_BYTES + 1)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    if (
        len(starts)
        and int(offsets[-1]) == ends[-1] - starts[0]
        and np.array_equal(starts[1:], ends[:-1])
    ):
        # The texts are contiguous in `data`, and none is cut.
        return offsets, data[starts[0] : ends[-1]].copy()
    return offsets, data[np.repeat(starts - offsets[:-1], sizes) + np.arange(int(offsets[-1]))]


class ValueTexts:
    """The texts of a sketch by their hashes, cut after MAX_TEXT_BYTES.

    Attributes:
        count: The number of stored texts. Some may no longer be needed, see `keep`.
    """

    def __init__(self) -> None:
        self._hashes = [np.empty(0, np.uint64)]
        self._texts = [pa.array([], pa.large_binary())]
        self.count = 0

    def is_full(self, max_texts: int) -> bool:
        """Returns whether the texts should be reduced with `keep`.

        They should be if there are more than `max_texts`. Many small arrays are a reason, too,
        because they take more memory than the texts.
        """
        return self.count > max_texts or len(self._texts) > _MAX_TEXT_BLOCKS

    def put(self, hashes: U64, data: Bytes, starts: Int64s, ends: Int64s) -> None:
        """Stores the texts `data[starts[i]:ends[i]]` under `hashes[i]`."""
        offsets, gathered = gather_texts(data, starts, ends)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(gathered)]
        self.put_texts(
            hashes, pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(hashes), buffers)
        )

    def put_texts(self, hashes: U64, texts: pa.Array) -> None:
        """Stores an array of texts under these hashes."""
        self._hashes.append(hashes)
        self._texts.append(texts)
        self.count += len(hashes)

    def keep(self, kept_hashes: U64) -> pa.Array:
        """Drops the texts of other hashes, and returns the rest in this order."""
        hashes = np.concatenate(self._hashes)
        order = np.argsort(hashes, kind="stable")
        positions = (
            order[np.searchsorted(hashes[order], kept_hashes)]
            if len(kept_hashes)
            else np.empty(0, np.int64)
        )
        texts = pa.concat_arrays(self._texts).take(pa.array(positions))
        self._hashes, self._texts, self.count = [kept_hashes], [texts], len(kept_hashes)
        return texts

    def merge(self, source: ValueTexts) -> None:
        """Adds the texts of another object."""
        for hashes, texts in zip(source._hashes, source._texts, strict=True):
            self.put_texts(hashes, texts)


class PendingNumbers:
    """Collects numbers of small batches, so that they can be counted together.

    Counting 4,096 values takes hardly longer than counting 60.

    Args:
        max_values: The number of values to collect.
        count: The function that counts an array of values. It must not keep the array.
    """

    def __init__(self, max_values: int, count: Callable[..., object]) -> None:
        self._max_count, self._count, self._size = max_values, count, 0
        self._buffer: npt.NDArray[Any] | None = None

    def add(self, values: npt.NDArray[Any]) -> None:
        """Counts these values, now or later."""
        if self._size + len(values) > self._max_count:
            self.flush()
        if len(values) >= self._max_count:
            self._count(values)
            return
        if self._buffer is None or self._buffer.dtype != values.dtype:
            self.flush()
            self._buffer = np.empty(self._max_count, values.dtype)
        self._buffer[self._size : self._size + len(values)] = values
        self._size += len(values)

    def flush(self) -> None:
        """Counts the collected values."""
        if self._size and self._buffer is not None:
            pending_values, self._size = self._buffer[: self._size], 0
            self._count(pending_values)

    def __reduce__(self) -> tuple[object, ...]:
        # `FeatureSketch` has flushed the values before it is pickled.
        return PendingNumbers, (self._max_count, self._count)


class PendingTexts:
    """Collects texts of small batches, so that they can be counted together.

    It stores the hashes, the keys of their records, the sizes, and the beginning of each text.

    Args:
        max_texts: The number of texts to collect.
        count: The function that counts texts. It must not keep the arrays.
    """

    def __init__(self, max_texts: int, count: CountTexts) -> None:
        self._max_count, self._count, self._size = max_texts, count, 0
        # hashes, keys and sizes, each [max_texts], and the offsets of the texts, [max_texts + 1]
        self._numbers: tuple[U64, U64, Int64s, Int64s] | None = None
        self._data = np.empty(0, np.uint8)

    def add(self, hashes: U64, keys: U64, data: Bytes, starts: Int64s, ends: Int64s) -> None:
        """Counts texts, now or later.

        Args:
            hashes: [texts] The hash of each text.
            keys: [texts] The key of each occurrence.
            data: The bytes of the texts.
            starts: The first byte of each text in `data`.
            ends: The end of each text in `data`.
        """
        count = len(hashes)
        if self._size + count > self._max_count:
            self.flush()
        if count >= self._max_count:
            self._count(hashes, keys, ends - starts, data, starts, ends)
            return
        if self._numbers is None:
            max_texts = self._max_count
            self._numbers = (
                np.empty(max_texts, np.uint64),
                np.empty(max_texts, np.uint64),
                np.empty(max_texts, np.int64),
                np.zeros(max_texts + 1, np.int64),
            )
            # Room for the longest texts. Pages that are not used take no memory.
            self._data = np.empty(max_texts * (MAX_TEXT_BYTES + 1), np.uint8)
        first_row, end_row = self._size, self._size + count
        for target, values in zip(self._numbers, (hashes, keys, ends - starts), strict=False):
            target[first_row:end_row] = values
        offsets, gathered = gather_texts(data, starts, ends)
        first_byte = int(self._numbers[3][first_row])
        self._numbers[3][first_row : end_row + 1] = offsets + first_byte
        self._data[first_byte : first_byte + len(gathered)] = gathered
        self._size = end_row

    def flush(self) -> None:
        """Counts the collected texts."""
        if self._size and self._numbers is not None:
            size, self._size = self._size, 0
            hashes, keys, sizes, positions = self._numbers
            self._count(
                hashes[:size],
                keys[:size],
                sizes[:size],
                self._data,
                positions[:size],
                positions[1 : size + 1],
            )

    def __reduce__(self) -> tuple[object, ...]:
        # `FeatureSketch` has flushed the texts before it is pickled.
        return PendingTexts, (self._max_count, self._count)
