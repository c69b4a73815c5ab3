"""`Sampler`: the order of an epoch, as a function of its number and a position. No file is opened, and nothing of the
size of the data set is held.

    False       the order of the files
    "window"    pieces of files in random order, and the records permuted among those of as many pieces as make a
                window: what is read lies together
    "global"    any record at any place, each order as likely as another

An order is decided by the data set's fingerprint, the seed, the epoch and the mode, and in "window" by the sizes of
files and window; never by threads, hosts or columns. Saved positions rely on it: it is pinned by tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from recordmill.base.errors import UsageError
from recordmill.reader.sampling.layout import Layout
from recordmill.reader.sampling.permutation import Int64s, key_of, permuted, permuted_within

Mode = Literal[False, "window", "global"]
MODES: tuple[Mode, ...] = (False, "window", "global")
_REMEMBERED = 2  # epochs whose pieces are kept in order: the one that is consumed, and the one that is read ahead


def mode_of(shuffle: bool | str) -> Mode:
    """What `shuffle=` means; True is "window".

    Raises:
        UsageError: it is none of the modes.
    """
    if shuffle is True:
        return "window"
    if shuffle is False or shuffle in ("window", "global"):
        return shuffle  # type: ignore[return-value]
    raise UsageError(f'shuffle is False, True, "window" or "global", not {shuffle!r}')


@dataclass(frozen=True)
class _Pieces:
    """An epoch's pieces in their order. firsts: [pieces], where each begins among the records. edges: [pieces + 1],
    where each begins in the epoch. windows: [windows + 1], where each window does.
    """

    firsts: Int64s
    edges: Int64s
    windows: Int64s


@dataclass(frozen=True)
class Sampler:
    """records: how many an epoch has. layout: where they lie; only "window" looks at it. window_bytes: framed bytes of
    a window.
    """

    mode: Mode
    records: int
    layout: Layout
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

    def window_of(self, epoch: int, position: int) -> tuple[int, int]:
        """From which position of an epoch to which one the window reaches that has this one; in other modes than
        "window" that is the whole epoch.
        """
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
