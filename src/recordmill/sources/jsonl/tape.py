"""Blocks of JSON lines in, `Tape`s out: what the scan kernel wrote for some thousands of records,
sorted by place in the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import room
from recordmill.base.errors import DataError
from recordmill.base.kernels import kernel
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.schemas.feature import check_feature_count
from recordmill.sources.common.contract import BATCH_ROWS
from recordmill.sources.jsonl import scan
from recordmill.sources.jsonl.grammar import GROW
from recordmill.storage.files import Bytes

Path = tuple[str | None, ...]  # keys from the record inwards; None stands for the elements of a list

MAX_NODES = 20_000  # different places in a record: keys beyond that are data (identifiers), not names
MAX_KEY_BYTES = 64 << 20  # 64 MiB: all keys together
_ADVICE = "keys that are data can't be features; make them values"
VALUE_SHARE = 256  # bytes of memory for each value of a line: its entry, its place, itself as it is read and encoded
_ENTRIES = 1 << 20  # 1,048,576 values on a tape: 16 MiB, and a batch of 65,536 records with 16 values each
_ERRORS = 1 << 12  # 4,096 bad lines per tape: bounds the messages made at once


@dataclass(frozen=True)
class Tape:
    """The good records of consecutive lines of data, and the bad lines.

    entries: int32 [values, 4] (see json_scan). order: int32 [values], entries by node, in the order of the text within
    a node; bounds: int64 [nodes + 1], where each node's entries start in order. row_lines, row_tape: int32 [rows].
    errors: int64 [*, 4]. lines: how many lines were read, blank ones included.
    """

    data: Bytes
    entries: npt.NDArray[np.int32]
    order: npt.NDArray[np.int32]
    bounds: npt.NDArray[np.int64]
    row_lines: npt.NDArray[np.int32]
    row_tape: npt.NDArray[np.int32]
    errors: npt.NDArray[np.int64]
    lines: int

    @property
    def rows(self) -> int:
        return len(self.row_lines)

    def of(self, node: int) -> npt.NDArray[np.int32]:
        """The entries of the node, as places on the tape."""
        return (
            self.order[self.bounds[node] : self.bounds[node + 1]]
            if 0 <= node < len(self.bounds) - 1
            else self.order[:0]
        )

    def rows_of(self, entries: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """The records in which the entries stand."""
        return np.searchsorted(self.row_tape, entries, side="right") - 1


class TapeScanner:
    """Reads blocks of lines; keeps the trie of keys from one block to the next. memory_bytes: a line of more values
    than there is memory for is a bad one. source: the file, as errors name it.
    """

    def __init__(self, memory_bytes: int = DEFAULT_MEMORY_BYTES, source: str = "") -> None:
        self._nodes = np.full((256, scan.SCAN_FIELDS), -1, np.int64)
        self._nodes[0, scan.COUNT] = 0
        self._arena = np.zeros(1 << 14, np.uint8)
        self._table = np.full(1 << 9, -1, np.int32)
        self._tape, self._order = room((1 << 16, 4), np.int32), room(1 << 16, np.int32)
        self._stack = np.empty((scan.DEPTH, 4), np.int64)
        self._row_lines, self._row_tape = np.empty((2, BATCH_ROWS), np.int32)
        self._errors = np.empty((_ERRORS, 4), np.int64)
        self._state = np.zeros(scan.SCAN_STATES, np.int64)
        self._state[scan.NODES], self._state[scan.MOST_IN_LINE] = 1, memory_bytes // VALUE_SHARE
        self._memory_bytes, self._source = memory_bytes, source
        self._paths: list[Path] = [()]
        self._known: dict[Path, int] = {(): 0}

    @property
    def paths(self) -> list[Path]:
        """Of each node its path; paths[0] is the record itself."""
        for node in range(len(self._paths), int(self._state[scan.NODES])):
            parent, start, stop = self._nodes[node, [scan.PARENT, scan.KEY_START, scan.KEY_STOP]].tolist()
            name = None if start < 0 else self._arena[start:stop].tobytes().decode()
            self._paths.append((*self._paths[parent], name))
            self._known[self._paths[-1]] = node
        return self._paths

    def nodes_of(self, path: Path) -> tuple[int, ...]:
        """The nodes on the way to that path; -1 for what no record had so far."""
        assert len(self.paths) == len(self._known)
        return tuple(self._known.get(path[: depth + 1], -1) for depth in range(len(path)))

    def scan(self, data: Bytes) -> Iterator[Tape]:
        """The tapes of a block of whole lines; each is valid until the next one is asked for.

        Raises:
            DataError: more than MAX_NODES different keys, than the memory allows features, or MAX_KEY_BYTES of keys.
        """
        state = self._state
        state[scan.AT] = 0
        while state[scan.AT] < len(data):
            state[[scan.SCAN_LINE, scan.SCAN_ROWS, scan.ERRORS, scan.TAPE]] = 0
            self._nodes[:, scan.COUNT], self._nodes[:, scan.LAST] = 0, -1
            scan.scan_records(
                data,
                len(data),
                self._nodes,
                self._arena,
                self._table,
                self._tape,
                self._row_lines,
                self._row_tape,
                self._errors,
                state,
                self._stack,
            )
            check_count(int(state[scan.NODES]), lambda: self.paths[-1], self._source)
            check_feature_count(int(state[scan.NODES]) - 1, self._memory_bytes, self._source)
            if state[scan.SCAN_LINE]:
                yield self._result(data)
            if state[scan.SCAN_STATUS] == GROW:
                self._grow(data)

    def _result(self, data: Bytes) -> Tape:
        lines, rows, errors, used, nodes = self._state[
            [scan.SCAN_LINE, scan.SCAN_ROWS, scan.ERRORS, scan.TAPE, scan.NODES]
        ].tolist()
        entries = self._tape[:used]
        order, bounds = self._order[:used], np.zeros(nodes + 1, np.int64)
        _by_node(entries, bounds, np.empty(nodes, np.int64), order)
        return Tape(
            data, entries, order, bounds, self._row_lines[:rows], self._row_tape[:rows], self._errors[:errors], lines
        )

    def _grow(self, data: Bytes) -> None:
        """Make room in what is full; a line that needs more than the whole tape makes the tape larger."""
        full, used, wanted = self._state[[scan.SCAN_FULL, scan.ARENA, scan.WANTED]].tolist()
        if full == scan.ARENA_FULL:
            if used + wanted > MAX_KEY_BYTES:
                raise DataError(
                    f"more than {MAX_KEY_BYTES:,} bytes of keys: keys that are data can't be features; {_ADVICE}"
                )
            more = min(len(self._arena), MAX_KEY_BYTES - len(self._arena))
            self._arena = np.concatenate([self._arena, np.zeros(max(more, wanted), np.uint8)])
        elif full == scan.NODES_FULL:
            self._nodes = np.concatenate([self._nodes, np.full_like(self._nodes, -1)])
            self._rehash()
        elif self._state[scan.SCAN_LINE] == 0 and len(self._tape) >= self._state[scan.MOST_IN_LINE]:
            data[self._state[scan.AT]] = scan.TOO_MANY
        elif len(self._tape) < _ENTRIES or self._state[scan.SCAN_LINE] == 0:
            size = len(self._tape) * 2
            self._tape, self._order = room((size, 4), np.int32), room(size, np.int32)

    def _rehash(self) -> None:
        self._table = np.full(len(self._table) * 2, -1, np.int32)
        scan.rehash(self._nodes, self._arena, self._table, int(self._state[scan.NODES]))


def check_count(places: int, example: Callable[[], Path], source: str = "") -> None:
    """Raises DataError if records have more than MAX_NODES different places."""
    if places > MAX_NODES:
        named = ".".join(name for name in example() if name is not None)
        raise DataError(f"more than {MAX_NODES:,} different keys, such as {named!r}: {_ADVICE}", source=source)


@kernel
def _by_node(
    entries: npt.NDArray[np.int32],
    bounds: npt.NDArray[np.int64],
    place: npt.NDArray[np.int64],
    order: npt.NDArray[np.int32],
) -> None:
    """A counting sort, stable, into order [entries]. bounds: [nodes + 1] zeros, which become where each node's entries
    start. place: [nodes], to work in.
    """
    for entry in range(len(entries)):
        bounds[(entries[entry, 0] >> 4) + 1] += 1
    for node in range(len(place)):
        place[node] = bounds[node]
        bounds[node + 1] += bounds[node]
    for entry in range(len(entries)):
        node = entries[entry, 0] >> 4
        order[place[node]] = entry
        place[node] += 1
