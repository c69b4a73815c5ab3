"""Table of the outputs of `read`, such as Parquet or CSV.

An entry contains the name, the writer and the options of an output. The plan of a read, its memory,
its size estimate and the command line take everything that depends on the output from this table.
To add an output, write a module with its writer and add an entry.

Entries name functions and classes by import path. They are imported on first use, so that `--help`
imports none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol

from recordmill.base.errors import UsageError
from recordmill.base.option_names import did_you_mean, option

if TYPE_CHECKING:
    import pyarrow as pa

    from recordmill.schemas.feature import Schema

# 32 MiB for a writer that writes each batch immediately.
_STREAM_BUFFER_BYTES = 32 << 20
# 128 MiB for a writer that collects 64 MiB: these, and the part of them that is being encoded.
_GROUP_BUFFER_BYTES = 128 << 20


class OutputWriter(Protocol):
    """Writer of batches to one file or folder, which is complete after `close`.

    Attributes:
        rows: Number of rows that were written.
    """

    rows: int

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages to the user about the records that were written."""
        return ()

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends the rows of a batch. Its columns have the Arrow types of the schema."""

    def close(self) -> None:
        """Completes the output."""

    def abort(self) -> None:
        """Closes the files of an incomplete output.

        No reader accepts the output as complete then.
        """


@dataclass(frozen=True)
class WriterSettings:
    """Settings of a writer in addition to path and schema.

    Attributes:
        options: An object of `Output.options_class`. If `Output.needs_layout`, the layout that was
            completed from it.
        split: The split of the records.
        memory_bytes: The value of `--memory`. 0 means no limit.
    """

    options: Any = None
    split: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True)
class Output:
    """An entry of the table: one output of `read`.

    Import paths have the form `module:name` and are relative to `recordmill`.

    Attributes:
        name: The name, which is also the extension of its files.
        description: The text for `--help`, in lines of at most 110 characters.
        writer: Import path of a class or function that takes (path, schema, WriterSettings) and
            returns an `OutputWriter`. The path does not exist yet.
        options_path: Import path of the class of options that other outputs lack, an `Options`. ""
            if there are none.
        schema_check: Import path of a function that raises UsageError if the output can't hold a
            schema. "" if it holds every schema.
        needs_layout: Whether `exporting.plan` completes the options from some of the records.
        per_split: Whether each split is one file or folder. Otherwise a split is divided into files
            of about `--file-size`.
        is_folder: Whether the output is a folder.
        is_durable: Whether `close` flushes the output to the disk.
        holds_ragged: Whether the output can hold images of different sizes.
        must_fit_memory: Whether readers load the complete output into memory.
        buffer_bytes: Memory of the writer in addition to the batch.
        buffer_bytes_per_value: Further memory for each value of a list, while the list is written.
            It is an upper limit for values of one byte.
    """

    name: str
    description: str
    writer: str
    options_path: str = ""
    schema_check: str = ""
    needs_layout: bool = False
    per_split: bool = False
    is_folder: bool = False
    is_durable: bool = False
    holds_ragged: bool = True
    must_fit_memory: bool = False
    buffer_bytes: int = _STREAM_BUFFER_BYTES
    buffer_bytes_per_value: int = 0

    @property
    def options_class(self) -> Any:
        """The class of options that other outputs lack, or None."""
        return resolve_name(f"recordmill.{self.options_path}") if self.options_path else None

    def file_name(self, stem: str) -> str:
        """Returns the name of a file or folder of this output.

        >>> find_output("parquet").file_name("train-00000"), find_output("npy").file_name("train")
        ('train-00000.parquet', 'train')
        """
        return stem if self.is_folder else f"{stem}.{self.name}"

    def new_writer(self, path: Path, schema: Schema, settings: WriterSettings) -> OutputWriter:
        """Opens a writer for a path that does not exist yet."""
        return resolve_name(f"recordmill.{self.writer}")(path, schema, settings)

    def check_schema(self, schema: Schema) -> None:
        """Raises UsageError if the output can't hold a feature."""
        if self.schema_check:
            resolve_name(f"recordmill.{self.schema_check}")(schema)


OUTPUTS = (
    Output(
        "parquet",
        (
            "columns of scalars, lists, and tensors as fixed-size lists (variable ones if they may be missing),\n"
            "in row groups of --row-group-size, with zstd level 1, dictionaries for texts and whole numbers,\n"
            "statistics, and the schema in the metadata"
        ),
        "records.writers.parquet:open_parquet",
        options_path="records.writers.options:ParquetOptions",
        buffer_bytes=_GROUP_BUFFER_BYTES,
        # Measured with pyarrow 25. A value needs two levels, a number of 4 bytes and a page of
        # them. Each of these is in a buffer that doubles when it grows.
        buffer_bytes_per_value=35,
    ),
    Output(
        "npy",
        (
            "a folder per split with a file per feature; lists, text and bytes have NAME.values.npy and\n"
            "NAME.row_splits.npy, and features that may be missing have NAME.valid.npy;\n"
            "recordmill.reader.open_columns(FOLDER) opens all of them"
        ),
        "records.writers.npy:NpyWriter",
        per_split=True,
        is_folder=True,
        holds_ragged=False,
    ),
    Output(
        "npz",
        "the arrays of npy in one file per split, if it fits --memory",
        "records.writers.npy:NpzWriter",
        per_split=True,
        holds_ragged=False,
        must_fit_memory=True,
    ),
    Output(
        "arrow", "Arrow IPC files, which can be memory-mapped", "records.writers.arrow:ArrowWriter"
    ),
    Output(
        "jsonl",
        "one JSON object per line, for small data sets; tensors are nested lists, bytes base64, missing "
        "values null",
        "records.writers.jsonl:JsonWriter",
    ),
    Output(
        "csv",
        "single numbers and texts with a header, for small data sets; lists, tensors and "
        "bytes are refused",
        "records.writers.csv:CsvWriter",
        schema_check="records.writers.csv:check_csv",
    ),
    Output(
        "files",
        (
            "a folder per split with a file per record, which has the bytes of one feature, and metadata.jsonl with the\n"
            "other features; its first field is file_name, as for Hugging Face's ImageFolder (null if a record lacks\n"
            "the feature).\n"
            "The files are --file-feature, or the only bytes feature with images, or the only bytes feature.\n"
            'They are named by --name-feature, or by "source" from the build (without the folder of the split), or by\n'
            "the record's number in the split, from 0, in folders of 10,000.\n"
            "If a name leads out of the folder or is not possible, the number is used. If a name occurs twice, the\n"
            "number is added. Both are counted"
        ),
        "records.writers.files:open_files",
        options_path="records.writers.options:FileOptions",
        needs_layout=True,
        per_split=True,
        is_folder=True,
        is_durable=True,
    ),
)
OUTPUT_NAMES = tuple(output.name for output in OUTPUTS)


def find_output(name: str) -> Output:
    """Returns the output with this name.

    Raises:
        UsageError: No output has this name. The message lists all names.
    """
    for output in OUTPUTS:
        if output.name == name:
            return output
    raise UsageError(
        "{to}: must be one of {output_names}{did_you_mean}",
        to=option("to", name),
        output_names=", ".join(OUTPUT_NAMES),
        did_you_mean=did_you_mean(name, OUTPUT_NAMES),
    )
