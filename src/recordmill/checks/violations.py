"""`Violation`: the result of a check that failed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from recordmill.schemas.feature import Feature


@dataclass(frozen=True)
class Violation:
    """A broken expectation, or an expectation that can't be judged.

    Attributes:
        check: Name of the check, such as `drift`.
        what: The problem as a sentence, without its place.
        remedy: The advice to the user.
        feature: Name of the feature, or None.
        split: Name of the split, or None.
        figure: The value that was found.
        threshold: The limit of the figure.
        file: Path of the file, or None.
        record: Number of the record in the file, from 0.
        is_judged: False if the statistics are not exact enough to judge the rule.
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

    def __str__(self) -> str:
        """Returns the violation as one line for users.

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
        return f"{': '.join(place for place in places if place)}: {self.what}; {self.remedy}"

    def to_json(self) -> dict[str, Any]:
        """Returns all fields, for `--json`."""
        return asdict(self)


def format_value(feature: Feature, value: str) -> str:
    """Returns a value of statistics for messages, with the name of a class number."""
    classes = feature.classes
    is_class = classes is not None and value.isdigit() and int(value) < len(classes)
    return repr(classes[int(value)] if classes is not None and is_class else value)
