"""`Violation`: one thing that is not as it is expected to be, with its figure, the threshold that it passes, its place
and what to do.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from recordmill.base.option_names import spelled
from recordmill.schemas.feature import Feature


@dataclass(frozen=True)
class Violation:
    """check: what was looked at, such as `drift`. what: what is not so, a sentence without its figure's place.
    feature, split, file, record: where, as far as it has a place; record: its number in the file, from 0.
    figure, threshold: what was found, and what it may be at most, or at least. remedy: what to do.
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

    def __str__(self) -> str:
        """
        >>> print(Violation("presence", "12.5 % of the records lack it", "mend them", "fare", "train"))
        train: feature 'fare': presence: 12.5 % of the records lack it; mend them
        """
        places = [
            None if self.file is None else f"{self.file}{'' if self.record is None else f', record {self.record}'}",
            self.split,
            None if self.feature is None else f"feature {self.feature!r}",
            self.check,
        ]
        return spelled(f"{': '.join(place for place in places if place)}: {self.what}; {self.remedy}")

    def to_json(self) -> dict[str, Any]:
        """All of it, for `--json`."""
        return {name: spelled(value) if isinstance(value, str) else value for name, value in asdict(self).items()}

    def for_caller(self) -> Violation:
        """The same with options as who called writes them, also in its fields."""
        return replace(self, what=spelled(self.what), remedy=spelled(self.remedy))


def value_name(feature: Feature, value: str) -> str:
    """A value of a feature as statistics name it, for people: a class by its name."""
    classes = feature.classes
    is_class = classes is not None and value.isdigit() and int(value) < len(classes)
    return repr(classes[int(value)] if classes is not None and is_class else value)


def percent(share: float) -> str:
    """
    >>> percent(0.0312)
    '3.12 %'
    """
    return f"{100 * share:.4g} %"
