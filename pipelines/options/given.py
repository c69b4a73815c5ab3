"""Keywords that a caller gave, with the defaults for all others, as the commands take them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.people.nearest import did_you_mean
from recordmill.pipelines.options.commands import keywords_of
from recordmill.pipelines.options.declare import CHARACTER, NAMES, Option

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


def _checked(option: Option, value: Any) -> Any:
    if option.choices and value is not None and value not in option.choices:
        meant = did_you_mean(str(value), option.choices)
        raise UsageError(f"{option.flags} {value}: one of {', '.join(option.choices)}{meant}")
    if option.form == CHARACTER and isinstance(value, str):
        return _CHARACTERS.get(value, value)
    if option.form == NAMES and option.kinds and value is not None:
        return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else tuple(value)
    return value
