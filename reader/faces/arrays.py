"""A whole `Dataset` as NumPy columns, in memory or as `.npy` files that are memory-mapped; or as one Parquet file."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from recordmill.base.errors import UsageError
from recordmill.reader.fetching.readable import Readable
from recordmill.records.columns.gather import gather_columns
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.records.writers.npy import COLUMNS_NAME, NpyWriter, open_columns
from recordmill.records.writers.parquet import ParquetWriteOptions, ParquetWriter
from recordmill.storage.files import local_path, sync_file, sync_folder
from recordmill.storage.folders import exists, has_name, make_folder, remove_file, rename


def in_memory(dataset: Readable) -> dict[str, Array | Ragged | Strings]:
    """The columns as arrays; the peak is the result and a few pieces."""
    return gather_columns(dataset.record_batches(), dataset.schema, len(dataset))


def memory_mapped(dataset: Readable, folder: str | os.PathLike[str]) -> dict[str, Array | Ragged | Strings]:
    """The columns written to the folder and memory-mapped from it.

    Raises:
        UsageError: the folder holds columns already.
    """
    path = Path(local_path(folder))
    make_folder(path, parents=True, exist_ok=True)
    if exists(path / COLUMNS_NAME):
        raise UsageError(
            f"{path} holds columns already; open them with recordmill.reader.open_columns, or name another folder"
        )
    writer = NpyWriter(path, dataset.schema)
    try:
        for batch in dataset.record_batches():
            writer.write(batch)
    except BaseException:
        writer.abort()
        raise
    writer.close()
    return open_columns(path)


def parquet_file(
    dataset: Readable, path: str | os.PathLike[str], compression: str = "zstd", overwrite: bool = False
) -> Path:
    """The records written to one Parquet file, which has its name when it is whole.

    Raises:
        UsageError: something of that name is there, or there is no such compression.
    """
    target = Path(local_path(path))
    if has_name(target) and not overwrite:
        raise UsageError(f"{target} is there already: overwrite=True replaces it")
    options = ParquetWriteOptions(compression=compression)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    writer = ParquetWriter(temporary, dataset.schema, options)
    try:
        for batch in dataset.record_batches():
            writer.write(batch)
        writer.close()
        sync_file(temporary)
        rename(temporary, target)
    except BaseException:
        writer.abort()
        remove_file(temporary, missing_ok=True)
        raise
    sync_folder(target.parent)
    return target
