"""Fields of CSV become values of the schema, or rejects."""

from pathlib import Path
from typing import Any

import pytest
from kit.csv_reading import plan, read
from kit.files import write_file
from kit.runs import in_flags

from recordmill.schemas.feature import Feature
from recordmill.sources.csv.options import CsvOptions


def test_missing_and_empty_text_are_distinct(tmp_path: Path) -> None:
    path = write_file(tmp_path / "in.csv", 's,t,n\n"",x,""\n,"NA",NA\nNA,"",1\n')
    source = plan(path)
    assert read(source)[0].to_pydict() == {
        "s": ["", None, None],
        "t": ["x", "NA", ""],
        "n": [None, None, 1],
    }
    assert [feature.required for feature in source.schema] == [False, True, False]
    assert source.notes[1:] == (
        "column 's': nulls: 1 empty, 1 'NA'",
        "column 'n': nulls: 1 'NA', 1 quoted",
    )
    only_quoted = plan(write_file(tmp_path / "quoted.csv", 'a,b\n"",1\n"",2\n'))
    assert only_quoted.schema["a"] == Feature("a", "string", required=True)
    assert plan(path, CsvOptions(null_tokens=())).schema["n"].dtype == "string"
    assert read(plan(path, CsvOptions(null_tokens=("x",))))[0]["t"].to_pylist() == [None, "NA", ""]


def read_reasons(path: Path, **common: Any) -> list[tuple[str, str]]:
    return [(reject.reason, str(reject)) for reject in read(plan(path, **common))[2]]


def test_csv_values_that_do_not_fit_are_rejects(tmp_path: Path) -> None:
    path = write_file(
        tmp_path / "in.csv", "a,b\n1,x\n1e39,x\n16777217,x\n0.1,x\n\n33554432,x\n-16777219,x\n"
    )
    assert [reason for reason, _ in read_reasons(path)] == ["range", "inexact", "inexact"]
    assert read_reasons(path)[0][1] == (
        "in.csv: line 3, row 1: column 'a': '1e39' is out of range for float32; use --dtype a=float64"
    )
    assert read_reasons(path)[1][1] == (
        "in.csv: line 4, row 2: column 'a': '16777217' is a whole number that float32 can't hold exactly; "
        "use --dtype a=float64"
    )
    source = plan(path)
    assert (
        "column 'a': 3 of 6 values do not fit float32 and are rejected; --dtype a=float64 keeps them"
        in [*map(in_flags, source.notes)]
    )
    assert read(source)[0]["a"].to_pylist() == [1.0, pytest.approx(0.1), 33554432.0]
    assert read(source)[1] == [(0, 0), (0, 3), (0, 4)]
    rejects = read(
        plan(
            write_file(tmp_path / "t.csv", "a\n2020-01-02 03:04:05.1\n"),
            dtypes={"a": "timestamp[s]"},
        )
    )[2]
    message = "column 'a': '2020-01-02 03:04:05.1' is finer than timestamp[s]; use --dtype 'a=timestamp[ns]'"
    assert [in_flags(reject.message) for reject in rejects] == [message]
    assert read(plan(path, dtypes={"a": "float64"}))[0]["a"].to_pylist() == [
        1.0,
        1e39,
        16777217.0,
        0.1,
        33554432.0,
        -16777219.0,
    ]


def test_long_values_are_shortened_in_rejects(tmp_path: Path) -> None:
    name = "n" * 100
    path = write_file(tmp_path / "in.csv", f"{name},b\n{'é' * 200}\x07,1\n2,3\n".encode())
    (reject,) = read(plan(path, dtypes={name: "int64"}))[2]
    assert "é" * 60 + "...'" in in_flags(reject.message)
    # the name is complete, because users copy the option
    assert f"--dtype {name}=string" in in_flags(reject.message)


def test_values_that_lose_digits_are_counted_in_a_note(tmp_path: Path) -> None:
    path = write_file(
        tmp_path / "in.csv",
        "x\n0.1\n41.985015101\n16777217.0\n1e-400\n3.1415927\n3.14159274\nnan\n0.5000000000000\n",
    )
    assert "column 'x': 3 of 8 values lose digits as float32; --dtype x=float64 keeps them" in map(
        in_flags, plan(path).notes
    )


def test_invalid_utf8_in_csv_is_a_reject(tmp_path: Path) -> None:
    bad = [
        b"\xff",
        b"caf\xe9",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"\xf0\x80\x80\x80",
    ]
    good = ["é", "€", "𝄞", "\ud7ff", "\U0010ffff"]
    path = write_file(
        tmp_path / "in.csv",
        b"a,b\n" + b"".join(b"1,%s\n" % text for text in (*bad, *(text.encode() for text in good))),
    )
    table, _, rejects = read(plan(path))
    assert table["b"].to_pylist() == good
    assert [reject.reason for reject in rejects] == ["encoding"] * len(bad)
    assert in_flags(rejects[1].message) == (
        "column 'b': 'caf\\xe9' is not UTF-8; use --dtype b=bytes, or declare the file's --encoding: latin-1 and "
        "others of one byte a character decode all of it"
    )
    assert read(plan(path, label="b"))[0].num_rows == len(good)


def test_number_beyond_float64_is_a_reject_that_proposes_text(tmp_path: Path) -> None:
    path = write_file(tmp_path / "in.csv", "a,b\n1e400,x\n2,x\n")
    for common in ({}, {"dtypes": {"a": "float64"}}):
        ((_, message),) = read_reasons(path, **common)
        assert message.endswith("use --dtype a=string")


def test_number_with_only_zero_decimals_is_an_integer(tmp_path: Path) -> None:
    texts = ["12." + "0" * 20, "-9223372036854775808." + "0" * 9, "1" + "0" * 18 + ".0e0"]
    path = write_file(
        tmp_path / "in.csv",
        "a,b\n" + "".join(f"{text},x\n" for text in [*texts, "1." + "0" * 30 + "1"]),
    )
    rows, _, rejects = read(plan(path, dtypes={"a": "int64"}))
    assert rows["a"].to_pylist() == [12, -(2**63), 10**18]
    assert [reject.reason for reject in rejects] == ["type"]
