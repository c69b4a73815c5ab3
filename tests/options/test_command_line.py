"""The command line returns the options that users set, as Python values."""

import argparse
from types import SimpleNamespace
from typing import Any

import pytest

from recordmill.options.command_line import add_command, options_from_args


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="recordmill")
    commands = root.add_subparsers()
    command = SimpleNamespace(
        usage="recordmill build INPUT",
        description="Builds.",
        examples="examples of build",
        inputs=("INPUT", "files"),
        needs_inputs=True,
        takes_beam_flags=True,
        failure_code=1,
        run=lambda args: None,
        full_help=lambda: "more about kinds",
    )
    add_command(commands, "build", command, "builds a data set")
    return root


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}),
        (["--seed", "7"], {"seed": 7}),
        (["--no-shuffle"], {"shuffle": False}),
        (["--no-header"], {"header": False}),
        (["--header"], {"header": True}),
        (["--dtype", "a=int8", "--dtype", "b=bool"], {"dtypes": ["a=int8", "b=bool"]}),
        (["--shard-size=1MiB"], {"shard_size": "1MiB"}),
        (["--compression", "gzip"], {"compression": "gzip"}),
    ],
)
def test_flags_become_keywords(
    parser: argparse.ArgumentParser, words: list[str], options: dict[str, Any]
) -> None:
    args = parser.parse_args(["build", "a", "b", *words])
    assert options_from_args(args) == options
    assert (args.inputs, args.command, args.failure_code) == (["a", "b"], "build", 1)
    assert args.takes_beam_flags


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "1.5"], "argument --seed: 1.5: a whole number"),
        (
            ["--compression", "gizp"],
            "argument --compression: gizp: one of none, gzip; did you mean",
        ),
        (["--shard-siz", "1"], "unrecognized arguments: --shard-siz 1"),
    ],
)
def test_wrong_value_is_an_error_with_the_choices(
    parser: argparse.ArgumentParser,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    with pytest.raises(SystemExit) as error:
        parser.parse_args(["build", "a", *words])
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_input_is_required_if_the_command_needs_one(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args(["build"])
    assert "the following arguments are required: INPUT" in capsys.readouterr().err


def test_help_counts_the_options_that_it_hides(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for flag in ("--help-all", "--help"):
        with pytest.raises(SystemExit) as error:
            parser.parse_args(["build", flag])
        assert not error.value.code
        texts.append(capsys.readouterr().out)
    full_help, short_help = texts
    assert "more about kinds" in full_help
    assert "more about kinds" not in short_help
    assert "more options: recordmill build --help-all" in short_help
    assert "examples of build" in full_help
    assert "examples of build" in short_help
    assert len(short_help) < len(full_help)
