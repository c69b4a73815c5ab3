"""A flag in a message sets exactly the option's value. An unknown flag gets a hint."""

import shlex

import pytest

from recordmill.base.messages import Message, render
from recordmill.base.option_names import option
from recordmill.options.calls import CALLS, COMMANDS
from recordmill.options.flags import (
    explain_unknown_flags,
    flag_spelling,
    format_flag,
    render_entries,
)

BUILD = {option.name: option for option in CALLS["build"].flags}


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("shuffle", False, "--no-shuffle"),
        ("shuffle", True, None),
        ("shuffle", "window", None),
        ("header", True, "--header"),
        ("header", False, "--no-header"),
        ("seed", 3, "--seed 3"),
        ("seed", True, None),
        ("description", "a 'b'", "--description " + shlex.quote("a 'b'")),
        ("columns", ("a", "b c"), "--columns 'a,b c'"),
        ("dtypes", {"a": "int8", "b": "bool"}, "--dtype a=int8 --dtype b=bool"),
        ("splits", {"a": 0.5, "b": 0.5}, "--splits a=0.5,b=0.5"),
    ],
)
def test_value_is_formatted_as_a_flag_or_none(name: str, value: object, flag: str | None) -> None:
    assert format_flag(BUILD[name], value) == flag


def test_every_option_of_every_command_has_its_own_flag() -> None:
    for command in COMMANDS:
        for declared in CALLS[command].flags:
            assert format_flag(declared) == declared.main_flag


def test_option_that_the_command_lacks_stays_a_keyword() -> None:
    message = Message("{seed}, {shuffle}", seed=option("seed", 3), shuffle=option("shuffle", True))
    assert render(message, flag_spelling("build")) == "--seed 3, shuffle=True"
    assert render(message, flag_spelling("status")) == "seed=3, shuffle=True"


def test_messages_of_a_report_are_rendered_in_a_copy() -> None:
    message = Message("{seed} stays", seed=option("seed", 3))
    report = {"note": message, "notes": [message, "a"], "other": message, "none": None}
    rendered = render_entries(report, flag_spelling("build"), "note", "notes", "none")
    assert rendered["note"] == "--seed 3 stays"
    assert rendered["notes"] == ["--seed 3 stays", "a"]
    assert rendered["other"] is report["other"] is report["note"]
    assert rendered["none"] is None


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--delimeter", ";"], "; did you mean --delimiter?"),
        (["--delimeter=;"], "; did you mean --delimiter?"),
        (["--mend"], "; --mend is an option of `recordmill verify`"),
        (
            ["--mend", "--sed=3"],
            "; --mend is an option of `recordmill verify`; did you mean --seed?",
        ),
        (["--parallelizm"], "; did you mean --parallelism?"),
        (["--zzzzzzzz"], "; `recordmill build --help-all` shows all options"),
        (["-"], "; `recordmill build --help-all` shows all options"),
    ],
)
def test_unknown_flag_gets_a_hint(arguments: list[str], hint: str) -> None:
    assert explain_unknown_flags(arguments, "build", ["--parallelism"]) == hint
