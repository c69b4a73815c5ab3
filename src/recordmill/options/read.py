"""The options of `read`."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from recordmill.options.option import (
    REPEATED,
    BeamArgsOption,
    ColumnsOption,
    JsonOption,
    MaxRejectsOption,
    MemoryOption,
    Option,
    Options,
    OverwriteOption,
    PreflightOption,
    QuietOption,
    RunnerOption,
    SchemaOption,
    SplitOption,
    StorageRequestsOption,
    ThreadsOption,
    declared_options,
)

if TYPE_CHECKING:
    import pyarrow.compute as pc

_output = partial(Option, group="the output", decides=True)
_choice = partial(Option, group="which records", decides=True)
_conversion = partial(
    Option, group="conversions (each may be given for several features; done in this order)", decides=True
)

WhereOption = Annotated[
    "str | pc.Expression | None",
    _choice(
        "only records for which this WHERE clause holds, as in 'label = 3 AND len(boxes) > 0' (needs duckdb); "
        "in Python also a pyarrow.compute expression",
        metavar="SQL",
        common=True,
    ),
]
DecodeRawOption = Annotated[
    str | Sequence[str] | None,
    _conversion(
        "bytes that are an array's memory to that array", form=REPEATED, metavar="FEATURE=DTYPE[SHAPE]", common=True
    ),
]
ReshapeOption = Annotated[
    str | Sequence[str] | None,
    _conversion(
        "the same values in another shape; -1: what follows, or varies", form=REPEATED, metavar="FEATURE=[SHAPE]"
    ),
]


class _ReadOut(TypedDict, total=False):
    out: Annotated[
        str | None,
        _output(
            "the folder for the result (needed unless --dry-run)",
            metavar="OUT",
            short="-o",
            common=True,
            decides=False,
            shell_only=True,
        ),
    ]
    dry_run: Annotated[
        bool,
        _output(
            "say rows, columns, disk and memory; write nothing", False, common=True, decides=False, shell_only=True
        ),
    ]


class ReadKeywords(TypedDict, total=False):
    """The options of `recordmill.read`."""

    to: Annotated[
        Literal["parquet", "npy", "npz", "arrow", "jsonl", "csv", "files"],
        _output("the format", "parquet", common=True),
    ]
    overwrite: Annotated[OverwriteOption, {"help": "replace the result that OUT holds", "group": "the output"}]
    file_size: Annotated[str | int, _output("shards' bytes per Parquet or Arrow file", "512MiB", metavar="SIZE")]
    row_group_rows: Annotated[
        int | None, _output("rows of a Parquet row group", default_text="as many as --row-group-size holds")
    ]
    row_group_size: Annotated[str | int, _output("a row group's Arrow memory, at most 64MiB", "64MiB", metavar="SIZE")]
    compression: Annotated[
        str,
        _output(
            "of Parquet: zstd (level 1), gzip, snappy, none; with a level as in zstd:9", "zstd", metavar="CODEC[:LEVEL]"
        ),
    ]
    file_feature: Annotated[
        str | None, _output("of --to files: the bytes or text that become the files", metavar="NAME")
    ]
    name_feature: Annotated[
        str | None,
        _output("of --to files: the text or whole number that names them ('' for the record's number)", metavar="NAME"),
    ]
    columns: Annotated[ColumnsOption, {"group": "which records"}]
    split: Annotated[SplitOption, {"group": "which records"}]
    limit: Annotated[
        int | None,
        _choice("only the first N records of each split (of those left by --where and --sample)", common=True),
    ]
    where: WhereOption
    sample: Annotated[
        float | None,
        _choice(
            "only a random share of the records, from 0 to 1; the same for the same --seed", metavar="P", common=True
        ),
    ]
    seed: Annotated[int, _choice("of --sample", 0, needs=("sample",))]
    decode_images: Annotated[
        bool | str | Sequence[str] | None,
        _conversion(
            "encoded images to uint8 [height, width, channels]; without names all features that hold them",
            metavar="A,B,...",
            common=True,
        ),
    ]
    resize: Annotated[
        str | tuple[int, int] | None,
        _conversion(
            "bring the images to one size (bilinear, antialiased)", metavar="HxW", common=True, needs=("decode_images",)
        ),
    ]
    channels: Annotated[int | None, _conversion("1 gray, 3 RGB or 4 RGBA", default_text="3", needs=("decode_images",))]
    decode_tensor: Annotated[
        str | Sequence[str] | None,
        _conversion(
            "bytes written by tf.io.serialize_tensor to a tensor",
            form=REPEATED,
            metavar="FEATURE[=DTYPE[SHAPE]]",
            common=True,
        ),
    ]
    decode_raw: DecodeRawOption
    reshape: ReshapeOption
    pad: Annotated[
        str | Sequence[str] | None,
        _conversion(
            "a list to a fixed length; a longer one is a bad record",
            form=REPEATED,
            metavar="FEATURE=LENGTH:VALUE",
            common=True,
        ),
    ]
    pad_or_cut: Annotated[
        str | Sequence[str] | None,
        _conversion("the same, but a longer one loses its end", form=REPEATED, metavar="FEATURE=LENGTH:VALUE"),
    ]
    ragged: Annotated[
        str | Sequence[str] | None,
        _conversion(
            "a list of variable length, also if all records hold equally many items",
            form=REPEATED,
            metavar="FEATURE,...",
        ),
    ]
    schema: Annotated[SchemaOption, {"group": "what the records hold"}]
    max_rejects: Annotated[MaxRejectsOption, {"group": "what the records hold"}]
    memory: MemoryOption
    threads: ThreadsOption
    storage_requests: StorageRequestsOption
    runner: Annotated[
        RunnerOption, {"default_text": "threads of this process, without Beam", "excludes": (("dry_run", None),)}
    ]
    beam_args: Annotated[BeamArgsOption, {"needs": ("runner",)}]
    preflight: PreflightOption


class _ReadShell(TypedDict, total=False):
    quiet: QuietOption
    json: Annotated[JsonOption, {"help": "print a machine-readable result on stdout", "group": "the run"}]


READ: Options = declared_options(_ReadOut, ReadKeywords, _ReadShell)
