"""A worker process for the user's parser.

The parent starts it (`pool.py`), writes one JSON object per line to its standard input, and reads
one per line from its standard output. The first line describes the function, and each other line a
file. Records do not pass through the pipes: the worker writes them to Arrow files. What the user's
function prints goes to standard error.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import gc
import itertools
import json
import os
import queue
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.base.user_code import UserCodeError, describe_user_error, join_lines
from recordmill.sources.arrow.memory import SegmentWriter
from recordmill.sources.arrow.python_rows import rows_to_batches
from recordmill.sources.parser.function import ParserFunction
from recordmill.sources.values.flatten import flatten
from recordmill.storage.files import stat


def main() -> None:
    """Answers the lines of standard input until it ends."""
    # The descriptors of the pipes are moved, so that the user's function can neither read commands
    # nor write answers.
    commands = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    lines = queue.SimpleQueue[str]()
    threading.Thread(target=_read_lines, args=(commands, lines), daemon=True).start()
    parser = ParserFunction(**json.loads(lines.get()))
    try:
        function = parser.load()
    except UserCodeError as error:
        _answer(answers, {"error": str(error)})
        return
    # Records are kept until their batch is converted, so the garbage collector runs often. It need
    # not search the modules each time.
    gc.freeze()
    _answer(answers, {})
    while True:
        command = json.loads(lines.get())
        _answer(answers, _parse(function, parser, command["path"], command["prefix"]))


def _read_lines(commands: TextIO, lines: queue.SimpleQueue[str]) -> None:
    for line in commands:
        lines.put(line)
    # The parent has ended, maybe by a kill. The user's function may still be running.
    os._exit(0)


def _answer(answers: TextIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


class _OutputError(OSError):
    """The Arrow files can't be written, for example because the disk is full."""


@contextlib.contextmanager
def _output_errors() -> Iterator[None]:
    """Turns an OSError inside the `with` block into an _OutputError.

    The caller can then distinguish it from an OSError of the user's function.
    """
    try:
        yield
    except OSError as error:
        raise _OutputError(error.errno or errno.EIO, error.strerror or str(error)) from None


def _parse(
    function: Callable[..., Any], parser: ParserFunction, path: str, prefix: str
) -> dict[str, Any]:
    """Parses a file into the Arrow files `PREFIX-00000.arrow`, `PREFIX-00001.arrow` and so on.

    Returns:
        The answer for the parent process. It describes the Arrow files and their batches. After an
        error it has a single entry: `failure` is the error of the user's function. `output_error`
        is (errno, text) of an error while the Arrow files were written.
    """
    writer = SegmentWriter(prefix)
    null_counts: list[dict[str, int]] = []
    try:
        for batch in _to_batches(function(path)):
            flat = flatten(batch)
            null_counts.append(
                {
                    name: column.null_count
                    for name, column in zip(flat.schema.names, flat.columns, strict=True)
                }
            )
            with _output_errors():
                writer.write(flat)
        with _output_errors():
            writer.close()
    except _OutputError as error:
        return {"output_error": [error.errno, error.strerror]}
    except (Exception, SystemExit) as error:
        with contextlib.suppress(OSError):
            writer.close()
        return {"failure": _describe_failure(error, parser)}
    return {
        "segments": writer.segments,
        "first_batches": writer.first_batches,
        "rows": writer.rows,
        "sizes": writer.sizes,
        "segment_bytes": [stat(path).size_bytes for path in writer.segments],
        "schemas": [base64.b64encode(schema.serialize()).decode() for schema in writer.schemas],
        "null_counts": null_counts,
    }


def _to_batches(result: Any) -> Iterator[pa.RecordBatch]:
    """Yields the records that the user's function returns or yields.

    Raises:
        DataError: The result is neither dicts nor RecordBatches.
    """
    if isinstance(result, Mapping | pa.RecordBatch | pa.Table):
        result = (result,)
    try:
        items = iter(result)
    except TypeError:
        raise DataError(
            f"returns {type(result).__name__}, not dicts of feature names to values or RecordBatches"
        ) from None
    tables = (pa.RecordBatch, pa.Table)
    for is_table, group in itertools.groupby(items, lambda item: isinstance(item, tables)):
        if not is_table:
            yield from rows_to_batches(group)
            continue
        for table in group:
            batches = table.to_batches() if isinstance(table, pa.Table) else (table,)
            for batch in batches:
                batch.validate(full=True)
                yield batch


def _describe_failure(error: BaseException, parser: ParserFunction) -> str:
    """Returns the error with the line of the user's code, as one line for a reject."""
    if isinstance(error, DataError):
        place = f"{error.place}: " if error.place else ""
        return f"{place}{join_lines(error.reason)}"[:_MAX_MESSAGE_CHARS]
    source = parser.source_file
    if not source:
        frames = traceback.extract_tb(error.__traceback__)
        # The first frame outside of this module is that of the user's function.
        own = (frame.filename for frame in frames if not frame.filename.startswith(_PACKAGE))
        source = next(own, "")
    described = describe_user_error(error, source)
    location = f"{os.path.basename(source)}, " if source else ""
    return f"{location}{described}"[:_MAX_MESSAGE_CHARS]


# Maximum length of the message of a reject.
_MAX_MESSAGE_CHARS = 300
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
