"""`Proportions`: of which of several data sets each position of a mixture is, and which record of it that is, counted
from its first. Arithmetic alone.

The weights are whole numbers that repeat in cycles, spread evenly over each cycle; a cycle begins at a place of its own
choosing, so that no place in a batch belongs to one data set. Whole cycles have exactly the proportions, and what lies
between differs by fewer records of a data set than there are data sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, isfinite, lcm

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import UsageError
from recordmill.reader.sampling.permutation import Int64s

_FINEST = 1_000_000  # a weight is the nearest fraction with a denominator up to this: 1/3 is a third, 0.7 seven tenths
_LONGEST = 1 << 22  # records of a cycle, for each of which some bytes are held
_STEP, _FIRST, _SECOND = (np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class Proportions:
    """counts: how many records of each data set a cycle has."""

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

    def places(self, positions: Int64s, key: int) -> tuple[npt.NDArray[np.int32], Int64s]:
        """[n] the data set of each position, and how many of its records come before."""
        which, nth = self._pattern
        cycles, places = np.divmod(positions, self.cycle)
        begins = _begins(cycles, key, self.cycle)
        places = (places + begins) % self.cycle
        found = which[places]
        counts = np.array(self.counts)[found]
        before = np.empty_like(begins)  # records of the same data set between the pattern's begin and the cycle's
        for at in range(len(self.counts)):
            own = np.flatnonzero(found == at)
            before[own] = np.searchsorted(np.flatnonzero(which == at), begins[own])
        return found, cycles * counts + (nth[places] - before) % counts


def _begins(cycles: Int64s, key: int, cycle: int) -> Int64s:
    """[n] where in the pattern each cycle begins: SplitMix64 of its number."""
    word = np.uint64(key) + cycles.astype(np.uint64) * _STEP
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return ((word ^ (word >> np.uint64(31))) % np.uint64(cycle)).astype(np.int64)
