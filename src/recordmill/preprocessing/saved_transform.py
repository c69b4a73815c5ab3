"""A fitted transform as it is saved and applied: RecordBatch in, RecordBatch out, and the rows that it refuses.

The same row gives the same bits in whatever batch it stands, so that threads, memory and serving change nothing.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.preprocessing.graph import load_graph
from recordmill.preprocessing.tensors import batch_of_tensors, column, tensors
from recordmill.schemas.feature import Schema

MOST_REFUSED = 1000  # rows of one batch that are looked for one by one; more are no accident of the data
_NODE = re.compile(r"\{\{(?:function_)?node ([^}]+)\}\}")
_loading = threading.Lock()


@dataclass(frozen=True)
class SavedTransform:
    """folder: holds `transform_fn/`. inputs: the raw features that the graph takes. outputs: what it gives.

    kept: (output name, raw name) of columns that stay as they are. schema: of the transformed records, outputs and kept
    in order. digest: of all that it computes. about: what the manifest says of it.
    """

    folder: str
    inputs: Schema
    outputs: Schema
    kept: tuple[tuple[str, str], ...]
    schema: Schema
    digest: str
    about: Mapping[str, Any] = field(default_factory=dict)

    def without(self, absent: Collection[str]) -> SavedTransform:
        """The same for records without these raw features, whose outputs are left out.

        Raises:
            DataError: nothing is left.
        """
        if not absent:
            return self
        needs = self.about["needs"]
        outputs = self.outputs.select(name for name in self.outputs.names if not {*needs[name]} & {*absent})
        kept = tuple((name, source) for name, source in self.kept if source not in absent)
        there = {*outputs.names, *(name for name, _ in kept)}
        schema = self.schema.select(name for name in self.schema.names if name in there)
        if not len(schema):
            raise DataError("the records have no feature that the transform makes anything of", source=self.folder)
        left = {name: need for name, need in needs.items() if name in outputs}
        about = {**self.about, "outputs": list(outputs.names), "kept": [list(pair) for pair in kept], "needs": left}
        return replace(self, outputs=outputs, kept=kept, schema=schema, about=about)

    def apply(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """(the transformed records without those refused, row number to why it is refused).

        Raises:
            DataError: it refuses more than MOST_REFUSED rows, or gives what its schema doesn't say. No message holds a
                value of a feature.
        """
        refused: dict[int, str] = {}
        made = self._apply(batch, 0, refused)
        rest = batch if not refused else batch.filter(pa.array([i not in refused for i in range(batch.num_rows)]))
        columns = {name: rest.column(source) for name, source in self.kept}
        columns.update(zip(made.schema.names, made.columns, strict=True))
        return batch_of_tensors(columns, self.schema), refused

    def _apply(self, batch: pa.RecordBatch, first: int, refused: dict[int, str]) -> pa.RecordBatch:
        """The graph's outputs for the rows it takes; a batch in which it fails is halved until the row is found."""
        import tensorflow as tf

        errors = tf.errors
        try:
            return self._run(batch)
        except (errors.InvalidArgumentError, errors.DataLossError, errors.OutOfRangeError) as error:
            reason = _reason(error)
        except errors.OpError as error:
            raise DataError(_reason(error)) from None
        if batch.num_rows == 1:
            refused[first] = reason
            if len(refused) > MOST_REFUSED:
                raise DataError(f"the transform refuses more than {MOST_REFUSED} rows of a batch; {reason}")
            return self._run(batch.slice(0, 0))
        half = batch.num_rows // 2
        parts = [
            self._apply(batch.slice(0, half), first, refused),
            self._apply(batch.slice(half), first + half, refused),
        ]
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0] if any(map(len, parts)) else parts[0]

    def _run(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import tensorflow as tf

        if not batch.num_rows:
            return _empty(self.outputs)
        with tf.device("/CPU:0"):
            found = load_transform(self.folder).transform_fn(tensors(batch, self.inputs))
        made = {}
        for feature in self.outputs:
            try:
                made[feature.name] = column(found[feature.name], feature, batch.num_rows)
            except ValueError as error:
                raise DataError(f"the transform gave for {feature.name!r} {error}") from None
        return batch_of_tensors(made, self.outputs)


def load_transform(folder: str) -> Any:
    """The saved graph, once in each process."""
    with _loading:
        return _load(folder)


@functools.lru_cache(maxsize=4)
def _load(folder: str) -> Any:
    return load_graph(folder)


def _reason(error: Any) -> str:
    """Which operation failed; TensorFlow's own message may hold the feature's value."""
    node = _NODE.search(str(error.message or ""))
    return f"{type(error).__name__}{f' in operation {node[1]}' if node else ''}"


def _empty(schema: Schema) -> pa.RecordBatch:
    from recordmill.schemas.arrow import arrow_type

    return batch_of_tensors({feature.name: pa.array([], arrow_type(feature)) for feature in schema}, schema)
