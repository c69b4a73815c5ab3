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
    """the kind of input; on the command line the first word (default: detected)."""
    parser: str | Callable[..., Any] | None
    """your function that parses a file of any format: it returns or yields dicts of features, or RecordBatches."""
    overwrite: bool
    """replace the data set that OUT holds; readers of the old one can finish."""
    if_changed: bool
    """do nothing if OUT was built from the same inputs (by name, size and time) and options, else replace it."""
    schema: Schema | str | os.PathLike[str] | None
    """a schema.pbtxt (TensorFlow Metadata); else types are inferred over all data."""
    dtypes: Mapping[str, str] | None
    """instead of the inferred type: price=float64, image=uint8[28,28], in JSON also image=base64; repeatable."""
    label: str | None
    """the label: strings become class numbers, readers return it as y."""
    max_rejects: str | int
    """how many records may be unusable; they are listed in OUT/rejects (default: 0)."""
    follow_links: bool
    """follow symbolic links that lead out of an INPUT folder."""
    seed: int
    """seed of the shuffle; the result also depends on the order of the INPUTs (default: 0)."""
    shuffle: bool
    """False: keep the order of the input."""
    key: str | None
    """shuffle by a hash of this column: a record keeps its place and split when others come."""
    splits: str | Mapping[str, float] | None
    """divide at random: train=0.9,validation=0.1 (default: what folders say, else all is train)."""
    split_from: Literal['auto', 'folders', 'names', 'none']
    """what names the split, where --splits is not given (default: auto)."""
    split_column: str | None
    """column that holds the split of each record (train, val, dev, test, ...); it is not stored as a feature."""
    split_at: str | Mapping[str, Any] | None
    """divide by a number, date or text: values below the first are train, from the last on test, between two validation."""
    split_by: str | None
    """keep records with equal values of this column in one split."""
    stratify: str | None
    """keep the share of each class of this column equal in all splits (exact to one record); inputs are read twice."""
    split_seed: int
    """seed of the division into splits (default: 0)."""
    shard_size: str | int | None
    """target size of a shard before compression (default: 128MiB; larger above 4 TiB of input)."""
    num_shards: int | None
    """exactly N shards per split, instead."""
    compression: Literal['none', 'gzip']
    """of the shards (default: none)."""
    name: str | None
    """of the data set (default: OUT's own name)."""
    description: str | None
    """what the data set is, in a sentence or two, for dataset_info.json and croissant.json."""
    license: str | None
    """its licence: an identifier of SPDX (CC-BY-4.0), a URL, or a name; for the same files."""
    citation: str | None
    """how to cite it, BibTeX if you can; for the same files."""
    url: str | None
    """its page on the web; with it, --description, --license and --creator, OUT gets a croissant.json."""
    creator: str | None
    """who made it, for croissant.json."""
    transform: Any
    """what to make of the records: transform.yaml, a mapping of features to steps, or transform.py[:FUNCTION], a preprocessing_fn of tf.Transform."""
    fit_on: str | None
    """the split whose records it is fitted on (default: train)."""
    keep_raw: bool
    """keep the features as they were, too, as raw/NAME."""
    transform_from: str | os.PathLike[str] | None
    """take the transform (a program) of that data set as it is."""
    labels: str | os.PathLike[str] | None
    """a CSV or JSONL file with a row per image: its path, and columns that become features; or a folder of such files, as with one per split."""
    labels_path_column: str | None
    """the column of paths (default: file_name, filename, path, image, ...)."""
    pair: str | None
    """images,masks: folders of which each file goes with the one of the same name, into one record; the second feature is called as its folder. images,masks/*_mask pairs a.jpg with a_mask.png."""
    boxes: str | os.PathLike[str] | None
    """annotations of objects: a COCO .json, a CSV with a row per box, a metadata.jsonl with objects, or a folder of such files, of Pascal VOC's or CVAT's .xml, of LabelMe's .json or of YOLO's .txt; records are those of the Object Detection API."""
    box_unit: Literal['auto', 'pixels', 'shares']
    """the unit of boxes: pixels, shares of the width and height, or that of the format; of a table it is detected (default: auto)."""
    label_offset: int
    """the number of the first class of objects; with 1, 0 is the background (default: 0)."""
    missing: Literal['reject', 'ignore']
    """what becomes of rows without a file and files without a row (default: reject)."""
    check: Literal['structure', 'decode']
    """how images are checked: the container is complete, or every pixel decodes (default: structure)."""
    max_pixels: int
    """reject images with more pixels, before decoding them (default: 178956970)."""
    resize: str | tuple[int, int] | None
    """images and webdataset: write images of this size, upright, with masks and boxes to match."""
    resize_mode: Literal['stretch', 'crop', 'pad']
    """images and webdataset: how: stretch; crop the middle; pad with black (default: stretch)."""
    reencode: str | None
    """images and webdataset: write images as jpeg:QUALITY, webp:QUALITY or png, upright, without metadata (default: no, or the format they have if they are resized)."""
    class_from: Literal['auto', 'folders', 'none']
    """what names the class (default: auto)."""
    label_regex: str | None
    """takes the class from a file's path, by its first group, or one called label: 'class_(\\d+)_'."""
    unlabelled: Literal['leave', 'keep']
    """files beside class folders: leave them out, or keep them unlabelled (default: leave)."""
    delimiter: str | None | None
    """one character, or 'tab' (default: detected)."""
    quote: str | None
    """one character, or 'none' (default: detected)."""
    doubled_quote: bool
    """False: two quotes inside quotes end the field, instead of standing for one."""
    lenient_quotes: bool
    """a field that goes on after its closing quote ("Foo" bar) is read without quotes, not rejected."""
    escape: str | None | None
    """a character that makes the next one literal."""
    null_tokens: str | Sequence[str]
    """how a missing value is written; repeatable (default: empty and NA)."""
    header: bool | None
    """the first row names the columns, or is data; those are then column_1, ... or as --names says (default: detected, or refused)."""
    names: str | Sequence[str] | None
    """the columns' names, in place of the header's."""
    comment: str | None | None
    """lines that start with it are skipped."""
    skip_lines: int
    """lines to skip at the start of each file (default: 0)."""
    trim: bool
    """drop blanks around fields; with --delimiter ' ', a run of blanks is one delimiter."""
    columns: str | Sequence[str] | None
    """only these columns, members of JSON objects, or arrays."""
    parse: str | Sequence[str]
    """texts spelled in other ways: decimal(",", thousands="."), percent, currency, date("%d.%m.%Y"), datetime("%d.%m.%Y %H:%M"), list("|"), list("|", "int64") (default: none)."""
    file_columns: str | Sequence[str]
    """the column names files beside the table, whose content records get: as image, mask, npy, bytes or text; repeatable (default: image)."""
    encoding: str
    """any that Python knows (default: utf-8)."""
    mode: Literal['auto', 'lines', 'documents']
    """a record is a line, or a file (default: detected)."""
    blank_lines: bool
    """False: lines of nothing but white space are no records."""
    max_line_bytes: str | int
    """a longer line, row or text document is rejected: it bounds what an unclosed quote can swallow (default: 16MiB)."""
    record_path: str | None
    """the member of a JSON document whose array has the records, as `data` or `result.records`."""
    stats: bool
    """False: do not count what the values are like (statistics.pb)."""
    expect: Mapping[str, Any] | str | os.PathLike[str] | None
    """rules (.yaml) that the records must keep, as their statistics tell; else nothing is committed."""
    memory: str | int
    """what may be held at once, beside the interpreter (default: 2GiB)."""
    threads: int | None
    """number of threads (default: all cores)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""
    runner: str | None
    """the Apache Beam runner; flags that recordmill does not know are handed to it (default: FnApiRunner, in this process)."""
    beam_args: Sequence[str]
    """flags for Beam's runner; on the command line they are given as they are."""
    preflight: bool
    """False: with a --runner: don't look first what its workers see, and which versions they have."""


class ReadKeywords(TypedDict, total=False):
    """The options of `read`."""

    to: Literal['parquet', 'npy', 'npz', 'arrow', 'jsonl', 'csv', 'files']
    """the format (default: parquet)."""
    overwrite: bool
    """replace the result that OUT holds."""
    file_size: str | int
    """shards' bytes per Parquet or Arrow file (default: 512MiB)."""
    row_group_rows: int | None
    """rows of a Parquet row group (default: as many as --row-group-size holds)."""
    row_group_size: str | int
    """a row group's Arrow memory, at most 64MiB (default: 64MiB)."""
    compression: str
    """of Parquet: zstd (level 1), gzip, snappy, none; with a level as in zstd:9 (default: zstd)."""
    file_feature: str | None
    """of --to files: the bytes or text that become the files."""
    name_feature: str | None
    """of --to files: the text or whole number that names them ('' for the record's number)."""
    columns: str | Sequence[str] | None
    """only these features, in this order; the others are skipped, not parsed."""
    split: str | None
    """only this split."""
    limit: int | None
    """the first N records of each split (of those left by --where and --sample)."""
    where: str | pc.Expression | None
    """only records for which this WHERE clause holds, as in 'label = 3 AND len(boxes) > 0' (needs duckdb); in Python also a pyarrow.compute expression."""
    sample: float | None
    """a random share of the records, from 0 to 1; the same for the same --seed."""
    seed: int
    """of --sample (default: 0)."""
    decode_images: bool | str | Sequence[str] | None
    """encoded images to uint8 [height, width, channels]; without names all features that hold them."""
    resize: str | tuple[int, int] | None
    """bring the images to one size (bilinear, antialiased)."""
    channels: int | None
    """1 gray, 3 RGB or 4 RGBA (default: 3)."""
    decode_tensor: str | Sequence[str] | None
    """bytes of tf.io.serialize_tensor to a tensor."""
    decode_raw: str | Sequence[str] | None
    """bytes that are an array's memory to that array."""
    reshape: str | Sequence[str] | None
    """the same values in another shape; -1: what follows, or varies."""
    pad: str | Sequence[str] | None
    """a list to a fixed length; a longer one is a bad record."""
    pad_or_cut: str | Sequence[str] | None
    """the same, but a longer one loses its end."""
    ragged: str | Sequence[str] | None
    """a list of variable length, also if all records hold equally many."""
    class_names: bool
    """names of classes in place of their numbers."""
    schema: Schema | str | os.PathLike[str] | None
    """a schema.pbtxt (TensorFlow Metadata) that says what the records hold; nothing is inferred."""
    max_rejects: str | int
    """how many records may be unusable; they are listed in OUT/rejects (default: 0)."""
    memory: str | int
    """what may be held at once, beside the interpreter (default: 2GiB)."""
    threads: int | None
    """number of threads (default: all cores)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""
    runner: str | None
    """the Apache Beam runner; flags that recordmill does not know are handed to it (default: threads of this process, without Beam)."""
    beam_args: Sequence[str]
    """flags for Beam's runner; on the command line they are given as they are."""
    preflight: bool
    """False: with a --runner: don't look first what its workers see, and which versions they have."""


class InspectKeywords(TypedDict, total=False):
    """The options of `inspect`."""

    split: str | None
    """only this split."""
    infer_from: str | int | None
    """look at N records only, the first ones of each file, or at N whole files (default: all)."""
    schema: Schema | str | os.PathLike[str] | None
    """a schema.pbtxt (TensorFlow Metadata) that says what the records hold; nothing is inferred."""
    max_rejects: str | int
    """how many records may be damaged; they are counted and left out (default: 0)."""
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
    """a schema.pbtxt (TensorFlow Metadata) that says what the records hold; nothing is inferred."""
    recount: bool
    """read the records, also where the build has counted them."""
    max_rejects: str | int
    """how many records of raw data may be unusable (default: 0)."""
    out: str | os.PathLike[str] | None
    """a file for them, as TensorFlow Data Validation reads it."""
    overwrite: bool
    """replace FILE."""
    threads: int | None
    """number of threads (default: all cores)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class CheckKeywords(TypedDict, total=False):
    """The options of `check`."""

    against: Any
    """another data set, its statistics.pb, a schema.pbtxt, or rules (.yaml); may be given several times; without, its splits are compared, and records that stand there twice looked for."""
    recount: bool
    """read the records of data sets that were built without statistics, too."""
    memory: str | int
    """what digests of records may take; more lie in files (default: 2GiB)."""
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
    """a schema.pbtxt (TensorFlow Metadata) that says what the records hold; nothing is inferred."""
    out: str | os.PathLike[str] | None
    """the HTML file (default: report.html)."""
    overwrite: bool
    """replace FILE."""
    threads: int | None
    """number of threads (default: all cores)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class VerifyKeywords(TypedDict, total=False):
    """The options of `verify`."""

    mend: bool
    """write the files that follow from the manifest anew where they differ from it."""
    threads: int | None
    """number of threads (default: all cores)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class DoctorKeywords(TypedDict, total=False):
    """The options of `doctor`."""

    runner: str | None
    """the Apache Beam runner; flags that recordmill does not know are handed to it."""
    beam_args: Sequence[str]
    """flags for Beam's runner; on the command line they are given as they are."""
    out: str | None
    """the folder of a data set to be."""
    overwrite: bool
    """OUT may hold a data set."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class StatusKeywords(TypedDict, total=False):
    """The options of `status`."""

    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class CleanKeywords(TypedDict, total=False):
    """The options of `clean`."""

    remove: bool
    """remove what is listed."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""


class OpenKeywords(TypedDict, total=False):
    """The options of `open`."""

    split: str | None
    """only this split."""
    columns: str | Sequence[str] | None
    """only these features, in this order; the others are skipped, not parsed."""
    schema: Schema | str | os.PathLike[str] | None
    """a schema.pbtxt (TensorFlow Metadata) that says what the records hold; nothing is inferred."""
    threads: int | None
    """number of threads (default: all cores)."""
    infer_from: str | int | None
    """look at N records only, the first ones of each file, or at N whole files (default: all)."""
    where: str | pc.Expression | None
    """only records for which this WHERE clause holds, as in 'label = 3 AND len(boxes) > 0' (needs duckdb); in Python also a pyarrow.compute expression."""
    cache: str | os.PathLike[str] | None
    """a folder of this machine in which blocks that are read from a store are kept; processes may share it."""
    cache_bytes: str | int
    """at most so much of them (default: 10GiB)."""
    storage_requests: int | None
    """concurrent requests to object stores; in Python the value stays in effect until it is changed (default: 64)."""
    decode_raw: str | Sequence[str] | None
    """bytes that are an array's memory to that array."""
    reshape: str | Sequence[str] | None
    """the same values in another shape; -1: what follows, or varies."""
    pad: str | Sequence[str] | None
    """a list to a fixed length; a longer one is a bad record."""
    ragged: str | Sequence[str] | None
    """a list of variable length, also if all records hold equally many."""
    decode_images: Any
    """the size and form of decoded images: (H, W), True, or `Images(...)`."""
    class_names: bool
    """names of classes in place of their numbers."""
