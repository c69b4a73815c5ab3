"""The index of a shard: a `.npy` of one structured entry per record, so that record 17 is one seek away.

`np.load(path, mmap_mode="r")` opens it. For compressed shards the offsets count uncompressed bytes, and a member table
beside it says where in the file the member that holds an offset begins.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import DataError
from recordmill.base.siphash import GOLDEN_RATIO, mix64
from recordmill.records.writers.npy_file import npy_header
from recordmill.shards.manifest import explain_missing
from recordmill.storage.files import last_known_stat, map_file, read_ranges

# offset: of the frame's first byte in the uncompressed shard; length: of the payload, so a frame is length + 16 bytes;
# key: its place in the global order
INDEX_DTYPE = np.dtype([("offset", "<i8"), ("length", "<i8"), ("key", "<u8")])
# compressed: the member's first byte in the file; uncompressed: the first byte it holds of the shard
MEMBERS_DTYPE = np.dtype([("compressed", "<i8"), ("uncompressed", "<i8")])

PROBE_ENTRIES = 2048  # entries, 48 KiB: those around where an offset may be
_PREFIX_BYTES = 10  # of a .npy: magic, version and the header's length

Index = npt.NDArray[np.void]

INDEX_FRAME_BYTES = 16  # u64 length, u32 CRC of it, payload, u32 CRC of the payload


class PartialIndex:
    """The index of a shard in a store, of which only the entries around the offsets that are asked for are read.
    records, end: of the shard, as the manifest has them. DataError: the file is missing, or what was read of it is no
    such index.
    """

    def __init__(self, path: str, records: int, end: int) -> None:
        self.path, self.records, self.end = path, records, end
        with explain_missing(path):
            self._header_bytes = last_known_stat(path).size_bytes - records * INDEX_DTYPE.itemsize
        if not _PREFIX_BYTES <= self._header_bytes <= _PREFIX_BYTES + 0xFFFF:
            raise DataError(
                f"has another length than one of the {records} records that the manifest says",
                source=path,
            )
        self._blocks: dict[
            int, Index
        ] = {}  # number of the first record to the entries of what follows

    def prefetch(self, offsets: Iterable[int]) -> None:
        """Reads what is where these would be if all records were alike, at once: they will be asked for."""
        share = self.records / self.end
        if firsts := {self._block_begin(int(offset * share)) for offset in offsets}:
            self._read_blocks(firsts)

    def find_record(self, offset: int) -> tuple[int, int, int]:
        """(number, first byte, the byte behind it) of the record that has this byte, of those that the shard has."""
        low, low_offset, high, high_offset = 0, 0, self.records, self.end
        while True:
            for first, block in self._blocks.items():
                begin, end = int(block["offset"][0]), _end_offset(block)
                if begin <= offset < end:
                    row = (
                        int(np.searchsorted(np.ascontiguousarray(block["offset"]), offset, "right"))
                        - 1
                    )
                    return first + row, int(block["offset"][row]), _end_offset(block[: row + 1])
                if offset < begin and first < high:
                    high, high_offset = first, begin
                elif offset >= end and first + len(block) > low:
                    low, low_offset = first + len(block), end
            if not (low < high and low_offset <= offset < high_offset):
                raise DataError(
                    "is not in order; verify the data set", source=self.path, place=f"record {low}"
                )
            self._read_blocks({min(max(self._block_begin((low + high) // 2), low), high - 1)})

    def locate(self, records: Int64s) -> tuple[Int64s, Int64s]:
        """Locates as `locate_entries` does, of ascending records, whose entries are read."""
        size = INDEX_DTYPE.itemsize
        range_ends = np.minimum(records + 2, self.records)
        starts, stops = (self._header_bytes + size * numbers for numbers in (records, range_ends))
        data, begins = read_and_join_ranges(self.path, starts, stops)
        return _read_entries(
            data.view(INDEX_DTYPE), begins // size, records, self.records, self.end, self.path
        )

    def _block_begin(self, number: int) -> int:
        return max(min(number - PROBE_ENTRIES // 2, self.records - PROBE_ENTRIES), 0)

    def _read_blocks(self, firsts: Iterable[int]) -> None:
        blocks = {
            first: np.empty(min(PROBE_ENTRIES, self.records - first), INDEX_DTYPE)
            for first in sorted(firsts)
        }
        size, header = (
            INDEX_DTYPE.itemsize,
            np.empty(0 if self._blocks else self._header_bytes, np.uint8),
        )
        ranges = [
            (self._header_bytes + first * size, block.view(np.uint8))
            for first, block in blocks.items()
        ]
        with explain_missing(self.path):
            read_ranges(self.path, [(0, header), *ranges])
        if len(header) and header.tobytes() != npy_header(
            INDEX_DTYPE, (self.records,), self._header_bytes
        ):
            raise _not_an_index(self.path, INDEX_DTYPE)
        for first, block in blocks.items():
            remaining = self.records - first - len(block)
            check_contiguous(
                block, self.path, first, None if first else 0, None if remaining else self.end
            )
            if remaining:  # the last entry's length is not checked by the one that follows: only its offset counts
                blocks[first] = block = block[:-1]
                if (
                    block["offset"][0] < 0
                    or _end_offset(block) > self.end - (remaining + 1) * INDEX_FRAME_BYTES
                ):
                    raise DataError(
                        f"ends at byte {_end_offset(block)} of a shard of {self.end}, with {remaining + 1} records to come",
                        source=self.path,
                        place=f"record {first + len(block) - 1}",
                    )
        self._blocks |= blocks


def read_and_join_ranges(path: str, starts: Int64s, stops: Int64s) -> tuple[Bytes, Int64s]:
    """(bytes, [ranges] where in them each begins) of ranges of a file that a manifest names."""
    ends = np.cumsum(stops - starts)
    data, begins = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8), ends - (stops - starts)
    ranges = zip(starts.tolist(), begins.tolist(), ends.tolist(), strict=True)
    with explain_missing(path):
        read_ranges(path, [(start, data[begin:end]) for start, begin, end in ranges])
    return data, begins


def locate_entries(index: Index, records: Int64s, end: int, source: str) -> tuple[Int64s, Int64s]:
    """(offsets, payloads' lengths) of these records of a shard of so many framed bytes.

    Each of the entries is held against the one that follows it, and against no other: an index of any length costs
    what is asked of it. source: its path, for messages.

    Raises:
        DataError: one says that its record does not end where the next one begins.
    """
    return _read_entries(index, records, records, len(index), end, source)


def _read_entries(
    index: Index, rows: Int64s, records: Int64s, num_records: int, end: int, source: str
) -> tuple[Int64s, Int64s]:
    """Reads the entries of records at these places, after each of which the next record's stands."""
    offsets, lengths = index["offset"][rows], index["length"][rows]
    following = index["offset"][np.minimum(rows + 1, len(index) - 1)]
    ends = np.where(records == num_records - 1, end, following)
    bad = (
        (offsets < 0)
        | (lengths < 0)
        | (ends < 0)
        | (ends > end)
        | (offsets != ends - INDEX_FRAME_BYTES - lengths)
    )
    if bad.any():
        wrong = int(np.argmax(bad))
        raise DataError(
            f"offset {offsets[wrong]}, length {lengths[wrong]}: not where the record after it begins",
            source=source,
            place=f"record {records[wrong]}",
        )
    return offsets, lengths


def _end_offset(index: Index) -> int:
    """The byte behind the last record."""
    return int(index["offset"][-1]) + int(index["length"][-1]) + INDEX_FRAME_BYTES


def check_contiguous(
    index: Index, source: str, first_record: int = 0, begin: int | None = 0, end: int | None = None
) -> None:
    """Raises DataError unless the frames follow each other, from byte `begin` and to byte `end` where these are given:
    kernels go by these numbers. first: the number of the first record.
    """
    offsets, lengths = np.ascontiguousarray(index["offset"]), np.ascontiguousarray(index["length"])
    expected_offsets = np.empty(len(index), np.int64)
    expected_offsets[:1] = offsets[:1] if begin is None else begin
    np.add(offsets[:-1], lengths[:-1] + INDEX_FRAME_BYTES, out=expected_offsets[1:])
    if (wrong := (offsets != expected_offsets) | (lengths < 0)).any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"offset {offsets[row]}, length {lengths[row]}: not where the record before it ends",
            source=source,
            place=f"record {first_record + row}",
        )
    if end is not None and _end_offset(index) != end:
        raise DataError(
            f"ends at byte {_end_offset(index)} of the shard where the manifest says {end}",
            source=source,
        )


def make_index(
    frame_bytes: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64], first_offset: int = 0
) -> Index:
    """The entries of consecutive frames of these sizes, the first of which begins at first_offset."""
    index = np.empty(len(keys), INDEX_DTYPE)
    ends = np.cumsum(frame_bytes)
    index["offset"] = first_offset + ends - frame_bytes
    index["length"] = frame_bytes - INDEX_FRAME_BYTES
    index["key"] = keys
    return index


def map_table(path: str, dtype: np.dtype[np.void]) -> Index:
    """The entries of an index or a member table, memory-mapped.

    The header must be, byte for byte, that of as many entries as the file has. `np.load` would parse it with
    `ast.literal_eval`, which CPython 3.11 can't do in two threads at once (SystemError: AST constructor recursion depth
    mismatch).

    Raises:
        DataError: the file is missing, or is not such a table.
    """
    with explain_missing(path):
        data = map_file(path)
    header_bytes = _PREFIX_BYTES + int.from_bytes(
        data[_PREFIX_BYTES - 2 : _PREFIX_BYTES].tobytes(), "little"
    )
    rows, rest = divmod(len(data) - header_bytes, dtype.itemsize)
    if (
        rows < 0
        or rest
        or data[:header_bytes].tobytes() != npy_header(dtype, (rows,), header_bytes)
    ):
        raise _not_an_index(path, dtype)
    return data[header_bytes:].view(dtype)


def _not_an_index(path: str, dtype: np.dtype[np.void]) -> DataError:
    names = ", ".join(dtype.names or ())
    return DataError(
        f"is no index: not a .npy of {dtype.itemsize}-byte entries ({names})", source=path
    )


def record_checksum(keys: npt.NDArray[np.uint64], crcs: npt.NDArray[np.uint32]) -> int:
    """The sum that accounts for records, of mix64(key, CRC) mod 2^64 in any order, over those with these keys [n] and
    unmasked payload CRCs [n]. Runs, shards and `verify` compute it independently.
    """
    if len(keys) != len(crcs):
        raise ValueError(f"{len(keys)} keys for {len(crcs)} records")
    return int(mix64(keys ^ crcs.astype(np.uint64) * np.uint64(GOLDEN_RATIO)).sum())


def add_checksums(first: int, second: int) -> int:
    """The sum of two disjoint sets of records."""
    return (first + second) & 0xFFFF_FFFF_FFFF_FFFF
