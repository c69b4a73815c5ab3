"""Names: a public one stands in one module, and what a docstring calls a module is one."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rooms import FOLDERS, PACKAGE, ROOMS, all_modules, dotted, installed, parsed

SHARED = {  # what several modules have alike, since a table or a caller finds it there by its name
    "add_parser": "each command's flags",
    "run": "each command",
    "main": "each program",
}
# what says how a thing came about, or how it stands to another, and not what it is
NO_NOUNS = {
    "about", "after", "around", "asked", "before", "begun", "behind", "beside", "covering", "done", "found",
    "given", "held", "here", "kept", "known", "left", "listed", "made", "meant", "once", "past", "placed", "said",
    "seen", "shown", "spread", "stored", "straight", "taken", "taking", "terms", "tied", "told", "viewed",
}  # fmt: skip


def _modules() -> list[Path]:
    return [*all_modules(), *sorted(PACKAGE.glob("*.py"))]


def _public(tree: ast.Module) -> Iterator[str]:
    """The public names that a module defines at its top level."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            continue
        yield from (name for name in names if not name.startswith("_"))


def test_a_public_name_stands_in_one_module() -> None:
    places = defaultdict(set)
    for path in _modules():
        for name in _public(parsed(path)):
            places[name].add(installed(path).as_posix())
    twice = {name: sorted(found) for name, found in places.items() if len(found) > 1 and name not in SHARED}
    assert not twice, "\n".join(f"{name}: {', '.join(found)}" for name, found in sorted(twice.items()))


def test_modules_are_named_by_nouns() -> None:
    wrong = [installed(path).as_posix() for path in all_modules() if set(path.stem.split("_")) & NO_NOUNS]
    assert not wrong, "\n".join(wrong)


def test_what_a_docstring_calls_a_module_is_one() -> None:
    """`records.example.encode` is a room or a module, or stands in one."""
    known = {dotted(path).removeprefix("recordmill.") for path in _modules()} | set(ROOMS)
    wrong = []
    for path in _modules():
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for name in re.findall(r"`((?:[a-z_]+\.)+\w+)`", ast.get_docstring(node) or ""):
                parts = name.split(".")
                if parts[0] in FOLDERS and not known & {name, ".".join(parts[:-1]), ".".join(parts[:-2])}:
                    wrong.append(f"{installed(path)}: `{name}`")
    assert not wrong, "\n".join(sorted(set(wrong)))
