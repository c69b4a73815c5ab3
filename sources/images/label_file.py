"""A small table beside the data (.csv, .tsv, .txt, .jsonl) to `LabelRows`: typed columns in memory, and the line of
each row for messages.

It is read as the CSV and JSON-lines kinds read their inputs, with two differences: numbers with decimals are float64,
as a table in memory has them, and times stay text. Nothing is bent on the way, and a row that can't be read is an
error: the labels of a data set are not to be guessed.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.sources.csv.dialect import CsvOptions
from recordmill.sources.csv.source import CsvSource, plan_csv
from recordmill.sources.inputs.contract import Chunk, PlanOptions, Source
from recordmill.sources.jsonl.source import JsonlOptions, plan_jsonl
from recordmill.storage.files import open_reader, stat
from recordmill.storage.listed.files import InputFile

_FORMATS: dict[str, Callable[[InputFile, PlanOptions], Source]] = {
    **dict.fromkeys(("csv", "tsv", "txt"), lambda file, common: plan_csv([file], CsvOptions(header=True), common)),
    **dict.fromkeys(("jsonl", "ndjson"), lambda file, common: plan_jsonl([file], JsonlOptions(), common)),
}


@dataclass(frozen=True)
class LabelRows:
    """table: the columns. places: the line in the file at which each row begins, from 1."""

    table: pa.RecordBatch
    places: Sequence[int] = field(repr=False)


def read_label_file(path: str) -> LabelRows:
    """All rows of the file, by its extension a .csv, .tsv or .txt with a header, or a .jsonl.

    Raises:
        UsageError: it can't be read, or has another extension.
        DataError: it can't be decoded, is not well-formed, or empty; with the line.
    """
    name = os.path.basename(path)
    planned = _FORMATS.get(name.rpartition(".")[2].lower())
    try:
        with open_reader(path):  # whether it may be read
            file = InputFile(0, name, path, stat(path))
    except OSError as error:
        raise UsageError(f"{option('labels', path)}: can't be read: {error.strerror}") from error
    if planned is None:
        raise UsageError(f"{option('labels', path)}: a .csv, .tsv or .jsonl file is needed")
    try:
        return _read(planned, file)
    except DataError as error:
        reason = f"{error.reason} (a labels file is read with the defaults: mend it)"
        raise DataError(reason, source=error.source, place=error.place) from None


def _read(planned: Callable[[InputFile, PlanOptions], Source], file: InputFile) -> LabelRows:
    source = planned(file, PlanOptions())
    others = {feature.name: dtype for feature in source.schema if (dtype := _plain_dtype(feature.dtype))}
    if others:
        source = planned(file, PlanOptions(dtypes=others))
    chunks = [chunk for unit in source.units for chunk in source.read(unit)]
    for reject in (reject for chunk in chunks for reject in chunk.rejects):
        raise DataError(reject.message, source=file.name, place=reject.place)
    table = pa.Table.from_batches([chunk.records for chunk in chunks]).combine_chunks()
    return LabelRows(table.to_batches()[0].replace_schema_metadata(None), _lines(source, chunks))


def _plain_dtype(dtype: str) -> str:
    """What a column of that inferred dtype is read as instead; empty: itself."""
    return "float64" if dtype == "float32" else "string" if dtype.startswith("timestamp") else ""


def _lines(source: Source, chunks: Sequence[Chunk]) -> Sequence[int]:
    if not isinstance(source, CsvSource):
        return [int(line) + 1 for chunk in chunks for line in chunk.position]
    lines = [lines for unit in source.units for lines in source.lines_of(unit)]
    return [int(line) for line in np.concatenate(lines)]
