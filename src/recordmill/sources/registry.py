"""Table of the kinds of input, such as CSV or images.

Detection, listing, the command line and the planning of a build read the kinds from this table and
nowhere else. An entry names its functions by import path, so detection imports no kind that it does
not need, and `--help` only the modules with the options.

A new kind needs an entry in KINDS, a module with its plan function and its recognizer, and a module
with its options.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import did_you_mean
from recordmill.records.images.header import FORMATS_BY_EXTENSION as IMAGE_EXTENSIONS

COMPRESSED_EXTENSIONS = ("gz", "zst", "bz2", "xz", "zlib")


@dataclass(frozen=True)
class Kind:
    """One kind of input.

    Import paths have the form `module:name`, relative to `recordmill`.

    Attributes:
        name: The name on the command line.
        extensions: Lower-case extensions of such files, without a dot. They decide if the content
            fits several kinds.
        recognizer_path: Import path of a function that takes a
            `sources.common.content.ContentSample` and returns a description of the content, or ""
            if the sample is not of this kind. The path is "" if one file is not enough to recognize
            the kind.
        options_path: Import path of the class of options of the kind, an `Options`. With a
            `TableOptions`, folders called `NAME=VALUE` become columns, and `pipelines.build_source`
            applies the options of this class to the columns.
        planner_path: Import path of a function that takes (listing, options, PlanOptions) and
            returns a `Source`. If `is_table`, its first argument is not a listing but the input
            files of this kind, with their splits.
        is_textual: Whether the content is text. Text formats look alike, so they are tried after
            all binary kinds.
        is_table: Whether each file has many records.
        shared_extensions: Extensions that such files often have, but files without records as well.
            They never decide the kind.
    """

    name: str
    extensions: tuple[str, ...]
    recognizer_path: str
    options_path: str
    planner_path: str
    is_textual: bool = False
    is_table: bool = True
    shared_extensions: tuple[str, ...] = ()

    @cached_property
    def recognizer(self) -> Any:
        return resolve_name(f"recordmill.{self.recognizer_path}")

    @cached_property
    def options_class(self) -> Any:
        return resolve_name(f"recordmill.{self.options_path}")

    @cached_property
    def planner(self) -> Any:
        return resolve_name(f"recordmill.{self.planner_path}")


# Text formats are tried in this order, so more specific ones come first.
KINDS = (
    Kind(
        name="images",
        extensions=tuple(IMAGE_EXTENSIONS),
        recognizer_path="sources.common.content:recognize_image",
        options_path="sources.images.options:ImageOptions",
        planner_path="sources.images.source:plan_images",
        is_table=False,
    ),
    Kind(
        name="csv",
        extensions=("csv", "tsv", "psv", "tab"),
        recognizer_path="sources.common.content:recognize_csv",
        options_path="sources.csv.options:CsvOptions",
        planner_path="sources.csv.source:plan_csv",
        is_textual=True,
    ),
    Kind(
        name="jsonl",
        extensions=("jsonl", "ndjson", "jsonlines"),
        recognizer_path="sources.common.content:recognize_jsonl",
        options_path="sources.jsonl.options:JsonlOptions",
        planner_path="sources.jsonl.source:plan_jsonl",
        is_textual=True,
        shared_extensions=("json",),
    ),
    Kind(
        name="text",
        extensions=("txt", "text"),
        recognizer_path="sources.common.content:recognize_text",
        options_path="sources.text.options:TextOptions",
        planner_path="sources.text.source:plan_text",
        is_textual=True,
        is_table=False,
    ),
    Kind(
        name="parquet",
        extensions=("parquet", "pq"),
        recognizer_path="sources.common.content:recognize_parquet",
        options_path="sources.common.options:TableOptions",
        planner_path="sources.arrow.parquet:plan_parquet",
    ),
    Kind(
        name="arrow",
        extensions=("arrow", "feather", "arrows", "ipc"),
        recognizer_path="sources.common.content:recognize_arrow",
        options_path="sources.common.options:TableOptions",
        planner_path="sources.arrow.ipc_files:plan_arrow",
    ),
    Kind(
        name="numpy",
        extensions=("npy", "npz"),
        recognizer_path="sources.common.content:recognize_numpy",
        options_path="sources.arrow.options:NumpyOptions",
        planner_path="sources.arrow.numpy_files:plan_numpy",
        is_table=False,
    ),
    Kind(
        name="tfrecord",
        extensions=("tfrecord", "tfrecords", "tfr"),
        recognizer_path="sources.common.content:recognize_tfrecord",
        options_path="sources.common.options:InputOptions",
        planner_path="sources.tfrecord.source:plan_tfrecord",
    ),
    Kind(
        name="webdataset",
        extensions=(),
        recognizer_path="",
        options_path="sources.images.options:SampleOptions",
        planner_path="sources.images.samples:plan_samples",
        is_table=False,
    ),
)
KIND_NAMES = tuple(kind.name for kind in KINDS)
KIND_BY_EXTENSION = {extension: kind.name for kind in KINDS for extension in kind.extensions}
# An empty file with such an extension is a failed copy or an empty document. It is not ignored,
# because the kind must decide about it.
DATA_EXTENSIONS = frozenset(
    (
        *KIND_BY_EXTENSION,
        *(extension for kind in KINDS for extension in kind.shared_extensions),
        *COMPRESSED_EXTENSIONS,
    )
)


def find_kind(name: str) -> Kind:
    """Returns the kind of a name.

    Raises:
        UsageError: There is no such kind. The message lists all kinds.
    """
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise UsageError(
        f"no kind {name!r}: one of {', '.join(KIND_NAMES)}{did_you_mean(name, KIND_NAMES)}"
    )
