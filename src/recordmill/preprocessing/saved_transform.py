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

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import DataError
from recordmill.preprocessing.declaration import NO_BUCKET, DeclaredColumn, declare_transform
from recordmill.preprocessing.graph import load_graph
from recordmill.preprocessing.tensors import batch_of_tensors, column, tensors
from recordmill.schemas.feature import Schema
from recordmill.schemas.tfmd import from_pbtxt

# rows of one batch that are looked for one by one; more are no accident of the data
MOST_REFUSED = 1000
_NODE = re.compile(r"\{\{(?:function_)?node ([^}]+)\}\}")
_loading, _load = threading.Lock(), functools.lru_cache(maxsize=4)(load_graph)


@dataclass(frozen=True)
class SavedTransform:
    """Transform that was fitted and saved.

    Attributes:
        folder: holds `transform_fn/`.
        inputs: the raw features that the graph takes.
        outputs: the features that it gives.
        copied: (output name, raw name) of columns that stay as they are.
        schema: of the transformed records, outputs and copied columns in order.
        digest: of its declaration, or its function's name, the schemas, and what was fitted.
        about: its entry in the manifest.
    """

    folder: str
    inputs: Schema
    outputs: Schema
    copied: tuple[tuple[str, str], ...]
    schema: Schema
    digest: str
    about: Mapping[str, Any] = field(default_factory=dict)

    def without(self, absent: Collection[str]) -> SavedTransform:
        """Returns the transform for records without these raw features, whose outputs are left out; DataError where
        none is left.
        """
        if not absent:
            return self
        needs = self.about["needs"]
        outputs = self.outputs.select(
            name for name in self.outputs.names if not {*needs[name]} & {*absent}
        )
        copied = tuple((name, source) for name, source in self.copied if source not in absent)
        there = {*outputs.names, *(name for name, _ in copied)}
        schema = self.schema.select(name for name in self.schema.names if name in there)
        if not len(schema):
            raise DataError(
                "the records have no feature that the transform makes anything of",
                source=self.folder,
            )
        left = {name: need for name, need in needs.items() if name in outputs}
        about = {
            **self.about,
            "outputs": list(outputs.names),
            "kept": [list(pair) for pair in copied],
            "needs": left,
        }
        return replace(self, outputs=outputs, copied=copied, schema=schema, about=about)

    def apply(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Returns (the transformed records without those refused, row number to why it is refused). DataError, without
        a value of a feature: it refuses more than MOST_REFUSED rows, or gives what its schema doesn't say.
        """
        refused: dict[int, str] = {}
        made = self._apply(batch, 0, refused)
        rest = (
            batch
            if not refused
            else batch.filter(pa.array([i not in refused for i in range(batch.num_rows)]))
        )
        if misfits := self._misfits(rest, made):
            numbers = np.setdiff1d(np.arange(batch.num_rows), list(refused))
            refused.update({int(numbers[row]): reason for row, reason in misfits.items()})
            fits = pa.array(~np.isin(np.arange(rest.num_rows), list(misfits)))
            rest, made = rest.filter(fits), made.filter(fits)
        columns = {name: rest.column(source) for name, source in self.copied}
        columns.update(zip(made.schema.names, made.columns, strict=True))
        return batch_of_tensors(columns, self.schema), refused

    @functools.cached_property
    def _declared(self) -> tuple[DeclaredColumn, ...]:
        """The columns of a declared transform that it still gives, as it says that it gives them."""
        if not isinstance(self.about.get("given"), Mapping):
            return ()
        columns = declare_transform(
            self.about["given"], from_pbtxt(self.about["raw_schema"], self.folder)
        ).columns
        given = {feature.name: (feature.dtype, feature.shape) for feature in self.outputs}
        return tuple(
            one for one in columns if given.get(one.name) == (one.value.dtype, one.value.shape)
        )

    def _misfits(self, raw: pa.RecordBatch, made: pa.RecordBatch) -> dict[int, str]:
        """Row to why a step has no value for what it was given, and gave one all the same."""
        reasons: dict[int, str] = {}
        for one in (one for one in self._declared if one.source in raw.schema.names):
            rows, reason = misfits(one, raw.column(one.source), made.column(one.name))
            reasons.update(
                {
                    int(row): f"feature {one.name!r}: {reason}"
                    for row in rows
                    if int(row) not in reasons
                }
            )
        return reasons

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
                raise DataError(
                    f"the transform refuses more than {MOST_REFUSED} rows of a batch; {reason}"
                )
            return self._run(batch.slice(0, 0))
        half = batch.num_rows // 2
        parts = [
            self._apply(batch.slice(0, half), first, refused),
            self._apply(batch.slice(half), first + half, refused),
        ]
        return (
            pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
            if any(map(len, parts))
            else parts[0]
        )

    def _run(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import tensorflow as tf

        if not batch.num_rows:
            return _empty(self.outputs)
        with tf.device("/CPU:0"):
            outputs = load_transform(self.folder).transform_fn(tensors(batch, self.inputs))
        made = {}
        for feature in self.outputs:
            try:
                made[feature.name] = column(outputs[feature.name], feature, batch.num_rows)
            except ValueError as error:
                raise DataError(f"the transform gave for {feature.name!r} {error}") from None
        return batch_of_tensors(made, self.outputs)


_NOWHERE: npt.NDArray[np.int64] = np.empty(0, np.int64)


def misfits(
    declared: DeclaredColumn, raw: pa.Array, made: pa.Array
) -> tuple[npt.NDArray[np.int64], str]:
    """Returns (rows for which a declared column's steps have no value, why)."""
    steps = [step.name for step in declared.steps]
    if steps[-1] == "one_hot" and "vocabulary" not in steps:  # whose unknown words are of no class
        ones, classes = _flat(made)[0], declared.value.shape[0] or 1
        rows = np.flatnonzero(~ones.reshape(-1, classes).any(1))
        return rows, f"one_hot has no class for it: not one of 0 to {classes - 1}"
    if steps[-1] == "bucketize":
        buckets, rows = _flat(made)
        return np.unique(rows[buckets == NO_BUCKET]), "bucketize has no bucket for NaN"
    if declared.value.dtype == "float32" and steps[-1] in (
        "zscore",
        "minmax",
        "log1p",
        "clip",
        "impute",
    ):
        values, rows = _flat(made)
        if not (odd := ~np.isfinite(values)).any():
            return _NOWHERE, ""
        given, rows_given = _flat(raw)
        if len(given) == len(values):
            odd &= np.isfinite(given)
        else:  # something was missing, and is not
            odd &= ~np.isin(rows, rows_given[~np.isfinite(given)])
        return np.unique(rows[odd]), f"{', '.join(steps)} gives no finite number for it"
    return _NOWHERE, ""


def _flat(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Returns (the numbers of a column that are there, the row of each)."""
    rows = np.arange(len(column))
    if pa.types.is_fixed_size_list(column.type):
        rows, column = np.repeat(rows, column.type.list_size), column.flatten()
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        rows = np.repeat(rows, pc.list_value_length(column).fill_null(0).to_numpy())
        column = column.flatten()
    there = pc.is_valid(column).to_numpy(zero_copy_only=False)
    return column.drop_null().to_numpy(zero_copy_only=False), rows[there]


def load_transform(folder: str) -> Any:
    """The saved graph, once in each process."""
    with _loading:
        return _load(folder)


def _reason(error: Any) -> str:
    """Returns which operation failed; TensorFlow's own message may hold the feature's value."""
    node = _NODE.search(str(error.message or ""))
    return f"{type(error).__name__}{f' in operation {node[1]}' if node else ''}"


def _empty(schema: Schema) -> pa.RecordBatch:
    from recordmill.schemas.arrow import arrow_type

    return batch_of_tensors(
        {feature.name: pa.array([], arrow_type(feature)) for feature in schema}, schema
    )
