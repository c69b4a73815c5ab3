"""Conversions whose output the user did not say in full, to full ones: the first record that has the feature says what all of them must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recordmill.records.convert import DecodeTensor, Step
from recordmill.records.tensor_proto import first_header
from recordmill.schemas.errors import DataError, UsageError
from recordmill.schemas.feature import Schema
from recordmill.shards.batches import decode_load, loads
from recordmill.shards.catalog import ShardFile
from recordmill.shards.pieces import Piece
from recordmill.shards.salvage import salvage


@dataclass(frozen=True)
class Unresolved:
    """A DecodeTensor whose dtype and shape the first tensor says."""

    feature: str


def resolve(steps: Sequence[Step | Unresolved], files: Sequence[ShardFile], pieces: Sequence[Piece], schema: Schema, *, lenient: bool) -> tuple[Step, ...]:
    """The same steps in full.

    Raises:
        UsageError: no such feature, or no record that has it. DataError: the first one that has it holds no such tensor.
    """
    result: list[Step] = []
    for step in steps:
        if isinstance(step, Unresolved):
            if step.feature not in schema:
                raise UsageError(f"--decode-tensor {step.feature}: no such feature; there are {', '.join(schema.names)}")
            result.append(_tensor(step, files, pieces, schema, lenient))
        else:
            result.append(step)
    return tuple(result)


def _tensor(step: Unresolved, files: Sequence[ShardFile], pieces: Sequence[Piece], schema: Schema, lenient: bool) -> DecodeTensor:
    chosen = schema.select((step.feature,))
    if chosen[step.feature].shape or chosen[step.feature].dtype not in ("bytes", "string"):
        return DecodeTensor(step.feature, "uint8", ())  # its own check says what is wrong
    last: DataError | None = None
    for load in loads(files, pieces, lenient=lenient):
        for batch in salvage(load, chosen).batches if lenient else decode_load(load, chosen):
            for value in batch.column(0).drop_null():
                payload = value.as_py()
                try:
                    dtype, shape = first_header(payload.encode() if isinstance(payload, str) else payload)
                except DataError as error:
                    last = DataError(f"--decode-tensor {step.feature}: {error.reason}", source=load.file.path)
                    if not lenient:
                        raise last from None
                    continue
                return DecodeTensor(step.feature, dtype, shape)
    raise last or UsageError(f"--decode-tensor {step.feature}: no record has it; say what it would be, as in {step.feature}=float32[28,28]")
