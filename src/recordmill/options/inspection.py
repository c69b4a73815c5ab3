"""The options of what looks at records and files: `head`, `inspect`, `stats`, `check`, `bench`, `verify`, `doctor`,
`status`, `clean`, `recordmill.open`.
"""

import os
from functools import partial
from typing import Annotated, Any, Literal, TypedDict

from recordmill.options.option import (
    LOOK,
    REPEATED,
    REPORT,
    RUN,
    BeamArgsOption,
    ColumnsOption,
    JsonOption,
    MaxRejectsOption,
    MemoryOption,
    Option,
    Options,
    OverwriteOption,
    QuietOption,
    RunnerOption,
    SchemaOption,
    SplitOption,
    StorageRequestsOption,
    ThreadsOption,
    declared_options,
)
from recordmill.options.read import DecodeRawOption, ReshapeOption, WhereOption

_choice = partial(Option, group=LOOK, common=True)
_report = partial(Option, group=REPORT, common=True)
_check = partial(Option, group="the check", common=True)
_stores = partial(Option, group="stores")
_batches = partial(Option, group="the batches", common=True, shell_only=True)

InferFromOption = Annotated[
    str | int | None,
    _choice(
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
RecountOption = Annotated[bool, _choice("read the records, also where the build has counted them", False)]


class OpenKeywords(TypedDict, total=False):
    """The options of `recordmill open`."""

    split: SplitOption
    columns: ColumnsOption
    schema: SchemaOption
    threads: ThreadsOption
    infer_from: InferFromOption
    where: WhereOption
    cache: CacheOption
    cache_bytes: CacheBytesOption
    storage_requests: StorageRequestsOption
    decode_raw: DecodeRawOption
    reshape: ReshapeOption


class HeadKeywords(TypedDict, total=False):
    """The options of `recordmill head`."""

    n: Annotated[int | None, _choice("how many records", default_text="5; 1 with --at", flag="-n", shell_only=True)]
    at: Annotated[
        int | None, _choice("begin with record I; negative numbers count from the end", metavar="I", shell_only=True)
    ]
    split: SplitOption
    columns: ColumnsOption
    storage_requests: StorageRequestsOption


class InspectKeywords(TypedDict, total=False):
    """The options of `recordmill inspect`."""

    split: SplitOption
    infer_from: InferFromOption
    schema: SchemaOption
    max_rejects: Annotated[
        MaxRejectsOption,
        {"help": "how many records may be damaged; they are counted and left out", "group": LOOK},
    ]
    emit: Annotated[
        Literal["schema", "parse-spec", "reader"] | None,
        _report("print this, to go on with, instead of the report", shell_only=True),
    ]
    json: JsonOption
    threads: ThreadsOption
    storage_requests: StorageRequestsOption
    quiet: QuietOption


class StatsKeywords(TypedDict, total=False):
    """The options of `recordmill stats`."""

    split: SplitOption
    columns: ColumnsOption
    schema: SchemaOption
    recount: RecountOption
    max_rejects: Annotated[MaxRejectsOption, {"help": "how many records of raw data may be unusable", "group": LOOK}]
    out: Annotated[
        str | os.PathLike[str] | None,
        _report("a file for them, as TensorFlow Data Validation reads it", metavar="FILE", short="-o"),
    ]
    overwrite: Annotated[OverwriteOption, {"help": "replace FILE", "group": REPORT}]
    json: Annotated[JsonOption, {"help": "print them as JSON"}]
    threads: ThreadsOption
    storage_requests: StorageRequestsOption
    quiet: QuietOption


class CheckKeywords(TypedDict, total=False):
    """The options of `recordmill check`."""

    against: Annotated[
        Any,
        _check(
            "another data set, its statistics.pb, a schema.pbtxt, or rules (.yaml); may be given several times; "
            "without, its splits are compared, and records that stand there twice looked for",
            (),
            form=REPEATED,
            metavar="OTHER",
        ),
    ]
    recount: Annotated[bool, _check("read the records of data sets that were built without statistics, too", False)]
    memory: Annotated[
        MemoryOption, {"help": "what digests of records may take; more lie in files", "group": "the check"}
    ]
    threads: ThreadsOption
    storage_requests: StorageRequestsOption
    quiet: Annotated[QuietOption, {"help": "no progress and no summary, only what is wrong", "group": REPORT}]
    json: Annotated[JsonOption, {"help": "print what is wrong as JSON"}]


class ReportKeywords(TypedDict, total=False):
    """The options of `recordmill report`."""

    split: SplitOption
    columns: ColumnsOption
    schema: SchemaOption
    out: Annotated[
        str | os.PathLike[str] | None,
        _report("the HTML file", default_text="report.html", metavar="FILE", short="-o"),
    ]
    overwrite: Annotated[OverwriteOption, {"help": "replace FILE", "group": REPORT}]
    threads: ThreadsOption
    storage_requests: StorageRequestsOption
    quiet: QuietOption


class BenchKeywords(TypedDict, total=False):
    """The options of `recordmill bench`."""

    split: SplitOption
    columns: ColumnsOption
    where: Annotated[WhereOption, {"group": LOOK}]
    schema: SchemaOption
    batch_size: Annotated[int, _batches("records of a batch", 256)]
    shuffle: Annotated[
        Literal["none", "window", "global"],
        _batches(
            "their order: forwards, mixed among what is read together, or every record anywhere", "window", common=True
        ),
    ]
    consumer: Annotated[
        Literal["numpy", "tf", "torch"],
        _batches(
            "what they are: NumPy arrays (`batches`), TensorFlow's tensors (`to_tf`) or PyTorch's (`to_torch`)",
            "numpy",
            flag="--as",
        ),
    ]
    image_size: Annotated[
        str | None,
        _batches(
            "decode encoded images at this size in pixels, as `open(..., decode_images=(H, W))` does",
            metavar="HxW",
        ),
    ]
    memory_bytes: Annotated[str, _batches("what may be read ahead", "512MiB", metavar="SIZE")]
    seconds: Annotated[float, _batches("how long to take batches; an epoch at the most", 5.0, metavar="S", group=RUN)]
    cache: CacheOption
    cache_bytes: CacheBytesOption
    threads: ThreadsOption
    storage_requests: StorageRequestsOption
    json: Annotated[JsonOption, {"group": RUN}]


class VerifyKeywords(TypedDict, total=False):
    """The options of `recordmill verify`."""

    mend: Annotated[
        bool,
        _check("write the files that follow from the manifest anew where they differ from it", False),
    ]
    threads: ThreadsOption
    storage_requests: StorageRequestsOption
    quiet: Annotated[QuietOption, {"help": "no progress and no summary, only what is wrong", "group": REPORT}]
    json: Annotated[JsonOption, {"help": "print the findings as JSON"}]


class DoctorKeywords(TypedDict, total=False):
    """The options of `recordmill doctor`."""

    runner: Annotated[RunnerOption, {"group": "what is looked at", "common": True}]
    beam_args: BeamArgsOption
    out: Annotated[
        str | None,
        Option("the folder of a data set to be", metavar="OUT", short="-o", group="what is looked at", common=True),
    ]
    overwrite: Annotated[OverwriteOption, {"help": "OUT may hold a data set", "group": "what is looked at"}]
    storage_requests: StorageRequestsOption
    json: JsonOption


class StatusKeywords(TypedDict, total=False):
    """The options of `recordmill status`."""

    storage_requests: Annotated[StorageRequestsOption, {"group": REPORT}]
    json: JsonOption


class CleanKeywords(TypedDict, total=False):
    """The options of `recordmill clean`."""

    remove: Annotated[bool, Option("remove what is listed", False, group="the work", common=True)]
    storage_requests: Annotated[StorageRequestsOption, {"group": "the work"}]
    json: Annotated[JsonOption, {"group": "the work"}]


OPEN: Options = declared_options(OpenKeywords)
HEAD: Options = declared_options(HeadKeywords)
INSPECT: Options = declared_options(InspectKeywords)
STATS: Options = declared_options(StatsKeywords)
CHECK_OPTIONS: Options = declared_options(CheckKeywords)
REPORT_OPTIONS: Options = declared_options(ReportKeywords)
BENCH: Options = declared_options(BenchKeywords)
VERIFY: Options = declared_options(VerifyKeywords)
DOCTOR: Options = declared_options(DoctorKeywords)
STATUS: Options = declared_options(StatusKeywords)
CLEAN: Options = declared_options(CleanKeywords)
