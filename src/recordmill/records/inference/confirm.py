"""A schema that was inferred from some records, and whether others confirm it: whether inference over all of them would
give the same one.

Inference is monotone: what some records rule out, more of them don't bring back. So the schema of some is that of all,
unless another record has a name that none of these had, another kind or number of values, lacks what all of these had,
is no message of theirs, or holds bytes that are no text where all of these were text. The decoder refuses all of that
but the last, which is looked at here. Where a record is only written in an unusual way nothing is confirmed either:
then all are to be counted.
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
_TEXT_BLOCK_BYTES = 1 << 17  # 128 KiB of text: what is made of it stays in the cache
_IS_BAD_CONTROL = np.array(
    [byte not in b"\t\n\v\f\r\x1b" for byte in range(_SPACE)]
)  # that text lacks
_NESTED_SUFFIX = (
    "/ragged_flat_values"  # of lists in lists, whose lengths add up or don't: only all records tell
)


class SchemaNotConfirmed(RecordmillError):
    """A record holds what the guess does not say."""


@dataclass(frozen=True)
class SchemaGuess:
    """schema: of some records. notes: on what described them. empty: the features of which only the name was seen."""

    schema: Schema
    notes: tuple[str, ...] = ()
    empty_features: frozenset[str] = frozenset()

    def decode(self, data: Bytes, starts: Int64s, lengths: Int64s) -> pa.RecordBatch:
        """Decodes the records data[starts[i] : starts[i] + lengths[i]] by the schema; SchemaNotConfirmed where they would
        change what is inferred, or are written in an unusual way.
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
    """Returns whether what was counted can stand for more records of its kind."""
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
    """Returns whether inference would call the values, which are UTF-8, text."""
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
        is_control = (block < _SPACE) & (block != _LINE_FEED)
        if is_control.any() and _IS_BAD_CONTROL[block[is_control]].any():
            return False
    return True
