"""Very many pieces and spans as columns: 40 bytes each, where objects take eight times as much."""

from __future__ import annotations

import bisect
import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.records.tfrecord.frames import Int64s
from recordmill.shards.pieces import Piece, Span
from recordmill.storage.listed.table import Table

Fault = tuple[str, str]  # as of a Piece
PIECE_COLUMNS = 5
_NONE = -1  # of records and stop: None; of first_record: a span


class PieceTable(Table[Piece | Span]):
    """values: [pieces, 5] int64, file, first record, records, start and stop of each; -1 where there is none. faults:
    of those pieces that have one, the number and what is wrong, ascending.
    """

    def __init__(self, values: npt.NDArray[np.int64], faults: Sequence[tuple[int, Fault]] = ()) -> None:
        self.values, self._faults = values, tuple(faults)

    @classmethod
    def of(cls, pieces: Iterable[Piece | Span]) -> PieceTable:
        """The same in the same order."""
        if isinstance(pieces, PieceTable):
            return pieces
        held, faults = array("q"), list[tuple[int, Fault]]()
        for number, one in enumerate(pieces):
            first = one.first_record if isinstance(one, Piece) else _NONE
            records, stop = (_NONE if value is None else value for value in (one.records, one.stop))
            held.extend((one.file, first, records, one.start, stop))
            if isinstance(one, Piece) and one.fault:
                faults.append((number, (one.fault, one.fault_kind)))
        return cls(np.frombuffer(held, np.int64).reshape(-1, PIECE_COLUMNS), faults)

    @classmethod
    def of_spans(cls, files: Int64s, starts: Int64s, stops: Int64s, records: Int64s) -> PieceTable:
        """Spans, by one array of each of their fields; records: -1 where only the index says."""
        return cls(np.stack([files, np.full(len(files), _NONE), records, starts, stops], axis=1))

    def part(self, first: int, last: int) -> PieceTable:
        """Those numbered [first, last)."""
        low, high = (bisect.bisect_left(self._faults, at, key=lambda one: one[0]) for at in (first, last))
        return PieceTable(self.values[first:last], [(row - first, fault) for row, fault in self._faults[low:high]])

    @property
    def are_spans(self) -> bool:
        """Whether all of them are spans, and there are some."""
        return bool(len(self)) and bool((self.values[:, 1] == _NONE).all())

    @property
    def records(self) -> int | None:
        """How many records they hold, with one for each fault; None where only a stream's end, or an index, says."""
        counted, stops = self.values[:, 2], self.values[:, 4]
        if (stops == _NONE).any() or (counted == _NONE).sum() > len(self._faults):
            return None
        return int(counted[counted != _NONE].sum()) + len(self._faults)

    @property
    def listed_faults(self) -> list[tuple[int, str, str]]:
        """(number, what is wrong, of which kind) of those that have one, ascending."""
        return [(number, *fault) for number, fault in self._faults]

    def digest(self) -> str:
        """The same, in hex, for the same pieces."""
        return hashlib.sha256(repr(self._faults).encode() + self.values.tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self.values)

    def _item(self, at: int) -> Piece | Span:
        file, first, records, start, stop = self.values[at].tolist()
        told = None if records == _NONE else records
        if first == _NONE:
            return Span(file, start, stop, told)
        where = bisect.bisect_left(self._faults, at, key=lambda one: one[0])
        fault = self._faults[where][1] if where < len(self._faults) and self._faults[where][0] == at else ()
        return Piece(file, first, told, start, None if stop == _NONE else stop, *fault)

    def __getstate__(self) -> Any:
        return self.values, self._faults

    def __setstate__(self, state: Any) -> None:
        self.values, self._faults = state
