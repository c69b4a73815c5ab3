"""Check of a schema that was inferred from the first records only.

Such a schema is a guess. It is confirmed if inference over all records would give the same schema.
If some records exclude a type, more records never bring it back. So the guess is right unless one
of the other records contradicts it. Such a record does one of the following:

* it has a new name,
* it has another kind or number of values,
* it lacks a feature that all the first records have,
* it is not the same kind of message,
* it has bytes that are not text in a feature that was text so far.

The decoder refuses all of these records except the last kind, which is checked here. The guess is
not confirmed either if a record is not in the plain form (`records.protobuf.message`). If it is not
confirmed, the schema must be inferred from all records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import RecordmillError
from recordmill.records.example.decode import decode_if_plain
from recordmill.records.inference.infer import Inference
from recordmill.schemas.feature import OPAQUE_BYTES, Feature, Schema

_SPACE, _LINE_FEED = 0x20, 0x0A
# 128 KiB of text, so that the temporary arrays stay in the cache.
_TEXT_BLOCK_BYTES = 1 << 17
# [32] True for each control character that does not occur in text.
_IS_BAD_CONTROL = np.array([byte not in b"\t\n\v\f\r\x1b" for byte in range(_SPACE)])
# The end of the name of a feature with the values of nested lists. Only all records together show
# whether the lengths of the lists add up.
_NESTED_SUFFIX = "/ragged_flat_values"


class SchemaNotConfirmed(RecordmillError):
    """A record contradicts the guessed schema, or is not in the plain form."""


@dataclass(frozen=True)
class SchemaGuess:
    """A schema that was inferred from the first records.

    Attributes:
        schema: The schema.
        notes: Notes for the user about files that describe the records.
        empty_features: Features without a value in the first records.
    """

    schema: Schema
    notes: tuple[str, ...] = ()
    empty_features: frozenset[str] = frozenset()

    def decode(self, data: Bytes, starts: Int64s, lengths: Int64s) -> pa.RecordBatch:
        """Decodes records by the guessed schema.

        Args:
            data: uint8 [bytes], a buffer that contains the records.
            starts: int64 [rows], the offset of each record.
            lengths: int64 [rows], the size of each record.

        Raises:
            SchemaNotConfirmed: A record contradicts the guess, or is not in the plain form.
        """
        batch = decode_if_plain(data, starts, lengths, self.schema)
        if batch is None or not all(map(self._agrees, self.schema, batch.columns)):
            raise SchemaNotConfirmed("not what the first records were")
        return batch

    def _agrees(self, feature: Feature, column: pa.Array) -> bool:
        if feature.name in self.empty_features:
            return bool(column.null_count == len(column))
        return feature.dtype != "string" or _is_text(column)


def can_guess_schema(inference: Inference) -> bool:
    """Returns whether the schema of some records can be a guess for others.

    Args:
        inference: The counts of the first records.
    """
    return (
        inference.records > 0
        and not inference.other_records
        and not inference.conflicts()
        and inference.message != OPAQUE_BYTES
        and not any(
            name.endswith(_NESTED_SUFFIX) or (per_step and not counts.kinds)
            for (name, per_step), counts in inference.features.items()
        )
    )


def _is_text(column: pa.Array) -> bool:
    """Returns whether inference would treat the values of a UTF-8 column as text.

    The result is False if some of them contain control characters.
    """
    while pa.types.is_nested(column.type):
        column = column.flatten()
    _, ends, values = column.buffers()
    if len(column) == 0 or values is None:
        return True
    first, last = np.frombuffer(ends, np.int64)[[column.offset, column.offset + len(column)]]
    text = np.frombuffer(values, np.uint8)[first:last]
    for block in (
        text[begin : begin + _TEXT_BLOCK_BYTES] for begin in range(0, len(text), _TEXT_BLOCK_BYTES)
    ):
        # Line feeds are always allowed, so they need no lookup.
        is_control = (block < _SPACE) & (block != _LINE_FEED)
        if is_control.any() and _IS_BAD_CONTROL[block[is_control]].any():
            return False
    return True
