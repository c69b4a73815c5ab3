"""The cuts between shards: by record rank or by framed bytes in the global order, from the histogram of the whole data
set; and the places that divide large buckets among their shards, so that none looks at what is others': where one key
is that of very many records, or there are very many shards.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Int64s
from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import SHARD_BYTES, parse_size
from recordmill.base.threads import thread_map
from recordmill.building.run_file import MARKED, Histogram, RunFile

BY_RECORDS, BY_BYTES = "records", "bytes"
MOST_SHARDS = 100_000  # per split: five digits in their names; a folder, and a reader, of more is of no use
GROWN_SHARDS = 1 << 15  # half the buckets that keys have: what is fetched for a shard is then 1.5 times its size


@dataclass(frozen=True)
class ShardOptions:
    """How large shards are: shard_bytes of framed records each (the default),
    or num_shards of equal records per split, exactly. grows: shard_bytes is what nobody has asked for.
    """

    shard_bytes: int = SHARD_BYTES
    num_shards: int | None = None
    grows: bool = False

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise UsageError(f"{option('shard_size', self.shard_bytes)}: at least one byte")
        if self.num_shards is not None and self.num_shards < 1:
            raise UsageError(f"{option('num_shards', self.num_shards)}: at least one")
        if self.num_shards is not None and self.num_shards > MOST_SHARDS:
            raise UsageError(f"{option('num_shards', self.num_shards)}: at most {MOST_SHARDS}")

    @classmethod
    def of(cls, shard_size: str | int | None, num_shards: int | None) -> ShardOptions:
        """Returns them as a user says them; without a word they grow with the inputs.

        Raises:
            UsageError: both are given, or one can't be served.
        """
        if shard_size is None:
            return cls(num_shards=num_shards, grows=True)
        if num_shards is not None:
            raise UsageError(f"{option('num_shards')} and {option('shard_size')} exclude each other: give one of them")
        return cls(parse_size(shard_size, "shard_size"))

    def of_inputs(self, input_bytes: int) -> ShardOptions:
        """Returns the options of a build from so many bytes of input files: where nobody has asked for a size, one that
        is not so small that the shards of as many bytes of records are more than GROWN_SHARDS.

        >>> ShardOptions(grows=True).of_inputs(10**14).shard_bytes >> 20
        2911
        """
        if not self.grows or self.num_shards is not None:
            return self
        least = -(-input_bytes // (GROWN_SHARDS << 20)) << 20  # whole MiB, for people
        return replace(self, shard_bytes=max(self.shard_bytes, least), grows=False)


# A shard: the records of buckets [first, last), those of all splits counted on, whose rank, or whose first byte, lies
# in [start, stop) from where these begin. low, high: in large buckets the places (`run_file.MARK_DTYPE`) between which
# it lies; else b"".
CUT_DTYPE = np.dtype(
    [
        ("split", "<u2"),
        ("index", "<u4"),
        ("of", "<u4"),
        ("first", "<u4"),
        ("last", "<u4"),
        ("start", "<i8"),
        ("stop", "<i8"),
        ("low", "S20"),
        ("high", "S20"),
    ]
)


@dataclass(frozen=True)
class ShardRange:
    """Shards of a split that follow each other, from number `index` of `of` on: of the records that are looked at for
    them, shard i of these has those whose rank, or whose first byte, lies in [edges[i], edges[i + 1]).
    """

    split: int
    index: int
    of: int
    edges: tuple[int, ...]
    by: str

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def weight(self) -> int:
        """How much they hold, in records or bytes."""
        return self.edges[-1] - self.edges[0]

    def without(self, skipped: int) -> ShardRange:
        """The same, where so much of what lies before them is not looked at."""
        return replace(self, edges=tuple(edge - skipped for edge in self.edges))


@dataclass(frozen=True)
class Cuts:
    """The shards of all splits, in order. table: CUT_DTYPE; by: RECORDS or BYTES, what all of them are cut by."""

    table: npt.NDArray[np.void]
    by: str

    def __len__(self) -> int:
        return len(self.table)

    def shards(self, first: int, last: int) -> ShardRange:
        """Shards [first, last), which are of one split, counted from where the buckets of the first one begin."""
        split, index, of = (int(self.table[first][name]) for name in ("split", "index", "of"))
        sizes = self.table["stop"][first:last] - self.table["start"][first:last]
        edges = int(self.table["start"][first]) + np.cumsum([0, *sizes.tolist()])
        return ShardRange(split, index, of, tuple(edges.tolist()), self.by)

    def together(self, edges: Sequence[int]) -> npt.NDArray[np.void]:
        """[edges - 1] shards [edges[i], edges[i + 1]) as if they were one, as CUT_DTYPE."""
        joined = self.table[list(edges[:-1])]
        last = self.table[np.array(edges[1:], np.int64) - 1]
        joined["last"], joined["high"] = last["last"], last["high"]
        return joined

    def groups(self, most: int) -> list[int]:
        """[groups + 1] the edges of groups of at most so many shards, each of one split."""
        splits = (np.flatnonzero(np.diff(self.table["split"])) + 1).tolist()
        begins = [0, *splits, len(self)]
        return [at for first, last in itertools.pairwise(begins) for at in range(first, last, most)] + [len(self)]


def cut_shards(histogram: Histogram, options: ShardOptions, names: Sequence[str]) -> Cuts:
    """The shards of all splits; a split without records has none.

    With shard_bytes, shard i takes the records whose first byte lies in [i, i + 1) * shard_bytes. Where one record is
    longer than a whole shard, shards can come out empty; they are dropped after writing (`building.reconcile`), since
    only then are they known.

    Raises:
        UsageError: more shards are asked for than a split has records, or than MOST_SHARDS.
    """
    cuts = [np.empty(0, CUT_DTYPE)]
    by, weights = (BY_BYTES, histogram.bytes) if options.num_shards is None else (BY_RECORDS, histogram.records)
    for split, name in enumerate(names):
        total = int(weights[split].sum())
        if total == 0:
            continue
        if options.num_shards is not None:
            edges = np.array(record_edges(total, options.num_shards, name), np.int64)
        else:
            check_shard_bytes(total, options, name)
            edges = np.append(np.arange(0, total, options.shard_bytes), total)
        cuts.append(_cuts(split, weights[split], edges))
    return Cuts(np.concatenate(cuts), by)


def record_edges(total: int, num_shards: int, name: str) -> list[int]:
    """Returns [num_shards + 1] the ranks at which shards begin and the last one ends; UsageError: too few records."""
    if num_shards > total:
        raise UsageError(
            f"{option('num_shards', num_shards)}: split {name!r} has only {total} records; ask for at most as many "
            "shards"
        )
    return [i * total // num_shards for i in range(num_shards + 1)]


def check_shard_bytes(size: int, options: ShardOptions, name: str) -> None:
    """Raises UsageError if so many framed bytes make more than MOST_SHARDS shards."""
    if size > MOST_SHARDS * options.shard_bytes:
        least = -(-size // MOST_SHARDS)
        raise UsageError(
            f"{option('shard_size', options.shard_bytes)}: split {name!r} has {size} bytes, too many shards; "
            f"give at least {least}"
        )


def _cuts(
    split: int, weights: npt.NDArray[np.int64], edges: npt.NDArray[np.int64]
) -> npt.NDArray[np.void]:  # CUT_DTYPE [edges - 1]
    before = np.concatenate([[0], np.cumsum(weights)])
    first = np.searchsorted(before, edges[:-1], side="right") - 1
    last = np.searchsorted(before, edges[1:], side="left")
    cuts = np.zeros(len(first), CUT_DTYPE)
    cuts["split"], cuts["index"], cuts["of"] = split, np.arange(len(first)), len(first)
    cuts["first"], cuts["last"] = first + split * len(weights), last + split * len(weights)
    cuts["start"], cuts["stop"] = edges[:-1] - before[first], edges[1:] - before[first]
    return cuts


_MOST_MARKS = 1 << 20  # that are sorted together: some 80 MiB meanwhile; of a larger bucket not all are looked at


def with_splitters(cuts: Cuts, histogram: Histogram, runs: Sequence[RunFile], requests: int = 1) -> Cuts:
    """The cuts with `low` and `high` in buckets that hold more than a shard. requests: how many runs are read at once.

    Raises:
        OSError: a run is not there. DataError: one is too short.
    """
    table = cuts.table.copy()
    buckets = histogram.records.shape[1]
    weights = (histogram.records if cuts.by == BY_RECORDS else histogram.bytes).reshape(-1)
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
    runs: Sequence[RunFile], first: int, last: int, every: int, by: str, requests: int
) -> tuple[npt.NDArray[np.bytes_], Int64s, Int64s]:
    """(places, at least, at most) of every so-many-th mark in buckets [first, last), each place once and in order, and
    how much of all runs' records in these buckets lies at or before it.
    """

    def read(run: RunFile) -> tuple[npt.NDArray[np.bytes_], Int64s]:
        (begin, begin_byte), (end, end_byte) = run.before(np.array([first, last])).tolist()
        number, marks = run.marks(begin, end)
        places = marks["place"][::every].copy()
        inside = number + MARKED * every * np.arange(len(places)) if by == BY_RECORDS else marks["bytes"][::every]
        edges = (begin, end) if by == BY_RECORDS else (begin_byte, end_byte)
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
