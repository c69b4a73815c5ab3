"""Messages that keep their template, its fields and the named options.

A message is a `str` in Python's spelling, as in `max_rejects="1%" allows more`. It also keeps its
template and fields, so that the command line can write its own flags for the options. The text of a
message is never parsed: file names, columns and values that look like options stay as they are.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# Tests set it. An f-string over a message with options is then an error, because it would drop the
# parts, and the command line would print a keyword instead of a flag.
STRICT = False

# The user and password of a URL. A password may contain characters that should have been written as
# %2F, %3F, %23 or %40. They are redacted too, unless the text after the colon is a port.
_CREDENTIALS = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/?#\s@:'\"]*:(?!\d*[/?#])[^\s'\"]*|[^/?#\s'\"]*)@"
)


def redact_passwords(text: str) -> str:
    """Returns the text with the users and passwords of all URLs replaced by `***`.

    >>> redact_passwords("http://me:secret@host/x, s3://bucket/a@b: no such object")
    'http://***@host/x, s3://bucket/a@b: no such object'
    >>> redact_passwords("https://me:se/cr@et@host/x, http://host:80/a@b")
    'https://***@host/x, http://host:80/a@b'
    """
    return _CREDENTIALS.sub(r"\1***@", text)


class _TextWithParts(str):
    """A text that would lose its parts in an f-string or by `+`.

    In tests, both uses are errors.
    """

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        refuse_format(self)
        return format(str.__str__(self), spec)

    def __add__(self, other: str) -> str:
        refuse_format(self)
        refuse_format(other)
        return str.__str__(self) + str.__str__(other)

    def __radd__(self, other: str) -> str:
        refuse_format(self)
        return str.__str__(other) + str.__str__(self)


class OptionMention(_TextWithParts):
    """An option in a message, in Python's spelling.

    >>> OptionMention("max_rejects", "1%"), OptionMention("shuffle", False), OptionMention("label")
    ('max_rejects="1%"', 'shuffle=False', 'label=')

    Attributes:
        name: The keyword.
        value: The value, or None if the message names the option only.
    """

    __slots__ = ("name", "value")
    name: str
    value: object

    def __new__(cls, name: str, value: object = None) -> OptionMention:
        if value is None:
            shown = ""
        elif isinstance(value, bool):
            shown = str(value)
        else:
            shown = json.dumps(value, ensure_ascii=False, default=_json_text)
        self = super().__new__(cls, f"{name}={shown}")
        self.name, self.value = name, value
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return OptionMention, (self.name, self.value)


Spelling = Callable[
    [OptionMention], str
]  # writes an option as a keyword, or as a flag of a command


class Message(_TextWithParts):
    """A text with fields, in Python's spelling.

    A message is a `str`, so it can be compared, printed and written as JSON. Only `render` uses its
    parts.

    >>> message = Message("{seed}: {file} stays", seed=OptionMention("seed", 3), file="seed=3.csv")
    >>> message
    'seed=3: seed=3.csv stays'
    >>> message.render(lambda option: f"--{option.name} {option.value}")
    '--seed 3: seed=3.csv stays'

    Attributes:
        template: The text with a `{name}` for each field.
        fields: The values of the names. They are plain data, so that a message can be pickled.
    """

    template: str
    fields: Mapping[str, object]

    def __new__(cls, template: str, /, **fields: object) -> Message:
        plain = {name: _plain(value) for name, value in fields.items()}
        self = super().__new__(cls, _fill(template, plain, str))
        self.template, self.fields = template, plain
        return self

    def render(self, spelling: Spelling) -> str:
        """Returns the text with each option in this spelling."""
        return _fill(self.template, self.fields, spelling)

    def mentions(self) -> list[OptionMention]:
        """Returns the options that the message names, in the order of its fields."""
        mentions: list[OptionMention] = []
        for value in self.fields.values():
            if isinstance(value, OptionMention):
                mentions.append(value)
            elif isinstance(value, Message):
                mentions += value.mentions()
        return mentions

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_message, (self.template, dict(self.fields))


def as_message(value: object) -> str:
    """Returns the message of an error, a reject or a finding, with its parts.

    These objects have the message in their attribute `text`. Any other value is its own message.
    """
    text = getattr(value, "text", value)
    return text if isinstance(text, str) else str(text)


def render(value: object, spelling: Spelling) -> str:
    """Returns a message with its options in this spelling, and without passwords.

    Args:
        value: A message, or an object with a message, see `as_message`.
    """
    message = as_message(value)
    return redact_passwords(
        message.render(spelling)
        if isinstance(message, Message)
        else spelling(message)
        if isinstance(message, OptionMention)
        else message
    )


def join_messages(separator: str, parts: Iterable[object]) -> Message:
    """Joins messages, options or texts to one message.

    >>> join_messages(" or ", [OptionMention("seed"), "nothing"])
    'seed= or nothing'
    """
    fields = {f"part{number}": part for number, part in enumerate(parts)}
    separator = separator.replace("{", "{{").replace("}", "}}")
    return Message(separator.join(f"{{{name}}}" for name in fields), **fields)


def shorten(message: str, max_chars: int) -> str:
    """Returns the message, or its first `max_chars` characters without its parts."""
    return message if len(message) <= max_chars else str(message)[:max_chars]


def refuse_format(text: str) -> None:
    """Raises TypeError in tests if `text` names options, which an f-string would not keep."""
    has_options = isinstance(text, OptionMention) or (isinstance(text, Message) and text.mentions())
    if STRICT and has_options:
        raise TypeError(
            f"the parts of {str.__str__(text)!r} would be lost: give it to an error or a Message as a field"
        )


def _make_message(template: str, fields: Mapping[str, object]) -> Message:
    return Message(template, **fields)


def _plain(value: object) -> object:
    # Exceptions, rejects and other objects are replaced by their message, because they may not be
    # picklable.
    if isinstance(value, str | int | float) or value is None:
        return value
    return as_message(value)


def _fill(template: str, fields: Mapping[str, object], spelling: Spelling) -> str:
    # A field is inserted as it is. Its text is never searched.
    return template.format_map({name: _show(value, spelling) for name, value in fields.items()})


def _show(value: object, spelling: Spelling) -> str:
    if isinstance(value, OptionMention):
        return spelling(value)
    return value.render(spelling) if isinstance(value, Message) else str(value)


def _json_text(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
