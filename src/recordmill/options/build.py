"""The options of `build` and `transform`.

`transform` has the options of a build, except that its transform comes from another data set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import (
    DEFAULT_SHARD_BYTES,
    format_size_option,
    parse_size,
)
from recordmill.options.declare import RUN_HEADING, Options, again, declare
from recordmill.options.parsers import parse_dtypes, parse_whole
from recordmill.options.shared import Shared
from recordmill.sources.registry import KIND_NAMES

if TYPE_CHECKING:
    from recordmill.schemas.feature import Schema

# options that read files in addition to the inputs
_FILE_OPTIONS = ("transform", "transform_from", "labels", "boxes", "file_columns", "expect")
_WITHOUT_SHUFFLE = (("shuffle", False),)
_WITH_SPLITS = (("splits", None),)
# 128 MiB: the batches, sorted runs and pieces of two threads. Less than this could not be kept.
MIN_MEMORY_BYTES = 128 << 20


def parse_build_memory(value: str | int, name: str) -> int:
    """Returns the memory of a build in bytes."""
    memory_bytes = parse_size(value, name)
    if memory_bytes < MIN_MEMORY_BYTES:
        raise UsageError(
            "{memory}: must be at least {min_memory_bytes}MiB",
            memory=option(name, value),
            min_memory_bytes=MIN_MEMORY_BYTES >> 20,
        )
    return memory_bytes


class BuildInputs(Options, heading="records"):
    """The folder of the data set, and the kind of the inputs."""

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
    """Options of the records."""

    overwrite: bool = again(
        Shared,
        heading="records",
        help="replace the data set in OUT; programs that read the old one can finish",
    )
    if_changed: bool = declare(
        "build only if the inputs (by name, size and time) or the options have changed since OUT was built",
        default=False,
        files_only=True,
        excludes=tuple((name, None) for name in _FILE_OPTIONS),
    )
    keep_generations: int | None = again(Shared, heading="records")
    schema: Schema | str | os.PathLike[str] | None = again(
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
    max_rejects: str | int = again(Shared, heading="records")
    follow_links: bool = declare(
        "follow symbolic links that lead out of an INPUT folder", default=False, files_only=True
    )


class BuildOrder(Options, heading="order and splits", decides=True):
    """Options of the order and the splits."""

    seed: int = declare(
        "seed of the shuffle; the result also depends on the order of the INPUTs",
        default=0,
        parse=parse_whole,
        common=True,
        excludes=_WITHOUT_SHUFFLE,
    )
    shuffle: bool = declare("keep the order of the input", default=True, common=True)
    key: str | None = declare(
        "order records by a hash of this column, so that a record keeps its place and split when others are added",
        default=None,
        metavar="COLUMN",
        excludes=_WITHOUT_SHUFFLE,
    )
    splits: str | Mapping[str, float] | None = declare(
        "divide the records at random, as in train=0.9,validation=0.1",
        default=None,
        default_text="from folders; otherwise all records are train",
        metavar="NAME=P,...",
        common=True,
    )
    split_from: Literal["auto", "folders", "names", "none"] = declare(
        "what determines the split if --splits is not given", default="auto"
    )
    split_column: str | None = declare(
        "column that holds the split of each record (train, val, dev, test, ...); it is not stored as a feature",
        default=None,
        metavar="COLUMN",
        excludes=(("splits", None),),
    )
    split_at: str | Mapping[str, Any] | None = declare(
        "divide by a number, date or text: values below the first V are train, from the last V on test, and between two V validation",
        default=None,
        default_text="",
        metavar="COLUMN=V[,V]",
        excludes=(("splits", None), ("split_column", None)),
    )
    split_by: str | None = declare(
        "keep records with equal values of this column in one split",
        default=None,
        metavar="COLUMN",
        common=True,
        needs=_WITH_SPLITS,
    )
    stratify: str | None = declare(
        "keep the share of each class of this column equal in all splits (exact to one record); inputs are read twice",
        default=None,
        metavar="COLUMN",
        common=True,
        needs=_WITH_SPLITS,
    )
    split_seed: int = declare(
        "seed of the division into splits", default=0, parse=parse_whole, needs=(("splits", None),)
    )


class BuildShards(Options, heading="shards", decides=True):
    """Options of the shards."""

    shard_size: int | None = declare(
        "target size of a shard before compression",
        default=None,
        parse=parse_size,
        default_text=f"{format_size_option(DEFAULT_SHARD_BYTES)}; larger above 4 TiB of input",
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
        metavar="TEXT",
    )
    license: str | None = declare(
        "licence: an SPDX identifier (CC-BY-4.0), a URL or a name; for the same files",
        default=None,
        metavar="TEXT",
    )
    citation: str | None = declare(
        "how to cite the data set, preferably as BibTeX; for the same files",
        default=None,
        metavar="TEXT",
    )
    url: str | None = declare(
        "web page of the data set; with it, --description, --license and --creator, the build writes croissant.json",
        default=None,
        metavar="URL",
        needs=(("creator", None),),
    )
    creator: str | None = declare(
        "author of the data set, for croissant.json",
        default=None,
        metavar="NAME",
        needs=(("url", None),),
    )


class BuildTransform(Options, heading="transform", decides=True):
    """Options of the transform."""

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
    """Options of the run."""

    stats: bool = declare("do not compute statistics of the values (statistics.pb)", default=True)
    expect: Mapping[str, Any] | str | os.PathLike[str] | None = declare(
        "rules (.yaml) for the statistics of the records; if one is broken, nothing is committed",
        default=None,
        metavar="FILE",
        excludes=(("stats", False),),
    )
    memory: int = again(Shared, parse=parse_build_memory)
    threads: int | None = again(Shared)
    storage_requests: int | None = again(Shared)
    runner: str | None = again(Shared, default_text="FnApiRunner, in this process")
    beam_args: tuple[str, ...] = again(Shared)
    preflight: bool = again(Shared)
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
    quiet: bool = again(Shared)
    json: bool = again(Shared, heading=RUN_HEADING, help="print the result as JSON to stdout")


class ApplyOptions(Options, heading="transform", decides=True):
    """The option that only `transform` has."""

    transform_from: str | os.PathLike[str] | None = declare(
        "data set whose transform is applied",
        default=None,
        metavar="OUT",
        flag="--with",
        common=True,
    )
