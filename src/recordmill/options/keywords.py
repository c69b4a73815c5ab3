"""The keywords of `build` and `read` with their types, for editors and type checkers.

Written by docs/make_reference.py from the declarations in this folder; change those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import pyarrow.compute as pc

    from recordmill.schemas.feature import Schema


class BuildKeywords(TypedDict, total=False):
    """The options of `recordmill.build`."""

    # the kind of input; on the command line the first word (default: told from the content)
    kind: str | None
    # the kind's own options as one object, such as a CsvOptions, or as a mapping
    options: Any
    # replace the data set that OUT holds; readers of the old one can finish until it is replaced again
    overwrite: bool
    # a schema.pbtxt (TensorFlow Metadata); without it types are inferred over all data
    schema: Schema | str | os.PathLike[str] | None
    # instead of the inferred type: price=float64, image=uint8[28,28], in JSON also image=base64; repeatable
    dtypes: Mapping[str, str] | None
    # the label: strings become class numbers, and readers return it as y by default
    label: str | None
    # how many records may be unusable; they are listed in OUT/rejects (default: 0)
    max_rejects: str | int
    # follow symbolic links that lead out of an INPUT folder
    follow_links: bool
    # of the shuffle, which depends on the order of the INPUTs, too (default: 0)
    seed: int
    # False: keep the order of the input
    shuffle: bool
    # shuffle by a hash of this column, so that a record keeps its place and split when others are added
    key: str | None
    # divide at random: train=0.9,validation=0.1 (default: what folders say, else all is train)
    splits: str | Mapping[str, float] | None
    # what names the split, where --splits is not given (default: auto)
    split_from: Literal["auto", "folders", "names", "none"]
    # keep records with equal values of this column in one split
    split_by: str | None
    # divide each class of this column by the fractions of the splits, to one record; the inputs are read twice
    stratify: str | None
    # of the division into splits (default: 0)
    split_seed: int
    # of each shard, before compression (default: 128MiB; above 4 TiB of input as much as 32,768 shards need)
    shard_size: str | int | None
    # exactly N shards per split, instead
    num_shards: int | None
    # of the shards (default: none)
    compression: Literal["none", "gzip"]
    # of the data set (default: OUT's own name)
    name: str | None
    # what the data set is, in a sentence or two, for dataset_info.json and croissant.json
    description: str | None
    # its licence: an identifier of SPDX (CC-BY-4.0), a URL, or a name; for the same files
    license: str | None
    # how to cite it, BibTeX if you can; for the same files
    citation: str | None
    # its page on the web; with it, --description, --license and --creator, OUT gets a croissant.json
    url: str | None
    # who made it, for croissant.json
    creator: str | None
    # what to make of the records: transform.yaml, a mapping of features to steps, or transform.py[:FUNCTION], a
    # preprocessing_fn of tf.Transform
    transform: Any
    # the split whose records it is fitted on (default: train)
    fit_on: str | None
    # keep the features as they were, too, as raw/NAME
    keep_raw: bool
    # take the transform of that data set as it is
    transform_from: str | os.PathLike[str] | None
    # take the transform even if its graph may touch files or run code
    trust_graph: bool
    # a CSV or JSONL file with a row per image: its path, and columns that become features
    labels: str | os.PathLike[str] | None
    # the column of paths (default: file_name, filename, path, image, ...)
    labels_path_column: str | None
    # what becomes of rows without a file and files without a row (default: reject)
    missing: Literal["reject", "ignore"]
    # how images are checked: the container is complete, or every pixel decodes (default: structure)
    check: Literal["structure", "decode"]
    # reject images with more pixels, before decoding them (default: 178956970)
    max_pixels: int
    # what names the class (default: auto)
    class_from: Literal["auto", "folders", "none"]
    # files beside class folders: leave them out, keep them without a label, or refuse them (default: leave)
    unlabelled: Literal["leave", "keep", "error"]
    # a class folder that --schema does not name (default: error)
    unknown_class: Literal["error", "reject"]
    # one character, or 'tab' (default: told from the content)
    delimiter: str | None
    # one character, or 'none' (default: told from the content)
    quote: str | None
    # False: two quotes inside quotes end the field, instead of standing for one
    doubled_quote: bool
    # a field that goes on behind its closing quote ("Foo" bar) is read without these quotes, not rejected
    lenient_quotes: bool
    # a character that makes the next one literal
    escape: str | None
    # how a missing value is written; repeatable (default: empty and NA)
    null_tokens: str | Sequence[str]
    # the first row names the columns, or is data; those are then column_1, ... or as --names says (default: told
    # from the content, or refused)
    header: bool | None
    # the columns' names, in place of the header's
    names: str | Sequence[str] | None
    # lines that start with it are skipped
    comment: str | None
    # lines to skip at the start of each file (default: 0)
    skip_lines: int
    # drop blanks around fields
    trim: bool
    # a longer row is rejected: what an unclosed quote can swallow (default: 16MiB)
    max_row_bytes: str | int
    # only these columns
    columns: str | Sequence[str] | None
    # files with other columns than the first one: take all columns, or refuse (default: union)
    differing_columns: Literal["union", "strict"]
    # any that Python knows (default: utf-8)
    encoding: str
    # a record is a line, or a file (default: told from the files)
    mode: Literal["auto", "lines", "documents"]
    # False: lines of nothing but white space are no records
    blank_lines: bool
    # a longer line, or text document, is rejected (default: 16MiB)
    max_line_bytes: str | int
    # False: do not count what the values are like (statistics.pb)
    stats: bool
    # rules (.yaml) that the records must keep, as their statistics tell; else nothing is committed
    expect: Mapping[str, Any] | str | os.PathLike[str] | None
    # what may be held at once, beside the interpreter (default: 2GiB)
    memory: str | int
    # how many threads work (default: all cores)
    threads: int | None
    # how many requests to object stores this process has under way at once; from Python it holds until it is said
    # anew (default: 64)
    storage_requests: int | None
    # the Apache Beam runner; flags that recordmill does not know are handed to it (default: FnApiRunner, in this
    # process)
    runner: str | None
    # flags for Beam's runner, from Python; on the command line they are given as they are
    beam_args: Sequence[str]
    # False: with a --runner: don't look first whether its workers see OUT and INPUT and have the same versions
    preflight: bool


class ReadKeywords(TypedDict, total=False):
    """The options of `recordmill.read`."""

    # the format (default: parquet)
    to: Literal["parquet", "npy", "npz", "arrow", "jsonl", "csv", "files"]
    # replace the result that OUT holds
    overwrite: bool
    # shards' bytes per Parquet or Arrow file (default: 512MiB)
    file_size: str | int
    # rows of a Parquet row group (default: as many as --row-group-size holds)
    row_group_rows: int | None
    # a row group's Arrow memory, at most 64MiB (default: 64MiB)
    row_group_size: str | int
    # of Parquet: zstd (level 1), gzip, snappy, none; with a level as in zstd:9 (default: zstd)
    compression: str
    # of --to files: the bytes or text that become the files
    file_feature: str | None
    # of --to files: the text or whole number that names them ('' for the record's number)
    name_feature: str | None
    # only these features, in this order; the others are skipped, not parsed
    columns: str | Sequence[str] | None
    # only this split
    split: str | None
    # only the first N records of each split (of those left by --where and --sample)
    limit: int | None
    # only records for which this WHERE clause holds, as in 'label = 3 AND len(boxes) > 0' (needs duckdb); in
    # Python also a pyarrow.compute expression
    where: str | pc.Expression | None
    # only a random share of the records, from 0 to 1; the same for the same --seed
    sample: float | None
    # of --sample (default: 0)
    seed: int
    # encoded images to uint8 [height, width, channels]; without names all features that hold them
    decode_images: bool | str | Sequence[str] | None
    # bring the images to one size (bilinear, antialiased)
    resize: str | tuple[int, int] | None
    # 1 gray, 3 RGB or 4 RGBA (default: 3)
    channels: int | None
    # bytes written by tf.io.serialize_tensor to a tensor
    decode_tensor: str | Sequence[str] | None
    # bytes that are an array's memory to that array
    decode_raw: str | Sequence[str] | None
    # the same values in another shape; -1: what follows, or varies
    reshape: str | Sequence[str] | None
    # a list to a fixed length; a longer one is a bad record
    pad: str | Sequence[str] | None
    # the same, but a longer one loses its end
    pad_or_cut: str | Sequence[str] | None
    # a list of variable length, also if all records hold equally many items
    ragged: str | Sequence[str] | None
    # a schema.pbtxt (TensorFlow Metadata) that says what the records hold; nothing is inferred
    schema: Schema | str | os.PathLike[str] | None
    # how many records may be unusable; they are listed in OUT/rejects (default: 0)
    max_rejects: str | int
    # what may be held at once, beside the interpreter (default: 2GiB)
    memory: str | int
    # how many threads work (default: all cores)
    threads: int | None
    # how many requests to object stores this process has under way at once; from Python it holds until it is said
    # anew (default: 64)
    storage_requests: int | None
    # the Apache Beam runner; flags that recordmill does not know are handed to it (default: threads of this
    # process, without Beam)
    runner: str | None
    # flags for Beam's runner, from Python; on the command line they are given as they are
    beam_args: Sequence[str]
    # False: with a --runner: don't look first whether its workers see OUT and INPUT and have the same versions
    preflight: bool
