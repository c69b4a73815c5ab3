"""The options of `read`, of `recordmill.open`, and of commands that inspect data.

These commands are `head`, `inspect`, `stats`, `check`, `report`, `bench`, `verify`, `doctor`,
`status` and `clean`.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from recordmill.options import option

if TYPE_CHECKING:
    import pyarrow.compute as pc

_output = partial(option.Option, group="the output", decides=True)
_parquet = partial(_output, outputs=("parquet",))
_files = partial(_output, outputs=("files",))
_choice = partial(option.Option, group="which records", decides=True)
_conversion = partial(
    option.Option,
    group="conversions (each may be given for several features; done in this order)",
    decides=True,
)
_listed = partial(_conversion, form=option.REPEATED_FORM)
_of_shell = partial(_output, common=True, decides=False, shell_only=True)
_Texts = str | Sequence[str] | None
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
    _Texts,
    _listed(
        "bytes that are an array's memory to that array",
        metavar="FEATURE=DTYPE[SHAPE]",
        common=True,
    ),
]
PadOption = Annotated[
    _Texts,
    _listed(
        "a list to a fixed length; a longer one is a bad record",
        metavar="FEATURE=LENGTH:VALUE",
        common=True,
    ),
]
RaggedOption = Annotated[
    _Texts,
    _listed(
        "a list of variable length, also if all records hold equally many",
        metavar="FEATURE,...",
    ),
]
ClassNamesOption = Annotated[bool, _conversion("names of classes in place of their numbers", False)]
ReshapeOption = Annotated[
    _Texts,
    _listed(
        "the same values in another shape; -1: what follows, or varies", metavar="FEATURE=[SHAPE]"
    ),
]
_look = partial(option.Option, group=option.LOOK_GROUP, common=True)
_report = partial(option.Option, group=option.REPORT_GROUP, common=True)
_check = partial(option.Option, group="the check", common=True)
_stores = partial(option.Option, group="stores")
_batches = partial(option.Option, group="the batches", common=True, shell_only=True)
InferFromOption = Annotated[
    str | int | None,
    _look(
        "look at N records only, the first ones of each file, or at N whole files",
        default_text="all",
        metavar="N|Nfiles",
        excludes=(("schema", None),),
    ),
]
CacheOption = Annotated[
    str | os.PathLike[str] | None,
    _stores(
        "a folder of this machine in which blocks that are read from a store are kept; processes may share it",
        metavar="DIR",
    ),
]
CacheBytesOption = Annotated[str | int, _stores("at most so much of them", "10GiB", metavar="SIZE")]
RecountOption = Annotated[
    bool, _look("read the records, also where the build has counted them", False)
]


class _ReadOut(TypedDict, total=False):
    out: Annotated[
        str | None,
        _of_shell("the folder for the result (needed unless --dry-run)", metavar="OUT", short="-o"),
    ]
    dry_run: Annotated[bool, _of_shell("say rows, columns, disk and memory; write nothing", False)]


class ReadKeywords(TypedDict, total=False):
    """The options of `recordmill.read`."""

    to: Annotated[
        Literal["parquet", "npy", "npz", "arrow", "jsonl", "csv", "files"],
        _output("the format", "parquet", common=True),
    ]
    overwrite: Annotated[
        option.OverwriteOption, {"help": "replace the result that OUT holds", "group": "the output"}
    ]
    file_size: Annotated[
        str | int, _output("shards' bytes per Parquet or Arrow file", "512MiB", metavar="SIZE")
    ]
    row_group_rows: Annotated[
        int | None,
        _parquet("rows of a Parquet row group", default_text="as many as --row-group-size holds"),
    ]
    row_group_size: Annotated[
        str | int, _parquet("a row group's Arrow memory, at most 64MiB", "64MiB", metavar="SIZE")
    ]
    compression: Annotated[
        str,
        _parquet(
            "of Parquet: zstd (level 1), gzip, snappy, none; with a level as in zstd:9",
            "zstd",
            metavar="CODEC[:LEVEL]",
        ),
    ]
    file_feature: Annotated[
        str | None,
        _files("of --to files: the bytes or text that become the files", metavar="NAME"),
    ]
    name_feature: Annotated[
        str | None,
        _files(
            "of --to files: the text or whole number that names them ('' for the record's number)",
            metavar="NAME",
        ),
    ]
    columns: Annotated[option.ColumnsOption, {"group": "which records"}]
    split: Annotated[option.SplitOption, {"group": "which records"}]
    limit: Annotated[
        int | None,
        _choice(
            "the first N records of each split (of those left by --where and --sample)", common=True
        ),
    ]
    where: WhereOption
    sample: Annotated[
        float | None,
        _choice(
            "a random share of the records, from 0 to 1; the same for the same --seed",
            metavar="P",
            common=True,
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
            "bring the images to one size (bilinear, antialiased)",
            metavar="HxW",
            common=True,
            needs=("decode_images",),
        ),
    ]
    channels: Annotated[
        int | None,
        _conversion("1 gray, 3 RGB or 4 RGBA", default_text="3", needs=("decode_images",)),
    ]
    decode_tensor: Annotated[
        _Texts,
        _listed(
            "bytes of tf.io.serialize_tensor to a tensor",
            metavar="FEATURE[=DTYPE[SHAPE]]",
            common=True,
        ),
    ]
    decode_raw: DecodeRawOption
    reshape: ReshapeOption
    pad: PadOption
    pad_or_cut: Annotated[
        _Texts, _listed("the same, but a longer one loses its end", metavar="FEATURE=LENGTH:VALUE")
    ]
    ragged: RaggedOption
    class_names: ClassNamesOption
    schema: Annotated[option.SchemaOption, {"group": "what the records hold"}]
    max_rejects: Annotated[option.MaxRejectsOption, {"group": "what the records hold"}]
    memory: option.MemoryOption
    threads: option.ThreadsOption
    storage_requests: option.StorageRequestsOption
    runner: Annotated[
        option.RunnerOption,
        {"default_text": "threads of this process, without Beam", "excludes": (("dry_run", None),)},
    ]
    beam_args: Annotated[option.BeamArgsOption, {"needs": ("runner",)}]
    preflight: option.PreflightOption


class _ReadShell(TypedDict, total=False):
    quiet: option.QuietOption
    json: Annotated[
        option.JsonOption, {"help": "print a machine-readable result on stdout", "group": "the run"}
    ]


class OpenKeywords(TypedDict, total=False):
    """The options of `recordmill.open`."""

    split: option.SplitOption
    columns: option.ColumnsOption
    schema: option.SchemaOption
    threads: option.ThreadsOption
    infer_from: InferFromOption
    where: WhereOption
    cache: CacheOption
    cache_bytes: CacheBytesOption
    storage_requests: option.StorageRequestsOption
    decode_raw: DecodeRawOption
    reshape: ReshapeOption
    pad: PadOption
    ragged: RaggedOption
    decode_images: Annotated[
        Any, _conversion("the size and form of decoded images: (H, W), True, or `Images(...)`")
    ]
    class_names: ClassNamesOption


class HeadKeywords(TypedDict, total=False):
    """The options of `recordmill head`."""

    n: Annotated[
        int | None,
        _look("how many records", default_text="5; 1 with --at", flag="-n", shell_only=True),
    ]
    at: Annotated[
        int | None,
        _look(
            "begin with record I; negative numbers count from the end", metavar="I", shell_only=True
        ),
    ]
    split: option.SplitOption
    columns: option.ColumnsOption
    storage_requests: option.StorageRequestsOption


class InspectKeywords(TypedDict, total=False):
    """The options of `recordmill inspect`."""

    split: option.SplitOption
    infer_from: InferFromOption
    schema: option.SchemaOption
    max_rejects: Annotated[
        option.MaxRejectsOption,
        {
            "help": "how many records may be damaged; they are counted and left out",
            "group": option.LOOK_GROUP,
        },
    ]
    emit: Annotated[
        Literal["schema", "parse-spec", "reader"] | None,
        _report("print this, to go on with, instead of the report", shell_only=True),
    ]
    json: option.JsonOption
    threads: option.ThreadsOption
    storage_requests: option.StorageRequestsOption
    quiet: option.QuietOption


class StatsKeywords(TypedDict, total=False):
    """The options of `recordmill stats`."""

    split: option.SplitOption
    columns: option.ColumnsOption
    schema: option.SchemaOption
    recount: RecountOption
    max_rejects: Annotated[
        option.MaxRejectsOption,
        {"help": "how many records of raw data may be unusable", "group": option.LOOK_GROUP},
    ]
    out: Annotated[
        str | os.PathLike[str] | None,
        _report(
            "a file for them, as TensorFlow Data Validation reads it", metavar="FILE", short="-o"
        ),
    ]
    overwrite: Annotated[
        option.OverwriteOption, {"help": "replace FILE", "group": option.REPORT_GROUP}
    ]
    json: Annotated[option.JsonOption, {"help": "print them as JSON"}]
    threads: option.ThreadsOption
    storage_requests: option.StorageRequestsOption
    quiet: option.QuietOption


class CheckKeywords(TypedDict, total=False):
    """The options of `recordmill check`."""

    against: Annotated[
        Any,
        _check(
            "another data set, its statistics.pb, a schema.pbtxt, or rules (.yaml); may be given several times; "
            "without, its splits are compared, and records that stand there twice looked for",
            (),
            form=option.REPEATED_FORM,
            metavar="OTHER",
        ),
    ]
    recount: Annotated[
        bool, _check("read the records of data sets that were built without statistics, too", False)
    ]
    memory: Annotated[
        option.MemoryOption,
        {"help": "what digests of records may take; more lie in files", "group": "the check"},
    ]
    threads: option.ThreadsOption
    storage_requests: option.StorageRequestsOption
    quiet: Annotated[
        option.QuietOption,
        {"help": "no progress and no summary, only what is wrong", "group": option.REPORT_GROUP},
    ]
    json: Annotated[option.JsonOption, {"help": "print what is wrong as JSON"}]


class ReportKeywords(TypedDict, total=False):
    """The options of `recordmill report`."""

    split: option.SplitOption
    columns: option.ColumnsOption
    schema: option.SchemaOption
    out: Annotated[
        str | os.PathLike[str] | None,
        _report("the HTML file", default_text="report.html", metavar="FILE", short="-o"),
    ]
    overwrite: Annotated[
        option.OverwriteOption, {"help": "replace FILE", "group": option.REPORT_GROUP}
    ]
    threads: option.ThreadsOption
    storage_requests: option.StorageRequestsOption
    quiet: option.QuietOption


class BenchKeywords(TypedDict, total=False):
    """The options of `recordmill bench`."""

    split: option.SplitOption
    columns: option.ColumnsOption
    where: Annotated[WhereOption, {"group": option.LOOK_GROUP}]
    schema: option.SchemaOption
    batch_size: Annotated[int, _batches("records of a batch", 256)]
    shuffle: Annotated[
        Literal["none", "window", "global"],
        _batches("forwards, mixed among what is read together, or every record anywhere", "window"),
    ]
    consumer: Annotated[
        Literal["numpy", "tf", "torch"],
        _batches("what they are: of `batches`, `to_tf` or `to_torch`", "numpy", flag="--as"),
    ]
    image_size: Annotated[
        str | None,
        _batches(
            "decode images at this size in pixels, as `open(..., decode_images=(H, W))`",
            metavar="HxW",
        ),
    ]
    memory_bytes: Annotated[str, _batches("what may be read ahead", "512MiB", metavar="SIZE")]
    seconds: Annotated[
        float,
        _batches(
            "how long to take batches; an epoch at the most",
            5.0,
            metavar="S",
            group=option.RUN_GROUP,
        ),
    ]
    cache: CacheOption
    cache_bytes: CacheBytesOption
    threads: option.ThreadsOption
    storage_requests: option.StorageRequestsOption
    json: Annotated[option.JsonOption, {"group": option.RUN_GROUP}]


class VerifyKeywords(TypedDict, total=False):
    """The options of `recordmill verify`."""

    mend: Annotated[
        bool,
        _check(
            "write the files that follow from the manifest anew where they differ from it", False
        ),
    ]
    threads: option.ThreadsOption
    storage_requests: option.StorageRequestsOption
    quiet: Annotated[
        option.QuietOption,
        {"help": "no progress and no summary, only what is wrong", "group": option.REPORT_GROUP},
    ]
    json: Annotated[option.JsonOption, {"help": "print the findings as JSON"}]


class DoctorKeywords(TypedDict, total=False):
    """The options of `recordmill doctor`."""

    runner: Annotated[option.RunnerOption, {"group": "what is looked at", "common": True}]
    beam_args: option.BeamArgsOption
    out: Annotated[
        str | None,
        option.Option(
            "the folder of a data set to be",
            metavar="OUT",
            short="-o",
            group="what is looked at",
            common=True,
        ),
    ]
    overwrite: Annotated[
        option.OverwriteOption, {"help": "OUT may hold a data set", "group": "what is looked at"}
    ]
    storage_requests: option.StorageRequestsOption
    json: option.JsonOption


class StatusKeywords(TypedDict, total=False):
    """The options of `recordmill status`."""

    storage_requests: Annotated[option.StorageRequestsOption, {"group": option.REPORT_GROUP}]
    json: option.JsonOption


class CleanKeywords(TypedDict, total=False):
    """The options of `recordmill clean`."""

    remove: Annotated[
        bool, option.Option("remove what is listed", False, group="the work", common=True)
    ]
    storage_requests: Annotated[option.StorageRequestsOption, {"group": "the work"}]
    json: Annotated[option.JsonOption, {"group": "the work"}]


# The options of each command, and of `recordmill.open`.
READ_COMMANDS: Mapping[str, option.Options] = {
    "read": option.declared_options(_ReadOut, ReadKeywords, _ReadShell),
    "head": option.declared_options(HeadKeywords),
    "inspect": option.declared_options(InspectKeywords),
    "stats": option.declared_options(StatsKeywords),
    "check": option.declared_options(CheckKeywords),
    "report": option.declared_options(ReportKeywords),
    "bench": option.declared_options(BenchKeywords),
    "verify": option.declared_options(VerifyKeywords),
    "doctor": option.declared_options(DoctorKeywords),
    "status": option.declared_options(StatusKeywords),
    "clean": option.declared_options(CleanKeywords),
    "open": option.declared_options(OpenKeywords),
}
