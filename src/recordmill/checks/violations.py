"""The result of a failed check."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from recordmill.base.messages import Message
from recordmill.schemas.feature import Feature
from recordmill.statistics.feature_statistics import format_value


@dataclass(frozen=True)
class Violation:
    """A rule that is broken, or that can't be judged from the statistics.

    Attributes:
        check: Name of the check, such as "drift".
        what: The problem, as a part of a sentence that does not repeat the other fields.
        remedy: Advice for the user.
        feature: Name of the feature. None if the check is not about a feature.
        split: Name of the split. None if the check is not about one split.
        figure: The value that breaks the rule, or None.
        threshold: The limit of `figure`, or None.
        file: Path of the file with the record, or None.
        record: Number of the record in `file`, counted from 0, or None.
        is_judged: False if the statistics are too inaccurate to judge the rule.
    """

    check: str
    what: str
    remedy: str
    feature: str | None = None
    split: str | None = None
    figure: float | str | None = None
    threshold: float | str | None = None
    file: str | None = None
    record: int | None = None
    is_judged: bool = True

    @property
    def text(self) -> str:
        """The violation as one line, for `render`.

        >>> print(Violation("presence", "12.5 % lack it", "mend them", "fare", "train"))
        train: feature 'fare': presence: 12.5 % lack it; mend them
        """
        places = [
            None
            if self.file is None
            else f"{self.file}{'' if self.record is None else f', record {self.record}'}",
            self.split,
            None if self.feature is None else f"feature {self.feature!r}",
            self.check,
        ]
        return Message(
            "{place}: {what}; {remedy}",
            place=": ".join(place for place in places if place),
            what=self.what,
            remedy=self.remedy,
        )

    def __str__(self) -> str:
        return str(self.text)

    def to_json(self) -> dict[str, Any]:
        """Returns all fields by name, for the option `--json`."""
        return asdict(self)


def quote_counted_value(feature: Feature, value: str) -> str:
    """Returns a value of statistics in quotes, for messages, in the form of `format_value`.

    Args:
        value: The value as text, in the form that statistics contain. "3" is class number 3.
    """
    return repr(format_value(value, feature) if value else value)
