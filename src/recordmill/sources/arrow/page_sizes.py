"""What the pages of a Parquet file's columns become when they are decompressed, by their own headers.

A reader makes room for a page as its header says, whatever the footer says of the column, and reads it whole.
Headers are PageHeader structs in Thrift's compact protocol (github.com/apache/parquet-format, parquet.thrift).
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from recordmill.sources.arrow.thrift import WHOLE_NUMBERS, CompactReader, ThriftError

_HEADER_BYTES = 1 << 10  # 1 KiB, in which most headers stand; those with long statistics are read in more
_MOST_HEADER_BYTES = 16 << 20  # 16 MiB, as Arrow allows it
_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 2, 3  # fields of PageHeader


class PageSizes(NamedTuple):
    """Bytes, decompressed: of all pages of a column, and of the largest one."""

    total: int
    largest: int


def page_sizes(data: pa.NativeFile, column: pq.ColumnChunkMetaData) -> PageSizes:
    """Those of one column of a row group. Pages behind what is no header are not counted: no reader gets there."""
    at = column.data_page_offset
    if column.dictionary_page_offset is not None and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    stop = at + column.total_compressed_size
    total = largest = 0
    while 0 <= at < stop:
        try:
            uncompressed, compressed, header = _header(data, at)
        except ThriftError:
            break
        total, largest = total + uncompressed, max(largest, uncompressed)
        at += header + compressed
    return PageSizes(total, largest)


def _header(data: pa.NativeFile, at: int) -> tuple[int, int, int]:
    """(bytes of the page that starts there, its bytes as they are stored, those of its header)."""
    size = _HEADER_BYTES
    while True:
        data.seek(at)
        given = data.read(size)
        reader = CompactReader(given)
        sizes: dict[int, int] = {}
        try:
            for field, kind in reader.fields():
                if kind in WHOLE_NUMBERS:
                    sizes[field] = reader.integer()
                else:
                    reader.skip(kind)
        except IndexError:
            if len(given) < size or size >= _MOST_HEADER_BYTES:
                raise ThriftError from None
            size *= 8
            continue
        uncompressed, compressed = (sizes.get(one, -1) for one in (_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE))
        if uncompressed < 0 or compressed < 0:
            raise ThriftError
        return uncompressed, compressed, reader.at
