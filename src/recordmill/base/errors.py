"""The errors and rejects that every room shares, and how a missing package is installed.

`ValueError` and `TypeError` stay what they are in Python: a caller's mistake. What is wrong with the *data* is a
`DataError`, and one record that can't be used is a `Reject`, which is data: it is counted, written down and reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from recordmill.base.option_names import redact_passwords


class RecordmillError(Exception):
    """Base of the errors that the command line prints as one line, without a traceback."""

    def __str__(self) -> str:
        return redact_passwords(super().__str__())


class DataError(RecordmillError, ValueError):
    """Data that can't be used, with the place where it stands.

    >>> str(DataError("length 1099511627776 exceeds the 4 bytes left", source="a.tfrecord", place="record 0, byte 0"))
    'a.tfrecord: record 0, byte 0: length 1099511627776 exceeds the 4 bytes left'
    """

    def __init__(self, reason: str, *, source: str = "", place: str = "") -> None:
        super().__init__(": ".join(part for part in (source, place, reason) if part))
        self.reason, self.source, self.place = reason, source, place

    def __reduce__(self) -> tuple[object, ...]:
        return partial(DataError, source=self.source, place=self.place), (self.reason,)


class UsageError(RecordmillError, ValueError):
    """An option or an input that can't be served; the message says what to type instead."""


class MissingExtraError(RecordmillError, ImportError):
    """A package of an optional extra is not installed.

    >>> str(MissingExtraError("--where", "sql", "duckdb"))
    '--where needs duckdb, which is not installed: pip install "recordmill[sql]" (in a checkout: pip install ".[sql]")'
    """

    def __init__(self, needed_for: str, extra: str, module: str) -> None:
        command = f'pip install "recordmill[{extra}]" (in a checkout: pip install ".[{extra}]")'
        super().__init__(f"{needed_for} needs {module}, which is not installed: {command}")


OUT_OF_MEMORY_REASON = "memory"  # the reason of a reject that takes more of it than there is


@dataclass(frozen=True)
class Reject:
    """Record that can't be used.

    Attributes:
        source: the input's name relative to its root, with `/`.
        place: where in the source, for people: `line 17`, `record 3, byte 1042`; empty for a file that is one record.
        reason: a short machine-readable class such as `truncated`, `columns`, `type`, by which rejects are counted.
        message: what is wrong and, where there is one, the remedy, in under 300 characters.
    """

    source: str
    place: str
    reason: str
    message: str

    def __str__(self) -> str:
        location = f"{self.source}: {self.place}" if self.place else self.source
        return redact_passwords(f"{location}: {self.message}")
