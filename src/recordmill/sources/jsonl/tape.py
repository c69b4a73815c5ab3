"""Scans blocks of JSON lines to `Tape`s: the values of some thousands of records, sorted by place in the record.

The scan is native/json.cpp, which says what JSON is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import allocate
from recordmill.base.errors import DataError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.names import make_name_table, names_in_table
from recordmill.schemas.feature import check_feature_count
from recordmill.sources.common.contract import BATCH_ROWS
from recordmill.storage.files import Bytes

JsonPath = tuple[
    str | None, ...
]  # keys from the record inwards; None stands for the elements of a list

MAX_JSON_PATHS = (
    20_000  # different places in a record: keys beyond that are data (identifiers), not names
)
MAX_KEY_BYTES = 64 << 20  # 64 MiB: all keys together
_KEYS_ADVICE = "keys that are data can't be features; make them values"
MEMORY_BYTES_PER_VALUE = 256  # bytes of memory for each value of a line: its entry, its place, itself as it is read and encoded
_MAX_TAPE_VALUES = (
    1 << 20
)  # 1,048,576 values on a tape: 16 MiB, and a batch of 65,536 records with 16 values each
_MAX_TAPE_ERRORS = 1 << 12  # 4,096 bad lines per tape: bounds the messages made at once
_NODE_DTYPE = np.dtype(native.JsonNode)
_ERROR_DTYPE = np.dtype(native.JsonError)
_VALUE_DTYPE = np.dtype(native.JsonValue)


@dataclass(frozen=True)
class Tape:
    """The good records of consecutive lines of data, and the bad lines.

    Attributes:
        data: the bytes that the places below refer to.
        entries: JsonValue [values] in the order of the text.
        entry_ids: int32 [values], places on the tape by node, in the order of the text within a node.
        kinds: uint8 [values], in the same order, as all below.
        parents: int32 [values], the ordinal of the object or array around the value among its node's values (of the
            record, at the top).
        starts: int32 [values], where its text starts.
        sizes: int32 [values], the bytes of its text.
        node_bounds: int64 [nodes + 1], where each node's values start in these arrays.
        kind_masks: int64 [nodes], a bit for each kind that is there.
        row_lines: int32 [rows], the line of each record.
        row_entries: int32 [rows], the first entry of each record.
        errors: of each bad line (line, what is wrong, where, where the line starts).
        lines: how many lines were read, blank ones included.
    """

    data: Bytes
    entries: npt.NDArray[np.void]
    entry_ids: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.uint8]
    parents: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int32]
    node_bounds: npt.NDArray[np.int64]
    kind_masks: npt.NDArray[np.int64]
    row_lines: npt.NDArray[np.int32]
    row_entries: npt.NDArray[np.int32]
    errors: npt.NDArray[np.void]
    lines: int

    @property
    def rows(self) -> int:
        return len(self.row_lines)

    def node_slice(self, node: int) -> slice:
        """Returns the values of the node in the arrays that are sorted by node."""
        if not 0 <= node < len(self.kind_masks):
            return slice(0)
        return slice(int(self.node_bounds[node]), int(self.node_bounds[node + 1]))

    def find_rows(self, entries: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Returns the records in which the entries stand."""
        return np.searchsorted(self.row_entries, entries, side="right") - 1


class TapeScanner:
    """Reads blocks of lines; keeps the trie of keys from one block to the next.

    Args:
        memory_bytes: a line of more values than there is memory for is a bad one.
        source: the file, as errors name it.
    """

    def __init__(self, memory_bytes: int = DEFAULT_MEMORY_BYTES, source: str = "") -> None:
        self._nodes = np.full(256, -1, _NODE_DTYPE)
        self._key_bytes = 1 << 14
        self._names = make_name_table(len(self._nodes) - 1, self._key_bytes)
        self._allocate_tape(1 << 16)
        self._row_lines, self._row_entries = np.empty((2, BATCH_ROWS), np.int32)
        self._errors = np.empty(_MAX_TAPE_ERRORS, _ERROR_DTYPE)
        self._scan = native.JsonScan(
            nodes=1, max_line_values=memory_bytes // MEMORY_BYTES_PER_VALUE
        )
        self._memory_bytes, self._source = memory_bytes, source
        self._paths: list[JsonPath] = [()]
        self._node_ids: dict[JsonPath, int] = {(): 0}

    @property
    def paths(self) -> list[JsonPath]:
        """Paths of the nodes; paths[0] is the record itself."""
        for key, parent in names_in_table(self._names, len(self._paths)):
            path = (
                (*self._paths[parent], key.decode())
                if parent >= 0
                else (*self._paths[-1 - parent], None)
            )
            self._node_ids[path] = len(self._paths)
            self._paths.append(path)
        return self._paths

    def find_nodes(self, path: JsonPath) -> tuple[int, ...]:
        """Returns the nodes on the way to that path; -1 for what no record had so far."""
        assert len(self.paths) == len(self._node_ids)
        return tuple(self._node_ids.get(path[: depth + 1], -1) for depth in range(len(path)))

    def scan(self, data: Bytes) -> Iterator[Tape]:
        """Yields the tapes of a block of whole lines; each is valid until the next one is asked for.

        Raises:
            DataError: more than MAX_NODES different keys, than the memory allows features, or MAX_KEY_BYTES of keys.
        """
        scan = self._scan
        scan.position = 0
        while scan.position < len(data):
            full_buffer = native.scan_json(
                data,
                self._names,
                self._nodes,
                self._tape,
                self._row_lines,
                self._row_entries,
                self._errors,
                scan,
            )
            check_path_count(scan.nodes, lambda: self.paths[-1], self._source)
            check_feature_count(scan.nodes - 1, self._memory_bytes, self._source)
            num_lines = scan.lines
            if num_lines:
                yield self._make_result(data)
            self._grow(full_buffer, num_lines == 0)

    def _make_result(self, data: Bytes) -> Tape:
        scan = self._scan
        entries = self._tape[: scan.values]
        entry_ids, kinds, parents, starts, sizes = (
            column[: scan.values] for column in self._sorted_columns
        )
        node_bounds = np.zeros(scan.nodes + 1, np.int64)
        np.cumsum(self._nodes["count"][: scan.nodes], out=node_bounds[1:])
        kind_masks = np.zeros(scan.nodes, np.int64)
        native.sort_json_values(
            entries, node_bounds[:-1].copy(), kind_masks, entry_ids, kinds, parents, starts, sizes
        )
        row_slice, errors = slice(scan.records), self._errors[: scan.errors]
        row_lines, row_entries = self._row_lines[row_slice], self._row_entries[row_slice]
        sorted_arrays = entry_ids, kinds, parents, starts, sizes, node_bounds, kind_masks
        return Tape(data, entries, *sorted_arrays, row_lines, row_entries, errors, scan.lines)

    def _allocate_tape(self, num_values: int) -> None:
        """Makes room for so many values, and for them sorted by node."""
        self._tape = allocate(num_values, _VALUE_DTYPE)
        self._sorted_columns = (
            allocate(num_values, np.int32),
            allocate(num_values, np.uint8),
            *(allocate(num_values, np.int32) for _ in range(3)),
        )

    def _grow(self, full_buffer: int, is_first_line: bool) -> None:
        """Makes room in what is full (constants of the native library); a line that needs more than the whole tape
        makes that larger. is_first: whether that line is the first on the tape.
        """
        if full_buffer == native.JsonScanEnd.NAMES_FULL:
            if self._scan.nodes == len(self._nodes):
                self._nodes = np.concatenate([self._nodes, np.full_like(self._nodes, -1)])
            elif self._key_bytes < MAX_KEY_BYTES:
                self._key_bytes *= 2
            else:
                raise DataError(
                    f"more than {MAX_KEY_BYTES:,} bytes of keys: keys that are data can't be features; {_KEYS_ADVICE}"
                )
            self._names = make_name_table(
                len(self._nodes) - 1, self._key_bytes, names_in_table(self._names)
            )
        elif full_buffer == native.JsonScanEnd.TAPE_FULL and (
            is_first_line or len(self._tape) < _MAX_TAPE_VALUES
        ):
            self._allocate_tape(len(self._tape) * 2)


def check_path_count(
    num_paths: int, example_path: Callable[[], JsonPath], source: str = ""
) -> None:
    """Raises DataError if records have more than MAX_NODES different places."""
    if num_paths > MAX_JSON_PATHS:
        path_name = ".".join(name for name in example_path() if name is not None)
        raise DataError(
            f"more than {MAX_JSON_PATHS:,} different keys, such as {path_name!r}: {_KEYS_ADVICE}",
            source=source,
        )
