"""Records of any numbers as a table: what a user asks for to numbers, numbers to the quicker way of reading them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.reader.covering import covering
from recordmill.records.columns.decoding import Decoding
from recordmill.records.tfrecord.frames import Int64s
from recordmill.schemas.arrow import to_arrow
from recordmill.shards.access import FileAccess
from recordmill.shards.loads.batches import record_batches
from recordmill.shards.loads.scattered import are_scattered, scattered_batches
from recordmill.shards.pieces import PIECE_BYTES


def wanted_numbers(records: Sequence[int] | npt.NDArray[Any], total: int) -> Int64s:
    """The numbers in [0, total) that are meant; negative ones count from the end.

    Raises:
        TypeError: these are no numbers. IndexError: there are not so many records.
    """
    wanted = np.asarray(records)
    if wanted.dtype == np.bool_ and wanted.ndim == 1 and wanted.size:
        raise TypeError(f"a bool for each record is a condition: ds.filter(mask) gives its records, not {records!r}")
    if wanted.dtype == np.bool_ or (wanted.size and wanted.dtype.kind not in "iu") or wanted.ndim != 1:
        raise TypeError(f"records are addressed by a number, a slice or a list of numbers, not by {records!r}")
    wanted = wanted.astype(np.int64)
    if len(outside := wanted[(wanted < -total) | (wanted >= total)]):
        raise IndexError(f"record {outside[0]} of {total}")
    return wanted % max(total, 1)


def taken(files: Sequence[FileAccess], ends: Int64s, numbers: Int64s, decoding: Decoding, threads: int) -> pa.Table:
    """The records of these numbers among all, in this order, also several times."""
    distinct, back = np.unique(numbers, return_inverse=True)
    return _ascending(files, ends, distinct, decoding, threads).take(pa.array(back.reshape(-1)))


def _ascending(
    files: Sequence[FileAccess], ends: Int64s, numbers: Int64s, decoding: Decoding, threads: int
) -> pa.Table:
    if are_scattered(numbers) and all(file.seekable for file in files):
        with contextlib.suppress(DataError):  # which the other way finds, too, and says where
            return pa.Table.from_batches(
                scattered_batches(list(files), ends, numbers, decoding, threads), to_arrow(decoding.schema)
            )
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if len(numbers) else []
    loads = (load for run in runs for load in covering(files, ends, int(run[0]), int(run[-1]) + 1, PIECE_BYTES, None))
    return pa.Table.from_batches(record_batches(loads, decoding, threads=threads), to_arrow(decoding.schema))
