"""Options of `read`, and of commands that inspect data.

These commands are `head`, `inspect`, `stats`, `check`, `report`, `bench`, `verify`, `doctor`,
`status` and `clean`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import parse_size, size_in_bytes
from recordmill.options.declare import (
    LOOK_HEADING,
    REPORT_HEADING,
    RUN_HEADING,
    Options,
    declare,
    redeclare,
)
from recordmill.options.parsers import SHUFFLE_MODES, parse_columns, parse_whole
from recordmill.options.shared import BATCH_SIZE, Shared

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from recordmill.schemas.feature import Schema


class ReadOutput(Options, heading="the output", decides=True):
    """Options for the format and the files of the output."""

    out: str | None = declare(
        "folder for the result (required unless --dry-run)",
        default=None,
        decides=False,
        common=True,
        shell_only=True,
        metavar="OUT",
        short="-o",
    )
    dry_run: bool = declare(
        "show rows, columns, disk space and memory, and write nothing",
        default=False,
        decides=False,
        common=True,
        shell_only=True,
    )
    to: Literal["parquet", "npy", "npz", "arrow", "jsonl", "csv", "files"] = declare(
        "output format", default="parquet", common=True
    )
    overwrite: bool = redeclare(Shared, heading="the output", help="replace the result in OUT")
    file_size: int = declare(
        "bytes of shards that become one Parquet or Arrow file",
        # This size makes few files, but enough of them for many cores.
        default="512MiB",
        parse=parse_size,
        metavar="SIZE",
    )

    def __post_init__(self) -> None:
        if self.file_size < 1:
            raise UsageError(
                "{file_size}: must be at least 1 byte",
                file_size=option("file_size", self.file_size),
            )


class ReadSelection(Options, heading="which records", decides=True):
    """Options that select records and features."""

    columns: tuple[str, ...] | None = redeclare(
        Shared, parse=parse_columns, heading="which records"
    )
    split: str | None = redeclare(Shared, heading="which records")
    limit: int | None = declare(
        "only the first N records of each split, after --where and --sample",
        default=None,
        parse=parse_whole,
        common=True,
    )
    where: str | pc.Expression | None = redeclare(Shared)
    sample: float | None = declare(
        "random share of the records, from 0 to 1; the same --seed selects the same records",
        default=None,
        metavar="P",
        common=True,
    )
    seed: int = declare("seed of --sample", default=0, parse=parse_whole, needs=(("sample", None),))

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 0:
            raise UsageError("{limit}: must be 0 or more", limit=option("limit", self.limit))
        if self.sample is not None and not (
            isinstance(self.sample, int | float) and 0 <= self.sample <= 1
        ):
            raise UsageError(
                "{sample}: must be a share of the records, from 0 to 1",
                sample=option("sample", self.sample),
            )
        if not -(2**63) <= self.seed < 2**63:
            raise UsageError(
                "{seed}: must be from -2**63 to 2**63 - 1", seed=option("seed", self.seed)
            )


class ReadConversions(
    Options,
    heading="conversions (applied in this order; each may be used for several features)",
    decides=True,
):
    """Options that convert features.

    Attributes:
        decode_images: Names of the features, also as one string with commas. True means all
            features that contain images. None, "" and False mean none.
        resize: Size of the decoded images, (height, width) or a text such as `224x224`. If None,
            each image keeps its size.
    """

    decode_images: bool | str | Sequence[str] | None = declare(
        "decode images to uint8 [height, width, channels]; without names, all features that contain images",
        default=None,
        metavar="A,B,...",
        common=True,
    )
    resize: str | tuple[int, int] | None = declare(
        "resize the decoded images to one size (bilinear, antialiased)",
        default=None,
        metavar="HxW",
        common=True,
        needs=(("decode_images", None),),
    )
    channels: int | None = declare(
        "channels of decoded images: 1 (gray), 3 (RGB) or 4 (RGBA)",
        default=None,
        default_text="3",
        needs=(("decode_images", None),),
    )
    decode_tensor: str | Sequence[str] | None = declare(
        "decode bytes of tf.io.serialize_tensor to a tensor",
        default=None,
        repeated=True,
        metavar="FEATURE[=DTYPE[SHAPE]]",
        common=True,
    )
    decode_raw: str | Sequence[str] | None = redeclare(Shared)
    reshape: str | Sequence[str] | None = redeclare(Shared)
    pad: str | Sequence[str] | None = redeclare(Shared)
    pad_or_cut: str | Sequence[str] | None = declare(
        "the same as --pad, but cut longer lists",
        default=None,
        repeated=True,
        metavar="FEATURE=LENGTH:VALUE",
    )
    ragged: str | Sequence[str] | None = redeclare(Shared)
    class_names: bool = redeclare(Shared)


class ReadSchemas(Options, heading="contents of the records"):
    """Options for the schema of the records, and for damaged records."""

    schema: Schema | str | os.PathLike[str] | None = redeclare(
        Shared, heading="contents of the records"
    )
    max_rejects: str | int = redeclare(Shared, heading="contents of the records")


class ReadRunOptions(Options, heading=RUN_HEADING):
    """Options for the execution of a read, such as memory and threads."""

    memory: int = redeclare(Shared)
    threads: int | None = redeclare(Shared)
    storage_requests: int | None = redeclare(Shared)
    runner: str | None = redeclare(
        Shared, default_text="threads of this process, without Beam", excludes=(("dry_run", None),)
    )
    beam_args: tuple[str, ...] = redeclare(Shared, needs=(("runner", None),))
    preflight: bool = redeclare(Shared)
    quiet: bool = redeclare(Shared)
    json: bool = redeclare(Shared, heading="the run", help="print the result as JSON to stdout")


class HeadOptions(Options, heading=LOOK_HEADING, common=True):
    """The options of `recordmill head`."""

    n: int | None = declare(
        "number of records", default=None, default_text="5; 1 with --at", flag="-n", shell_only=True
    )
    at: int | None = declare(
        "begin with record I; negative numbers count from the end",
        default=None,
        metavar="I",
        shell_only=True,
    )
    split: str | None = redeclare(Shared)
    columns: str | Sequence[str] | None = redeclare(Shared)
    storage_requests: int | None = redeclare(Shared)


class InspectOptions(Options, heading=REPORT_HEADING, common=True):
    """The options of `recordmill inspect`."""

    split: str | None = redeclare(Shared)
    infer_from: str | int | None = redeclare(Shared)
    schema: Schema | str | os.PathLike[str] | None = redeclare(Shared)
    max_rejects: str | int = redeclare(
        Shared,
        heading=LOOK_HEADING,
        help="largest number or share of damaged records; they are counted and left out",
    )
    emit: Literal["schema", "parse-spec", "reader"] | None = declare(
        "print a schema, a parse spec or a reader program instead of the report",
        default=None,
        shell_only=True,
    )
    json: bool = redeclare(Shared)
    threads: int | None = redeclare(Shared)
    storage_requests: int | None = redeclare(Shared)
    quiet: bool = redeclare(Shared)


class StatsOptions(Options, heading=REPORT_HEADING, common=True):
    """The options of `recordmill stats`."""

    split: str | None = redeclare(Shared)
    columns: str | Sequence[str] | None = redeclare(Shared)
    schema: Schema | str | os.PathLike[str] | None = redeclare(Shared)
    recount: bool = redeclare(Shared)
    max_rejects: str | int = redeclare(
        Shared, heading=LOOK_HEADING, help="largest number or share of unusable records of raw data"
    )
    out: str | os.PathLike[str] | None = declare(
        "file for the statistics, in the format of TensorFlow Data Validation",
        default=None,
        metavar="FILE",
        short="-o",
    )
    overwrite: bool = redeclare(Shared, heading=REPORT_HEADING, help="replace FILE")
    json: bool = redeclare(Shared, help="print the statistics as JSON")
    threads: int | None = redeclare(Shared)
    storage_requests: int | None = redeclare(Shared)
    quiet: bool = redeclare(Shared)


class CheckOptions(Options, heading="the check", common=True):
    """The options of `recordmill check`."""

    against: Any = declare(
        "another data set, its statistics.pb, a schema.pbtxt, or rules (.yaml); repeatable; without it, the splits of OUT are compared, and duplicate records are searched",
        default=(),
        repeated=True,
        metavar="OTHER",
    )
    recount: bool = declare("read the records of data sets that have no statistics", default=False)
    memory: int = redeclare(
        Shared,
        heading="the check",
        parse=size_in_bytes,
        help="memory for digests of records; the rest is in temporary files",
    )
    threads: int | None = redeclare(Shared)
    storage_requests: int | None = redeclare(Shared)
    quiet: bool = redeclare(
        Shared,
        heading=REPORT_HEADING,
        help="print only what is wrong, without progress and summary",
    )
    json: bool = redeclare(Shared, help="print what is wrong as JSON")


class ReportOptions(Options, heading=REPORT_HEADING, common=True):
    """The options of `recordmill report`."""

    split: str | None = redeclare(Shared)
    columns: str | Sequence[str] | None = redeclare(Shared)
    schema: Schema | str | os.PathLike[str] | None = redeclare(Shared)
    out: str | os.PathLike[str] | None = declare(
        "HTML file to write", default=None, default_text="report.html", metavar="FILE", short="-o"
    )
    overwrite: bool = redeclare(Shared, heading=REPORT_HEADING, help="replace FILE")
    threads: int | None = redeclare(Shared)
    storage_requests: int | None = redeclare(Shared)
    quiet: bool = redeclare(Shared)


class BenchOptions(Options, heading="the batches", common=True, shell_only=True):
    """The options of `recordmill bench`."""

    split: str | None = redeclare(Shared)
    columns: str | Sequence[str] | None = redeclare(Shared)
    where: str | pc.Expression | None = redeclare(Shared, heading=LOOK_HEADING)
    schema: Schema | str | os.PathLike[str] | None = redeclare(Shared)
    batch_size: int = declare("records per batch", default=BATCH_SIZE)
    # A flag has no False, so it spells this mode "none".
    shuffle: str = redeclare(
        Shared,
        help="order of the records: that of the files (none), mixed within a window, or a random permutation (global)",
        choices=tuple(mode or "none" for mode in SHUFFLE_MODES),
        keyword_type="str",
        heading="the batches",
        common=True,
        shell_only=True,
    )
    consumer: Literal["numpy", "tf", "torch"] = declare(
        "what to measure: batches of `batches`, `to_tf` or `to_torch`", default="numpy", flag="--as"
    )
    image_size: str | None = declare(
        "decode images to this size in pixels, as `open(..., decode_images=(H, W))` does",
        default=None,
        metavar="HxW",
    )
    memory_bytes: str = redeclare(
        Shared,
        help="memory for reading ahead",
        heading="the batches",
        metavar="SIZE",
        common=True,
        shell_only=True,
    )
    seconds: float = declare(
        "how many seconds to measure; at most one epoch",
        default=5.0,
        heading=RUN_HEADING,
        metavar="S",
    )
    cache: str | os.PathLike[str] | None = redeclare(Shared)
    cache_bytes: str | int = redeclare(Shared)
    threads: int | None = redeclare(Shared)
    storage_requests: int | None = redeclare(Shared)
    json: bool = redeclare(Shared, heading=RUN_HEADING)


class VerifyOptions(Options, heading="the check", common=True):
    """The options of `recordmill verify`."""

    mend: bool = declare(
        "write the files that are derived from the manifest again if they differ from it",
        default=False,
    )
    threads: int | None = redeclare(Shared)
    storage_requests: int | None = redeclare(Shared)
    quiet: bool = redeclare(
        Shared,
        heading=REPORT_HEADING,
        help="print only what is wrong, without progress and summary",
    )
    json: bool = redeclare(Shared, help="print the findings as JSON")


class DoctorOptions(Options, heading="what to check", common=True):
    """The options of `recordmill doctor`."""

    runner: str | None = redeclare(Shared, heading="what to check", common=True)
    beam_args: tuple[str, ...] = redeclare(Shared)
    out: str | None = declare(
        "folder of the data set that will be built", default=None, metavar="OUT", short="-o"
    )
    overwrite: bool = redeclare(
        Shared, heading="what to check", help="OUT may already contain a data set"
    )
    storage_requests: int | None = redeclare(Shared)
    json: bool = redeclare(Shared)


class StatusOptions(Options):
    """The options of `recordmill status`."""

    storage_requests: int | None = redeclare(Shared, heading=REPORT_HEADING)
    json: bool = redeclare(Shared)


class CleanOptions(Options, heading="the clean-up", common=True):
    """The options of `recordmill clean`."""

    remove: bool = declare("remove the listed files", default=False)
    storage_requests: int | None = redeclare(Shared, heading="the clean-up")
    json: bool = redeclare(Shared, heading="the clean-up")
