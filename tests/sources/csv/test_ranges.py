"""A CSV file that is divided anywhere has the same rows."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.csv_contents import contents_of_lines, dialects, options, pieces
from kit.csv_oracle import oracle_rows, physical_lines
from kit.source_reading import input_files

from recordmill.base.errors import DataError
from recordmill.sources.csv.head import CsvHead
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.ranges import ScannedRowRange, ScanSettings, scan_files

contents_of_ranges = st.lists(
    pieces | st.sampled_from([b"a,b,c\n", b'"a\n",b,c\n']), min_size=1, max_size=30
).map(b"".join)


def scan_ranges(
    path: Path, options: CsvOptions, range_bytes: int, threads: int = 1, names: str = "abc"
) -> list[ScannedRowRange]:
    head = CsvHead("none", "utf-8", ",", tuple(names), 0, 1)
    scan = ScanSettings(options.with_dialect(","), frozenset(), None, range_bytes)
    return list(scan_files(input_files(path), [head], scan, threads))


def check_parts(content: bytes, options: CsvOptions, parts: list[ScannedRowRange]) -> None:
    """Checks that the parts have complete rows and no gaps."""
    rows = oracle_rows(content, options)
    assert sum(part.rows for part in parts) == len(rows)
    assert parts[0].start == 0
    assert parts[-1].stop == len(content)
    line = 1
    for index, part in enumerate(parts):
        assert part.stop == (parts[index + 1].start if index + 1 < len(parts) else len(content))
        part_rows = [row for row in rows if part.start <= row.start < part.stop]
        assert part.rows == len(part_rows)
        if part.rows:
            assert line == 1 + physical_lines(content[: part.start])
        line += part.lines


@pytest.mark.sweep
@settings(max_examples=150, deadline=None)
@given(contents_of_ranges, dialects, st.data())
@example(b'"a\nb",c\n' * 3, CsvOptions(), None)
@example(b'"open\n' + b"a,b,c\n" * 9 + b'"x",y,z\n', CsvOptions(max_line_bytes=12), None)
@example(b"a,b,c\r\n" * 5 + b'"never\r\nclosed', CsvOptions(), None)
def test_boundaries_of_ranges_do_not_change_the_rows(
    content: bytes, options: CsvOptions, data: st.DataObject | None
) -> None:
    sizes = (
        range(1, len(content) + 1)
        if data is None
        else sorted({data.draw(st.integers(1, len(content))) for _ in range(3)} | {1})
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.csv"
        path.write_bytes(content)
        for range_bytes in sizes:
            check_parts(content, options, scan_ranges(path, options, range_bytes))


def test_parallel_scan_of_ranges_does_not_change_the_rows(tmp_path: Path) -> None:
    content = b'"a\n""b",c,d\nx,"y\r\n,",z\n' * 2000 + b'"open,1,2\n' + b"a,b,c\n" * 500
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    options = CsvOptions(max_line_bytes=200)
    sequential = scan_ranges(path, options, len(content))
    assert sequential[0].rows == len(oracle_rows(content, options)) == 4501
    for threads in (2, 8):
        parts = scan_ranges(path, options, 1000, threads)
        check_parts(content, options, parts)
        total = parts[0].column_counts
        for part in parts[1:]:
            total = tuple(
                count + part_count
                for count, part_count in zip(total, part.column_counts, strict=True)
            )
        assert total == sequential[0].column_counts


def test_csv_file_that_shrinks_during_the_scan_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"a,b,c\n" * 1000)
    files = input_files(path)
    path.write_bytes(b"a,b,c\n" * 10)
    head = CsvHead("none", "utf-8", ",", tuple("abc"), 0, 1)
    scan = ScanSettings(CsvOptions().with_dialect(","), frozenset(), None, 500)
    with pytest.raises(DataError, match=r"^in\.csv: changed while it was read"):
        list(scan_files(files, [head], scan, 2))


@settings(max_examples=100, deadline=None)
@given(contents_of_lines, options, st.integers(1, 40))
def test_single_column_lines_are_the_same_in_ranges_of_any_size(
    content: bytes, options: CsvOptions, range_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.csv"
        path.write_bytes(content)
        parts = scan_ranges(path, options, range_bytes, names="a")
        two_column_parts = scan_ranges(path, CsvOptions(), range_bytes, names="ab")
    rows = oracle_rows(content, options, columns=1)
    assert [part.rows for part in parts] == [
        sum(part.start <= row.start < part.stop for row in rows) for part in parts
    ]
    assert sum(part.rows for part in parts) == len(rows)
    num_single, num_double = (
        len(oracle_rows(content, CsvOptions(), columns=columns)) for columns in (1, 2)
    )
    assert sum(part.blank_lines for part in two_column_parts) == num_single - num_double
