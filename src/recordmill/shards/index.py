"""Index of a shard: a `.npy` file with one entry per record.

`np.load(path, mmap_mode="r")` opens it. For a compressed shard the offsets count uncompressed
bytes. A member table next to the index then maps these offsets to members of the file.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import DataError
from recordmill.base.siphash import GOLDEN_RATIO, mix64
from recordmill.records.writers.npy_file import make_npy_header
from recordmill.shards.manifest import explain_missing
from recordmill.storage.files import last_known_stat, map_file, read_ranges

# `offset`: first byte of the frame in the uncompressed shard. `length`: size of the payload, so the
# frame has 16 bytes more. `key`: position of the record in the order of the split.
INDEX_DTYPE = np.dtype([("offset", "<i8"), ("length", "<i8"), ("key", "<u8")])
# `compressed`: first byte of the member in the file. `uncompressed`: first byte of its contents in
# the uncompressed shard.
MEMBERS_DTYPE = np.dtype([("compressed", "<i8"), ("uncompressed", "<i8")])

# Number of entries of a block of a `PartialIndex`, 48 KiB.
PROBE_ENTRIES = 2048
# Start of a .npy file: magic, version and the length of the header.
_PREFIX_BYTES = 10
# The header of an index has 128 bytes.
MAX_INDEX_HEADER_BYTES = 1024

Index = npt.NDArray[np.void]

# Length (8 bytes), CRC of the length (4), and after the payload its CRC (4).
INDEX_FRAME_BYTES = 16


class PartialIndex:
    """Index of a shard, read in small blocks around the requested offsets.

    Indexes in stores are read in this way, and so are small ranges of a large shard.

    Args:
        path: Path or URL of the index.
        records: Number of records of the shard in the manifest.
        end: Uncompressed size of the shard in the manifest.

    Raises:
        DataError: The file is missing, or is not an index of this shard. Methods raise it for an
            invalid block.
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
        # the blocks that were read, by the number of their first record
        self._blocks: dict[int, Index] = {}

    def prefetch(self, offsets: Iterable[int]) -> None:
        """Reads the blocks that probably contain these offsets, in one batch of requests.

        The positions of the blocks are estimated, as if all records had the same size.
        """
        share = self.records / self.end
        if firsts := {self._block_begin(int(offset * share)) for offset in offsets}:
            self._read_blocks(firsts)

    def find_record(self, offset: int) -> tuple[int, int, int]:
        """Returns the record that contains the byte at `offset`.

        Reads more blocks until the record is found.

        Returns:
            The number of the record, its first byte, and the byte after it.

        Raises:
            DataError: The index is not in order.
        """
        low, low_offset, high, high_offset = 0, 0, self.records, self.end
        while True:
            for first, block in self._blocks.items():
                begin, end = int(block["offset"][0]), _end_offset(block)
                if begin <= offset < end:
                    # Searching a field of a structured array would copy the array for each call.
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
            # Bisection: the block in the middle contains the record, or halves the range.
            self._read_blocks({min(max(self._block_begin((low + high) // 2), low), high - 1)})

    def locate(self, records: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the offsets and payload lengths of records.

        Args:
            records: Record numbers, in ascending order.
        """
        size = INDEX_DTYPE.itemsize
        # Two entries are read per record, because the next entry determines where the record ends.
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
        # The header of the .npy file is read and checked with the first blocks only.
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
        if len(header) and header.tobytes() != make_npy_header(
            INDEX_DTYPE, (self.records,), self._header_bytes
        ):
            raise _not_an_index(self.path, INDEX_DTYPE)
        for first, block in blocks.items():
            remaining = self.records - first - len(block)
            check_contiguous(
                block, self.path, first, None if first else 0, None if remaining else self.end
            )
            # The length of an entry is confirmed by the offset of the next entry. The last entry of
            # a block has no next one, so it is dropped after it has confirmed the one before it.
            if remaining:
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

    def offset_of(self, record: int) -> int:
        """Returns the offset of the first byte of a record.

        For the number after the last record, returns `end`.
        """
        return int(self.locate(np.array([record]))[0][0]) if record < self.records else self.end


class MappedIndex:
    """Index of a shard that is mapped into memory.

    Args:
        entries: The entries of all records.
        path: Path of the index, for error messages.
        end: Uncompressed size of the shard in the manifest.
    """

    def __init__(self, entries: Index, path: str, end: int) -> None:
        self.entries, self.path, self.records, self.end = entries, path, len(entries), end

    def prefetch(self, offsets: Iterable[int]) -> None:
        """Does nothing, because the index is mapped."""

    def find_record(self, offset: int) -> tuple[int, int, int]:
        """Returns (number, begin, end) of the record that contains the byte at `offset`."""
        # Searching a field of a structured array by NumPy would copy it for each call.
        record = max(bisect.bisect_right(self.entries["offset"], offset) - 1, 0)
        return record, self.offset_of(record), self.offset_of(record + 1)

    def locate(self, records: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the offsets and payload lengths of records, like `PartialIndex.locate`."""
        entries = self.entries
        return _read_entries(entries, records, records, len(entries), self.end, self.path)

    def locate_one(self, record: int) -> tuple[int, int]:
        """Returns the offset and payload length of one record, like `locate`.

        The function does without NumPy, whose fixed costs would take most of the time.
        """
        offset, length = self.entries.item(record)[:2]
        end = self.offset_of(record + 1)
        if min(offset, length) < 0 or end > self.end or offset + length + INDEX_FRAME_BYTES != end:
            self.locate(np.array([record]))  # raises the error
        return offset, length

    def offset_of(self, record: int) -> int:
        """Returns the offset of the first byte of a record.

        For the number after the last record, returns `end`.
        """
        return int(self.entries["offset"][record]) if record < self.records else self.end


def read_and_join_ranges(path: str, starts: Int64s, stops: Int64s) -> tuple[Bytes, Int64s]:
    """Reads ranges of a file of a data set into one buffer.

    If the file does not exist, `make_missing_file_error` makes the error.

    Args:
        starts: int64 [ranges]. First byte of each range.
        stops: int64 [ranges]. End of each range.

    Returns:
        The buffer, and the position in it where each range begins.
    """
    ends = np.cumsum(stops - starts)
    data, begins = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8), ends - (stops - starts)
    ranges = zip(starts.tolist(), begins.tolist(), ends.tolist(), strict=True)
    with explain_missing(path):
        read_ranges(path, [(start, data[begin:end]) for start, begin, end in ranges])
    return data, begins


def _read_entries(
    index: Index, rows: Int64s, records: Int64s, num_records: int, end: int, source: str
) -> tuple[Int64s, Int64s]:
    """Returns the offsets and payload lengths of some records, after checking them.

    Args:
        index: Some entries of an index. The entry of each requested record is followed by the entry
            of the next record.
        rows: Row of each requested record in `index`.
        records: Number of each record in the shard.
        num_records: Number of records of the shard. The last one must end at `end`.
        end: Uncompressed size of the shard.
        source: Path of the index, for error messages.
    """
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
    return int(index["offset"][-1]) + int(index["length"][-1]) + INDEX_FRAME_BYTES


def check_contiguous(
    index: Index, source: str, first_record: int = 0, begin: int | None = 0, end: int | None = None
) -> None:
    """Raises DataError if the frames of an index have gaps or overlap.

    The native functions rely on these numbers.

    Args:
        index: Consecutive entries of an index.
        source: Path of the index, for error messages.
        first_record: Number of the first record, for error messages.
        begin: Expected first byte of the first frame. If None, any is accepted.
        end: Expected end of the last frame. If None, any is accepted.
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
    """Creates the index entries of consecutive frames.

    Args:
        frame_bytes: Size of each frame.
        keys: Key of each record.
        first_offset: Offset of the first frame.
    """
    index = np.empty(len(keys), INDEX_DTYPE)
    ends = np.cumsum(frame_bytes)
    index["offset"] = first_offset + ends - frame_bytes
    index["length"] = frame_bytes - INDEX_FRAME_BYTES
    index["key"] = keys
    return index


def map_table(path: str, dtype: np.dtype[np.void]) -> Index:
    """Maps an index or a member table into memory.

    The header must be exactly the one that this library writes for the number of entries in the
    file.

    Raises:
        DataError: The file is missing, or is not such a table.
    """
    with explain_missing(path):
        data = map_file(path)
    return view_table(data, path, dtype)


def view_table(data: Bytes, path: str, dtype: np.dtype[np.void]) -> Index:
    """Returns the entries of an index or member table, as a view of `data`.

    Args:
        data: uint8 [bytes]. The complete file.
        path: Its path, for messages.
        dtype: The type of an entry.

    Raises:
        DataError: The file is not such a table, see `map_table`.
    """
    # `np.load` would parse the header with `ast.literal_eval`. CPython 3.11 can't do that in two
    # threads at once (SystemError: AST constructor recursion depth mismatch).
    header_bytes = _PREFIX_BYTES + int.from_bytes(
        data[_PREFIX_BYTES - 2 : _PREFIX_BYTES].tobytes(), "little"
    )
    rows, rest = divmod(len(data) - header_bytes, dtype.itemsize)
    if (
        rows < 0
        or rest
        or data[:header_bytes].tobytes() != make_npy_header(dtype, (rows,), header_bytes)
    ):
        raise _not_an_index(path, dtype)
    return data[header_bytes:].view(dtype)


def _not_an_index(path: str, dtype: np.dtype[np.void]) -> DataError:
    names = ", ".join(dtype.names or ())
    return DataError(
        f"is not an index: not a .npy of {dtype.itemsize}-byte entries ({names})", source=path
    )


def record_checksum(keys: npt.NDArray[np.uint64], crcs: npt.NDArray[np.uint32]) -> int:
    """Returns the checksum of records: the sum of mix64(key, CRC) modulo 2^64.

    The order of the records does not matter. Sorted runs, shards and `verify` compute the checksum
    independently.

    Args:
        keys: Key of each record.
        crcs: Unmasked payload CRC of each record.
    """
    if len(keys) != len(crcs):
        raise ValueError(f"{len(keys)} keys for {len(crcs)} records")
    return int(mix64(keys ^ crcs.astype(np.uint64) * np.uint64(GOLDEN_RATIO)).sum())


def add_checksums(first: int, second: int) -> int:
    """Returns the checksum of the union of two disjoint sets of records.

    >>> add_checksums(2**64 - 1, 3)
    2
    """
    return (first + second) & 0xFFFF_FFFF_FFFF_FFFF
