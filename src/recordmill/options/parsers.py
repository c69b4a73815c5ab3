"""Parsers of options: functions of (value, name) that return the value for the code.

The first annotation is the type of the keyword. `base.sizes` has parsers of sizes and numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import to_whole_number

_CHARACTERS = {"tab": "\t", "\\t": "\t", "none": None}


def parse_character(value: str | None, name: str) -> str | None:
    """Returns a character; `tab` and `none` are words for one and for none.

    >>> parse_character(";", "quote"), parse_character("none", "quote")
    (';', None)
    """
    return value if value is None else _CHARACTERS.get(value, value)


def parse_names(value: str | Sequence[str], name: str) -> tuple[str, ...]:
    """Returns names; a text has commas between them.

    >>> parse_names("a, b", "columns"), parse_names(["a"], "columns")
    (('a', 'b'), ('a',))
    """
    if isinstance(value, str):
        return tuple(one.strip() for one in value.split(","))
    return tuple(value)


def parse_whole(value: int, name: str) -> int:
    """Returns a whole number as Python's own int."""
    return to_whole_number(value, name)


def parse_positive(value: int, name: str) -> int:
    """Returns a whole number that is at least 1."""
    return to_whole_number(value, name, 1)


def parse_threads(value: int, name: str) -> int:
    """Returns a number of threads. 0 means one per core."""
    count = to_whole_number(value, name)
    if count < 0:
        raise UsageError("{threads}: must be 0 (one per core) or more", threads=option(name, value))
    return count
