"""Search for records with equal contents, and for pairs of similar image hashes.

Equal contents are found by digests. Each record takes 24 bytes in NumPy arrays, and no Python
object. If the digests do not fit into memory, they are written to several temporary files, and the
files are searched one after the other.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.siphash import U64, hash_bytes
from recordmill.records.images.similarity import MAX_HASH_DISTANCE
from recordmill.statistics.value_sketch import hash_texts
from recordmill.storage.files import create_unnamed_file, map_open_file, write_all

_PAIRS_PER_BLOCK = 1 << 16  # largest number of pairs that `find_near_pairs` yields at once
_ROWS_PER_BLOCK = 256  # rows that one matrix product compares with all rows before them


def find_near_pairs(hashes: U64) -> Iterator[tuple[Int64s, Int64s]]:
    """Yields all pairs of image hashes that differ in at most MAX_HASH_DISTANCE bits.

    Args:
        hashes: [n, HASH_WORDS] The hash of each image, in words of 64 bits.

    Yields:
        Two arrays of equal length, (i, j): rows `i[k]` and `j[k]` of `hashes` are a pair, and `i[k]
        < j[k]`. Each pair occurs once. An array has at most _PAIRS_PER_BLOCK rows.
    """
    signs = 2 * np.unpackbits(np.ascontiguousarray(hashes).view(np.uint8), 1).astype(np.float32) - 1
    # Each bit becomes 1 or -1. The product of two rows is then the number of equal bits minus the
    # number of different bits.
    min_product = signs.shape[1] - 2 * MAX_HASH_DISTANCE
    for first in range(0, len(signs), _ROWS_PER_BLOCK):
        near = (
            signs[first : first + _ROWS_PER_BLOCK] @ signs[: first + _ROWS_PER_BLOCK].T
            >= min_product
        )
        indices = np.flatnonzero(near)
        for begin in range(0, len(indices), _PAIRS_PER_BLOCK):
            row, smaller = np.divmod(indices[begin : begin + _PAIRS_PER_BLOCK], near.shape[1])
            # The product contains each pair of this block twice, and each row with itself.
            is_pair = smaller < first + row
            if is_pair.any():
                yield smaller[is_pair], (first + row)[is_pair]


_ROW_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("record", "<u8")])
_SPLIT_SHIFT = 48  # `record` has the record number in the lower 48 bits, and the split above them
_SORT_MEMORY_FACTOR = 6  # `_add_repeats` takes up to 6 times the memory of the rows
_MAX_FILES = 1024  # scratch files that are open at the same time
_MAX_EXAMPLES = 5  # examples for each (split of the original, split of the repeat)


@dataclass(frozen=True)
class RepeatCounts:
    """Numbers and examples of repeated records.

    A repeat is a record with the same content as another record, its original. A split is an
    ordinal here, and a record number counts the records of all splits.

    Attributes:
        within_splits: For each split, the number of records that repeat an earlier record of the
            same split. Splits without repeats are missing.
        between_splits: The number of records of the second split that also occur in the first
            split, by (split of the original, split of the repeat). Both directions are counted.
        example_pairs: A few repeats for each (split of the original, split of the repeat), as
            (number of the original, number of the repeat). They are the repeats with the lowest
            numbers. For repeats within split 0, the key is (0, 0).
    """

    within_splits: dict[int, int] = field(default_factory=dict)
    between_splits: dict[tuple[int, int], int] = field(default_factory=dict)
    example_pairs: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)

    def add(
        self,
        original_split: int,
        repeat_split: int,
        repeat_numbers: Int64s,
        original_numbers: Int64s,
    ) -> None:
        """Counts the repeats of one split in another split, or in itself.

        The repeats with the lowest numbers are kept as examples.

        Args:
            original_split: Ordinal of the split that contains the originals.
            repeat_split: Ordinal of the split that contains the repeats. It may be the same split.
            repeat_numbers: [repeats] Record number of each repeat. Each number is passed only once.
            original_numbers: [repeats] Record number of the original of each repeat.
        """
        if not len(repeat_numbers):
            return
        if original_split == repeat_split:
            self.within_splits[original_split] = self.within_splits.get(original_split, 0) + len(
                repeat_numbers
            )
        else:
            self.between_splits[original_split, repeat_split] = self.between_splits.get(
                (original_split, repeat_split), 0
            ) + len(repeat_numbers)
        # Partitioning instead of sorting, because there may be millions of repeats.
        examples = np.argpartition(repeat_numbers, min(_MAX_EXAMPLES, len(repeat_numbers)) - 1)[
            :_MAX_EXAMPLES
        ]
        pairs = zip(
            original_numbers[examples].tolist(), repeat_numbers[examples].tolist(), strict=True
        )
        examples_of_pair = self.example_pairs.setdefault((original_split, repeat_split), [])
        examples_of_pair[:] = sorted(
            [*examples_of_pair, *pairs], key=lambda pair: (pair[1], pair[0])
        )[:_MAX_EXAMPLES]


class ContentDigests:
    """A table of content digests that finds records with equal contents.

    A content is the bytes to compare, such as the payload of a record or one of its images. It has
    two digests of 64 bits. One of them depends on a random secret of the table, so different
    contents with equal digests can't be constructed.

    Call `digests` and `add` for all records, then `find_repeats` once, and `close` at the end.

    Args:
        num_splits: Number of splits.
        expected_records: Approximate number of records. It determines the number of files.
        memory_bytes: Memory that the table may use.
    """

    def __init__(self, num_splits: int, expected_records: int, memory_bytes: int) -> None:
        self.num_splits = num_splits
        self._key = secrets.randbits(63), secrets.randbits(63)
        required_bytes = max(expected_records, 1) * _ROW_DTYPE.itemsize * _SORT_MEMORY_FACTOR
        # A power of two, so that the highest bits of a digest select its file.
        self._file_count = min(
            1 << (-(-required_bytes // memory_bytes) - 1).bit_length(), _MAX_FILES
        )
        # If there are several files, at most half of the memory is used for rows that wait.
        self._max_waiting_rows = memory_bytes // 2 // _ROW_DTYPE.itemsize
        self._waiting: list[npt.NDArray[np.void]] = []
        self._rows = 0
        self._files: list[BinaryIO] = []

    def digests(self, data: Bytes, starts: Int64s, ends: Int64s) -> npt.NDArray[np.void]:
        """Returns the digests of the contents `data[starts[i]:ends[i]]`.

        Several threads may call this at once.

        Returns:
            [contents] Rows for `add`. Their field `record` is not set yet.
        """
        rows = np.empty(len(starts), _ROW_DTYPE)
        starts, ends = np.ascontiguousarray(starts), np.ascontiguousarray(ends)
        rows["low"] = hash_texts(np.ascontiguousarray(data), starts, ends)
        rows["high"] = hash_bytes(self._key, data, starts, ends - starts)
        return rows

    def add(self, rows: npt.NDArray[np.void], numbers: Int64s, split_id: int) -> None:
        """Adds the digests of some records of one split. Not safe on several threads at once.

        Args:
            rows: The result of `digests`. The table keeps the array and changes it.
            numbers: [rows] Record number of each row in the data set, below 2^48.
            split_id: Ordinal of the split of these records.
        """
        rows["record"] = numbers.astype(np.uint64) | np.uint64(split_id << _SPLIT_SHIFT)
        self._waiting.append(rows)
        self._rows += len(rows)
        if self._file_count > 1 and self._rows > self._max_waiting_rows:
            self._write()

    def _write(self) -> None:
        if not self._files:
            self._files = [create_unnamed_file() for _ in range(self._file_count)]
        rows = self._take()
        # Equal digests go to the same file, so each file can be searched on its own.
        file_ids = (rows["high"] >> np.uint64(64 - self._file_count.bit_length() + 1)).astype(
            np.int64
        )
        rows = rows[np.argsort(file_ids, kind="stable")]
        ends = np.cumsum(np.bincount(file_ids, minlength=self._file_count)).tolist()
        for file, begin, end in zip(self._files, [0, *ends], ends, strict=False):
            write_all(file, rows[begin:end].view(np.uint8))

    def _take(self) -> npt.NDArray[np.void]:
        rows = np.concatenate([np.empty(0, _ROW_DTYPE), *self._waiting])
        self._waiting, self._rows = [], 0
        return rows

    def find_repeats(self) -> RepeatCounts:
        """Returns the counts and examples of all repeats.

        Call it once, after all digests were added.
        """
        counts = RepeatCounts()
        for rows in self._iter_row_sets():
            _add_repeats(rows, self.num_splits, counts)
        return counts

    def _iter_row_sets(self) -> Iterator[npt.NDArray[np.void]]:
        """Yields all rows in several arrays. Rows with equal digests are in the same array."""
        if not self._files:
            yield self._take()
            return
        self._write()
        for file in self._files:
            yield np.asarray(map_open_file(file).view(_ROW_DTYPE))

    def close(self) -> None:
        """Frees the memory and the temporary files."""
        for file in self._files:
            file.close()
        self._waiting, self._files = [], []


def _add_repeats(rows: npt.NDArray[np.void], num_splits: int, counts: RepeatCounts) -> None:
    """Finds the records with equal contents among some rows, and adds them to `counts`.

    Args:
        rows: A part of the table. Rows with equal contents must be in the same part.
        num_splits: Number of splits.
        counts: Receives the repeats.
    """
    high = rows["high"]
    # Most rows are unique, and sorting by one field is fast. Only rows whose first digest occurs
    # several times are then sorted by all fields.
    order = np.argsort(high, kind="stable")
    ranked = high[order]
    is_equal = ranked[1:] == ranked[:-1]
    is_repeated = np.zeros(len(rows), np.bool_)
    is_repeated[1:] |= is_equal
    is_repeated[:-1] |= is_equal
    rows = rows[order[is_repeated]]
    rows = rows[np.lexsort((rows["record"], rows["low"], rows["high"]))]
    # A group consists of the rows with equal contents. Within a group, rows are sorted by split and
    # record.
    group = np.cumsum(_starts_group(rows["high"]) | _starts_group(rows["low"])) - 1
    group_count = int(group[-1]) + 1 if len(group) else 0
    split = (rows["record"] >> np.uint64(_SPLIT_SHIFT)).astype(np.int64)
    number = (rows["record"] & np.uint64((1 << _SPLIT_SHIFT) - 1)).astype(np.int64)
    first_numbers_by_split: Sequence[Int64s] = [
        _first_numbers(group[split == split_id], number[split == split_id], group_count)
        for split_id in range(num_splits)
    ]
    for split_id in range(num_splits):
        is_member = split == split_id
        first_numbers = first_numbers_by_split[split_id][group[is_member]]
        is_repeat = first_numbers != number[is_member]
        counts.add(split_id, split_id, number[is_member][is_repeat], first_numbers[is_repeat])
    for original_split, repeat_split in itertools.permutations(range(num_splits), 2):
        is_member = split == repeat_split
        first_numbers = first_numbers_by_split[original_split][group[is_member]]
        counts.add(
            original_split,
            repeat_split,
            number[is_member][first_numbers >= 0],
            first_numbers[first_numbers >= 0],
        )


def _starts_group(values: U64) -> npt.NDArray[np.bool_]:
    """Returns a mask of the values that begin a group of equal values.

    >>> _starts_group(np.array([3, 3, 5], np.uint64))
    array([ True, False,  True])
    """
    return np.concatenate([np.ones(min(len(values), 1), np.bool_), values[1:] != values[:-1]])


def _first_numbers(group: Int64s, number: Int64s, count: int) -> Int64s:
    """Returns the first number of each group, [num_groups], or -1 for an empty group.

    Args:
        group: [numbers] Index of the group of each number.
        number: [numbers] The numbers, ascending within each group.
        count: Number of groups.
    """
    firsts = np.full(count, -1, np.int64)
    # If an index occurs several times, NumPy keeps the last assignment. So the order is reversed.
    firsts[group[::-1]] = number[::-1]
    return firsts
