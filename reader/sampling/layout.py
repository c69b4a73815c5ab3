"""`Layout`: where the records of a data set lie, as far as an order of them has to know it.
Counts and bytes of files in, pieces out.

A piece is some consecutive records of one file, about as many bytes as asked for. It is cut by counts, not by bytes, so
that no index has to be read: the records of one file are taken for equally long. Memory is bounded by the fetcher, not
by this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from recordmill.reader.sampling.kept import Kept
from recordmill.reader.sampling.permutation import Int64s, permuted


@dataclass(frozen=True)
class Extent:
    """A file: how many records and framed bytes it has, and whether it can be read from anywhere."""

    records: int
    framed_bytes: int
    seekable: bool


@dataclass(frozen=True)
class Layout:
    """firsts: int64 [pieces + 1], where each piece begins among the records that are read.
    sizes: int64 [pieces], their framed bytes, about.
    units: int64 [units + 1]: the pieces units[i] to units[i + 1] stay together in this order, as those of a file must
    that can only be streamed.
    """

    firsts: Int64s
    sizes: Int64s
    units: Int64s

    @classmethod
    def of(cls, extents: Iterable[Extent], piece_bytes: int, kept: Kept | None = None) -> Layout:
        """kept: which of all records are read; None: all of them."""
        edges, sizes = [np.zeros(1, np.int64)], [np.empty(0, np.int64)]
        units = [0]
        first = pieces = 0
        for extent in extents:
            if not extent.records:
                continue
            count = min(max(-(-extent.framed_bytes // piece_bytes), 1), extent.records)
            edges.append(first + np.arange(1, count + 1, dtype=np.int64) * extent.records // count)
            sizes.append(np.full(count, extent.framed_bytes // count, np.int64))
            units.extend(range(pieces + 1, pieces + count + 1) if extent.seekable else [pieces + count])
            first, pieces = first + extent.records, pieces + count
        firsts, framed = np.concatenate(edges), np.concatenate(sizes)
        if kept is not None:
            all_records = np.diff(firsts)
            firsts = kept.below(firsts)
            framed = framed * np.diff(firsts) // all_records
        return cls(firsts, framed, np.array(units, np.int64))

    def in_order(self, key: int) -> Int64s:
        """[pieces] the pieces, their units permuted."""
        units = permuted(np.arange(len(self.units) - 1), len(self.units) - 1, key)
        counts = np.diff(self.units)[units]
        before = np.cumsum(counts) - counts
        return np.repeat(self.units[:-1][units] - before, counts) + np.arange(len(self.sizes))
