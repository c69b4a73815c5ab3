"""Tapes: the values of some thousand JSON records as arrays, sorted by path.

The scanner is in `native/json.cpp`, which defines the accepted JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import allocate, to_offsets
from recordmill.base.errors import DataError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.names import make_name_table, names_in_table
from recordmill.schemas.feature import check_feature_count
from recordmill.sources.common.contract import BATCH_ROWS
from recordmill.storage.files import Bytes

# Keys from the outermost to the innermost. None stands for the elements of a list: ("a", None, "b")
# is the path of 1 in {"a": [{"b": 1}]}.
JsonPath = tuple[str | None, ...]

# 20,000 different paths: with more, keys are data such as identifiers, and not names.
MAX_JSON_PATHS = 20_000
MAX_KEY_BYTES = 64 << 20  # 64 MiB for all keys together
_KEYS_ADVICE = "if the keys are data, make them values of a member"
# 256 bytes for each value of a line: its entry, its position, and the value as text, parsed and
# encoded.
MEMORY_BYTES_PER_VALUE = 256
# 1,048,576 values: 16 MiB, or 65,536 records with 16 values each.
_MAX_TAPE_VALUES = 1 << 20
# 4,096 bad lines per tape. The limit bounds the messages that are made at once.
_MAX_TAPE_ERRORS = 1 << 12
_NODE_DTYPE = np.dtype(native.JsonNode)
_ERROR_DTYPE = np.dtype(native.JsonError)
_VALUE_DTYPE = np.dtype(native.JsonValue)


@dataclass(frozen=True)
class Tape:
    """The records and the bad lines of a part of a block.

    Each distinct path of keys has a number, which is called its node. The arrays from `entry_ids`
    to `sizes` are sorted by node. The values of one node have the order of the text.

    Attributes:
        data: The text of the block. All offsets refer to it.
        entries: JsonValue [values] in the order of the text.
        entry_ids: int32 [values], the index of each value in `entries`.
        kinds: uint8 [values], native.JsonKind.
        parents: int32 [values], where the object or array around the value is: its index among the
            values of its own node. For a key of the record itself, the number of the record.
        starts: int32 [values], offset of the text of the value.
        sizes: int32 [values], size of this text in bytes.
        node_bounds: int64 [nodes + 1], start of the values of each node in the sorted arrays.
        kind_masks: int64 [nodes], one bit for each kind among the values of the node.
        row_lines: int32 [rows], line of each record, from 0 at the start of the tape.
        row_entries: int32 [rows], index of the first value of each record in `entries`.
        errors: (line, error number, offset of the error, offset of the line) of each bad line.
        lines: Number of lines, including blank ones.
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
        """Returns the slice of the sorted arrays that contains the values of a node.

        The slice is empty if the tape has no such node.
        """
        if not 0 <= node < len(self.kind_masks):
            return slice(0)
        return slice(int(self.node_bounds[node]), int(self.node_bounds[node + 1]))

    def find_rows(self, entries: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Returns the number of the record that contains each value.

        Args:
            entries: Indices of the values in the attribute `entries`.
        """
        return np.searchsorted(self.row_entries, entries, side="right") - 1


class TapeScanner:
    """Scans blocks of lines to tapes.

    The nodes of all paths so far are kept from one block to the next.

    Args:
        memory_bytes: Memory limit. A line with more values than it allows is bad.
        source: The name of the file, for errors.
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
        """Path of each node, by its number. `paths[0]` is the record itself."""
        for key, parent in names_in_table(self._names, len(self._paths)):
            path = (
                (*self._paths[parent], key.decode())
                # A negative parent marks the elements of a list.
                if parent >= 0
                else (*self._paths[-1 - parent], None)
            )
            self._node_ids[path] = len(self._paths)
            self._paths.append(path)
        return self._paths

    def find_nodes(self, path: JsonPath) -> tuple[int, ...]:
        """Returns the nodes of all steps of a path.

        The node is -1 if no record has had this step so far.
        """
        # Reading `paths` also updates `_node_ids`.
        assert len(self.paths) == len(self._node_ids)
        return tuple(self._node_ids.get(path[: depth + 1], -1) for depth in range(len(path)))

    def scan(self, data: Bytes) -> Iterator[Tape]:
        """Yields the tapes of a block of complete lines.

        A tape is only valid until the next one is requested.

        Raises:
            DataError: There are more than MAX_JSON_PATHS different paths, more features than the
                memory allows, or more than MAX_KEY_BYTES of keys.
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
                yield self._make_tape(data)
            self._grow(full_buffer, num_lines == 0)

    def _make_tape(self, data: Bytes) -> Tape:
        scan = self._scan
        entries = self._tape[: scan.values]
        entry_ids, kinds, parents, starts, sizes = (
            column[: scan.values] for column in self._sorted_columns
        )
        node_bounds = to_offsets(self._nodes["count"][: scan.nodes])
        kind_masks = np.zeros(scan.nodes, np.int64)
        # The function advances the start of each node, so it gets a copy.
        native.sort_json_values(
            entries, node_bounds[:-1].copy(), kind_masks, entry_ids, kinds, parents, starts, sizes
        )
        row_slice, errors = slice(scan.records), self._errors[: scan.errors]
        row_lines, row_entries = self._row_lines[row_slice], self._row_entries[row_slice]
        sorted_arrays = entry_ids, kinds, parents, starts, sizes, node_bounds, kind_masks
        return Tape(data, entries, *sorted_arrays, row_lines, row_entries, errors, scan.lines)

    def _allocate_tape(self, num_values: int) -> None:
        """Allocates arrays for `num_values` values.

        The arrays hold the values twice: in the order of the text, and sorted by node.
        """
        self._tape = allocate(num_values, _VALUE_DTYPE)
        self._sorted_columns = (
            allocate(num_values, np.int32),
            allocate(num_values, np.uint8),
            *(allocate(num_values, np.int32) for _ in range(3)),
        )

    def _grow(self, full_buffer: int, is_first_line: bool) -> None:
        """Enlarges the buffer that was full when the scan ended.

        Does nothing if no buffer was full, or if the tape has its maximum size.

        Args:
            full_buffer: native.JsonScanEnd, the reason why the scan ended.
            is_first_line: Whether the tape contains no line yet. If the next line does not fit even
                then, the tape becomes larger than the maximum.
        """
        if full_buffer == native.JsonScanEnd.NAMES_FULL:
            # Either the nodes or the bytes of their names are exhausted.
            if self._scan.nodes == len(self._nodes):
                self._nodes = np.concatenate([self._nodes, np.full_like(self._nodes, -1)])
            elif self._key_bytes < MAX_KEY_BYTES:
                self._key_bytes *= 2
            else:
                raise DataError(f"more than {MAX_KEY_BYTES:,} bytes of keys: {_KEYS_ADVICE}")
            self._names = make_name_table(
                len(self._nodes) - 1, self._key_bytes, names_in_table(self._names)
            )
        # A tape of the maximum size only grows for a single line that needs more.
        elif full_buffer == native.JsonScanEnd.TAPE_FULL and (
            is_first_line or len(self._tape) < _MAX_TAPE_VALUES
        ):
            self._allocate_tape(len(self._tape) * 2)


def check_path_count(
    num_paths: int, example_path: Callable[[], JsonPath], source: str = ""
) -> None:
    """Raises DataError if records have more than MAX_JSON_PATHS different paths.

    Args:
        num_paths: Number of different paths.
        example_path: Returns one of them, for the message.
        source: The name of the file, for the message.
    """
    if num_paths > MAX_JSON_PATHS:
        path_name = ".".join(name for name in example_path() if name is not None)
        raise DataError(
            f"more than {MAX_JSON_PATHS:,} different keys, such as {path_name!r}: {_KEYS_ADVICE}",
            source=source,
        )
