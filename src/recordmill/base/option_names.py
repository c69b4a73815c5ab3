"""Options in messages: as keywords, `max_rejects="1%"`, for which the command line prints its flags."""

from __future__ import annotations

import json
import os
import re

# what a password holds that should have been written %2F, %3F, %23 or %40 is part of it, unless a port stands there
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/?#\s@:'\"]*:(?!\d*[/?#])[^\s'\"]*|[^/?#\s'\"]*)@")


def option(name: str, value: object = None) -> str:
    """The option of that keyword, with a value that a user gave or is to give.

    >>> f"{option('max_rejects', '1%')} allows that, {option('shuffle', False)} does not"
    'max_rejects="1%" allows that, shuffle=False does not'
    >>> f"{option('dtypes', {'latitude': 'float64'})} keeps it, {option('label')} names a column"
    'dtypes={"latitude": "float64"} keeps it, label= names a column'
    """
    if value is None:
        return f"{name}="
    return f"{name}={value if isinstance(value, bool) else json.dumps(value, ensure_ascii=False, default=_text)}"


def without_passwords(text: str) -> str:
    """The text without users and passwords of URLs in it.

    >>> without_passwords("http://me:secret@host/x, s3://bucket/a@b: no such object")
    'http://***@host/x, s3://bucket/a@b: no such object'
    >>> without_passwords("https://me:se/cr@et@host/x, http://host:80/a@b")
    'https://***@host/x, http://host:80/a@b'
    """
    return _USER.sub(r"\1***@", text)


def _text(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
