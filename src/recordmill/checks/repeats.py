"""Search for repeated records, by digests of their contents.

The digests of a record take 24 bytes, and no Python object. If the memory is too small, the digests
are distributed among files of a scratch folder.
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
from recordmill.storage.files import create_file, map_file, write_all
from recordmill.storage.folders import join, make_scratch_folder, remove_tree

_PAIRS_PER_BLOCK = 1 << 16  # pairs per yielded block
_ROWS_PER_BLOCK = 256  # rows that are compared at once with all rows before them


def find_near_pairs(hashes: U64) -> Iterator[tuple[Int64s, Int64s]]:
    """Yields pairs of hashes that differ in at most MAX_HASH_DISTANCE bits, in blocks.

    Args:
        hashes: [n, 4] Words of each hash.

    Yields:
        (row numbers, larger row numbers) of the pairs.
    """
    signs = 2 * np.unpackbits(np.ascontiguousarray(hashes).view(np.uint8), 1).astype(np.float32) - 1
    # the product of two rows of 1 and -1 is the number of equal bits less the number of other bits
    min_product = signs.shape[1] - 2 * MAX_HASH_DISTANCE
    for first in range(0, len(signs), _ROWS_PER_BLOCK):
        near = (
            signs[first : first + _ROWS_PER_BLOCK] @ signs[: first + _ROWS_PER_BLOCK].T
            >= min_product
        )
        indices = np.flatnonzero(near)
        for begin in range(0, len(indices), _PAIRS_PER_BLOCK):
            row, smaller = np.divmod(indices[begin : begin + _PAIRS_PER_BLOCK], near.shape[1])
            # each pair once, and no row with itself
            is_pair = smaller < first + row
            if is_pair.any():
                yield smaller[is_pair], (first + row)[is_pair]


_ROW_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("record", "<u8")])
_SPLIT_SHIFT = 48  # `record` has the split in the bits above, and the record number below
_SORT_MEMORY_FACTOR = 6  # sorting takes this many times the bytes of the rows
_MAX_FILES = 1024
_MAX_EXAMPLES = 5  # per pair of splits


@dataclass(frozen=True)
class RepeatCounts:
    """Numbers and examples of repeated records.

    Attributes:
        within_splits: Number of records that equal an earlier record of their split, by split.
        between_splits: Number of records of the second split that equal a record of the first one,
            by (first split, second split).
        example_pairs: The first pairs (number of the original, number of the repeat), by (first
            split, second split). For repeats within a split, its number appears twice in the key.
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
        """Adds records of the second split that equal a record of the first split.

        Args:
            original_split: Ordinal of the split with the originals.
            repeat_split: Ordinal of the split with the repeats.
            repeat_numbers: Record numbers of the repeats.
            original_numbers: For each repeat, the record number of its original.
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
        # only the smallest numbers are sorted
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
    """Table of digests that finds records with equal contents.

    Each record has two digests of 64 bits. One of them is keyed by a secret of the table, so
    unequal records with equal digests can't be constructed.

    Args:
        num_splits: Number of splits.
        expected_records: Approximate number of records.
        memory_bytes: Memory that the table may use.
    """

    def __init__(self, num_splits: int, expected_records: int, memory_bytes: int) -> None:
        self.num_splits = num_splits
        self._key = secrets.randbits(63), secrets.randbits(63)
        required_bytes = max(expected_records, 1) * _ROW_DTYPE.itemsize * _SORT_MEMORY_FACTOR
        # a power of two, so that the upper bits of a digest select the file
        self._file_count = min(
            1 << (-(-required_bytes // memory_bytes) - 1).bit_length(), _MAX_FILES
        )
        # rows in memory before they are written to the files
        self._max_waiting_rows = memory_bytes // 2 // _ROW_DTYPE.itemsize
        self._waiting: list[npt.NDArray[np.void]] = []
        self._rows = 0
        self._folder: str | None = None
        self._files: list[BinaryIO] = []

    def digests(self, data: Bytes, starts: Int64s, ends: Int64s) -> npt.NDArray[np.void]:
        """Computes the digests of the contents `data[starts[i]:ends[i]]`. Safe on any thread.

        Returns:
            [contents] Rows for `add`, without record numbers.
        """
        rows = np.empty(len(starts), _ROW_DTYPE)
        starts, ends = np.ascontiguousarray(starts), np.ascontiguousarray(ends)
        rows["low"] = hash_texts(np.ascontiguousarray(data), starts, ends)
        rows["high"] = hash_bytes(self._key, data, starts, ends - starts)
        return rows

    def add(self, rows: npt.NDArray[np.void], numbers: Int64s, split_id: int) -> None:
        """Adds digests to the table.

        Args:
            rows: Result of `digests`. The table keeps and modifies it.
            numbers: [rows] Record numbers in the data set, below 2^48.
            split_id: Ordinal of the split of these records.
        """
        rows["record"] = numbers.astype(np.uint64) | np.uint64(split_id << _SPLIT_SHIFT)
        self._waiting.append(rows)
        self._rows += len(rows)
        if self._file_count > 1 and self._rows > self._max_waiting_rows:
            self._write()

    def _write(self) -> None:
        if self._folder is None:
            self._folder = make_scratch_folder("digests-")
            self._files = [
                create_file(join(self._folder, str(file_id))) for file_id in range(self._file_count)
            ]
        rows = self._take()
        # equal digests go to the same file, so each file can be searched alone
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
        """Returns the counts and examples of repeated records."""
        counts = RepeatCounts()
        for rows in self._iter_row_sets():
            _add_repeats(rows, self.num_splits, counts)
        return counts

    def _iter_row_sets(self) -> Iterator[npt.NDArray[np.void]]:
        if self._folder is None:
            yield self._take()
            return
        self._write()
        for file_id, file in enumerate(self._files):
            file.close()
            yield np.asarray(map_file(join(self._folder, str(file_id))).view(_ROW_DTYPE))

    def close(self) -> None:
        """Frees the memory and removes the files."""
        for file in self._files:
            file.close()
        if self._folder is not None:
            remove_tree(self._folder, ignore_errors=True)
        self._waiting, self._files, self._folder = [], [], None


def _add_repeats(rows: npt.NDArray[np.void], num_splits: int, counts: RepeatCounts) -> None:
    high = rows["high"]
    # Most rows are unique. Only rows with a repeated digest are sorted by all fields.
    order = np.argsort(high, kind="stable")
    ranked = high[order]
    is_equal = ranked[1:] == ranked[:-1]
    is_repeated = np.zeros(len(rows), np.bool_)
    is_repeated[1:] |= is_equal
    is_repeated[:-1] |= is_equal
    rows = rows[order[is_repeated]]
    rows = rows[np.lexsort((rows["record"], rows["low"], rows["high"]))]  # usually few
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
    """Returns a mask of the values that differ from the value before."""
    return np.concatenate([np.ones(min(len(values), 1), np.bool_), values[1:] != values[:-1]])


def _first_numbers(group: Int64s, number: Int64s, count: int) -> Int64s:
    """Returns the first number of each group, [count]. An empty group has -1.

    Args:
        group: Group of each number.
        number: The numbers, ascending within each group.
        count: Number of groups.
    """
    firsts = np.full(count, -1, np.int64)
    # of repeated indices, NumPy keeps the last assignment, so the order is reversed
    firsts[group[::-1]] = number[::-1]
    return firsts
