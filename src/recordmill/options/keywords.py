"""The keywords of the functions, for type checkers. Nothing imports this module at run time.

docs/make_reference.py writes it from the declarations of the options.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from recordmill.schemas.feature import Schema


class BuildKeywords(TypedDict, total=False):
    """The options of `build`."""

    kind: str | None
    """kind of input; on the command line it is the first word (default: detected)."""
    parser: str | Callable[..., Any] | None
    """your function that parses a file of any format: it returns or yields dicts of features, or RecordBatches."""
    overwrite: bool
    """replace the data set in OUT; programs that read the old one can finish."""
    append: bool
    """add records to the data set in OUT, whose schema and options apply; INPUTs that it has (by name, size and time) are skipped; without a data set in OUT, build one."""
    widen: bool
    """new records may have new features, missing values, larger integers or lists of variable length."""
    new_classes: bool
    """new records may have new classes; they get the numbers after the others."""
    if_changed: bool
    """build only if the inputs (by name, size and time) or the options have changed since OUT was built; if they have, replace the data set, as with --overwrite."""
    keep_generations: int | None
    """generations of OUT that stay readable, this one included; later commits keep as many (default: as before; at first 2)."""
    schema: Schema | str | os.PathLike[str] | None
    """schema.pbtxt (TensorFlow Metadata) with the types; without it, types are inferred from all data."""
    dtypes: Mapping[str, str] | None
    """type of a feature, instead of the inferred one: price=float64, image=uint8[28,28], in JSON also image=base64; repeatable."""
    label: str | None
    """label of each record; text becomes class numbers, and readers return it as y."""
    max_rejects: str | int
    """largest number or share of unusable records; they are listed in OUT/rejects (default: 0)."""
    follow_links: bool
    """follow symbolic links that lead out of an INPUT folder."""
    seed: int
    """seed of the shuffle; the result also depends on the order of the INPUTs (default: 0)."""
    shuffle: bool
    """False: keep the order of the input."""
    key: str | None
    """order records by a hash of this column, so that a record keeps its place and split when others are added."""
    splits: str | Mapping[str, float] | None
    """divide the records at random, as in train=0.9,validation=0.1 (default: from folders; otherwise all records are train)."""
    split_from: Literal['auto', 'folders', 'names', 'none']
    """what determines the split if --splits is not given (default: auto)."""
    split_column: str | None
    """column that holds the split of each record (train, val, dev, test, ...); it is not stored as a feature."""
    split_at: str | Mapping[str, Any] | None
    """divide by a number, date or text: values below the first V are train, from the last V on test, and between two V validation."""
    split_by: str | None
    """keep records with equal values of this column in one split."""
    stratify: str | None
    """keep the share of each class of this column equal in all splits (exact to one record); inputs are read twice."""
    split_seed: int
    """seed of the division into splits (default: 0)."""
    shard_size: str | int | None
    """target size of a shard before compression (default: 128MiB; larger above 4.0 TiB of input)."""
    num_shards: int | None
    """exactly N shards per split, instead of --shard-size."""
    compression: Literal['none', 'gzip']
    """compression of the shards (default: none)."""
    name: str | None
    """name of the data set (default: the name of OUT)."""
    description: str | None
    """description of the data set in a sentence or two, for dataset_info.json and croissant.json."""
    license: str | None
    """licence: an SPDX identifier (CC-BY-4.0), a URL or a name; for the same files."""
    citation: str | None
    """how to cite the data set, preferably as BibTeX; for the same files."""
    url: str | None
    """web page of the data set; with it, --description, --license and --creator, the build writes croissant.json."""
    creator: str | None
    """author of the data set, for croissant.json."""
    transform: Any
    """compute features: transform.yaml maps features to steps; transform.py[:FUNCTION] has a preprocessing_fn of tf.Transform."""
    fit_on: str | None
    """split from which the constants of the transform are computed (default: train)."""
    keep_raw: bool
    """also store the input features, as raw/NAME."""
    transform_from: str | os.PathLike[str] | None
    """apply the transform of that data set unchanged; it is a program, so use only trusted data sets."""
    labels: str | os.PathLike[str] | None
    """CSV or JSONL file with a row per image: its path, and columns that become features; or a folder of such files, such as one per split."""
    labels_path_column: str | None
    """column with the paths of the images (default: file_name, filename, path, image, ...)."""
    pair: str | None
    """two folders, as in images,masks; files with the same name become one record, and the second feature has the name of its folder. images,masks/*_mask pairs a.jpg with a_mask.png."""
    boxes: str | os.PathLike[str] | None
    """bounding boxes: a COCO .json, a CSV with a row per box, a metadata.jsonl with objects, or a folder of such files or of .xml (Pascal VOC, CVAT), .json (LabelMe) or .txt (YOLO); features are named as in the Object Detection API."""
    box_unit: Literal['auto', 'pixels', 'shares']
    """unit of boxes: pixels, or shares of the width and height; auto is the unit of the format, and is detected for tables (default: auto)."""
    label_offset: int
    """number of the first class of objects; with 1, the number 0 is the background (default: 0)."""
    missing: Literal['reject', 'ignore']
    """what to do with rows without a file and files without a row (default: reject)."""
    check: Literal['structure', 'decode']
    """check of images: structure checks that a file is complete, decode also decodes every pixel (default: structure)."""
    max_pixels: int
    """reject images with more pixels, before decoding them (default: 178956970)."""
    resize: str | tuple[int, int] | None
    """images and webdataset: resize images, their masks and boxes to this size, and turn images upright."""
    resize_mode: Literal['stretch', 'crop', 'pad']
    """images and webdataset: how to resize: stretch, crop to the middle, or pad with black (default: stretch)."""
    reencode: str | None
    """images and webdataset: encode images again as jpeg:QUALITY, webp:QUALITY or png, upright and without metadata (default: only resized images, in their own format)."""
    class_from: Literal['auto', 'folders', 'none']
    """what determines the class (default: auto)."""
    label_regex: str | None
    """regular expression for the path of a file; its first group, or the group named label, is the class: 'class_(\\d+)_'."""
    unlabelled: Literal['leave', 'keep']
    """files outside class folders: leave them out, or keep them without a label (default: leave)."""
    delimiter: str | None | None
    """character between fields, or 'tab' (default: detected)."""
    quote: str | None
    """character around quoted fields, or 'none' (default: detected)."""
    doubled_quote: bool
    """False: two quotes in a quoted field end it; by default they mean one quote."""
    lenient_quotes: bool
    """read a field that continues after its closing quote ("Foo" bar) without its quotes, instead of rejecting it."""
    escape: str | None | None
    """character that makes the next one literal."""
    null_tokens: str | Sequence[str]
    """text that means a missing value; repeatable (default: empty and NA)."""
    header: bool | None
    """the first row names the columns, or is data; without a header, columns are named column_1, ... or by --names (default: detected; if it is unclear, the build stops)."""
    names: str | Sequence[str] | None
    """names of the columns, instead of those in the header."""
    comment: str | None | None
    """skip lines that start with this character."""
    skip_lines: int
    """number of lines to skip at the start of each file (default: 0)."""
    trim: bool
    """drop blanks around fields; with --delimiter ' ', a run of blanks is one delimiter."""
    encoding: str
    """encoding of the text; any that Python knows (default: utf-8)."""
    max_line_bytes: str | int
    """reject longer lines, rows and text documents; this limits the damage of an unclosed quote (default: 16MiB)."""
    record_path: str | None
    """member of a JSON document that contains the array of records, such as `data` or `result.records`."""
    mode: Literal['auto', 'lines', 'documents']
    """whether a record is a line or a file (default: detected)."""
    blank_lines: bool
    """False: do not make records of lines that have only white space."""
    columns: str | Sequence[str] | None
    """read only these columns, members of JSON objects, or arrays."""
    parse: str | Sequence[str]
    """how the values of a column are written: decimal(",", thousands="."), percent, currency, date("%d.%m.%Y"), datetime("%d.%m.%Y %H:%M"), list("|"), list("|", "int64") (default: none)."""
    file_columns: str | Sequence[str]
    """column with the paths of files next to the table; their contents become features, as image, mask, npy, bytes or text; repeatable (default: image)."""
    stats: bool
    """False: do not compute statistics of the values (statistics.pb)."""
    expect: Mapping[str, Any] | str | os.PathLike[str] | None
    """rules (.yaml) for the statistics of the records; if one is broken, nothing is committed."""
    memory: str | int
    """memory for data, in addition to the interpreter (default: 2GiB)."""
    threads: int | None
    """number of threads (default: all cores)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""
    runner: str | None
    """runner of Apache Beam; flags that recordmill does not know are passed to Beam (default: threads of this process, without Beam)."""
    beam_args: Sequence[str]
    """flags for Beam; on the command line, write them directly."""
    preflight: bool
    """False: with a --runner: do not check first what its workers can see and which versions they have."""


class ReadKeywords(TypedDict, total=False):
    """The options of `read`."""

    to: Literal['parquet', 'npy', 'npz', 'arrow', 'jsonl', 'csv', 'files']
    """output format (default: parquet)."""
    overwrite: bool
    """replace the result in OUT."""
    file_size: str | int
    """bytes of shards that become one Parquet or Arrow file (default: 512MiB)."""
    row_group_rows: int | None
    """rows per Parquet row group (default: as many as fit into --row-group-size)."""
    row_group_size: str | int
    """size of a row group in Arrow memory, at most 64MiB (default: 64MiB)."""
    compression: str
    """compression of Parquet: zstd (level 1), gzip, snappy or none; with a level as in zstd:9 (default: zstd)."""
    file_feature: str | None
    """with --to files: feature of bytes or text that becomes the files."""
    name_feature: str | None
    """with --to files: feature of text or whole numbers that names the files ('' for the record's number)."""
    columns: str | Sequence[str] | None
    """only these features, in this order; the others are skipped, not parsed."""
    split: str | None
    """only this split."""
    limit: int | None
    """only the first N records of each split, after --where and --sample."""
    where: str | pc.Expression | None
    """only records that meet this SQL condition, as in 'label = 3 AND len(boxes) > 0' (needs duckdb); in Python also a pyarrow.compute expression."""
    sample: float | None
    """random share of the records, from 0 to 1; the same --seed selects the same records."""
    seed: int
    """seed of --sample (default: 0)."""
    decode_images: bool | str | Sequence[str] | None
    """decode images to uint8 [height, width, channels]; without names, all features that contain images."""
    resize: str | tuple[int, int] | None
    """resize the decoded images to one size (bilinear, antialiased)."""
    channels: int | None
    """channels of decoded images: 1 (gray), 3 (RGB) or 4 (RGBA) (default: 3)."""
    decode_tensor: str | Sequence[str] | None
    """decode bytes of tf.io.serialize_tensor to a tensor."""
    decode_raw: str | Sequence[str] | None
    """decode bytes that are the memory of an array."""
    reshape: str | Sequence[str] | None
    """give the values another shape; -1 is computed from the others, or varies."""
    pad: str | Sequence[str] | None
    """pad a list to a fixed length; a record with a longer list is a reject."""
    pad_or_cut: str | Sequence[str] | None
    """the same as --pad, but cut longer lists."""
    ragged: str | Sequence[str] | None
    """keep lists of variable length, even if all have the same length."""
    class_names: bool
    """write names of classes instead of their numbers."""
    schema: Schema | str | os.PathLike[str] | None
    """schema.pbtxt (TensorFlow Metadata) of the records; nothing is inferred."""
    max_rejects: str | int
    """largest number or share of unusable records; they are listed in OUT/rejects (default: 0)."""
    memory: str | int
    """memory for data, in addition to the interpreter (default: 2GiB)."""
    threads: int | None
    """number of threads (default: all cores)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""
    runner: str | None
    """runner of Apache Beam; flags that recordmill does not know are passed to Beam (default: threads of this process, without Beam)."""
    beam_args: Sequence[str]
    """flags for Beam; on the command line, write them directly."""
    preflight: bool
    """False: with a --runner: do not check first what its workers can see and which versions they have."""


class InspectKeywords(TypedDict, total=False):
    """The options of `inspect`."""

    infer_from: str | int | None
    """infer from only N records, the first ones of each file, or from N files (default: all)."""
    schema: Schema | str | os.PathLike[str] | None
    """schema.pbtxt (TensorFlow Metadata) of the records; nothing is inferred."""
    max_rejects: str | int
    """largest number or share of damaged records; they are counted and left out (default: 0)."""
    threads: int | None
    """number of threads (default: all cores)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class StatsKeywords(TypedDict, total=False):
    """The options of `stats`."""

    split: str | None
    """only this split."""
    columns: str | Sequence[str] | None
    """only these features, in this order; the others are skipped, not parsed."""
    schema: Schema | str | os.PathLike[str] | None
    """schema.pbtxt (TensorFlow Metadata) of the records; nothing is inferred."""
    recount: bool
    """read the records even if the build has computed their statistics."""
    max_rejects: str | int
    """largest number or share of unusable records of raw data (default: 0)."""
    out: str | os.PathLike[str] | None
    """file for the statistics, in the format of TensorFlow Data Validation."""
    overwrite: bool
    """replace FILE."""
    threads: int | None
    """number of threads (default: all cores)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class CheckKeywords(TypedDict, total=False):
    """The options of `check`."""

    against: Any
    """another data set, its statistics.pb, a schema.pbtxt, or rules (.yaml); repeatable; without it, the splits of OUT are compared, and duplicate records are searched."""
    recount: bool
    """read the records of data sets that have no statistics."""
    memory: str | int
    """memory for digests of records; the rest is in temporary files (default: 2GiB)."""
    threads: int | None
    """number of threads (default: all cores)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class ReportKeywords(TypedDict, total=False):
    """The options of `report`."""

    split: str | None
    """only this split."""
    columns: str | Sequence[str] | None
    """only these features, in this order; the others are skipped, not parsed."""
    schema: Schema | str | os.PathLike[str] | None
    """schema.pbtxt (TensorFlow Metadata) of the records; nothing is inferred."""
    out: str | os.PathLike[str] | None
    """HTML file to write (default: report.html)."""
    overwrite: bool
    """replace FILE."""
    threads: int | None
    """number of threads (default: all cores)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class VerifyKeywords(TypedDict, total=False):
    """The options of `verify`."""

    mend: bool
    """write the files that are derived from the manifest again if they differ from it."""
    threads: int | None
    """number of threads (default: all cores)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class DoctorKeywords(TypedDict, total=False):
    """The options of `doctor`."""

    runner: str | None
    """runner of Apache Beam; flags that recordmill does not know are passed to Beam."""
    beam_args: Sequence[str]
    """flags for Beam; on the command line, write them directly."""
    overwrite: bool
    """OUT may already contain a data set."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class StatusKeywords(TypedDict, total=False):
    """The options of `status`."""

    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class CleanKeywords(TypedDict, total=False):
    """The options of `clean`."""

    remove: bool
    """remove the listed files."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class LogKeywords(TypedDict, total=False):
    """The options of `log`."""

    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class RestoreKeywords(TypedDict, total=False):
    """The options of `restore`."""

    keep_generations: int | None
    """generations of OUT that stay readable, this one included; later commits keep as many (default: as before; at first 2)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class CompactKeywords(TypedDict, total=False):
    """The options of `compact`."""

    shard_size: str | int | None
    """target size of a shard before compression (default: as before)."""
    num_shards: int | None
    """exactly N shards per split, instead of --shard-size (default: as before)."""
    compression: Literal['none', 'gzip'] | None
    """compression of the shards (default: as before)."""
    keep_generations: int | None
    """generations of OUT that stay readable, this one included; later commits keep as many (default: as before; at first 2)."""
    memory: str | int
    """memory for data, in addition to the interpreter (default: 2GiB)."""
    threads: int | None
    """number of threads (default: all cores)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class WriteShardsKeywords(TypedDict, total=False):
    """The options of `WriteShards`."""

    splits: str | Mapping[str, float] | None
    """divide the records at random, as in train=0.9,validation=0.1 (default: all records are train)."""
    seed: int
    """seed of the order (default: 0)."""
    key: str | None
    """order records by a hash of this column, instead of a hash of the record."""
    shard_size: str | int | None
    """target size of a shard before compression (default: 128MiB)."""
    num_shards: int | None
    """exactly N shards per split."""
    label: str | None
    """label of each record; if it is text without classes in the schema, it becomes class numbers, after a pass over the collection."""
    max_rejects: str | int
    """number of rejects that are allowed, or a share such as 1% (default: 0)."""
    overwrite: bool
    """replace the contents of OUT."""
    threads: int
    """number of threads, if the pipeline runs in this process (default: 1)."""
    memory: str | int
    """memory of each worker (default: 2GiB)."""
    split_by: str | None
    """keep records with equal values of this column in one split."""
    split_seed: int
    """seed of the division into splits (default: 0)."""
    compression: Literal['none', 'gzip']
    """compression of the shards (default: none)."""
    name: str | None
    """name of the data set (default: the name of OUT)."""
