"""The options of `read`, of `recordmill.open`, and of commands that inspect data.

These commands are `head`, `inspect`, `stats`, `check`, `report`, `bench`, `verify`, `doctor`,
`status` and `clean`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from recordmill.base.sizes import parse_size
from recordmill.options.declare import (
    LOOK_HEADING,
    REPORT_HEADING,
    RUN_HEADING,
    Options,
    again,
    declare,
)
from recordmill.options.parsers import parse_whole
from recordmill.options.shared import Shared

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from recordmill.schemas.feature import Schema


class ReadOutput(Options, heading="the output", decides=True):
    """Options of the output."""

    out: str | None = declare(
        "the folder for the result (needed unless --dry-run)",
        default=None,
        decides=False,
        common=True,
        shell_only=True,
        metavar="OUT",
        short="-o",
    )
    dry_run: bool = declare(
        "say rows, columns, disk and memory; write nothing",
        default=False,
        decides=False,
        common=True,
        shell_only=True,
    )
    to: Literal["parquet", "npy", "npz", "arrow", "jsonl", "csv", "files"] = declare(
        "the format", default="parquet", common=True
    )
    overwrite: bool = again(Shared, heading="the output", help="replace the result that OUT holds")
    file_size: int = declare(
        "shards' bytes per Parquet or Arrow file",
        default="512MiB",
        parse=parse_size,
        metavar="SIZE",
    )
    row_group_rows: int | None = declare(
        "rows of a Parquet row group",
        default=None,
        default_text="as many as --row-group-size holds",
        outputs=("parquet",),
    )
    row_group_size: str | int = declare(
        "a row group's Arrow memory, at most 64MiB",
        default="64MiB",
        outputs=("parquet",),
        metavar="SIZE",
    )
    compression: str = declare(
        "of Parquet: zstd (level 1), gzip, snappy, none; with a level as in zstd:9",
        default="zstd",
        outputs=("parquet",),
        metavar="CODEC[:LEVEL]",
    )
    file_feature: str | None = declare(
        "of --to files: the bytes or text that become the files",
        default=None,
        outputs=("files",),
        metavar="NAME",
    )
    name_feature: str | None = declare(
        "of --to files: the text or whole number that names them ('' for the record's number)",
        default=None,
        outputs=("files",),
        metavar="NAME",
    )


class ReadSelection(Options, heading="which records", decides=True):
    """Options that select records and features."""

    columns: str | Sequence[str] | None = again(Shared, heading="which records")
    split: str | None = again(Shared, heading="which records")
    limit: int | None = declare(
        "the first N records of each split (of those left by --where and --sample)",
        default=None,
        parse=parse_whole,
        common=True,
    )
    where: str | pc.Expression | None = again(Shared)
    sample: float | None = declare(
        "a random share of the records, from 0 to 1; the same for the same --seed",
        default=None,
        metavar="P",
        common=True,
    )
    seed: int = declare("of --sample", default=0, parse=parse_whole, needs=(("sample", None),))


class ReadConversions(
    Options,
    heading="conversions (each may be given for several features; done in this order)",
    decides=True,
):
    """Options of conversions."""

    decode_images: bool | str | Sequence[str] | None = declare(
        "encoded images to uint8 [height, width, channels]; without names all features that hold them",
        default=None,
        metavar="A,B,...",
        common=True,
    )
    resize: str | tuple[int, int] | None = declare(
        "bring the images to one size (bilinear, antialiased)",
        default=None,
        metavar="HxW",
        common=True,
        needs=(("decode_images", None),),
    )
    channels: int | None = declare(
        "1 gray, 3 RGB or 4 RGBA", default=None, default_text="3", needs=(("decode_images", None),)
    )
    decode_tensor: str | Sequence[str] | None = declare(
        "bytes of tf.io.serialize_tensor to a tensor",
        default=None,
        repeated=True,
        metavar="FEATURE[=DTYPE[SHAPE]]",
        common=True,
    )
    decode_raw: str | Sequence[str] | None = again(Shared)
    reshape: str | Sequence[str] | None = again(Shared)
    pad: str | Sequence[str] | None = again(Shared)
    pad_or_cut: str | Sequence[str] | None = declare(
        "the same, but a longer one loses its end",
        default=None,
        repeated=True,
        metavar="FEATURE=LENGTH:VALUE",
    )
    ragged: str | Sequence[str] | None = again(Shared)
    class_names: bool = again(Shared)


class ReadSchemas(Options, heading="what the records hold"):
    """Options of the contents of records."""

    schema: Schema | str | os.PathLike[str] | None = again(Shared, heading="what the records hold")
    max_rejects: str | int = again(Shared, heading="what the records hold")


class ReadRunOptions(Options, heading=RUN_HEADING):
    """Options of the run."""

    memory: int = again(Shared)
    threads: int | None = again(Shared)
    storage_requests: int | None = again(Shared)
    runner: str | None = again(
        Shared, default_text="threads of this process, without Beam", excludes=(("dry_run", None),)
    )
    beam_args: Sequence[str] = again(Shared, needs=(("runner", None),))
    preflight: bool = again(Shared)
    quiet: bool = again(Shared)
    json: bool = again(Shared, heading="the run", help="print a machine-readable result on stdout")


class OpenOptions(Options):
    """The options of `recordmill.open`."""

    split: str | None = again(Shared)
    columns: str | Sequence[str] | None = again(Shared)
    schema: Schema | str | os.PathLike[str] | None = again(Shared)
    threads: int | None = again(Shared)
    infer_from: str | int | None = again(Shared)
    where: str | pc.Expression | None = again(Shared)
    cache: str | os.PathLike[str] | None = again(Shared)
    cache_bytes: str | int = again(Shared)
    storage_requests: int | None = again(Shared)
    decode_raw: str | Sequence[str] | None = again(Shared)
    reshape: str | Sequence[str] | None = again(Shared)
    pad: str | Sequence[str] | None = again(Shared)
    ragged: str | Sequence[str] | None = again(Shared)
    decode_images: Any = declare(
        "the size and form of decoded images: (H, W), True, or `Images(...)`",
        default=None,
        heading="conversions (each may be given for several features; done in this order)",
        decides=True,
    )
    class_names: bool = again(Shared)


class HeadOptions(Options, heading=LOOK_HEADING, common=True):
    """The options of `recordmill head`."""

    n: int | None = declare(
        "how many records", default=None, default_text="5; 1 with --at", flag="-n", shell_only=True
    )
    at: int | None = declare(
        "begin with record I; negative numbers count from the end",
        default=None,
        metavar="I",
        shell_only=True,
    )
    split: str | None = again(Shared)
    columns: str | Sequence[str] | None = again(Shared)
    storage_requests: int | None = again(Shared)


class InspectOptions(Options, heading=REPORT_HEADING, common=True):
    """The options of `recordmill inspect`."""

    split: str | None = again(Shared)
    infer_from: str | int | None = again(Shared)
    schema: Schema | str | os.PathLike[str] | None = again(Shared)
    max_rejects: str | int = again(
        Shared,
        heading=LOOK_HEADING,
        help="how many records may be damaged; they are counted and left out",
    )
    emit: Literal["schema", "parse-spec", "reader"] | None = declare(
        "print this, to go on with, instead of the report", default=None, shell_only=True
    )
    json: bool = again(Shared)
    threads: int | None = again(Shared)
    storage_requests: int | None = again(Shared)
    quiet: bool = again(Shared)


class StatsOptions(Options, heading=REPORT_HEADING, common=True):
    """The options of `recordmill stats`."""

    split: str | None = again(Shared)
    columns: str | Sequence[str] | None = again(Shared)
    schema: Schema | str | os.PathLike[str] | None = again(Shared)
    recount: bool = again(Shared)
    max_rejects: str | int = again(
        Shared, heading=LOOK_HEADING, help="how many records of raw data may be unusable"
    )
    out: str | os.PathLike[str] | None = declare(
        "a file for them, as TensorFlow Data Validation reads it",
        default=None,
        metavar="FILE",
        short="-o",
    )
    overwrite: bool = again(Shared, heading=REPORT_HEADING, help="replace FILE")
    json: bool = again(Shared, help="print them as JSON")
    threads: int | None = again(Shared)
    storage_requests: int | None = again(Shared)
    quiet: bool = again(Shared)


class CheckOptions(Options, heading="the check", common=True):
    """The options of `recordmill check`."""

    against: Any = declare(
        "another data set, its statistics.pb, a schema.pbtxt, or rules (.yaml); may be given several times; without, its splits are compared, and records that stand there twice looked for",
        default=(),
        repeated=True,
        metavar="OTHER",
    )
    recount: bool = declare(
        "read the records of data sets that were built without statistics, too", default=False
    )
    memory: int = again(
        Shared, heading="the check", help="what digests of records may take; more lie in files"
    )
    threads: int | None = again(Shared)
    storage_requests: int | None = again(Shared)
    quiet: bool = again(
        Shared, heading=REPORT_HEADING, help="no progress and no summary, only what is wrong"
    )
    json: bool = again(Shared, help="print what is wrong as JSON")


class ReportOptions(Options, heading=REPORT_HEADING, common=True):
    """The options of `recordmill report`."""

    split: str | None = again(Shared)
    columns: str | Sequence[str] | None = again(Shared)
    schema: Schema | str | os.PathLike[str] | None = again(Shared)
    out: str | os.PathLike[str] | None = declare(
        "the HTML file", default=None, default_text="report.html", metavar="FILE", short="-o"
    )
    overwrite: bool = again(Shared, heading=REPORT_HEADING, help="replace FILE")
    threads: int | None = again(Shared)
    storage_requests: int | None = again(Shared)
    quiet: bool = again(Shared)


class BenchOptions(Options, heading="the batches", common=True, shell_only=True):
    """The options of `recordmill bench`."""

    split: str | None = again(Shared)
    columns: str | Sequence[str] | None = again(Shared)
    where: str | pc.Expression | None = again(Shared, heading=LOOK_HEADING)
    schema: Schema | str | os.PathLike[str] | None = again(Shared)
    batch_size: int = declare("records of a batch", default=256)
    shuffle: Literal["none", "window", "global"] = declare(
        "forwards, mixed among what is read together, or every record anywhere", default="window"
    )
    consumer: Literal["numpy", "tf", "torch"] = declare(
        "what they are: of `batches`, `to_tf` or `to_torch`", default="numpy", flag="--as"
    )
    image_size: str | None = declare(
        "decode images at this size in pixels, as `open(..., decode_images=(H, W))`",
        default=None,
        metavar="HxW",
    )
    memory_bytes: str = declare("what may be read ahead", default="512MiB", metavar="SIZE")
    seconds: float = declare(
        "how long to take batches; an epoch at the most",
        default=5.0,
        heading=RUN_HEADING,
        metavar="S",
    )
    cache: str | os.PathLike[str] | None = again(Shared)
    cache_bytes: str | int = again(Shared)
    threads: int | None = again(Shared)
    storage_requests: int | None = again(Shared)
    json: bool = again(Shared, heading=RUN_HEADING)


class VerifyOptions(Options, heading="the check", common=True):
    """The options of `recordmill verify`."""

    mend: bool = declare(
        "write the files that follow from the manifest anew where they differ from it",
        default=False,
    )
    threads: int | None = again(Shared)
    storage_requests: int | None = again(Shared)
    quiet: bool = again(
        Shared, heading=REPORT_HEADING, help="no progress and no summary, only what is wrong"
    )
    json: bool = again(Shared, help="print the findings as JSON")


class DoctorOptions(Options, heading="what is looked at", common=True):
    """The options of `recordmill doctor`."""

    runner: str | None = again(Shared, heading="what is looked at", common=True)
    beam_args: Sequence[str] = again(Shared)
    out: str | None = declare(
        "the folder of a data set to be", default=None, metavar="OUT", short="-o"
    )
    overwrite: bool = again(Shared, heading="what is looked at", help="OUT may hold a data set")
    storage_requests: int | None = again(Shared)
    json: bool = again(Shared)


class StatusOptions(Options):
    """The options of `recordmill status`."""

    storage_requests: int | None = again(Shared, heading=REPORT_HEADING)
    json: bool = again(Shared)


class CleanOptions(Options, heading="the work", common=True):
    """The options of `recordmill clean`."""

    remove: bool = declare("remove what is listed", default=False)
    storage_requests: int | None = again(Shared, heading="the work")
    json: bool = again(Shared, heading="the work")
