"""Results of the user's parser: Arrow files, and a JSON file per input file.

All files of one result have names that begin with `parsed_name`, which depends on the input file
(path, size and time) and on the code of the function. `NAME.json` appears when the Arrow files are
complete, and lists them. So a build that continues a killed one finds the files that need not be
parsed again. On an engine, a file that can't be parsed has `NAME.failed` instead.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

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
from recordmill.storage.json_fields import parse_json

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


@dataclass(frozen=True)
class ParsedResult:
    """The records of one input file, with facts for the plan.

    Attributes:
        records: The records.
        schemas: Schema of each Arrow file.
        null_counts: Number of nulls by column, of each batch.
    """

    records: ParsedFile
    schemas: tuple[pa.Schema, ...] = ()
    null_counts: tuple[Mapping[str, int], ...] = ()

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any], folder: str) -> ParsedResult:
        """Returns the result from the answer of a worker process.

        Args:
            answer: The answer, see `worker.py`, or the content of the JSON file.
            folder: The folder that contains the Arrow files now.
        """
        records = ParsedFile(
            tuple(join(folder, name) for name in segment_names(answer)),
            tuple(answer["first_batches"]),
            tuple(answer["rows"]),
            tuple(answer["sizes"]),
        )
        schemas = (
            pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema)))
            for schema in answer["schemas"]
        )
        return cls(records, tuple(schemas), tuple(answer["null_counts"]))

    def batch_schemas(self) -> Iterator[pa.Schema]:
        """Yields the schema of each batch."""
        for schema, (begin, end) in zip(self.schemas, self.records.batch_ranges(), strict=True):
            yield from itertools.repeat(schema, end - begin)


def parsed_name(file: InputFile, function: ParserFunction) -> str:
    """Returns the start of the names of the result of an input file."""
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


def segment_names(answer: Mapping[str, Any]) -> list[str]:
    """Returns the names of the Arrow files of a result, without their folders."""
    return [os.path.basename(path) for path in answer["segments"]]


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
    put_if_absent(join(folder, name + RESULT_SUFFIX), _to_content(answer))


def write_result(prefix: str, folder: str, name: str, answer: Mapping[str, Any]) -> None:
    """Writes the JSON file of a result on this machine. The Arrow files must be complete.

    Nothing is synced, because that takes longer than to parse a small file. After a power failure,
    `load_complete_result` finds out which files were on the disk.

    Args:
        prefix: The start of the paths of the Arrow files.
        folder: A local folder.
        name: See `parsed_name`.
        answer: The answer of the worker process.
    """
    with create_file(prefix) as file:
        write_all(file, _to_content(answer))
    rename(prefix, join(folder, name + RESULT_SUFFIX))


def _to_content(answer: Mapping[str, Any]) -> bytes:
    return json.dumps({**answer, "segments": segment_names(answer)}).encode()


def load_complete_result(folder: str, name: str) -> dict[str, Any]:
    """Loads the result of another run, and checks its Arrow files.

    Raises:
        FileNotFoundError: There is no result.
        DataError: A file is not complete.
    """
    answer = load_result(folder, name)
    for segment, size in zip(segment_names(answer), answer["segment_bytes"], strict=True):
        if stat(path := join(folder, segment)).size_bytes != size:
            raise DataError("is not complete", source=path)
    return answer


def load_result(folder: str, name: str) -> dict[str, Any]:
    """Loads the JSON file of a result.

    Raises:
        FileNotFoundError: There is no result.
        DataError: The file is not JSON.
    """
    return _load_json(join(folder, name + RESULT_SUFFIX))


def put_failure(folder: str, name: str, reject: Reject) -> None:
    """Creates the file for an input file that can't be parsed, unless it exists."""
    fields = {"reason": reject.reason, "message": str(reject.message)}
    put_if_absent(join(folder, name + FAILURE_SUFFIX), json.dumps(fields).encode())


def load_failure(folder: str, name: str, file: InputFile) -> Reject:
    """Loads the reject of a file that can't be parsed.

    Raises:
        FileNotFoundError: There is no failure.
        DataError: The file is not JSON.
    """
    fields = _load_json(join(folder, name + FAILURE_SUFFIX))
    return Reject(file.name, "", fields["reason"], fields["message"])


def _load_json(path: str) -> dict[str, Any]:
    content: dict[str, Any] = parse_json(read_range(path).tobytes(), path)
    return content
