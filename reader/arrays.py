"""A whole `Dataset` as NumPy columns: in memory, or as `.npy` files that are memory-mapped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from recordmill.records.gather import gather
from recordmill.records.npy_writer import COLUMNS_NAME, NpyWriter, open_columns
from recordmill.records.ragged import Array, Ragged, Strings
from recordmill.schemas.errors import UsageError

if TYPE_CHECKING:
    from recordmill.reader.dataset import Dataset


def in_memory(dataset: Dataset) -> dict[str, Array | Ragged | Strings]:
    """The columns as arrays; the peak is the result and a few pieces."""
    return gather(dataset.record_batches(), dataset.schema, len(dataset))


def memory_mapped(dataset: Dataset, folder: str | os.PathLike[str]) -> dict[str, Array | Ragged | Strings]:
    """The columns written to the folder and memory-mapped from it.

    Raises:
        UsageError: the folder holds columns already.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    if (path / COLUMNS_NAME).exists():
        raise UsageError(f"{path} holds columns already; open them with recordmill.reader.open_columns, or name another folder")
    writer = NpyWriter(path, dataset.schema)
    try:
        for batch in dataset.record_batches():
            writer.write(batch)
    except BaseException:
        writer.abort()
        raise
    writer.close()
    return open_columns(path)
