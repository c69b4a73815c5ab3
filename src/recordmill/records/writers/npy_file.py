"""Writes one `.npy` file as a stream of rows, which `np.load(path, mmap_mode="r")` opens, however large it is.

Room for a header of any row count is left at its beginning and filled on close. Format: numpy.lib.format, version 1.0.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from recordmill.records.columns.ragged import Array
from recordmill.storage.files import create_file, write_all

_MAGIC = b"\x93NUMPY\x01\x00"
_ALIGNMENT_BYTES = 64  # bytes; NumPy aligns the data so that a memory map is usable by SIMD code
_MAX_ROWS = 10**18  # fits every count that a file can hold


@functools.lru_cache(maxsize=64)  # the indices of very many shards have few lengths
def make_npy_header(dtype: np.dtype[Any], shape: tuple[int, ...], padded_bytes: int = 0) -> bytes:
    """Returns the header of an array in C order, padded to `length` bytes or, if that is 0, to a multiple of 64."""
    text = f"{{'descr': {np.lib.format.dtype_to_descr(dtype)!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode(
        "latin-1"
    )
    size = (
        padded_bytes or -(-(len(_MAGIC) + 2 + len(text) + 1) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    )
    text_bytes = size - len(_MAGIC) - 2
    return _MAGIC + text_bytes.to_bytes(2, "little") + text.ljust(text_bytes - 1) + b"\n"


class NpyFile:
    """Appends rows of one dtype and shape; `rows` counts them.

    A file that was not closed has zeros for a header, which nothing opens.
    """

    def __init__(
        self, path: str | Path, dtype: np.dtype[Any], row_shape: tuple[int, ...] = ()
    ) -> None:
        self.dtype, self.row_shape, self.rows = dtype, row_shape, 0
        self._header_bytes = len(make_npy_header(dtype, (_MAX_ROWS, *row_shape)))
        self._file = create_file(path)
        write_all(self._file, bytes(self._header_bytes))

    def append(self, rows: Array) -> None:
        """Appends [rows, *row_shape] values."""
        if rows.shape[1:] != self.row_shape:
            raise ValueError(
                f"rows of shape {rows.shape[1:]} do not fit a file of {self.row_shape}"
            )
        contiguous = np.ascontiguousarray(rows, self.dtype)
        if contiguous.size:
            write_all(self._file, contiguous.reshape(-1).view(np.uint8))
        self.rows += len(rows)

    def close(self) -> None:
        """Writes the true row count."""
        self._file.seek(0)
        write_all(
            self._file,
            make_npy_header(self.dtype, (self.rows, *self.row_shape), self._header_bytes),
        )
        self._file.close()

    def abort(self) -> None:
        self._file.close()
