"""Records as dicts, for people and for loaders that take single ones: a file and a record's number, or a batch, in.

In a dict a scalar is a Python or NumPy scalar, `str` or `bytes`; a tensor or a list is an array; what is missing is
None.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from recordmill.reader.record import Plan, parse_record
from recordmill.records.columns.decoding import Decoding
from recordmill.records.columns.parts import to_numpy
from recordmill.records.columns.ragged import Ragged
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.access import FileAccess
from recordmill.shards.loads.batches import decode_block
from recordmill.shards.pieces import FrameBlock


def read_row(file: FileAccess, record: int, decoding: Decoding, plan: Plan | None, *, whole: bool) -> dict[str, Any]:
    """One record of a file. plan: the quick way, where there is one; whole: the schema is all that the records hold.

    Raises:
        DataError: it is damaged, or does not fit the schema.
    """
    frame = file.frame(record)
    if plan is not None:
        found = parse_record(frame.payload(0).tobytes(), plan, decoding.stored, whole=whole)
        if found is not None:
            return found
    offset = file.offset(record) - int(frame.starts[0])
    (row,) = rows_of(decode_block(FrameBlock(frame, record, offset), decoding, file.file.path), decoding.schema)
    return row


def rows_of(batch: pa.RecordBatch, schema: Schema) -> Iterator[dict[str, Any]]:
    """Every row of a batch with the columns of the schema, in its order."""
    for row in range(batch.num_rows):
        yield {
            feature.name: value_of(column.slice(row, 1), feature)
            for feature, column in zip(schema, batch.columns, strict=True)
        }


def value_of(column: pa.Array, feature: Feature) -> Any:
    """The value of a column of one row."""
    if column.null_count:
        return None
    if not feature.shape:
        return (
            to_numpy(column, replace(feature, required=True))[0]
            if feature.timestamp or feature.dtype == "float16"
            else column[0].as_py()
        )
    value = to_numpy(column, replace(feature, required=True))[0]
    return value.to_list() if isinstance(value, Ragged) else value
