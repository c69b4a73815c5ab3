"""Pages of Parquet files, by their own headers: what they become is bounded, whatever the footer says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from peak_memory import peak_memory

import recordmill
from recordmill.shards.rejects import TooManyRejects
from recordmill.sources.arrow.page_sizes import page_sizes

MEMORY = 128 << 20
LARGE = 48 << 20  # of a page, of which a fourth of the memory would be 32 MiB


def found_sizes(path: Path) -> list[tuple[int, int, int]]:
    """(of all pages, of the largest, as the footer says with headers) of each column of each group."""
    about = pq.read_metadata(path)
    with pa.OSFile(str(path)) as file:
        columns = [about.row_group(g).column(c) for g in range(about.num_row_groups) for c in range(about.num_columns)]
        return [(*page_sizes(file, one), one.total_uncompressed_size) for one in columns]


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("coded", [False, True])
def test_sizes_are_those_of_the_footer(tmp_path: Path, compression: str, version: str, coded: bool) -> None:
    rows = 20_000
    table = pa.table({
        "x": np.random.default_rng(0).random(rows), "s": [f"text {row % 977} " * 9 for row in range(rows)],
        "l": [[row % 5] * (row % 4) for row in range(rows)], "n": pa.nulls(rows, pa.int32()),
    })  # fmt: skip
    options = {"compression": compression, "data_page_version": version, "use_dictionary": coded}
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7000, data_page_size=20_000, **options)
    sizes = found_sizes(tmp_path / "a.parquet")
    assert len(sizes) == 12
    for total, largest, said in sizes:
        assert total <= said <= 1.1 * total + 300  # headers
        assert total / 20 <= largest <= max(total, 1)


def test_pages_of_other_writers(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="writes a file")
    path = tmp_path / "a.parquet"
    duckdb.sql(f"copy (select i, i % 7 as b, 'x' || (i * 7919 % 1009) as s from range(200000) r(i)) to '{path}'")
    assert all(total <= said <= 1.1 * total + 300 for total, _, said in found_sizes(path))


def varint(value: int, size: int = 1) -> bytes:
    """A varint of at least so many bytes; Thrift's readers take more than there need be."""
    found = b""
    while value > 127 or len(found) < size - 1:
        value, found = value >> 7, found + bytes([value & 127 | 128])
    return found + bytes([value])


def write_liar(path: Path, texts: list[str]) -> None:
    """A file whose footer says that its one column becomes 1,000 bytes, where it is a page."""
    options = {"use_dictionary": False, "write_statistics": False, "data_page_size": 1 << 30, "compression": "zstd"}
    pq.write_table(pa.table({"t": texts}), path, **options)
    true = varint(pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size << 1)
    data = path.read_bytes()
    assert data.count(true) >= 2
    path.write_bytes(data.replace(true, varint(2000, len(true))))
    assert pq.read_metadata(path).row_group(0).total_byte_size == 1000


@pytest.mark.memory
@pytest.mark.parametrize("rows", [1, 3000])
def test_a_page_that_the_footer_hides_takes_no_memory(tmp_path: Path, rows: int) -> None:
    write_liar(tmp_path / "a.parquet", ["x" * (8 * LARGE // rows)] * rows)
    pq.write_table(pa.table({"t": ["a", "b"]}), tmp_path / "small.parquet")
    words = ["--quiet", "--memory", MEMORY, "--threads", 2]
    small = ["build", tmp_path / "small.parquet", "--out", tmp_path / "small", *words]
    taken = peak_memory(small, ["build", tmp_path / "a.parquet", "--out", tmp_path / "out", *words])
    assert taken.code == 1
    assert taken.bytes < MEMORY // 4, taken.bytes
    assert "is stored in a page of 385 MiB" in taken.said


@pytest.mark.parametrize("rows", [1, 1000])
def test_the_memory_that_is_said_to_be_enough_is_so(tmp_path: Path, rows: int) -> None:
    write_liar(tmp_path / "a.parquet", ["x" * (LARGE // rows)] * rows)
    with pytest.raises(TooManyRejects, match="is stored in a page of 49 MiB") as raised:
        recordmill.build(tmp_path / "a.parquet", tmp_path / "out", memory=MEMORY)
    (enough,) = {int(size) for size in re.findall(r"memory\W+(\d+)MiB\W+is enough", str(raised.value))}
    built = recordmill.build(tmp_path / "a.parquet", tmp_path / "out", memory=enough << 20)
    assert (built.read, built.rejected) == (rows, 0)


def test_other_rows_stay(tmp_path: Path) -> None:
    write_liar(tmp_path / "b.parquet", ["x" * (LARGE // 10)] * 10)
    for name in ("a", "c"):
        pq.write_table(pa.table({"t": ["a", "b"]}), tmp_path / f"{name}.parquet")
    built = recordmill.build(tmp_path, tmp_path.with_name("out"), memory=MEMORY, max_rejects=10)
    assert (built.read, built.rejected, built.manifest.rejects["reasons"]) == (14, 10, {"memory": 10})


def test_damaged_headers_end_the_walk(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(1000), "s": ["abc"] * 1000}), path, data_page_size=500)
    whole, about = path.read_bytes(), pq.read_metadata(path)
    rng = np.random.default_rng(3)
    for _ in range(300):
        data = bytearray(whole)
        for at in rng.integers(4, len(whole) - 8, 6):
            data[at] = rng.integers(256)
        file = pa.BufferReader(bytes(data))
        for column in range(2):
            sizes = page_sizes(file, about.row_group(0).column(column))
            assert 0 <= sizes.largest <= sizes.total
