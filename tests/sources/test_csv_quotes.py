"""Quotes that are text: fields that go on behind their closing quote, and quotes that take in the lines that follow.
What all rows say decides; a row is read as it is written, or refused with its place and with what helps.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from source_reading import input_files, read_all

from recordmill.base.errors import DataError, Reject
from recordmill.base.option_names import in_flags
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.csv import source as csv_source
from recordmill.sources.csv.dialect import CsvOptions
from recordmill.sources.csv.source import CsvSource, plan_csv

PLAIN = "".join(f"{row}\tword{row}\n" for row in range(200))  # beyond the rows that the dialect is told from
MESSAGES = "id\ttext\n" + PLAIN + '200\t"hi there\n201\tand so\n202\t"oh" he said\n203\t"yes\n204\tno\n'
TITLES = "page\n" + "".join(f"Page_{row}\n" for row in range(150)) + '"Foo" bar\n"Heroes"\n"Left_open\nlast\n"A" B\n'
NEEDED = "id,text\n" + "".join(f'{row},"a, {row}"\n' for row in range(150)) + '150,"Others" includes all\n151,x\n'
ADDRESSES = "id,text\n" + "".join(f'{row},"{row}, A"\n' for row in range(150)) + '150,"1 Road\n2, B"\n'
TWO_LINES = "id,text\n" + "".join(f"{row},a\n" for row in range(150)) + '150,"hello\nworld, again"\n151,b\n'


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
def test_quotes_are_text_where_all_lines_are_rows_without_them(
    tmp_path: Path, name: str, content: str, delimiter: str
) -> None:
    source = plan(tmp_path / name, content, delimiter=delimiter)
    assert values(source) == lines(content, delimiter)
    assert any("quotes are text: without them all rows are whole" in note for note in source.notes)
    assert not rejects(source)


def test_any_range_and_thread_tells_the_same(tmp_path: Path) -> None:
    path = tmp_path / "in.tsv"
    for content in (MESSAGES, NEEDED.replace(",", "\t")):
        expected = None
        path.write_text(content)
        for range_bytes, threads in ((1 << 20, 1), (256, 1), (97, 2)):
            try:
                given = input_files(path), CsvOptions(header=True), PlanOptions(threads=threads), range_bytes
                told: object = csv_source._plan(*given).notes
            except DataError as error:
                told = str(error)
            expected = told if expected is None else expected
            assert told == expected


def test_a_field_that_goes_on_where_others_need_the_quotes_is_refused_and_each_remedy_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    with pytest.raises(DataError) as refused:
        plan(path, NEEDED)
    assert in_flags(str(refused.value)) == (
        "in.csv: line 152: a field goes on behind its closing quote: '\"Others\" includes all'; say --quote none if "
        "quotes are text, or --lenient-quotes to drop these quotes; --quote '\"' rejects it"
    )
    rejected = plan(path, NEEDED, quote='"')
    (reject,) = rejects(rejected)
    assert (reject.reason, reject.place) == ("quotes", "line 152, row 150")
    assert len(values(rejected)) == 151
    assert values(plan(path, NEEDED, lenient_quotes=True))[150] == ("150", "Others includes all")
    assert values(plan(path, NEEDED, quote=None, header=False))[-2:] == [("150", '"Others" includes all'), ("151", "x")]


def test_what_a_reject_says_helps(tmp_path: Path) -> None:
    (reject,) = rejects(plan(tmp_path / "in.csv", NEEDED, quote='"'))
    assert "--quote none if quotes are text, or --lenient-quotes to drop these quotes" in in_flags(str(reject))


def test_lines_that_may_be_rows_are_refused_and_each_remedy_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    with pytest.raises(DataError, match=r"line 152: a field in quotes holds line breaks, and each line is a row by"):
        plan(path, TWO_LINES)
    assert values(plan(path, TWO_LINES, quote='"'))[150] == ("150", "hello\nworld, again")
    assert values(plan(path, TWO_LINES, quote=None))[150:152] == [("150", '"hello'), ("world", ' again"')]


def test_lines_that_may_be_rows_are_said_where_the_quotes_are_needed(tmp_path: Path) -> None:
    source = plan(tmp_path / "in.csv", ADDRESSES)
    assert values(source)[150] == ("150", "1 Road\n2, B")
    assert any("a field in quotes holds line breaks" in note and "in.csv, line 152" in note for note in source.notes)


def test_lines_of_a_single_column_are_said(tmp_path: Path) -> None:
    content = 'text\n"one\ntwo"\nthree\n'
    source = plan(tmp_path / "in.csv", content)
    assert values(source) == [("one\ntwo",), ("three",)]
    (note,) = (note for note in source.notes if "line breaks" in note)
    assert in_flags(note).endswith("(in.csv, line 2): say --quote none if quotes are text")
    assert values(plan(tmp_path / "in.csv", content, quote=None)) == [('"one',), ('two"',), ("three",)]


def test_a_header_that_goes_on_behind_its_quote(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    assert plan(path, '"a" b,c\n1,2\n').schema.names == ('"a" b', "c")
    with pytest.raises(DataError, match="line 1: a field goes on behind its closing quote"):
        plan(path, '"a" b,c\n1,"2,3"\n')
    assert plan(path, '"a" b,c\n1,"2,3"\n', lenient_quotes=True).schema.names == ("a b", "c")


@pytest.mark.parametrize(
    "content",
    [
        'a,b\n"x ""y""",1\n"",2\n', 'a,b\n"x\ny",1\n', 'a,b\n5" disk,1\nsay "x",2\n', 'a,b\n"1","2"\n"3","4"\n',
    ],
)  # fmt: skip
def test_quotes_that_hold_are_as_they_were(tmp_path: Path, content: str) -> None:
    source = plan(tmp_path / "in.csv", content)
    assert not [note for note in source.notes if "quote" in note]
    assert not rejects(source)


def test_a_file_that_was_cut_in_a_field_does_not_make_quotes_text(tmp_path: Path) -> None:
    source = plan(tmp_path / "in.csv", "id,text\n" + "".join(f"{row},a\n" for row in range(150)) + '150,"cut he')
    (reject,) = rejects(source)
    assert "is never closed" in str(reject)
    assert len(values(source)) == 150
