"""All commands with their options, and what is done with what a caller gave: the defaults for the others, what is
refused, and the signature and types of the keywords in Python.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option as option_text
from recordmill.base.suggestions import did_you_mean, nearest
from recordmill.options.build import APPLY, BUILD
from recordmill.options.inspection import (
    BENCH,
    CHECK_OPTIONS,
    CLEAN,
    DOCTOR,
    HEAD,
    INSPECT,
    OPEN,
    REPORT_OPTIONS,
    STATS,
    STATUS,
    VERIFY,
)
from recordmill.options.option import CHARACTER, NAMES, OFF, Option, Options, is_local
from recordmill.options.read import READ
from recordmill.records.writers.outputs import serving

COMMANDS: Mapping[str, Options] = {
    "build": BUILD,
    "transform": APPLY,
    "read": READ,
    "head": HEAD,
    "inspect": INSPECT,
    "stats": STATS,
    "check": CHECK_OPTIONS,
    "report": REPORT_OPTIONS,
    "bench": BENCH,
    "verify": VERIFY,
    "doctor": DOCTOR,
    "status": STATUS,
    "clean": CLEAN,
}
CALLS: Mapping[str, Options] = {**COMMANDS, "open": OPEN}  # what Python has, too


def keywords_of(command: str) -> tuple[Option, ...]:
    """The options of a command, or of `open`, that are keywords in Python."""
    return tuple(option for option in CALLS[command] if not option.shell_only)


def flags_of(command: str) -> tuple[Option, ...]:
    """The options of a command that are flags."""
    return tuple(option for option in COMMANDS[command] if not option.keyword_only)


_CHARACTERS = {"tab": "\t", "\\t": "\t", "none": None}


def fill(command: str, given: Mapping[str, Any]) -> SimpleNamespace:
    """All keywords of the command by name: as given, else their defaults. Options of one kind of input are not among
    them (see `of_kind`).

    Raises:
        TypeError: there is no such keyword. UsageError: a value is none of the choices.
    """
    options = {option.name: option for option in keywords_of(command)}
    for name in given:
        if name not in options:
            raise TypeError(f"{command} has no option {name}{did_you_mean(name, options)}")
    values = {name: option.default for name, option in options.items() if not option.kinds}
    return SimpleNamespace(
        **values | {name: _checked(options[name], value) for name, value in given.items() if name in values}
    )


def of_kind(command: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one kind of input that were given."""
    options = {option.name: option for option in keywords_of(command) if option.kinds}
    return {
        name: _checked(options[name], value)
        for name, value in given.items()
        if name in options and (value is not None or options[name].default is not None)
    }


def refuse_unserved(command: str, given: Mapping[str, Any], *, inputs: str = "", output: str = "") -> None:
    """Raises UsageError for the first option that was given and would have no effect, by its declaration: beside the
    others, for such inputs of a build, for such an output of a read. One with its default value is not refused.
    """
    options = {option.name: option for option in keywords_of(command)}
    told = {name: value for name, value in given.items() if name not in options or options[name].is_given(value)}
    for name, value in ((name, told[name]) for name in told if name in options):
        said = option_text(name, value if isinstance(value, bool) else None)
        if inputs and not options[name].serves(inputs):
            raise UsageError(f"{said} is not for {inputs}")
        if output and output not in (served := serving(name)):
            others = " and ".join(option_text("to", other) for other in served)
            raise UsageError(f"{option_text(name, value)}: an option of {others}, not of {option_text('to', output)}")
        if options[name].engine_only and is_local(told.get("runner")):
            raise UsageError(f"{said} needs an engine: give {option_text('runner')}")
        if (needs := options[name].needs) and not told.keys() & set(needs):
            raise UsageError(f"{said} needs {' or '.join(map(option_text, needs))}")
        for other, what in options[name].excludes:
            if other in told and what in (None, told[other]):
                raise UsageError(f"{said} and {option_text(other, what)} exclude each other: give one of them")


def _checked(option: Option, value: Any) -> Any:
    if option.choices and value is not None and value not in option.choices:
        meant = did_you_mean(str(value), option.choices)
        raise UsageError(f"{option_text(option.name, value)}: one of {', '.join(option.choices)}{meant}")
    if option.form == CHARACTER and isinstance(value, str):
        return _CHARACTERS.get(value, value)
    if option.form == NAMES and option.kinds and value is not None:
        return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else tuple(value)
    return value


_F = TypeVar("_F", bound=Callable[..., Any])
TYPED = {"BuildKeywords": "build", "ReadKeywords": "read"}
_HEAD = '''"""The keywords of `build` and `read` with their types, for editors and type checkers.

Written by docs/make_reference.py from the declarations in this folder; change those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import pyarrow.compute as pc

    from recordmill.schemas.feature import Schema
'''


def with_keywords(command: str) -> Callable[[_F], _F]:
    """A decorator: the function's `**options` are shown as the keywords of the command, with defaults."""

    def decorate(function: _F) -> _F:
        shown = inspect.signature(function)
        own = [each for each in shown.parameters.values() if each.kind != inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.keyword_type
            )
            for option in keywords_of(command)
        ]
        function.__signature__ = shown.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return decorate


def keywords_source() -> str:
    """The text of `keywords.py`."""
    return _HEAD + "".join(f"\n\n{_typed(name, command)}" for name, command in TYPED.items())


def _typed(name: str, command: str) -> str:
    return f"class {name}(TypedDict, total=False):\n" + "\n".join(_lines(command)) + "\n"


def _lines(command: str) -> Iterator[str]:
    yield f'    """The options of `recordmill.{command}`."""\n'
    for option in keywords_of(command):
        said = f"False: {option.shown}" if option.form == OFF else option.shown
        yield from textwrap.wrap(said, 114, initial_indent="    # ", subsequent_indent="    # ")
        yield f"    {option.name}: {option.keyword_type}"


def about_unknown(words: Sequence[str], command: str, more: Iterable[str] = ()) -> str:
    """What is said behind flags that a command has not: whose each of them is, or which was probably meant, as in
    `; did you mean --columns?`; else where all are listed. more: flags that it takes beside its own.
    """
    own = {flag for option in flags_of(command) for flag in option.all_flags if flag.startswith("--")}
    theirs = {flag: name for name in reversed([*COMMANDS]) for option in flags_of(name) for flag in option.all_flags}
    flags = [word.partition("=")[0] for word in words if word.startswith("-")]
    said = [f"{flag} is an option of `recordmill {theirs[flag]}`" for flag in flags if flag in theirs]
    near = [nearest(flag, [*own, *more]) for flag in flags if flag not in theirs]
    if meant := [flag for flag in near if flag is not None]:
        said.append(f"did you mean {', '.join(meant)}?")
    return "; " + "; ".join(said or [f"`recordmill {command} --help-all` says all options"])
