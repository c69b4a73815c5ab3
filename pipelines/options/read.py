"""The options of `read`."""

from __future__ import annotations

from dataclasses import replace

from recordmill.pipelines.options.declare import ALL_OR_NAMES, NUMBER, REPEATED, SIZE, SWITCH, WHOLE, Option, Options
from recordmill.pipelines.options.shared import (
    BEAM_ARGS,
    COLUMNS,
    JSON,
    MAX_REJECTS,
    MEMORY,
    OVERWRITE,
    PREFLIGHT,
    QUIET,
    RUN,
    RUNNER,
    SCHEMA,
    SPLIT,
    STORAGE_REQUESTS,
    THREADS,
    grouped,
)
from recordmill.records.writers.outputs import OUTPUT_NAMES

OUTPUT, CHOICE, RECORDS = "the output", "which records", "what the records hold"
CONVERSIONS = "conversions (each may be given for several features; done in this order)"

_OUTPUT: Options = (
    Option(
        "out",
        "the folder for the result (needed unless --dry-run)",
        metavar="OUT",
        group=OUTPUT,
        common=True,
        shell_only=True,
    ),
    Option(
        "dry_run",
        "say rows, columns, disk and memory; write nothing",
        form=SWITCH,
        default=False,
        group=OUTPUT,
        common=True,
        shell_only=True,
    ),
    Option(
        "to",
        "the format",
        default="parquet",
        choices=OUTPUT_NAMES,
        group=OUTPUT,
        common=True,
        decides=True,
    ),
    grouped(OVERWRITE, OUTPUT, help="replace the result that OUT holds"),
    Option(
        "file_size",
        "shards' bytes per Parquet or Arrow file",
        form=SIZE,
        default="512MiB",
        metavar="SIZE",
        group=OUTPUT,
        decides=True,
    ),
    Option(
        "row_group_rows",
        "rows of a Parquet row group",
        form=WHOLE,
        told_default="as many as --row-group-size holds",
        metavar="N",
        group=OUTPUT,
        decides=True,
    ),
    Option(
        "row_group_size",
        "a row group's Arrow memory, at most 64MiB",
        form=SIZE,
        default="64MiB",
        metavar="SIZE",
        group=OUTPUT,
        decides=True,
    ),
    Option(
        "compression",
        "of Parquet: zstd (level 1), gzip, snappy, none; with a level as in zstd:9",
        default="zstd",
        metavar="CODEC[:LEVEL]",
        group=OUTPUT,
        decides=True,
    ),
    Option(
        "file_feature",
        "of --to files: the bytes or text that become the files",
        metavar="NAME",
        group=OUTPUT,
        decides=True,
    ),
    Option(
        "name_feature",
        "of --to files: the text or whole number that names them ('' for the record's number)",
        metavar="NAME",
        group=OUTPUT,
        decides=True,
    ),
)
WHERE = Option(
    "where",
    "only records for which this WHERE clause holds, as in 'label = 3 AND len(boxes) > 0' (needs duckdb); "
    "in Python also a pyarrow.compute expression",
    metavar="SQL",
    annotation="str | pc.Expression",
    group=CHOICE,
    common=True,
    decides=True,
)
_CHOICE: Options = (
    grouped(COLUMNS, CHOICE),
    grouped(SPLIT, CHOICE),
    Option(
        "limit",
        "only the first N records of each split (of those left by --where and --sample)",
        form=WHOLE,
        metavar="N",
        group=CHOICE,
        common=True,
        decides=True,
    ),
    WHERE,
    Option(
        "sample",
        "only a random share of the records, from 0 to 1; the same for the same --seed",
        form=NUMBER,
        metavar="P",
        group=CHOICE,
        common=True,
        decides=True,
    ),
    Option(
        "seed",
        "of --sample",
        form=WHOLE,
        default=0,
        metavar="N",
        group=CHOICE,
        decides=True,
        needs=("sample",),
    ),
)
DECODE_RAW = Option(
    "decode_raw",
    "bytes that are an array's memory to that array",
    form=REPEATED,
    metavar="FEATURE=DTYPE[SHAPE]",
    group=CONVERSIONS,
    common=True,
    decides=True,
)
RESHAPE = Option(
    "reshape",
    "the same values in another shape; -1: what follows, or varies",
    form=REPEATED,
    metavar="FEATURE=[SHAPE]",
    group=CONVERSIONS,
    decides=True,
)
_CONVERSIONS: Options = (
    Option(
        "decode_images",
        "encoded images to uint8 [height, width, channels]; without names all features that hold them",
        form=ALL_OR_NAMES,
        metavar="A,B,...",
        group=CONVERSIONS,
        common=True,
        decides=True,
    ),
    Option(
        "resize",
        "bring the images to one size (bilinear, antialiased)",
        metavar="HxW",
        annotation="str | tuple[int, int]",
        group=CONVERSIONS,
        common=True,
        decides=True,
        needs=("decode_images",),
    ),
    Option(
        "channels",
        "1 gray, 3 RGB or 4 RGBA",
        form=WHOLE,
        told_default="3",
        metavar="N",
        group=CONVERSIONS,
        decides=True,
        needs=("decode_images",),
    ),
    Option(
        "decode_tensor",
        "bytes written by tf.io.serialize_tensor to a tensor",
        form=REPEATED,
        metavar="FEATURE[=DTYPE[SHAPE]]",
        group=CONVERSIONS,
        common=True,
        decides=True,
    ),
    DECODE_RAW,
    RESHAPE,
    Option(
        "pad",
        "a list to a fixed length; a longer one is a bad record",
        form=REPEATED,
        metavar="FEATURE=LENGTH:VALUE",
        group=CONVERSIONS,
        common=True,
        decides=True,
    ),
    Option(
        "pad_or_cut",
        "the same, but a longer one loses its end",
        form=REPEATED,
        metavar="FEATURE=LENGTH:VALUE",
        group=CONVERSIONS,
        decides=True,
    ),
    Option(
        "ragged",
        "a list of variable length, also if all records hold equally many items",
        form=REPEATED,
        metavar="FEATURE,...",
        group=CONVERSIONS,
        decides=True,
    ),
)
_RECORDS: Options = (grouped(SCHEMA, RECORDS), grouped(MAX_REJECTS, RECORDS))
_RUN: Options = (
    MEMORY,
    THREADS,
    STORAGE_REQUESTS,
    grouped(RUNNER, RUN, told_default="threads of this process, without Beam", excludes=(("dry_run", None),)),
    replace(BEAM_ARGS, needs=("runner",)),
    PREFLIGHT,
    QUIET,
    JSON,
)
READ: Options = (*_OUTPUT, *_CHOICE, *_CONVERSIONS, *_RECORDS, *_RUN)
