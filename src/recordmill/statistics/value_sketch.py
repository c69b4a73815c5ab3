"""Counts of different values, in bounded memory.

Each value has a 64-bit hash. A `ValueSketch` keeps the values with the lowest hashes. So it depends
only on the values and not on their order, and two sketches can be added. If there are at most
`max_values` different values, all of them are kept. Otherwise the number of different values is
estimated from the highest hash that was kept.

The estimate is from Bar-Yossef et al., "Counting distinct elements in a data stream", 2002, and
Beyer et al., "On synopses for distinct-value estimation", 2007. Its standard error is 1 /
sqrt(max_values).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s, to_offsets
from recordmill.base.siphash import GOLDEN_RATIO, U64, mix64

_ALL_HASHES = (1 << 64) - 1
_MIN_SLOTS = 64
# Maximum number of arrays in a ValueTexts. Later batches have fewer and fewer new texts, so their
# arrays are small.
_MAX_TEXT_BLOCKS = 16
# Number of bytes of a text that are kept. Its hash and its size are computed from all bytes.
MAX_TEXT_BYTES = 100

# Takes (hashes, keys, sizes, data, starts, ends) of texts. `data[starts[i]:ends[i]]` may be only
# the beginning of a text, and `sizes[i]` is its complete size.
CountTexts = Callable[..., None]


class ValueSketch:
    """Counts of different values, each known by its 64-bit hash.

    Only the values with the lowest hashes are kept. The hashes are in a table with open addressing,
    which the native library fills.

    Args:
        max_values: The number of different values to keep.

    Attributes:
        max_values: The number of different values to keep.
        threshold: Values with a higher hash are not counted. While all values are kept, it is the
            largest 64-bit number.
    """

    def __init__(self, max_values: int) -> None:
        self.max_values, self.threshold = max_values, _ALL_HASHES
        self._used_slots = 0
        self._slots, self._counts, self._positions = (
            np.empty(0, np.uint64),
            np.empty(0, np.int64),
            np.empty(0, np.int32),
        )
        # The size of a table is a power of two, as `native.count_hashes` requires.
        self._max_slots = max(_MIN_SLOTS, 1 << (4 * max_values - 1).bit_length())
        self._reset_table(_MIN_SLOTS)

    def _reset_table(self, slots: int) -> None:
        if slots == len(self._slots):  # allocating memory would take most of the time here
            self._slots[:], self._counts[:], self._positions[:] = 0, 0, -1
            return
        self._slots = np.zeros(slots, np.uint64)
        self._counts = np.zeros(slots, np.int64)
        self._positions = np.full(slots, -1, np.int32)

    def add(self, hashes: U64) -> tuple[U64, npt.NDArray[np.int32]]:
        """Counts values by their hashes.

        Args:
            hashes: [values] The hash of each value, from `hash_numbers` or `hash_texts`.

        Returns:
            (hashes that were added to the sketch, index in `hashes` of the first occurrence of
            each).
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
            # The upper 32 bits are the slots in use, the lower ones the number of counted hashes.
            # The function stops early if the table has no room for another hash.
            self._used_slots, start = result >> 32, result & 0xFFFFFFFF
            if start == len(hashes):
                break
            self._make_room()
        # Dropping hashes rebuilds the table. So it is done for many of them at once, when there are
        # 1.5 times as many as the limit.
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
        """Keeps only the `max_values` lowest hashes, and lowers the threshold."""
        used_slots = np.flatnonzero(self._slots)
        hashes = self._slots[used_slots]
        self.threshold = int(np.partition(hashes, self.max_values - 1)[self.max_values - 1])
        used_slots = used_slots[hashes <= np.uint64(self.threshold)]
        self._fill(self._slots[used_slots], self._counts[used_slots], self._positions[used_slots])

    def _sorted_table(self) -> tuple[U64, Int64s, npt.NDArray[np.int32]]:
        """Returns (hashes, counts, positions) of all values in the table, by ascending hash."""
        used_slots = np.flatnonzero(self._slots)
        used_slots = used_slots[np.argsort(self._slots[used_slots])]
        return self._slots[used_slots], self._counts[used_slots], self._positions[used_slots]

    def _fill(self, hashes: U64, counts: Int64s, positions: npt.NDArray[np.int32]) -> None:
        # At most a third of the slots are in use afterwards, so that hashes are found quickly.
        size = max(_MIN_SLOTS, 1 << (3 * len(hashes)).bit_length())
        self._reset_table(min(size, self._max_slots))
        native.count_hashes(hashes, 0, _ALL_HASHES, 0, self._slots, self._counts, self._positions)
        used_slots = np.flatnonzero(self._slots)
        sources = self._positions[used_slots]
        self._counts[used_slots], self._positions[used_slots] = counts[sources], positions[sources]
        self._used_slots = len(hashes)

    def smallest(self) -> tuple[U64, Int64s]:
        """Returns the kept hashes in ascending order, and their counts."""
        hashes, counts, _ = self._sorted_table()
        return hashes[: self.max_values], counts[: self.max_values]

    @property
    def is_complete(self) -> bool:
        """True if all different values are kept."""
        return self.threshold == _ALL_HASHES and self._used_slots <= self.max_values

    def distinct(self) -> int:
        """Returns the number of different values.

        The number is an estimate if the sketch is not complete.
        """
        hashes, _ = self.smallest()
        return len(hashes) if self.is_complete else ((self.max_values - 1) << 64) // int(hashes[-1])

    def merge(self, source: ValueSketch) -> None:
        """Adds the counts of another sketch, which may keep more values than this one."""
        assert self.max_values <= source.max_values
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
        """Replaces the contents of the sketch.

        Args:
            hashes: The new hashes, ascending. Only the first `max_values` are kept.
            counts: The count of each hash.
            is_complete: True if no value was dropped before.
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
        """Creates a sketch from the result of `smallest`.

        Args:
            max_values: The number of different values to keep.
            hashes: The hashes, ascending.
            counts: The count of each hash.
            is_complete: True if `hashes` contains the hashes of all values, so none was dropped.
        """
        sketch = cls(max_values)
        sketch.set_smallest(hashes, counts, is_complete)
        return sketch

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the state as arrays by name, for a file. `from_arrays` reads them."""
        hashes, counts = self.smallest()
        return {
            "limits": np.array([self.max_values, self.is_complete], np.int64),
            "hashes": hashes,
            "counts": counts,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> ValueSketch:
        """Creates a sketch from the arrays of `to_arrays`."""
        max_values, is_complete = arrays["limits"].tolist()
        return cls.from_smallest(
            max_values, arrays["hashes"], arrays["counts"], is_complete=bool(is_complete)
        )

    def most_frequent(self) -> Iterator[tuple[int, int]]:
        """Yields (hash, count) of the kept values, the most frequent first.

        Values with equal counts are in the order of their hashes.
        """
        hashes, counts = self.smallest()
        order = np.argsort(-counts, kind="stable")
        yield from zip(hashes[order].tolist(), counts[order].tolist(), strict=True)


def hash_numbers(values: npt.NDArray[Any]) -> U64:
    """Returns a 64-bit hash of each number.

    No hash is 0, because a 0 is an empty slot in `ValueSketch`. `unhash_numbers` turns hashes into
    numbers again.

    Args:
        values: float64 numbers, or integers of any dtype. float32 numbers must be converted before.
    """
    bits = np.ascontiguousarray(
        values if values.dtype in (np.float64, np.uint64) else values.astype(np.int64)
    )
    return np.maximum(mix64(bits.view(np.uint64) + np.uint64(GOLDEN_RATIO)), np.uint64(1))


def unhash_numbers(hashes: U64) -> Int64s:
    """Returns the numbers that `hash_numbers` has hashed, as int64.

    If the numbers were float64 or uint64, the result has their bits, and `view` restores them.

    >>> unhash_numbers(hash_numbers(np.array([7, -1])))
    array([ 7, -1])
    >>> unhash_numbers(hash_numbers(np.array([0.5]))).view(np.float64)
    array([0.5])
    """
    first, second = (
        pow(factor, -1, 1 << 64) for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
    )
    # `mix64` multiplies and shifts. Each line inverts one of its steps, the last one first.
    word = hashes ^ (hashes >> np.uint64(31)) ^ (hashes >> np.uint64(62))
    word = word * np.uint64(second)
    word = word ^ (word >> np.uint64(27)) ^ (word >> np.uint64(54))
    word = word * np.uint64(first)
    word = word ^ (word >> np.uint64(30)) ^ (word >> np.uint64(60))
    return np.asarray((word - np.uint64(GOLDEN_RATIO)).view(np.int64))


def hash_texts(data: Bytes, starts: Int64s, ends: Int64s) -> U64:
    """Returns a 64-bit hash of each text `data[starts[i]:ends[i]]`. No hash is 0."""
    hashes = np.empty(len(starts), np.uint64)
    native.hash_texts(data, starts, ends, hashes)
    return hashes


def gather_texts(data: Bytes, starts: Int64s, ends: Int64s) -> tuple[Int64s, Bytes]:
    """Copies texts to one array without gaps, and cuts long texts.

    A long text keeps MAX_TEXT_BYTES + 1 bytes. The additional byte shows that it was cut.

    Args:
        data: The bytes that contain the texts.
        starts: [texts] The start of each text in `data`.
        ends: [texts] The end of each text in `data`.

    Returns:
        (offsets [texts + 1], bytes). Text i is `bytes[offsets[i]:offsets[i + 1]]`.
    """
    sizes = np.minimum(ends - starts, MAX_TEXT_BYTES + 1)
    offsets = to_offsets(sizes)
    if (
        len(starts)
        and int(offsets[-1]) == ends[-1] - starts[0]
        and np.array_equal(starts[1:], ends[:-1])
    ):
        # The texts are contiguous in `data`, and no text is cut: one copy is enough.
        return offsets, data[starts[0] : ends[-1]].copy()
    return offsets, data[np.repeat(starts - offsets[:-1], sizes) + np.arange(int(offsets[-1]))]


class ValueTexts:
    """The texts of the values in a sketch, by their hashes.

    Long texts are cut, see `gather_texts`. If the sketch drops a value, its text remains here until
    the owner calls `keep`.

    Attributes:
        count: The number of stored texts.
    """

    def __init__(self) -> None:
        self._hashes = [np.empty(0, np.uint64)]
        self._texts = [pa.array([], pa.large_binary())]
        self.count = 0

    def is_full(self, max_texts: int) -> bool:
        """Returns whether the owner should call `keep` to free memory.

        The object is full if it has too many texts, or if they are in many small arrays, which take
        more memory than the texts.

        Args:
            max_texts: The number of texts that may be stored.
        """
        return self.count > max_texts or len(self._texts) > _MAX_TEXT_BLOCKS

    def put(self, hashes: U64, data: Bytes, starts: Int64s, ends: Int64s) -> None:
        """Stores each text `data[starts[i]:ends[i]]` under `hashes[i]`. The texts are copied."""
        offsets, gathered = gather_texts(data, starts, ends)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(gathered)]
        self.put_texts(
            hashes, pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(hashes), buffers)
        )

    def put_texts(self, hashes: U64, texts: pa.Array) -> None:
        """Stores each text of an Arrow array under a hash. The array is kept."""
        self._hashes.append(hashes)
        self._texts.append(texts)
        self.count += len(hashes)

    def keep(self, kept_hashes: U64) -> pa.Array:
        """Drops all texts except the ones with these hashes.

        Args:
            kept_hashes: The hashes to keep. A text was stored for each of them.

        Returns:
            The remaining texts, in the order of `kept_hashes`.
        """
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
    """A buffer that collects numbers of small batches until there are enough to count.

    A call that counts 4,096 values takes hardly longer than one that counts 60.

    Args:
        max_values: The size of the buffer.
        count: Function that counts an array of values. It must not keep the array.
    """

    def __init__(self, max_values: int, count: Callable[..., object]) -> None:
        self._max_count, self._count, self._size = max_values, count, 0
        self._buffer: npt.NDArray[Any] | None = None

    def add(self, values: npt.NDArray[Any]) -> None:
        """Adds values to the buffer. Counts the buffer first if they do not fit.

        An array of `max_values` or more is counted at once. The caller may change the array
        afterwards.
        """
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
        """Counts the values in the buffer, and empties it."""
        if self._size and self._buffer is not None:
            pending_values, self._size = self._buffer[: self._size], 0
            self._count(pending_values)

    def __reduce__(self) -> tuple[object, ...]:
        # `FeatureSketch` has flushed the values before it is pickled.
        return PendingNumbers, (self._max_count, self._count)


class PendingTexts:
    """A buffer that collects texts of small batches until there are enough to count.

    The buffer contains the hash, the key, the size, and the first bytes of each text.

    Args:
        max_texts: The number of texts in a full buffer.
        count: Function that counts texts, see `CountTexts`. It must not keep the arrays.
    """

    def __init__(self, max_texts: int, count: CountTexts) -> None:
        self._max_count, self._count, self._size = max_texts, count, 0
        # hashes, keys and sizes, each [max_texts], and the offsets of the texts, [max_texts + 1]
        self._numbers: tuple[U64, U64, Int64s, Int64s] | None = None
        self._data = np.empty(0, np.uint8)

    def add(self, hashes: U64, keys: U64, data: Bytes, starts: Int64s, ends: Int64s) -> None:
        """Adds texts to the buffer. Counts the buffer first if they do not fit.

        If there are `max_texts` or more, they are counted at once. The caller may change all arrays
        after the call.

        Args:
            hashes: [texts] The hash of each text.
            keys: [texts] The key of each occurrence, which determines the sample.
            data: The bytes that contain the texts.
            starts: [texts] The start of each text in `data`.
            ends: [texts] The end of each text in `data`.
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
        """Counts the texts in the buffer, and empties it."""
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
