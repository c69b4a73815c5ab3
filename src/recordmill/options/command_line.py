"""Command line parsers for argparse, made from the declared options.

`--help` shows the common options, and `--help-all` shows all options.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from recordmill.base.option_names import did_you_mean
from recordmill.options.calls import CALLS
from recordmill.options.declare import Option


def add_command(commands: Any, name: str, command: Any, summary: str) -> None:
    """Adds the parser of a command to the subparsers of argparse.

    Args:
        commands: The object that `add_subparsers` returns.
        name: Name of the command.
        command: Its `Command`.
        summary: One line for the list of commands.
    """
    parser = commands.add_parser(
        name,
        help=summary,
        usage=command.usage,
        description=command.description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    beam_flags, (metavar, inputs_help) = command.takes_beam_flags, command.inputs
    parser.set_defaults(
        run=command.run,
        command=name,
        takes_beam_flags=beam_flags,
        failure_code=command.failure_code,
    )
    parser.add_argument(
        "inputs", nargs="+" if command.needs_inputs else "*", metavar=metavar, help=inputs_help
    )
    groups: dict[str, Any] = {}
    hidden_actions: list[argparse.Action] = []
    for option in CALLS[name].flags:
        if option.heading not in groups:
            groups[option.heading] = parser.add_argument_group(option.heading)
        action = _add_option(groups[option.heading], option)
        if not option.common:
            hidden_actions.append(action)
    help_group = parser.add_argument_group("help")
    examples, epilog_all = command.examples, command.full_help()
    more_hint = (
        f"\n{len(hidden_actions)} more option{'s' * (len(hidden_actions) != 1)}: recordmill {name} --help-all\n"
        if hidden_actions or epilog_all
        else ""
    )
    help_group.add_argument(
        "-h",
        "--help",
        action=_Help,
        hidden=tuple(hidden_actions),
        epilog=command.examples + more_hint,
        help="show this help",
    )
    help_group.add_argument(
        "--help-all", action=_Help, hidden=(), epilog=examples + epilog_all, help="show all options"
    )


def options_from_args(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the keywords of the flags that the user has set."""
    return {
        option.name: getattr(args, option.name)
        for option in CALLS[args.command].flags
        if not option.shell_only and option.name in args
    }


class _Help(argparse.Action):
    """Action of `--help` and `--help-all`: prints the help, and exits.

    Args:
        hidden: Actions of the options that the help leaves out.
        epilog: Text after the options.
    """

    def __init__(
        self, option_strings: Sequence[str], dest: str, hidden: Any, epilog: str, help: str
    ) -> None:
        super().__init__(
            option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=help
        )
        self._hidden, self._epilog = hidden, epilog

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> None:
        for action in self._hidden:
            action.help = argparse.SUPPRESS
        parser.epilog = self._epilog
        parser.print_help()
        parser.exit()


def _add_option(group: Any, option: Option) -> argparse.Action:
    # A flag that is not set is not among the arguments. `Values` adds the default later, in the
    # same way for the command line and for Python.
    default = option.default if option.shell_only else argparse.SUPPRESS
    settings: dict[str, Any] = {
        "dest": option.name,
        "default": default,
        # argparse replaces % sequences in a help text
        "help": option.help_with_default.replace("%", "%%"),
    }
    if option.is_switch:
        settings |= {"action": "store_const", "const": not option.default}
    elif option.is_two_way:
        settings["action"] = argparse.BooleanOptionalAction
    else:
        settings["metavar"] = option.placeholder or f"{{{','.join(option.choices)}}}"
    if option.choices:
        settings["type"] = _choice_parser(option.choices)
    if option.repeated:
        settings["action"] = "append"
    if option.allows_bare_flag:
        settings |= {"nargs": "?", "const": True}
    if option.number_type is not None:
        settings["type"] = _parse_integer if option.number_type is int else _parse_number
    action: argparse.Action = group.add_argument(
        *(option.all_flags if option.short else (option.main_flag,)), **settings
    )
    if option.choices:  # argcomplete uses this attribute for completion in a shell
        action.completer = lambda **_: option.choices  # type: ignore[attr-defined]
    return action


def _choice_parser(choices: Sequence[str]) -> Callable[[str], str]:
    def choose(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(
                f"{text}: one of {', '.join(choices)}{did_you_mean(text, choices)}"
            )
        return text

    return choose


def _parse_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: a whole number") from None


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: a number") from None
