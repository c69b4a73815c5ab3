"""Users' functions are loaded from files, and their errors name the line."""

import sys
from pathlib import Path

import pytest

from recordmill.base.user_code import (
    UserCodeError,
    describe_user_error,
    find_function,
    load_file_function,
)

MODULE = "user_code_of_a_test"


@pytest.fixture(autouse=True)
def without_module() -> None:
    sys.modules.pop(MODULE, None)


def test_function_is_loaded_from_a_file_or_its_content(tmp_path: Path) -> None:
    path = tmp_path / "f.py"
    content = b"import os\n\ndef size(text):\n    return len(text)\n"
    path.write_bytes(content)
    assert load_file_function(str(path), "size", MODULE)("abc") == 3
    path.unlink()
    function = load_file_function(str(path), "size", MODULE, content)
    assert function("abcd") == 4
    assert sys.modules[MODULE].__file__ == str(path)
    assert function.__module__ == MODULE


def test_missing_function_is_an_error_with_the_existing_ones(tmp_path: Path) -> None:
    path = tmp_path / "f.py"
    path.write_text("def parse(x): pass\ndef _hidden(x): pass\nvalue = 3\n")
    for name in ("prase", "value"):
        with pytest.raises(UserCodeError, match=f"{path} has no function {name}; there are parse$"):
            load_file_function(str(path), name, MODULE)
    path.write_text("")
    with pytest.raises(UserCodeError, match=r"f\.py has no function parse$"):
        load_file_function(str(path), "parse", MODULE)
    assert find_function(sys, "exit", "sys") is sys.exit


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\ny = x / 0\n", "line 2, in <module>: `y = x / 0`: ZeroDivisionError: division by"),
        ("def f(:\n    pass\n", "line 1: `def f(:`: SyntaxError: "),
        ("import sys\nsys.exit('no')\n", "line 2, in <module>: `sys.exit('no')`: SystemExit: no"),
        ("import json\njson.loads('{')\n", "line 2, in <module>: `json.loads('{')`: JSONDecodeErr"),
    ],
)
def test_error_of_the_file_names_its_line(tmp_path: Path, code: str, message: str) -> None:
    path = tmp_path / "f.py"
    path.write_text(code)
    with pytest.raises(UserCodeError) as caught:
        load_file_function(str(path), "f", MODULE)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"^in none\.py: FileNotFoundError: "):
        load_file_function(str(tmp_path / "none.py"), "f", MODULE)


def test_error_without_a_line_of_the_file_names_the_file() -> None:
    assert describe_user_error(ValueError("a"), "/x/f.py") == "in f.py: ValueError: a"
    assert describe_user_error(ValueError(), "/x/f.py") == "in f.py: ValueError: "


def test_lines_of_an_error_become_one_line_that_is_not_long() -> None:
    error = ValueError("bad value:\n\n  second line\n")
    assert describe_user_error(error, "/x/f.py") == "in f.py: ValueError: bad value: second line"
    assert len(describe_user_error(ValueError("a\nb" * 10_000), "/x/f.py")) < 300
