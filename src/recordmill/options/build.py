"""The options of `build` and `transform`.

`transform` has the options of a build, except that its transform comes from another data set.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypedDict

from recordmill.base.sizes import DEFAULT_SHARD_BYTES, MAX_LINE_BYTES, format_size_option
from recordmill.options.option import (
    CHARACTER_FORM,
    FILE_INPUTS,
    REPEATED_FORM,
    RUN_GROUP,
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
    StorageRequestsOption,
    ThreadsOption,
    declared_options,
)
from recordmill.sources.registry import KIND_NAMES

_records = partial(Option, group="records", inputs=(FILE_INPUTS,))
_rows = partial(Option, group="records", decides=True)
_order = partial(Option, group="order and splits", decides=True)
_shards = partial(Option, group="shards", decides=True)
_description = partial(Option, group="description")
_transform = partial(Option, group="transform", decides=True)
_images = partial(Option, group="images", decides=True, kinds=("images",))
_pixels = partial(_images, kinds=("images", "webdataset"))
_classes = partial(
    Option, group="classes of images and text", decides=True, kinds=("images", "text")
)
_csv = partial(
    Option,
    group="CSV, also labels and boxes of images",
    decides=True,
    kinds=("csv", "images"),
)
_columns = partial(
    Option,
    group="CSV, JSONL, Parquet and Arrow",
    decides=True,
    kinds=("csv", "jsonl", "parquet", "arrow"),
)
_text = partial(
    Option, group="text, JSONL, CSV and tables of images", decides=True, kinds=("text",)
)
_run = partial(Option, group=RUN_GROUP)
_column = partial(_order, metavar="COLUMN")
# options that read files in addition to the inputs
_FILE_OPTIONS = ("transform", "transform_from", "labels", "boxes", "file_columns", "expect")
_WITHOUT_SHUFFLE, _WITH_SPLITS = (("shuffle", False),), ("splits",)


class _BuildOut(TypedDict, total=False):
    out: Annotated[
        str | None,
        Option(
            "the folder of the data set",
            group="records",
            metavar="OUT",
            short="-o",
            common=True,
            shell_only=True,
        ),
    ]


class BuildKeywords(TypedDict, total=False):
    """The options of `recordmill.build`."""

    kind: Annotated[
        str | None,
        _records(
            "the kind of input; on the command line the first word",
            default_text="detected",
            choices=KIND_NAMES,
            decides=True,
            keyword_only=True,
        ),
    ]
    overwrite: Annotated[
        OverwriteOption,
        {
            "help": "replace the data set that OUT holds; readers of the old one can finish",
            "group": "records",
        },
    ]
    if_changed: Annotated[
        bool,
        _records(
            "do nothing if OUT was built from the same inputs (by name, size and time) and options, else replace it",
            False,
            excludes=tuple((name, None) for name in _FILE_OPTIONS),
        ),
    ]
    schema: Annotated[
        SchemaOption,
        {
            "help": "a schema.pbtxt (TensorFlow Metadata); else types are inferred over all data",
            "group": "records",
        },
    ]
    dtypes: Annotated[
        Mapping[str, str] | None,
        _rows(
            "instead of the inferred type: price=float64, image=uint8[28,28], in JSON also image=base64; repeatable",
            form=REPEATED_FORM,
            metavar="FEATURE=DTYPE",
            flag="--dtype",
            common=True,
        ),
    ]
    label: Annotated[
        str | None,
        _rows(
            "the label: strings become class numbers, readers return it as y",
            metavar="COLUMN",
            common=True,
        ),
    ]
    max_rejects: Annotated[MaxRejectsOption, {"group": "records"}]
    follow_links: Annotated[
        bool, _records("follow symbolic links that lead out of an INPUT folder", False)
    ]
    seed: Annotated[
        int,
        _order(
            "seed of the shuffle; the result also depends on the order of the INPUTs",
            0,
            common=True,
            excludes=_WITHOUT_SHUFFLE,
        ),
    ]
    shuffle: Annotated[bool, _order("keep the order of the input", True, common=True)]
    key: Annotated[
        str | None,
        _column(
            "shuffle by a hash of this column: a record keeps its place and split when others come",
            excludes=_WITHOUT_SHUFFLE,
        ),
    ]
    splits: Annotated[
        str | Mapping[str, float] | None,
        _order(
            "divide at random: train=0.9,validation=0.1",
            default_text="what folders say, else all is train",
            metavar="NAME=P,...",
            common=True,
        ),
    ]
    split_from: Annotated[
        Literal["auto", "folders", "names", "none"],
        _order("what names the split, where --splits is not given", "auto", kinds=KIND_NAMES),
    ]
    split_column: Annotated[
        str | None,
        _column(
            "column that holds the split of each record (train, val, dev, test, ...); it is not stored as a feature",
            excludes=(("splits", None),),
        ),
    ]
    split_at: Annotated[
        str | Mapping[str, Any] | None,
        _order(
            "divide by a number, date or text: values below the first are train, from the last on test, between two "
            "validation",
            default_text="",
            metavar="COLUMN=V[,V]",
            excludes=(("splits", None), ("split_column", None)),
        ),
    ]
    split_by: Annotated[
        str | None,
        _column(
            "keep records with equal values of this column in one split",
            common=True,
            needs=_WITH_SPLITS,
        ),
    ]
    stratify: Annotated[
        str | None,
        _column(
            "keep the share of each class of this column equal in all splits (exact to one record); inputs are read twice",
            common=True,
            needs=_WITH_SPLITS,
        ),
    ]
    split_seed: Annotated[int, _order("seed of the division into splits", 0, needs=("splits",))]
    shard_size: Annotated[
        str | int | None,
        _shards(
            "target size of a shard before compression",
            default_text=f"{format_size_option(DEFAULT_SHARD_BYTES)}; larger above 4 TiB of input",
            metavar="SIZE",
            common=True,
        ),
    ]
    num_shards: Annotated[
        int | None,
        _shards(
            "exactly N shards per split, instead", common=True, excludes=(("shard_size", None),)
        ),
    ]
    compression: Annotated[Literal["none", "gzip"], _shards("of the shards", "none")]
    name: Annotated[
        str | None, _shards("of the data set", default_text="OUT's own name", metavar="NAME")
    ]
    description: Annotated[
        str | None,
        _description(
            "what the data set is, in a sentence or two, for dataset_info.json and croissant.json",
            metavar="TEXT",
        ),
    ]
    license: Annotated[
        str | None,
        _description(
            "its licence: an identifier of SPDX (CC-BY-4.0), a URL, or a name; for the same files",
            metavar="TEXT",
        ),
    ]
    citation: Annotated[
        str | None,
        _description("how to cite it, BibTeX if you can; for the same files", metavar="TEXT"),
    ]
    url: Annotated[
        str | None,
        _description(
            "its page on the web; with it, --description, --license and --creator, OUT gets a croissant.json",
            metavar="URL",
            needs=("creator",),
        ),
    ]
    creator: Annotated[
        str | None, _description("who made it, for croissant.json", metavar="NAME", needs=("url",))
    ]
    transform: Annotated[
        Any,
        _transform(
            "what to make of the records: transform.yaml, a mapping of features to steps, or transform.py[:FUNCTION], "
            "a preprocessing_fn of tf.Transform",
            metavar="FILE",
            common=True,
            excludes=(("transform_from", None),),
        ),
    ]
    fit_on: Annotated[
        str | None,
        _transform(
            "the split whose records it is fitted on",
            default_text="train",
            metavar="SPLIT",
            needs=("transform",),
        ),
    ]
    keep_raw: Annotated[
        bool,
        _transform("keep the features as they were, too, as raw/NAME", False, needs=("transform",)),
    ]
    transform_from: Annotated[
        str | os.PathLike[str] | None,
        _transform("take the transform (a program) of that data set as it is", metavar="OUT"),
    ]
    labels: Annotated[
        str | os.PathLike[str] | None,
        _images(
            "a CSV or JSONL file with a row per image: its path, and columns that become features",
            metavar="FILE",
            common=True,
        ),
    ]
    labels_path_column: Annotated[
        str | None,
        _images(
            "the column of paths",
            default_text="file_name, filename, path, image, ...",
            metavar="COLUMN",
            needs=("labels",),
        ),
    ]
    pair: Annotated[
        str | None,
        _images(
            "images,masks: folders of which each file goes with the one of the same name, into one record; the second "
            "feature is called as its folder. images,masks/*_mask pairs a.jpg with a_mask.png",
            metavar="A,B",
        ),
    ]
    boxes: Annotated[
        str | os.PathLike[str] | None,
        _images(
            "annotations of objects: a COCO .json, a CSV with a row per box, a metadata.jsonl with objects, or a folder "
            "of such files, of Pascal VOC's or CVAT's .xml, of LabelMe's .json or of YOLO's .txt; records are those of "
            "the Object Detection API",
            metavar="PATH",
            common=True,
            excludes=(("labels", None),),
        ),
    ]
    box_unit: Annotated[
        Literal["auto", "pixels", "shares"],
        _images(
            "the unit of boxes: pixels, shares of the width and height, or that of the format; of a table it is "
            "detected",
            "auto",
            needs=("boxes",),
        ),
    ]
    label_offset: Annotated[
        int,
        _images(
            "the number of the first class of objects; with 1, 0 is the background",
            0,
            needs=("boxes",),
        ),
    ]
    missing: Annotated[
        Literal["reject", "ignore"],
        _images(
            "what becomes of rows without a file and files without a row",
            "reject",
            needs=("labels",),
        ),
    ]
    check: Annotated[
        Literal["structure", "decode"],
        _images(
            "how images are checked: the container is complete, or every pixel decodes", "structure"
        ),
    ]
    max_pixels: Annotated[
        int, _images("reject images with more pixels, before decoding them", 178_956_970)
    ]
    resize: Annotated[
        str | tuple[int, int] | None,
        _pixels("write images of this size, upright, with masks and boxes to match", metavar="HxW"),
    ]
    resize_mode: Annotated[
        Literal["stretch", "crop", "pad"],
        _pixels("how: stretch; crop the middle; pad with black", "stretch", needs=("resize",)),
    ]
    reencode: Annotated[
        str | None,
        _pixels(
            "write images as jpeg:QUALITY, webp:QUALITY or png, upright, without metadata",
            default_text="no, or the format they have if they are resized",
            metavar="FORMAT",
        ),
    ]
    class_from: Annotated[
        Literal["auto", "folders", "none"], _classes("what names the class", "auto")
    ]
    label_regex: Annotated[
        str | None,
        _classes(
            r"takes the class from a file's path, by its first group, or one called label: 'class_(\d+)_'",
            metavar="REGEX",
            excludes=tuple((name, None) for name in ("class_from", "labels", "boxes")),
        ),
    ]
    unlabelled: Annotated[
        Literal["leave", "keep"],
        _classes(
            "files beside class folders: leave them out, or keep them unlabelled",
            "leave",
            excludes=(("labels", None),),
        ),
    ]
    delimiter: Annotated[
        str | None,
        _csv(
            "one character, or 'tab'",
            default_text="detected",
            form=CHARACTER_FORM,
            metavar="C",
            common=True,
        ),
    ]
    quote: Annotated[
        str | None,
        _csv(
            "one character, or 'none'",
            "told",
            default_text="detected",
            form=CHARACTER_FORM,
            metavar="C",
        ),
    ]
    doubled_quote: Annotated[
        bool, _csv("two quotes inside quotes end the field, instead of standing for one", True)
    ]
    lenient_quotes: Annotated[
        bool,
        _csv(
            'a field that goes on after its closing quote ("Foo" bar) is read without quotes, not rejected',
            False,
        ),
    ]
    escape: Annotated[
        str | None,
        _csv("a character that makes the next one literal", form=CHARACTER_FORM, metavar="C"),
    ]
    null_tokens: Annotated[
        str | Sequence[str],
        _csv(
            "how a missing value is written; repeatable",
            ("", "NA"),
            default_text="empty and NA",
            form=REPEATED_FORM,
            metavar="TOKEN",
            flag="--null",
        ),
    ]
    header: Annotated[
        bool | None,
        _csv(
            "the first row names the columns, or is data; those are then column_1, ... or as --names says",
            default_text="detected, or refused",
            common=True,
        ),
    ]
    names: Annotated[
        str | Sequence[str] | None,
        _csv("the columns' names, in place of the header's", metavar="A,B,...", common=True),
    ]
    comment: Annotated[
        str | None, _csv("lines that start with it are skipped", form=CHARACTER_FORM, metavar="C")
    ]
    skip_lines: Annotated[int, _csv("lines to skip at the start of each file", 0)]
    trim: Annotated[
        bool,
        _csv(
            "drop blanks around fields; with --delimiter ' ', a run of blanks is one delimiter",
            False,
            kinds=("csv",),
        ),
    ]
    columns: Annotated[
        ColumnsOption,
        {
            "help": "only these columns, members of JSON objects, or arrays",
            "group": "CSV, JSONL, Parquet, Arrow and NumPy",
            "kinds": ("csv", "jsonl", "parquet", "arrow", "numpy"),
            "common": False,
        },
    ]
    parse: Annotated[
        str | Sequence[str],
        _columns(
            'texts spelled in other ways: decimal(",", thousands="."), percent, currency, date("%d.%m.%Y"), '
            'datetime("%d.%m.%Y %H:%M"), list("|"), list("|", "int64")',
            (),
            default_text="none",
            form=REPEATED_FORM,
            metavar="COLUMN=SPELLING",
        ),
    ]
    file_columns: Annotated[
        str | Sequence[str],
        _columns(
            "the column names files beside the table, whose content records get: as image, mask, npy, bytes or text; "
            "repeatable",
            (),
            form=REPEATED_FORM,
            default_text="image",
            metavar="COLUMN[=FORM]",
            flag="--file-column",
        ),
    ]
    encoding: Annotated[
        str,
        _text(
            "any that Python knows",
            "utf-8",
            metavar="NAME",
            kinds=("text", "jsonl", "csv", "images"),
        ),
    ]
    mode: Annotated[
        Literal["auto", "lines", "documents"],
        _text(
            "a record is a line, or a file",
            "auto",
            default_text="detected",
            flag="--text-mode",
            common=True,
        ),
    ]
    blank_lines: Annotated[
        bool,
        _text(
            "lines of nothing but white space are no records",
            True,
            excludes=(("mode", "documents"),),
        ),
    ]
    max_line_bytes: Annotated[
        str | int,
        _text(
            "a longer line, row or text document is rejected: it bounds what an unclosed quote can swallow",
            MAX_LINE_BYTES,
            default_text=format_size_option(MAX_LINE_BYTES),
            metavar="SIZE",
            kinds=("text", "jsonl", "csv"),
        ),
    ]
    record_path: Annotated[
        str | None,
        _text(
            "the member of a JSON document whose array has the records, as `data` or `result.records`",
            metavar="KEY",
            kinds=("jsonl",),
        ),
    ]
    stats: Annotated[bool, _run("do not count what the values are like (statistics.pb)", True)]
    expect: Annotated[
        Mapping[str, Any] | str | os.PathLike[str] | None,
        _run(
            "rules (.yaml) that the records must keep, as their statistics tell; else nothing is committed",
            metavar="FILE",
            excludes=(("stats", False),),
        ),
    ]
    memory: MemoryOption
    threads: ThreadsOption
    storage_requests: StorageRequestsOption
    runner: Annotated[RunnerOption, {"default_text": "FnApiRunner, in this process"}]
    beam_args: BeamArgsOption
    preflight: PreflightOption


class _BuildShell(TypedDict, total=False):
    dry_run: Annotated[
        bool,
        _run(
            "say what would be built, with the first records, and write nothing",
            False,
            shell_only=True,
            common=True,
        ),
    ]
    detach: Annotated[
        bool,
        _run(
            "with a --runner: return when the engine has the job; `recordmill status` follows it",
            False,
            engine_only=True,
            shell_only=True,
        ),
    ]
    quiet: QuietOption
    json: Annotated[
        JsonOption, {"help": "print a machine-readable result on stdout", "group": RUN_GROUP}
    ]


class _ApplyOptions(TypedDict, total=False):
    transform_from: Annotated[
        str | os.PathLike[str] | None,
        _transform(
            "the data set whose transform is applied", metavar="OUT", flag="--with", common=True
        ),
    ]


BUILD_OPTIONS: Options = declared_options(_BuildOut, BuildKeywords, _BuildShell)
DESCRIPTION_NAMES = tuple(option.name for option in BUILD_OPTIONS if option.group == "description")
_FIT_OPTION_NAMES = ("transform", "transform_from", "fit_on", "keep_raw", "if_changed")
APPLY_OPTIONS: Options = (
    *declared_options(_ApplyOptions),
    *(option for option in BUILD_OPTIONS if option.name not in _FIT_OPTION_NAMES),
)
