"""A worker parses one file after another.

It reports errors and invalid results of the function.
"""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kit.parsing import parse_rows, records
from kit.runs import rejects_of

import recordmill
from recordmill.base.errors import DataError
from recordmill.shards.rejects import TooManyRejects


def test_parser_may_return_one_dict_or_tables(folder: Path) -> None:
    def one(path: str) -> dict[str, Any]:
        return {"file": os.path.basename(path), "number": 0, "size": os.path.getsize(path)}

    def table(path: str) -> pa.Table:
        return pa.Table.from_pylist(list(parse_rows(path)))

    recordmill.build("in", "one", parser=one)
    assert [row["size"] for row in records("one")] == [32] * 6
    recordmill.build("in", "table", parser=table)
    assert len(records("table")) == 24


def test_error_of_the_parser_is_a_reject_of_the_file(folder: Path) -> None:
    result = recordmill.build("in", "out", parser="my.py:parse_or_fail", max_rejects=1)
    assert result.rejected == 1
    assert {row["file"] for row in records("out")} == {f"{n}.dat" for n in (0, 1, 3, 4, 5)}
    (reject,) = (line for path in result.rejects for line in Path(path).read_text().splitlines())
    assert "2.dat" in reject
    assert "my.py, line 18, in parse_or_fail: `raise ValueError" in reject
    with pytest.raises(TooManyRejects, match="ValueError: bad header"):
        recordmill.build("in", "out2", parser="my.py:parse_or_fail")


def test_reject_has_all_lines_of_the_error_in_one_short_line(folder: Path) -> None:
    def fail(path: str) -> dict[str, Any]:
        if path.endswith("2.dat"):
            raise ValueError("bad value\nsecond line")
        if path.endswith("3.dat"):
            raise DataError("bad header\nbyte 3")
        if path.endswith("4.dat"):
            raise ValueError("long\n" * 10_000)
        return {"file": os.path.basename(path)}

    result = recordmill.build("in", "out", parser=fail, max_rejects=3)
    messages = [reject["message"] for reject in rejects_of(result)]
    assert messages[0].endswith("ValueError: bad value second line")
    assert messages[1] == "bad header byte 3"
    assert "ValueError: long long long" in messages[2]
    assert len(messages[2]) <= 300


def test_error_of_a_parser_that_returns_none_names_the_expected_type(folder: Path) -> None:
    with pytest.raises(DataError, match="returns NoneType, not dicts of feature names"):
        recordmill.build("in", "out", parser="my.py:nothing", max_rejects=9)
