"""Checks of statistics against `Rules`.

The rules limit presence, ranges, values, shares, class counts and the sizes of splits. Statistics
are estimates for some figures, so a figure may only be known as an interval. If the interval
crosses the limit, it is unknown whether the rule is broken. The result is then a `Violation` with
`is_judged=False`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from recordmill.base.errors import RecordmillError, UsageError
from recordmill.base.messages import Message, join_messages
from recordmill.base.option_names import option
from recordmill.base.sizes import format_percent
from recordmill.checks.comparison import find_skew
from recordmill.checks.rules import (
    Bounds,
    ClassRules,
    FeatureRules,
    Rules,
    Threshold,
    read_rules,
)
from recordmill.checks.violations import Violation, quote_counted_value
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_statistics import DatasetStatistics
from recordmill.statistics.feature_statistics import FeatureStatistics

Interval = tuple[float, float]  # smallest and largest possible value of a figure

# Standard errors on each side of an estimate. The error is larger once in 1.7 million times.
_SIGMAS = 5.0


def find_violations(
    statistics: DatasetStatistics, schema: Schema, rules: Rules
) -> Iterator[Violation]:
    """Yields the violations that the statistics of one data set show.

    All rules are checked, apart from the thresholds for drift and skew and the limits of repeated
    records.

    Args:
        statistics: Statistics of the data set.
        schema: Schema of the data set.
        rules: The rules, from `Rules.fit_to_schema`.
    """
    total = sum(statistics.records.values())
    for split, bounds in rules.splits.items():
        share = statistics.records.get(split, 0) / max(total, 1)
        if not _is_within(share, bounds):
            message = f"has {format_percent(share)} of the records, outside {_format_range(bounds, format_percent)}"
            remedy: str = Message("use other {splits}, or change the rule", splits=option("splits"))
            yield Violation(
                "splits",
                message,
                remedy,
                split=split,
                figure=share,
                threshold=_format_range(bounds),
            )
    for split, features in statistics.items():
        records = statistics.records[split]
        if rules.records is not None and not _is_within(records, rules.records):
            message = f"{records:,} records are outside {_format_range(rules.records)}"
            remedy = "check whether inputs are missing or repeated"
            yield Violation(
                "records",
                message,
                remedy,
                split=split,
                figure=records,
                threshold=_format_range(rules.records),
            )
        for name, feature_rules in rules.features.items():
            if name in features:
                yield from _FeatureChecker(
                    features[name], schema[name], split, feature_rules
                ).violations()
        if rules.classes is not None and schema.label is not None:
            yield from _check_class_balance(
                features[schema.label], schema[schema.label], split, rules.classes
            )


class _FeatureChecker:
    """Checks one feature in one split against its rules."""

    def __init__(
        self, statistics: FeatureStatistics, feature: Feature, split: str, rules: FeatureRules
    ) -> None:
        self.statistics, self.feature = statistics, feature
        self.split, self.rules = split, rules

    def violations(self) -> Iterator[Violation]:
        yield from self._check_presence()
        yield from self._check_range()
        yield from self._check_mean()
        yield from self._check_zeros_and_nans()
        yield from self._check_distinct()
        yield from self._check_values()
        yield from self._check_shares()

    def _violation(
        self, check: str, message: str, remedy: str, figure: Any, threshold: Any
    ) -> Violation:
        return Violation(
            check,
            message,
            remedy,
            feature=self.feature.name,
            split=self.split,
            figure=figure,
            threshold=threshold,
        )

    def _unjudged(self, check: str, reason: str, threshold: Any) -> Violation:
        return _unjudged_violation(check, reason, self.feature, self.split, threshold)

    def _check_presence(self) -> Iterator[Violation]:
        total = self.statistics.present + self.statistics.missing
        share, min_share = self.statistics.present / max(total, 1), self.rules.present
        if min_share is not None and share < min_share:
            message = f"{format_percent(share)} of the records have it ({self.statistics.missing:,} lack it), below {format_percent(min_share)}"
            yield self._violation(
                "presence", message, "fix the inputs that lack it", share, min_share
            )

    def _check_range(self) -> Iterator[Violation]:
        statistics, rules = self.statistics, self.rules
        if rules.min is None and rules.max is None:
            return
        for figure, bound, is_low in (
            (statistics.min, rules.min, True),
            (statistics.max, rules.max, False),
        ):
            if figure is None or bound is None or (figure >= bound if is_low else figure <= bound):
                continue
            sign, relation = ("<", "below") if is_low else (">", "above")
            message = (
                f"the {'smallest' if is_low else 'largest'} value is "
                f"{_format_figure(figure)}, {relation} {bound}"
            )
            condition = (
                f"{_sql_value(self.feature, 'list_min' if is_low else 'list_max')} {sign} {bound}"
            )
            remedy = f"to see such records: `recordmill.open(OUT, where={condition!r})`"
            yield self._violation("range", message, remedy, figure, bound)
        infinite_count, bound = (
            sum(statistics.infinities),
            rules.max if rules.min is None else rules.min,
        )
        if infinite_count:
            message = f"{infinite_count:,} values are infinite"
            yield self._violation(
                "range",
                message,
                "leave them out, or clip them with a transform",
                infinite_count,
                bound,
            )
        # If all values are NaN, there is no minimum or maximum that could break a rule.
        elif statistics.values and not statistics.finite:
            yield self._violation(
                "range", "all values are NaN", "fix the inputs", statistics.nans, bound
            )

    def _check_mean(self) -> Iterator[Violation]:
        bounds, mean = self.rules.mean, self.statistics.mean
        if bounds is None or (mean is not None and _is_within(mean, bounds)):
            return
        text, remedy = _format_range(bounds), ("check whether a unit or source has changed")
        if mean is not None:
            yield self._violation(
                "mean", f"the mean is {mean:.6g}, outside {text}", remedy, mean, text
            )
        elif self.statistics.values:
            yield self._violation(
                "mean",
                f"no value is finite, so there is no mean within {text}",
                remedy,
                "nan",
                text,
            )
        else:
            yield self._unjudged("mean", "there are no values", text)

    def _check_zeros_and_nans(self) -> Iterator[Violation]:
        statistics = self.statistics
        for name, count, max_share in (
            ("zeros", statistics.zeros, self.rules.zeros),
            ("nan", statistics.nans, self.rules.nan),
        ):
            share = count / max(statistics.values, 1)
            if max_share is not None and share > max_share:
                kind = "zero" if name == "zeros" else "NaN"
                message = f"{format_percent(share)} of the values are {kind}, above {format_percent(max_share)}"
                yield self._violation(
                    name, message, "fix the inputs, or leave such records out", share, max_share
                )

    def _check_distinct(self) -> Iterator[Violation]:
        bounds, distinct = self.rules.distinct, self.statistics.distinct
        if bounds is None:
            return
        text, interval = _format_range(bounds), _distinct_interval(self.statistics)
        if distinct is None:
            yield self._unjudged("distinct", "values of tensors are not counted", text)
        elif _is_outside(interval, bounds):
            message = f"there are {distinct:,} distinct values, outside {text}"
            yield self._violation(
                "distinct", message, "inspect them with `recordmill stats`", distinct, text
            )
        elif not _is_inside(interval, bounds):
            reason = (
                f"there are about {distinct:,} distinct values, "
                f"{interval[0]:,.0f} to {interval[1]:,.0f}"
            )
            yield self._unjudged("distinct", reason, text)

    def _check_values(self) -> Iterator[Violation]:
        statistics, expected = self.statistics, self.rules.values
        if expected is None or not statistics.values:
            return
        max_share = self.rules.other_values
        unexpected = {
            value: count for value, count in statistics.top_values.items() if value not in expected
        }
        # The values that the statistics do not list may be expected or not. The smallest possible
        # share of unexpected values assumes that each expected value among them is as frequent as
        # an unlisted value can be. The largest possible share assumes that none is expected.
        unlisted = max(1 - sum(statistics.top_values.values()) / statistics.values, 0.0)
        max_expected_unlisted = (
            sum(value not in statistics.top_values for value in expected) * statistics.unlisted
        )
        low = _share_interval(
            statistics,
            sum(unexpected.values()) / statistics.values
            + max(unlisted - max_expected_unlisted, 0.0),
        )[0]
        high = _share_interval(statistics, sum(unexpected.values()) / statistics.values + unlisted)[
            1
        ]
        # There are more different values than expected ones, and each occurs at least once.
        low = max(low, (_distinct_interval(statistics)[0] - len(set(expected))) / statistics.values)
        if low > max_share:
            names = [quote_counted_value(self.feature, value) for value in unexpected][:3]
            example = f", such as {', '.join(names)}," if names else ""
            share = format_percent(low) if low == high else f"at least {format_percent(low)}"
            message = (
                f"{share} of the values{example} are not among the expected "
                f"ones, above {format_percent(max_share)}"
            )
            yield self._violation(
                "values", message, "fix them, or add them to the values", low, max_share
            )
        elif high > max_share:
            yield self._unjudged(
                "values", f"up to {format_percent(high)} of the values are not listed", max_share
            )

    def _check_shares(self) -> Iterator[Violation]:
        statistics = self.statistics
        for value, bounds in self.rules.shares.items():
            share, name, text = (
                statistics.top_values.get(value, 0) / max(statistics.values, 1),
                quote_counted_value(self.feature, value),
                _format_range(bounds, format_percent),
            )
            interval = (
                _share_interval(statistics, share)
                if value in statistics.top_values
                else (0.0, statistics.unlisted)
            )
            if _is_outside(interval, bounds):
                message = f"{name} is {format_percent(share)} of the values, outside {text}"
                remedy = "check for missing or repeated records"
                yield self._violation("shares", message, remedy, share, _format_range(bounds))
            elif not _is_inside(interval, bounds):
                reason = f"{name} is between {format_percent(interval[0])} and {format_percent(interval[1])} of the values"
                yield self._unjudged("shares", reason, _format_range(bounds))


def _unjudged_violation(
    check: str, reason: str, feature: Feature, split: str, threshold: Any
) -> Violation:
    message = f"can't be judged from the statistics: {reason}"
    return Violation(
        check,
        message,
        "remove the rule, or widen it",
        feature=feature.name,
        split=split,
        threshold=threshold,
        is_judged=False,
    )


def _check_class_balance(
    statistics: FeatureStatistics, label: Feature, split: str, rules: ClassRules
) -> Iterator[Violation]:
    """Yields a violation for each class of the label that is too rare.

    A class without a record has the count 0. If the statistics do not list all values of the label,
    the only result is a violation with `is_judged=False`.
    """
    # Statistics do not list classes without a record, so each class begins with a count of 0.
    counts = dict.fromkeys(map(str, range(len(label.classes or ()))), 0) | dict(
        statistics.top_values
    )
    if statistics.values and not statistics.lists_all_values:
        yield _unjudged_violation(
            "classes", "not all values of the label are listed", label, split, None
        )
        return
    if not counts:
        return
    remedy = "add records of this class, leave out some of the others, or use `ds.class_weights()`"
    largest_count, total = max(counts.values()), max(sum(counts.values()), 1)
    for value, count in sorted(counts.items(), key=lambda item: item[1]):
        name = f"class {quote_counted_value(label, value)}"
        share, ratio = count / total, largest_count / count if count else float("inf")
        for figure, threshold, is_low, format_threshold, message in (
            (
                share,
                rules.min_share,
                True,
                format_percent,
                f"{name} has {format_percent(share)} of the records",
            ),
            (count, rules.min_records, True, _format_short, f"{name} has {count:,} records"),
            (
                ratio,
                rules.max_ratio,
                False,
                _format_short,
                f"{name} is {ratio:.4g} times rarer than the most frequent one",
            ),
        ):
            if threshold is not None and (figure < threshold if is_low else figure > threshold):
                bound = f"{message}, {'below' if is_low else 'above'} {format_threshold(threshold)}"
                # The ratio of a class without a record is infinite, and JSON has no infinity.
                shown_figure = figure if math.isfinite(figure) else "inf"
                yield Violation(
                    "classes",
                    bound,
                    remedy,
                    feature=label.name,
                    split=split,
                    figure=shown_figure,
                    threshold=threshold,
                )


def _share_interval(statistics: FeatureStatistics, share: float) -> Interval:
    """Returns the smallest and the largest share that the statistics allow.

    If all values were counted, both are `share`. If only a sample was counted, they are the ends of
    the score interval of Wilson (1927) at 5 standard errors.

    Args:
        statistics: Statistics of the feature.
        share: The share of a value, or of a group of values, according to the statistics.
    """
    if statistics.sampled is None:
        return share, share
    squares, share = _SIGMAS**2 / statistics.sampled, min(share, 1.0)
    middle = share + squares / 2
    width = math.sqrt(squares * share * (1 - share) + squares**2 / 4)
    return (middle - width) / (1 + squares), (middle + width) / (1 + squares)


def _distinct_interval(statistics: FeatureStatistics) -> Interval:
    """Returns the smallest and the largest number of different values that is plausible.

    Both are the exact number if it is known. Otherwise they differ from the estimate by 5 standard
    errors.
    """
    error = _SIGMAS * (statistics.distinct_error or 0)
    distinct = float(statistics.distinct or 0)
    return max(distinct * (1 - error), 0.0), min(distinct * (1 + error), float(statistics.values))


def _sql_value(feature: Feature, reduce_list: str) -> str:
    """Returns an SQL expression for a feature, or for one value of its lists.

    The expression is for the option `where`. For example, `list_max(flatten("a"))` is the largest
    value in a list of lists.

    Args:
        reduce_list: SQL function that reduces a list to one value, such as `list_min`.
    """
    value, depth = (
        '"' + feature.name.replace('"', '""') + '"',
        feature.ragged_rank + bool(feature.inner_shape),
    )
    # `reduce_list` needs a list without inner lists, and each `flatten` removes one level.
    for _ in range(depth - 1):
        value = f"flatten({value})"
    return f"{reduce_list}({value})" if depth else value


def _format_figure(figure: float) -> str:
    return str(figure) if isinstance(figure, int) else f"{figure:.9g}"


def _format_short(figure: float) -> str:
    return f"{figure:g}"


def _is_within(figure: float, bounds: Bounds) -> bool:
    """Returns whether an exactly known figure is within the bounds."""
    return _is_inside((figure, figure), bounds)


def _is_inside(interval: Interval, bounds: Bounds) -> bool:
    """Returns whether all values of the interval are within the bounds."""
    low, high = bounds
    return (low is None or interval[0] >= low) and (high is None or interval[1] <= high)


def _is_outside(interval: Interval, bounds: Bounds) -> bool:
    """Returns whether all values of the interval are outside of the bounds."""
    low, high = bounds
    return (low is not None and interval[1] < low) or (high is not None and interval[0] > high)


def _format_range(bounds: Bounds, format_bound: Callable[[float], str] = str) -> str:
    low, high = ("any" if bound is None else format_bound(bound) for bound in bounds)
    return f"{low} to {high}"


_MAX_SHOWN_VIOLATIONS = 20  # violations that the message of an ExpectationError lists


class ExpectationError(RecordmillError):
    """The records of a build break the rules of `expect`, so nothing was committed."""


def read_expectations(file_or_mapping: Mapping[str, Any] | str | os.PathLike[str]) -> Rules:
    """Reads the rules of the build option `expect`.

    Args:
        file_or_mapping: Path of a YAML file, or its content.

    Raises:
        UsageError: The rules are invalid. Or a rule is only for `recordmill check`, because it
            compares records with each other, or with another data set.
    """
    rules = read_rules(file_or_mapping, "expect")
    for name in ("leakage", "duplicates"):
        if getattr(rules, name):
            raise UsageError(
                "{file}: {name}: compares records with each other after they are "
                "written; leave it out of {expect}, and run recordmill check with "
                "{against} after the build",
                file=rules.source,
                name=name,
                expect=option("expect"),
                against=option("against", rules.source),
            )
    if rules.compares_data_sets:
        raise UsageError(
            "{file}: drift: compares two data sets; leave it out of {expect}, and "
            "run recordmill check with {against} OTHER and {these_rules} after the "
            "build",
            file=rules.source,
            expect=option("expect"),
            against=option("against"),
            these_rules=option("against", rules.source),
        )
    return rules


def check_expectations(statistics: DatasetStatistics, schema: Schema, rules: Rules) -> None:
    """Raises ExpectationError if the statistics of a build break its rules.

    A rule that can't be judged counts as broken. The message lists the first violations, with their
    features, figures and thresholds.

    Args:
        statistics: Statistics of the new records.
        schema: Schema of the data set.
        rules: The rules, as `Rules.fit_to_schema` returns them.
    """
    violations = list(find_violations(statistics, schema, rules))
    if rules.skew is not None or any(
        isinstance(feature_rules.skew, Threshold) for feature_rules in rules.features.values()
    ):
        violations += find_skew(statistics, schema, rules)
    if violations:
        truncation = (
            f"\n... and {len(violations) - _MAX_SHOWN_VIOLATIONS} more"
            if len(violations) > _MAX_SHOWN_VIOLATIONS
            else ""
        )
        count = (
            "1 expectation is" if len(violations) == 1 else f"{len(violations)} expectations are"
        )
        raise ExpectationError(
            "{count} not met; nothing was committed:\n{violations}{truncation}",
            count=count,
            violations=join_messages("\n", violations[:_MAX_SHOWN_VIOLATIONS]),
            truncation=truncation,
        )
