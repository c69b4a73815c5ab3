"""Parsers of options.

A parser takes a value that a user has set, and the name of the option for messages. It returns the
value for the code. Its first annotation is the type of the keyword. `base.sizes` contains parsers
of sizes and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import to_whole_number

# Order of the records for training: that of the files, mixed within windows, or random.
ShuffleMode = Literal[False, "window", "global"]
SHUFFLE_MODES: tuple[ShuffleMode, ...] = (False, "window", "global")
_CHARACTERS = {"tab": "\t", "\\t": "\t", "none": None}


def parse_character(value: str | None, name: str) -> str | None:
    """Converts the text of an option to a character.

    The text `tab` means a tab, and the text `none` means None.

    >>> parse_character(";", "quote"), parse_character("none", "quote")
    (';', None)
    """
    return value if value is None else _CHARACTERS.get(value, value)


def parse_names(value: str | Sequence[str], name: str) -> tuple[str, ...]:
    """Returns names, from a text with commas or from a list.

    >>> parse_names("a, b", "columns"), parse_names(["a"], "columns")
    (('a', 'b'), ('a',))
    """
    if isinstance(value, str):
        return tuple(one.strip() for one in value.split(","))
    return tuple(value)


def parse_columns(value: str | Sequence[str], name: str) -> tuple[str, ...]:
    """Returns names of features, from a text with commas or from a list.

    >>> parse_columns("a, b", "columns")
    ('a', 'b')

    Raises:
        UsageError: There is no name, a name is empty, or a name occurs twice.
    """
    names = parse_names(value, name)
    if not names or "" in names:
        raise UsageError(
            "{columns}: write names with commas between them", columns=option(name, value)
        )
    if len(set(names)) < len(names):
        raise UsageError("{columns}: a feature is named twice", columns=option(name, value))
    return names


def parse_text(value: str, name: str) -> str:
    """Returns a text without surrounding spaces.

    >>> parse_text(" Photos of cats. ", "description")
    'Photos of cats.'

    Raises:
        UsageError: The text is blank.
    """
    if not isinstance(value, str) or not value.strip():
        raise UsageError(
            "{option}: the text is empty; give a text, or leave the option out",
            option=option(name, value),
        )
    return value.strip()


def parse_whole(value: int, name: str) -> int:
    """Converts a whole number of any type, such as `numpy.int64`, to an int.

    Raises:
        UsageError: The value is not a whole number.
    """
    return to_whole_number(value, name)


def parse_positive(value: int, name: str) -> int:
    """Checks an option that is a whole number from 1 on.

    Raises:
        UsageError: The value is not a whole number, or below 1.
    """
    return to_whole_number(value, name, 1)


def parse_threads(value: int, name: str) -> int:
    """Checks a number of threads. 0 means one per core.

    Raises:
        UsageError: The value is not a whole number, or below 0.
    """
    count = to_whole_number(value, name)
    if count < 0:
        raise UsageError("{threads}: must be 0 (one per core) or more", threads=option(name, value))
    return count


def parse_shuffle(shuffle: bool | Literal["window", "global"], name: str) -> ShuffleMode:
    """Returns the option `shuffle` as a mode. True means "window".

    Raises:
        UsageError: The value is not a mode.
    """
    if shuffle is True:
        return "window"
    if shuffle is False or shuffle in ("window", "global"):
        return shuffle
    raise UsageError(f'{name} is False, True, "window" or "global", not {shuffle!r}')


def parse_dtypes(value: Mapping[str, str] | Sequence[str], name: str) -> Mapping[str, str]:
    """Returns dtypes by feature, from a dict or from texts such as `FEATURE=DTYPE`.

    A feature name may contain `=`, so the last `=` of a text separates the parts.

    >>> parse_dtypes(["x=float64", "a=b=int32"], "dtypes")
    {'x': 'float64', 'a=b': 'int32'}

    Raises:
        UsageError: A text has another form.
    """
    if isinstance(value, Mapping):
        return dict(value)
    result = {}
    for item in value:
        feature, equals, dtype = item.rpartition("=")
        if not equals or not feature or not dtype:
            raise UsageError(
                "{dtypes}: give FEATURE=DTYPE, as in price=float64", dtypes=option(name, item)
            )
        result[feature] = dtype
    return result


def parse_flags(value: Sequence[str], name: str) -> tuple[str, ...]:
    """Returns the flags for another program as a tuple.

    >>> parse_flags(["--parallelism=2"], "beam_args")
    ('--parallelism=2',)

    Raises:
        UsageError: The value is a text instead of a list.
    """
    if isinstance(value, str):
        raise UsageError(f"{name} must be a list, not a text: {name}={value.split()}")
    return tuple(value)
