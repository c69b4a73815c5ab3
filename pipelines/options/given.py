"""Keywords that a caller gave, with the defaults for all others, as the commands take them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option as option_text
from recordmill.base.people.nearest import did_you_mean
from recordmill.pipelines.options.commands import keywords_of
from recordmill.pipelines.options.declare import CHARACTER, NAMES, Option
from recordmill.records.writers.outputs import serving

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
