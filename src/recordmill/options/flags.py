"""Flags of options: how messages write them, and hints about unknown flags."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from recordmill.base.messages import OptionMention, Spelling, render
from recordmill.base.option_names import closest_name
from recordmill.options.calls import CALLS, COMMANDS
from recordmill.options.declare import Option


def format_flag(option: Option, value: object = None) -> str | None:
    """Returns the flag of an option with a value, quoted for the shell.

    >>> options = {option.name: option for option in CALLS["build"].flags}
    >>> format_flag(options["max_rejects"], "1%"), format_flag(options["shuffle"], False)
    ('--max-rejects 1%', '--no-shuffle')
    >>> format_flag(options["columns"], ["a", "b"])
    '--columns a,b'
    >>> format_flag(options["dtypes"], {"a b": "int8"}), format_flag(options["label"])
    ("--dtype 'a b=int8'", '--label')
    >>> format_flag(options["shuffle"], True) is None
    True

    Args:
        value: The value. If None, the flag is returned alone.

    Returns:
        The flag. None if no flag sets the option to this value.
    """
    flag = option.main_flag
    if value is None:
        return flag
    if option.is_switch or option.is_two_way or isinstance(value, bool):
        flags_by_value = {
            True: flag if option.allows_bare_flag else None,
            **({not option.default: flag} if option.is_switch else {}),
            **({True: flag, False: option.all_flags[-1]} if option.is_two_way else {}),
        }
        return flags_by_value.get(value) if isinstance(value, bool) else None
    if isinstance(value, Mapping):
        value = [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, list | tuple) and option.repeated:
        return " ".join(f"{flag} {shlex.quote(str(item))}" for item in value)
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f"{flag} {shlex.quote(text)}"


def flag_spelling(command: str) -> Spelling:
    """Returns the argument of `render` that writes options as flags of a command.

    An option remains a keyword if the command does not have it, or has no flag for the value.

    >>> from recordmill.base.messages import Message
    >>> from recordmill.base.option_names import option
    >>> message = Message("{seed} is that of {file}", seed=option("seed", 3), file="seed=3.csv")
    >>> render(message, flag_spelling("build")), render(message, flag_spelling("head"))
    ('--seed 3 is that of seed=3.csv', 'seed=3 is that of seed=3.csv')
    """
    options = {option.name: option for option in CALLS[command].flags}

    def spell(mention: OptionMention) -> str:
        option = options.get(mention.name)
        flag = None if option is None else format_flag(option, mention.value)
        return str(mention) if flag is None else flag

    return spell


def render_entries(report: Mapping[str, Any], spelling: Spelling, *names: str) -> dict[str, Any]:
    """Renders the messages in some entries of a JSON report.

    Args:
        spelling: How messages write options, from `flag_spelling`.
        *names: Names of the entries. Each entry is a message, a list of messages or None.

    Returns:
        A copy of the report.
    """
    texts = {name: report[name] for name in names if report[name] is not None}
    return {
        **report,
        **{
            name: render(entry, spelling)
            if isinstance(entry, str)
            else [render(message, spelling) for message in entry]
            for name, entry in texts.items()
        },
    }


def explain_unknown_flags(
    arguments: Sequence[str], command: str, extra_flags: Iterable[str] = ()
) -> str:
    """Returns a hint about unknown flags, for the end of a message.

    The hint names another command that has the flag, or the most similar flag, as in `; did you
    mean --columns?`. If there is no such command or flag, it names the command that lists all
    flags.

    Args:
        arguments: The unknown arguments.
        command: Name of the command that was called.
        extra_flags: Flags that the command accepts, but that are not flags of its options.
    """
    own_flags = {
        flag
        for option in CALLS[command].flags
        for flag in option.all_flags
        if flag.startswith("--")
    }
    command_by_flag = {
        flag: name
        for name in reversed(COMMANDS)
        for option in CALLS[name].flags
        for flag in option.all_flags
    }
    flags = [word.partition("=")[0] for word in arguments if word.startswith("-")]
    hints = [
        f"{flag} is an option of `recordmill {command_by_flag[flag]}`"
        for flag in flags
        if flag in command_by_flag
    ]
    closest = [
        closest_name(flag, [*own_flags, *extra_flags])
        for flag in flags
        if flag not in command_by_flag
    ]
    if suggestions := [flag for flag in closest if flag is not None]:
        hints.append(f"did you mean {', '.join(suggestions)}?")
    return "; " + "; ".join(hints or [f"`recordmill {command} --help-all` shows all options"])
