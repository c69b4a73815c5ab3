"""Each module with its own behaviour has a test file of its name."""

import ast
import re
from pathlib import Path

import pytest
from rooms import ROOMS, ROOT, installed_path, modules, parse_module

# A module of fewer statements may be tested with the module that uses it.
MIN_STATEMENTS = 60

_DECLARATIONS = "has declarations only; tests/contract/test_served_options.py tries each option"
_GENERATED = "is written by docs/make_reference.py, and tests/contract/test_options.py compares it"
# By path of a module: the reason why it has no test file of its name.
EXCEPTIONS: dict[str, str] = {
    "options/build.py": _DECLARATIONS,
    "options/keywords.py": _GENERATED,
    "options/read.py": _DECLARATIONS,
    "pipelines/read_beam.py": "tests/exporting/test_worker_tasks.py compares it with threads",
    "reader/options/keywords.py": _GENERATED,
    "sources/csv/options.py": _DECLARATIONS,
}


def count_statements(path: Path) -> int:
    """Returns the number of statements of a module, without docstrings."""
    return sum(
        isinstance(node, ast.stmt)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in ast.walk(parse_module(path))
    )


def find_test_file(module: Path) -> Path:
    """Returns the path of the test file of a module. The file may not exist."""
    name = installed_path(module)
    return ROOT / "tests" / name.with_name(f"test_{name.stem}.py")


@pytest.mark.parametrize("room", ROOMS)
def test_module_with_behaviour_has_a_test_file_of_its_name(room: str) -> None:
    missing = [
        f"{installed_path(path)}: add {find_test_file(path).relative_to(ROOT)}, or name a reason in "
        "EXCEPTIONS"
        for path in modules(room)
        if path.name != "__init__.py"
        and installed_path(path).as_posix() not in EXCEPTIONS
        and count_statements(path) >= MIN_STATEMENTS
        and not find_test_file(path).exists()
    ]
    assert not missing, "\n".join(missing)


def test_exception_is_a_module_that_would_need_a_test_file() -> None:
    paths = {installed_path(path).as_posix(): path for room in ROOMS for path in modules(room)}
    for name in EXCEPTIONS:
        assert count_statements(paths[name]) >= MIN_STATEMENTS, name
        assert not find_test_file(paths[name]).exists(), name


def test_test_file_has_a_test() -> None:
    """An empty file would satisfy the rule."""
    empty = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "def test_" not in path.read_text(encoding="utf-8")
    ]
    assert not empty, empty


def test_selections_of_ci_match_test_names() -> None:
    """A selection without matches silently leaves out tests, or adds long tests."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    selections = re.findall(r'(?:^long=|-k )"([^"$]+)"', script, re.MULTILINE)
    words = {word for selection in selections for word in selection.split(" or ")}
    assert len(words) > 5, selections
    # A word may also match the name of a parameter.
    texts = [
        f"{path.stem} {path.read_text(encoding='utf-8')}"
        for path in (ROOT / "tests").rglob("test_*.py")
    ]
    assert not [word for word in words if not any(word in text for text in texts)]
