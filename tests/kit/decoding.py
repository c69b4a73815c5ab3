"""Decoding of a few records."""

from collections.abc import Sequence

import pyarrow as pa

from recordmill.records.example.decode import decode
from recordmill.records.protobuf.message import join_records as buffer
from recordmill.schemas.feature import Schema


def decode_all(
    records: Sequence[bytes], schema: Schema, columns: Sequence[str] | None = None
) -> pa.RecordBatch:
    return decode(*buffer(records), schema, columns)
