"""Words for messages: options, and suggestions for unknown names.

Messages name an option as a Python keyword, as in `max_rejects="1%"`. The command line prints its
flag instead, see `recordmill.base.messages`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from recordmill.base.messages import OptionMention

# Smallest ratio of difflib: two swapped letters in a word of three, a missing or an extra ending.
_MIN_SIMILARITY = 0.6
# Smallest ratio for words with different first letters. It is higher, because the first letter is
# seldom mistyped.
_MIN_SIMILARITY_OTHER_INITIAL = 0.75


def option(name: str, value: object = None) -> OptionMention:
    """Returns an option for a message, optionally with a value.

    The option must be a field of the message. The command line then prints its flag.

    >>> from recordmill.base.messages import Message
    >>> Message("{option} allows that", option=option("max_rejects", "1%"))
    'max_rejects="1%" allows that'
    >>> option("dtypes", {"latitude": "float64"}), option("label")
    ('dtypes={"latitude": "float64"}', 'label=')
    """
    return OptionMention(name, os.fspath(value) if isinstance(value, os.PathLike) else value)


def closest_name(word: object, known_names: Iterable[str]) -> str | None:
    """Returns the known name that is most similar to `word`, or None.

    Case and leading dashes are ignored.

    >>> closest_name("cvs", ["images", "csv", "text"]), closest_name("numpy", ["parquet", "npy"])
    ('csv', 'npy')
    >>> closest_name("x", ["csv"]) is None
    True
    >>> closest_name("--append", ["--sample"]), closest_name("--verwrite", ["--overwrite"])
    (None, '--overwrite')
    >>> closest_name("--wiht", ["--weight", "--with"]), closest_name(1, ["1st"])
    ('--with', None)
    """
    import difflib  # imported here because only error messages need it

    word = str(word).lower().lstrip("-")
    by_lower = {name.lower().lstrip("-"): name for name in known_names}
    # At most three candidates, the most similar first.
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
    # Swapped letters are the most likely mistake, but difflib prefers the longer of two names.
    swapped = [name for name in near if sorted(name) == sorted(word)]
    return by_lower[(swapped or near)[0]] if near else None


def did_you_mean(word: object, known_names: Iterable[str]) -> str:
    """Returns a suggestion to append to a message.

    The suggestion is "" if no name is similar.

    >>> did_you_mean("Y", ["x", "y"]), did_you_mean("7", ["x", "y"])
    ('; did you mean y?', '')
    """
    name = closest_name(word, known_names)
    return "" if name is None else f"; did you mean {name}?"


def available_names(word: object, known_names: Iterable[str]) -> str:
    """Returns the known names for a message, with a suggestion for an unknown word.

    >>> available_names("prise", ["price", "name"])
    'there are price, name; did you mean price?'
    """
    names = tuple(known_names)
    return f"there are {', '.join(names) or 'none'}{did_you_mean(word, names)}"
