"""Results of the user's parser: Arrow files, and a JSON file per input file.

The names of all files of one result begin with `parsed_name`. It depends on the input file (path,
size and time) and on the code of the function. `NAME.json` appears when the Arrow files are
complete, and lists them. So a build that continues a killed one finds the files that need not be
parsed again. On an engine, a file that can't be parsed has `NAME.failed` instead.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pyarrow as pa

from recordmill.base.documents import Check, Count, Parse, convert, matches
from recordmill.base.errors import DataError, Reject
from recordmill.sources.parser.function import ParserFunction
from recordmill.sources.parser.pool import WorkerDied, WorkerPool
from recordmill.storage.archives import is_archive_member
from recordmill.storage.arrow_files import open_batches
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import (
    check_unchanged,
    create_file,
    is_remote,
    put_if_absent,
    read_range,
    stat,
    write_all,
)
from recordmill.storage.folders import fetch_file, join, rename, scratch_folder
from recordmill.storage.json_fields import convert_json, parse_json

RESULT_SUFFIX, FAILURE_SUFFIX = ".json", ".failed"


@dataclass(frozen=True)
class ParsedFile:
    """The records of one input file.

    Attributes:
        segments: Paths of the Arrow files. All batches of one have the same schema.
        first_batches: The number of the first batch of each Arrow file.
        rows: Number of records of each batch.
        sizes: Size of each batch in bytes.
    """

    segments: tuple[str, ...] = ()
    first_batches: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    def batch_ranges(self) -> Iterator[tuple[int, int]]:
        """Yields the numbers (begin, end) of the batches in each Arrow file."""
        return itertools.pairwise((*self.first_batches, len(self.rows)))

    def batches(self, begin: int = 0, end: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the batches [begin, end) of the file. `end=None` reads to the last one."""
        end = len(self.rows) if end is None else end
        for path, (first, stop) in zip(self.segments, self.batch_ranges(), strict=True):
            if first < end and begin < stop:
                reader = open_batches(path)
                numbers = range(max(begin, first), min(end, stop))
                yield from (reader.get_batch(number - first) for number in numbers)


def _parse_schema(value: Any) -> pa.Schema:
    """Returns the schema of a base64 text, or raises ValueError."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(convert(str, value))))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise ValueError(f"is not a schema: {error}") from None


class _ResultFields(TypedDict):
    """Fields of the JSON file of a result. See `ParsedFile` and `ParsedResult`."""

    segments: Sequence[Annotated[str, matches("[0-9a-f-]+[.]arrow", "the name of an Arrow file")]]
    segment_bytes: Sequence[Count]
    schemas: Sequence[Annotated[pa.Schema, Parse(_parse_schema)]]
    first_batches: Sequence[Count]
    rows: Sequence[Count]
    sizes: Sequence[Count]
    null_counts: Sequence[Mapping[str, Count]]


def _is_consistent(fields: _ResultFields) -> bool:
    """Returns whether the lists of a result describe the same Arrow files and batches."""
    per_segment = {len(fields[name]) for name in ("segments", "segment_bytes", "schemas")}
    per_batch = {len(fields[name]) for name in ("rows", "sizes")}
    bounds = [*fields["first_batches"], len(fields["null_counts"])]
    batches = itertools.pairwise(bounds)
    return (
        per_segment == {len(bounds) - 1}
        and per_batch == {bounds[-1]}
        and bounds[0] == 0
        and all(
            begin < end
            and all(nulls.keys() == {*schema.names} for nulls in fields["null_counts"][begin:end])
            for schema, (begin, end) in zip(fields["schemas"], batches, strict=True)
        )
    )


_RESULT = Annotated[_ResultFields, Check(_is_consistent, "lists that fit each other")]


@dataclass(frozen=True)
class ParsedResult:
    """The records of one input file, with types and sizes for the plan.

    Attributes:
        records: The records.
        segment_bytes: Size of each Arrow file in bytes.
        schemas: Schema of each Arrow file.
        null_counts: Number of nulls by column, of each batch.
    """

    records: ParsedFile
    segment_bytes: tuple[int, ...] = ()
    schemas: tuple[pa.Schema, ...] = ()
    null_counts: tuple[Mapping[str, int], ...] = ()

    @classmethod
    def from_json(cls, value: Any, path: str) -> ParsedResult:
        """Returns the result that a JSON file describes.

        Args:
            value: The parsed content of the file.
            path: The file. The Arrow files are in the same folder.

        Raises:
            DataError: A field is missing or invalid.
        """
        fields: _ResultFields = convert_json(_RESULT, value, path)
        records = ParsedFile(
            tuple(join(os.path.dirname(path), name) for name in fields["segments"]),
            tuple(fields["first_batches"]),
            tuple(fields["rows"]),
            tuple(fields["sizes"]),
        )
        return cls(
            records,
            tuple(fields["segment_bytes"]),
            tuple(fields["schemas"]),
            tuple(fields["null_counts"]),
        )

    def batch_schemas(self) -> Iterator[pa.Schema]:
        """Yields the schema of each batch."""
        for schema, (begin, end) in zip(self.schemas, self.records.batch_ranges(), strict=True):
            yield from itertools.repeat(schema, end - begin)


def parsed_name(file: InputFile, function: ParserFunction) -> str:
    """Returns the start of the names of all files of an input file's result."""
    # An object of a store has an etag, which is part of the state, instead of a useful time.
    planned = file.stat
    state = repr(
        (
            file.path,
            planned.size_bytes,
            planned.mtime_ns,
            planned.etag,
            function.name,
            function.digest,
        )
    )
    return hashlib.blake2b(state.encode(), digest_size=16).hexdigest()


def parse_file(file: InputFile, pool: WorkerPool, prefix: str) -> dict[str, Any] | Reject:
    """Parses a file in a worker process.

    Args:
        file: The input file. The function gets a local copy of an object of a store, and of a
            member of an archive.
        pool: The worker processes.
        prefix: Start of the paths of the Arrow files, in a local folder.

    Returns:
        The answer of the process (see `worker.py`), or the reject of the file.

    Raises:
        OSError: The Arrow files can't be written.
        DataError: The file has changed since the build was planned.
        UsageError: The function can't be loaded.
    """
    try:
        answer = _parse_local_copy(file, pool, prefix)
    except WorkerDied as error:
        return Reject(file.name, "", "parser-died", str(error))
    if "output_error" in answer:
        # The file is not to blame, so the build ends.
        raise OSError(*answer["output_error"], f"{prefix}{RESULT_SUFFIX}")
    check_unchanged(file.path, file.stat, file.name)
    if "failure" in answer:
        return Reject(file.name, "", "parser-error", answer["failure"])
    return answer


def _parse_local_copy(file: InputFile, pool: WorkerPool, prefix: str) -> dict[str, Any]:
    if not (is_remote(file.path) or is_archive_member(file.path)):
        return pool.parse(os.path.abspath(file.path), prefix)
    # The copy has the name of the original.
    with scratch_folder("recordmill-parser-") as scratch:
        path = os.path.join(scratch, os.path.basename(file.name))
        fetch_file(file.path, path)
        return pool.parse(path, prefix)


def put_result(folder: str, name: str, answer: Mapping[str, Any]) -> None:
    """Creates the JSON file of a result for other hosts, unless it exists.

    The Arrow files must be complete and durable.

    Args:
        folder: A folder on a shared disk, or the URL of one in a store.
        name: See `parsed_name`.
        answer: The answer of the worker process.
    """
    put_if_absent(join(folder, name + RESULT_SUFFIX), json.dumps(_to_fields(answer)).encode())


def write_result(prefix: str, folder: str, name: str, answer: Mapping[str, Any]) -> ParsedResult:
    """Writes the JSON file of a result on this machine. The Arrow files must be complete.

    Nothing is synced, because that takes longer than to parse a small file. After a power failure,
    `load_complete_result` finds out which files were on the disk.

    Args:
        prefix: The start of the paths of the Arrow files.
        folder: The local folder of the Arrow files.
        name: See `parsed_name`.
        answer: The answer of the worker process.

    Returns:
        The result.
    """
    fields, path = _to_fields(answer), join(folder, name + RESULT_SUFFIX)
    with create_file(prefix) as file:
        write_all(file, json.dumps(fields).encode())
    rename(prefix, path)
    return ParsedResult.from_json(fields, path)


def _to_fields(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of the JSON file, with file names instead of paths."""
    return {**answer, "segments": [os.path.basename(path) for path in answer["segments"]]}


def load_complete_result(folder: str, name: str) -> ParsedResult:
    """Loads the result of another run, and checks its Arrow files.

    Raises:
        FileNotFoundError: There is no result.
        DataError: A file is damaged or not complete.
    """
    result = load_result(folder, name)
    for path, size in zip(result.records.segments, result.segment_bytes, strict=True):
        if stat(path).size_bytes != size:
            raise DataError("is not complete", source=path)
    return result


def load_result(folder: str, name: str) -> ParsedResult:
    """Loads the JSON file of a result.

    Raises:
        FileNotFoundError: There is no result.
        DataError: The file is damaged.
    """
    path = join(folder, name + RESULT_SUFFIX)
    return ParsedResult.from_json(_load_json(path), path)


def put_failure(folder: str, name: str, reject: Reject) -> None:
    """Creates the file for an input file that can't be parsed, unless it exists."""
    fields = {"reason": reject.reason, "message": str(reject.message)}
    put_if_absent(join(folder, name + FAILURE_SUFFIX), json.dumps(fields).encode())


class _FailureFields(TypedDict):
    """Fields of the file for an input file that can't be parsed."""

    reason: str
    message: str


def load_failure(folder: str, name: str, file: InputFile) -> Reject:
    """Loads the reject of a file that can't be parsed.

    Raises:
        FileNotFoundError: There is no failure.
        DataError: The file is damaged.
    """
    path = join(folder, name + FAILURE_SUFFIX)
    fields: _FailureFields = convert_json(_FailureFields, _load_json(path), path)
    return Reject(file.name, "", fields["reason"], fields["message"])


def _load_json(path: str) -> Any:
    return parse_json(read_range(path).tobytes(), path)
