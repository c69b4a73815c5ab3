"""Options that several calls have.

The classes of a call declare them with `redeclare`. They may change the help or the heading.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.sizes import format_size_option, parse_size, size_in_bytes
from recordmill.options.declare import LOOK_HEADING, REPORT_HEADING, RUN_HEADING, Options, declare
from recordmill.options.parsers import (
    ShuffleMode,
    parse_flags,
    parse_positive,
    parse_shuffle,
    parse_threads,
)

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from recordmill.schemas.feature import Schema

# Records of a batch for training, unless the caller sets another number.
BATCH_SIZE = 256
_DEFAULT_SHUFFLE: ShuffleMode = "window"


class Shared(Options):
    """Options that several calls have. No call has this class itself."""

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
        "schema.pbtxt (TensorFlow Metadata) of the records; nothing is inferred",
        default=None,
        heading=LOOK_HEADING,
        common=True,
        decides=True,
        metavar="FILE",
    )
    max_rejects: str | int = declare(
        "largest number or share of unusable records; they are listed in OUT/rejects",
        default=0,
        metavar="N|P%",
        common=True,
    )
    overwrite: bool = declare("replace the contents of OUT", default=False, common=True)
    keep_generations: int | None = declare(
        "generations of OUT that stay readable, this one included; later commits keep as many",
        default=None,
        parse=parse_positive,
        default_text="as before; at first 2",
        metavar="K",
    )
    memory: int = declare(
        "memory for data, in addition to the interpreter",
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
        "runner of Apache Beam; flags that recordmill does not know are passed to Beam",
        default=None,
        heading=RUN_HEADING,
        metavar="RUNNER",
    )
    beam_args: tuple[str, ...] = declare(
        "flags for Beam; on the command line, write them directly",
        default=(),
        parse=parse_flags,
        heading=RUN_HEADING,
        repeated=True,
        keyword_only=True,
    )
    preflight: bool = declare(
        "with a --runner: do not check first what its workers can see and which versions they have",
        default=True,
        heading=RUN_HEADING,
        engine_only=True,
    )
    quiet: bool = declare(
        "print no progress and no summary",
        default=False,
        heading=RUN_HEADING,
        common=True,
        shell_only=True,
    )
    json: bool = declare(
        "print the result as JSON",
        default=False,
        heading=REPORT_HEADING,
        common=True,
        shell_only=True,
    )
    where: str | pc.Expression | None = declare(
        "only records that meet this SQL condition, as in 'label = 3 AND len(boxes) > 0' (needs duckdb); in Python also a pyarrow.compute expression",
        default=None,
        heading="which records",
        decides=True,
        metavar="SQL",
        common=True,
    )
    decode_raw: str | Sequence[str] | None = declare(
        "decode bytes that are the memory of an array",
        default=None,
        heading="conversions (applied in this order; each may be used for several features)",
        decides=True,
        repeated=True,
        metavar="FEATURE=DTYPE[SHAPE]",
        common=True,
    )
    pad: str | Sequence[str] | None = declare(
        "pad a list to a fixed length; a record with a longer list is a reject",
        default=None,
        heading="conversions (applied in this order; each may be used for several features)",
        decides=True,
        repeated=True,
        metavar="FEATURE=LENGTH:VALUE",
        common=True,
    )
    ragged: str | Sequence[str] | None = declare(
        "keep lists of variable length, even if all have the same length",
        default=None,
        heading="conversions (applied in this order; each may be used for several features)",
        decides=True,
        repeated=True,
        metavar="FEATURE,...",
    )
    class_names: bool = declare(
        "write names of classes instead of their numbers",
        default=False,
        heading="conversions (applied in this order; each may be used for several features)",
        decides=True,
    )
    reshape: str | Sequence[str] | None = declare(
        "give the values another shape; -1 is computed from the others, or varies",
        default=None,
        heading="conversions (applied in this order; each may be used for several features)",
        decides=True,
        repeated=True,
        metavar="FEATURE=[SHAPE]",
    )
    infer_from: str | int | None = declare(
        "infer from only N records, the first ones of each file, or from N files",
        default=None,
        default_text="all",
        heading=LOOK_HEADING,
        common=True,
        metavar="N|Nfiles",
        excludes=(("schema", None),),
    )
    shuffle: ShuffleMode = declare(
        'Shuffles the records, differently in each epoch. "window" or True reads pieces of files in '
        'random order and mixes the records of as many pieces as fit into the window. "global" is a '
        "random order of all records. False keeps the order of the files.",
        default=_DEFAULT_SHUFFLE,
        parse=parse_shuffle,
    )
    memory_bytes: int = declare(
        "Limit of the data that is read ahead or being decoded, as a number of bytes or as text such "
        'as "512MiB".',
        # This memory suffices for the ranges and the compressed windows of four threads.
        default="512MiB",
        parse=size_in_bytes,
    )
    cache: str | os.PathLike[str] | None = declare(
        "local folder that caches blocks read from a store; several processes may share it",
        default=None,
        heading="stores",
        metavar="DIR",
    )
    cache_bytes: str | int = declare(
        "largest size of the cache",
        default="10GiB",
        heading="stores",
        metavar="SIZE",
        needs=(("cache", None),),
    )
    recount: bool = declare(
        "read the records even if the build has computed their statistics",
        default=False,
        heading=LOOK_HEADING,
        common=True,
    )
