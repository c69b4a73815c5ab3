"""A RecordBatch to framed `tf.train.Example` records, column by column, with both CRCs, in one buffer:
the way from batches to records.

Examples are made by `records.example.entries` from the flat arrays of `records.example.flat`, SequenceExamples by
`records.example.sequence`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.records.example.entries import encode_flat
from recordmill.records.example.flat import Flat, to_flat
from recordmill.records.example.sequence import encode_sequences
from recordmill.records.tfrecord.frames import Frames, frame
from recordmill.schemas.feature import PAYLOAD, SEQUENCE_EXAMPLE, Schema


def encode(batch: pa.RecordBatch, schema: Schema) -> Frames:
    """The batch's rows as framed records, contiguous and in order.

    A null is a feature that the record doesn't have; an empty list is a feature with an empty list of its kind. With
    the message `bytes` the one column is the records themselves, with `SequenceExample` see `records.example.sequence`.
    Nothing is allocated but the result and some int64 per row and column.

    Args:
        batch: one column per feature, in any order, of the types of `schemas.arrow.to_arrow(schema)` or what
            `records.example.flat.to_flat` accepts.

    Raises:
        DataError: a value that Example can't hold, or a record of 2 GiB and more; it names feature, row and value.
        TypeError: a column of another type.
        ValueError: columns that are not the schema's features.
    """
    if schema.message == SEQUENCE_EXAMPLE:
        return encode_sequences(batch, schema)
    names = batch.schema.names
    if sorted(names) != sorted(schema.names):
        raise ValueError(
            f"the batch has the columns {sorted(names)} and the schema the features {sorted(schema.names)}; "
            "select or rename"
        )
    flats = [flat for feature in schema for flat in to_flat(batch.column(names.index(feature.name)), feature)]
    if schema.message == PAYLOAD:
        return _encode_payloads(flats, schema)
    return encode_flat(flats, batch.num_rows)


def _encode_payloads(flats: Sequence[Flat], schema: Schema) -> Frames:
    if len(flats) != 1 or flats[0].value_splits is None or flats[0].splits is not None:
        raise ValueError(
            "records that are no Examples are one column of bytes, not "
            f"{', '.join(f.name + ' ' + f.describe() for f in schema)}"
        )
    flat = flats[0]
    assert flat.value_splits is not None
    if flat.valid is not None:
        raise DataError(
            "null: a record can be empty but not missing",
            place=f"feature {flat.storage.name!r}, row {int(np.argmin(flat.valid))}",
        )
    return frame(flat.values, flat.value_splits)
