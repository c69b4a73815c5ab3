"""`MixtureSampler`: the order of several data sets mixed, as a function of an epoch's number and a position.

The mixture is one sequence without end, of which an epoch is the next so many records: each data set's records come in
the order of its own sampler, and when it has given all of them its next epoch begins. Where an epoch of the mixture
ends, no data set begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recordmill.reader.sampling.permutation import Int64s, key_of
from recordmill.reader.sampling.proportions import Proportions
from recordmill.reader.sampling.sampler import Mode, Sampler


@dataclass(frozen=True)
class MixtureSampler:
    """samplers: of the data sets, all of one mode, seed and window. records: of an epoch of the mixture. fingerprint:
    of data sets and proportions. Numbers are those of the records of all data sets, one after the other.
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
        taken = positions + epoch * self.records
        which, nth = self.proportions.places(taken, key_of(self.fingerprint, "mixture", self.seed))
        numbers = np.empty_like(taken)
        first = 0
        for at, sampler in enumerate(self.samplers):
            own = np.flatnonzero(which == at)
            epochs, places = np.divmod(nth[own], sampler.records)
            for one in np.unique(epochs).tolist():
                there = epochs == one
                numbers[own[there]] = first + sampler.at(one, places[there])
            first += sampler.records
        return numbers

    def window_of(self, epoch: int, position: int) -> tuple[int, int]:
        """From which position of an epoch to which one records lie together: nowhere less than in all of it."""
        return 0, self.records
