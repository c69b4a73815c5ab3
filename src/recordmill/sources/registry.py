"""The kinds of input, an entry each: what a kind is called, how it is told and who plans it.

Detection, listing, the command line and the planning of a build read the kinds from here and nowhere else. What an
entry names by import path is imported when it is needed, so that `--help` and detection load nothing heavy.
A new kind is a module (its plan, its options and how it is told from content) and an entry below.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import did_you_mean
from recordmill.records.images.header import EXTENSIONS as IMAGE_EXTENSIONS

COMPRESSED_EXTENSIONS = ("gz", "zst", "bz2", "xz", "zlib")


@dataclass(frozen=True)
class Kind:
    """One kind of input. Import paths are `module:name` below `recordmill`.

    Attributes:
        extensions: Lower-case; a hint, where the content leaves a choice.
        shared_extensions: Those that other things bear as often: no hint.
        recognizer_path: Import path of a function of a `sources.common.content.ContentSample` that gives what was recognised, for
            people, or "" if the sample is not of this kind. The kinds are asked in their order below, those of bytes
            before those of text. "": one file does not tell it.
        has_partitions: What folders called `NAME=VALUE` say is added to its records as columns.
        is_textual: It is told from text, and its files look like those of other textual kinds.
        options_path: Import path of the dataclass of its own options.
        planner_path: Import path of a function of (listing, options, PlanOptions) that gives a `Source`, or, of a kind with
            many records a file (tables), of (files, options, PlanOptions): the files of this kind, with their splits.
    """

    name: str
    extensions: tuple[str, ...]
    recognizer_path: str
    options_path: str
    planner_path: str
    is_textual: bool = False
    is_table: bool = True
    has_partitions: bool = False
    shared_extensions: tuple[str, ...] = ()

    @cached_property
    def recognizer(self) -> Any:
        return _import_name(self.recognizer_path)

    @cached_property
    def options_class(self) -> Any:
        return _import_name(self.options_path)

    @cached_property
    def planner(self) -> Any:
        return _import_name(self.planner_path)


KINDS = (
    Kind(
        name="images",
        extensions=tuple(IMAGE_EXTENSIONS),
        recognizer_path="sources.common.content:recognize_image",
        options_path="sources.images.source:ImageOptions",
        planner_path="sources.images.source:plan_images",
        is_table=False,
    ),
    Kind(
        name="csv",
        extensions=("csv", "tsv", "psv", "tab"),
        recognizer_path="sources.common.content:recognize_csv",
        options_path="sources.csv.dialect:CsvOptions",
        planner_path="sources.csv.source:plan_csv",
        is_textual=True,
        has_partitions=True,
    ),
    Kind(
        name="jsonl",
        extensions=("jsonl", "ndjson", "jsonlines"),
        recognizer_path="sources.common.content:recognize_jsonl",
        options_path="sources.jsonl.source:JsonlOptions",
        planner_path="sources.jsonl.source:plan_jsonl",
        is_textual=True,
        has_partitions=True,
        shared_extensions=("json",),
    ),
    Kind(
        name="text",
        extensions=("txt", "text"),
        recognizer_path="sources.common.content:recognize_text",
        options_path="sources.text.source:TextOptions",
        planner_path="sources.text.source:plan_text",
        is_textual=True,
        is_table=False,
    ),
    Kind(
        name="parquet",
        extensions=("parquet", "pq"),
        recognizer_path="sources.common.content:recognize_parquet",
        options_path="sources.common.contract:TableOptions",
        planner_path="sources.arrow.parquet:plan_parquet",
        has_partitions=True,
    ),
    Kind(
        name="numpy",
        extensions=("npy", "npz"),
        recognizer_path="sources.common.content:recognize_numpy",
        options_path="sources.arrow.numpy_files:NumpyOptions",
        planner_path="sources.arrow.numpy_files:plan_numpy",
        is_table=False,
    ),
    Kind(
        name="tfrecord",
        extensions=("tfrecord", "tfrecords", "tfr"),
        recognizer_path="sources.common.content:recognize_tfrecord",
        options_path="sources.tfrecord.source:TfrecordOptions",
        planner_path="sources.tfrecord.source:plan_tfrecord",
    ),
    Kind(
        name="webdataset",
        extensions=(),
        recognizer_path="",
        options_path="sources.images.samples:SampleOptions",
        planner_path="sources.images.samples:plan_samples",
        is_table=False,
    ),
)
KIND_NAMES = tuple(kind.name for kind in KINDS)
KIND_BY_EXTENSION = {extension: kind.name for kind in KINDS for extension in kind.extensions}
# an empty file of these is no clutter: it is a failed copy or an empty document, which its kind has to judge
DATA_EXTENSIONS = frozenset(
    (
        *KIND_BY_EXTENSION,
        *(extension for kind in KINDS for extension in kind.shared_extensions),
        *COMPRESSED_EXTENSIONS,
    )
)


def find_kind(name: str) -> Kind:
    """Returns the entry of that name.

    Raises:
        UsageError: there is none; the message lists those that there are.
    """
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise UsageError(
        f"no kind {name!r}: one of {', '.join(KIND_NAMES)}{did_you_mean(name, KIND_NAMES)}"
    )


def _import_name(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(f"recordmill.{module}"), name)
