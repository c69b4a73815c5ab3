"""The inputs of a read to its `Job`s, each of which makes one output: a list of any length, of which the process that
plans holds 40 bytes a piece.

A split is a line of bytes, shard behind shard. Of a data set's shards a file takes the records that begin in its
stretch of that line, every stretch being as long as `--file-size` asks (or as a record is in the mean, if that is
more). So shards need not be opened to say who reads what: the manifest tells how long they are, and whoever reads a
job finds by the index where its records are. Files without an index are cut into pieces here, and a file takes as
many of these as fit. Either depends on inputs and options alone, and what is added to a split behind its end changes no
file but the last.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from recordmill.shards.access import FileAccess
from recordmill.shards.catalog import Catalog, ShardFile
from recordmill.shards.cutting import cut_files
from recordmill.shards.piece_table import PieceTable
from recordmill.shards.pieces import PIECE_BYTES, Piece, Span
from recordmill.storage.listed.table import Table

_STREAM_RATIO = (
    4  # a compressed file is taken to inflate so many times, which only decides how many share an output file
)
_WHOLE = PIECE_BYTES * 2**40  # no piece is larger


@dataclass(frozen=True)
class Job:
    """One output: the index-th (from 0) of `of` of its split, from these pieces, at most limit records of them."""

    split: str
    index: int
    of: int
    pieces: Sequence[Piece | Span]
    limit: int | None = None

    @property
    def name(self) -> str:
        """`train-00003-of-00016`."""
        return f"{self.split}-{self.index:05d}-of-{self.of:05d}"


class JobTable(Table[Job]):
    """Jobs by whole ones, one for each split, and by the pieces with which their parts begin: [parts + 1] of each, the
    last of which is behind the last piece.
    """

    def __init__(self, wholes: Sequence[Job], edges: Sequence[npt.NDArray[np.int64]]) -> None:
        self._wholes, self._edges = tuple(wholes), tuple(edges)
        self._ends = list(accumulate(len(edge) - 1 for edge in edges))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _item(self, at: int) -> Job:
        number = bisect.bisect_right(self._ends, at)
        whole, edges = self._wholes[number], self._edges[number]
        index, of = at - (self._ends[number] - len(edges) + 1), len(edges) - 1
        pieces = PieceTable.of(whole.pieces).part(int(edges[index]), int(edges[index + 1]))
        return Job(whole.split, index, of, pieces, whole.limit)


def whole_jobs(catalog: Catalog, *, lenient: bool, limit: int | None, filters: bool) -> tuple[Job, ...]:
    """A job for each split: of all its pieces, or, unless records are filtered, of as many as hold limit records.

    Raises:
        DataError: a header is damaged in a file that has no index, unless lenient.
    """
    most = None if filters else limit
    found = ((split, PieceTable.of(_pieces(catalog, split, lenient, most))) for split in catalog.splits)
    return tuple(Job(split, 0, 1, pieces, limit) for split, pieces in found)


def records_of(wholes: Sequence[Job]) -> int | None:
    """How many records they hold; None where a stream does not tell before it is read."""
    told = [PieceTable.of(whole.pieces).records for whole in wholes]
    return None if None in told else sum(number for number in told if number is not None)


def _pieces(catalog: Catalog, split: str, lenient: bool, limit: int | None) -> Iterator[Piece | Span]:
    left = limit
    for piece in _found(catalog, split, lenient):
        if left is not None:
            if left == 0:
                return
            if piece.records is not None and piece.records > left:
                piece = _shortened(catalog.files[piece.file], piece, left)
            left -= min(left, 1 if isinstance(piece, Piece) and piece.fault else piece.records or 0)
        yield piece


def _found(catalog: Catalog, split: str, lenient: bool) -> Iterator[Piece | Span]:
    """Of a data set whole shards, of other files what `cut_files` finds."""
    files = ((ordinal, file) for ordinal, file in enumerate(catalog.files) if file.split == split)
    if catalog.manifest is None:
        yield from cut_files(files, lenient=lenient)
        return
    for ordinal, file in files:
        assert file.info is not None
        if file.info.records:
            yield Span(ordinal, 0, file.info.framed_bytes, file.info.records)


def _shortened(file: ShardFile, piece: Piece | Span, records: int) -> Piece | Span:
    """The first records of a piece, or of a shard."""
    access = FileAccess(file, piece.file)
    if isinstance(piece, Piece):
        return next(access.pieces(piece.first_record, piece.first_record + records, _WHOLE))
    first = next(access.pieces(0, records, _WHOLE))
    assert first.stop is not None
    return Span(piece.file, 0, first.stop, records)


def split_jobs(wholes: Sequence[Job], files: Sequence[ShardFile], file_bytes: int) -> JobTable:
    """The jobs as several, each with about file_bytes of shards; one with a limit stays whole."""
    jobs, edges = zip(*(_split(whole, files, file_bytes) for whole in wholes), strict=True) if wholes else ((), ())
    return JobTable(jobs, edges)


def _split(whole: Job, files: Sequence[ShardFile], file_bytes: int) -> tuple[Job, npt.NDArray[np.int64]]:
    """(the job, its pieces cut where a part begins within one; which of them each part begins with)."""
    pieces = PieceTable.of(whole.pieces)
    if whole.limit is not None or not len(pieces):
        return whole, np.array([0, len(pieces)])
    if pieces.are_spans:
        cut, edges = _cut_spans(pieces, file_bytes)
        return replace(whole, pieces=cut), edges
    return whole, _fill(sizes_of(pieces, files), file_bytes)


def sizes_of(pieces: Sequence[Piece | Span], files: Sequence[ShardFile]) -> npt.NDArray[np.int64]:
    """[pieces] the bytes of shards of each; of a stream what it is taken to hold."""
    values = PieceTable.of(pieces).values
    sizes = values[:, 4] - values[:, 3]
    for row in np.flatnonzero(values[:, 4] < 0).tolist():
        sizes[row] = files[int(values[row, 0])].stat.size_bytes * _STREAM_RATIO
    return sizes


def _fill(sizes: npt.NDArray[np.int64], file_bytes: int) -> npt.NDArray[np.int64]:
    """As many pieces to a part as fit, but one at least."""
    edges, held = [0], 0
    for number, size in enumerate(sizes.tolist()):
        if number > edges[-1] and held + size > file_bytes:
            edges.append(number)
            held = 0
        held += size
    return np.array([*edges, len(sizes)])


def _cut_spans(spans: PieceTable, file_bytes: int) -> tuple[PieceTable, npt.NDArray[np.int64]]:
    """(spans that end where a part does, the number of the first one of each part, and behind the last)"""
    file, _, records, start, stop = spans.values.T
    sizes = stop - start
    ends = np.cumsum(sizes)
    begins, total, counted = ends - sizes, int(ends[-1]), spans.records
    parts = np.arange(0, total, max(file_bytes, -(-total // counted) if counted else 1))
    bounds = np.union1d(parts, begins)
    row = np.searchsorted(ends, bounds, side="right")
    length = np.diff(bounds, append=total)
    low = bounds - begins[row] + start[row]
    cut = PieceTable.of_spans(file[row], low, low + length, np.where(length == sizes[row], records[row], -1))
    return cut, np.append(np.searchsorted(bounds, parts), len(bounds))
