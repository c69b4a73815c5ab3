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
    def of_numbers(cls, numbers: Int64s, total: int) -> RecordSubset:
        """Returns the records of these numbers, in any order, each in [0, total)."""
        return cls(np.unique(numbers), total)

    def __len__(self) -> int:
        return len(self._numbers)

    def at(self, numbers: Int64s) -> Int64s:
        """Returns the numbers among all that these of the kept ones have, each in [0, len(self))."""
        return self._numbers[numbers].astype(np.int64)

    def below(self, numbers: Int64s) -> Int64s:
        """Returns how many are kept of the records before each of these among all, each in [0, total]."""
        return np.searchsorted(self._numbers, np.minimum(numbers, self.total).astype(np.int64))

    def mask(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Returns for each record of [start, stop) whether it is kept."""
        first, last = self.below(np.array([start, stop])).tolist()
        kept = np.zeros(stop - start, np.bool_)
        kept[self._numbers[first:last].astype(np.int64) - start] = True
        return kept

    def within(self, numbers: Int64s) -> RecordSubset:
        """Returns those of the kept ones that have these numbers among them."""
        return RecordSubset.of_numbers(self.at(numbers), self.total)

    def digest(self) -> str:
        """Returns a digest that tells it from others."""
        return hashlib.blake2b(self._numbers.tobytes(), digest_size=16).hexdigest()


def key_of(*words: object) -> int:
    """A key of 64 bits that these words decide."""
    text = "\x00".join(str(word) for word in words).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def permuted(numbers: Int64s, size: int, key: int) -> Int64s:
    """Returns where the permutation of [0, size) that the key decides takes each number; nothing of its size is held.

    A Feistel network over as many bits as the size needs is a bijection of the numbers of that many bits; where it
    leads out of the size it is followed further until it leads back (cycle walking: fewer than two turns on the
    average). The round function is the finalizer of SplitMix64 (Steele, Lea, Flood 2014) over the key, the round and
    the other half. The result is part of what a saved position means: it never changes.

    >>> sorted(permuted(np.arange(10), 10, key=7).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    return permuted_within(numbers, np.array([0, size], np.int64), key)


def permuted_within(numbers: Int64s, edges: Int64s, key: int) -> Int64s:
    """Returns each number, of [edges[0], edges[-1]), permuted among those of its stretch [edges[i], edges[i + 1]), a
    permutation of its own for each.
    """
    numbers, edges = np.ascontiguousarray(numbers, np.int64), np.ascontiguousarray(edges, np.int64)
    stretches = np.searchsorted(edges, numbers, "right") - 1
    out = np.empty_like(numbers)
    native.permute(numbers, stretches, edges, key, out)
    return out


@dataclass(frozen=True)
class Extent:
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

    firsts: Int64s
    sizes: Int64s
    units: Int64s

    @classmethod
    def of(
        cls, extents: Iterable[Extent], piece_bytes: int, kept: RecordSubset | None = None
    ) -> EpochLayout:
        """Cuts the extents of files into pieces. `kept` are the records that are read; None: all of them."""
        edges, sizes = [np.zeros(1, np.int64)], [np.empty(0, np.int64)]
        units = [0]
        first = pieces = 0
        for extent in extents:
            if not extent.records:
                continue
            count = min(max(-(-extent.framed_bytes // piece_bytes), 1), extent.records)
            edges.append(first + np.arange(1, count + 1, dtype=np.int64) * extent.records // count)
            sizes.append(np.full(count, extent.framed_bytes // count, np.int64))
            units.extend(
                range(pieces + 1, pieces + count + 1) if extent.seekable else [pieces + count]
            )
            first, pieces = first + extent.records, pieces + count
        firsts, framed = np.concatenate(edges), np.concatenate(sizes)
        if kept is not None:
            all_records = np.diff(firsts)
            firsts = kept.below(firsts)
            framed = framed * np.diff(firsts) // all_records
        return cls(firsts, framed, np.array(units, np.int64))

    def in_order(self, key: int) -> Int64s:
        """Returns [pieces] the pieces, their units permuted."""
        units = permuted(np.arange(len(self.units) - 1), len(self.units) - 1, key)
        counts = np.diff(self.units)[units]
        before = np.cumsum(counts) - counts
        return np.repeat(self.units[:-1][units] - before, counts) + np.arange(len(self.sizes))


Mode = Literal[False, "window", "global"]
MODES: tuple[Mode, ...] = (False, "window", "global")
_REMEMBERED = 2  # epochs whose pieces are kept in order: the one that is consumed, and the one that is read ahead


def mode_of(shuffle: bool | str) -> Mode:
    """Returns the mode of a `shuffle=`; True is "window". UsageError: it is none of them."""
    if shuffle is True:
        return "window"
    if shuffle is False or shuffle in ("window", "global"):
        return shuffle  # type: ignore[return-value]
    raise UsageError(f'shuffle is False, True, "window" or "global", not {shuffle!r}')


@dataclass(frozen=True)
class _Pieces:
    """An epoch's pieces in their order: [pieces] where each begins among the records; [pieces + 1] where in the epoch;
    [windows + 1] where each window does.
    """

    firsts: Int64s
    edges: Int64s
    windows: Int64s


@dataclass(frozen=True)
class Sampler:
    """Order of one data set's records.

    Attributes:
        records: how many an epoch has.
        layout: where they lie; only "window" looks at it.
        window_bytes: framed bytes of a window.
    """

    mode: Mode
    records: int
    layout: EpochLayout
    seed: int
    fingerprint: str
    window_bytes: int
    _known: dict[int, _Pieces] = field(default_factory=dict, compare=False, repr=False)

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """The numbers of the records at these positions of an epoch, each in [0, records)."""
        if self.mode is False:
            return positions
        key = key_of(self.fingerprint, self.mode, self.seed, epoch)
        if self.mode == "global":
            return permuted(positions, self.records, key)
        pieces = self._pieces(epoch, key)
        moved = permuted_within(positions, pieces.windows, key)
        piece = np.searchsorted(pieces.edges, moved, "right") - 1
        return pieces.firsts[piece] + moved - pieces.edges[piece]

    def passes(self, epoch: int, positions: Int64s) -> Int64s:
        """Returns which pass over the data set each of these positions is of."""
        return np.full(len(positions), epoch, np.int64)

    def window_of(self, epoch: int, position: int) -> tuple[int, int]:
        """Returns the first and last position of its window; in modes without windows those of the epoch."""
        if self.mode != "window":
            return 0, self.records
        windows = self._pieces(epoch, key_of(self.fingerprint, self.mode, self.seed, epoch)).windows
        at = int(np.searchsorted(windows, position, "right")) - 1
        return int(windows[at]), int(windows[at + 1])

    def _pieces(self, epoch: int, key: int) -> _Pieces:
        if (known := self._known.get(epoch)) is not None:
            return known
        order = self.layout.in_order(key)
        counts, sizes = np.diff(self.layout.firsts)[order], self.layout.sizes[order]
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        window = (np.cumsum(sizes) - sizes) // self.window_bytes
        begins = np.flatnonzero(np.diff(window, prepend=-1))
        made = _Pieces(self.layout.firsts[:-1][order], edges, np.append(edges[begins], edges[-1]))
        for old in sorted(self._known)[: max(len(self._known) - _REMEMBERED + 1, 0)]:
            self._known.pop(old, None)  # another thread may have been quicker
        self._known[epoch] = made
        return made


_FINEST = 1_000_000  # a weight is the nearest fraction with a denominator up to this: 1/3 is a third, 0.7 seven tenths
_LONGEST = 1 << 22  # records of a cycle, for each of which some bytes are held


@dataclass(frozen=True)
class Proportions:
    """Proportions of a mixture: how many records of each data set a cycle has."""

    counts: tuple[int, ...]

    @classmethod
    def of(cls, weights: Sequence[float]) -> Proportions:
        """
        >>> Proportions.of([0.7, 0.3]).counts, Proportions.of([1 / 3, 2 / 3]).counts, Proportions.of([50, 10]).counts
        ((7, 3), (1, 2), (5, 1))

        Raises:
            UsageError: a weight is none, or they have no short cycle.
        """
        if not weights:
            raise UsageError("a mixture needs data sets: [(data set, weight), ...]")
        if wrong := [weight for weight in weights if not isfinite(weight) or weight <= 0]:
            raise UsageError(f"a weight of a mixture is a number above 0, not {wrong[0]}")
        parts = [Fraction(str(float(weight))).limit_denominator(_FINEST) for weight in weights]
        scale = lcm(*(part.denominator for part in parts))
        counts = [int(part * scale) for part in parts]
        counts = [count // gcd(*counts) for count in counts]
        if min(counts) < 1 or sum(counts) > _LONGEST:
            raise UsageError(
                f"the weights {', '.join(map(str, weights))} repeat after {sum(counts):,} records only: give rounder "
                "ones, as whole numbers with a small sum"
            )
        return cls(tuple(counts))

    @property
    def cycle(self) -> int:
        """Records of a cycle."""
        return sum(self.counts)

    @cached_property
    def _pattern(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """[cycle] of which data set each place is, and how many of the same come before it in the cycle."""
        which = np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)
        nth = np.concatenate([np.arange(count, dtype=np.int32) for count in self.counts])
        order = np.lexsort((which, (nth + 0.5) / np.array(self.counts)[which]))
        return which[order], nth[order]

    def data_set_of(self, positions: Int64s, key: int) -> tuple[npt.NDArray[np.int32], Int64s]:
        """Returns [n] the data set of each position, and how many of its records come before."""
        which, nth = self._pattern
        cycles, places = np.divmod(positions, self.cycle)
        begins = _begins(cycles, key, self.cycle)
        places = (places + begins) % self.cycle
        found = which[places]
        counts = np.array(self.counts)[found]
        before = np.empty_like(
            begins
        )  # records of the same data set between the pattern's begin and the cycle's
        for at in range(len(self.counts)):
            own = np.flatnonzero(found == at)
            before[own] = np.searchsorted(np.flatnonzero(which == at), begins[own])
        return found, cycles * counts + (nth[places] - before) % counts


def _begins(cycles: Int64s, key: int, cycle: int) -> Int64s:
    """Returns [n] where in the pattern each cycle begins: SplitMix64 of its number."""
    words = np.uint64(key) + cycles.astype(np.uint64) * np.uint64(GOLDEN_RATIO)
    return (mix64(words) % np.uint64(cycle)).astype(np.int64)


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
    def mode(self) -> Mode:
        return self.samplers[0].mode

    @property
    def seed(self) -> int:
        return self.samplers[0].seed

    @property
    def window_bytes(self) -> int:
        return self.samplers[0].window_bytes

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """The numbers of the records at these positions of an epoch, each in [0, records)."""
        which, nth = self._taken(epoch, positions)
        numbers = np.empty_like(positions)
        first = 0
        for at, sampler in enumerate(self.samplers):
            own = np.flatnonzero(which == at)
            epochs, places = np.divmod(nth[own], sampler.records)
            for one in np.unique(epochs).tolist():
                there = epochs == one
                numbers[own[there]] = first + sampler.at(one, places[there])
            first += sampler.records
        return numbers

    def passes(self, epoch: int, positions: Int64s) -> Int64s:
        """Returns which pass over its data set each of these positions is of."""
        which, nth = self._taken(epoch, positions)
        records: Int64s = np.array([sampler.records for sampler in self.samplers])
        passes: Int64s = nth // records[which]
        return passes

    def _taken(self, epoch: int, positions: Int64s) -> tuple[npt.NDArray[np.int32], Int64s]:
        """The data set of each position, and how many of its records come before, in all epochs."""
        key = key_of(self.fingerprint, "mixture", self.seed)
        return self.proportions.data_set_of(positions + epoch * self.records, key)

    def window_of(self, epoch: int, position: int) -> tuple[int, int]:
        """Returns the positions between which records lie together: those of the whole epoch."""
        return 0, self.records
