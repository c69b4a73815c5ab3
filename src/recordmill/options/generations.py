"""The options of `log`, `restore` and `compact`."""

from __future__ import annotations

from typing import Literal

from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.sizes import format_size_option, parse_size
from recordmill.options.declare import REPORT_HEADING, RUN_HEADING, Options, again, declare
from recordmill.options.parsers import parse_positive, parse_whole
from recordmill.options.shared import Shared


class LogOptions(Options, heading=REPORT_HEADING, common=True):
    """The options of `recordmill log`."""

    storage_requests: int | None = again(Shared, heading=REPORT_HEADING)
    json: bool = again(Shared)


class RestoreOptions(Options, heading="the generation", common=True):
    """The options of `recordmill restore`."""

    generation: int | None = declare(
        "generation to restore; `recordmill log` lists them",
        default=None,
        default_text="none; give one",
        parse=parse_positive,
    )
    keep_generations: int | None = again(Shared, heading="the generation")
    storage_requests: int | None = again(Shared)
    json: bool = again(Shared, heading=RUN_HEADING)


class CompactOptions(Options, heading="shards", common=True):
    """The options of `recordmill compact`."""

    shard_size: int | None = declare(
        "target size of a shard before compression",
        default=None,
        parse=parse_size,
        default_text="as before",
        metavar="SIZE",
    )
    num_shards: int | None = declare(
        "exactly N shards per split, instead of --shard-size",
        default=None,
        parse=parse_whole,
        default_text="as before",
        excludes=(("shard_size", None),),
    )
    compression: Literal["none", "gzip"] | None = declare(
        "compression of the shards", default=None, default_text="as before"
    )
    keep_generations: int | None = again(Shared, heading="shards")
    memory: int = declare(
        "memory for data, in addition to the interpreter",
        default=format_size_option(DEFAULT_MEMORY_BYTES),
        parse=parse_size,
        heading=RUN_HEADING,
        metavar="SIZE",
    )
    threads: int | None = again(Shared)
    storage_requests: int | None = again(Shared)
    quiet: bool = again(Shared)
    json: bool = again(Shared, heading=RUN_HEADING)
