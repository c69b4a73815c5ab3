"""A function that parses files may be in a file, a module or memory.

Anything else is refused.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.parsing import parse_rows, parsed_files, records, start_build, wait_until_parsed

import recordmill
from recordmill.base.errors import UsageError
from recordmill.shards.rejects import TooManyRejects


@pytest.mark.parametrize("parser", ["file", "module", "function", "closure"])
def test_function_may_be_in_a_file_or_module_or_defined_anywhere(
    folder: Path, parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    names = {"name": "file"}

    def closure(path: str) -> Iterator[dict[str, Any]]:
        for row in parse_rows(path):
            yield {names["name"]: row.pop("file"), **row}

    value = {"file": "my.py:parse", "module": "my:parse", "function": parse_rows}.get(
        parser, closure
    )
    recordmill.build("in", "out", parser=value)
    assert records("out") == [row for n in range(6) for row in parse_rows(f"in/{n}.dat")]


def test_changed_file_or_changed_parser_is_parsed_again(folder: Path) -> None:
    process = start_build(folder, "out", "my.py:parse_slowly", PARSER_SLEEP="30")
    wait_until_parsed(folder, 0)
    deadline = time.monotonic() + 60
    while not parsed_files(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=60)
    with pytest.raises(TooManyRejects):
        recordmill.build("in", "out", parser="my.py:parse_or_fail")
    # The results of the five good files were kept.
    (folder / "log").unlink()
    with (folder / "in" / "4.dat").open("a") as file:
        file.write("4 9 9\n")
    recordmill.build("in", "out", parser="my.py:parse_or_fail", max_rejects=1)
    assert sorted(parsed_files(folder)) == ["2.dat", "4.dat"]
    assert len(records("out")) == 21


def test_captured_value_is_part_of_the_function(folder: Path) -> None:
    def parser_of(factor: int) -> Callable[[str], Any]:
        return lambda path: {"value": factor}

    recordmill.build("in", "out", parser=parser_of(1))
    assert recordmill.build("in", "out", parser=parser_of(1), if_changed=True).unchanged
    assert not recordmill.build("in", "out", parser=parser_of(2), if_changed=True).unchanged
    assert recordmill.open("out").to_table().column("value").to_pylist() == [2] * 6


@pytest.mark.parametrize(
    ("parser", "message"),
    [
        ("my.py", "give FILE.py:FUNCTION or package.module:FUNCTION"),
        ("none.py:parse", "none.py: no such file"),
        ("no_such_module:parse", "no such module"),
        ("my.py:pars", "has no function pars; there are log, parse, "),
        (5, "give a function of a path"),
    ],
)
def test_wrong_parser_is_refused(folder: Path, parser: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recordmill.build("in", "out", parser=parser)
