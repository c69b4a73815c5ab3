"""A small table beside the data (.csv, .tsv, .jsonl) to `LabelRows`:
typed columns in memory, and the line of each row for messages.

Types of text are inferred over all rows as for the CSV kind: int64, float64, bool or text, and nothing is bent on the
way.
"""

from __future__ import annotations

import csv
import io
import json
import os.path
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import DataError, UsageError
from recordmill.sources.values.flatten import flatten
from recordmill.storage.files import read_range

_DELIMITERS = ",;\t|"
_NULLS = ("", "NA")
_INTEGER = r"^(0|-?[1-9][0-9]*)$"  # 007 and +49 are names, not numbers
_DECIMAL = r"^-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$|^-?(nan|NaN|inf|Inf)$"
_BOOLEAN = r"^(true|false|True|False|TRUE|FALSE)$"


@dataclass(frozen=True)
class LabelRows:
    """table: the columns. places: the line in the file at which each row begins, from 1."""

    table: pa.RecordBatch
    places: Sequence[int] = field(repr=False)


def read_label_file(path: str) -> LabelRows:
    """All rows of the file, by its extension a .csv, .tsv or .txt with a header, or a .jsonl.

    Raises:
        UsageError: it can't be read, or has another extension.
        DataError: it is not UTF-8, not well-formed, or empty; with the line.
    """
    name = os.path.basename(path)
    try:
        data = read_range(path).tobytes()
    except OSError as error:
        raise UsageError(f"--labels {path}: can't be read: {error.strerror}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"not UTF-8 ({error.reason}); convert it first", source=name, place=f"byte {error.start}"
        ) from error
    extension = name.rpartition(".")[2].lower()
    if extension in ("jsonl", "ndjson"):
        return _read_jsonl(text, name)
    if extension in ("csv", "tsv", "txt"):
        return _read_csv(text, name)
    raise UsageError(f"--labels {path}: a .csv, .tsv or .jsonl file is needed")


def _read_csv(text: str, name: str) -> LabelRows:
    header_line = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=header_line.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    places: list[int] = []
    try:
        header = next(reader, [])
        before = reader.line_num
        for row in reader:
            if row and len(row) != len(header):
                raise DataError(
                    f"{len(row)} fields where the header has {len(header)}", source=name, place=f"line {before + 1}"
                )
            if row:
                rows.append(row)
                places.append(before + 1)
            before = reader.line_num
    except csv.Error as error:
        raise DataError(str(error), source=name, place=f"line {reader.line_num}") from error
    if not rows or len(set(header)) < len(header):
        raise DataError("no rows" if not rows else f"two columns have one name: {', '.join(header)}", source=name)
    arrays = [_typed(pa.array(list(values), pa.large_string())) for values in zip(*rows, strict=True)]
    return LabelRows(pa.RecordBatch.from_arrays(arrays, names=header), places)


def _typed(values: pa.Array) -> pa.Array:
    """Text to int64, double, bool or text: the narrowest that every value fits."""
    values = pc.if_else(
        pc.is_in(values, pa.array(_NULLS, pa.large_string())), pa.scalar(None, pa.large_string()), values
    )
    if values.null_count == len(values):
        return values
    if _all(values, _INTEGER):
        try:
            return pc.cast(values, pa.int64())
        except pa.ArrowInvalid:  # longer than an int64: an identifier, which a float would bend
            return values
    for pattern, kind in ((_DECIMAL, pa.float64()), (_BOOLEAN, pa.bool_())):
        if _all(values, pattern):
            return pc.cast(values, kind)
    return values


def _all(values: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(values, pattern)).as_py())


def _read_jsonl(text: str, name: str) -> LabelRows:
    rows: list[object] = []
    places: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"no JSON: {error}", source=name, place=f"line {number}") from error
        if not isinstance(row, dict):
            raise DataError("no JSON object", source=name, place=f"line {number}")
        rows.append(row)
        places.append(number)
    if not rows:
        raise DataError("no rows", source=name)
    try:
        table = flatten(pa.RecordBatch.from_struct_array(pa.array(rows)))
    except pa.ArrowException as error:
        raise DataError(f"a key has values of different kinds in different rows: {error}", source=name) from error
    return LabelRows(
        pa.RecordBatch.from_arrays([_wide(column) for column in table.columns], names=table.schema.names), places
    )


def _wide(column: pa.Array) -> pa.Array:
    """Text with 64-bit offsets, so that a column has one type wherever it comes from."""
    return pc.cast(column, pa.large_string()) if pa.types.is_string(column.type) else column
