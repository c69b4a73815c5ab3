"""Words of messages: options as keywords, `max_rejects="1%"`, for which the command line prints its flags; and the
known name that was probably meant by an unknown one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable

# what a password holds that should have been written %2F, %3F, %23 or %40 is part of it, unless a port stands there
_CREDENTIALS = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/?#\s@:'\"]*:(?!\d*[/?#])[^\s'\"]*|[^/?#\s'\"]*)@"
)
_MIN_SIMILARITY = (
    0.6  # of difflib's ratio: two letters swapped in a word of three, an ending too few or too many
)
_MIN_SIMILARITY_OTHER_INITIAL = 0.75  # where the first letters differ, which people seldom mistype


def option(name: str, value: object = None) -> str:
    """The option of that keyword, with a value that a user gave or is to give.

    >>> f"{option('max_rejects', '1%')} allows that, {option('shuffle', False)} does not"
    'max_rejects="1%" allows that, shuffle=False does not'
    >>> f"{option('dtypes', {'latitude': 'float64'})} keeps it, {option('label')} names a column"
    'dtypes={"latitude": "float64"} keeps it, label= names a column'
    """
    if value is None:
        return f"{name}="
    return f"{name}={value if isinstance(value, bool) else json.dumps(value, ensure_ascii=False, default=_json_text)}"


def redact_passwords(text: str) -> str:
    """The text without users and passwords of URLs in it.

    >>> redact_passwords("http://me:secret@host/x, s3://bucket/a@b: no such object")
    'http://***@host/x, s3://bucket/a@b: no such object'
    >>> redact_passwords("https://me:se/cr@et@host/x, http://host:80/a@b")
    'https://***@host/x, http://host:80/a@b'
    """
    return _CREDENTIALS.sub(r"\1***@", text)


def _json_text(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def closest_name(word: object, known_names: Iterable[str]) -> str | None:
    """The known word that is most like this one, or None if none is.

    >>> closest_name("cvs", ["images", "csv", "text"]), closest_name("numpy", ["parquet", "npy"]), closest_name("x", ["csv"])
    ('csv', 'npy', None)
    >>> closest_name("--append", ["--sample"]), closest_name("--verwrite", ["--overwrite"])
    (None, '--overwrite')
    >>> closest_name("--wiht", ["--weight", "--with"]), closest_name(1, ["1st"])
    ('--with', None)
    """
    import difflib  # only an error needs it

    word = str(word).lower().lstrip("-")
    by_lower = {name.lower().lstrip("-"): name for name in known_names}
    near = [
        name
        for name in difflib.get_close_matches(word, by_lower, 3, _MIN_SIMILARITY)
        if name[:1] == word[:1]
        or difflib.SequenceMatcher(None, word, name).ratio() >= _MIN_SIMILARITY_OTHER_INITIAL
    ]
    if not near and len(word) > 2:
        near = [
            name for name in by_lower if len(name) > 2 and (name.startswith(word) or name in word)
        ]
    swapped = [
        name for name in near if sorted(name) == sorted(word)
    ]  # difflib prefers the longer of two
    return by_lower[(swapped or near)[0]] if near else None


def did_you_mean(word: object, known_names: Iterable[str]) -> str:
    """Returns `; did you mean csv?`, to be put after a message, or nothing.

    >>> did_you_mean("Y", ["x", "y"]), did_you_mean("7", ["x", "y"])
    ('; did you mean y?', '')
    """
    name = closest_name(word, known_names)
    return "" if name is None else f"; did you mean {name}?"


def available_names(word: object, known_names: Iterable[str]) -> str:
    """Returns the names that there are, and which of them was probably meant.

    >>> available_names("prise", ["price", "name"])
    'there are price, name; did you mean price?'
    """
    names = tuple(known_names)
    return f"there are {', '.join(names) or 'none'}{did_you_mean(word, names)}"
