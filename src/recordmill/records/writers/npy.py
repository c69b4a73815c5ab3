"""Output to folders of `.npy` files, or to `.npz` files.

A folder has these files:

    image.npy                                  fixed shape: [rows, *shape]
    tokens.values.npy, tokens.row_splits.npy   lists: row i is values[splits[i]:splits[i + 1]]
    text.values.npy, text.row_splits.npy       text and bytes: values is uint8
    age.valid.npy                              [rows] bool, if the feature may be missing
    _columns.json                              the list of the files, for `open_columns(folder)`

Lists of lists have further files `row_splits_1` and so on, from the outer to the inner level. The
innermost splits of lists of text count bytes. Names of features are percent-encoded except for
letters, digits, `_` and `-`, so `image/encoded` becomes `image%2Fencoded.npy`.

Writers hold only the current batch in memory.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from recordmill.base.arguments import suggest_keywords
from recordmill.base.documents import Count
from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import format_size
from recordmill.records.columns.numpy_arrays import (
    ColumnArrays,
    assemble_array,
    extract_arrays,
    is_bytes,
    numpy_dtype,
)
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.records.writers.npy_file import NpyFile
from recordmill.records.writers.outputs import OutputWriter, WriterSettings
from recordmill.schemas.arrow import from_arrow, to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.storage.files import create_file, parse_local_path, read_blocks, stat, write_all
from recordmill.storage.folders import find_files, list_paths, make_folder, remove
from recordmill.storage.json_fields import load_json

COLUMNS_NAME = "_columns.json"
_VERSION = 1
# 1 MiB of an array is in memory at once while it is packed.
_COPY_BLOCK_BYTES = 1 << 20
# 200 bytes: file systems allow names of 255 bytes, and suffixes such as `.row_splits_1.npy` follow.
_MAX_STEM_BYTES = 200


class _ColumnsFile(TypedDict):
    arrow_schema: str
    rows: Count


def to_file_stem(feature_name: str) -> str:
    """Returns the beginning of the file names of a feature.

    The stem is the percent-encoded feature name, so `urllib.parse.unquote` returns the name. Only a
    long stem is cut, and ends in a hash.

    >>> to_file_stem("image/encoded"), to_file_stem("v1.2")
    ('image%2Fencoded', 'v1%2E2')
    """
    stem = quote(feature_name, safe="").replace(".", "%2E").replace("~", "%7E")
    if not stem:
        return "%"
    return (
        stem
        if len(stem) <= _MAX_STEM_BYTES
        else f"{stem[: _MAX_STEM_BYTES - 17]}~{hashlib.sha256(feature_name.encode()).hexdigest()[:16]}"
    )


@dataclass
class _ColumnFiles:
    """The open files of one feature."""

    feature: Feature
    values: NpyFile
    splits: list[NpyFile]
    valid: NpyFile | None

    def append(self, column: pa.Array) -> None:
        arrays = extract_arrays(column, self.feature)
        # Splits of a batch start at 0, so the number of earlier items is added to them. It is the
        # number of rows in the next inner file, which does not have this batch yet.
        for level, (file, offsets) in enumerate(zip(self.splits, arrays.splits, strict=True)):
            previous_items = (
                self.splits[level + 1].rows - 1
                if level + 1 < len(self.splits)
                else self.values.rows
            )
            file.append(offsets[1:] + previous_items)
        self.values.append(arrays.values)
        if self.valid is not None:
            self.valid.append(arrays.valid)  # type: ignore[arg-type]

    @property
    def files(self) -> list[NpyFile]:
        return [self.values, *self.splits, *([self.valid] if self.valid else [])]


class NpyWriter(OutputWriter):
    """Writer of a folder of `.npy` files, which are complete after `close`."""

    def __init__(
        self, folder: str | Path, schema: Schema, settings: WriterSettings | None = None
    ) -> None:
        self.folder, self.schema, self.rows = Path(folder), schema, 0
        make_folder(folder, exist_ok=True)
        self._columns = [self._open(feature) for feature in schema]

    def write(self, batch: pa.RecordBatch) -> None:
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.append(array)
        self.rows += batch.num_rows

    def close(self) -> None:
        for column in self._columns:
            for file in column.files:
                file.close()
        description = {
            "format": "recordmill columns",
            "version": _VERSION,
            "rows": self.rows,
            "arrow_schema": to_arrow(self.schema).serialize().to_pybytes().hex(),
            "columns": {
                c.feature.name: {
                    "what": c.feature.describe(),
                    "files": column_file_names(c.feature),
                }
                for c in self._columns
            },
        }
        with create_file(self.folder / COLUMNS_NAME) as columns_file:
            write_all(
                columns_file,
                (json.dumps(description, indent=1, ensure_ascii=False) + "\n").encode(),
            )

    def abort(self) -> None:
        for column in self._columns:
            for file in column.files:
                file.abort()

    def _open(self, feature: Feature) -> _ColumnFiles:
        names = column_file_names(feature)
        dtype = np.dtype(np.uint8) if is_bytes(feature) else numpy_dtype(feature)
        values = self._create_file(
            names["values"], dtype, () if is_bytes(feature) else feature.inner_shape
        )
        splits = [
            self._create_file(name, np.dtype(np.int64))
            for part, name in names.items()
            if part.startswith("row_splits")
        ]
        # The first split is 0. Batches append the ends of their rows.
        for file in splits:
            file.append(np.zeros(1, np.int64))
        valid = self._create_file(names["valid"], np.dtype(np.bool_)) if "valid" in names else None
        return _ColumnFiles(feature, values=values, splits=splits, valid=valid)

    def _create_file(
        self, name: str, dtype: np.dtype[Any], row_shape: tuple[int, ...] = ()
    ) -> NpyFile:
        return NpyFile(self.folder / name, dtype, row_shape)


class NpzWriter(OutputWriter):
    """Writer of one `.npz` file.

    Batches are first written to `.npy` files in a temporary folder next to `path`. `close` packs
    these into the `.npz` file.
    """

    def __init__(self, path: Path, schema: Schema, settings: WriterSettings) -> None:
        self._path, self._split, self._memory_bytes = path, settings.split, settings.memory_bytes
        self._folder = path.with_name(f"{path.name}.columns")
        self._columns = NpyWriter(self._folder, schema)
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._columns.write(batch)
        self.rows = self._columns.rows

    def close(self) -> None:
        """Packs the arrays without compression, and removes the temporary folder.

        Raises:
            UsageError: The arrays are larger than `--memory`, which `np.load` would need for them.
        """
        self._columns.close()
        size = sum(stat(file).size_bytes for file in find_files(self._folder).values())
        if self._memory_bytes and size > self._memory_bytes:
            raise UsageError(
                "{to}: {split} takes {size}, more than the {memory_bytes} of {memory}, and "
                "np.load would need it all at once; use {to2}, which np.load(..., "
                "mmap_mode='r') opens",
                to=option("to", "npz"),
                split=self._split,
                size=format_size(size),
                memory_bytes=format_size(self._memory_bytes),
                memory=option("memory"),
                to2=option("to", "npy"),
            )
        with zipfile.ZipFile(self._path, "w", zipfile.ZIP_STORED) as archive:
            for path in list_paths(self._folder, "*.npy"):
                # ZipInfo has a constant date in 1980, so the same columns produce the same bytes.
                entry = zipfile.ZipInfo(path.name)
                with archive.open(entry, "w", force_zip64=True) as member:
                    for block in read_blocks(str(path), _COPY_BLOCK_BYTES):
                        member.write(block)
        remove(self._folder)

    def abort(self) -> None:
        self._columns.abort()
        remove(self._folder, ignore_errors=True)


def column_file_names(feature: Feature) -> dict[str, str]:
    """Returns the names of a feature's files, by their role.

    The roles are `values`, `row_splits`, `row_splits_1` and so on, and `valid`, in this order. A
    feature has only the files that it needs.
    """
    stem = to_file_stem(feature.name)
    levels = feature.ragged_rank + is_bytes(feature)
    names = {"values": f"{stem}.values.npy" if levels else f"{stem}.npy"}
    for level in range(levels):
        part = f"row_splits_{level}" if level else "row_splits"
        names[part] = f"{stem}.{part}.npy"
    if not feature.required:
        names["valid"] = f"{stem}.valid.npy"
    return names


@suggest_keywords
def open_columns(folder: str | Path, mmap: bool = True) -> dict[str, Array | Ragged | Strings]:
    """Opens the columns of a folder that `NpyWriter` has written.

    Text and bytes are returned as `Strings`, and lists as `Ragged`. A number or tensor that may be
    missing is a `numpy.ma.MaskedArray` around the memory map, as in `Dataset.to_numpy`.

    Args:
        folder: The folder.
        mmap: Whether the arrays are memory-mapped. Otherwise they are loaded.

    Returns:
        The columns by feature name.

    Raises:
        DataError: The folder contains no such columns, or a file has another dtype or length than
            `_columns.json` and the other files require.
    """
    folder = Path(parse_local_path(folder))
    try:
        description = load_json(_ColumnsFile, folder / COLUMNS_NAME)
        schema = from_arrow(
            pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(description["arrow_schema"])))
        )
        rows = description["rows"]
        return {
            feature.name: _load_column(folder, feature, rows=rows, mmap=mmap) for feature in schema
        }
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError, pa.ArrowException) as error:
        raise DataError(
            "holds no columns written by recordmill ({columns_name}: {error})",
            columns_name=COLUMNS_NAME,
            error=error,
            source=str(folder),
        ) from None


def _load_column(folder: Path, feature: Feature, rows: int, mmap: bool) -> Array | Ragged | Strings:
    dtype, row_shape = (
        (np.dtype(np.uint8), ())
        if is_bytes(feature)
        else (numpy_dtype(feature), feature.inner_shape)
    )
    names, splits, num_items = column_file_names(feature), list[Array](), rows
    num_tensors = rows
    for name in (name for part, name in names.items() if part.startswith("row_splits")):
        # After the splits of lists come the offsets of text, one for each value of a tensor.
        if len(splits) == feature.ragged_rank:
            num_tensors, num_items = num_items, num_items * feature.inner_size
        splits.append(
            _load_array(folder / name, dtype=np.dtype(np.int64), shape=(num_items + 1,), mmap=mmap)
        )
        num_items = int(splits[-1][-1])
    valid = (
        _load_array(folder / names["valid"], dtype=np.dtype(np.bool_), shape=(rows,), mmap=mmap)
        if "valid" in names
        else None
    )
    values = _load_array(
        folder / names["values"], dtype=dtype, shape=(num_items, *row_shape), mmap=mmap
    )
    return assemble_array(
        ColumnArrays(values=values, splits=tuple(splits), valid=valid, num_items=num_tensors),
        feature,
    )


def _load_array(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], mmap: bool) -> Array:
    """Opens an array and checks its dtype and shape."""
    # `np.load` would also accept zip files.
    array = np.lib.format.open_memmap(path, mode="r")
    if (array.dtype, array.shape) != (dtype, shape):
        expected = f"{COLUMNS_NAME} and the other files of the column say {dtype} {list(shape)}"
        raise DataError(
            f"holds {array.dtype} {list(array.shape)}, where {expected}", source=str(path)
        )
    return array if mmap else np.array(array)
