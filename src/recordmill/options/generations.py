"""The options of `log`, `restore` and `compact`."""

from __future__ import annotations

from typing import Literal

from recordmill.options.build import BuildShards
from recordmill.options.declare import REPORT_HEADING, RUN_HEADING, Options, declare, redeclare
from recordmill.options.parsers import parse_positive
from recordmill.options.shared import Shared


class LogOptions(Options, heading=REPORT_HEADING, common=True):
    """The options of `recordmill log`."""

    storage_requests: int | None = redeclare(Shared, heading=REPORT_HEADING)
    json: bool = redeclare(Shared)


class RestoreOptions(Options, heading="the generation", common=True):
    """The options of `recordmill restore`."""

    generation: int | None = declare(
        "generation to restore; `recordmill log` lists them",
        default=None,
        default_text="none; give one",
        parse=parse_positive,
    )
    keep_generations: int | None = redeclare(Shared, heading="the generation")
    storage_requests: int | None = redeclare(Shared)
    json: bool = redeclare(Shared, heading=RUN_HEADING)


class CompactOptions(Options, heading="shards", common=True):
    """The options of `recordmill compact`."""

    shard_size: int | None = redeclare(BuildShards, default_text="as before", decides=False)
    num_shards: int | None = redeclare(BuildShards, default_text="as before", decides=False)
    compression: Literal["none", "gzip"] | None = declare(
        "compression of the shards", default=None, default_text="as before"
    )
    keep_generations: int | None = redeclare(Shared, heading="shards")
    memory: int = redeclare(Shared, heading=RUN_HEADING)
    threads: int | None = redeclare(Shared)
    storage_requests: int | None = redeclare(Shared)
    quiet: bool = redeclare(Shared)
    json: bool = redeclare(Shared, heading=RUN_HEADING)
