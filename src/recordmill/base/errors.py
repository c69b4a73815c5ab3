"""Errors and rejects that all rooms share.

`ValueError` and `TypeError` have their usual meaning in Python: a mistake of the caller. Errors in
the *data* are a `DataError`. A single record that can't be used is a `Reject`: it is not raised but
counted, written down and reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from recordmill.base.option_names import redact_passwords


class RecordmillError(Exception):
    """Base class of our errors.

    The command line prints them as one line, without a traceback. Passwords in URLs are redacted.
    """

    def __str__(self) -> str:
        return redact_passwords(super().__str__())


class DataError(RecordmillError, ValueError):
    """An error in the data, with its place.

    Args:
        reason: The error itself.
        source: The name of the file or input, or "".
        place: Where in the source the error is, such as a record and byte, or "".

    >>> str(DataError("the length exceeds the 4 bytes left", source="a.tfrecord", place="byte 0"))
    'a.tfrecord: byte 0: the length exceeds the 4 bytes left'
    """

    def __init__(self, reason: str, *, source: str = "", place: str = "") -> None:
        super().__init__(": ".join(part for part in (source, place, reason) if part))
        self.reason, self.source, self.place = reason, source, place

    def __reduce__(self) -> tuple[object, ...]:
        return partial(DataError, source=self.source, place=self.place), (self.reason,)


class UsageError(RecordmillError, ValueError):
    """An option or an input that is not supported.

    The message contains a correct value to type instead.
    """


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
        super().__init__(f"{needed_for} needs {module}, which is not installed: {command}")


OUT_OF_MEMORY_REASON = "memory"  # the reason of a reject that takes more of it than there is


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

    def __str__(self) -> str:
        location = f"{self.source}: {self.place}" if self.place else self.source
        return redact_passwords(f"{location}: {self.message}")
