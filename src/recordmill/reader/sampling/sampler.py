"""Order of an epoch, as a function of its number and a position. No file is opened, and nothing of the size of the data
set is in memory.

    False       the order of the files
    "window"    pieces of files in random order, and the records permuted among those of as many pieces as make a
                window: what is read lies together
    "global"    any record at any place, each order as likely as another

An order is decided by the data set's fingerprint, the seed, the epoch and the mode, and in "window" by the sizes of
files and window; never by threads, hosts or columns. Saved positions rely on it: it is pinned by tests.

A piece is some consecutive records of one file, about as many bytes as asked for. It is cut by counts, not by bytes, so
that no index has to be read: the records of one file are taken for equally long.

A mixture is one sequence without end, of which an epoch is the next so many records: each data set's records come in
the order of its own sampler, and when it has given all of them its next epoch begins. The weights are whole numbers
that repeat in cycles, spread evenly over each cycle; a cycle begins at a place of its own choosing, so that no place in
a batch belongs to one data set. Whole cycles have exactly the proportions, and what lies between differs by fewer
records of a data set than there are data sets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import gcd, isfinite, lcm
from typing import Literal

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Int64s
from recordmill.base.errors import UsageError
from recordmill.base.siphash import GOLDEN_RATIO, mix64


class RecordSubset:
    """Some of `total` records, by their numbers, ascending. Not to be changed once it is made."""

    def __init__(self, numbers: npt.NDArray[np.integer], total: int) -> None:
        self.total = total
        self._numbers = numbers.astype(np.uint32 if total <= 1 << 32 else np.int64)

    @classmethod
    def from_numbers(cls, numbers: Int64s, total: int) -> RecordSubset:
        """Returns the records of these numbers, in any order, each in [0, total)."""
        return cls(np.unique(numbers), total)

    def __len__(self) -> int:
        return len(self._numbers)

    def record_numbers(self, indices: Int64s) -> Int64s:
        """Returns the numbers among all that these of the kept ones have, each in [0, len(self))."""
        return self._numbers[indices].astype(np.int64)

    def count_below(self, numbers: Int64s) -> Int64s:
        """Returns how many are kept of the records before each of these among all, each in [0, total]."""
        return np.searchsorted(self._numbers, np.minimum(numbers, self.total).astype(np.int64))

    def mask(self, begin: int, end: int) -> npt.NDArray[np.bool_]:
        """Returns for each record of [start, stop) whether it is kept."""
        first, last = self.count_below(np.array([begin, end])).tolist()
        mask = np.zeros(end - begin, np.bool_)
        mask[self._numbers[first:last].astype(np.int64) - begin] = True
        return mask

    def select(self, indices: Int64s) -> RecordSubset:
        """Returns those of the kept ones that have these numbers among them."""
        return RecordSubset.from_numbers(self.record_numbers(indices), self.total)

    def digest(self) -> str:
        """Returns a digest that tells it from others."""
        return hashlib.blake2b(self._numbers.tobytes(), digest_size=16).hexdigest()


def derive_random_key(*words: object) -> int:
    """A key of 64 bits that these words decide."""
    text = "\x00".join(str(word) for word in words).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def permute_indices(indices: Int64s, size: int, key: int) -> Int64s:
    """Returns where the permutation of [0, size) that the key decides takes each number; nothing of its size is held.

    A Feistel network over as many bits as the size needs is a bijection of the numbers of that many bits; where it
    leads out of the size it is followed further until it leads back (cycle walking: fewer than two turns on the
    average). The round function is the finalizer of SplitMix64 (Steele, Lea, Flood 2014) over the key, the round and
    the other half. The result is part of what a saved position means: it never changes.

    >>> sorted(permuted(np.arange(10), 10, key=7).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    return permute_ranges(indices, np.array([0, size], np.int64), key)


def permute_ranges(indices: Int64s, edges: Int64s, key: int) -> Int64s:
    """Returns each number, of [edges[0], edges[-1]), permuted among those of its stretch [edges[i], edges[i + 1]), a
    permutation of its own for each.
    """
    indices, edges = np.ascontiguousarray(indices, np.int64), np.ascontiguousarray(edges, np.int64)
    ranges = np.searchsorted(edges, indices, "right") - 1
    out = np.empty_like(indices)
    native.permute(indices, ranges, edges, key, out)
    return out


@dataclass(frozen=True)
class FileExtent:
    """A file: how many records and framed bytes it has, and whether it can be read from anywhere."""

    records: int
    framed_bytes: int
    seekable: bool


@dataclass(frozen=True)
class EpochLayout:
    """Layout of the records of an epoch.

    Attributes:
        firsts: int64 [pieces + 1], where each piece begins among the records that are read.
        sizes: int64 [pieces], their framed bytes, about.
        units: int64 [units + 1]: the pieces units[i] to units[i + 1] stay together in this order, as those of a file
            must that can only be streamed.
    """

    piece_starts: Int64s
    piece_sizes: Int64s
    section_starts: Int64s

    @classmethod
    def from_files(
        cls, files: Iterable[FileExtent], piece_bytes: int, subset: RecordSubset | None = None
    ) -> EpochLayout:
        """Cuts the extents of files into pieces. `kept` are the records that are read; None: all of them."""
        start_parts, size_parts = [np.zeros(1, np.int64)], [np.empty(0, np.int64)]
        section_starts = [0]
        first_record = num_pieces = 0
        for file in files:
            if not file.records:
                continue
            count = min(max(-(-file.framed_bytes // piece_bytes), 1), file.records)
            start_parts.append(
                first_record + np.arange(1, count + 1, dtype=np.int64) * file.records // count
            )
            size_parts.append(np.full(count, file.framed_bytes // count, np.int64))
            section_starts.extend(
                range(num_pieces + 1, num_pieces + count + 1)
                if file.seekable
                else [num_pieces + count]
            )
            first_record, num_pieces = first_record + file.records, num_pieces + count
        piece_starts, piece_sizes = np.concatenate(start_parts), np.concatenate(size_parts)
        if subset is not None:
            stored_counts = np.diff(piece_starts)
            piece_starts = subset.count_below(piece_starts)
            piece_sizes = piece_sizes * np.diff(piece_starts) // stored_counts
        return cls(piece_starts, piece_sizes, np.array(section_starts, np.int64))

    def shuffle_pieces(self, key: int) -> Int64s:
        """Returns [pieces] the pieces, their units permuted."""
        section_order = permute_indices(
            np.arange(len(self.section_starts) - 1), len(self.section_starts) - 1, key
        )
        counts = np.diff(self.section_starts)[section_order]
        first_positions = np.cumsum(counts) - counts
        return np.repeat(
            self.section_starts[:-1][section_order] - first_positions, counts
        ) + np.arange(len(self.piece_sizes))


ShuffleMode = Literal[False, "window", "global"]
SHUFFLE_MODES: tuple[ShuffleMode, ...] = (False, "window", "global")
_MAX_CACHED_EPOCHS = 2  # epochs whose pieces are kept in order: the one that is consumed, and the one that is read ahead


def parse_shuffle(shuffle: bool | str) -> ShuffleMode:
    """Returns the mode of a `shuffle=`; True is "window". UsageError: it is none of them."""
    if shuffle is True:
        return "window"
    if shuffle is False or shuffle in ("window", "global"):
        return shuffle  # type: ignore[return-value]
    raise UsageError(f'shuffle is False, True, "window" or "global", not {shuffle!r}')


@dataclass(frozen=True)
class _PieceOrder:
    """An epoch's pieces in their order: [pieces] where each begins among the records; [pieces + 1] where in the epoch;
    [windows + 1] where each window does.
    """

    record_starts: Int64s
    position_edges: Int64s
    window_edges: Int64s


@dataclass(frozen=True)
class Sampler:
    """Order of one data set's records.

    Attributes:
        records: how many an epoch has.
        layout: where they lie; only "window" looks at it.
        window_bytes: framed bytes of a window.
    """

    mode: ShuffleMode
    records: int
    layout: EpochLayout
    seed: int
    fingerprint: str
    window_bytes: int
    _piece_orders: dict[int, _PieceOrder] = field(default_factory=dict, compare=False, repr=False)

    def record_numbers(self, epoch: int, positions: Int64s) -> Int64s:
        """The numbers of the records at these positions of an epoch, each in [0, records)."""
        if self.mode is False:
            return positions
        key = derive_random_key(self.fingerprint, self.mode, self.seed, epoch)
        if self.mode == "global":
            return permute_indices(positions, self.records, key)
        pieces = self._piece_order(epoch, key)
        permuted_positions = permute_ranges(positions, pieces.window_edges, key)
        piece_indices = np.searchsorted(pieces.position_edges, permuted_positions, "right") - 1
        return (
            pieces.record_starts[piece_indices]
            + permuted_positions
            - pieces.position_edges[piece_indices]
        )

    def pass_numbers(self, epoch: int, positions: Int64s) -> Int64s:
        """Returns which pass over the data set each of these positions is of."""
        return np.full(len(positions), epoch, np.int64)

    def window_bounds(self, epoch: int, position: int) -> tuple[int, int]:
        """Returns the first and last position of its window; in modes without windows those of the epoch."""
        if self.mode != "window":
            return 0, self.records
        windows = self._piece_order(
            epoch, derive_random_key(self.fingerprint, self.mode, self.seed, epoch)
        ).window_edges
        window_index = int(np.searchsorted(windows, position, "right")) - 1
        return int(windows[window_index]), int(windows[window_index + 1])

    def _piece_order(self, epoch: int, key: int) -> _PieceOrder:
        if (cached := self._piece_orders.get(epoch)) is not None:
            return cached
        order = self.layout.shuffle_pieces(key)
        counts, sizes = np.diff(self.layout.piece_starts)[order], self.layout.piece_sizes[order]
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        window = (np.cumsum(sizes) - sizes) // self.window_bytes
        window_firsts = np.flatnonzero(np.diff(window, prepend=-1))
        piece_order = _PieceOrder(
            self.layout.piece_starts[:-1][order], edges, np.append(edges[window_firsts], edges[-1])
        )
        for old in sorted(self._piece_orders)[
            : max(len(self._piece_orders) - _MAX_CACHED_EPOCHS + 1, 0)
        ]:
            self._piece_orders.pop(old, None)  # another thread may have been quicker
        self._piece_orders[epoch] = piece_order
        return piece_order


_MAX_DENOMINATOR = 1_000_000  # a weight is the nearest fraction with a denominator up to this: 1/3 is a third, 0.7 seven tenths
_MAX_CYCLE_RECORDS = 1 << 22  # records of a cycle, for each of which some bytes are held


@dataclass(frozen=True)
class Proportions:
    """Proportions of a mixture: how many records of each data set a cycle has."""

    counts: tuple[int, ...]

    @classmethod
    def from_weights(cls, weights: Sequence[float]) -> Proportions:
        """
        >>> Proportions.from_weights([0.7, 0.3]).counts, Proportions.from_weights([1 / 3, 2 / 3]).counts, Proportions.from_weights([50, 10]).counts
        ((7, 3), (1, 2), (5, 1))

        Raises:
            UsageError: a weight is none, or they have no short cycle.
        """
        if not weights:
            raise UsageError("a mixture needs data sets: [(data set, weight), ...]")
        if invalid := [weight for weight in weights if not isfinite(weight) or weight <= 0]:
            raise UsageError(f"a weight of a mixture is a number above 0, not {invalid[0]}")
        fractions = [
            Fraction(str(float(weight))).limit_denominator(_MAX_DENOMINATOR) for weight in weights
        ]
        scale = lcm(*(part.denominator for part in fractions))
        counts = [int(part * scale) for part in fractions]
        counts = [count // gcd(*counts) for count in counts]
        if min(counts) < 1 or sum(counts) > _MAX_CYCLE_RECORDS:
            raise UsageError(
                f"the weights {', '.join(map(str, weights))} repeat after {sum(counts):,} records only: give rounder "
                "ones, as whole numbers with a small sum"
            )
        return cls(tuple(counts))

    @property
    def cycle_records(self) -> int:
        """Records of a cycle."""
        return sum(self.counts)

    @cached_property
    def _pattern(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """[cycle] of which data set each place is, and how many of the same come before it in the cycle."""
        dataset_ids = np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)
        ordinals = np.concatenate([np.arange(count, dtype=np.int32) for count in self.counts])
        order = np.lexsort((dataset_ids, (ordinals + 0.5) / np.array(self.counts)[dataset_ids]))
        return dataset_ids[order], ordinals[order]

    def assign_positions(self, positions: Int64s, key: int) -> tuple[npt.NDArray[np.int32], Int64s]:
        """Returns [n] the data set of each position, and how many of its records come before."""
        pattern_ids, pattern_ordinals = self._pattern
        cycles, cycle_positions = np.divmod(positions, self.cycle_records)
        offsets = _cycle_offsets(cycles, key, self.cycle_records)
        cycle_positions = (cycle_positions + offsets) % self.cycle_records
        dataset_ids = pattern_ids[cycle_positions]
        counts = np.array(self.counts)[dataset_ids]
        preceding = np.empty_like(
            offsets
        )  # records of the same data set between the pattern's begin and the cycle's
        for dataset_id in range(len(self.counts)):
            rows = np.flatnonzero(dataset_ids == dataset_id)
            preceding[rows] = np.searchsorted(
                np.flatnonzero(pattern_ids == dataset_id), offsets[rows]
            )
        return dataset_ids, cycles * counts + (
            pattern_ordinals[cycle_positions] - preceding
        ) % counts


def _cycle_offsets(cycles: Int64s, key: int, cycle_records: int) -> Int64s:
    """Returns [n] where in the pattern each cycle begins: SplitMix64 of its number."""
    words = np.uint64(key) + cycles.astype(np.uint64) * np.uint64(GOLDEN_RATIO)
    return (mix64(words) % np.uint64(cycle_records)).astype(np.int64)


@dataclass(frozen=True)
class MixtureSampler:
    """Order of a mixture's records. Numbers are those of the records of all data sets, one after the other.

    Attributes:
        samplers: of the data sets, all of one mode, seed and window.
        records: of an epoch of the mixture.
        fingerprint: of data sets and proportions.
    """

    samplers: tuple[Sampler, ...]
    proportions: Proportions
    records: int
    fingerprint: str

    @property
    def mode(self) -> ShuffleMode:
        return self.samplers[0].mode

    @property
    def seed(self) -> int:
        return self.samplers[0].seed

    @property
    def window_bytes(self) -> int:
        return self.samplers[0].window_bytes

    def record_numbers(self, epoch: int, positions: Int64s) -> Int64s:
        """The numbers of the records at these positions of an epoch, each in [0, records)."""
        dataset_ids, ordinals = self._assign_positions(epoch, positions)
        numbers = np.empty_like(positions)
        first_record = 0
        for dataset_id, sampler in enumerate(self.samplers):
            rows = np.flatnonzero(dataset_ids == dataset_id)
            epochs, epoch_positions = np.divmod(ordinals[rows], sampler.records)
            for epoch_number in np.unique(epochs).tolist():
                is_epoch = epochs == epoch_number
                numbers[rows[is_epoch]] = first_record + sampler.record_numbers(
                    epoch_number, epoch_positions[is_epoch]
                )
            first_record += sampler.records
        return numbers

    def pass_numbers(self, epoch: int, positions: Int64s) -> Int64s:
        """Returns which pass over its data set each of these positions is of."""
        dataset_ids, ordinals = self._assign_positions(epoch, positions)
        records: Int64s = np.array([sampler.records for sampler in self.samplers])
        pass_numbers: Int64s = ordinals // records[dataset_ids]
        return pass_numbers

    def _assign_positions(
        self, epoch: int, positions: Int64s
    ) -> tuple[npt.NDArray[np.int32], Int64s]:
        """The data set of each position, and how many of its records come before, in all epochs."""
        key = derive_random_key(self.fingerprint, "mixture", self.seed)
        return self.proportions.assign_positions(positions + epoch * self.records, key)

    def window_bounds(self, epoch: int, position: int) -> tuple[int, int]:
        """Returns the positions between which records lie together: those of the whole epoch."""
        return 0, self.records
