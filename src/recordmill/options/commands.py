"""The options of all commands, and the work on given options.

The functions fill in defaults, refuse options without an effect, create the signatures of Python
functions, and write the options in messages as flags.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from recordmill.base.errors import UsageError
from recordmill.base.messages import OptionMention, Spelling, join_messages, render
from recordmill.base.option_names import closest_name, did_you_mean
from recordmill.base.option_names import option as option_text
from recordmill.options.build import APPLY_OPTIONS, BUILD_OPTIONS
from recordmill.options.option import (
    ALL_OR_NAMES_FORM,
    CHARACTER_FORM,
    NAMES_FORM,
    NEGATIVE_SWITCH_FORM,
    REPEATED_FORM,
    SWITCH_FORM,
    TWO_WAY_SWITCH_FORM,
    Option,
    Options,
    is_local,
)
from recordmill.options.read import READ_COMMANDS

# The options of all commands, and of `recordmill.open`, which only Python has.
CALL_OPTIONS: Mapping[str, Options] = {
    "build": BUILD_OPTIONS,
    "transform": APPLY_OPTIONS,
    **READ_COMMANDS,
}
COMMAND_OPTIONS: Mapping[str, Options] = {
    name: options for name, options in CALL_OPTIONS.items() if name != "open"
}


def keywords_of(command: str) -> tuple[Option, ...]:
    """Returns the options of a command, or of `open`, that are keywords in Python."""
    return tuple(option for option in CALL_OPTIONS[command] if not option.shell_only)


def flags_of(command: str) -> tuple[Option, ...]:
    """Returns the options of a command that are flags."""
    return tuple(option for option in COMMAND_OPTIONS[command] if not option.keyword_only)


_CHARACTER_NAMES = {"tab": "\t", "\\t": "\t", "none": None}


def fill_defaults(command: str, given_options: Mapping[str, Any]) -> SimpleNamespace:
    """Returns the values of all keywords of a command, by name.

    Options for certain kinds of input are not included, see `kind_specific_options`.

    Args:
        given_options: The options that the caller has set. Others get their defaults.

    Raises:
        TypeError: A keyword does not exist.
        UsageError: A value is not one of the choices.
    """
    options = {option.name: option for option in keywords_of(command)}
    for name in given_options:
        if name not in options:
            raise TypeError(f"{command} has no option {name}{did_you_mean(name, options)}")
    values = {name: option.default for name, option in options.items() if not option.kinds}
    return SimpleNamespace(
        **values
        | {
            name: _check_value(options[name], value)
            for name, value in given_options.items()
            if name in values
        }
    )


def kind_specific_options(command: str, given_options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the set options that only apply to certain kinds of input.

    A None value is left out if the default is None, too.
    """
    options = {option.name: option for option in keywords_of(command) if option.kinds}
    return {
        name: _check_value(options[name], value)
        for name, value in given_options.items()
        if name in options and (value is not None or options[name].default is not None)
    }


def check_applicable(
    command: str, given_options: Mapping[str, Any], *, inputs: str = "", output: str = ""
) -> None:
    """Raises UsageError for the first option that would have no effect.

    The declaration of an option determines this. An option with its default value is never refused.

    Args:
        given_options: The options that the caller has set.
        inputs: The inputs of a build, FILE_INPUTS or MEMORY_INPUTS; "" skips this check.
        output: The output format of a read; "" skips this check.
    """
    options = {option.name: option for option in keywords_of(command)}
    # An option with its default value has the same effect as one that is not set.
    effective = {
        name: value
        for name, value in given_options.items()
        if name not in options or options[name].is_given(value)
    }
    for name, value in ((name, effective[name]) for name in effective if name in options):
        option_shown = option_text(name, value if isinstance(value, bool) else None)
        if inputs and not options[name].serves_inputs(inputs):
            raise UsageError("{option} is not for {inputs}", option=option_shown, inputs=inputs)
        if output and (served_outputs := options[name].outputs) and output not in served_outputs:
            raise UsageError(
                "{option}: an option of {outputs}, not of {output}",
                option=option_text(name, value),
                outputs=join_messages(
                    " and ", [option_text("to", served_output) for served_output in served_outputs]
                ),
                output=option_text("to", output),
            )
        if options[name].engine_only and is_local(effective.get("runner")):
            raise UsageError(
                "{option} needs an engine: give {runner}",
                option=option_shown,
                runner=option_text("runner"),
            )
        if (needs := options[name].needs) and not effective.keys() & set(needs):
            raise UsageError(
                "{option} needs {others}",
                option=option_shown,
                others=join_messages(" or ", map(option_text, needs)),
            )
        for excluded_name, excluded_value in options[name].excludes:
            if excluded_name in effective and excluded_value in (None, effective[excluded_name]):
                raise UsageError(
                    "{option} and {excluded} exclude each other: give one of them",
                    option=option_shown,
                    excluded=option_text(excluded_name, excluded_value),
                )


def _check_value(option: Option, value: Any) -> Any:
    if option.choices and value is not None and value not in option.choices:
        hint = did_you_mean(str(value), option.choices)
        raise UsageError(
            "{option}: one of {choices}{hint}",
            option=option_text(option.name, value),
            choices=", ".join(option.choices),
            hint=hint,
        )
    if option.form == CHARACTER_FORM and isinstance(value, str):
        return _CHARACTER_NAMES.get(value, value)
    if option.form == NAMES_FORM and option.kinds and value is not None:
        return (
            tuple(name.strip() for name in value.split(","))
            if isinstance(value, str)
            else tuple(value)
        )
    return value


_F = TypeVar("_F", bound=Callable[..., Any])


def with_keywords(command: str) -> Callable[[_F], _F]:
    """Decorates a function so that its `**options` appear as the keywords of a command.

    Only the signature changes. It shows the name, the type and the default of each keyword.
    """

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind != inspect.Parameter.VAR_KEYWORD
        ]
        keyword_parameters = [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=option.default,
                annotation=option.keyword_type,
            )
            for option in keywords_of(command)
        ]
        function.__signature__ = signature.replace(parameters=[*parameters, *keyword_parameters])  # type: ignore[attr-defined]
        return function

    return decorate


def format_flag(option: Option, value: object = None) -> str | None:
    """Returns an option as a flag, with a value as a shell needs it.

    >>> options = {option.name: option for option in flags_of("build")}
    >>> format_flag(options["max_rejects"], "1%"), format_flag(options["shuffle"], False)
    ('--max-rejects 1%', '--no-shuffle')
    >>> format_flag(options["columns"], ["a", "b"])
    '--columns a,b'
    >>> format_flag(options["dtypes"], {"a b": "int8"}), format_flag(options["label"])
    ("--dtype 'a b=int8'", '--label')
    >>> format_flag(options["shuffle"], True) is None
    True

    Returns:
        None if no flag sets the option to this value.
    """
    flag = option.main_flag
    if value is None:
        return flag
    flags_by_value = {
        SWITCH_FORM: {True: flag},
        NEGATIVE_SWITCH_FORM: {False: flag},
        TWO_WAY_SWITCH_FORM: {True: flag, False: option.all_flags[-1]},
    }
    if option.form in flags_by_value or isinstance(value, bool):
        with_names = {True: flag} if option.form == ALL_OR_NAMES_FORM else {}
        known = flags_by_value.get(option.form, with_names)
        return known.get(value) if isinstance(value, bool) else None
    if isinstance(value, Mapping):
        value = [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, list | tuple) and option.form == REPEATED_FORM:
        return " ".join(f"{flag} {shlex.quote(str(item))}" for item in value)
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f"{flag} {shlex.quote(text)}"


def flag_spelling(command: str) -> Spelling:
    """Returns the spelling of options as flags of a command, for `render`.

    An option stays a keyword if the command does not have it, or has no flag for the value.

    >>> from recordmill.base.messages import Message
    >>> from recordmill.base.option_names import option
    >>> message = Message("{seed} is that of {file}", seed=option("seed", 3), file="seed=3.csv")
    >>> render(message, flag_spelling("build")), render(message, flag_spelling("head"))
    ('--seed 3 is that of seed=3.csv', 'seed=3 is that of seed=3.csv')
    """
    options = {option.name: option for option in flags_of(command)}

    def spell(mention: OptionMention) -> str:
        option = options.get(mention.name)
        flag = None if option is None else format_flag(option, mention.value)
        return str(mention) if flag is None else flag

    return spell


def render_entries(report: Mapping[str, Any], spelling: Spelling, *names: str) -> dict[str, Any]:
    """Returns a report with the messages in some of its entries rendered.

    Args:
        names: The entries. Each one is a message, a list of messages or None.
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

    The hint is the command that has the flag, or the most similar flag, as in `; did you mean
    --columns?`. Without either, it is the command that lists all flags.

    Args:
        arguments: The unknown arguments.
        extra_flags: Flags that the command accepts in addition to its own.
    """
    own_flags = {
        flag for option in flags_of(command) for flag in option.all_flags if flag.startswith("--")
    }
    command_by_flag = {
        flag: name
        for name in reversed([*COMMAND_OPTIONS])
        for option in flags_of(name)
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
    return "; " + "; ".join(hints or [f"`recordmill {command} --help-all` says all options"])
