"""Compares statistics of a data set with what `Rules` expect of its figures: presence, ranges, values, shares, classes,
and the sizes of its splits.

Figures that the statistics know within bounds are judged by these: a rule that they neither keep nor break for certain
gives a `Violation` that is not judged.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from recordmill.base.errors import RecordmillError, UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import format_percent
from recordmill.checks.comparison import skew
from recordmill.checks.rules import Bounds, ClassRules, FeatureRules, Rules, Thresholds, read_rules
from recordmill.checks.violations import Violation, value_name
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_statistics import DatasetStatistics, FeatureStatistics

Interval = tuple[float, float]  # the least and the most that a figure can be

_SIGMAS = 5.0  # of an estimate's standard error: it is further off once in 1.7 million times


def constraints(statistics: DatasetStatistics, schema: Schema, rules: Rules) -> Iterator[Violation]:
    """Yields what is not as the rules say, which are fitted to the schema (`Rules.fitted`)."""
    total = sum(statistics.records.values())
    for split, bounds in rules.splits.items():
        share = statistics.records.get(split, 0) / max(total, 1)
        if not _is_within(share, bounds):
            what = f"has {format_percent(share)} of the records, outside {_range_text(bounds, format_percent)}"
            remedy = f"give other {option('splits')}, or mend the rule"
            yield Violation("splits", what, remedy, None, split, share, _range_text(bounds))
    for split, features in statistics.items():
        records = statistics.records[split]
        if rules.records is not None and not _is_within(records, rules.records):
            what = f"{records:,} records are outside {_range_text(rules.records)}"
            remedy = "look whether inputs are missing, or doubled"
            yield Violation(
                "records", what, remedy, None, split, records, _range_text(rules.records)
            )
        for name, own in rules.features.items():
            if name in features:
                yield from _Constraints(features[name], schema[name], split, own).all()
        if rules.classes is not None and schema.label is not None:
            yield from _balance(features[schema.label], schema[schema.label], split, rules.classes)


class _Constraints:
    """The rules of one feature in one split."""

    def __init__(
        self, one: FeatureStatistics, feature: Feature, split: str, rules: FeatureRules
    ) -> None:
        self.one, self.feature, self.split, self.rules = one, feature, split, rules

    def all(self) -> Iterator[Violation]:
        yield from self._presence()
        yield from self._range()
        yield from self._mean()
        yield from self._shares_of_numbers()
        yield from self._distinct()
        yield from self._values()
        yield from self._shares()

    def _violation(
        self, check: str, what: str, remedy: str, figure: Any, threshold: Any
    ) -> Violation:
        return Violation(check, what, remedy, self.feature.name, self.split, figure, threshold)

    def _unjudged(self, check: str, why: str, threshold: Any) -> Violation:
        return _unjudged(check, why, self.feature, self.split, threshold)

    def _presence(self) -> Iterator[Violation]:
        total = self.one.present + self.one.missing
        share, least = self.one.present / max(total, 1), self.rules.present
        if least is not None and share < least:
            what = f"{format_percent(share)} of the records have it ({self.one.missing:,} lack it), below {format_percent(least)}"
            yield self._violation("presence", what, "mend the inputs that lack it", share, least)

    def _range(self) -> Iterator[Violation]:
        one, rules = self.one, self.rules
        if rules.min is None and rules.max is None:
            return
        for figure, bound, is_low in ((one.min, rules.min, True), (one.max, rules.max, False)):
            if figure is None or bound is None or (figure >= bound if is_low else figure <= bound):
                continue
            sign, side = ("<", "below") if is_low else (">", "above")
            what = (
                f"the {'least' if is_low else 'greatest'} value is {_shown(figure)}, {side} {bound}"
            )
            condition = (
                f"{_sql_value(self.feature, 'list_min' if is_low else 'list_max')} {sign} {bound}"
            )
            remedy = f"see such records by `recordmill.open(OUT, where={condition!r})`"
            yield self._violation("range", what, remedy, figure, bound)
        infinite, bound = sum(one.infinities), rules.max if rules.min is None else rules.min
        if infinite:
            what = f"{infinite:,} values are infinite"
            yield self._violation(
                "range", what, "leave them out, or clip them by a transform", infinite, bound
            )
        elif one.values and not one.finite:
            yield self._violation("range", "all values are NaN", "mend the inputs", one.nans, bound)

    def _mean(self) -> Iterator[Violation]:
        bounds, mean = self.rules.mean, self.one.mean
        if bounds is None or (mean is not None and _is_within(mean, bounds)):
            return
        text, remedy = _range_text(bounds), "look for a changed unit or source"
        if mean is not None:
            yield self._violation(
                "mean", f"the mean is {mean:.6g}, outside {text}", remedy, mean, text
            )
        elif self.one.values:
            yield self._violation(
                "mean", f"no value is finite, so that no mean is within {text}", remedy, "nan", text
            )
        else:
            yield self._unjudged("mean", "there are no values", text)

    def _shares_of_numbers(self) -> Iterator[Violation]:
        one = self.one
        for name, count, most in (
            ("zeros", one.zeros, self.rules.zeros),
            ("nan", one.nans, self.rules.nan),
        ):
            share = count / max(one.values, 1)
            if most is not None and share > most:
                kind = "zero" if name == "zeros" else "NaN"
                what = f"{format_percent(share)} of the values are {kind}, above {format_percent(most)}"
                yield self._violation(
                    name, what, "mend the inputs, or leave such records out", share, most
                )

    def _distinct(self) -> Iterator[Violation]:
        bounds, distinct = self.rules.distinct, self.one.distinct
        if bounds is None:
            return
        text, interval = _range_text(bounds), _distinct_interval(self.one)
        if distinct is None:
            yield self._unjudged("distinct", "values of tensors are not counted", text)
        elif _is_outside(interval, bounds):
            what = f"there are {distinct:,} distinct values, outside {text}"
            yield self._violation(
                "distinct", what, "look at them by `recordmill stats`", distinct, text
            )
        elif not _is_inside(interval, bounds):
            why = f"of distinct values there are about {distinct:,}, within {interval[0]:,.0f} to {interval[1]:,.0f}"
            yield self._unjudged("distinct", why, text)

    def _values(self) -> Iterator[Violation]:
        one, wanted = self.one, self.rules.values
        if wanted is None or not one.values:
            return
        most = self.rules.other_values
        others = {value: count for value, count in one.top_values.items() if value not in wanted}
        unlisted = max(1 - sum(one.top_values.values()) / one.values, 0.0)
        in_unlisted = sum(value not in one.top_values for value in wanted) * one.unlisted
        low = _estimate(one, sum(others.values()) / one.values + max(unlisted - in_unlisted, 0.0))[
            0
        ]
        high = _estimate(one, sum(others.values()) / one.values + unlisted)[1]
        low = max(
            low, (_distinct_interval(one)[0] - len(set(wanted))) / one.values
        )  # at least one of each
        if low > most:
            names = [value_name(self.feature, value) for value in others][:3]
            example = f", such as {', '.join(names)}," if names else ""
            share = format_percent(low) if low == high else f"at least {format_percent(low)}"
            what = f"{share} of the values{example} are none of those expected, above {format_percent(most)}"
            yield self._violation("values", what, "mend them, or add them to the values", low, most)
        elif high > most:
            yield self._unjudged(
                "values", f"up to {format_percent(high)} of the values are not listed", most
            )

    def _shares(self) -> Iterator[Violation]:
        one = self.one
        for value, bounds in self.rules.shares.items():
            share, name, text = (
                one.top_values.get(value, 0) / max(one.values, 1),
                value_name(self.feature, value),
                _range_text(bounds, format_percent),
            )
            interval = _estimate(one, share) if value in one.top_values else (0.0, one.unlisted)
            if _is_outside(interval, bounds):
                what = f"{name} is {format_percent(share)} of the values, outside {text}"
                remedy = "look for records that are missing or doubled"
                yield self._violation("shares", what, remedy, share, _range_text(bounds))
            elif not _is_inside(interval, bounds):
                why = f"{name} is between {format_percent(interval[0])} and {format_percent(interval[1])} of the values"
                yield self._unjudged("shares", why, _range_text(bounds))


def _unjudged(check: str, why: str, feature: Feature, split: str, threshold: Any) -> Violation:
    what = f"can't be judged: {why}, as far as statistics tell"
    return Violation(
        check,
        what,
        "take the rule out, or widen it",
        feature.name,
        split,
        None,
        threshold,
        is_judged=False,
    )


def _balance(
    one: FeatureStatistics, label: Feature, split: str, rules: ClassRules
) -> Iterator[Violation]:
    """Compares the counts of classes; a class without a record counts as well."""
    counts = dict.fromkeys(map(str, range(len(label.classes or ()))), 0) | dict(one.top_values)
    if one.values and not one.lists_all_values:
        yield _unjudged("classes", "not all values of the label are listed", label, split, None)
        return
    if not counts:
        return
    remedy = (
        "add records of it, leave some of the others out, or weigh them by `ds.class_weights()`"
    )
    most, total = max(counts.values()), max(sum(counts.values()), 1)
    for value, count in sorted(counts.items(), key=lambda item: item[1]):
        name = f"class {value_name(label, value)}"
        share, ratio = count / total, most / count if count else float("inf")
        for figure, threshold, is_low, shown, what in (
            (
                share,
                rules.min_share,
                True,
                format_percent,
                f"{name} has {format_percent(share)} of the records",
            ),
            (count, rules.min_records, True, _plain, f"{name} has {count:,} records"),
            (
                ratio,
                rules.max_ratio,
                False,
                _plain,
                f"{name} is {ratio:.4g} times rarer than the most frequent one",
            ),
        ):
            if threshold is not None and (figure < threshold if is_low else figure > threshold):
                bound = f"{what}, {'below' if is_low else 'above'} {shown(threshold)}"
                shown_figure = figure if math.isfinite(figure) else "inf"
                yield Violation(
                    "classes", bound, remedy, label.name, split, shown_figure, threshold
                )


def _estimate(one: FeatureStatistics, share: float) -> Interval:
    """Returns the interval of a share: itself where counts are exact, else the score interval of Wilson (1927)."""
    if one.sampled is None:
        return share, share
    squares, share = _SIGMAS**2 / one.sampled, min(share, 1.0)
    middle = share + squares / 2
    width = math.sqrt(squares * share * (1 - share) + squares**2 / 4)
    return (middle - width) / (1 + squares), (middle + width) / (1 + squares)


def _distinct_interval(one: FeatureStatistics) -> Interval:
    error = _SIGMAS * (one.distinct_error or 0)
    distinct = float(one.distinct or 0)
    return max(distinct * (1 - error), 0.0), min(distinct * (1 + error), float(one.values))


def _sql_value(feature: Feature, reduce_list: str) -> str:
    """Returns the SQL of the feature's value or, where a record has several, of the one that reduce_list gives."""
    value, depth = (
        '"' + feature.name.replace('"', '""') + '"',
        feature.ragged_rank + bool(feature.inner_shape),
    )
    for _ in range(depth - 1):
        value = f"flatten({value})"
    return f"{reduce_list}({value})" if depth else value


def _shown(figure: float) -> str:
    return str(figure) if isinstance(figure, int) else f"{figure:.9g}"


def _plain(figure: float) -> str:
    return f"{figure:g}"


def _is_within(figure: float, bounds: Bounds) -> bool:
    return _is_inside((figure, figure), bounds)


def _is_inside(interval: Interval, bounds: Bounds) -> bool:
    low, high = bounds
    return (low is None or interval[0] >= low) and (high is None or interval[1] <= high)


def _is_outside(interval: Interval, bounds: Bounds) -> bool:
    low, high = bounds
    return (low is not None and interval[1] < low) or (high is not None and interval[0] > high)


def _range_text(bounds: Bounds, shown: Callable[[float], str] = str) -> str:
    low, high = ("any" if bound is None else shown(bound) for bound in bounds)
    return f"{low} to {high}"


_SHOWN = 20  # violations in the error


class ExpectationError(RecordmillError):
    """A build's records are not as they were expected to be; nothing was committed."""


def read_expectations(given: Mapping[str, Any] | str | os.PathLike[str]) -> Rules:
    """Reads the rules of `--expect`; UsageError where records or another data set would have to be read for one of
    them.
    """
    rules = read_rules(given, "expect")
    for name in ("leakage", "duplicates"):
        if getattr(rules, name):
            raise UsageError(
                f"{rules.source}: {name}: records are compared with each other once they are written; leave it out of "
                f"{option('expect')} and run recordmill check with {option('against', rules.source)} after the build"
            )
    if rules.drift != Thresholds() or any(own.drift is not None for own in rules.features.values()):
        raise UsageError(
            f"{rules.source}: drift: is of two data sets; leave it out of {option('expect')} and run recordmill check "
            f"with {option('against')} OTHER and {option('against', rules.source)} after the build"
        )
    return rules


def check_expectations(statistics: DatasetStatistics, schema: Schema, rules: Rules) -> None:
    """Raises ExpectationError, which names each feature, figure and threshold, where what a build has counted breaks
    its rules or they can't be judged.
    """
    violations = list(constraints(statistics, schema, rules))
    if rules.skew is not None or any(own.skew is not None for own in rules.features.values()):
        violations += skew(statistics, schema, rules)
    if violations:
        more = f"\n... and {len(violations) - _SHOWN} more" if len(violations) > _SHOWN else ""
        count = (
            "1 expectation is" if len(violations) == 1 else f"{len(violations)} expectations are"
        )
        lines = "\n".join(map(str, violations[:_SHOWN]))
        raise ExpectationError(f"{count} not met; nothing was committed:\n{lines}{more}")
