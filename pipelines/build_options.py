"""The options of a build, checked once.

Error messages name an option as the user has written it. `BuildOptions.source_options` returns the
options that the fingerprint of a build contains.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recordmill.base.machine import count_cores
from recordmill.building.plan import choose_dataset_name
from recordmill.building.shard_boundaries import ShardOptions
from recordmill.options.build import (
    BuildDescription,
    BuildRecords,
    BuildRunOptions,
    BuildShards,
    BuildTransform,
)
from recordmill.options.calls import Values
from recordmill.options.order import BuildOrder
from recordmill.schemas.croissant import Description
from recordmill.schemas.feature import Schema
from recordmill.shards.loading.schema_hints import load_schema
from recordmill.shards.manifest import Manifest
from recordmill.shards.rejects import RejectBudget
from recordmill.sources.parser.function import ParserFunction
from recordmill.sources.parser.options import ParserOptions
from recordmill.storage.files import parse_local_path, parse_output_path
from recordmill.storage.folders import exists

# 32 MiB: the least that a thread needs for the buffer of a sorted run, a batch, and the encoded
# batch
_THREAD_BYTES = 32 << 20


@dataclass(frozen=True)
class AppendBase:
    """The generation of a data set that records are appended to.

    Attributes:
        out: The folder or store URL of the data set.
        number: The number of the generation.
        manifest: The manifest of this generation.
    """

    out: str
    number: int
    manifest: Manifest


@dataclass(frozen=True)
class BuildOptions:
    """The checked options of a build, with values derived from them.

    Attributes:
        values: The parsed options.
        schema: The schema of the records, or None to infer it.
        droppable_features: Features of the schema that the inputs need not have.
        shards: The options for the number and size of shards.
        name: The name of the data set.
        budget: The number of rejects that are allowed.
        threads: The number of threads that the memory allows.
        transform: The transform to fit: a path on this machine, a dict or a function. None if there
            is no transform to fit.
        transform_from: The data set with the transform to apply, or None.
        description: The description of the data set.
        base: The data set that the records are appended to, or None.
    """

    values: Values
    schema: Schema | None
    droppable_features: frozenset[str]
    shards: ShardOptions
    name: str
    budget: RejectBudget
    threads: int
    transform: Any
    transform_from: str | None
    description: Description
    base: AppendBase | None = None

    @property
    def records(self) -> BuildRecords:
        """The options of the records."""
        return self.values[BuildRecords]

    @property
    def order(self) -> BuildOrder:
        """The options of keys and splits."""
        return self.values[BuildOrder]

    @property
    def run(self) -> BuildRunOptions:
        """The options of the run."""
        return self.values[BuildRunOptions]

    @property
    def parser(self) -> ParserFunction | None:
        """The user's own parser."""
        return self.values[ParserOptions].parser

    def source_options(self) -> dict[str, Any]:
        """Returns the options of the source that determine its records, as JSON values.

        The manifest and the fingerprint of the build contain them.
        """
        return {
            "label": self.records.label,
            "dtypes": dict(sorted((self.records.dtypes or {}).items())),
            "kind_options": to_json_value(self.values.kind_options or None),
            **({} if self.parser is None else {"parser": [self.parser.name, self.parser.digest]}),
        }


def make_options(out: str | os.PathLike[str], **options: Any) -> BuildOptions:
    """Checks the options of a build, and returns them.

    Args:
        out: The output folder. It provides the default name of the data set.
        **options: The options of the command line or of `recordmill.build`.

    Raises:
        UsageError: A value is invalid. The message contains the name of the option and a valid
            value.
        TypeError: There is no such option.
    """
    values = Values("build", options)
    records, shards = values[BuildRecords], values[BuildShards]
    transform, run = values[BuildTransform], values[BuildRunOptions]
    return BuildOptions(
        values=values,
        schema=load_schema(records.schema),
        droppable_features=frozenset(),
        shards=ShardOptions.from_options(shards.shard_size, shards.num_shards),
        name=choose_dataset_name(shards.name, out),
        budget=RejectBudget.parse(records.max_rejects),
        threads=choose_build_threads(run.threads, run.memory),
        transform=parse_local_path(transform.transform)
        if isinstance(transform.transform, str | os.PathLike)
        else transform.transform,
        transform_from=None
        if transform.transform_from is None
        else parse_output_path(transform.transform_from),
        description=Description(
            **{name: text or "" for name, text in vars(values[BuildDescription]).items()}
        ),
    )


def to_json_value(value: Any) -> Any:
    """Converts the value of an option to JSON types, for the manifest.

    A path becomes its last name, because a manifest has no absolute paths. Objects of other types
    become strings.
    """
    if isinstance(value, Mapping):
        # Sorted, because the fingerprint must not depend on the order of options.
        return {str(name): to_json_value(item) for name, item in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    if isinstance(value, str | os.PathLike):
        # A string is known to be a relative path only if the file exists.
        return (
            os.path.basename(value) if os.path.isabs(value) or exists(value) else os.fspath(value)
        )
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def choose_build_threads(threads: int | None, memory_bytes: int) -> int:
    """Returns the number of threads: the requested number, or fewer if memory is scarce.

    Each thread needs 32 MiB of the memory.

    Args:
        threads: The requested number. None and 0 mean one thread per core.
        memory_bytes: The memory of the build.
    """
    return min(threads or count_cores(), memory_bytes // _THREAD_BYTES)
