"""A worker parses one file after another.

It reports errors and invalid results of the function.
"""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kit.parsing import parse_rows, records

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


def test_error_of_a_parser_that_returns_none_names_the_expected_type(folder: Path) -> None:
    with pytest.raises(DataError, match="returns NoneType, not dicts of feature names"):
        recordmill.build("in", "out", parser="my.py:nothing", max_rejects=9)
