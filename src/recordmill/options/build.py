"""Options of `build` and `transform`.

`transform` has the options of a build. Only its transform comes from another data set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import (
    DEFAULT_SHARD_BYTES,
    MAX_DEFAULT_SHARDS,
    format_size,
    format_size_option,
    parse_size,
    size_in_bytes,
)
from recordmill.options.declare import RUN_HEADING, Options, declare, redeclare
from recordmill.options.order import BuildOrder
from recordmill.options.parsers import parse_dtypes, parse_positive, parse_text, parse_whole
from recordmill.options.shared import Shared
from recordmill.sources.registry import KIND_NAMES

if TYPE_CHECKING:
    from recordmill.schemas.feature import Schema

# options that read files other than the inputs
_FILE_OPTIONS = ("transform", "transform_from", "labels", "boxes", "file_columns", "expect")
# 128 MiB. The batches, sorted runs and pieces of two threads need this much.
MIN_MEMORY_BYTES = 128 << 20


def parse_build_memory(value: str | int, name: str) -> int:
    """Converts the option `memory` of a build to bytes.

    Raises:
        UsageError: The value is not a size, or below MIN_MEMORY_BYTES.
    """
    memory_bytes = parse_size(value, name)
    if memory_bytes < MIN_MEMORY_BYTES:
        raise UsageError(
            "{memory}: must be at least {min_memory_bytes}MiB",
            memory=option(name, value),
            min_memory_bytes=MIN_MEMORY_BYTES >> 20,
        )
    return memory_bytes


class BuildInputs(Options, heading="records"):
    """Options for the output folder and the kind of the inputs."""

    out: str | None = declare(
        "folder of the data set",
        default=None,
        metavar="OUT",
        short="-o",
        common=True,
        shell_only=True,
    )
    kind: str | None = declare(
        "kind of input; on the command line it is the first word",
        default=None,
        default_text="detected",
        files_only=True,
        choices=KIND_NAMES,
        decides=True,
        keyword_only=True,
    )


class BuildRecords(Options, heading="records"):
    """Options for the contents of records, and for replacing a data set."""

    overwrite: bool = redeclare(
        Shared,
        heading="records",
        help="replace the data set in OUT; programs that read the old one can finish",
    )
    append: bool = declare(
        "add records to the data set in OUT, whose schema and options apply; INPUTs that it has (by name, size and time) are skipped; without a data set in OUT, build one",
        default=False,
        common=True,
        excludes=(("overwrite", None), ("if_changed", None)),
    )
    widen: bool = declare(
        "new records may have new features, missing values, larger integers or lists of variable length",
        default=False,
        needs=(("append", True),),
    )
    new_classes: bool = declare(
        "new records may have new classes; they get the numbers after the others",
        default=False,
        needs=(("append", True),),
    )
    if_changed: bool = declare(
        "build only if the inputs (by name, size and time) or the options have changed since OUT was built; if they have, replace the data set, as with --overwrite",
        default=False,
        files_only=True,
        excludes=tuple((name, None) for name in _FILE_OPTIONS),
    )
    keep_generations: int | None = redeclare(Shared, heading="records")
    schema: Schema | str | os.PathLike[str] | None = redeclare(
        Shared,
        heading="records",
        help="schema.pbtxt (TensorFlow Metadata) with the types; without it, types are inferred from all data",
    )
    dtypes: Mapping[str, str] | None = declare(
        "type of a feature, instead of the inferred one: price=float64, image=uint8[28,28], in JSON also image=base64; repeatable",
        default=None,
        parse=parse_dtypes,
        accepts="Mapping[str, str] | None",
        decides=True,
        repeated=True,
        metavar="FEATURE=DTYPE",
        flag="--dtype",
        common=True,
    )
    label: str | None = declare(
        "label of each record; text becomes class numbers, and readers return it as y",
        default=None,
        decides=True,
        metavar="COLUMN",
        common=True,
    )
    max_rejects: str | int = redeclare(Shared, heading="records")
    follow_links: bool = declare(
        "follow symbolic links that lead out of an INPUT folder", default=False, files_only=True
    )


class BuildShards(Options, heading="shards", decides=True):
    """Options for the number, the size and the compression of shards."""

    shard_size: int | None = declare(
        "target size of a shard before compression",
        default=None,
        parse=parse_size,
        default_text=f"{format_size_option(DEFAULT_SHARD_BYTES)}; larger above "
        f"{format_size(DEFAULT_SHARD_BYTES * MAX_DEFAULT_SHARDS)} of input",
        metavar="SIZE",
        common=True,
    )
    num_shards: int | None = declare(
        "exactly N shards per split, instead of --shard-size",
        default=None,
        parse=parse_whole,
        common=True,
        excludes=(("shard_size", None),),
    )
    compression: Literal["none", "gzip"] = declare("compression of the shards", default="none")
    name: str | None = declare(
        "name of the data set", default=None, default_text="the name of OUT", metavar="NAME"
    )


class BuildDescription(Options, heading="description"):
    """Options that describe the data set."""

    description: str | None = declare(
        "description of the data set in a sentence or two, for dataset_info.json and croissant.json",
        default=None,
        parse=parse_text,
        metavar="TEXT",
    )
    license: str | None = declare(
        "licence: an SPDX identifier (CC-BY-4.0), a URL or a name; for the same files",
        default=None,
        parse=parse_text,
        metavar="TEXT",
    )
    citation: str | None = declare(
        "how to cite the data set, preferably as BibTeX; for the same files",
        default=None,
        parse=parse_text,
        metavar="TEXT",
    )
    url: str | None = declare(
        "web page of the data set; with it, --description, --license and --creator, the build writes croissant.json",
        default=None,
        parse=parse_text,
        metavar="URL",
        needs=(("creator", None),),
    )
    creator: str | None = declare(
        "author of the data set, for croissant.json",
        default=None,
        parse=parse_text,
        metavar="NAME",
        needs=(("url", None),),
    )


class BuildTransform(Options, heading="transform", decides=True):
    """Options for a transform of the records."""

    transform: Any = declare(
        "compute features: transform.yaml maps features to steps; transform.py[:FUNCTION] has a preprocessing_fn of tf.Transform",
        default=None,
        metavar="FILE",
        common=True,
        excludes=(("transform_from", None),),
    )
    fit_on: str | None = declare(
        "split from which the constants of the transform are computed",
        default=None,
        default_text="train",
        metavar="SPLIT",
        needs=(("transform", None),),
    )
    keep_raw: bool = declare(
        "also store the input features, as raw/NAME",
        default=False,
        needs=(("transform", None),),
    )
    transform_from: str | os.PathLike[str] | None = declare(
        "apply the transform of that data set unchanged; it is a program, so use only trusted data sets",
        default=None,
        metavar="OUT",
    )


class BuildRunOptions(Options, heading=RUN_HEADING):
    """Options for the execution of a build, such as memory and threads."""

    stats: bool = declare("do not compute statistics of the values (statistics.pb)", default=True)
    expect: Mapping[str, Any] | str | os.PathLike[str] | None = declare(
        "rules (.yaml) for the statistics of the records; if one is broken, nothing is committed",
        default=None,
        metavar="FILE",
        excludes=(("stats", False),),
    )
    memory: int = redeclare(Shared, parse=parse_build_memory)
    threads: int | None = redeclare(Shared)
    storage_requests: int | None = redeclare(Shared)
    runner: str | None = redeclare(Shared, default_text="threads of this process, without Beam")
    beam_args: tuple[str, ...] = redeclare(Shared)
    preflight: bool = redeclare(Shared)
    dry_run: bool = declare(
        "show what would be built, with the first records, and write nothing",
        default=False,
        shell_only=True,
        common=True,
    )
    detach: bool = declare(
        "with a --runner: return when the engine has the job; `recordmill status` shows its progress",
        default=False,
        engine_only=True,
        shell_only=True,
    )
    quiet: bool = redeclare(Shared)
    json: bool = redeclare(Shared, heading=RUN_HEADING, help="print the result as JSON to stdout")


class ApplyOptions(Options, heading="transform", decides=True):
    """The option that only `transform` has."""

    transform_from: str | os.PathLike[str] | None = declare(
        "data set whose transform is applied",
        default=None,
        metavar="OUT",
        flag="--with",
        common=True,
    )


class WriteShardsOptions(Options):
    """Options of `WriteShards`, if they differ from the options of a build."""

    splits: tuple[tuple[str, float], ...] | None = redeclare(
        BuildOrder, default_text="all records are train"
    )
    seed: int = redeclare(BuildOrder, help="seed of the order")
    key: str | None = redeclare(
        BuildOrder, help="order records by a hash of this column, instead of a hash of the record"
    )
    shard_size: int | None = redeclare(
        BuildShards, default_text=format_size_option(DEFAULT_SHARD_BYTES)
    )
    num_shards: int | None = redeclare(BuildShards, help="exactly N shards per split")

    label: str | None = redeclare(
        BuildRecords,
        help="label of each record; if it is text without classes in the schema, it becomes class numbers, after a pass over the collection",
    )
    max_rejects: str | int = redeclare(
        Shared, help="number of rejects that are allowed, or a share such as 1%"
    )
    overwrite: bool = redeclare(Shared)
    threads: int = redeclare(
        Shared,
        default=1,
        default_text="",
        parse=parse_positive,
        keyword_type="int",
        help="number of threads, if the pipeline runs in this process",
    )
    memory: int = redeclare(Shared, parse=size_in_bytes, help="memory of each worker")
