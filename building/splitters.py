"""Places that divide large buckets among their shards, so that none looks at what is others': where one key is that of
very many records, or there are more shards than buckets, whole buckets would be read once for each of their shards.

The runs' marks are sorted together, once. Between one mark of a run and its next are few records, so at each mark it is
known how many records of all runs lie before it at least, and at most. The last mark that has no more than `start`
before it is a shard's `low`, the first one that has no less than `stop` its `high`: both are true whatever runs the
records are merged to meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from recordmill.base.threads import thread_map
from recordmill.building.cuts import RECORDS, Cuts
from recordmill.building.run_file import MARKED, Histogram, Run

_MOST_MARKS = 1 << 20  # that are sorted together: some 80 MiB meanwhile; of a larger bucket not all are looked at

Int64s = npt.NDArray[np.int64]


def with_splitters(cuts: Cuts, histogram: Histogram, runs: Sequence[Run], requests: int = 1) -> Cuts:
    """The cuts with `low` and `high` in buckets that hold more than a shard. requests: how many runs are read at once.

    Raises:
        OSError: a run is not there. DataError: one is too short.
    """
    table = cuts.table.copy()
    buckets = histogram.records.shape[1]
    weights = (histogram.records if cuts.by == RECORDS else histogram.bytes).reshape(-1)
    before = np.concatenate([[0], np.cumsum(weights)])
    first, last, size = table["first"], table["last"].astype(np.int64) - 1, table["stop"] - table["start"]
    starts, stops = before[first] + table["start"], before[first] + table["stop"]
    is_low = (table["start"] > 0) & (weights[first] > size)
    is_high = (stops < before[last + 1]) & (weights[last] > size)
    records = np.concatenate([[0], np.cumsum(histogram.records.reshape(-1))])
    for split in np.unique(table["split"][is_low | is_high]).tolist():
        begin, end = split * buckets, (split + 1) * buckets
        numbers = (records[begin:end] - records[begin]) // (_MOST_MARKS * MARKED)
        firsts = [begin + int(at) for at in np.flatnonzero(np.diff(numbers, prepend=-1))]
        for group, upto in zip(firsts, [*firsts[1:], end], strict=True):
            lows = np.flatnonzero(is_low & (group <= first) & (first < upto))
            highs = np.flatnonzero(is_high & (group <= last) & (last < upto))
            if not len(lows) and not len(highs):
                continue
            every = -(-int(records[upto] - records[group]) // (_MOST_MARKS * MARKED))
            places, least, most = _sorted_marks(runs, group, upto, every, cuts.by, requests)
            found = np.searchsorted(most, starts[lows] - before[group], side="right") - 1
            table["low"][lows[found >= 0]] = places[found[found >= 0]]
            found = np.searchsorted(least, stops[highs] - before[group], side="left")
            there = found < len(places)
            table["high"][highs[there]] = places[found[there]]
    return replace(cuts, table=table)


def _sorted_marks(
    runs: Sequence[Run], first: int, last: int, every: int, by: str, requests: int
) -> tuple[npt.NDArray[np.bytes_], Int64s, Int64s]:
    """(places, at least, at most) of every so-many-th mark in buckets [first, last), each place once and in order, and
    how much of all runs' records in these buckets lies at or before it.
    """

    def read(run: Run) -> tuple[npt.NDArray[np.bytes_], Int64s]:
        (begin, begin_byte), (end, end_byte) = run.before(np.array([first, last])).tolist()
        number, marks = run.marks(begin, end)
        places = marks["place"][::every].copy()
        inside = number + MARKED * every * np.arange(len(places)) if by == RECORDS else marks["bytes"][::every]
        edges = (begin, end) if by == RECORDS else (begin_byte, end_byte)
        return places, np.concatenate([[edges[0]], inside, [edges[1]]])

    near = [run for run in runs if run.first < last and run.last > first]
    places, least, most = [np.empty(0, "S20")], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    already = 0
    for found, weights in thread_map(read, near, requests):
        steps = np.diff(weights)
        already += int(steps[0])
        places.append(found)
        least.append(steps[:-1])
        most.append(steps[1:])
    together = np.concatenate(places)
    order = np.argsort(together, kind="stable")
    together = together[order]
    at_least = np.cumsum(np.concatenate(least)[order])
    at_most = already + np.cumsum(np.concatenate(most)[order])
    once = np.append(together[1:] != together[:-1], True)[: len(together)]
    return together[once], at_least[once], at_most[once]
