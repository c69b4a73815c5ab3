"""The beginning of a CSV file determines delimiter, encoding and names.

Files that are not CSV are refused.
"""

import gzip
from pathlib import Path
from typing import Any

import pytest
from kit.runs import in_flags
from kit.source_reading import input_files, read_all

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.csv import source as csv_source
from recordmill.sources.csv.head import CsvHead, read_head
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.source import CsvSource, plan_csv


def head(folder: Path, content: bytes, **options: Any) -> CsvHead:
    path = folder / "in.csv"
    path.write_bytes(content)
    return read_head(input_files(path)[0], CsvOptions(**options))


def test_head_of_a_csv_file_has_names_and_start(tmp_path: Path) -> None:
    assert head(tmp_path, b'\n\r\n"x ""1""",\r\n1,2\r\n') == CsvHead(
        "none", "utf-8", ",", ('x "1"', "column_2"), 15, 4, ("column_2",), "column_2"
    )
    assert head(tmp_path, b"\xef\xbb\xbfa,b\n1,2\n").start == 7
    assert head(tmp_path, b"\xef\xbb\xbfa,b\n1,2\n").names == ("a", "b")
    assert head(tmp_path, b"a\rb\r").start == 2
    assert head(tmp_path, b"a,b").start == 3
    # This header is longer than a sample.
    header = b",".join(b"column number %d" % index for index in range(20_000))
    assert len(head(tmp_path, header + b"\n1\n").names) == 20_000
    assert head(tmp_path, header + b"\r\n1\n").start == len(header) + 2
    assert head(tmp_path, b"# by\r\n# hand\na,b\n", comment="#").names == ("a", "b")
    assert head(tmp_path, b"one\rtwo\r\nthree\na,b\n", skip_lines=3) == CsvHead(
        "none", "utf-8", ",", ("a", "b"), 19, 5
    )
    assert head(tmp_path, b"x\n" * 100_000 + b"a,b\n", skip_lines=100_000).line == 100_002


def test_head_of_a_csv_file_has_its_encoding(tmp_path: Path) -> None:
    for encoding in ("utf-16", "utf-32"):
        assert head(tmp_path, "ä,b\n1,2\n".encode(encoding)) == CsvHead(
            "none", encoding, ",", ("ä", "b"), 5, 2
        )
    assert head(tmp_path, "ä,b\n".encode("latin-1"), encoding="latin-1").encoding == "iso8859-1"
    assert head(tmp_path, "ä,b\n".encode("utf-16-le"), encoding="utf-16-le").names == ("ä", "b")
    zipped = head(tmp_path, gzip.compress("\ufeffä,b\n1,2\n".encode()))
    assert zipped == CsvHead("gzip", "utf-8", ",", ("ä", "b"), 5, 2)
    assert zipped.is_streamed
    assert not head(tmp_path, b"a,b\n", encoding="UTF8").is_streamed


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", {}, r"^in\.csv: the file is empty \(0 bytes\): not even a header$"),
        (b"\n\r\n", {}, r"^in\.csv: it holds no rows, not even a header$"),
        ("a,b\n1,2\n".encode("utf-16-le"), {}, r"^in\.csv: byte 1: it contains NUL bytes"),
        ("a,b\n".encode("utf-16-le"), {}, "utf-16-le"),
        ("a,b\n".encode("utf-16-be"), {}, "utf-16-be"),
        (
            b"PAR1....PAR1",
            {},
            r"^in\.csv: this is not CSV but a Parquet file; use `build parquet`$",
        ),
        (b"PK\x03\x04....", {}, "an Office document"),
        (
            b"a,b,a\n",
            {},
            r"^in\.csv: line 1: columns 1 and 3 are both named 'a': if this row is data, use --no-header; if it names "
            r"the columns, use --header, and give other names with --names$",
        ),
        (b"column_2,\n", {}, "columns 1 and 2 are both named 'column_2'"),
        (
            b"caf\xe9,b\n",
            {},
            r"line 1: the column name 'caf\\xe9' is not UTF-8; declare the file's --encoding",
        ),
        (b"\xff\xfea", {}, r"line 1: can't be decoded as utf-16"),
        (b"a,b\n\x81,2\n", {"encoding": "cp1252"}, r"^in\.csv: line 2: can't be decoded as cp1252"),
        (b"a,b\n", {"names": ("x",)}, r"line 1: 1 names are given, but the first row has 2 fields"),
        (b"a\nb", {"skip_lines": 5}, r"skip_lines is 5, but the file has only 2 lines"),
        (
            b'"a,b\n1,2\n',
            {},
            r"line 1: the first row is longer than 16,777,216 bytes, or a quote in it is never closed; "
            r"fix the quote, or use --quote none if quotes are text, or a larger --max-line-bytes",
        ),
        (b"," * 70_000 + b"\n", {}, "the first row has 70,001 fields, and at most 65,536"),
        (gzip.compress(b"a,b\n1,2\n" * 1000, mtime=0)[:-4], {}, r"^in\.csv: .*truncated"),
    ],
)
def test_head_that_is_not_csv_is_refused(
    tmp_path: Path, content: bytes, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        head(tmp_path, content, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": ",,"}, "delimiter is ',,'; it must be one ASCII character"),
        ({"delimiter": "\n"}, "no line end"),
        ({"quote": "é"}, "quote is 'é'"),
        ({"delimiter": ";", "comment": ";"}, "delimiter and --comment are both ';'"),
        ({"trim": True, "comment": " "}, "trim drops blanks"),
        ({"trim": True, "comment": "\t"}, "trim drops tabs"),
        ({"skip_lines": -1}, "--skip-lines -1"),
        ({"max_line_bytes": 0}, "--max-line-bytes 0: it must be"),
        ({"names": ()}, "names is empty"),
        ({"names": ("a", "a")}, "names holds 'a' twice"),
        ({"names": ("a", "")}, "an empty name, for column 2"),
    ],
)
def test_invalid_csv_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        CsvOptions(**options)


# PLAIN has more rows than the sample from which the dialect is detected.
PLAIN = "".join(f"{row}\tword{row}\n" for row in range(200))
MESSAGES = (
    "id\ttext\n" + PLAIN + '200\t"hi there\n201\tand so\n202\t"oh" he said\n203\t"yes\n204\tno\n'
)
TITLES = (
    "page\n"
    + "".join(f"Page_{row}\n" for row in range(150))
    + '"Foo" bar\n"Heroes"\n"Left_open\nlast\n"A" B\n'
)
NEEDED = (
    "id,text\n"
    + "".join(f'{row},"a, {row}"\n' for row in range(150))
    + '150,"Others" includes all\n151,x\n'
)
ADDRESSES = (
    "id,text\n" + "".join(f'{row},"{row}, A"\n' for row in range(150)) + '150,"1 Road\n2, B"\n'
)
TWO_LINES = (
    "id,text\n" + "".join(f"{row},a\n" for row in range(150)) + '150,"hello\nworld, again"\n151,b\n'
)


def plan(path: Path, content: str, **options: Any) -> CsvSource:
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return plan_csv(input_files(path), CsvOptions(**{"header": True, **options}), PlanOptions())


def values(source: CsvSource) -> list[tuple[str, ...]]:
    return [tuple(map(str, values.values())) for _, _, values in read_all(source)[0]]


def lines(content: str, delimiter: str) -> list[tuple[str, ...]]:
    return [tuple(line.split(delimiter)) for line in content.splitlines()[1:]]


def rejects(source: CsvSource) -> list[Reject]:
    return read_all(source)[1]


@pytest.mark.parametrize("name", ["in.tsv", "in.tsv.gz"])
@pytest.mark.parametrize(("content", "delimiter"), [(MESSAGES, "\t"), (TITLES, ",")])
def test_quotes_are_text_if_each_line_is_a_row(
    tmp_path: Path, name: str, content: str, delimiter: str
) -> None:
    source = plan(tmp_path / name, content, delimiter=delimiter)
    assert values(source) == lines(content, delimiter)
    assert any("quotes are text: otherwise" in note for note in source.notes)
    assert not rejects(source)


def test_quotes_are_judged_the_same_for_any_range_and_threads(tmp_path: Path) -> None:
    path = tmp_path / "in.tsv"
    for content in (MESSAGES, NEEDED.replace(",", "\t")):
        expected = None
        path.write_text(content)
        for range_bytes, threads in ((1 << 20, 1), (256, 1), (97, 2)):
            try:
                args = (
                    input_files(path),
                    CsvOptions(header=True),
                    PlanOptions(threads=threads),
                    range_bytes,
                )
                result: object = csv_source._plan_with_ranges(*args).notes
            except DataError as error:
                result = str(error)
            expected = result if expected is None else expected
            assert result == expected


def test_text_after_a_needed_quote_is_refused_and_each_remedy_reads_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "in.csv"
    with pytest.raises(DataError) as error:
        plan(path, NEEDED)
    assert in_flags(error.value) == (
        "in.csv: line 152: a field continues after its closing quote: '\"Others\" includes all'; use --quote none if "
        "quotes are text, or --lenient-quotes to drop these quotes; --quote '\"' rejects it"
    )
    source = plan(path, NEEDED, quote='"')
    (reject,) = rejects(source)
    assert (reject.reason, reject.place) == ("quotes", "line 152, row 150")
    assert "--quote none if quotes are text, or --lenient-quotes to drop these quotes" in in_flags(
        str(reject)
    )
    assert len(values(source)) == 151
    assert values(plan(path, NEEDED, lenient_quotes=True))[150] == ("150", "Others includes all")
    assert values(plan(path, NEEDED, quote=None, header=False))[-2:] == [
        ("150", '"Others" includes all'),
        ("151", "x"),
    ]


def test_ambiguous_line_breaks_in_quotes_are_refused_and_each_remedy_reads_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "in.csv"
    with pytest.raises(
        DataError,
        match=r"line 152: a field in quotes holds line breaks, and each of these lines is a",
    ):
        plan(path, TWO_LINES)
    assert values(plan(path, TWO_LINES, quote='"'))[150] == ("150", "hello\nworld, again")
    assert values(plan(path, TWO_LINES, quote=None))[150:152] == [
        ("150", '"hello'),
        ("world", ' again"'),
    ]


def test_line_breaks_in_needed_quotes_are_noted(tmp_path: Path) -> None:
    source = plan(tmp_path / "in.csv", ADDRESSES)
    assert values(source)[150] == ("150", "1 Road\n2, B")
    assert any(
        "a field in quotes holds line breaks" in note and "in.csv, line 152" in note
        for note in source.notes
    )


def test_points_that_may_separate_thousands_are_noted(tmp_path: Path) -> None:
    rows = "".join(f"town {number};{number + 1}.{number}00\n" for number in range(1, 9))
    (note,) = plan(tmp_path / "in.csv", f"name;people\n{rows}").notes[:1]
    assert (
        "values such as '2.100' are read as 2.1. If the point separates thousands: parse=" in note
    )
    (note,) = plan(tmp_path / "in.csv", f"name;people\n{rows}town 9;3.25\n").notes[:1]
    assert "thousands" not in note


def test_line_breaks_in_a_single_column_are_noted(tmp_path: Path) -> None:
    content = 'text\n"one\ntwo"\nthree\n'
    source = plan(tmp_path / "in.csv", content)
    assert values(source) == [("one\ntwo",), ("three",)]
    (note,) = (note for note in source.notes if "line breaks" in note)
    assert in_flags(note).endswith("(in.csv, line 2): use --quote none if quotes are text")
    assert values(plan(tmp_path / "in.csv", content, quote=None)) == [
        ('"one',),
        ('two"',),
        ("three",),
    ]


def test_header_with_text_after_its_quote_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    assert plan(path, '"a" b,c\n1,2\n').schema.names == ('"a" b', "c")
    with pytest.raises(DataError, match="line 1: a field continues after its closing quote"):
        plan(path, '"a" b,c\n1,"2,3"\n')
    assert plan(path, '"a" b,c\n1,"2,3"\n', lenient_quotes=True).schema.names == ("a b", "c")


@pytest.mark.parametrize(
    "content",
    [
        'a,b\n"x ""y""",1\n"",2\n',
        'a,b\n"x\ny",1\n',
        'a,b\n5" disk,1\nsay "x",2\n',
        'a,b\n"1","2"\n"3","4"\n',
    ],
)
def test_consistent_quotes_cause_no_note(tmp_path: Path, content: str) -> None:
    source = plan(tmp_path / "in.csv", content)
    assert not [note for note in source.notes if "quote" in note]
    assert not rejects(source)


def test_file_truncated_in_a_field_does_not_make_quotes_text(tmp_path: Path) -> None:
    source = plan(
        tmp_path / "in.csv",
        "id,text\n" + "".join(f"{row},a\n" for row in range(150)) + '150,"cut he',
    )
    (reject,) = rejects(source)
    assert "is never closed" in str(reject)
    assert len(values(source)) == 150


def read_csv(folder: Path, *contents: bytes, **options: Any) -> tuple[CsvSource, list[Any]]:
    """Plans and reads files `1.csv`, `2.csv` and so on.

    Returns:
        (the planned source, the values of all records).
    """
    paths = [folder / f"{number}.csv" for number in range(1, len(contents) + 1)]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    source = plan_csv(input_files(*paths), CsvOptions(**options), PlanOptions())
    rows, rejects = read_all(source)
    assert not rejects
    return source, [tuple(values.values()) for _, _, values in rows]


@pytest.mark.parametrize("delimiter", [",", "\t", ";", " "])
def test_header_of_r_that_lacks_the_row_names_is_completed(tmp_path: Path, delimiter: str) -> None:
    rows = [('"x"', '"y"'), *((f'"{row}"', f"{row}.5", f'"k{row}"') for row in range(1, 9))]
    content = "".join(delimiter.join(row) + "\n" for row in rows).encode()
    source, values = read_csv(tmp_path, content)
    assert source.schema.names == ("column_1", "x", "y")
    assert values == [(row, row + 0.5, f"k{row}") for row in range(1, 9)]
    assert "the header has one field fewer than the rows" in " ".join(source.notes)
    source, _ = read_csv(tmp_path, content, names=("row", "a", "b"))
    assert source.schema.names == ("row", "a", "b")


def test_unquoted_comma_in_each_row_is_not_a_row_name(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"who,size\n" + b"".join(b"n%d,1,5\n" % row for row in range(9)))
    source = plan_csv(input_files(path), CsvOptions(), PlanOptions())
    assert source.schema.names == ("who", "size")
    _, rejects = read_all(source)
    assert len(rejects) == 9


@pytest.mark.parametrize("header", [b"a,b\n", b"a,b,\n"], ids=["short", "trailing"])
def test_trailing_delimiters_make_no_column_unless_a_row_has_a_value(
    header: bytes, tmp_path: Path
) -> None:
    rows = b"".join(b"%d,t%d,\n" % (row, row) for row in range(300))
    source, values = read_csv(tmp_path, header + rows)
    assert source.schema.names == ("a", "b")
    assert values == [(row, f"t{row}") for row in range(300)]
    assert any(note.startswith("column 'column_3' is left out") for note in source.notes)
    source, values = read_csv(tmp_path, header + rows + b"300,t,7\n")
    assert values[-1] == (300, "t", 7)


def test_runs_of_blanks_are_refused_and_are_a_delimiter_with_trim(tmp_path: Path) -> None:
    content = b'  name    size  "of it"\n\n' + b"".join(
        b' "a  %d"   %d    z \n' % (row, row) for row in range(20)
    )
    path = tmp_path / "in.csv"
    path.write_bytes(b"name    size\n" + b"".join(b"n%d   %d\n" % (row, row) for row in range(9)))
    with pytest.raises(DataError) as error:
        plan_csv(input_files(path), CsvOptions(), PlanOptions())
    assert ("2 columns, separated by runs of blanks; use --delimiter ' ' and --trim") in in_flags(
        error.value
    )
    source, values = read_csv(tmp_path, content, delimiter=" ", trim=True)
    assert source.schema.names == ("name", "size", "of it")
    assert values == [(f"a  {row}", row, "z") for row in range(20)]


def test_blanks_around_the_fields_of_a_column_are_noted_with_trim(tmp_path: Path) -> None:
    content = b"id, label\n" + b"".join(b"%d, a%d\n" % (row, row) for row in range(4))
    source, _ = read_csv(tmp_path, content)
    assert source.schema.names == ("id", " label")
    assert any("5 of the first 5 rows have blanks" in note for note in source.notes)
    source, values = read_csv(tmp_path, content, trim=True)
    assert values == [(row, f"a{row}") for row in range(4)]
    assert not any("blanks" in note for note in source.notes)


def test_blank_lines_before_the_header_are_not_rows(tmp_path: Path) -> None:
    rows = b"".join(b"word%d\n" % row for row in range(12))
    source, values = read_csv(tmp_path, b"\r\n\ntext\n" + rows)
    assert source.schema.names == ("text",)
    assert len(values) == 12


def test_first_row_longer_than_the_sample_is_read_up_to_max_line_bytes(tmp_path: Path) -> None:
    content = b"a,b\n1," + b"x" * (3 << 20) + b"\n" + b"2,y\n" * 9
    _, values = read_csv(tmp_path, content)
    assert len(values) == 10
    assert values[0] == (1, "x" * (3 << 20))
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    source = plan_csv(input_files(path), CsvOptions(max_line_bytes=2 << 20), PlanOptions())
    rows, rejects = read_all(source)
    assert len(rows) == 9
    assert [reject.reason for reject in rejects] == ["row-bytes"]


@pytest.mark.parametrize("first", ['{"a": 1}', "{'a': 1}", "[1, 2]", '["x"]'])
def test_json_in_the_first_row_is_data(tmp_path: Path, first: str) -> None:
    path = tmp_path / "in.csv"
    quoted = first.replace('"', '""')
    path.write_text("".join(f'"{quoted}",word{row}\n' for row in range(12)))
    with pytest.raises(DataError, match="is JSON, and not a name"):
        plan_csv(input_files(path), CsvOptions(), PlanOptions())
    _, values = read_csv(tmp_path, path.read_bytes(), header=False)
    assert values[0] == (first, "word0")


@pytest.mark.parametrize(
    "names", [("2020-01-01", "2020-01-02"), ("1/22/20", "1/23/20"), ("Jan 2020", "Feb 2020")]
)
def test_dates_above_numbers_are_column_names(tmp_path: Path, names: tuple[str, str]) -> None:
    content = f"place,{','.join(names)}\n" + "".join(f"p{row},{row},7\n" for row in range(4))
    source, _ = read_csv(tmp_path, content.encode())
    assert source.schema.names == ("place", *names)


def test_years_in_order_are_column_names_unless_years_are_below(tmp_path: Path) -> None:
    source, values = read_csv(tmp_path, b"x,1990,1991,1992\np,1,2.5,3\nq,4,5,1950\n")
    assert source.schema.names == ("x", "1990", "1991", "1992")
    assert len(values) == 2
    path = tmp_path / "in.csv"
    path.write_bytes(b"x,1990,1991,1992\np,1993,1994,1995\n")
    with pytest.raises(DataError, match="looks like data"):
        plan_csv(input_files(path), CsvOptions(), PlanOptions())


def test_class_named_like_its_column_does_not_hide_the_header(tmp_path: Path) -> None:
    source, values = read_csv(tmp_path, b"x,c\n1,a\n2,b\n3,c\n")
    assert source.schema.names == ("x", "c")
    assert values == [(1, "a"), (2, "b"), (3, "c")]


def test_stray_nul_is_part_of_its_field(tmp_path: Path) -> None:
    rows = [(row, f"t{row}") for row in range(20_000)]
    for index in (3, 19_999):
        rows[index] = index, "t\0z"
        content = "a,b\n" + "".join(f"{number},{text}\n" for number, text in rows)
        _, values = read_csv(tmp_path, content.encode())
        assert values[index] == (index, "t\0z")
    for content, message in (
        ("a,b\n1,2\n".encode("utf-16-le"), "needs --encoding utf-16-le"),
        (b"\x00\x01\x02\x03\x04" * 50, "the file is damaged, or it is not text"),
    ):
        (tmp_path / "in.csv").write_bytes(content)
        with pytest.raises(DataError) as error:
            read_head(input_files(tmp_path / "in.csv")[0], CsvOptions())
        assert message in in_flags(error.value)


def test_later_parts_without_a_header_have_the_columns_of_the_first(tmp_path: Path) -> None:
    parts = [
        b"".join(b"%d,t%d\n" % (row, row) for row in range(begin, begin + 5))
        for begin in (0, 5, 10)
    ]
    source, values = read_csv(tmp_path, b"a,b\n" + parts[0], parts[1], b"7,7\n" + parts[2])
    assert source.schema.names == ("a", "b")
    assert sorted(values) == sorted([*((row, f"t{row}") for row in range(15)), (7, "7")])
    assert any(
        note.startswith("only the first file has a header") and "2.csv, 3.csv" in note
        for note in source.notes
    )
    # A part before the header, or with other columns, is refused.
    for contents in ((parts[1], b"a,b\n" + parts[0]), (b"a,b\n" + parts[0], b"1,2,3\n4,5,6\n")):
        with pytest.raises(DataError, match="looks like data"):
            read_csv(tmp_path, *contents)
