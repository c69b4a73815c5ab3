"""A fitted transform as it is saved and applied.

It converts a RecordBatch of raw records to one of transformed records, and refuses rows that have
no result. The bits of a result don't depend on the other rows of the batch. So they are the same
for any number of threads, any memory, and in serving.
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
from recordmill.preprocessing.declaration import NAN_BUCKET, DeclaredColumn, declare_transform
from recordmill.preprocessing.graph import load_graph
from recordmill.preprocessing.tensors import column_from_tensor, make_batch, make_tensors
from recordmill.schemas.feature import Schema
from recordmill.schemas.tfmd import from_pbtxt

# 1,000 rows of one batch. Finding each takes several runs of the graph. If there are more, the
# transform does not suit the data.
MAX_REFUSED_ROWS = 1000
_NODE = re.compile(r"\{\{(?:function_)?node ([^}]+)\}\}")
_load_lock, _load_cached = threading.Lock(), functools.lru_cache(maxsize=4)(load_graph)


@dataclass(frozen=True)
class SavedTransform:
    """A transform that was fitted and saved.

    Attributes:
        folder: The folder that contains `transform_fn/`.
        inputs: The raw features that the graph takes.
        outputs: The features that the graph returns.
        copied: (output name, raw name) of the features that are copied unchanged.
        schema: The schema of the transformed records: outputs and copied features in their order.
        digest: Digest of the declaration or the function's name, the schemas, and the results of
            the analyzers.
        manifest_entry: The entry of the manifest for the transform.
    """

    folder: str
    inputs: Schema
    outputs: Schema
    copied: tuple[tuple[str, str], ...]
    schema: Schema
    digest: str
    manifest_entry: Mapping[str, Any] = field(default_factory=dict)

    def drop_features(self, names: Collection[str]) -> SavedTransform:
        """Returns the transform for records that lack some raw features.

        Outputs that need one of these features are left out.

        Args:
            names: The raw features that the records lack.

        Raises:
            DataError: No output is left.
        """
        if not names:
            return self
        needs = self.manifest_entry["needs"]
        outputs = self.outputs.select(
            name for name in self.outputs.names if not {*needs[name]} & {*names}
        )
        copied = tuple((name, source) for name, source in self.copied if source not in names)
        kept_names = {*outputs.names, *(name for name, _ in copied)}
        schema = self.schema.select(name for name in self.schema.names if name in kept_names)
        if not len(schema):
            raise DataError(
                "the records have no feature that the transform uses",
                source=self.folder,
            )
        remaining_needs = {name: need for name, need in needs.items() if name in outputs}
        entry = {
            **self.manifest_entry,
            "outputs": list(outputs.names),
            "kept": [list(pair) for pair in copied],
            "needs": remaining_needs,
        }
        return replace(self, outputs=outputs, copied=copied, schema=schema, manifest_entry=entry)

    def apply(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Transforms a batch.

        Returns:
            (transformed records, message by row number for each refused row). Refused rows are not
            among the records.

        Raises:
            DataError: More than MAX_REFUSED_ROWS rows are refused, or the graph returns values that
                don't fit its schema. The message contains no values of features.
        """
        refused_rows: dict[int, str] = {}
        output = self._apply(batch, 0, refused_rows)
        good_rows = (
            batch
            if not refused_rows
            else batch.filter(pa.array([i not in refused_rows for i in range(batch.num_rows)]))
        )
        if misfits := self._find_misfits(good_rows, output):
            # The misfits are numbered without the rows that were refused before.
            numbers = np.setdiff1d(np.arange(batch.num_rows), list(refused_rows))
            refused_rows.update({int(numbers[row]): reason for row, reason in misfits.items()})
            fits = pa.array(~np.isin(np.arange(good_rows.num_rows), list(misfits)))
            good_rows, output = good_rows.filter(fits), output.filter(fits)
        columns = {name: good_rows.column(source) for name, source in self.copied}
        columns.update(zip(output.schema.names, output.columns, strict=True))
        return make_batch(columns, self.schema), refused_rows

    @functools.cached_property
    def _declared_columns(self) -> tuple[DeclaredColumn, ...]:
        """The columns of a declared transform that the graph still returns as declared."""
        if not isinstance(self.manifest_entry.get("given"), Mapping):
            return ()
        columns = declare_transform(
            self.manifest_entry["given"], from_pbtxt(self.manifest_entry["raw_schema"], self.folder)
        ).columns
        output_types = {feature.name: (feature.dtype, feature.shape) for feature in self.outputs}
        return tuple(
            declared_column
            for declared_column in columns
            if output_types.get(declared_column.name)
            == (declared_column.value.dtype, declared_column.value.shape)
        )

    def _find_misfits(self, raw: pa.RecordBatch, output: pa.RecordBatch) -> dict[int, str]:
        """Returns a message for each row without a valid result, by row number."""
        reasons: dict[int, str] = {}
        for declared_column in (
            declared_column
            for declared_column in self._declared_columns
            if declared_column.source in raw.schema.names
        ):
            rows, reason = find_misfits(
                declared_column,
                raw.column(declared_column.source),
                output.column(declared_column.name),
            )
            reasons.update(
                {
                    int(row): f"feature {declared_column.name!r}: {reason}"
                    for row in rows
                    if int(row) not in reasons
                }
            )
        return reasons

    def _apply(
        self, batch: pa.RecordBatch, first_row: int, refused: dict[int, str]
    ) -> pa.RecordBatch:
        """Runs the graph, and finds the rows that it refuses.

        If the graph fails for a batch, the halves of the batch are tried, until the refused rows
        are found.

        Args:
            batch: The records.
            first_row: The row number of the first record.
            refused: A dict that receives a message by row number for each refused row.

        Returns:
            The outputs for the other rows.
        """
        import tensorflow as tf

        errors = tf.errors
        try:
            return self._run(batch)
        except (errors.InvalidArgumentError, errors.DataLossError, errors.OutOfRangeError) as error:
            reason = _describe_error(error)
        except errors.OpError as error:
            raise DataError(_describe_error(error)) from None
        if batch.num_rows == 1:
            refused[first_row] = reason
            if len(refused) > MAX_REFUSED_ROWS:
                raise DataError(
                    f"the transform refuses more than {MAX_REFUSED_ROWS} rows of a batch; {reason}"
                )
            return self._run(batch.slice(0, 0))
        half = batch.num_rows // 2
        halves = [
            self._apply(batch.slice(0, half), first_row, refused),
            self._apply(batch.slice(half), first_row + half, refused),
        ]
        return (
            # A table without rows would have no batches.
            pa.Table.from_batches(halves).combine_chunks().to_batches()[0]
            if any(map(len, halves))
            else halves[0]
        )

    def _run(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import tensorflow as tf

        if not batch.num_rows:
            return _empty_batch(self.outputs)
        with tf.device("/CPU:0"):
            outputs = load_transform(self.folder).transform_fn(make_tensors(batch, self.inputs))
        columns = {}
        for feature in self.outputs:
            try:
                columns[feature.name] = column_from_tensor(
                    outputs[feature.name], feature, batch.num_rows
                )
            except ValueError as error:
                raise DataError(
                    "the transform gave for {feature} {error}",
                    feature=repr(feature.name),
                    error=error,
                ) from None
        return make_batch(columns, self.outputs)


_NO_ROWS: npt.NDArray[np.int64] = np.empty(0, np.int64)


def find_misfits(
    declared_column: DeclaredColumn, raw: pa.Array, output: pa.Array
) -> tuple[npt.NDArray[np.int64], str]:
    """Finds rows without a valid result of the steps of a declared column.

    Args:
        raw: The raw values.
        output: The values that the graph returned.

    Returns:
        (row numbers, the message for all of them).
    """
    steps = [step.name for step in declared_column.steps]
    # Words that a vocabulary does not contain have no class, but are not misfits.
    if steps[-1] == "one_hot" and "vocabulary" not in steps:
        one_hot, classes = _flatten_column(output)[0], declared_column.value.shape[0] or 1
        rows = np.flatnonzero(~one_hot.reshape(-1, classes).any(1))
        return rows, f"one_hot has no class for it: not one of 0 to {classes - 1}"
    if steps[-1] == "bucketize":
        buckets, rows = _flatten_column(output)
        return np.unique(rows[buckets == NAN_BUCKET]), "bucketize has no bucket for NaN"
    if declared_column.value.dtype == "float32" and steps[-1] in (
        "zscore",
        "minmax",
        "log1p",
        "clip",
        "impute",
    ):
        values, rows = _flatten_column(output)
        if not (is_misfit := ~np.isfinite(values)).any():
            return _NO_ROWS, ""
        raw_values, raw_rows = _flatten_column(raw)
        if len(raw_values) == len(values):
            is_misfit &= np.isfinite(raw_values)
        else:
            # Missing values were imputed, so values and raw values differ in number.
            is_misfit &= ~np.isin(rows, raw_rows[~np.isfinite(raw_values)])
        return np.unique(rows[is_misfit]), f"{', '.join(steps)} gives no finite number for it"
    return _NO_ROWS, ""


def _flatten_column(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Returns (values without nulls, row of each value) of a column."""
    rows = np.arange(len(column))
    if pa.types.is_fixed_size_list(column.type):
        rows, column = np.repeat(rows, column.type.list_size), column.flatten()
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        rows = np.repeat(rows, pc.list_value_length(column).fill_null(0).to_numpy())
        column = column.flatten()
    is_valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
    return column.drop_null().to_numpy(zero_copy_only=False), rows[is_valid]


def load_transform(folder: str) -> Any:
    """Loads the saved model of a folder.

    A process keeps the models that it used last, so each is loaded once.
    """
    with _load_lock:
        return _load_cached(folder)


def _describe_error(error: Any) -> str:
    """Returns the type of a TensorFlow error and the operation that failed.

    TensorFlow's own message is left out, because it may contain values of features.
    """
    node = _NODE.search(str(error.message or ""))
    return f"{type(error).__name__}{f' in operation {node[1]}' if node else ''}"


def _empty_batch(schema: Schema) -> pa.RecordBatch:
    from recordmill.schemas.arrow import arrow_type

    return make_batch(
        {feature.name: pa.array([], arrow_type(feature)) for feature in schema}, schema
    )
