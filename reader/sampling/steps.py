"""`Steps`: which positions of an epoch each step gets, and which of them each host. Arithmetic alone.

A step of all hosts together is `batch_size * num_hosts` consecutive positions, cut into equal parts, so that every host
has equally many batches. The positions that are left at an epoch's end are a shorter batch (on one host), are left out,
or are filled up with the epoch's first ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from recordmill.base.errors import UsageError
from recordmill.base.sizes import whole
from recordmill.reader.sampling.permutation import Int64s

End = Literal["short", "drop", "pad"]


@dataclass(frozen=True)
class Stretch:
    """Steps of one epoch: so many, from a position on, each of them or every so many-th one."""

    epoch: int
    position: int
    steps: int
    every: int = 1


@dataclass(frozen=True)
class Steps:
    """records: of an epoch. batch_size: of one host. end: what becomes of the positions that do not fill a step.

    Raises:
        UsageError: a number is none.
    """

    records: int
    batch_size: int
    end: End = "short"
    num_hosts: int = 1
    host_index: int = 0

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("num_hosts", 1), ("host_index", None)):
            object.__setattr__(self, name, whole(getattr(self, name), name, least))
        if not 0 <= self.host_index < self.num_hosts:
            raise UsageError(
                f"host_index must be from 0 to {self.num_hosts - 1} (num_hosts - 1), not {self.host_index}"
            )

    @property
    def span(self) -> int:
        """Positions of one step of all hosts."""
        return self.batch_size * self.num_hosts

    def count(self, position: int = 0) -> int:
        """How many steps an epoch has from a position on.

        >>> Steps(100, 8).count(), Steps(100, 8, "drop").count(), Steps(100, 8, "pad", num_hosts=3).count(48)
        (13, 12, 3)
        """
        left = max(self.records - position, 0)
        return left // self.span if self.end == "drop" else -(-left // self.span)

    def check_end(self, position: int) -> None:
        """Refuse a last step that hosts can't share, from a position on.

        Raises:
            UsageError: its records can't be cut into equal parts.
        """
        left = (self.records - position) % self.span
        if self.end == "short" and self.num_hosts > 1 and left:
            raise UsageError(
                f"the last step of an epoch has {left} records, which {self.num_hosts} hosts can't share in batches of "
                f"{self.batch_size}: drop_remainder=True leaves them out, pad_remainder=True fills the batches up and "
                'says in "mask" which rows count'
            )

    def positions(self, stretch: Stretch) -> Int64s:
        """[rows] this host's positions of these steps, one step after the other; those from `records` on are none,
        but fill a batch up.
        """
        steps = stretch.position + self.span * stretch.every * np.arange(stretch.steps, dtype=np.int64)
        own = steps[:, None] + (self.host_index * self.batch_size + np.arange(self.batch_size, dtype=np.int64))
        found = own.reshape(-1)
        return found if self.end == "pad" else found[found < self.records]
