"""Errors and rejects that all packages share.

`ValueError` and `TypeError` have their usual meaning in Python: a mistake of the caller. Errors in
the *data* are a `DataError`. A single record that can't be used is a `Reject`: it is not raised but
counted, written down and reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from recordmill.base.messages import Message, redact_passwords, refuse_format


class RecordmillError(Exception):
    """Base class of our errors.

    The command line prints them as one line, without a traceback. Passwords in URLs are redacted.

    >>> from recordmill.base.option_names import option
    >>> print(UsageError("{memory}: at least {least}MiB", memory=option("memory", 1), least=9))
    memory=1: at least 9MiB

    Args:
        message: A template with a `{name}` for each field. Without fields it is the message itself,
            and braces have no meaning.
        **fields: The values of the names. Options, other messages and errors keep their parts, so
            that the command line prints the flags of options.

    Attributes:
        text: The message with its parts, for `recordmill.base.messages.render`.
    """

    def __init__(self, message: str = "", /, **fields: object) -> None:
        self.text = Message(message, **fields) if fields else message
        super().__init__(self.text)

    def __str__(self) -> str:
        return redact_passwords(str(self.text))

    def __format__(self, spec: str) -> str:
        refuse_format(self.text)
        return format(str(self), spec)


class DataError(RecordmillError, ValueError):
    """An error in the data, with its place.

    Args:
        reason: The error itself, or its template.
        source: The name of the file or input, or "".
        place: Where in the source the error is, such as a record and byte, or "".
        **fields: The values of the template's names, see `RecordmillError`.

    >>> str(DataError("the length exceeds the 4 bytes left", source="a.tfrecord", place="byte 0"))
    'a.tfrecord: byte 0: the length exceeds the 4 bytes left'
    """

    def __init__(
        self, reason: str, /, *, source: str = "", place: str = "", **fields: object
    ) -> None:
        self.reason = Message(reason, **fields) if fields else reason
        self.source, self.place = source, place
        parts = {"source": source, "place": place, "reason": self.reason}
        set_parts = {name: part for name, part in parts.items() if part}
        super().__init__(": ".join(f"{{{name}}}" for name in set_parts), **set_parts)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(DataError, source=self.source, place=self.place), (self.reason,)


class UsageError(RecordmillError, ValueError):
    """An option or an input that is not supported.

    The message contains a correct value to type instead.
    """


class WrongTypeError(UsageError, TypeError):
    """An argument of a Python call that has the wrong type."""


class MissingExtraError(RecordmillError, ImportError):
    """A package of an optional extra is not installed.

    Args:
        needed_for: The option or feature that needs the package.
        extra: The extra of recordmill that installs it.
        module: The missing package.

    >>> print(MissingExtraError("--where", "sql", "duckdb"))  # doctest: +ELLIPSIS
    --where needs duckdb, which is not installed: pip install "recordmill[sql]" ...
    """

    def __init__(self, needed_for: str, extra: str, module: str) -> None:
        command = f'pip install "recordmill[{extra}]" (in a checkout: pip install ".[{extra}]")'
        super().__init__(
            "{needed_for} needs {module}, which is not installed: {command}",
            needed_for=needed_for,
            module=module,
            command=command,
        )
        self._arguments = needed_for, extra, module

    # The default would pass the message alone to `__init__`, and fail on another process.
    def __reduce__(self) -> tuple[object, ...]:
        return MissingExtraError, self._arguments


class DataWarning(UserWarning):
    """A warning about data that can be read and may be incomplete.

    The command line prints it as a note.
    """


OUT_OF_MEMORY_REASON = "memory"  # the reason of a reject that needs more memory than allowed


@dataclass(frozen=True)
class Reject:
    """An unusable record, with its place and the reason.

    Attributes:
        source: Name of the input relative to its root, with `/`.
        place: Where in the source the record is, for users: `line 17`, `record 3, byte 1042`. Empty
            if the file is one record.
        reason: A short machine-readable class such as `truncated`, `columns` or `type`. Rejects are
            counted by it.
        message: The error, and its remedy if possible, in less than 300 characters.
    """

    source: str
    place: str
    reason: str
    message: str

    @property
    def text(self) -> str:
        """The message with its place, and with its parts."""
        template = "{source}: {place}: {message}" if self.place else "{source}: {message}"
        return Message(template, source=self.source, place=self.place, message=self.message)

    def __str__(self) -> str:
        return redact_passwords(str(self.text))

    def __format__(self, spec: str) -> str:
        refuse_format(self.text)
        return format(str(self), spec)


class Fault(NamedTuple):
    """The reason why a record can't be used, until its place is known.

    Attributes:
        reason: The class of the error, see `Reject`.
        message: The error, see `Reject`.
    """

    reason: str
    message: str

    def at(self, source: str, place: str) -> Reject:
        """Returns the reject of the record at this place."""
        return Reject(source, place, self.reason, self.message)
