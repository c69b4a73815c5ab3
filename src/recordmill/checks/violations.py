"""Defines `Violation`: a thing that is not as it is expected to be, with its figure, the threshold that it passes, its
place and what to do.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from recordmill.schemas.feature import Feature


@dataclass(frozen=True)
class Violation:
    """A thing that is not as it is expected to be, or of which that can't be judged.

    Attributes:
        check: The name of the check, such as `drift`.
        what: A sentence that says what is wrong, without its place.
        remedy: The way to mend it.
        feature: The feature that it concerns, if it is one.
        split: The split, if it is one.
        figure: The value that was found.
        threshold: The most, or the least, that the figure may be.
        file: The file, if it is one.
        record: The number of the record in the file, from 0.
        is_judged: False where the statistics can't tell whether the rule is kept.
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
        """
        >>> print(Violation("presence", "12.5 % of the records lack it", "mend them", "fare", "train"))
        train: feature 'fare': presence: 12.5 % of the records lack it; mend them
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
    """Returns the name for people of a value as statistics name it: that of a class."""
    classes = feature.classes
    is_class = classes is not None and value.isdigit() and int(value) < len(classes)
    return repr(classes[int(value)] if classes is not None and is_class else value)
