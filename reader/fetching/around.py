"""Records of these numbers as columns, as far as they can be read: what is damaged, or does not fit the schema, is left
out and named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.reader.fetching.scatter import Held, ordered_frames
from recordmill.records.columns.decoding import Decoding
from recordmill.records.tfrecord.frames import HEADER_BYTES, Int64s
from recordmill.shards.access import FileAccess


@dataclass(frozen=True)
class Around:
    """batch: the records that could be read. kept: [their rows] which of the numbers they are. bad: (row, reason) of
    the others.
    """

    batch: pa.RecordBatch
    kept: Int64s
    bad: tuple[tuple[int, str], ...]


def decoded_around(
    files: Sequence[FileAccess], ends: Int64s, numbers: Int64s, held: Held, decoding: Decoding
) -> Around:  # fmt: skip
    """Of the records of these numbers, in their order.

    Raises:
        DataError: a file is no longer what it was, or nothing of it can be read.
    """
    rows, bad = np.arange(len(numbers), dtype=np.int64), []
    try:
        frames = ordered_frames(files, ends, numbers, held)
    except DataError:
        bad += list(_damaged(files, ends, numbers))
        rows = np.delete(rows, [row for row, _ in bad])
        frames = ordered_frames(files, ends, numbers[rows], held)
    batch, good, wrong = decoding.decode_lenient(frames.data, frames.starts + HEADER_BYTES, frames.lengths)
    for record in wrong:
        about = f"feature {record.feature!r}: " if record.feature else ""
        bad.append((int(rows[record.row]), f"{about}{record.reason}"))
    return Around(batch, rows[good], tuple(sorted(bad)))


def _damaged(files: Sequence[FileAccess], ends: Int64s, numbers: Int64s) -> Iterator[tuple[int, str]]:
    """(row, reason) of those whose frames are damaged, each looked at by itself."""
    for row, number in enumerate(numbers.tolist()):
        at = int(np.searchsorted(ends, number, "right"))
        if files[at].seekable:
            try:
                files[at].frame(number - (int(ends[at - 1]) if at else 0))
            except DataError as error:
                yield row, error.reason


def place_of(files: Sequence[FileAccess], ends: Int64s, number: int) -> tuple[str, str]:
    """(path, place in it) of the record with this number among all."""
    at = int(np.searchsorted(ends, number, "right"))
    return files[at].file.path, f"record {number - (int(ends[at - 1]) if at else 0)}"
