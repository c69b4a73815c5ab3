"""Options of several calls. A call declares them `again`, some with another help or heading."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.sizes import format_size_option, parse_size
from recordmill.options.declare import LOOK_HEADING, REPORT_HEADING, RUN_HEADING, Options, declare
from recordmill.options.parsers import parse_threads

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from recordmill.schemas.feature import Schema


class Shared(Options):
    """Options of several calls."""

    split: str | None = declare(
        "only this split",
        default=None,
        heading=LOOK_HEADING,
        common=True,
        decides=True,
        metavar="NAME",
    )
    columns: str | Sequence[str] | None = declare(
        "only these features, in this order; the others are skipped, not parsed",
        default=None,
        heading=LOOK_HEADING,
        common=True,
        decides=True,
        metavar="A,B,...",
    )
    schema: Schema | str | os.PathLike[str] | None = declare(
        "a schema.pbtxt (TensorFlow Metadata) that says what the records hold; nothing is inferred",
        default=None,
        heading=LOOK_HEADING,
        common=True,
        decides=True,
        metavar="FILE",
    )
    max_rejects: str | int = declare(
        "how many records may be unusable; they are listed in OUT/rejects",
        default=0,
        metavar="N|P%",
        common=True,
    )
    overwrite: bool = declare("replace what OUT holds", default=False, common=True)
    memory: int = declare(
        "what may be held at once, beside the interpreter",
        default=format_size_option(DEFAULT_MEMORY_BYTES),
        parse=parse_size,
        heading=RUN_HEADING,
        metavar="SIZE",
        common=True,
    )
    threads: int | None = declare(
        "number of threads",
        default=None,
        parse=parse_threads,
        default_text="all cores",
        heading=RUN_HEADING,
        common=True,
    )
    storage_requests: int | None = declare(
        "concurrent requests to object stores; in Python the value stays in effect until it is changed",
        default=None,
        default_text="64",
        heading=RUN_HEADING,
    )
    runner: str | None = declare(
        "the Apache Beam runner; flags that recordmill does not know are handed to it",
        default=None,
        heading=RUN_HEADING,
        metavar="RUNNER",
    )
    beam_args: Sequence[str] = declare(
        "flags for Beam's runner; on the command line they are given as they are",
        default=(),
        heading=RUN_HEADING,
        repeated=True,
        keyword_only=True,
    )
    preflight: bool = declare(
        "with a --runner: don't look first what its workers see, and which versions they have",
        default=True,
        heading=RUN_HEADING,
        engine_only=True,
    )
    quiet: bool = declare(
        "no progress and no summary",
        default=False,
        heading=RUN_HEADING,
        common=True,
        shell_only=True,
    )
    json: bool = declare(
        "print it as JSON", default=False, heading=REPORT_HEADING, common=True, shell_only=True
    )
    where: str | pc.Expression | None = declare(
        "only records for which this WHERE clause holds, as in 'label = 3 AND len(boxes) > 0' (needs duckdb); in Python also a pyarrow.compute expression",
        default=None,
        heading="which records",
        decides=True,
        metavar="SQL",
        common=True,
    )
    decode_raw: str | Sequence[str] | None = declare(
        "bytes that are an array's memory to that array",
        default=None,
        heading="conversions (each may be given for several features; done in this order)",
        decides=True,
        repeated=True,
        metavar="FEATURE=DTYPE[SHAPE]",
        common=True,
    )
    pad: str | Sequence[str] | None = declare(
        "a list to a fixed length; a longer one is a bad record",
        default=None,
        heading="conversions (each may be given for several features; done in this order)",
        decides=True,
        repeated=True,
        metavar="FEATURE=LENGTH:VALUE",
        common=True,
    )
    ragged: str | Sequence[str] | None = declare(
        "a list of variable length, also if all records hold equally many",
        default=None,
        heading="conversions (each may be given for several features; done in this order)",
        decides=True,
        repeated=True,
        metavar="FEATURE,...",
    )
    class_names: bool = declare(
        "names of classes in place of their numbers",
        default=False,
        heading="conversions (each may be given for several features; done in this order)",
        decides=True,
    )
    reshape: str | Sequence[str] | None = declare(
        "the same values in another shape; -1: what follows, or varies",
        default=None,
        heading="conversions (each may be given for several features; done in this order)",
        decides=True,
        repeated=True,
        metavar="FEATURE=[SHAPE]",
    )
    infer_from: str | int | None = declare(
        "look at N records only, the first ones of each file, or at N whole files",
        default=None,
        default_text="all",
        heading=LOOK_HEADING,
        common=True,
        metavar="N|Nfiles",
        excludes=(("schema", None),),
    )
    cache: str | os.PathLike[str] | None = declare(
        "a folder of this machine in which blocks that are read from a store are kept; processes may share it",
        default=None,
        heading="stores",
        metavar="DIR",
    )
    cache_bytes: str | int = declare(
        "at most so much of them", default="10GiB", heading="stores", metavar="SIZE"
    )
    recount: bool = declare(
        "read the records, also where the build has counted them",
        default=False,
        heading=LOOK_HEADING,
        common=True,
    )
