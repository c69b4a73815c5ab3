"""Delimiter, quote and header of a CSV file are detected, or the file is refused.

No file is read with a wrong dialect.
"""

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.csv_detection import detect_head, plan
from kit.csv_dialects import GeneratedFile, generated_files
from kit.runs import in_flags

from recordmill.base.errors import DataError
from recordmill.sources.csv import head as csv_head

RIGHT, WRONG, REFUSED = "right", "wrong", "refused"


def judge(generated: GeneratedFile, delimiter: str, quote: str | None, header: bool) -> str:
    """Returns RIGHT if the dialect reads the file as it was written, or WRONG."""
    style: dict[str, Any] = (
        {"quotechar": quote} if quote is not None else {"quoting": csv.QUOTE_NONE}
    )
    rows = [
        tuple(row)
        for row in csv.reader(io.StringIO(generated.text, newline=""), delimiter=delimiter, **style)
        if row
    ]
    expected = (*(() if generated.header is None else (generated.header,)), *generated.rows)
    return RIGHT if tuple(rows) == expected and header == (generated.header is not None) else WRONG


def judge_detected(generated: GeneratedFile, path: Path) -> str:
    try:
        head = detect_head(path)
    except DataError:
        return REFUSED
    return judge(generated, head.delimiter, head.quote, True)


def score(folder: Path) -> tuple[Counter[tuple[str, bool]], list[str]]:
    """Detects the dialect of each generated file, and counts right, wrong and refused results.

    Args:
        folder: The generated files are written to this folder.

    Returns:
        (number of files by outcome and presence of a header, descriptions of misread files).
    """
    counts: Counter[tuple[str, bool]] = Counter()
    descriptions = []
    for number, generated in enumerate(generated_files()):
        path = folder / f"{number}.csv"
        path.write_bytes(generated.text.encode())
        outcome = judge_detected(generated, path)
        counts[outcome, generated.header is not None] += 1
        if outcome == WRONG:
            descriptions.append(f"{number}: {generated.about}: {generated.text[:120]!r}")
    return counts, descriptions


def test_generated_dialect_is_detected_or_refused_and_never_wrong(tmp_path: Path) -> None:
    counts, descriptions = score(tmp_path)
    assert not descriptions, "\n".join(descriptions)
    assert counts[RIGHT, True] > 0.6 * sum(count for (_, header), count in counts.items() if header)


def test_detected_dialect_is_noted_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"town;x\nGraz;1,5\nKiel;2,5\n")
    (note,) = plan(path).notes
    assert note == (
        "detected: 2 columns, separated by ';'; header row: text ('x') is above numbers"
    )
    assert not plan(path, delimiter=";", quote='"', header=True).notes


@pytest.mark.parametrize(
    ("content", "delimiter", "quote"),
    [
        (b'"id"\t"who"\t"how"\n"1"\t"A, B"\t"x"\n"2"\t"C, D"\t"y"\n', "\t", '"'),
        (b"id;who\n1;'a;b'\n2;c\n", ";", "'"),
        (b"id;who\n1;'O''Hara'\n2;'it is'\n", ";", "'"),
        (b'id,note\n1,"open\n2,x\n3,y\n4,z\n', ",", None),
        (b"x y z\n1 2 3\n4 5 6\n", " ", '"'),
        (b"start,stop\n10:30,10:45\n11:30,11:50\n", ",", '"'),
        (b"when\n2024-01-01 10:30:00\n2024-01-02 11:30:00\n", ",", '"'),
        (b"id|note\n1|a,b\n2|c,d\n", "|", '"'),
    ],
)
def test_delimiter_and_quote_are_detected(
    tmp_path: Path, content: bytes, delimiter: str, quote: str | None
) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    head = detect_head(path)
    assert (head.delimiter, head.quote) == (delimiter, quote)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            b"k;v,n\nq;r,s\nt;u,w\n",
            {},
            r"delimiter can't be detected: .*choose with --delimiter",
        ),
        (
            b"full name\nJohn Smith\nJane Doe\n",
            {},
            r"there is one column, or .* columns, separated by ' '.*--delimiter",
        ),
        (b'id,said\n1,"a \\"b\\" c"\n2,"d"\n', {}, r"use --escape '\\' if"),
        (
            b"hello,world\ngood,bye\n",
            {},
            r"may be a header or data.*'hello','world'\. Use --no-header",
        ),
        (b"1,2\n", {}, r"looks like data"),
        (
            b"red,1\nred,2\n",
            {"names": ("p", "q")},
            r"the given names replace it, or name the columns",
        ),
        (b",,\na,b,c\n", {}, "the first row is blank"),
        (b"made by hand\na,b\n1,2\n3,4\n", {}, r"has 1 field and most rows have 2 \(is it a title"),
    ],
)
def test_ambiguous_dialect_is_refused(
    tmp_path: Path, content: bytes, options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        plan(path, **options)


@pytest.mark.parametrize(
    ("first_lines", "reason", "remedy"),
    [
        ("# made by hand\n", "begins with '#' (is it a comment: --comment '#'?)", {"comment": "#"}),
        (
            "# made, by, hand\n",
            "begins with '#' (is it a comment: --comment '#'?)",
            {"comment": "#"},
        ),
        (
            "#made,by,hand\n#in,two,lines\n",
            "begins with '#' (is it a comment: --comment '#'?)",
            {"comment": "#"},
        ),
        (
            "Report,,\n",
            "has one field that is not blank (is it a title: --skip-lines 1?)",
            {"skip_lines": 1},
        ),
        (
            "Report, 2024\n",
            "has 2 fields and most rows have 3 (is it a title: --skip-lines, --comment?)",
            {"skip_lines": 1},
        ),
    ],
)
def test_lines_above_the_header_are_refused_with_a_remedy(
    tmp_path: Path, first_lines: str, reason: str, remedy: dict[str, Any]
) -> None:
    path = tmp_path / "in.csv"
    path.write_text(
        first_lines + "id,name,size\n" + "".join(f"{row},a{row},{row}\n" for row in range(30))
    )
    with pytest.raises(DataError) as error:
        plan(path)
    assert f"the first row {reason}" in in_flags(error.value)
    assert plan(path, **remedy).schema.names == ("id", "name", "size")


def test_extension_decides_an_ambiguous_delimiter(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b"1,a\tx\n2,b\ty\n")
    (tmp_path / "in.tsv").write_bytes(b"1,a\tx\n2,b\ty\n")
    with pytest.raises(DataError, match="can't be detected"):
        plan(tmp_path / "in.csv", header=False)
    assert plan(tmp_path / "in.tsv", header=False).heads[0].delimiter == "\t"


# The error of each real file that is not read with a header and `,`. These were checked by eye.
REAL_REFUSED = {
    "rust-csv/smallpop-no-headers.csv": "looks like data",
    "rust-csv/strange.csv": "--escape",
    "torture-csvkit/no_header_row.csv": "looks like data",
    "torture-csvkit/no_header_row2.csv": "looks like data",
    "torture-csvkit/no_header_row3.csv": "looks like data",
    "torture-frictionless/chunk2.headless.csv": "looks like data",
    "torture-frictionless/chunk3.csv": "looks like data",
    "torture-frictionless/package-dialect-no-header.csv": "looks like data",
    "torture-frictionless/without-headers-extra.csv": "looks like data",
    "torture-frictionless/without-headers.csv": "looks like data",
    "torture-papaparse/long-sample.csv": "looks like data",
    # These have a header and are refused. Some names occur again below, are numbers, or look like
    # the values below.
    "torture-csvkit/join_a_short.csv": "'b' occurs again below it",
    "torture-csvkit/join_short.csv": "'b' occurs again below it",
    "torture-csvkit/test_join_short_rows.csv": "'b' occurs again below it",
    "torture-csvkit/test_empty_columns.csv": "'a' occurs again below it",
    "torture-csvkit/test_header_newline.csv": "may be a header or data",
    "torture-frictionless/issue-825.csv": "'2011' is above a number",
    "torture-frictionless/transpose.csv": "'1' is above a number",
    "torture-frictionless/numeric-labels.csv": "may be a header or data",
    "torture-frictionless/wide.csv": "may be a header or data",
    "torture-frictionless/capital-invalid.csv": "both named 'name'",
    "torture-frictionless/duplicate-column.csv": "both named 'B'",
    "torture-frictionless/duplicate-headers.csv": "both named 'id'",
    "torture-frictionless/invalid.csv": "both named 'name'",
    # These have titles or comments above the header, blank first rows, no rows, or another
    # encoding.
    "torture-csvkit/realdata/Datagov_FY10_EDU_recp_by_State.csv": "is blank",
    "torture-frictionless/countries.csv": "begins with .#. .is it a comment",
    "torture-frictionless/country-2.csv": "begins with .#. .is it a comment",
    "torture-frictionless/defective-rows.csv": "may be a header or data",
    "torture-frictionless/matrix-with-comment.csv": "begins with .#. .is it a comment",
    "torture-frictionless/skip-rows-before-headers.csv": "begins with .#. .is it a comment",
    "torture-frictionless/skip-rows.csv": "begins with .#. .is it a comment",
    "torture-csvkit/test_empty_columns_short_row.csv": "may be a header or data",
    "torture-csvkit/test_extra_header.csv": "may be a header or data",
    "torture-frictionless/without-rows.csv": "a header and no rows",
    "torture-csvkit/empty.csv": "no rows",
    "torture-frictionless/empty.csv": "empty",
    "torture-frictionless/issue-811.csv": "--encoding",
    "torture-frictionless/table-with-accents.csv": "--encoding",
}
REAL_DELIMITERS = {
    ";": "sniff_limit accent delimiter issue-1009-semicolon issue-1100 issue-1105-timezone issue-1138 issue-1232 "
    "table-delimiter vix",
    "\t": "dummy.tsv table.tsv malformed",
    "|": "dialect",
    ":": "smallpop-colon",
}


def test_dialects_of_real_files_are_detected(shared_data: Path) -> None:
    root = shared_data / "csv"
    delimiters = {
        name: delimiter for delimiter, names in REAL_DELIMITERS.items() for name in names.split()
    }
    paths = sorted(path for path in root.rglob("*") if path.suffix in (".csv", ".tsv"))
    assert len(paths) > 200
    for path in paths:
        name = str(path.relative_to(root))
        if name in REAL_REFUSED:
            with pytest.raises(DataError, match=REAL_REFUSED[name]):
                detect_head(path)
        else:
            head = detect_head(path)
            assert (head.delimiter, head.quote) == (
                delimiters.get(path.name, delimiters.get(path.stem, ",")),
                '"',
            ), name


class _Counted(np.ndarray):
    """Bytes that count how many of them are copied."""

    copied = 0

    def tobytes(self, *args: Any, **options: Any) -> bytes:
        _Counted.copied += self.nbytes
        return super().tobytes(*args, **options)


@pytest.mark.parametrize(("end", "lines"), [("\n", 3), ("\r\n", 9000), ("\r", 9000)])
def test_many_lines_are_skipped_in_one_pass(
    tmp_path: Path, end: str, lines: int, monkeypatch: Any
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        b"".join(f"# {number}{end}".encode() for number in range(lines))
        + f"x,y{end}1,2{end}3,4{end}".encode()
    )
    grow = csv_head._HeadReader._grow

    def grow_and_count(reader: Any) -> None:
        grow(reader)
        reader._sample = reader._sample.view(_Counted)

    monkeypatch.setattr(csv_head._HeadReader, "_grow", grow_and_count)
    monkeypatch.setattr(_Counted, "copied", 0)
    source = plan(path, skip_lines=lines)
    assert (source.schema.names, source.units[0].rows) == (("x", "y"), 2)
    assert 0 < _Counted.copied <= 4 * path.stat().st_size + 1000
    with pytest.raises(
        DataError, match=f"skip_lines is {lines + 9}, but the file has only {lines + 3} lines"
    ):
        plan(path, skip_lines=lines + 9)
