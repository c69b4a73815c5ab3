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
from recordmill.storage.folders import join, make_scratch, remove_tree

_FOUND_AT_ONCE = 1 << 16  # pairs of one array
_ROWS = 256  # compared with all before them at once


def near_pairs(hashes: U64) -> Iterator[tuple[Int64s, Int64s]]:
    """Yields (smaller, larger) numbers of rows of hashes, [n, 4] words, at most NEAR_BITS bits apart, some at once."""
    signs = 2 * np.unpackbits(np.ascontiguousarray(hashes).view(np.uint8), 1).astype(np.float32) - 1
    alike = (
        signs.shape[1] - 2 * NEAR_BITS
    )  # what the product of two such rows of 1 and -1 is at least
    for first in range(0, len(signs), _ROWS):
        near = signs[first : first + _ROWS] @ signs[: first + _ROWS].T >= alike
        places = np.flatnonzero(near)
        for begin in range(0, len(places), _FOUND_AT_ONCE):
            row, smaller = np.divmod(places[begin : begin + _FOUND_AT_ONCE], near.shape[1])
            is_pair = smaller < first + row
            if is_pair.any():
                yield smaller[is_pair], (first + row)[is_pair]


_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("place", "<u8")])
_SPLIT_SHIFT = 48  # of `place`: the split above it, the record's number below
_WORK = 6  # times the bytes of rows, that sorting them takes
_MOST_PARTS = 1024
_EXAMPLES = 5  # pairs that are kept to be shown, of each kind


@dataclass(frozen=True)
class Repeated:
    """within: split to how many of its records another one before it equals; between: pair of splits to how many
    records of the second one a record of the first one equals. pairs: the first ones of both kinds, as numbers of
    records, of which the one that comes again is the second; within a split its own name stands twice.
    """

    within: dict[int, int] = field(default_factory=dict)
    between: dict[tuple[int, int], int] = field(default_factory=dict)
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, first: int, second: int, numbers: Int64s, others: Int64s) -> None:
        """Records of split `second`, by numbers, each with the one of split `first` that it equals."""
        if not len(numbers):
            return
        if first == second:
            self.within[first] = self.within.get(first, 0) + len(numbers)
        else:
            self.between[first, second] = self.between.get((first, second), 0) + len(numbers)
        some = np.argpartition(numbers, min(_EXAMPLES, len(numbers)) - 1)[:_EXAMPLES]
        found = zip(others[some].tolist(), numbers[some].tolist(), strict=True)
        kept = self.pairs.setdefault((first, second), [])
        kept[:] = sorted([*kept, *found], key=lambda pair: (pair[1], pair[0]))[:_EXAMPLES]


class ContentDigests:
    """Digests of what records hold, of which `repeated` finds those that stand there more than once.

    Two digests of 64 bits are taken of each, one of them keyed by a secret of this table: nobody can make unequal
    records have equal ones. splits: how many there are. records: about how many will come. memory_bytes: what the table
    may hold.
    """

    def __init__(self, splits: int, records: int, memory_bytes: int) -> None:
        self.splits = splits
        self._key = secrets.randbits(63), secrets.randbits(63)
        needed = max(records, 1) * _ROW.itemsize * _WORK
        self._parts = min(1 << (-(-needed // memory_bytes) - 1).bit_length(), _MOST_PARTS)
        self._room = memory_bytes // 2 // _ROW.itemsize  # rows that wait for being written
        self._waiting: list[npt.NDArray[np.void]] = []
        self._rows = 0
        self._folder: str | None = None
        self._files: list[BinaryIO] = []

    def digests(self, data: Bytes, starts: Int64s, ends: Int64s) -> npt.NDArray[np.void]:
        """Returns rows of `add` for data[starts[i]:ends[i]], without their places; on any thread."""
        rows = np.empty(len(starts), _ROW)
        starts, ends = np.ascontiguousarray(starts), np.ascontiguousarray(ends)
        rows["low"] = hash_texts(np.ascontiguousarray(data), starts, ends)
        rows["high"] = hash_bytes(self._key, data, starts, ends - starts)
        return rows

    def add(self, rows: npt.NDArray[np.void], numbers: Int64s, split: int) -> None:
        """Puts rows of `digests` there. numbers: [rows] of the records among all, below 2^48."""
        rows["place"] = numbers.astype(np.uint64) | np.uint64(split << _SPLIT_SHIFT)
        self._waiting.append(rows)
        self._rows += len(rows)
        if self._parts > 1 and self._rows > self._room:
            self._write()

    def _write(self) -> None:
        if self._folder is None:
            self._folder = make_scratch("digests-")
            self._files = [
                create_file(join(self._folder, str(part))) for part in range(self._parts)
            ]
        rows = self._take()
        part = (rows["high"] >> np.uint64(64 - self._parts.bit_length() + 1)).astype(np.int64)
        rows = rows[np.argsort(part, kind="stable")]
        ends = np.cumsum(np.bincount(part, minlength=self._parts)).tolist()
        for file, begin, end in zip(self._files, [0, *ends], ends, strict=False):
            write_all(file, rows[begin:end].view(np.uint8))

    def _take(self) -> npt.NDArray[np.void]:
        rows = np.concatenate([np.empty(0, _ROW), *self._waiting])
        self._waiting, self._rows = [], 0
        return rows

    def repeated(self) -> Repeated:
        """Returns the records that stand there more than once."""
        found = Repeated()
        for rows in self._each_part():
            _find(rows, self.splits, found)
        return found

    def _each_part(self) -> Iterator[npt.NDArray[np.void]]:
        if self._folder is None:
            yield self._take()
            return
        self._write()
        for part, file in enumerate(self._files):
            file.close()
            yield np.asarray(map_file(join(self._folder, str(part))).view(_ROW))

    def close(self) -> None:
        """Frees the memory, and removes the files."""
        for file in self._files:
            file.close()
        if self._folder is not None:
            remove_tree(self._folder, ignore_errors=True)
        self._waiting, self._files, self._folder = [], [], None


def _find(rows: npt.NDArray[np.void], splits: int, found: Repeated) -> None:
    """Adds what of these rows stands there more than once."""
    high = rows["high"]
    order = np.argsort(high, kind="stable")
    ranked = high[order]
    is_equal = ranked[1:] == ranked[:-1]
    twice = np.zeros(len(rows), np.bool_)
    twice[1:] |= is_equal
    twice[:-1] |= is_equal
    rows = rows[order[twice]]
    rows = rows[np.lexsort((rows["place"], rows["low"], rows["high"]))]  # few, mostly
    group = np.cumsum(_differs(rows["high"]) | _differs(rows["low"])) - 1
    count = int(group[-1]) + 1 if len(group) else 0
    split = (rows["place"] >> np.uint64(_SPLIT_SHIFT)).astype(np.int64)
    number = (rows["place"] & np.uint64((1 << _SPLIT_SHIFT) - 1)).astype(np.int64)
    firsts: Sequence[Int64s] = [
        _first(group[split == one], number[split == one], count) for one in range(splits)
    ]
    for one in range(splits):
        own = split == one
        others = firsts[one][group[own]]
        again = others != number[own]
        found.add(one, one, number[own][again], others[again])
    for one, other in itertools.permutations(range(splits), 2):
        own = split == other
        others = firsts[one][group[own]]
        found.add(one, other, number[own][others >= 0], others[others >= 0])


def _differs(values: U64) -> npt.NDArray[np.bool_]:
    """Returns whether each is another one than that before it."""
    return np.concatenate([np.ones(min(len(values), 1), np.bool_), values[1:] != values[:-1]])


def _first(group: Int64s, number: Int64s, count: int) -> Int64s:
    """[count] the first of each group's numbers, which ascend in it; -1 where it has none."""
    firsts = np.full(count, -1, np.int64)
    firsts[group[::-1]] = number[::-1]
    return firsts
