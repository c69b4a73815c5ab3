"""The options of what looks at records and files: `head`, `inspect`, `stats`, `check`, `bench`, `verify`, `doctor`,
`status`, `clean`, `recordmill.open`.
"""

from __future__ import annotations

from recordmill.options.option import (
    BEAM_ARGS,
    COLUMNS_OPTION,
    JSON,
    MAX_REJECTS,
    MEMORY,
    NUMBER,
    OVERWRITE,
    QUIET,
    REPEATED,
    RUNNER,
    SCHEMA_OPTION,
    SIZE_FORM,
    SPLIT_OPTION,
    STORAGE_REQUESTS,
    SWITCH,
    THREADS,
    WHOLE_FORM,
    Option,
    Options,
    grouped,
)
from recordmill.options.read import DECODE_RAW, RESHAPE, WHERE

CHOICE_GROUP = "what to look at"

INFER_FROM = Option(
    "infer_from",
    "look at N records only, the first ones of each file, or at N whole files",
    default_text="all",
    metavar="N|Nfiles",
    annotation="str | int",
    group=CHOICE_GROUP,
    common=True,
    excludes=(("schema", None),),
)
CACHE = Option(
    "cache",
    "a folder of this machine in which blocks that are read from a store are kept; processes may share it",
    metavar="DIR",
    annotation="str | os.PathLike[str]",
    group="stores",
)
CACHE_BYTES = Option(
    "cache_bytes", "at most so much of them", form=SIZE_FORM, default="10GiB", metavar="SIZE", group="stores"
)
OPEN: Options = (
    SPLIT_OPTION,
    COLUMNS_OPTION,
    SCHEMA_OPTION,
    THREADS,
    INFER_FROM,
    WHERE,
    CACHE,
    CACHE_BYTES,
    STORAGE_REQUESTS,
    DECODE_RAW,
    RESHAPE,
)
HEAD: Options = (
    Option(
        "n",
        "how many records",
        form=WHOLE_FORM,
        default_text="5; 1 with --at",
        metavar="N",
        group=CHOICE_GROUP,
        common=True,
        shell_only=True,
    ),
    Option(
        "at",
        "begin with record I; negative numbers count from the end",
        form=WHOLE_FORM,
        metavar="I",
        group=CHOICE_GROUP,
        common=True,
        shell_only=True,
    ),
    grouped(SPLIT_OPTION, CHOICE_GROUP),
    grouped(COLUMNS_OPTION, CHOICE_GROUP),
    STORAGE_REQUESTS,
)
INSPECT: Options = (
    grouped(SPLIT_OPTION, CHOICE_GROUP),
    INFER_FROM,
    grouped(SCHEMA_OPTION, CHOICE_GROUP),
    grouped(MAX_REJECTS, CHOICE_GROUP, help="how many records may be damaged; they are counted and left out"),
    Option(
        "emit",
        "print this, to go on with, instead of the report",
        choices=("schema", "parse-spec", "reader"),
        group="the report",
        common=True,
        shell_only=True,
    ),
    grouped(JSON, "the report", help="print it as JSON"),
    THREADS,
    STORAGE_REQUESTS,
    QUIET,
)
STATS: Options = (
    grouped(SPLIT_OPTION, CHOICE_GROUP),
    grouped(COLUMNS_OPTION, CHOICE_GROUP),
    grouped(SCHEMA_OPTION, CHOICE_GROUP),
    Option(
        "recount",
        "read the records, also where the build has counted them",
        form=SWITCH,
        default=False,
        group=CHOICE_GROUP,
        common=True,
    ),
    grouped(MAX_REJECTS, CHOICE_GROUP, help="how many records of raw data may be unusable"),
    Option(
        "out",
        "a file for them, as TensorFlow Data Validation reads it",
        short="-o",
        metavar="FILE",
        annotation="str | os.PathLike[str]",
        group="the report",
        common=True,
    ),
    grouped(OVERWRITE, "the report", help="replace FILE"),
    grouped(JSON, "the report", help="print them as JSON"),
    THREADS,
    STORAGE_REQUESTS,
    QUIET,
)
RECOUNT = next(option for option in STATS if option.name == "recount")
CHECK_OPTIONS: Options = (
    Option(
        "against",
        "another data set, its statistics.pb, a schema.pbtxt, or rules (.yaml); may be given several times; without, "
        "its splits are compared, and records that stand there twice looked for",
        form=REPEATED,
        default=(),
        metavar="OTHER",
        annotation="Any",
        group="the check",
        common=True,
    ),
    grouped(RECOUNT, "the check", help="read the records of data sets that were built without statistics, too"),
    grouped(MEMORY, "the check", help="what digests of records may take; more lie in files"),
    THREADS,
    STORAGE_REQUESTS,
    grouped(QUIET, "the report", help="no progress and no summary, only what is wrong"),
    grouped(JSON, "the report", help="print what is wrong as JSON"),
)
REPORT_OPTIONS: Options = (
    grouped(SPLIT_OPTION, CHOICE_GROUP),
    grouped(COLUMNS_OPTION, CHOICE_GROUP),
    grouped(SCHEMA_OPTION, CHOICE_GROUP),
    Option(
        "out",
        "the HTML file",
        default_text="report.html",
        short="-o",
        metavar="FILE",
        annotation="str | os.PathLike[str]",
        group="the report",
        common=True,
    ),
    grouped(OVERWRITE, "the report", help="replace FILE"),
    THREADS,
    STORAGE_REQUESTS,
    QUIET,
)
BENCH: Options = (
    grouped(SPLIT_OPTION, CHOICE_GROUP),
    grouped(COLUMNS_OPTION, CHOICE_GROUP),
    grouped(WHERE, CHOICE_GROUP),
    grouped(SCHEMA_OPTION, CHOICE_GROUP),
    Option(
        "batch_size",
        "records of a batch",
        form=WHOLE_FORM,
        default=256,
        metavar="N",
        group="the batches",
        common=True,
        shell_only=True,
    ),
    Option(
        "shuffle",
        "their order: forwards, mixed among what is read together, or every record anywhere",
        default="window",
        choices=("none", "window", "global"),
        group="the batches",
        common=True,
        shell_only=True,
    ),
    Option(
        "consumer",
        "what they are: NumPy arrays (`batches`), TensorFlow's tensors (`to_tf`) or PyTorch's (`to_torch`)",
        default="numpy",
        choices=("numpy", "tf", "torch"),
        group="the batches",
        common=True,
        shell_only=True,
    ),
    Option(
        "image_size",
        "decode encoded images at this size in pixels, as `open(..., decode_images=(H, W))` does",
        metavar="HxW",
        group="the batches",
        common=True,
        shell_only=True,
    ),
    Option(
        "memory_bytes",
        "what may be read ahead",
        form=SIZE_FORM,
        default="512MiB",
        metavar="SIZE",
        group="the batches",
        common=True,
        shell_only=True,
    ),
    Option(
        "seconds",
        "how long to take batches; an epoch at the most",
        form=NUMBER,
        default=5.0,
        metavar="S",
        group="the run",
        common=True,
        shell_only=True,
    ),
    CACHE,
    CACHE_BYTES,
    THREADS,
    STORAGE_REQUESTS,
    grouped(JSON, "the run", help="print it as JSON"),
)
VERIFY: Options = (
    Option(
        "mend",
        "write manifest.json and schema.pbtxt anew where they differ from the manifest",
        form=SWITCH,
        default=False,
        group="the check",
        common=True,
    ),
    THREADS,
    STORAGE_REQUESTS,
    grouped(QUIET, "the report", help="no progress and no summary, only what is wrong"),
    grouped(JSON, "the report", help="print the findings as JSON"),
)
STATUS: Options = (grouped(STORAGE_REQUESTS, "the report"), grouped(JSON, "the report", help="print it as JSON"))
_LOOK = "what is looked at"
DOCTOR: Options = (
    grouped(RUNNER, _LOOK, common=True),
    BEAM_ARGS,
    Option("out", "the folder of a data set to be", short="-o", metavar="OUT", group=_LOOK, common=True),
    grouped(OVERWRITE, _LOOK, help="OUT may hold a data set"),
    STORAGE_REQUESTS,
    grouped(JSON, "the report", help="print it as JSON"),
)
CLEAN: Options = (
    Option(
        "remove",
        "remove what is listed",
        form=SWITCH,
        default=False,
        group="the work",
        common=True,
    ),
    grouped(STORAGE_REQUESTS, "the work"),
    grouped(JSON, "the work", help="print it as JSON"),
)
