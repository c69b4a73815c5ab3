"""Batches of any sizes to batches of one size, rows in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from recordmill.base.errors import UsageError


def rebatched(batches: Iterable[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of batch_rows, the last one shorter."""
    if batch_rows < 1:
        raise UsageError(f"batch_rows must be at least 1, not {batch_rows}")
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        while rows + batch.num_rows >= batch_rows:
            held.append(batch.slice(0, batch_rows - rows))
            batch = batch.slice(batch_rows - rows)
            yield joined_batches(held)
            held, rows = [], 0
        if batch.num_rows:
            held.append(batch)
            rows += batch.num_rows
    if held:
        yield joined_batches(held)


def joined_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of these batches, which must not be none, as one."""
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches)
    columns = [
        column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks) for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)
