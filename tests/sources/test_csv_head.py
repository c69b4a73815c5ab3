"""What the beginning of a CSV file says: delimiter, encoding, names; and the word for what is no CSV."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from recordmill.base.errors import DataError, UsageError
from recordmill.sources.csv.dialect import CsvOptions
from recordmill.sources.csv.head import Head, read_head
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import stat


def head(folder: Path, content: bytes, **options: Any) -> Head:
    path = folder / "in.csv"
    path.write_bytes(content)
    return read_head(InputFile(0, "in.csv", str(path), stat(str(path))), CsvOptions(**options))


@pytest.mark.parametrize(
    ("content", "delimiter"),
    [
        (b"a,b\n1,2\n", ","), (b"a;b\n1,5;2,5\n", ";"), (b"a\tb\n1,5\tx;y\n", "\t"), (b"a|b|c\n1|2|3\n", "|"),
        (b"a:b\n1:2\n", ":"), (b"when,x\n10:00:00,1\n10:00:01,2\n", ","),
        (b"when\n10:00:00\n10:00:01\n10:00:02\n", ","), (b'"a;b;c",d\n"x;y",2\n', ","), (b"word\n", ","),
        (b"a, note; b\n1;2\n3;4\n", ";"), (b"exported by hand\na;b\n1;2\n3;4\n", ";"),
        (b"text\nno comma\none, comma\n", ","),
    ],
)  # fmt: skip
def test_delimiter(tmp_path: Path, content: bytes, delimiter: str) -> None:
    assert head(tmp_path, content).delimiter == delimiter


def test_names_and_start(tmp_path: Path) -> None:
    assert head(tmp_path, b'\n\r\n"x ""1""",\r\n1,2\r\n') == Head(
        "none", "utf-8", ",", ('x "1"', "column_2"), 15, 4, ("column_2",)
    )
    assert head(tmp_path, b"\xef\xbb\xbfa,b\n1,2\n").start == 7
    assert head(tmp_path, b"\xef\xbb\xbfa,b\n1,2\n").names == ("a", "b")
    assert head(tmp_path, b"a\rb\r").start == 2
    assert head(tmp_path, b"a,b").start == 3
    long = b",".join(b"column number %d" % index for index in range(20_000))  # longer than a sample
    assert len(head(tmp_path, long + b"\n1\n").names) == 20_000
    assert head(tmp_path, long + b"\r\n1\n").start == len(long) + 2
    assert head(tmp_path, b"# by\r\n# hand\na,b\n", comment="#").names == ("a", "b")
    assert head(tmp_path, b"one\rtwo\r\nthree\na,b\n", skip_lines=3) == Head("none", "utf-8", ",", ("a", "b"), 19, 5)
    assert head(tmp_path, b"x\n" * 100_000 + b"a,b\n", skip_lines=100_000).line == 100_002


def test_encodings(tmp_path: Path) -> None:
    for encoding in ("utf-16", "utf-32"):
        assert head(tmp_path, "ä,b\n1,2\n".encode(encoding)) == Head("none", encoding, ",", ("ä", "b"), 5, 2)
    assert head(tmp_path, "ä,b\n".encode("latin-1"), encoding="latin-1").encoding == "iso8859-1"
    assert head(tmp_path, "ä,b\n".encode("utf-16-le"), encoding="utf-16-le").names == ("ä", "b")
    zipped = head(tmp_path, gzip.compress("\ufeffä,b\n1,2\n".encode()))
    assert zipped == Head("gzip", "utf-8", ",", ("ä", "b"), 5, 2)
    assert zipped.streamed
    assert not head(tmp_path, b"a,b\n", encoding="UTF8").streamed


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", {}, r"^in\.csv: the file is empty \(0 bytes\): not even a header$"),
        (b"\n\r\n", {}, r"^in\.csv: it holds no rows, not even a header$"),
        (b"a,b\n1\0,2\n", {}, r"^in\.csv: byte 5: it holds NUL bytes"),
        ("a,b\n".encode("utf-16-le"), {}, "utf-16-le"),
        (b"PAR1....PAR1", {}, r"^in\.csv: this is no CSV but a Parquet file; use `build parquet`$"),
        (b"PK\x03\x04....", {}, "an Office document"),
        (
            b"a,b,a\n",
            {},
            r"^in\.csv: line 1: columns 1 and 3 are both named 'a': if this row is data, say --no-header; if it names "
            r"the columns, say --header, and give each a name of its own with --names$",
        ),
        (b"column_2,\n", {}, "columns 1 and 2 are both named 'column_2'"),
        (b"caf\xe9,b\n", {}, r"line 1: the column name 'caf\\xe9' is no UTF-8; declare the file's --encoding"),
        (b"\xff\xfea", {}, r"line 1: can't be decoded as utf-16"),
        (b"a,b\n\x81,2\n", {"encoding": "cp1252"}, r"^in\.csv: line 2: can't be decoded as cp1252"),
        (b"a,b\n", {"names": ("x",)}, r"line 1: 1 names are given, but the first row has 2 fields"),
        (b"a\nb", {"skip_lines": 5}, r"skip_lines is 5, but the file has only 2 lines"),
        (
            b'"a,b\n1,2\n',
            {},
            r"line 1: the first row is longer than 16,777,216 bytes, or a quote in it is never closed",
        ),
        (b"," * 70_000 + b"\n", {}, "the first row is of 70,001 fields; the most is 65,536"),
        (gzip.compress(b"a,b\n1,2\n" * 1000, mtime=0)[:-4], {}, r"^in\.csv: .*truncated"),
    ],
)
def test_errors(tmp_path: Path, content: bytes, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        head(tmp_path, content, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": ",,"}, "delimiter is ',,'; it must be one ASCII character"),
        ({"delimiter": "\n"}, "no line end"),
        ({"quote": "é"}, "quote is 'é'"),
        ({"delimiter": ";", "comment": ";"}, "delimiter and --comment are both ';'"),
        ({"trim": True, "delimiter": " "}, "trim drops blanks"),
        ({"trim": True, "comment": "\t"}, "trim drops tabs"),
        ({"differing_columns": "both"}, "--differing-columns both: one of union, strict"),
        ({"skip_lines": -1}, "--skip-lines -1"),
        ({"max_row_bytes": 0}, "--max-row-bytes 0: it lies"),
        ({"names": ()}, "names is empty"),
        ({"names": ("a", "a")}, "names holds 'a' twice"),
        ({"names": ("a", "")}, "an empty name, for column 2"),
        ({"encoding": "utf-42"}, "encoding 'utf-42' is unknown"),
        ({"encoding": "base64"}, "encoding 'base64' is no encoding of text files"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        CsvOptions(**options)
