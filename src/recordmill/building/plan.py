"""The plan of a build, which every stage reads: decided before it starts and read-only from then on.

The stages of a job in this process find it here (`held`); workers of an engine get it with the graph. No file holds it.
"""

from __future__ import annotations

import functools
import itertools
import os
import uuid
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from recordmill.base.errors import UsageError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.option_names import option
from recordmill.building.cuts import ShardOptions
from recordmill.building.order import Ordering, OrderOptions
from recordmill.building.run_file import KeyBuckets
from recordmill.building.strata import Strata
from recordmill.checks.rules import Rules
from recordmill.preprocessing.saved_transform import SavedTransform
from recordmill.schemas.croissant import Description
from recordmill.schemas.feature import Schema
from recordmill.shards.rejects import RejectBudget
from recordmill.sources.common.contract import Source
from recordmill.sources.common.tables import table_rows, unit_sizes
from recordmill.storage.codecs import NONE, find_codec
from recordmill.storage.folders import real_path

_WORKING_BYTES = 256 << 20  # 256 MiB: with less all is needed to read, sort and merge, and runs go to files
_LEAST_RUN_BYTES = 16 << 20  # 16 MiB: some ten runs of each thread are merged as fast as a few
LEAST_ARENA_BYTES = 8 << 20  # 8 MiB: below that runs become so many that merging them costs more than memory saved


def arena_bytes(memory_bytes: int, threads: int) -> int:
    """Returns what one run holds: an eighth of the memory, shared by the threads, beside parsing and sorting."""
    return max(memory_bytes // (8 * threads), LEAST_ARENA_BYTES)


def parsed_bytes(memory_bytes: int) -> int:
    """Returns what of the records that a plan has parsed may wait in memory, as others wait in files at little cost."""
    return max(memory_bytes - _WORKING_BYTES, 0) // 32


@dataclass(frozen=True)
class BuildPlan:
    """One build. source: None where records come from a user's own pipeline. folder: the run's folder.
    base: the generation it follows. store: the OUT in a store that the run's data goes to; "": the run's folder stands
    in OUT.

    groups: ranges of units that make one run each. told: the options of the source that decide its records.
    transform: what is made of each record; schema is then of what it makes, and source.schema of what is read.
    library: what packs shards where it was planned, with its version. statistics: records are counted for them.
    expect: the rules that these must keep.
    strata: where the splits of each class begin, of a build whose classes are divided alike. about: what people say of
    the data set.
    """

    folder: str
    base: int
    schema: Schema
    splits: tuple[str, ...]
    buckets: KeyBuckets
    source: Source | None = None
    groups: Sequence[range] = ()
    order: OrderOptions = field(default_factory=OrderOptions)
    shards: ShardOptions = field(default_factory=ShardOptions)
    compression: str = NONE
    threads: int = 1
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    budget: RejectBudget = field(default_factory=RejectBudget)
    name: str = "dataset"
    source_options: Mapping[str, Any] = field(default_factory=dict)
    transform: SavedTransform | None = None
    store: str = ""
    library: str = ""
    statistics: bool = True
    expect: Rules | None = None
    strata: Strata | None = None
    about: Description = field(default_factory=Description)

    def __post_init__(self) -> None:
        if not self.library:
            object.__setattr__(self, "library", find_codec(self.compression).library)

    @property
    def out(self) -> str:
        """The folder or URI of the data set."""
        return self.store or os.path.dirname(self.folder)

    @property
    def deciding(self) -> dict[str, Any]:
        """The options that decide which bytes come out, for the manifest and its fingerprint."""
        return {
            "name": self.name,
            "compression": self.compression,
            "seed": self.order.seed,
            "shuffle": self.order.shuffle,
            "key": self.order.key,
            "splits": dict(self.order.splits),
            "split_by": self.order.split_by,
            **({} if self.order.stratify is None else {"stratify": self.order.stratify}),
            **({} if self.order.split_column is None else {"split_column": self.order.split_column}),
            **({} if self.order.split_at is None else {"split_at": dict([self.order.split_at])}),
            "split_seed": self.order.split_seed,
            "shard_bytes": None if self.shards.num_shards else self.shards.shard_bytes,
            "num_shards": self.shards.num_shards,
            **self.source_options,
            **({} if self.transform is None else {"transform": self.transform.digest}),
        }

    @property
    def arena_bytes(self) -> int:
        """Bytes of records that one sorted run holds."""
        return arena_bytes(self.memory_bytes, self.threads)

    @functools.cached_property
    def run_bytes(self) -> int:
        """Bytes that one sorted run, or the merge of a shard, holds where one process reads and writes: with little to
        sort not all that it may, since less memory that is new to the process is quicker.
        """
        expected = 0 if self.source is None else int(unit_sizes(self.source.units).sum())
        return min(self.arena_bytes, max(expected // 64, _LEAST_RUN_BYTES))

    @functools.cached_property
    def most_rejects(self) -> int | None:
        """How many rejects the budget allows beside those of the plan; None: only reading all will tell."""
        if self.source is None:
            return self.budget.most(None)
        planned = len(self.source.plan_rejects)
        rows = table_rows(self.source.units)
        known = None if rows is None else planned + rows
        most = self.budget.most(known)
        return None if most is None else most - planned

    @functools.cached_property
    def ordering(self) -> Ordering:
        """The places of the source's records; derived in each process."""
        assert self.source is not None
        return Ordering(self.order, self.source, self.strata)

    def moved(self, **changes: Any) -> BuildPlan:
        """The same plan with files in other folders; what was derived from it is kept."""
        moved = replace(self, **changes)
        if self.source is not None:
            moved.__dict__["ordering"] = self.ordering
        moved.__dict__["most_rejects"] = self.most_rejects  # else each worker would look at all units
        return moved

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "ordering"}

    def reference(self) -> PlanReference:
        """The plan for stages that run in this process, while it lives."""
        key = f"{self.folder} {uuid.uuid4().hex}"
        _plans[key] = self
        return PlanReference(key)


# plans name every input, so that a second copy of one is felt where inputs are many
_plans: weakref.WeakValueDictionary[str, BuildPlan] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class PlanReference:
    """A reference to a plan, for the stages of a job in this process."""

    key: str

    def load(self) -> BuildPlan:
        """The plan itself."""
        return _plans[self.key]


def group_units(source: Source, arena_bytes: int, threads: int) -> list[range]:
    """Consecutive units whose records together fill about one run, as the plan estimates them: as many groups for each
    thread, and about equal.
    """
    sizes = unit_sizes(source.units)
    total = max(int(sizes.sum()), 1)
    count = -(-total // min(arena_bytes, max(total // (2 * threads), LEAST_ARENA_BYTES)))
    count += -count % threads  # or the last round would leave threads idle
    owners = (np.cumsum(sizes) - sizes / 2) * count // total  # a unit is in the group in which its middle lies
    firsts = np.flatnonzero(np.diff(owners, prepend=-1)).tolist()
    return list(itertools.starmap(range, itertools.pairwise([*firsts, len(sizes)])))


def dataset_name(name: str | None, out: str | os.PathLike[str]) -> str:
    """Returns the name given, or OUT's own in the letters that TensorFlow Datasets takes.

    Raises:
        UsageError: OUT's path is no UTF-8, or the name is none that TensorFlow Datasets takes.
    """
    for part in os.path.abspath(out).split("/"):
        try:
            part.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{option('out', os.fspath(out))}: the name {ascii(os.fsencode(part))[1:]} in its path is no UTF-8, "
                "which Beam and the manifest need; name another folder"
            ) from None
    if name is not None:
        if not name.isidentifier() or not name.isascii():
            raise UsageError(
                f"{option('name', name)}: letters, digits and _ only, not beginning with a digit (TensorFlow Datasets "
                "takes no other)"
            )
        return name
    own = "".join(
        letter if letter.isascii() and letter.isalnum() else "_" for letter in os.path.basename(real_path(out)).lower()
    ).strip("_")
    return own if own.isidentifier() else f"dataset_{own}".rstrip("_")
