"""Writer of one `.npy` file, row by row.

The number of rows is not known at the start. So space for the header is reserved, and `close`
writes the header with the number. The format is version 1.0 of `numpy.lib.format`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from recordmill.records.columns.ragged import Array
from recordmill.storage.files import create_file, write_all

_MAGIC = b"\x93NUMPY\x01\x00"
# NumPy aligns the data, so that SIMD code can use a memory map.
_ALIGNMENT_BYTES = 64
# 10^18 rows: enough digits are reserved in the header for the number of rows of any file.
_MAX_ROWS = 10**18


# The index files of very many shards have only a few different lengths.
@functools.lru_cache(maxsize=64)
def make_npy_header(dtype: np.dtype[Any], shape: tuple[int, ...], padded_bytes: int = 0) -> bytes:
    """Returns the `.npy` header of an array in C order.

    Args:
        dtype: The dtype of the array.
        shape: The shape of the array.
        padded_bytes: Length of the header, which is filled up with blanks. 0 uses the smallest
            multiple of 64 bytes.
    """
    text = f"{{'descr': {np.lib.format.dtype_to_descr(dtype)!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode(
        "latin-1"
    )
    size = (
        padded_bytes or -(-(len(_MAGIC) + 2 + len(text) + 1) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    )
    # 2 bytes contain the length of the text, which ends in a line break after the padding.
    text_bytes = size - len(_MAGIC) - 2
    return _MAGIC + text_bytes.to_bytes(2, "little") + text.ljust(text_bytes - 1) + b"\n"


class NpyFile:
    """An open `.npy` file that is written row by row.

    If the file is not closed, its header consists of zeros and NumPy refuses it. After `close`,
    `np.load(path, mmap_mode="r")` opens it, even if it is larger than the memory.

    Attributes:
        dtype: The dtype of the values.
        row_shape: The shape of a row.
        rows: Number of rows so far.
    """

    def __init__(
        self, path: str | Path, dtype: np.dtype[Any], row_shape: tuple[int, ...] = ()
    ) -> None:
        self.dtype, self.row_shape, self.rows = dtype, row_shape, 0
        self._header_bytes = len(make_npy_header(dtype, (_MAX_ROWS, *row_shape)))
        self._file = create_file(path)
        write_all(self._file, bytes(self._header_bytes))

    def append(self, rows: Array) -> None:
        """Appends rows.

        Args:
            rows: Array of shape [rows, *row_shape].

        Raises:
            ValueError: The rows have another shape.
        """
        if rows.shape[1:] != self.row_shape:
            raise ValueError(
                f"rows of shape {rows.shape[1:]} do not fit a file of {self.row_shape}"
            )
        contiguous = np.ascontiguousarray(rows, self.dtype)
        if contiguous.size:
            write_all(self._file, contiguous.reshape(-1).view(np.uint8))
        self.rows += len(rows)

    def close(self) -> None:
        """Writes the header with the final number of rows."""
        self._file.seek(0)
        write_all(
            self._file,
            make_npy_header(self.dtype, (self.rows, *self.row_shape), self._header_bytes),
        )
        self._file.close()

    def abort(self) -> None:
        self._file.close()
