"""Messages name options as keywords, for which the command line prints flags
(`base.option_names`).
"""

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rooms import all_modules, installed, parsed

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.option_names import option
from recordmill.options.commands import CALL_OPTIONS, in_flags

DECLARED = {each.name for options in CALL_OPTIONS.values() for each in options}
FLAGS = {
    flag
    for options in CALL_OPTIONS.values()
    for each in options
    for flag in each.all_flags
    if flag.startswith("--")
}
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*(?![\w-])")
_COMMAND = re.compile(r"`recordmill [^`]*`")  # a whole command, to be typed as it is
# the command line, those who speak to programs that have flags of their own, and CSS
_LEFT_OUT = (
    "options/",
    "commands/",
    "pipelines/beam_run.py",
    "reader/report/markup.py",
    "transforms/worker.py",
)
_OF_BEAM = ("--runner", "--parallelism", "--experiments")
# functions below the doors that take an option's name, and which argument it is
_TAKE_NAMES = {
    "option": 0,
    "parse_size": 1,
    "parse_image_size": 1,
    "normalize_specs": 1,
    "_whole": 1,
    "_named": 0,
    "_check_bytes": 1,
}


def products() -> Iterator[tuple[str, ast.Module]]:
    for path in all_modules():
        name = str(installed(path))
        if not name.startswith(_LEFT_OUT):
            yield name, parsed(path)


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of what is neither a docstring nor a help."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):  # outputs describe themselves for `read --help-all`
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "Output"
        ):
            docs |= {id(each) for each in node.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


def test_no_message_spells_a_flag() -> None:
    found = [
        f"{name}:{line}: {flag[0]}"
        for name, tree in products()
        for line, text in texts(tree)
        for flag in _FLAG.finditer(_COMMAND.sub("", text))
        if flag[0] not in _OF_BEAM
    ]
    assert found == []


def test_the_search_finds_flags() -> None:
    tree = ast.parse(
        '"""--doc"""\nf"{x}: give --max-rejects {y}, or --to npy"\n"`recordmill verify --mend`"\n"--flink_master"'
    )
    found = [flag[0] for _, text in texts(tree) for flag in _FLAG.finditer(_COMMAND.sub("", text))]
    assert sorted(found) == ["--max-rejects", "--to"]
    assert set(found) <= FLAGS


def test_every_name_in_a_message_is_that_of_an_option() -> None:
    names = [
        (f"{name}:{node.lineno}", given.value)
        for name, tree in products()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and (at := _TAKE_NAMES.get(node.func.id)) is not None
        and at < len(node.args)
        and isinstance(given := node.args[at], ast.Constant)
        and isinstance(given.value, str)
    ]
    assert len(names) > 200
    assert [found for found in names if found[1] not in DECLARED] == []


@pytest.mark.parametrize(
    ("name", "value", "flags", "keyword"),
    [
        ("max_rejects", None, "--max-rejects", "max_rejects="),
        ("max_rejects", "1%", "--max-rejects 1%", 'max_rejects="1%"'),
        ("threads", 2, "--threads 2", "threads=2"),
        ("to", "npy", "--to npy", 'to="npy"'),
        ("shuffle", False, "--no-shuffle", "shuffle=False"),
        ("header", True, "--header", "header=True"),
        (
            "dtypes",
            {"latitude": "float64"},
            "--dtype latitude=float64",
            'dtypes={"latitude": "float64"}',
        ),
        ("dtypes", {"a b": "x[1]"}, "--dtype 'a b=x[1]'", 'dtypes={"a b": "x[1]"}'),
        ("null_tokens", "?", "--null '?'", 'null_tokens="?"'),
        ("columns", ["a", "b"], "--columns a,b", 'columns=["a", "b"]'),
        ("mode", "lines", "--text-mode lines", 'mode="lines"'),
        ("out", Path("a/b"), "--out a/b", 'out="a/b"'),
    ],
)
def test_both_spellings(name: str, value: object, flags: str, keyword: str) -> None:
    text = f"{option(name, value)}: no"
    assert (in_flags(text), text) == (f"{flags}: no", f"{keyword}: no")
    for error in (
        UsageError(text),
        Reject("a.csv", "line 1", "type", text),
        DataError(text, source="a.csv"),
    ):
        assert str(pickle.loads(pickle.dumps(error))).endswith(f"{keyword}: no")


@pytest.mark.parametrize(
    "said",
    [
        "--max-rejects 3",
        "year=2013/label=3/a.csv",
        "split=train/a.csv",
        "'label=3'",
        '"max_rejects=3"',
        "my_label=3",
        "{option}",
        "--to npy",
        "https://host/?label=3",
        "label=(1, 2)",
        "shuffle=x",
        "depth=float32[-1,4]",
    ],
)
def test_what_a_user_wrote_stays(said: str) -> None:
    assert in_flags(said) == said
    assert in_flags(f"{said}: {option('label', said)}").startswith(f"{said}: --label ")
