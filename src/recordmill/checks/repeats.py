"""Records that stand in a data set more than once, by digests of what they hold: 24 bytes a record, parted by their
digests among files of a scratch folder where memory is less, and no Python object for any of them.
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
from recordmill.records.images.similarity import NEAR_BITS
from recordmill.statistics.value_sketch import hash_texts
from recordmill.storage.files import create_file, map_file, write_all
from recordmill.storage.folders import join, make_scratch_folder, remove_tree

_PAIRS_PER_BLOCK = 1 << 16  # pairs of one array
_ROWS_PER_BLOCK = 256  # compared with all before them at once


def find_near_pairs(hashes: U64) -> Iterator[tuple[Int64s, Int64s]]:
    """Yields (smaller, larger) numbers of rows of hashes, [n, 4] words, at most NEAR_BITS bits apart, some at once."""
    signs = 2 * np.unpackbits(np.ascontiguousarray(hashes).view(np.uint8), 1).astype(np.float32) - 1
    min_product = (
        signs.shape[1] - 2 * NEAR_BITS
    )  # what the product of two such rows of 1 and -1 is at least
    for first in range(0, len(signs), _ROWS_PER_BLOCK):
        near = (
            signs[first : first + _ROWS_PER_BLOCK] @ signs[: first + _ROWS_PER_BLOCK].T
            >= min_product
        )
        indices = np.flatnonzero(near)
        for begin in range(0, len(indices), _PAIRS_PER_BLOCK):
            row, smaller = np.divmod(indices[begin : begin + _PAIRS_PER_BLOCK], near.shape[1])
            is_pair = smaller < first + row
            if is_pair.any():
                yield smaller[is_pair], (first + row)[is_pair]


_ROW_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("record", "<u8")])
_SPLIT_SHIFT = 48  # of `record`: the split above it, the record's number below
_SORT_MEMORY_FACTOR = 6  # times the bytes of rows, that sorting them takes
_MAX_FILES = 1024
_MAX_EXAMPLES = 5  # pairs that are kept to be shown, of each kind


@dataclass(frozen=True)
class RepeatCounts:
    """within: split to how many of its records another one before it equals; between: pair of splits to how many
    records of the second one a record of the first one equals. pairs: the first ones of both kinds, as numbers of
    records, of which the one that comes again is the second; within a split its own name stands is_repeated.
    """

    within_splits: dict[int, int] = field(default_factory=dict)
    between_splits: dict[tuple[int, int], int] = field(default_factory=dict)
    example_pairs: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)

    def add(
        self, first_split: int, second_split: int, numbers: Int64s, earlier_numbers: Int64s
    ) -> None:
        """Records of split `second`, by numbers, each with the one of split `first` that it equals."""
        if not len(numbers):
            return
        if first_split == second_split:
            self.within_splits[first_split] = self.within_splits.get(first_split, 0) + len(numbers)
        else:
            self.between_splits[first_split, second_split] = self.between_splits.get(
                (first_split, second_split), 0
            ) + len(numbers)
        examples = np.argpartition(numbers, min(_MAX_EXAMPLES, len(numbers)) - 1)[:_MAX_EXAMPLES]
        pairs = zip(earlier_numbers[examples].tolist(), numbers[examples].tolist(), strict=True)
        examples_of_pair = self.example_pairs.setdefault((first_split, second_split), [])
        examples_of_pair[:] = sorted(
            [*examples_of_pair, *pairs], key=lambda pair: (pair[1], pair[0])
        )[:_MAX_EXAMPLES]


class ContentDigests:
    """Digests of what records hold, of which `find_repeats` finds those that stand there more than once.

    Two digests of 64 bits are taken of each, one of them keyed by a secret of this table: nobody can make unequal
    records have equal ones. num_splits: how many there are. expected_records: about how many will come. memory_bytes: what the table
    may hold.
    """

    def __init__(self, num_splits: int, expected_records: int, memory_bytes: int) -> None:
        self.num_splits = num_splits
        self._key = secrets.randbits(63), secrets.randbits(63)
        required_bytes = max(expected_records, 1) * _ROW_DTYPE.itemsize * _SORT_MEMORY_FACTOR
        self._file_count = min(
            1 << (-(-required_bytes // memory_bytes) - 1).bit_length(), _MAX_FILES
        )
        self._max_waiting_rows = (
            memory_bytes // 2 // _ROW_DTYPE.itemsize
        )  # rows that wait for being written
        self._waiting: list[npt.NDArray[np.void]] = []
        self._rows = 0
        self._folder: str | None = None
        self._files: list[BinaryIO] = []

    def digests(self, data: Bytes, starts: Int64s, ends: Int64s) -> npt.NDArray[np.void]:
        """Returns rows of `add` for data[starts[i]:ends[i]], without their places; on any thread."""
        rows = np.empty(len(starts), _ROW_DTYPE)
        starts, ends = np.ascontiguousarray(starts), np.ascontiguousarray(ends)
        rows["low"] = hash_texts(np.ascontiguousarray(data), starts, ends)
        rows["high"] = hash_bytes(self._key, data, starts, ends - starts)
        return rows

    def add(self, rows: npt.NDArray[np.void], numbers: Int64s, split_id: int) -> None:
        """Puts rows of `digests` there. numbers: [rows] of the records among all, below 2^48."""
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
        """Returns the records that stand there more than once."""
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
        """Frees the memory, and removes the files."""
        for file in self._files:
            file.close()
        if self._folder is not None:
            remove_tree(self._folder, ignore_errors=True)
        self._waiting, self._files, self._folder = [], [], None


def _add_repeats(rows: npt.NDArray[np.void], num_splits: int, counts: RepeatCounts) -> None:
    """Adds what of these rows stands there more than once."""
    high = rows["high"]
    order = np.argsort(high, kind="stable")
    ranked = high[order]
    is_equal = ranked[1:] == ranked[:-1]
    is_repeated = np.zeros(len(rows), np.bool_)
    is_repeated[1:] |= is_equal
    is_repeated[:-1] |= is_equal
    rows = rows[order[is_repeated]]
    rows = rows[np.lexsort((rows["record"], rows["low"], rows["high"]))]  # few, mostly
    group = np.cumsum(_starts_group(rows["high"]) | _starts_group(rows["low"])) - 1
    group_count = int(group[-1]) + 1 if len(group) else 0
    split = (rows["record"] >> np.uint64(_SPLIT_SHIFT)).astype(np.int64)
    number = (rows["record"] & np.uint64((1 << _SPLIT_SHIFT) - 1)).astype(np.int64)
    firsts: Sequence[Int64s] = [
        _first_numbers(group[split == split_id], number[split == split_id], group_count)
        for split_id in range(num_splits)
    ]
    for split_id in range(num_splits):
        is_member = split == split_id
        first_numbers = firsts[split_id][group[is_member]]
        is_repeat = first_numbers != number[is_member]
        counts.add(split_id, split_id, number[is_member][is_repeat], first_numbers[is_repeat])
    for split_id, later_split in itertools.permutations(range(num_splits), 2):
        is_member = split == later_split
        first_numbers = firsts[split_id][group[is_member]]
        counts.add(
            split_id,
            later_split,
            number[is_member][first_numbers >= 0],
            first_numbers[first_numbers >= 0],
        )


def _starts_group(values: U64) -> npt.NDArray[np.bool_]:
    """Returns whether each is another one than that before it."""
    return np.concatenate([np.ones(min(len(values), 1), np.bool_), values[1:] != values[:-1]])


def _first_numbers(group: Int64s, number: Int64s, count: int) -> Int64s:
    """[count] the first of each group's numbers, which ascend in it; -1 where it has none."""
    firsts = np.full(count, -1, np.int64)
    firsts[group[::-1]] = number[::-1]
    return firsts
