"""Options in messages: `option("to", "npy")` is marked text, which is spelled where a message leaves for people, as who
called writes it: `--to npy` on the command line, `to="npy"` in Python.

A mark stands between two characters that Unicode keeps for a program's own use, so nothing that a user wrote is taken
for one, and it passes through f-strings, pickles and files of a run as any text does. `str()` of an error and of a
reject spells it; what is kept (manifests, lists of rejects) has flags, whoever called.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterator

_BEGIN, _END = "\ufdd0", "\ufdd1"
_MARK = re.compile(f"{_BEGIN}([^{_BEGIN}{_END}]*){_END}")
# what a password holds that should have been written %2F, %3F, %23 or %40 is part of it, unless a port stands there
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/?#\s@:'\"]*:(?!\d*[/?#])[^\s'\"]*|[^/?#\s'\"]*)@")
_FLAGS = {"dtypes": "--dtype", "mode": "--text-mode", "null_tokens": "--null", "consumer": "--as", "n": "-n"}
_REPEATED = ("null_tokens",)  # whose lists are flags one by one
_speaks_flags = False


def option(name: str, value: object = None) -> str:
    """The option of that keyword, marked; with a value, what a user gave or is to give.

    >>> spelled(f"{option('max_rejects', '1%')} allows that, {option('shuffle', False)} does not")
    'max_rejects="1%" allows that, shuffle=False does not'
    >>> in_flags(f"{option('max_rejects', '1%')} allows that, {option('shuffle', False)} does not")
    '--max-rejects 1% allows that, --no-shuffle does not'
    >>> spelled(option("dtypes", {"latitude": "float64"})), in_flags(option("dtypes", {"latitude": "float64"}))
    ('dtypes={"latitude": "float64"}', '--dtype latitude=float64')
    >>> spelled(f"{option('label')} names a column"), in_flags(f"{option('label')} names a column")
    ('label= names a column', '--label names a column')
    """
    words = [name] if value is None else [name, value]
    return f"{_BEGIN}{json.dumps(words, default=_text)}{_END}"


def spelled(text: str) -> str:
    """The text with its options as the caller writes them, and without passwords."""
    text = in_flags(text) if _speaks_flags else _MARK.sub(lambda mark: _resolved(mark, _keyword), text)
    return without_passwords(text)


def without_passwords(text: str) -> str:
    """The text without users and passwords of URLs in it.

    >>> without_passwords("http://me:secret@host/x, s3://bucket/a@b: no such object")
    'http://***@host/x, s3://bucket/a@b: no such object'
    >>> without_passwords("https://me:se/cr@et@host/x, http://host:80/a@b")
    'https://***@host/x, http://host:80/a@b'
    """
    return _USER.sub(r"\1***@", text)


def in_flags(text: str) -> str:
    """The text with its options as flags."""
    return _MARK.sub(lambda mark: _resolved(mark, _flag), text)


def shortened(text: str, most: int) -> str:
    """The text, if it takes no more characters with flags, else its beginning with flags."""
    flags = in_flags(text)
    return text if len(flags) <= most else flags[:most]


def flag_of(name: str, value: object = None) -> str:
    """The flag of a keyword.

    >>> flag_of("max_rejects"), flag_of("dtypes"), flag_of("shuffle", False)
    ('--max-rejects', '--dtype', '--no-shuffle')
    """
    return _FLAGS.get(name, f"--{'no-' if value is False else ''}{name.replace('_', '-')}")


def speaks_flags() -> bool:
    """Whether the command line called."""
    return _speaks_flags


def speak_flags(flags: bool) -> None:
    """From now on messages of this process are for the command line, or for Python."""
    global _speaks_flags
    _speaks_flags = flags


@contextlib.contextmanager
def speaking_flags() -> Iterator[None]:
    """Within it messages are for the command line."""
    before = _speaks_flags
    speak_flags(True)
    try:
        yield
    finally:
        speak_flags(before)


def _text(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _resolved(mark: re.Match[str], spelling: object) -> str:
    try:
        words = json.loads(mark[1])
    except ValueError:  # none of ours
        return mark[0]
    return str(spelling(*words))  # type: ignore[operator]


def _keyword(name: str, value: object = None) -> str:
    if value is None:
        return f"{name}="
    return f"{name}={value if isinstance(value, bool) else json.dumps(value, ensure_ascii=False)}"


def _flag(name: str, value: object = None) -> str:
    flag = flag_of(name, value)
    if value is None or isinstance(value, bool):
        return flag
    if isinstance(value, list) and name in _REPEATED:
        return " ".join(f"{flag} {shlex.quote(str(item))}" for item in value)
    if isinstance(value, dict):
        return " ".join(f"{flag} {shlex.quote(f'{key}={item}')}" for key, item in value.items())
    return f"{flag} {shlex.quote(','.join(map(str, value)) if isinstance(value, list) else str(value))}"
