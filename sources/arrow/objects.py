"""Whatever Python object holds rows in, Arrow batches out:
Arrow itself, pandas, dicts of arrays, and iterators of dicts.

Anything that speaks Arrow's C stream protocol (Polars, DuckDB, ...) comes in through it without a copy. pandas' NaN in
a float column is a missing value, as in pandas itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError, UsageError
from recordmill.sources.arrow.rows import batches_of_rows, column_of_objects, column_of_tensors
from recordmill.sources.inputs.contract import BATCH_BYTES, BATCH_ROWS


def batches_of(source: Any) -> Iterator[pa.RecordBatch]:
    """The rows in batches of at most BATCH_ROWS and about BATCH_BYTES.

    Raises:
        UsageError: it is none of the kinds above. DataError: its columns can't be features or have different lengths.
    """
    for batch in _batches(source):
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1)))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _batches(source: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(source, pa.RecordBatch):
        return iter([source])
    if isinstance(source, pa.Table | pa.RecordBatchReader):
        return iter(source.to_batches() if isinstance(source, pa.Table) else source)
    if type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns"):
        return iter(_from_pandas(source).to_batches())
    if hasattr(source, "__arrow_c_stream__"):
        return iter(pa.RecordBatchReader.from_stream(source))
    if isinstance(source, Mapping):
        return _columns(source)
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | np.ndarray):
        return _items(source)
    raise UsageError(
        f"can't build from a {type(source).__name__}: give paths, a pyarrow Table or reader, a pandas DataFrame, "
        "a dict of column names to arrays, or an iterable of dicts"
    )


def _from_pandas(frame: Any) -> pa.Table:
    named = any(name is not None for name in frame.index.names)
    try:
        return pa.Table.from_pandas(frame, preserve_index=named).replace_schema_metadata(None)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"{' '.join(str(part) for part in error.args)}; give the column one type", source="DataFrame"
        ) from None


def _items(source: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    rows = iter(source)
    for first in rows:
        rest = chain([first], rows)
        if isinstance(first, pa.RecordBatch | pa.Table):
            return (batch for item in rest for batch in _batches(item))
        return batches_of_rows(rest)
    return iter([])


def _columns(source: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Slices of the columns as batches; only Python lists are converted beforehand."""
    if not source:
        return
    lengths = {}
    for name, column in source.items():
        if (
            isinstance(column, str | bytes)
            or not hasattr(column, "__len__")
            or (isinstance(column, np.ndarray) and column.ndim == 0)
        ):
            raise UsageError(
                f"column {name!r} is a {type(column).__name__}; a dict of columns holds arrays or lists of "
                "one value per record"
            )
        lengths[name] = len(column)
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"columns of different length: {', '.join(f'{name!r} {length}' for name, length in lengths.items())}",
            source="memory",
        )
    fields, arrays = zip(*(_column(str(name), column) for name, column in source.items()), strict=True)
    yield pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))


def _column(name: str, column: Any) -> tuple[pa.Field, pa.Array]:
    if isinstance(column, pa.ChunkedArray | pa.Array):
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
        return pa.field(name, array.type), array
    if isinstance(column, np.ma.MaskedArray) and column.ndim == 1:
        return column_of_tensors(name, np.asarray(column.data), np.ma.getmaskarray(column))
    if type(column).__module__.split(".")[0] == "pandas":
        array = pa.Array.from_pandas(column)
        return _column(name, array)
    if isinstance(column, np.ndarray) and (column.dtype.kind != "O" or column.ndim > 1):
        return column_of_tensors(name, column)
    return column_of_objects(name, list(column))
