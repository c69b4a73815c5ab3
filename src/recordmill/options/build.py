"""The options of `build` and `transform`.

`transform` has the options of a build, except that its transform comes from another data set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import (
    DEFAULT_SHARD_BYTES,
    MAX_LINE_BYTES,
    format_size_option,
    parse_size,
)
from recordmill.options.declare import RUN_HEADING, Options, again, declare
from recordmill.options.parsers import parse_character, parse_names, parse_whole
from recordmill.options.shared import Shared
from recordmill.sources.parser.function import ParserFunction, parse_parser
from recordmill.sources.registry import KIND_NAMES

if TYPE_CHECKING:
    from recordmill.schemas.feature import Schema

# options that read files in addition to the inputs
_FILE_OPTIONS = ("transform", "transform_from", "labels", "boxes", "file_columns", "expect")
_WITHOUT_SHUFFLE = (("shuffle", False),)
_WITH_SPLITS = (("splits", None),)
# 128 MiB: the batches, sorted runs and pieces of two threads. Less than this could not be kept.
MIN_MEMORY_BYTES = 128 << 20


def parse_build_memory(value: str | int, name: str) -> int:
    """Returns the memory of a build in bytes."""
    memory_bytes = parse_size(value, name)
    if memory_bytes < MIN_MEMORY_BYTES:
        raise UsageError(
            "{memory}: must be at least {min_memory_bytes}MiB",
            memory=option(name, value),
            min_memory_bytes=MIN_MEMORY_BYTES >> 20,
        )
    return memory_bytes


class BuildRecords(Options, heading="records"):
    """Options of the inputs and the records."""

    out: str | None = declare(
        "folder of the data set",
        default=None,
        metavar="OUT",
        short="-o",
        common=True,
        shell_only=True,
    )
    kind: str | None = declare(
        "kind of input; on the command line it is the first word",
        default=None,
        default_text="detected",
        files_only=True,
        choices=KIND_NAMES,
        decides=True,
        keyword_only=True,
    )
    parser: ParserFunction | None = declare(
        "your function that parses a file of any format: it returns or yields dicts of features, or RecordBatches",
        default=None,
        parse=parse_parser,
        files_only=True,
        decides=True,
        common=True,
        metavar="FILE.py:FUNCTION",
        excludes=(("kind", None),),
    )
    overwrite: bool = again(
        Shared,
        heading="records",
        help="replace the data set in OUT; programs that read the old one can finish",
    )
    if_changed: bool = declare(
        "build only if the inputs (by name, size and time) or the options have changed since OUT was built",
        default=False,
        files_only=True,
        excludes=tuple((name, None) for name in _FILE_OPTIONS),
    )
    keep_generations: int | None = again(Shared, heading="records")
    schema: Schema | str | os.PathLike[str] | None = again(
        Shared,
        heading="records",
        help="schema.pbtxt (TensorFlow Metadata) with the types; without it, types are inferred from all data",
    )
    dtypes: Mapping[str, str] | None = declare(
        "type of a feature, instead of the inferred one: price=float64, image=uint8[28,28], in JSON also image=base64; repeatable",
        default=None,
        decides=True,
        repeated=True,
        metavar="FEATURE=DTYPE",
        flag="--dtype",
        common=True,
    )
    label: str | None = declare(
        "label of each record; text becomes class numbers, and readers return it as y",
        default=None,
        decides=True,
        metavar="COLUMN",
        common=True,
    )
    max_rejects: str | int = again(Shared, heading="records")
    follow_links: bool = declare(
        "follow symbolic links that lead out of an INPUT folder", default=False, files_only=True
    )


class BuildOrder(Options, heading="order and splits", decides=True):
    """Options of the order and the splits."""

    seed: int = declare(
        "seed of the shuffle; the result also depends on the order of the INPUTs",
        default=0,
        parse=parse_whole,
        common=True,
        excludes=_WITHOUT_SHUFFLE,
    )
    shuffle: bool = declare("keep the order of the input", default=True, common=True)
    key: str | None = declare(
        "order records by a hash of this column, so that a record keeps its place and split when others are added",
        default=None,
        metavar="COLUMN",
        excludes=_WITHOUT_SHUFFLE,
    )
    splits: str | Mapping[str, float] | None = declare(
        "divide the records at random, as in train=0.9,validation=0.1",
        default=None,
        default_text="from folders; otherwise all records are train",
        metavar="NAME=P,...",
        common=True,
    )
    split_from: Literal["auto", "folders", "names", "none"] = declare(
        "what determines the split if --splits is not given", default="auto", kinds=KIND_NAMES
    )
    split_column: str | None = declare(
        "column that holds the split of each record (train, val, dev, test, ...); it is not stored as a feature",
        default=None,
        metavar="COLUMN",
        excludes=(("splits", None),),
    )
    split_at: str | Mapping[str, Any] | None = declare(
        "divide by a number, date or text: values below the first V are train, from the last V on test, and between two V validation",
        default=None,
        default_text="",
        metavar="COLUMN=V[,V]",
        excludes=(("splits", None), ("split_column", None)),
    )
    split_by: str | None = declare(
        "keep records with equal values of this column in one split",
        default=None,
        metavar="COLUMN",
        common=True,
        needs=_WITH_SPLITS,
    )
    stratify: str | None = declare(
        "keep the share of each class of this column equal in all splits (exact to one record); inputs are read twice",
        default=None,
        metavar="COLUMN",
        common=True,
        needs=_WITH_SPLITS,
    )
    split_seed: int = declare(
        "seed of the division into splits", default=0, parse=parse_whole, needs=(("splits", None),)
    )


class BuildShards(Options, heading="shards", decides=True):
    """Options of the shards."""

    shard_size: int | None = declare(
        "target size of a shard before compression",
        default=None,
        parse=parse_size,
        default_text=f"{format_size_option(DEFAULT_SHARD_BYTES)}; larger above 4 TiB of input",
        metavar="SIZE",
        common=True,
    )
    num_shards: int | None = declare(
        "exactly N shards per split, instead of --shard-size",
        default=None,
        parse=parse_whole,
        common=True,
        excludes=(("shard_size", None),),
    )
    compression: Literal["none", "gzip"] = declare("compression of the shards", default="none")
    name: str | None = declare(
        "name of the data set", default=None, default_text="the name of OUT", metavar="NAME"
    )


class BuildDescription(Options, heading="description"):
    """Options that describe the data set."""

    description: str | None = declare(
        "description of the data set in a sentence or two, for dataset_info.json and croissant.json",
        default=None,
        metavar="TEXT",
    )
    license: str | None = declare(
        "licence: an SPDX identifier (CC-BY-4.0), a URL or a name; for the same files",
        default=None,
        metavar="TEXT",
    )
    citation: str | None = declare(
        "how to cite the data set, preferably as BibTeX; for the same files",
        default=None,
        metavar="TEXT",
    )
    url: str | None = declare(
        "web page of the data set; with it, --description, --license and --creator, the build writes croissant.json",
        default=None,
        metavar="URL",
        needs=(("creator", None),),
    )
    creator: str | None = declare(
        "author of the data set, for croissant.json",
        default=None,
        metavar="NAME",
        needs=(("url", None),),
    )


class BuildTransform(Options, heading="transform", decides=True):
    """Options of the transform."""

    transform: Any = declare(
        "compute features: transform.yaml maps features to steps; transform.py[:FUNCTION] has a preprocessing_fn of tf.Transform",
        default=None,
        metavar="FILE",
        common=True,
        excludes=(("transform_from", None),),
    )
    fit_on: str | None = declare(
        "split from which the constants of the transform are computed",
        default=None,
        default_text="train",
        metavar="SPLIT",
        needs=(("transform", None),),
    )
    keep_raw: bool = declare(
        "also store the input features, as raw/NAME",
        default=False,
        needs=(("transform", None),),
    )
    transform_from: str | os.PathLike[str] | None = declare(
        "apply the transform of that data set unchanged; it is a program, so use only trusted data sets",
        default=None,
        metavar="OUT",
    )


class BuildImages(Options, heading="images", decides=True):
    """Options of images."""

    labels: str | os.PathLike[str] | None = declare(
        "CSV or JSONL file with a row per image: its path, and columns that become features; or a folder of such "
        "files, such as one per split",
        default=None,
        kinds=("images",),
        metavar="PATH",
        common=True,
    )
    labels_path_column: str | None = declare(
        "column with the paths of the images",
        default=None,
        default_text="file_name, filename, path, image, ...",
        kinds=("images",),
        metavar="COLUMN",
        needs=(("labels", None),),
    )
    pair: str | None = declare(
        "two folders, as in images,masks; files with the same name become one record, and the second feature has the name of its folder. images,masks/*_mask pairs a.jpg with a_mask.png",
        default=None,
        kinds=("images",),
        metavar="A,B",
    )
    boxes: str | os.PathLike[str] | None = declare(
        "bounding boxes: a COCO .json, a CSV with a row per box, a metadata.jsonl with objects, or a folder of such files or of .xml (Pascal VOC, CVAT), .json (LabelMe) or .txt (YOLO); features are named as in the Object Detection API",
        default=None,
        kinds=("images",),
        metavar="PATH",
        common=True,
        excludes=(("labels", None),),
    )
    box_unit: Literal["auto", "pixels", "shares"] = declare(
        "unit of boxes: pixels, or shares of the width and height; auto is the unit of the format, and is detected for tables",
        default="auto",
        kinds=("images",),
        needs=(("boxes", None),),
    )
    label_offset: int = declare(
        "number of the first class of objects; with 1, the number 0 is the background",
        default=0,
        kinds=("images",),
        needs=(("boxes", None),),
    )
    missing: Literal["reject", "ignore"] = declare(
        "what to do with rows without a file and files without a row",
        default="reject",
        kinds=("images",),
        needs=(("labels", None),),
    )
    check: Literal["structure", "decode"] = declare(
        "check of images: structure checks that a file is complete, decode also decodes every pixel",
        default="structure",
        kinds=("images",),
    )
    max_pixels: int = declare(
        "reject images with more pixels, before decoding them", default=178956970, kinds=("images",)
    )
    resize: str | tuple[int, int] | None = declare(
        "resize images, their masks and boxes to this size, and turn images upright",
        default=None,
        kinds=("images", "webdataset"),
        metavar="HxW",
    )
    resize_mode: Literal["stretch", "crop", "pad"] = declare(
        "how to resize: stretch, crop to the middle, or pad with black",
        default="stretch",
        kinds=("images", "webdataset"),
        needs=(("resize", None),),
    )
    reencode: str | None = declare(
        "encode images again as jpeg:QUALITY, webp:QUALITY or png, upright and without metadata",
        default=None,
        default_text="only resized images, in their own format",
        kinds=("images", "webdataset"),
        metavar="FORMAT",
    )


class BuildClasses(
    Options, heading="classes of images and text", decides=True, kinds=("images", "text")
):
    """Options of classes."""

    class_from: Literal["auto", "folders", "none"] = declare(
        "what determines the class", default="auto"
    )
    label_regex: str | None = declare(
        "regular expression for the path of a file; its first group, or the group named label, is the class: 'class_(\\d+)_'",
        default=None,
        metavar="REGEX",
        excludes=tuple((name, None) for name in ("class_from", "labels", "boxes")),
    )
    unlabelled: Literal["leave", "keep"] = declare(
        "files outside class folders: leave them out, or keep them without a label",
        default="leave",
        excludes=(("labels", None),),
    )


class BuildCsv(
    Options,
    heading="CSV, and tables of labels and boxes of images",
    decides=True,
    kinds=("csv", "images"),
):
    """Options of CSV."""

    delimiter: str | None = declare(
        "character between fields, or 'tab'",
        default=None,
        default_text="detected",
        parse=parse_character,
        metavar="C",
        common=True,
    )
    quote: str | None = declare(
        "character around quoted fields, or 'none'",
        default="told",
        default_text="detected",
        parse=parse_character,
        metavar="C",
    )
    doubled_quote: bool = declare(
        "two quotes in a quoted field end it; by default they mean one quote", default=True
    )
    lenient_quotes: bool = declare(
        'read a field that continues after its closing quote ("Foo" bar) without its quotes, instead of rejecting it',
        default=False,
    )
    escape: str | None = declare(
        "character that makes the next one literal",
        default=None,
        parse=parse_character,
        metavar="C",
    )
    null_tokens: str | Sequence[str] = declare(
        "text that means a missing value; repeatable",
        default=("", "NA"),
        default_text="empty and NA",
        repeated=True,
        metavar="TOKEN",
        flag="--null",
    )
    header: bool | None = declare(
        "the first row names the columns, or is data; without a header, columns are named column_1, ... or by --names",
        default=None,
        default_text="detected; if it is unclear, the build stops",
        common=True,
    )
    names: tuple[str, ...] | None = declare(
        "names of the columns, instead of those in the header",
        default=None,
        parse=parse_names,
        metavar="A,B,...",
        common=True,
    )
    comment: str | None = declare(
        "skip lines that start with this character",
        default=None,
        parse=parse_character,
        metavar="C",
    )
    skip_lines: int = declare("number of lines to skip at the start of each file", default=0)
    trim: bool = declare(
        "drop blanks around fields; with --delimiter ' ', a run of blanks is one delimiter",
        default=False,
        kinds=("csv",),
    )


class BuildTables(Options, heading="CSV, JSONL, Parquet and Arrow", decides=True):
    """Options of tables."""

    columns: tuple[str, ...] | None = again(
        Shared,
        parse=parse_names,
        heading="CSV, JSONL, Parquet, Arrow and NumPy",
        kinds=("csv", "jsonl", "parquet", "arrow", "numpy"),
        common=False,
        help="read only these columns, members of JSON objects, or arrays",
    )
    parse: str | Sequence[str] = declare(
        'how the values of a column are written: decimal(",", thousands="."), percent, currency, date("%d.%m.%Y"), datetime("%d.%m.%Y %H:%M"), list("|"), list("|", "int64")',
        default=(),
        default_text="none",
        kinds=("csv", "jsonl", "parquet", "arrow"),
        repeated=True,
        metavar="COLUMN=SPELLING",
    )
    file_columns: str | Sequence[str] = declare(
        "column with the paths of files next to the table; their contents become features, as image, mask, npy, bytes or text; repeatable",
        default=(),
        default_text="image",
        kinds=("csv", "jsonl", "parquet", "arrow"),
        repeated=True,
        metavar="COLUMN[=FORM]",
        flag="--file-column",
    )


class BuildText(Options, heading="text, JSONL, CSV and tables of images", decides=True):
    """Options of text."""

    encoding: str = declare(
        "encoding of the text; any that Python knows",
        default="utf-8",
        kinds=("text", "jsonl", "csv", "images"),
        metavar="NAME",
    )
    mode: Literal["auto", "lines", "documents"] = declare(
        "whether a record is a line or a file",
        default="auto",
        default_text="detected",
        kinds=("text",),
        flag="--text-mode",
        common=True,
    )
    blank_lines: bool = declare(
        "do not make records of lines that have only white space",
        default=True,
        kinds=("text",),
        excludes=(("mode", "documents"),),
    )
    max_line_bytes: int = declare(
        "reject longer lines, rows and text documents; this limits the damage of an unclosed quote",
        default=MAX_LINE_BYTES,
        parse=parse_size,
        default_text=format_size_option(MAX_LINE_BYTES),
        kinds=("text", "jsonl", "csv"),
        metavar="SIZE",
    )
    record_path: str | None = declare(
        "member of a JSON document that contains the array of records, such as `data` or `result.records`",
        default=None,
        kinds=("jsonl",),
        metavar="KEY",
    )


class BuildRunOptions(Options, heading=RUN_HEADING):
    """Options of the run."""

    stats: bool = declare("do not compute statistics of the values (statistics.pb)", default=True)
    expect: Mapping[str, Any] | str | os.PathLike[str] | None = declare(
        "rules (.yaml) for the statistics of the records; if one is broken, nothing is committed",
        default=None,
        metavar="FILE",
        excludes=(("stats", False),),
    )
    memory: int = again(Shared, parse=parse_build_memory)
    threads: int | None = again(Shared)
    storage_requests: int | None = again(Shared)
    runner: str | None = again(Shared, default_text="FnApiRunner, in this process")
    beam_args: Sequence[str] = again(Shared)
    preflight: bool = again(Shared)
    dry_run: bool = declare(
        "show what would be built, with the first records, and write nothing",
        default=False,
        shell_only=True,
        common=True,
    )
    detach: bool = declare(
        "with a --runner: return when the engine has the job; `recordmill status` shows its progress",
        default=False,
        engine_only=True,
        shell_only=True,
    )
    quiet: bool = again(Shared)
    json: bool = again(Shared, heading=RUN_HEADING, help="print the result as JSON to stdout")


class ApplyOptions(Options, heading="transform", decides=True):
    """The option that only `transform` has."""

    transform_from: str | os.PathLike[str] | None = declare(
        "data set whose transform is applied",
        default=None,
        metavar="OUT",
        flag="--with",
        common=True,
    )
