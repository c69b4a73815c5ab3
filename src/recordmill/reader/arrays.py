"""Output of a `Dataset` as `.npy` files, Parquet or batches of one size."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from recordmill.base.errors import UsageError
from recordmill.reader.records import Records
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.records.writers.npy import COLUMNS_NAME, NpyWriter, open_columns
from recordmill.records.writers.options import ParquetOptions
from recordmill.records.writers.parquet import ParquetWriter
from recordmill.storage.files import (
    is_remote,
    move_to_shared,
    parse_input_path,
    parse_local_path,
    sync_folder,
)
from recordmill.storage.folders import (
    check_output_file,
    exists,
    make_folder,
    remove_file,
    scratch_folder,
)


def rebatch(batches: Iterable[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the batches again in batches of `batch_rows` rows.

    The last batch may be shorter.

    >>> column = pa.array([1, 2, 3, 4, 5])
    >>> batch = pa.RecordBatch.from_arrays([column], ["x"])
    >>> [part["x"].to_pylist() for part in rebatch([batch], 2)]
    [[1, 2], [3, 4], [5]]
    """
    pending: list[pa.RecordBatch] = []
    pending_rows = 0
    for batch in batches:
        while pending_rows + batch.num_rows >= batch_rows:
            pending.append(batch.slice(0, batch_rows - pending_rows))
            batch = batch.slice(batch_rows - pending_rows)
            yield pa.concat_batches(pending)
            pending, pending_rows = [], 0
        if batch.num_rows:
            pending.append(batch)
            pending_rows += batch.num_rows
    if pending:
        yield pa.concat_batches(pending)


def write_memory_mapped(
    records: Records, folder: str | os.PathLike[str]
) -> dict[str, Array | Ragged | Strings]:
    """Writes the columns as `.npy` files to a folder and memory-maps them.

    Args:
        records: The records to write.
        folder: A local folder. It is created if needed.

    Returns:
        The columns by feature name.

    Raises:
        UsageError: The folder contains columns already, or is in a store.
    """
    if is_remote(parse_input_path(folder)):
        raise UsageError(
            f"{os.fspath(folder)}: columns are memory maps of local files: name a "
            "local folder; recordmill.read(..., to='npy') writes them to a store"
        )
    path = Path(parse_local_path(folder))
    try:
        make_folder(path, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{path} is a file, or below one: name a new or empty folder") from None
    if exists(path / COLUMNS_NAME):
        raise UsageError(
            f"{path} holds columns already; open them with recordmill.reader.open_columns, or name another folder"
        )
    writer = NpyWriter(path, records.schema)
    try:
        for batch in records.record_batches():
            writer.write(batch)
    except BaseException:
        writer.abort()
        raise
    writer.close()
    return open_columns(path)


def write_parquet(
    records: Records,
    path: str | os.PathLike[str],
    compression: str = "zstd",
    overwrite: bool = False,
) -> Path | str:
    """Writes the records to one Parquet file.

    The file gets its name when it is complete. A file for a store is prepared in a temporary
    folder.

    Args:
        records: The records to write.
        path: The file, or an object in a store.
        compression: "zstd", "snappy", "gzip" or "none", perhaps with a level as in "zstd:9".
        overwrite: If True, an existing file is replaced.

    Returns:
        The path of the file, or the URI of the object.

    Raises:
        UsageError: The file exists already, or the compression is unknown.
    """
    place = check_output_file(path, overwrite)
    options = ParquetOptions(compression=compression)
    if not is_remote(place):
        target = Path(place)
        # hidden, and in the same folder, so that it can be renamed to the target
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        _write_parquet(records, temporary, options, target)
        sync_folder(target.parent)  # makes the rename durable
        return target
    with scratch_folder("recordmill-") as scratch:
        _write_parquet(records, Path(scratch, "table.parquet"), options, place)
    return place


def _write_parquet(
    records: Records, path: Path, options: ParquetOptions, target: Path | str
) -> None:
    """Writes the records to `path` and moves the file to `target`. An error removes the file."""
    writer = ParquetWriter(path, records.schema, options)
    try:
        for batch in records.record_batches():
            writer.write(batch)
        writer.close()
        move_to_shared(str(path), str(target))
    except BaseException:
        writer.abort()
        remove_file(path, missing_ok=True)
        raise
