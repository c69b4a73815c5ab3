"""The plan of a build: inputs, schema, options and limits.

The plan is fixed before the build starts, and every step reads it. Steps in this process get it by
reference. Workers of an engine get it as a file in the shared folder.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from recordmill.base.errors import UsageError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.option_names import option
from recordmill.building.record_keys import KeyAssigner
from recordmill.building.shard_boundaries import ShardOptions
from recordmill.building.sorted_run import KeyBuckets
from recordmill.building.stratified_splits import StratifiedSplits
from recordmill.checks.rules import Rules
from recordmill.options.order import BuildOrder
from recordmill.preprocessing.saved_transform import SavedTransform
from recordmill.schemas.croissant import Description
from recordmill.schemas.feature import Schema
from recordmill.shards.manifest import Manifest
from recordmill.shards.rejects import RejectBudget
from recordmill.sources.common.contract import Source
from recordmill.sources.common.tables import count_unit_rows, unit_sizes
from recordmill.storage.codecs import UNCOMPRESSED, find_codec
from recordmill.storage.folders import real_path

# 256 MiB are reserved for reading, sorting and merging.
_RESERVED_BYTES = 256 << 20
# 16 MiB. Even if a thread writes ten sorted runs of this size, they merge as fast as a few.
_MIN_LOCAL_BUFFER_BYTES = 16 << 20
# 8 MiB: a smaller buffer makes too many sorted runs, and merging them costs more than is saved.
MIN_RUN_BUFFER_BYTES = 8 << 20


def max_run_buffer_bytes(memory_bytes: int, threads: int) -> int:
    """Returns the size of the buffer for a sorted run, one per thread.

    All buffers together get an eighth of `memory_bytes`, since parsing and sorting need the rest.
    Each has at least MIN_RUN_BUFFER_BYTES.
    """
    return max(memory_bytes // (8 * threads), MIN_RUN_BUFFER_BYTES)


def parsed_cache_bytes(memory_bytes: int) -> int:
    """Returns the memory for parsed records that a plan keeps for its build.

    The share is small (1/32), because records beyond it are kept in files at little cost.
    """
    return max(memory_bytes - _RESERVED_BYTES, 0) // 32


@dataclass(frozen=True)
class BuildPlan:
    """The plan of one build.

    Attributes:
        folder: The run's folder. On a worker, the scratch folder of a task.
        base_generation: The newest generation when the build started, or 0 if there was none.
        schema: The schema of the records in the shards, after any transform.
        split_names: The names of the splits. The index of a name is the split id.
        key_buckets: The key buckets of the sorted runs.
        source: The inputs. None if the records come from a user's pipeline.
        unit_groups: Ranges of indices into `source.units`. A unit group is the input of one
            ingestion task.
        key_options: The options for keys and splits.
        shard_options: The options for the number and size of shards.
        compression: The compression of the shards.
        threads: Number of threads of a process.
        memory_bytes: The memory of a process.
        budget: The number of rejects that are allowed.
        name: The name of the data set.
        source_options: The options of the source that determine its records.
        transform: The transform of the records, or None.
        store_url: The URL of the output in a store. If it is "", the output is the parent of
            `folder`.
        codec_version: The compression library and its version on the machine that made the plan.
        has_statistics: Whether the build computes statistics.
        rules: The rules that the statistics must satisfy, or None.
        stratified_splits: The boundaries of the splits in each class, for `stratify`. None without
            `stratify`, and until `count_classes` has set it.
        description: The user's description of the data set.
        keep_generations: The number of generations that commits keep. None means as many as the
            newest generation specifies.
        expected_bytes: The size of the records, if it is known without a source.
        base_manifest: The manifest of `base_generation`, if the records are appended to its parts.
            None for a build of a new data set.
    """

    folder: str
    base_generation: int
    schema: Schema
    split_names: tuple[str, ...]
    key_buckets: KeyBuckets
    source: Source | None = None
    unit_groups: Sequence[range] = ()
    key_options: BuildOrder = field(default_factory=BuildOrder)
    shard_options: ShardOptions = field(default_factory=ShardOptions)
    compression: str = UNCOMPRESSED
    threads: int = 1
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    budget: RejectBudget = field(default_factory=RejectBudget)
    name: str = "dataset"
    source_options: Mapping[str, Any] = field(default_factory=dict)
    transform: SavedTransform | None = None
    store_url: str = ""
    codec_version: str = ""
    has_statistics: bool = True
    rules: Rules | None = None
    stratified_splits: StratifiedSplits | None = None
    description: Description = field(default_factory=Description)
    keep_generations: int | None = None
    expected_bytes: int = 0
    base_manifest: Manifest | None = None

    def __post_init__(self) -> None:
        if not self.codec_version:
            object.__setattr__(self, "codec_version", find_codec(self.compression).library_version)

    @property
    def out(self) -> str:
        """The output folder, or the URL of the store."""
        return self.store_url or os.path.dirname(self.folder)

    @property
    def fingerprint_options(self) -> dict[str, Any]:
        """The options that determine the bytes of the shards, as JSON values.

        Manifests contain them.
        """
        return {
            "name": self.name,
            "compression": self.compression,
            "seed": self.key_options.seed,
            "shuffle": self.key_options.shuffle,
            "key": self.key_options.key,
            "splits": dict(self.key_options.fractions),
            "split_by": self.key_options.split_by,
            **(
                {} if self.key_options.stratify is None else {"stratify": self.key_options.stratify}
            ),
            **(
                {}
                if self.key_options.split_column is None
                else {"split_column": self.key_options.split_column}
            ),
            **(
                {}
                if self.key_options.split_at is None
                else {"split_at": dict([self.key_options.split_at])}
            ),
            "split_seed": self.key_options.split_seed,
            "shard_bytes": None
            if self.shard_options.num_shards
            else self.shard_options.shard_bytes,
            "num_shards": self.shard_options.num_shards,
            **self.source_options,
            **({} if self.transform is None else {"transform": self.transform.digest}),
        }

    @property
    def max_run_buffer_bytes(self) -> int:
        """The size of the buffer for a sorted run, one per thread."""
        return max_run_buffer_bytes(self.memory_bytes, self.threads)

    @functools.cached_property
    def local_buffer_bytes(self) -> int:
        """The memory for a sorted run or a shard merge in one process.

        Small inputs use less than `max_run_buffer_bytes`, because touching new memory takes time.
        """
        expected = (
            self.expected_bytes if self.source is None else int(unit_sizes(self.source.units).sum())
        )
        return min(self.max_run_buffer_bytes, max(expected // 64, _MIN_LOCAL_BUFFER_BYTES))

    @functools.cached_property
    def max_rejects(self) -> int | None:
        """Number of further rejects that the budget allows, or None if it is unknown.

        The rejects that were found during the plan are subtracted. None means that the budget is a
        share of the records, and that their number is unknown.
        """
        if self.source is None:
            return self.budget.max_rejects(None)
        plan_rejects = len(self.source.plan_rejects)
        rows = count_unit_rows(self.source.units)
        total = None if rows is None else plan_rejects + rows
        max_rejects = self.budget.max_rejects(total)
        return None if max_rejects is None else max_rejects - plan_rejects

    @functools.cached_property
    def key_assigner(self) -> KeyAssigner:
        """The object that assigns a key and a split to each record.

        The object is not pickled. Each process creates it again.
        """
        assert self.source is not None
        return KeyAssigner(self.key_options, self.source, self.stratified_splits)

    def with_changes(self, **changes: Any) -> BuildPlan:
        """Returns a copy of the plan with other values for some attributes.

        The copy keeps `key_assigner` and `max_rejects`, which are expensive to compute.
        """
        plan = replace(self, **changes)
        if self.source is not None:
            plan.__dict__["key_assigner"] = self.key_assigner
        # Without this, each worker would inspect all units again.
        plan.__dict__["max_rejects"] = self.max_rejects
        return plan

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "key_assigner"}


def group_units(source: Source, max_run_buffer_bytes: int, threads: int) -> list[range]:
    """Divides the units of a source into consecutive unit groups of about equal size.

    The records of a unit group fill at most about one sorted run. The number of unit groups is
    about a multiple of `threads`.

    Args:
        max_run_buffer_bytes: The size of the buffer for a sorted run.
        threads: The number of threads that ingest unit groups.

    Returns:
        Ranges of indices into `source.units`.
    """
    sizes = unit_sizes(source.units)
    total = max(int(sizes.sum()), 1)
    num_groups = -(
        -total // min(max_run_buffer_bytes, max(total // (2 * threads), MIN_RUN_BUFFER_BYTES))
    )
    # A multiple of `threads`, so that no thread is idle in the last round.
    num_groups += -num_groups % threads
    # The middle of a unit determines its unit group.
    group_ids = (np.cumsum(sizes) - sizes / 2) * num_groups // total
    begins = np.flatnonzero(np.diff(group_ids, prepend=-1)).tolist()
    return list(itertools.starmap(range, itertools.pairwise([*begins, len(sizes)])))


def choose_dataset_name(name: str | None, out: str | os.PathLike[str]) -> str:
    """Returns `name`, or a name derived from the output folder if `name` is None.

    Raises:
        UsageError: The name is not an ASCII identifier, as TensorFlow Datasets requires. Or the
            path of `out` is not UTF-8.
    """
    for component in os.path.abspath(out).split("/"):
        try:
            component.encode()
        except UnicodeEncodeError:
            raise UsageError(
                "{out}: the name {ascii} in its path is not UTF-8, which Beam and "
                "the manifest need; name another folder",
                out=option("out", os.fspath(out)),
                ascii=ascii(os.fsencode(component))[1:],
            ) from None
    if name is not None:
        if not name.isidentifier() or not name.isascii():
            raise UsageError(
                "{name}: use only letters, digits and _, and no digit at the start "
                "(TensorFlow Datasets requires this)",
                name=option("name", name),
            )
        return name
    derived_name = "".join(
        letter if letter.isascii() and letter.isalnum() else "_"
        for letter in os.path.basename(real_path(out)).lower()
    ).strip("_")
    return derived_name if derived_name.isidentifier() else f"dataset_{derived_name}".rstrip("_")
