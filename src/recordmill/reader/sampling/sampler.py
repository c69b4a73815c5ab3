"""Order of the records of an epoch, computed from a position.

No file is opened, and no array has the size of the data set. There are three modes:

    False       the order of the files
    "window"    pieces of files in random order, and records permuted within windows of several
                pieces, so that the records read at one time are stored close together
    "global"    a uniformly random permutation of all records

The order depends on the fingerprint of the data set, the seed, the epoch and the mode. In "window"
it also depends on the sizes of the files and of a window. It never depends on threads, hosts or
columns. Saved positions rely on that, so tests pin the order.

A piece is a range of consecutive records of one file, with about the requested number of bytes.
Pieces are cut by record counts, as if all records of a file had the same length, so that no index
has to be read.

A mixture is one endless sequence of records, and an epoch is the next n records of it. The records
of each data set come in the order of its own sampler. After the last one, the next epoch of that
data set begins. The weights are integers that describe a repeating cycle, and each data set is
spread evenly over the cycle. Each cycle begins at a pseudo-random offset, so that no position in a
batch belongs to one data set. Complete cycles have exactly the proportions. Any other range of
records deviates by fewer records of a data set than there are data sets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import gcd, isfinite, lcm

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Int64s, to_offsets
from recordmill.base.errors import UsageError
from recordmill.base.siphash import GOLDEN_RATIO, mix64
from recordmill.options.parsers import ShuffleMode


class RecordSubset:
    """Immutable subset of `total` records, as ascending record numbers."""

    def __init__(self, numbers: npt.NDArray[np.integer], total: int) -> None:
        self.total = total
        # uint32 halves the memory of all but huge data sets
        self._numbers = numbers.astype(np.uint32 if total <= 1 << 32 else np.int64)

    @classmethod
    def from_numbers(cls, numbers: Int64s, total: int) -> RecordSubset:
        """Returns the subset with these record numbers, each in [0, total), in any order."""
        return cls(np.unique(numbers), total)

    def __len__(self) -> int:
        return len(self._numbers)

    def record_numbers(self, indices: Int64s) -> Int64s:
        """Returns the record numbers at these indices of the subset, each in [0, len(self))."""
        return self._numbers[indices].astype(np.int64)

    def count_below(self, numbers: Int64s) -> Int64s:
        """Returns the number of records in the subset before each record number.

        The record numbers are in [0, total].
        """
        return np.searchsorted(self._numbers, np.minimum(numbers, self.total).astype(np.int64))

    def mask(self, begin: int, end: int) -> npt.NDArray[np.bool_]:
        """Returns for each record of [begin, end) whether it is in the subset."""
        first, last = self.count_below(np.array([begin, end])).tolist()
        mask = np.zeros(end - begin, np.bool_)
        mask[self._numbers[first:last].astype(np.int64) - begin] = True
        return mask

    def select(self, indices: Int64s) -> RecordSubset:
        """Returns the subset at these indices of this subset."""
        return RecordSubset.from_numbers(self.record_numbers(indices), self.total)

    def digest(self) -> str:
        """Returns a hash of the record numbers, for fingerprints."""
        return hashlib.blake2b(self._numbers.tobytes(), digest_size=16).hexdigest()


def derive_random_key(*words: object) -> int:
    """Returns a key of 64 bits that is a hash of the words."""
    # The separator keeps different lists of words apart. File names may contain lone surrogates.
    text = "\x00".join(str(word) for word in words).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def permute_indices(indices: Int64s, size: int, key: int) -> Int64s:
    """Maps each index by a pseudo-random permutation of [0, size).

    No array of `size` items is needed. A Feistel network over the bits of the size is a bijection
    of all numbers with that many bits. A result outside [0, size) is permuted again until it is
    inside (cycle walking), which takes fewer than two rounds on average. The round function is the
    finalizer of SplitMix64 (Steele, Lea, Flood 2014), applied to the key, the round and the other
    half. Saved positions depend on the result, so it must never change.

    >>> sorted(permute_indices(np.arange(10), 10, key=7).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]

    Args:
        indices: Numbers in [0, size).
        key: 64 bits that determine the permutation, from `derive_random_key`.
    """
    return permute_ranges(indices, np.array([0, size], np.int64), key)


def permute_ranges(indices: Int64s, edges: Int64s, key: int) -> Int64s:
    """Permutes indices within ranges. An index never leaves its range.

    Args:
        indices: Numbers in [edges[0], edges[-1]).
        edges: Range i is [edges[i], edges[i + 1]).
        key: Determines the permutations, see `permute_indices`.

    Returns:
        For each index, the number that it has after the permutation of its range.
    """
    indices, edges = np.ascontiguousarray(indices, np.int64), np.ascontiguousarray(edges, np.int64)
    out = np.empty_like(indices)
    native.permute(indices, find_ranges(indices, edges), edges, key, out)
    return out


def find_ranges(numbers: Int64s, edges: Int64s) -> Int64s:
    """Returns the index of the range that contains each number.

    If the numbers are in random order, `np.searchsorted` takes six times as long.

    Args:
        numbers: Numbers in [edges[0], edges[-1]).
        edges: Range i is [edges[i], edges[i + 1]).
    """
    range_ids = np.empty_like(numbers)
    native.find_ranges(numbers, edges, range_ids)
    return range_ids


@dataclass(frozen=True)
class FileExtent:
    """Size of a file for the sampler.

    Attributes:
        records: Number of records.
        framed_bytes: Size of their frames, uncompressed.
    """

    records: int
    framed_bytes: int


@dataclass(frozen=True)
class EpochLayout:
    """Division of the files of a data set into pieces.

    Attributes:
        piece_starts: int64 [pieces + 1]. First record of each piece, and the number of records. If
            there is a subset, only its records are counted.
        piece_sizes: int64 [pieces]. Approximate size of the frames of each piece, in bytes.
    """

    piece_starts: Int64s
    piece_sizes: Int64s

    @classmethod
    def from_files(
        cls, files: Iterable[FileExtent], piece_bytes: int, subset: RecordSubset | None = None
    ) -> EpochLayout:
        """Divides files into pieces of about `piece_bytes`.

        Args:
            subset: The records that are read. If None, all are read.
        """
        start_parts, size_parts = [np.zeros(1, np.int64)], [np.empty(0, np.int64)]
        first_record = 0
        for file in files:
            if not file.records:
                continue
            # The number of pieces is rounded up, so that a piece is not larger than piece_bytes if
            # all records have one length.
            count = min(max(-(-file.framed_bytes // piece_bytes), 1), file.records)
            start_parts.append(
                first_record + np.arange(1, count + 1, dtype=np.int64) * file.records // count
            )
            size_parts.append(np.full(count, file.framed_bytes // count, np.int64))
            first_record += file.records
        piece_starts, piece_sizes = np.concatenate(start_parts), np.concatenate(size_parts)
        if subset is not None:
            # The pieces remain the same parts of the files, but only records of the subset count.
            stored_counts = np.diff(piece_starts)
            # pieces without selected records remain, with size 0
            piece_starts = subset.count_below(piece_starts)
            piece_sizes = piece_sizes * np.diff(piece_starts) // stored_counts
        return cls(piece_starts, piece_sizes)

    def shuffle_pieces(self, key: int) -> Int64s:
        """Returns the indices of all pieces in random order, int64 [pieces]."""
        return permute_indices(np.arange(len(self.piece_sizes)), len(self.piece_sizes), key)


# Two epochs can be in use: that of the consumer, and the next one, which threads read ahead.
_MAX_CACHED_EPOCHS = 2


@dataclass(frozen=True)
class _PieceOrder:
    """Pieces of an epoch in shuffled order.

    Attributes:
        record_starts: [pieces]. First record of each piece, as in `EpochLayout.piece_starts`.
        position_edges: [pieces + 1]. First position of each piece in the epoch, and the end.
        window_edges: [windows + 1]. First position of each window in the epoch, and the end.
    """

    record_starts: Int64s
    position_edges: Int64s
    window_edges: Int64s


@dataclass(frozen=True)
class Sampler:
    """Order of the records of one data set.

    Attributes:
        mode: False for the order of the files, "window" or "global".
        records: Number of records of an epoch.
        layout: The pieces of the files. Only the mode "window" uses it.
        seed: Seed of the random order. Each epoch has another order.
        fingerprint: Fingerprint of the data set, which determines the random order, too.
        window_bytes: Size of the frames of a window, in bytes.
    """

    mode: ShuffleMode
    records: int
    layout: EpochLayout
    seed: int
    fingerprint: str
    window_bytes: int
    _piece_orders: dict[int, _PieceOrder] = field(default_factory=dict, compare=False, repr=False)

    def record_numbers(self, epoch: int, positions: Int64s) -> Int64s:
        """Returns the record numbers at these positions of an epoch, each in [0, records)."""
        if self.mode is False:
            return positions
        key = derive_random_key(self.fingerprint, self.mode, self.seed, epoch)
        if self.mode == "global":
            return permute_indices(positions, self.records, key)
        pieces = self._piece_order(epoch, key)
        # A window consists of complete pieces, so a permutation inside of it mixes their records.
        permuted_positions = permute_ranges(positions, pieces.window_edges, key)
        piece_indices = find_ranges(permuted_positions, pieces.position_edges)
        return (
            pieces.record_starts[piece_indices]
            + permuted_positions
            - pieces.position_edges[piece_indices]
        )

    def window_bounds(self, epoch: int, position: int) -> tuple[int, int]:
        """Returns the range [begin, end) of positions of the window that contains `position`.

        A mode without windows returns the complete epoch.
        """
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
        edges = to_offsets(counts)
        # The first byte of a piece determines its window, so that windows end between pieces.
        window = (np.cumsum(sizes) - sizes) // self.window_bytes
        window_firsts = np.flatnonzero(np.diff(window, prepend=-1))
        piece_order = _PieceOrder(
            self.layout.piece_starts[:-1][order], edges, np.append(edges[window_firsts], edges[-1])
        )
        for old in sorted(self._piece_orders)[
            : max(len(self._piece_orders) - _MAX_CACHED_EPOCHS + 1, 0)
        ]:
            self._piece_orders.pop(old, None)  # another thread may have removed it already
        self._piece_orders[epoch] = piece_order
        return piece_order


# A weight is rounded to the nearest fraction with a denominator up to this, so that the float 1/3
# is one third, and 0.7 is seven tenths.
_MAX_DENOMINATOR = 1_000_000
# Limits memory: a few bytes are held for each record of a cycle.
_MAX_CYCLE_RECORDS = 1 << 22


@dataclass(frozen=True)
class Proportions:
    """Number of records of each data set in one cycle of a mixture.

    Attributes:
        counts: The numbers, in the order of the data sets. Each is at least 1.
    """

    counts: tuple[int, ...]

    @classmethod
    def from_weights(cls, weights: Sequence[float]) -> Proportions:
        """Returns the smallest integers with the ratios of the weights.

        >>> Proportions.from_weights([0.7, 0.3]).counts
        (7, 3)
        >>> Proportions.from_weights([1 / 3, 2 / 3]).counts
        (1, 2)
        >>> Proportions.from_weights([50, 10]).counts
        (5, 1)

        Raises:
            UsageError: A weight is not a positive number, or the cycle is too long.
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
                f"the weights {', '.join(map(str, weights))} repeat after "
                f"{sum(counts):,} records only: use rounder ones, such as whole "
                "numbers with a small sum"
            )
        return cls(tuple(counts))

    @property
    def cycle_records(self) -> int:
        """Number of records in a cycle."""
        return sum(self.counts)

    @cached_property
    def _pattern(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Order of the data sets in a cycle.

        Returns:
            For each position of the cycle, the index of its data set, and the number of earlier
            positions with the same data set.
        """
        dataset_ids = np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)
        ordinals = np.concatenate([np.arange(count, dtype=np.int32) for count in self.counts])
        # Record k of n goes to the fraction (k + 0.5) / n of the cycle, which spreads each data set
        # evenly. If two records claim the same fraction, the earlier data set comes first.
        order = np.lexsort((dataset_ids, (ordinals + 0.5) / np.array(self.counts)[dataset_ids]))
        return dataset_ids[order], ordinals[order]

    def assign_positions(self, positions: Int64s, key: int) -> tuple[npt.NDArray[np.int32], Int64s]:
        """Assigns positions of the endless sequence to data sets.

        Args:
            positions: int64 [n]. Positions in the endless sequence.
            key: 64 bits that determine where each cycle begins.

        Returns:
            For each position, the index of its data set, int32 [n], and the number of records of
            this data set before the position, int64 [n].
        """
        pattern_ids, pattern_ordinals = self._pattern
        cycles, cycle_positions = np.divmod(positions, self.cycle_records)
        offsets = _cycle_offsets(cycles, key, self.cycle_records)
        cycle_positions = (cycle_positions + offsets) % self.cycle_records
        dataset_ids = pattern_ids[cycle_positions]
        counts = np.array(self.counts)[dataset_ids]
        # Records of the same data set between the start of the pattern and that of the cycle.
        preceding = np.empty_like(offsets)
        for dataset_id in range(len(self.counts)):
            rows = np.flatnonzero(dataset_ids == dataset_id)
            preceding[rows] = np.searchsorted(
                np.flatnonzero(pattern_ids == dataset_id), offsets[rows]
            )
        return dataset_ids, cycles * counts + (
            pattern_ordinals[cycle_positions] - preceding
        ) % counts


def _cycle_offsets(cycles: Int64s, key: int, cycle_records: int) -> Int64s:
    """Returns where each cycle begins in the pattern, [n].

    The offset is the SplitMix64 hash of the number of the cycle, modulo the length of the pattern.

    Args:
        cycles: int64 [n]. Numbers of cycles.
        cycle_records: Length of the pattern, which is the number of records in a cycle.
    """
    words = np.uint64(key) + cycles.astype(np.uint64) * np.uint64(GOLDEN_RATIO)
    return (mix64(words) % np.uint64(cycle_records)).astype(np.int64)


@dataclass(frozen=True)
class MixtureSampler:
    """Order of the records of a mixture.

    Record numbers count the records of all data sets, one data set after another.

    Attributes:
        samplers: The sampler of each data set. All have the same mode, seed and window.
        proportions: Number of records of each data set in a cycle.
        records: Number of records of an epoch of the mixture.
        fingerprint: Hash of the data sets and the proportions.
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
        """Returns the record numbers at these positions of an epoch, each in [0, records)."""
        dataset_ids, ordinals = self._assign_positions(epoch, positions)
        numbers = np.empty_like(positions)
        first_record = 0
        for dataset_id, sampler in enumerate(self.samplers):
            rows = np.flatnonzero(dataset_ids == dataset_id)
            # A data set can be in another epoch than the mixture, or in several within one batch.
            epochs, epoch_positions = np.divmod(ordinals[rows], sampler.records)
            for epoch_number in np.unique(epochs).tolist():
                is_epoch = epochs == epoch_number
                numbers[rows[is_epoch]] = first_record + sampler.record_numbers(
                    epoch_number, epoch_positions[is_epoch]
                )
            first_record += sampler.records
        return numbers

    def _assign_positions(
        self, epoch: int, positions: Int64s
    ) -> tuple[npt.NDArray[np.int32], Int64s]:
        """Assigns positions of an epoch to data sets.

        The result is that of `Proportions.assign_positions`. The number of earlier records includes
        earlier epochs.
        """
        key = derive_random_key(self.fingerprint, "mixture", self.seed)
        return self.proportions.assign_positions(positions + epoch * self.records, key)

    def window_bounds(self, epoch: int, position: int) -> tuple[int, int]:
        """Returns the complete epoch, because the windows of the data sets are interleaved."""
        return 0, self.records
