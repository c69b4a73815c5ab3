"""Messages keep their options: keywords in Python, and flags on the command line.

See `base.messages`.
"""

import ast
import pickle
import re
import shlex
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.runs import in_flags
from rooms import all_modules, installed_path, parse_module

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.options.calls import CALLS

DECLARED = {name for call in CALLS.values() for name in call.options}
FLAGS = {
    flag
    for call in CALLS.values()
    for declared in call.options.values()
    for flag in declared.all_flags
    if flag.startswith("--")
}
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*(?![\w-])")
_COMMAND = re.compile(r"`recordmill [^`]*`")  # a complete command, for users to copy
# The command line, code for programs with their own flags, and CSS.
_LEFT_OUT = (
    "options/",
    "commands/",
    "pipelines/beam_run.py",
    "reader/report/markup.py",
    "transforms/worker.py",
)
_OF_BEAM = ("--runner", "--parallelism", "--experiments")
# By function: the position of its argument that is the name of an option.
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
        name = str(installed_path(path))
        if not name.startswith(_LEFT_OUT):
            yield name, parse_module(path)


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of all strings, without docstrings and help texts."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    # Outputs and options contain their help texts.
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("Output", "declare", "redeclare")
        ):
            arguments = (*node.args, *(keyword.value for keyword in node.keywords))
            docs |= {id(argument) for argument in arguments}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


def test_no_message_contains_a_flag() -> None:
    problems = [
        f"{name}:{line}: {flag[0]}"
        for name, tree in products()
        for line, text in texts(tree)
        for flag in _FLAG.finditer(_COMMAND.sub("", text))
        if flag[0] not in _OF_BEAM
    ]
    assert problems == []


def test_no_message_builds_a_flag_from_a_name() -> None:
    """`f"--{name}"` would show a flag to users of Python."""
    problems = [
        f"{name}:{node.lineno}"
        for name, tree in products()
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
        if isinstance(part, ast.Constant) and str(part.value).endswith("--")
    ]
    assert problems == []


def test_search_for_flags_finds_them() -> None:
    tree = ast.parse(
        '"""--doc"""\nf"{x}: give --max-rejects {y}, or --to npy"\n"`recordmill verify --mend`"\n"--flink_master"'
    )
    flags = [flag[0] for _, text in texts(tree) for flag in _FLAG.finditer(_COMMAND.sub("", text))]
    assert sorted(flags) == ["--max-rejects", "--to"]
    assert set(flags) <= FLAGS


def test_every_option_name_in_a_message_is_declared() -> None:
    names = [
        (f"{name}:{node.lineno}", argument.value)
        for name, tree in products()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and (position := _TAKE_NAMES.get(node.func.id)) is not None
        and position < len(node.args)
        and isinstance(argument := node.args[position], ast.Constant)
        and isinstance(argument.value, str)
    ]
    assert len(names) > 200
    assert [entry for entry in names if entry[1] not in DECLARED] == []


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
def test_message_has_flags_or_keywords(name: str, value: object, flags: str, keyword: str) -> None:
    message = Message("{option}: no", option=option(name, value))
    command = "read" if name == "to" else "build"
    assert (in_flags(message, command), message) == (f"{flags}: no", f"{keyword}: no")
    for error in (
        UsageError("{option}: no", option=option(name, value)),
        Reject("a.csv", "line 1", "type", message),
        DataError("{option}: no", option=option(name, value), source="a.csv"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert str(copy).endswith(f"{keyword}: no")
        assert in_flags(copy, command).endswith(f"{flags}: no")


def test_message_for_a_command_has_no_flag_that_the_command_lacks() -> None:
    message = Message(
        "{seed}, {shuffle}", seed=option("seed", 3), shuffle=option("shuffle", "window")
    )
    assert in_flags(message, "build") == '--seed 3, shuffle="window"'
    assert in_flags(message, "head") == 'seed=3, shuffle="window"'
    assert in_flags(message, "bench") == "seed=3, --shuffle window"
    # The command has --no-shuffle only.
    assert in_flags(option("shuffle", True), "build") == "shuffle=True"


LIKE_OPTIONS = [
    "--max-rejects 3",
    "year=2013/label=3/a.csv",
    "seed=3.csv",
    "label=3",
    "label=",
    "shuffle=False",
    "'label=3'",
    '"max_rejects=3"',
    "my_label=3",
    "{option}",
    "{x}",
    "{0}",
    "{{}}",
    "--to npy",
    "https://host/?label=3",
    "depth=float32[-1,4]",
]


@pytest.mark.parametrize("text", LIKE_OPTIONS)
def test_text_of_a_user_is_not_rewritten(text: str) -> None:
    assert in_flags(text) == text
    assert in_flags(UsageError(text)) == text
    error = DataError("{label} of {column}", label=option("label", 3), column=text, source=text)
    assert in_flags(error) == f"{text}: --label 3 of {text}"
    nested = UsageError("{file}: {error}", file=text, error=error)
    assert in_flags(nested) == f"{text}: {text}: --label 3 of {text}"
    assert in_flags(Reject(text, text, "type", nested.text)).count(text) >= 5
    assert in_flags(option("label", text)) == f"--label {shlex.quote(text)}"


# Classes that take a template and its fields.
_CARRIERS = {"Message", "UsageError", "DataError", "RecordmillError", "EngineError"}
_PARTS = {"option", "option_text", "Message", "join_messages"}


def _calls_parts(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in _PARTS
        for part in ast.walk(node)
    )


def _lost_parts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and _calls_parts(node.value):
            yield node.lineno, "an f-string drops the option: make it a field of the message"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
            for side in (node.left, node.right):
                if isinstance(side, ast.Call) and _calls_parts(side):
                    yield node.lineno, "+ and % drop the option: make it a field of the message"
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") == "join"
            and any(_calls_parts(argument) for argument in node.args)
        ):
            yield node.lineno, "str.join drops the option: call join_messages"


def test_no_message_loses_the_parts_of_an_option() -> None:
    """An f-string, `+`, `%` or `str.join` makes plain text of an option.

    A field keeps it: `UsageError("{label}: no such column", label=option("label", name))`.
    """
    problems = [
        f"{name}:{line}: {problem}"
        for name, tree in products()
        for line, problem in _lost_parts(tree)
    ]
    assert problems == []


def test_search_for_lost_options_finds_them() -> None:
    tree = ast.parse(
        'f"{option(1)}: x"\nf"{x!r:>{option(1)}}"\n"a" + option(1)\n", ".join(option(n) for n in x)'
    )
    assert sorted({line for line, _ in _lost_parts(tree)}) == [1, 2, 3, 4]


def test_message_fields_equal_the_fields_of_the_template() -> None:
    problems = []
    count = 0
    for name, tree in products():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") in _CARRIERS):
                continue
            fields = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
            if getattr(node.func, "id", "") == "DataError":
                fields -= {"source", "place"}
            template = node.args[0] if node.args else None
            if not fields or not isinstance(template, ast.Constant):
                continue
            count += 1
            names = {part[1] for part in string.Formatter().parse(template.value) if part[1]}
            if names != fields:
                problems.append(f"{name}:{node.lineno}: {sorted(names ^ fields)}")
    assert problems == []
    assert count > 300


_FIELD = re.compile(r"\{[a-z_]\w*\}")


def _unfilled_fields(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for part in node.values:
                if isinstance(part, ast.Constant) and _FIELD.search(part.value):
                    yield node.lineno, "an f-string contains a field in double braces"
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _CARRIERS:
            has_fields = {keyword.arg for keyword in node.keywords} - {"source", "place"}
            template = node.args[0] if node.args else None
            if (
                not has_fields
                and isinstance(template, ast.Constant)
                and _FIELD.search(template.value)
            ):
                yield node.lineno, "a template has no fields"


def test_no_message_contains_an_unfilled_field() -> None:
    problems = [
        f"{name}:{line}: {problem}"
        for name, tree in products()
        for line, problem in _unfilled_fields(tree)
    ]
    assert problems == []


def test_search_for_unfilled_fields_finds_them() -> None:
    tree = ast.parse(
        'f"{check}: {{rule}}"\nUsageError("{label}: x")\nDataError("{label}: x", source=path)\n'
        'f"{check}: {{{rule}}}"\nUsageError("{label}: x", label=label)\nf"{{records: SHARE}}"'
    )
    assert sorted(line for line, _ in _unfilled_fields(tree)) == [1, 2, 3]
