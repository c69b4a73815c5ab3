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
        "images",
        tuple(IMAGE_EXTENSIONS),
        "sources.common.content:recognize_image",
        "sources.images.source:ImageOptions",
        "sources.images.source:plan_images",
        is_table=False,
    ),
    Kind(
        "csv",
        ("csv", "tsv", "psv", "tab"),
        "sources.common.content:recognize_csv",
        "sources.csv.dialect:CsvOptions",
        "sources.csv.source:plan_csv",
        is_textual=True,
        has_partitions=True,
    ),
    Kind(
        "jsonl",
        ("jsonl", "ndjson", "jsonlines"),
        "sources.common.content:recognize_jsonl",
        "sources.jsonl.source:JsonlOptions",
        "sources.jsonl.source:plan_jsonl",
        is_textual=True,
        has_partitions=True,
        shared_extensions=("json",),
    ),
    Kind(
        "text",
        ("txt", "text"),
        "sources.common.content:recognize_text",
        "sources.text.source:TextOptions",
        "sources.text.source:plan_text",
        is_textual=True,
        is_table=False,
    ),
    Kind(
        "parquet",
        ("parquet", "pq"),
        "sources.common.content:recognize_parquet",
        "sources.common.contract:TableOptions",
        "sources.arrow.parquet:plan_parquet",
        has_partitions=True,
    ),
    Kind(
        "numpy",
        ("npy", "npz"),
        "sources.common.content:recognize_numpy",
        "sources.arrow.numpy_files:NumpyOptions",
        "sources.arrow.numpy_files:plan_numpy",
        is_table=False,
    ),
    Kind(
        "tfrecord",
        ("tfrecord", "tfrecords", "tfr"),
        "sources.common.content:recognize_tfrecord",
        "sources.tfrecord.source:TfrecordOptions",
        "sources.tfrecord.source:plan_tfrecord",
    ),
    Kind(
        "webdataset",
        (),
        "",
        "sources.images.samples:SampleOptions",
        "sources.images.samples:plan_samples",
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
