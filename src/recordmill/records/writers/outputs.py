"""Lists the outputs of a read, an entry each: its name, its writer, and the options that it serves.

The plan of a read, its memory, its estimate and the command line take all that depends on an output from here and
nowhere else. Objects that an entry names by import path are imported when they are needed, so that `--help` loads
nothing heavy. A new output is a module (its writer, and what it can't hold) and an entry below.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from recordmill.base.errors import UsageError
from recordmill.base.option_names import did_you_mean, option

if TYPE_CHECKING:
    import pyarrow as pa

    from recordmill.schemas.feature import Schema

_STREAM_BUFFER_BYTES = 32 << 20  # 32 MiB: what a writer holds that writes each batch as it comes
_GROUP_BUFFER_BYTES = (
    128 << 20
)  # 128 MiB: of one that collects 64 MiB, these and what is being encoded of them


class OutputWriter(Protocol):
    """Takes batches of a schema's Arrow types to one output, which is valid when it is closed."""

    rows: int

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for people on the records that it wrote."""
        return ()

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends the rows of a batch."""

    def close(self) -> None:
        """Makes the output valid."""

    def abort(self) -> None:
        """Leaves the output as it is: nothing takes it for a whole one."""


@dataclass(frozen=True)
class WriterSettings:
    """Settings of a writer beside path and schema.

    Attributes:
        own: The output's own options (`Output.own`); of an output with a layout, the layout.
        split: The split whose records it writes.
        memory_bytes: The value of --memory; 0: any.
    """

    options: Any = None
    split: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True)
class Output:
    """One output. Import paths are `module:name` below `recordmill`.

    Attributes:
        name: The name, which is also the extension of its files.
        about: The description for `--help`, in lines of at most 110 characters.
        writer: Import path of a class, or a function, of (path, schema, WriterSettings) that gives an `OutputWriter` of
            a path that does not exist yet.
        options: Options of `read` that only some outputs serve, and this one does.
        own: Import path of a function of the values of `options`, as keywords, that checks them and gives what the
            writer takes; "": there is none.
        check: Import path of a function of a schema that raises UsageError for what the output can't hold; "": it
            holds everything.
        needs_layout: The plan chooses, by the records, what `own` leaves open (`exporting.plan`).
        per_split: A split is one output, written in one go, instead of files of about --file-size.
        is_folder: The output is a folder.
        is_durable: The writer has flushed the output to the disk when it is closed.
        holds_ragged: The output can hold images of several sizes.
        must_fit_memory: Readers hold all of the output in memory.
        buffer_bytes: Memory of the writer beside the batch.
        buffer_bytes_per_value: Memory that it takes beside to write a list's value of one byte.
    """

    name: str
    description: str
    writer: str
    options: frozenset[str] = field(default_factory=frozenset)
    options_function: str = ""
    schema_check: str = ""
    needs_layout: bool = False
    per_split: bool = False
    is_folder: bool = False
    is_durable: bool = False
    holds_ragged: bool = True
    must_fit_memory: bool = False
    buffer_bytes: int = _STREAM_BUFFER_BYTES
    buffer_bytes_per_value: int = 0

    def file_name(self, stem: str) -> str:
        """Returns the name of an output: of a folder the stem itself."""
        return stem if self.is_folder else f"{stem}.{self.name}"

    def new_writer(self, path: Path, schema: Schema, settings: WriterSettings) -> OutputWriter:
        """Opens a writer of the output to a path that does not exist yet."""
        writer: OutputWriter = _load(self.writer)(path, schema, settings)
        return writer

    def parse_options(self, values: Any) -> Any:
        """Returns the writer's own options, of the values (attributes by name) of all options, or raises UsageError."""
        return (
            _load(self.options_function)(**{name: getattr(values, name) for name in self.options})
            if self.options_function
            else None
        )

    def check_schema(self, schema: Schema) -> None:
        """Raises UsageError for features that the output can't hold."""
        if self.schema_check:
            _load(self.schema_check)(schema)


OUTPUTS = (
    Output(
        "parquet",
        "real columns: scalars, lists, tensors as fixed-size lists (variable ones where they may be missing)\n"
        "in row groups of --row-group-size, zstd level 1, dictionaries for texts and whole numbers, statistics,\n"
        "and the schema in the metadata",
        "records.writers.parquet:open_parquet",
        options=frozenset({"row_group_rows", "row_group_size", "compression"}),
        options_function="records.writers.parquet:parse_parquet_options",
        buffer_bytes=_GROUP_BUFFER_BYTES,
        # measured with pyarrow 25: two levels, a number of 4 bytes, a page of them, each in a buffer that doubles
        buffer_bytes_per_value=35,
    ),
    Output(
        "npy",
        "a folder per split with a file per feature; variable lengths as NAME.values.npy and NAME.row_splits.npy,\n"
        "text and bytes likewise, NAME.valid.npy where a feature may be missing;\n"
        "recordmill.reader.open_columns(FOLDER) opens all of them",
        "records.writers.npy:NpyWriter",
        per_split=True,
        is_folder=True,
        holds_ragged=False,
    ),
    Output(
        "npz",
        "the same in one file per split, if it fits --memory",
        "records.writers.npy:NpzWriter",
        per_split=True,
        holds_ragged=False,
        must_fit_memory=True,
    ),
    Output("arrow", "Arrow IPC files, which memory-map", "records.writers.arrow:ArrowWriter"),
    Output(
        "jsonl",
        "a JSON object per line, for small sets: tensors as nested lists, bytes as base64, missing values as null",
        "records.writers.jsonl:JsonWriter",
    ),
    Output(
        "csv",
        "single numbers and texts with a header, for small sets; lists, tensors and bytes are refused by name",
        "records.writers.csv:CsvWriter",
        schema_check="records.writers.csv:check_csv",
    ),
    Output(
        "files",
        "a folder per split with a file per record, the bytes of one feature as they are, and metadata.jsonl, which\n"
        "holds the others as jsonl does; its first field is file_name, as Hugging Face's ImageFolder wants it (null\n"
        "where a record lacks the feature).\n"
        "The files are --file-feature, or the only bytes feature that holds images (the only one, if none does).\n"
        '--name-feature names them, or "source" as build wrote it (without the folder that said the split), or else\n'
        "the record's number in the split, from 0, in folders of 10,000.\n"
        "Names that lead out of the folder or that no system takes become the number; a name that is taken gets the\n"
        "number added. Both are counted",
        "records.writers.files:open_files",
        options=frozenset({"file_feature", "name_feature"}),
        options_function="records.writers.files:FileOptions",
        needs_layout=True,
        per_split=True,
        is_folder=True,
        is_durable=True,
    ),
)
OUTPUT_NAMES = tuple(output.name for output in OUTPUTS)
OUTPUT_OPTIONS = frozenset[str]().union(
    *(output.options for output in OUTPUTS)
)  # options of `read`


def find_output(name: str) -> Output:
    """Returns the entry of that name; UsageError lists those that exist."""
    for output in OUTPUTS:
        if output.name == name:
            return output
    raise UsageError(
        f"{option('to', name)}: one of {', '.join(OUTPUT_NAMES)}{did_you_mean(name, OUTPUT_NAMES)}"
    )


def find_outputs_with_option(option: str) -> list[str]:
    """Returns the names of the outputs that serve an option of `read`."""
    return [
        output.name
        for output in OUTPUTS
        if option in output.options or option not in OUTPUT_OPTIONS
    ]


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(f"recordmill.{module}"), name)
