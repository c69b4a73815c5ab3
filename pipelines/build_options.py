"""The options of a build, checked once.

Error messages name an option as the user has written it. `BuildOptions.source_options` returns the
options that the fingerprint of a build contains.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.machine import core_count
from recordmill.base.option_names import option
from recordmill.building.plan import choose_dataset_name
from recordmill.building.record_keys import DEFAULT_SPLIT, KeyOptions, parse_split_at, parse_splits
from recordmill.building.shard_boundaries import ShardOptions
from recordmill.options import build as groups
from recordmill.options.calls import Values
from recordmill.pipelines.beam_run import as_flags
from recordmill.schemas.croissant import Description
from recordmill.schemas.feature import Schema
from recordmill.shards.loading.schema_hints import load_schema
from recordmill.shards.rejects import RejectBudget
from recordmill.sources.parser.function import ParserFunction
from recordmill.storage.files import parse_local_path, parse_output_path
from recordmill.storage.folders import exists

# 32 MiB: the least that a thread needs for the buffer of a sorted run, a batch, and the encoded
# batch
_THREAD_BYTES = 32 << 20


@dataclass(frozen=True)
class BuildOptions:
    """The checked options of a build, with defaults.

    Fields without a description have the name of their option. `recordmill build --help` describes
    it.

    Attributes:
        kind_options: The options that apply to one kind of input only, or None.
        may_lack: Features of the schema that the inputs need not have.
        order: The options for keys and splits.
        shards: The options for the number and size of shards.
        budget: The number of rejects that are allowed.
        user_options: The options as the user has passed them, without defaults.
    """

    kind: str | None
    parser: ParserFunction | None
    kind_options: Mapping[str, Any] | None
    schema: Schema | None
    may_lack: frozenset[str]
    dtypes: Mapping[str, str]
    label: str | None
    order: KeyOptions
    shards: ShardOptions
    compression: str
    name: str
    overwrite: bool
    if_changed: bool
    keep_generations: int | None
    budget: RejectBudget
    threads: int
    memory_bytes: int
    runner: str | None
    beam_args: tuple[str, ...]
    preflight: bool
    follow_links: bool
    transform: Any
    transform_from: str | None
    fit_on: str
    keep_raw: bool
    storage_requests: int | None
    statistics: bool
    expect: Any
    description: Description
    user_options: Mapping[str, Any] = field(repr=False, compare=False)

    def source_options(self) -> dict[str, Any]:
        """Returns the options of the source that determine its records, as JSON values.

        The manifest and the fingerprint of the build contain them.
        """
        return {
            "label": self.label,
            "dtypes": dict(sorted(self.dtypes.items())),
            "kind_options": _to_json_value(self.kind_options),
            **({} if self.parser is None else {"parser": [self.parser.name, self.parser.digest]}),
        }


def make_options(out: str | os.PathLike[str], **options: Any) -> BuildOptions:
    """Checks the options of a build.

    Args:
        out: The output folder. It provides the default name of the data set.
        **options: The options of the command line or of `recordmill.build`.

    Raises:
        UsageError: A value is invalid. The message contains the name of the option and a valid
            value.
        TypeError: There is no such option.
    """
    values = Values("build", options)
    records, order, shards = (
        values[groups.BuildRecords],
        values[groups.BuildOrder],
        values[groups.BuildShards],
    )
    transform, run = values[groups.BuildTransform], values[groups.BuildRunOptions]
    dtypes = records.dtypes or {}
    return BuildOptions(
        kind=records.kind,
        parser=records.parser,
        kind_options=values.kind_options or None,
        schema=load_schema(records.schema),
        may_lack=frozenset(),
        dtypes=dict(dtypes) if isinstance(dtypes, Mapping) else parse_dtypes(dtypes),
        label=records.label,
        order=KeyOptions(
            seed=order.seed,
            split_seed=order.split_seed,
            shuffle=order.shuffle,
            key=order.key,
            split_by=order.split_by,
            splits=parse_splits(order.splits),
            stratify=order.stratify,
            split_column=order.split_column,
            split_at=parse_split_at(order.split_at),
        ),
        shards=ShardOptions.from_options(shards.shard_size, shards.num_shards),
        compression=shards.compression,
        name=choose_dataset_name(shards.name, out),
        overwrite=records.overwrite,
        if_changed=records.if_changed,
        keep_generations=records.keep_generations,
        budget=RejectBudget.parse(records.max_rejects),
        threads=_choose_threads(run.threads, run.memory),
        memory_bytes=run.memory,
        runner=run.runner,
        beam_args=as_flags(run.beam_args),
        preflight=run.preflight,
        follow_links=records.follow_links,
        transform=parse_local_path(transform.transform)
        if isinstance(transform.transform, str)
        else transform.transform,
        transform_from=None
        if transform.transform_from is None
        else parse_output_path(transform.transform_from),
        fit_on=DEFAULT_SPLIT if transform.fit_on is None else transform.fit_on,
        keep_raw=transform.keep_raw,
        storage_requests=run.storage_requests,
        statistics=run.stats,
        expect=run.expect,
        description=Description.of(vars(values[groups.BuildDescription])),
        user_options=options,
    )


def _to_json_value(value: Any) -> Any:
    """Converts the value of an option to JSON types, for the manifest.

    A path becomes its last name, because a manifest has no absolute paths. Objects of other types
    become strings.
    """
    if isinstance(value, Mapping):
        # Sorted, because the fingerprint must not depend on the order of options.
        return {str(name): _to_json_value(item) for name, item in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [_to_json_value(item) for item in value]
    if isinstance(value, str | os.PathLike):
        # A string is known to be a relative path only if the file exists.
        return (
            os.path.basename(value) if os.path.isabs(value) or exists(value) else os.fspath(value)
        )
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _choose_threads(threads: int | None, memory_bytes: int) -> int:
    """Returns the number of threads: the requested number, or fewer if memory is scarce.

    Each thread needs 32 MiB of the memory.

    Args:
        threads: The requested number. None and 0 mean one thread per core.
        memory_bytes: The memory of the build.
    """
    return min(threads or core_count(), memory_bytes // _THREAD_BYTES)


def parse_dtypes(items: Iterable[str]) -> dict[str, str]:
    """Parses texts such as `FEATURE=DTYPE` into a dict.

    The last `=` separates the parts, because a feature name may contain one.

    >>> parse_dtypes(["x=float64", "a=b=int32"])
    {'x': 'float64', 'a=b': 'int32'}

    Raises:
        UsageError: A text has another form.
    """
    result = {}
    for item in items:
        name, equals, dtype = item.rpartition("=")
        if not equals or not name or not dtype:
            raise UsageError(
                "{dtypes}: give FEATURE=DTYPE, as in price=float64", dtypes=option("dtypes", item)
            )
        result[name] = dtype
    return result
