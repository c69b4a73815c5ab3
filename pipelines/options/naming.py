"""Messages name options as flags (`--max-rejects`); who called from Python reads keywords (`max_rejects=`) instead.

So one text serves both: it is written with flags, and is put into keywords where it leaves this package for a caller
in Python. The command line says once that it speaks flags.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from recordmill.base.errors import DataError, RecordmillError
from recordmill.pipelines.options.commands import keywords_of
from recordmill.pipelines.options.declare import ALL_OR_NAMES, EITHER, OFF, SWITCH, Option

_P = ParamSpec("_P")
_R = TypeVar("_R")
_PAIR = re.compile(r"--dtype (\S+)=(\w+(?:\[[^\]]*\])?)")  # a mapping in Python
_flags: ContextVar[bool] = ContextVar("recordmill_flags", default=False)


@contextlib.contextmanager
def speaking_flags() -> Iterator[None]:
    """Within it messages keep their flags: the command line called."""
    token = _flags.set(True)
    try:
        yield
    finally:
        _flags.reset(token)


def spoken(text: str, command: str, given: Mapping[str, object] | None = None) -> str:
    """A message of a command as its caller writes options. given: the values that the caller gave, which the message
    may quote.

    >>> spoken("--max-rejects 2 %: a number", "build", {"max_rejects": "2 %"})
    'max_rejects=2 %: a number'
    >>> spoken("use --to npy or --where SQL", "read")
    'use to="npy" or where='
    >>> spoken("--dtype latitude=float64 keeps them", "build")
    'dtypes={"latitude": "float64"} keeps them'
    >>> spoken("--key and --no-shuffle exclude each other", "build")
    'key= and shuffle=False exclude each other'
    """
    if _flags.get():
        return text
    text = _PAIR.sub(r'dtypes={"\1": "\2"}', text)
    pattern, options = _flags_of(command)
    for flag, option in options.items():
        for value in _quoted((given or {}).get(option.name)):
            text = text.replace(f"{flag} {value}", f"{option.name}={value}")
    return pattern.sub(lambda match: _keyword(options[match[1]], match), text)


def _quoted(value: object) -> list[str]:
    """How messages may quote a value that was given."""
    if value is None or isinstance(value, bool):
        return []
    return [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]


@functools.cache
def _flags_of(command: str) -> tuple[re.Pattern[str], dict[str, Option]]:
    options = {flag: option for option in keywords_of(command) for flag in option.all_flags}
    longest = sorted(options, key=len, reverse=True)
    return re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, longest))})(?![\w-])(=| \w+)?"), options


def _keyword(option: Option, match: re.Match[str]) -> str:
    following = match[2] or ""
    if following == "=":
        return f"{option.name}="
    if option.form == EITHER:
        return f"{option.name}={match[1] == option.flags}{following}"
    if option.form in (SWITCH, OFF, ALL_OR_NAMES):
        return f"{option.name}={option.form != OFF}{following}"
    if following.strip() in option.choices:
        return f'{option.name}="{following.strip()}"'
    if following.strip()[:1].isdigit():
        return f"{option.name}={following.strip()}"
    return f"{option.name}={'' if following.strip() == option.metavar else following}"


def names_keywords(command: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A decorator of what Python users call: its errors name keywords."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **keywords: _P.kwargs) -> _R:
            try:
                return function(*args, **keywords)
            except RecordmillError as error:
                error.args = tuple(
                    spoken(part, command, keywords) if isinstance(part, str) else part for part in error.args
                )
                if isinstance(error, DataError):
                    error.reason = spoken(error.reason, command, keywords)
                raise

        return call

    return decorate
