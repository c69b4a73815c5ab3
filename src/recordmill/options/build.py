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
            "{memory}: at least {min_memory_bytes}MiB",
            memory=option(name, value),
            min_memory_bytes=MIN_MEMORY_BYTES >> 20,
        )
    return memory_bytes


class BuildRecords(Options, heading="records"):
    """Options of the inputs and the records."""

    out: str | None = declare(
        "the folder of the data set",
        default=None,
        metavar="OUT",
        short="-o",
        common=True,
        shell_only=True,
    )
    kind: str | None = declare(
        "the kind of input; on the command line the first word",
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
        help="replace the data set that OUT holds; readers of the old one can finish",
    )
    if_changed: bool = declare(
        "do nothing if OUT was built from the same inputs (by name, size and time) and options, else replace it",
        default=False,
        files_only=True,
        excludes=tuple((name, None) for name in _FILE_OPTIONS),
    )
    schema: Schema | str | os.PathLike[str] | None = again(
        Shared,
        heading="records",
        help="a schema.pbtxt (TensorFlow Metadata); else types are inferred over all data",
    )
    dtypes: Mapping[str, str] | None = declare(
        "instead of the inferred type: price=float64, image=uint8[28,28], in JSON also image=base64; repeatable",
        default=None,
        decides=True,
        repeated=True,
        metavar="FEATURE=DTYPE",
        flag="--dtype",
        common=True,
    )
    label: str | None = declare(
        "the label: strings become class numbers, readers return it as y",
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
        "shuffle by a hash of this column: a record keeps its place and split when others come",
        default=None,
        metavar="COLUMN",
        excludes=_WITHOUT_SHUFFLE,
    )
    splits: str | Mapping[str, float] | None = declare(
        "divide at random: train=0.9,validation=0.1",
        default=None,
        default_text="what folders say, else all is train",
        metavar="NAME=P,...",
        common=True,
    )
    split_from: Literal["auto", "folders", "names", "none"] = declare(
        "what names the split, where --splits is not given", default="auto", kinds=KIND_NAMES
    )
    split_column: str | None = declare(
        "column that holds the split of each record (train, val, dev, test, ...); it is not stored as a feature",
        default=None,
        metavar="COLUMN",
        excludes=(("splits", None),),
    )
    split_at: str | Mapping[str, Any] | None = declare(
        "divide by a number, date or text: values below the first are train, from the last on test, between two validation",
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
        "exactly N shards per split, instead",
        default=None,
        parse=parse_whole,
        common=True,
        excludes=(("shard_size", None),),
    )
    compression: Literal["none", "gzip"] = declare("of the shards", default="none")
    name: str | None = declare(
        "of the data set", default=None, default_text="OUT's own name", metavar="NAME"
    )


class BuildDescription(Options, heading="description"):
    """Options that describe the data set."""

    description: str | None = declare(
        "what the data set is, in a sentence or two, for dataset_info.json and croissant.json",
        default=None,
        metavar="TEXT",
    )
    license: str | None = declare(
        "its licence: an identifier of SPDX (CC-BY-4.0), a URL, or a name; for the same files",
        default=None,
        metavar="TEXT",
    )
    citation: str | None = declare(
        "how to cite it, BibTeX if you can; for the same files", default=None, metavar="TEXT"
    )
    url: str | None = declare(
        "its page on the web; with it, --description, --license and --creator, OUT gets a croissant.json",
        default=None,
        metavar="URL",
        needs=(("creator", None),),
    )
    creator: str | None = declare(
        "who made it, for croissant.json", default=None, metavar="NAME", needs=(("url", None),)
    )


class BuildTransform(Options, heading="transform", decides=True):
    """Options of the transform."""

    transform: Any = declare(
        "what to make of the records: transform.yaml, a mapping of features to steps, or transform.py[:FUNCTION], a preprocessing_fn of tf.Transform",
        default=None,
        metavar="FILE",
        common=True,
        excludes=(("transform_from", None),),
    )
    fit_on: str | None = declare(
        "the split whose records it is fitted on",
        default=None,
        default_text="train",
        metavar="SPLIT",
        needs=(("transform", None),),
    )
    keep_raw: bool = declare(
        "keep the features as they were, too, as raw/NAME",
        default=False,
        needs=(("transform", None),),
    )
    transform_from: str | os.PathLike[str] | None = declare(
        "take the transform (a program) of that data set as it is", default=None, metavar="OUT"
    )


class BuildImages(Options, heading="images", decides=True):
    """Options of images."""

    labels: str | os.PathLike[str] | None = declare(
        "a CSV or JSONL file with a row per image: its path, and columns that become features; or a folder of such "
        "files, as with one per split",
        default=None,
        kinds=("images",),
        metavar="PATH",
        common=True,
    )
    labels_path_column: str | None = declare(
        "the column of paths",
        default=None,
        default_text="file_name, filename, path, image, ...",
        kinds=("images",),
        metavar="COLUMN",
        needs=(("labels", None),),
    )
    pair: str | None = declare(
        "images,masks: folders of which each file goes with the one of the same name, into one record; the second feature is called as its folder. images,masks/*_mask pairs a.jpg with a_mask.png",
        default=None,
        kinds=("images",),
        metavar="A,B",
    )
    boxes: str | os.PathLike[str] | None = declare(
        "annotations of objects: a COCO .json, a CSV with a row per box, a metadata.jsonl with objects, or a folder of such files, of Pascal VOC's or CVAT's .xml, of LabelMe's .json or of YOLO's .txt; records are those of the Object Detection API",
        default=None,
        kinds=("images",),
        metavar="PATH",
        common=True,
        excludes=(("labels", None),),
    )
    box_unit: Literal["auto", "pixels", "shares"] = declare(
        "the unit of boxes: pixels, shares of the width and height, or that of the format; of a table it is detected",
        default="auto",
        kinds=("images",),
        needs=(("boxes", None),),
    )
    label_offset: int = declare(
        "the number of the first class of objects; with 1, 0 is the background",
        default=0,
        kinds=("images",),
        needs=(("boxes", None),),
    )
    missing: Literal["reject", "ignore"] = declare(
        "what becomes of rows without a file and files without a row",
        default="reject",
        kinds=("images",),
        needs=(("labels", None),),
    )
    check: Literal["structure", "decode"] = declare(
        "how images are checked: the container is complete, or every pixel decodes",
        default="structure",
        kinds=("images",),
    )
    max_pixels: int = declare(
        "reject images with more pixels, before decoding them", default=178956970, kinds=("images",)
    )
    resize: str | tuple[int, int] | None = declare(
        "write images of this size, upright, with masks and boxes to match",
        default=None,
        kinds=("images", "webdataset"),
        metavar="HxW",
    )
    resize_mode: Literal["stretch", "crop", "pad"] = declare(
        "how: stretch; crop the middle; pad with black",
        default="stretch",
        kinds=("images", "webdataset"),
        needs=(("resize", None),),
    )
    reencode: str | None = declare(
        "write images as jpeg:QUALITY, webp:QUALITY or png, upright, without metadata",
        default=None,
        default_text="no, or the format they have if they are resized",
        kinds=("images", "webdataset"),
        metavar="FORMAT",
    )


class BuildClasses(
    Options, heading="classes of images and text", decides=True, kinds=("images", "text")
):
    """Options of classes."""

    class_from: Literal["auto", "folders", "none"] = declare("what names the class", default="auto")
    label_regex: str | None = declare(
        "takes the class from a file's path, by its first group, or one called label: 'class_(\\d+)_'",
        default=None,
        metavar="REGEX",
        excludes=tuple((name, None) for name in ("class_from", "labels", "boxes")),
    )
    unlabelled: Literal["leave", "keep"] = declare(
        "files beside class folders: leave them out, or keep them unlabelled",
        default="leave",
        excludes=(("labels", None),),
    )


class BuildCsv(
    Options, heading="CSV, also labels and boxes of images", decides=True, kinds=("csv", "images")
):
    """Options of CSV."""

    delimiter: str | None = declare(
        "one character, or 'tab'",
        default=None,
        default_text="detected",
        parse=parse_character,
        metavar="C",
        common=True,
    )
    quote: str | None = declare(
        "one character, or 'none'",
        default="told",
        default_text="detected",
        parse=parse_character,
        metavar="C",
    )
    doubled_quote: bool = declare(
        "two quotes inside quotes end the field, instead of standing for one", default=True
    )
    lenient_quotes: bool = declare(
        'a field that goes on after its closing quote ("Foo" bar) is read without quotes, not rejected',
        default=False,
    )
    escape: str | None = declare(
        "a character that makes the next one literal",
        default=None,
        parse=parse_character,
        metavar="C",
    )
    null_tokens: str | Sequence[str] = declare(
        "how a missing value is written; repeatable",
        default=("", "NA"),
        default_text="empty and NA",
        repeated=True,
        metavar="TOKEN",
        flag="--null",
    )
    header: bool | None = declare(
        "the first row names the columns, or is data; those are then column_1, ... or as --names says",
        default=None,
        default_text="detected, or refused",
        common=True,
    )
    names: tuple[str, ...] | None = declare(
        "the columns' names, in place of the header's",
        default=None,
        parse=parse_names,
        metavar="A,B,...",
        common=True,
    )
    comment: str | None = declare(
        "lines that start with it are skipped", default=None, parse=parse_character, metavar="C"
    )
    skip_lines: int = declare("lines to skip at the start of each file", default=0)
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
        help="only these columns, members of JSON objects, or arrays",
    )
    parse: str | Sequence[str] = declare(
        'texts spelled in other ways: decimal(",", thousands="."), percent, currency, date("%d.%m.%Y"), datetime("%d.%m.%Y %H:%M"), list("|"), list("|", "int64")',
        default=(),
        default_text="none",
        kinds=("csv", "jsonl", "parquet", "arrow"),
        repeated=True,
        metavar="COLUMN=SPELLING",
    )
    file_columns: str | Sequence[str] = declare(
        "the column names files beside the table, whose content records get: as image, mask, npy, bytes or text; repeatable",
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
        "any that Python knows",
        default="utf-8",
        kinds=("text", "jsonl", "csv", "images"),
        metavar="NAME",
    )
    mode: Literal["auto", "lines", "documents"] = declare(
        "a record is a line, or a file",
        default="auto",
        default_text="detected",
        kinds=("text",),
        flag="--text-mode",
        common=True,
    )
    blank_lines: bool = declare(
        "lines of nothing but white space are no records",
        default=True,
        kinds=("text",),
        excludes=(("mode", "documents"),),
    )
    max_line_bytes: int = declare(
        "a longer line, row or text document is rejected: it bounds what an unclosed quote can swallow",
        default=MAX_LINE_BYTES,
        parse=parse_size,
        default_text=format_size_option(MAX_LINE_BYTES),
        kinds=("text", "jsonl", "csv"),
        metavar="SIZE",
    )
    record_path: str | None = declare(
        "the member of a JSON document whose array has the records, as `data` or `result.records`",
        default=None,
        kinds=("jsonl",),
        metavar="KEY",
    )


class BuildRunOptions(Options, heading=RUN_HEADING):
    """Options of the run."""

    stats: bool = declare("do not count what the values are like (statistics.pb)", default=True)
    expect: Mapping[str, Any] | str | os.PathLike[str] | None = declare(
        "rules (.yaml) that the records must keep, as their statistics tell; else nothing is committed",
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
        "say what would be built, with the first records, and write nothing",
        default=False,
        shell_only=True,
        common=True,
    )
    detach: bool = declare(
        "with a --runner: return when the engine has the job; `recordmill status` follows it",
        default=False,
        engine_only=True,
        shell_only=True,
    )
    quiet: bool = again(Shared)
    json: bool = again(
        Shared, heading=RUN_HEADING, help="print a machine-readable result on stdout"
    )


class ApplyOptions(Options, heading="transform", decides=True):
    """The option that only `transform` has."""

    transform_from: str | os.PathLike[str] | None = declare(
        "the data set whose transform is applied",
        default=None,
        metavar="OUT",
        flag="--with",
        common=True,
    )
