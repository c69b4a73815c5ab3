"""`Decoding`: payloads to columns that are converted: the features as the records have them, and what becomes of them.

A value that does not fit a step is an error with its record's place, as one that does not fit the schema.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from recordmill.records.columns.convert import Step, convert, output_schema
from recordmill.records.example.decode import decode, decode_lenient, failure
from recordmill.records.example.faults import BadRecord
from recordmill.records.protobuf.wire import Bytes, Ints
from recordmill.schemas.feature import Schema


@dataclass(frozen=True)
class Decoding:
    """stored: the features as the records have them. steps: what becomes of them, in this order."""

    stored: Schema
    steps: tuple[Step, ...] = ()

    @classmethod
    def of(cls, wanted: Schema | Decoding) -> Decoding:
        """Features of a schema as they are, or converted."""
        return wanted if isinstance(wanted, Decoding) else cls(wanted)

    @cached_property
    def schema(self) -> Schema:
        """The features behind the steps.

        Raises:
            UsageError: a feature is nothing that its step takes.
        """
        return output_schema(self.steps, self.stored)

    def decode(
        self,
        data: Bytes,
        starts: Ints,
        lengths: Ints,
        *,
        source: str = "",
        first_record: int = 0,
        offsets: Ints | None = None,
    ) -> pa.RecordBatch:
        """`records.example.decode.decode`, converted.

        Raises:
            DataError: a record is no such message, does not fit the schema, or can't be converted.
        """
        batch = decode(
            data, starts, lengths, self.stored, source=source, first_record=first_record, offsets=offsets
        )  # fmt: skip
        places = starts if offsets is None else offsets
        return self.converted(batch, source, lambda row: f"record {first_record + row}, byte {int(places[row])}")

    def converted(self, batch: pa.RecordBatch, source: str, place: Callable[[int], str]) -> pa.RecordBatch:
        """The columns of records as they have them to those behind the steps. place: of the record of a row.

        Raises:
            DataError: a record can't be converted.
        """
        if not self.steps:
            return batch
        found = convert(self.steps, batch, self.stored)
        if found.bad:
            raise failure(found.bad[0], source, place(found.bad[0].row))
        return found.batch

    def decode_lenient(
        self, data: Bytes, starts: Ints, lengths: Ints
    ) -> tuple[pa.RecordBatch, Ints, list[BadRecord]]:  # fmt: skip
        """Like decode without bad records: (the batch of the good ones, their rows, the bad ones in order)."""
        batch, good, bad = decode_lenient(data, starts, lengths, self.stored)
        if not self.steps:
            return batch, good, bad
        found = convert(self.steps, batch, self.stored)
        bad = bad + [BadRecord(int(good[one.row]), one.feature, one.reason) for one in found.bad]
        return found.batch, np.asarray(good[found.rows], np.int64), sorted(bad, key=lambda record: record.row)
