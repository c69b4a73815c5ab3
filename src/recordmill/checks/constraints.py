"""Statistics of a data set against what `Rules` expect of its figures: presence, ranges, values, shares, classes, and
the sizes of its splits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from recordmill.base.option_names import option
from recordmill.checks.rules import Bounds, ClassRules, FeatureRules, Rules
from recordmill.checks.violations import Violation, percent, value_name
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_statistics import DatasetStatistics, FeatureStatistics


def constraints(statistics: DatasetStatistics, schema: Schema, rules: Rules) -> Iterator[Violation]:
    """What is not as the rules say, which are fitted to the schema (`Rules.fitted`)."""
    total = sum(statistics.records.values())
    for split, bounds in rules.splits.items():
        share = statistics.records.get(split, 0) / max(total, 1)
        if not _is_within(share, bounds):
            what = f"has {percent(share)} of the records, outside {_span(bounds, percent)}"
            remedy = f"give other {option('splits')}, or mend the rule"
            yield Violation("splits", what, remedy, None, split, share, _span(bounds))
    for split, features in statistics.items():
        records = statistics.records[split]
        if rules.records is not None and not _is_within(records, rules.records):
            what = f"{records:,} records are outside {_span(rules.records)}"
            remedy = "look whether inputs are missing, or doubled"
            yield Violation("records", what, remedy, None, split, records, _span(rules.records))
        for name, own in rules.features.items():
            if name in features:
                yield from _Constraints(features[name], schema[name], split, own).all()
        if rules.classes is not None and schema.label is not None:
            yield from _balance(features[schema.label], schema[schema.label], split, rules.classes)


class _Constraints:
    """Those of one feature in one split."""

    def __init__(self, one: FeatureStatistics, feature: Feature, split: str, rules: FeatureRules) -> None:
        self.one, self.feature, self.split, self.rules = one, feature, split, rules

    def all(self) -> Iterator[Violation]:
        yield from self._presence()
        yield from self._range()
        yield from self._values()
        yield from self._shares()

    def _violation(self, check: str, what: str, remedy: str, figure: Any, threshold: Any) -> Violation:
        return Violation(check, what, remedy, self.feature.name, self.split, figure, threshold)

    def _presence(self) -> Iterator[Violation]:
        total = self.one.present + self.one.missing
        share, least = self.one.present / max(total, 1), self.rules.present
        if least is not None and share < least:
            what = f"{percent(share)} of the records have it ({self.one.missing:,} lack it), below {percent(least)}"
            yield self._violation("presence", what, "mend the inputs that lack it", share, least)

    def _range(self) -> Iterator[Violation]:
        one, rules = self.one, self.rules
        for figure, bound, is_low in ((one.min, rules.min, True), (one.max, rules.max, False)):
            if figure is None or bound is None or (figure >= bound if is_low else figure <= bound):
                continue
            sign, other = ("<", "below") if is_low else (">", "above")
            what = f"the {'least' if is_low else 'greatest'} value is {_shown(figure)}, {other} {bound}"
            remedy = f'see such records by `recordmill.open(OUT, where="{self.feature.name} {sign} {bound}")`'
            yield self._violation("range", what, remedy, figure, bound)
        infinite = one.values - one.finite - one.nans
        if infinite and one.type == "FLOAT" and (rules.min is not None or rules.max is not None):
            what, bound = f"{infinite:,} values are infinite", rules.max if rules.min is None else rules.min
            yield self._violation("range", what, "leave them out, or clip them by a transform", infinite, bound)
        if rules.mean is not None and one.mean is not None and not _is_within(one.mean, rules.mean):
            what = f"the mean is {one.mean:.6g}, outside {_span(rules.mean)}"
            yield self._violation("mean", what, "look for a changed unit or source", one.mean, _span(rules.mean))
        for name, count, most in (("zeros", one.zeros, rules.zeros), ("nan", one.nans, rules.nan)):
            share = count / max(one.values, 1)
            if most is not None and share > most:
                what = (
                    f"{percent(share)} of the values are {'zero' if name == 'zeros' else 'NaN'}, above {percent(most)}"
                )
                yield self._violation(name, what, "mend the inputs, or leave such records out", share, most)

    def _values(self) -> Iterator[Violation]:
        one, rules = self.one, self.rules
        if rules.distinct is not None and one.distinct is not None and not _is_within(one.distinct, rules.distinct):
            what = f"there are {one.distinct:,} distinct values, outside {_span(rules.distinct)}"
            yield self._violation(
                "distinct", what, "look at them by `recordmill stats`", one.distinct, _span(rules.distinct)
            )
        if rules.values is None or not one.values:
            return
        inside = sum(count for value, count in one.top_values.items() if value in rules.values)
        share = max(one.values - inside, 0) / one.values
        if not one.top_values:  # too many to be listed, which is more than the rule's
            share = 1.0 if (one.distinct or 0) > len(rules.values) else 0.0
        if share > rules.other_values:
            others = [value_name(self.feature, value) for value in one.top_values if value not in rules.values][:3]
            example = f", such as {', '.join(others)}," if others else ""
            most = percent(rules.other_values)
            what = f"{percent(share)} of the values{example} are none of those expected, above {most}"
            yield self._violation("values", what, "mend them, or add them to the values", share, rules.other_values)

    def _shares(self) -> Iterator[Violation]:
        for value, bounds in self.rules.shares.items():
            share = self.one.top_values.get(value, 0) / max(self.one.values, 1)
            if not _is_within(share, bounds):
                name, remedy = value_name(self.feature, value), "look for records that are missing or doubled"
                what = f"{name} is {percent(share)} of the values, outside {_span(bounds, percent)}"
                yield self._violation("shares", what, remedy, share, _span(bounds))


def _balance(one: FeatureStatistics, label: Feature, split: str, rules: ClassRules) -> Iterator[Violation]:
    """Classes without a record count as those that have none."""
    counts = dict.fromkeys(map(str, range(len(label.classes or ()))), 0) | dict(one.top_values)
    if not counts:
        return
    remedy = "add records of it, leave some of the others out, or weigh them by `ds.class_weights()`"
    most, total = max(counts.values()), max(sum(counts.values()), 1)
    for value, count in sorted(counts.items(), key=lambda item: item[1]):
        name = f"class {value_name(label, value)}"
        share, ratio = count / total, most / count if count else float("inf")
        for figure, threshold, is_low, shown, what in (
            (share, rules.min_share, True, percent, f"{name} has {percent(share)} of the records"),
            (count, rules.min_records, True, _plain, f"{name} has {count:,} records"),
            (ratio, rules.max_ratio, False, _plain, f"{name} is {ratio:.4g} times rarer than the most frequent one"),
        ):
            if threshold is not None and (figure < threshold if is_low else figure > threshold):
                bound = f"{what}, {'below' if is_low else 'above'} {shown(threshold)}"
                yield Violation("classes", bound, remedy, label.name, split, _json_number(figure), threshold)


def _shown(figure: float) -> str:
    return str(figure) if isinstance(figure, int) else f"{figure:.9g}"


def _plain(figure: float) -> str:
    return f"{figure:g}"


def _json_number(figure: float) -> float | str:
    return "inf" if figure == float("inf") else figure


def _is_within(figure: float, bounds: Bounds) -> bool:
    low, high = bounds
    return (low is None or figure >= low) and (high is None or figure <= high)


def _span(bounds: Bounds, shown: Any = str) -> str:
    low, high = ("any" if bound is None else shown(bound) for bound in bounds)
    return f"{low} to {high}"
