"""Where the shards are cut: by record rank or by framed bytes in the global order,
from the histogram of the whole data set.

A cut never depends on buckets, units, threads or memory: a bucket that straddles a cut goes to both shards, and each
keeps its part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.building.run_file import Histogram

RECORDS, BYTES = "records", "bytes"
MOST_SHARDS = 100_000  # per split: five digits in their names; a folder, and a reader, of more is of no use
GROWN_SHARDS = (
    1 << 15
)  # half the buckets that keys have at most: what is fetched for a shard is then 1.5 times its size


@dataclass(frozen=True)
class ShardOptions:
    """How large shards are: shard_bytes of framed records each (the default),
    or num_shards of equal records per split, exactly. grows: shard_bytes is what nobody has asked for.
    """

    shard_bytes: int = 128 << 20  # 128 MiB: TensorFlow's advice is 100 to 200 MB, enough for one sequential read to pay
    num_shards: int | None = None
    grows: bool = False

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise UsageError(f"{option('shard_size', self.shard_bytes)}: at least one byte")
        if self.num_shards is not None and self.num_shards < 1:
            raise UsageError(f"{option('num_shards', self.num_shards)}: at least one")
        if self.num_shards is not None and self.num_shards > MOST_SHARDS:
            raise UsageError(f"{option('num_shards', self.num_shards)}: at most {MOST_SHARDS}")

    def of_inputs(self, input_bytes: int) -> ShardOptions:
        """Those of a build from so many bytes of input files: where nobody has asked for a size, one that is not so
        small that the shards of as many bytes of records are more than GROWN_SHARDS.

        >>> ShardOptions(grows=True).of_inputs(10**14).shard_bytes >> 20
        2911
        """
        if not self.grows or self.num_shards is not None:
            return self
        least = -(-input_bytes // (GROWN_SHARDS << 20)) << 20  # whole MiB, for people
        return replace(self, shard_bytes=max(self.shard_bytes, least), grows=False)


@dataclass(frozen=True)
class Cut:
    """One shard: the records of buckets [first_bucket, last_bucket) whose rank, or whose first byte, lies in [start,
    stop) from their beginning.
    """

    split: int
    index: int
    of: int
    first_bucket: int
    last_bucket: int
    start: int
    stop: int
    by: str


def cut_shards(histogram: Histogram, options: ShardOptions, names: Sequence[str]) -> list[Cut]:
    """The shards of all splits, in order; a split without records has none.

    With shard_bytes, shard i takes the records whose first byte lies in [i, i + 1) * shard_bytes. Where one record is
    longer than a whole shard, shards can come out empty; they are dropped after writing (`building.conclude`), since
    only then are they known.

    Raises:
        UsageError: more shards are asked for than a split has records, or than MOST_SHARDS.
    """
    cuts: list[Cut] = []
    for split, name in enumerate(names):
        total = int(histogram.records[split].sum())
        if total == 0:
            continue
        if options.num_shards is not None:
            edges = record_edges(total, options.num_shards, name)
            cuts += _cuts(split, histogram.records[split], edges, RECORDS)
        else:
            size = int(histogram.bytes[split].sum())
            check_shard_bytes(size, options, name)
            edges = [*range(0, size, options.shard_bytes), size]
            cuts += _cuts(split, histogram.bytes[split], edges, BYTES)
    return cuts


def record_edges(total: int, num_shards: int, name: str) -> list[int]:
    """[num_shards + 1] the rank at which each shard of a split of so many records begins, and the last one ends;
    UsageError if there are fewer records.
    """
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


def _cuts(split: int, weights: npt.NDArray[np.int64], edges: list[int], by: str) -> list[Cut]:
    before = np.concatenate([[0], np.cumsum(weights)])
    result = []
    for index, (start, stop) in enumerate(itertools.pairwise(edges)):
        first = int(np.searchsorted(before, start, side="right")) - 1
        last = int(np.searchsorted(before, stop, side="left"))
        base = int(before[first])
        result.append(Cut(split, index, len(edges) - 1, first, last, start - base, stop - base, by))
    return result
