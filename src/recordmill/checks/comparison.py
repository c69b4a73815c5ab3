"""Comparison of the statistics of two samples, feature by feature.

A sample is one split of a data set. `find_drift` compares the splits of two data sets. `find_skew`
compares the splits of one data set with its training split.

The compared figure depends on the values of the feature:

* Categories: the share of each value, by the L-infinity distance. Texts are categories, and so are
  integers if both samples have few different ones.
* Other numbers: histograms, by the Jensen-Shannon divergence. The buckets are quantiles, or have
  equal widths if the quantiles are inaccurate.
* Binary values, and texts if the statistics do not list all of them: histograms of their sizes in
  bytes.
* Lists: histograms of their lengths, in addition to their values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow_metadata.proto.v0 import statistics_pb2

from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.sizes import format_percent
from recordmill.checks.rules import Inherited, Rules, Threshold, Thresholds
from recordmill.checks.violations import Violation, quote_counted_value
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.splits import TRAIN_SPLIT
from recordmill.statistics.dataset_statistics import DatasetStatistics
from recordmill.statistics.feature_statistics import FeatureStatistics

_Floats = npt.NDArray[np.float64]
# Edges above this are divided by 4, so that their difference is not infinite.
_SCALE_THRESHOLD = 1e300
# Probability that a figure exceeds its allowance although both samples have one distribution.
_FALSE_ALARM_PROBABILITY = 1e-6


@dataclass(frozen=True)
class BucketHistogram:
    """A histogram of numbers, with buckets of different widths.

    Attributes:
        edges: [buckets, 2] Lower and upper edge of each bucket. Both are finite, and they differ.
        counts: [buckets] Number of values in each bucket.
        points: The buckets without width, as a map from their only value to its number of
            occurrences. It may also contain -inf and inf, see `with_infinities_and_zeros`.
        infinite_count: Number of values in buckets with an infinite edge.
        nan_count: Number of NaN values.
    """

    edges: _Floats
    counts: _Floats
    points: Mapping[float, float]
    infinite_count: float = 0.0
    nan_count: float = 0.0

    @classmethod
    def from_proto(cls, proto: Any) -> BucketHistogram:
        """Converts a `tensorflow.metadata.v0.Histogram` message."""
        rows = np.array(
            [(b.low_value, b.high_value, b.sample_count) for b in proto.buckets], np.float64
        ).reshape(-1, 3)
        is_finite = np.isfinite(rows[:, :2]).all(1)
        is_point = is_finite & (rows[:, 0] == rows[:, 1])
        wide = rows[is_finite & ~is_point]
        points: dict[float, float] = {}
        for value, _, count in rows[is_point].tolist():
            points[value] = points.get(value, 0.0) + count
        return cls(
            wide[:, :2], wide[:, 2], points, float(rows[~is_finite, 2].sum()), float(proto.num_nan)
        )

    @property
    def total(self) -> float:
        """Number of all values."""
        return math.fsum(
            [*self.counts.tolist(), *self.points.values(), self.infinite_count, self.nan_count]
        )

    def with_bounded_edges(self) -> BucketHistogram:
        """Returns a copy in which outliers do not stretch the first and last bucket.

        Their outer edges are the minimum and the maximum of the sample. If a distribution has heavy
        tails, these depend on chance, and most of an outer bucket is empty. So each of the two
        buckets becomes at most as wide as the range between them.

        A histogram with fewer than three buckets is returned unchanged.
        """
        # There is no inner range to limit the outer buckets with.
        if len(self.edges) < 3 or self.edges[0, 1] >= self.edges[-1, 0]:
            return self
        low, high = float(self.edges[0, 1]), float(self.edges[-1, 0])
        edges = self.edges.copy()
        edges[0, 0] = max(edges[0, 0], low - (high - low))
        edges[-1, 1] = min(edges[-1, 1], high + (high - low))
        return replace(self, edges=edges)

    def with_infinities_and_zeros(
        self, infinities: tuple[int, int], zeros: float, is_non_negative: bool
    ) -> BucketHistogram:
        """Returns a copy that counts infinite values and zeros in `points`.

        Two histograms are compared exactly at their points. So infinite values match each other. A
        quantile bucket contains a tenth of the values, so it would show the number of zeros
        inaccurately.

        Args:
            infinities: Number of -inf values, and number of inf values.
            zeros: Number of zeros.
            is_non_negative: True if no number is negative. Otherwise zeros remain in their buckets.
        """
        points, counts = dict(self.points), self.counts.copy()
        if is_non_negative and zeros:
            # The bucket that begins at 0 contains the zeros that were not a point before.
            counts[self.edges[:, 0] == 0] -= zeros - points.get(0.0, 0.0)
            points[0.0] = zeros
        points |= {
            value: float(count)
            for value, count in zip((-math.inf, math.inf), infinities, strict=True)
            if count
        }
        return replace(self, points=points, counts=np.maximum(counts, 0.0))

    def with_widths(self, width: float) -> BucketHistogram:
        """Returns a copy for integers, with buckets that are `width` wider.

        Each edge moves outwards by `width / 2`, and points become buckets of this width. With a
        width of 1, the bucket from 2 to 4 then reaches from 1.5 to 4.5, and the point 3 from 2.5 to
        3.5.
        """
        points = np.array(list(self.points.items()), np.float64).reshape(-1, 2)
        edges = np.concatenate([self.edges, points[:, :1].repeat(2, 1)]) + np.array(
            [-width / 2, width / 2]
        )
        order = np.argsort(edges[:, 0], kind="stable")
        return replace(
            self,
            edges=edges[order],
            counts=np.concatenate([self.counts, points[:, 1]])[order],
            points={},
        )

    def counts_between(self, edges: _Floats) -> _Floats:
        """Returns the number of values between consecutive edges, [len(edges) - 1].

        The values of a bucket are assumed to be spread evenly over its width. Points, infinite
        values and NaN are not counted.

        Args:
            edges: Finite edges in ascending order.
        """
        # [buckets, edges - 1]: the width that each bucket and each interval have in common
        scale = 2.0**-2 if len(edges) and np.abs(edges).max() > _SCALE_THRESHOLD else 1.0
        edges = edges * scale
        low, high = self.edges[:, :1] * scale, self.edges[:, 1:] * scale
        overlap = np.clip(np.minimum(high, edges[1:]) - np.maximum(low, edges[:-1]), 0, None)
        return np.asarray((overlap / (high - low) * self.counts[:, None]).sum(0))


def jensen_shannon_divergence(
    first_histogram: BucketHistogram, second_histogram: BucketHistogram
) -> float | None:
    """Returns the Jensen-Shannon divergence of two histograms in bits.

    The result is 0 for equal distributions, and 1 if the histograms have no value in common. The
    histograms may have different buckets: each bucket is divided at all edges of the other
    histogram. Points and NaN are categories of their own. The values in infinite buckets never
    match.

    NaN is treated differently in TensorFlow Data Validation. It ignores NaN if the edges differ,
    and otherwise never matches them. So two equal data sets with 50 % of NaN have a divergence of
    0.5. Here NaN matches NaN.

    Returns:
        The divergence from 0 to 1, or None if a histogram is empty.
    """
    edges = np.unique(
        np.concatenate([first_histogram.edges.ravel(), second_histogram.edges.ravel()])
    )
    points = sorted({*first_histogram.points, *second_histogram.points})
    first, second = (
        np.concatenate(
            [
                histogram.counts_between(edges),
                [histogram.points.get(point, 0.0) for point in points],
            ]
        )
        for histogram in (first_histogram, second_histogram)
    )
    # The infinite buckets of each histogram get a position of their own, so they never match.
    first = np.concatenate(
        [first, [first_histogram.infinite_count, 0.0, first_histogram.nan_count]]
    )
    second = np.concatenate(
        [second, [0.0, second_histogram.infinite_count, second_histogram.nan_count]]
    )
    return _divergence(first, second)


def grouped_divergence(
    first_counts: Mapping[str, float], second_counts: Mapping[str, float], max_groups: int
) -> tuple[float, int]:
    """Returns the Jensen-Shannon divergence of two samples from the counts of their numbers.

    All different numbers of both samples are sorted. Neighbouring numbers are joined to groups of
    about equally many values. Then the shares of the groups are compared.

    Args:
        first_counts: The count of each different number of the first sample. The keys are numbers
            as text, for example `{"1": 30, "2.5": 12}`. It must not be empty.
        second_counts: The counts of the second sample, in the same form.
        max_groups: Largest number of groups.

    Returns:
        (divergence in bits from 0 to 1, number of groups with at least one number).

    >>> grouped_divergence({"1": 30, "2": 10}, {"1": 30, "2": 10}, 10)
    (0.0, 2)
    >>> grouped_divergence({"1": 4}, {"2": 4}, 10)
    (1.0, 2)
    """
    values = sorted({*first_counts, *second_counts}, key=float)
    counts = np.array(
        [[row.get(value, 0.0) for value in values] for row in (first_counts, second_counts)],
        np.float64,
    )
    shares = (counts / counts.sum(1, keepdims=True)).mean(0)
    # The cumulative share divides [0, 1] into `max_groups` groups of equal size. A frequent number
    # may touch several of them, and belongs to the group that contains its middle.
    group = np.minimum(max_groups * (np.cumsum(shares) - shares / 2), max_groups - 1).astype(
        np.int64
    )
    first, second = (np.asarray(np.bincount(group, row), np.float64) for row in counts)
    return _divergence(first, second) or 0.0, len(np.unique(group))


def normal_divergence(distance: float) -> float:
    """Returns the Jensen-Shannon divergence of two normal distributions of one variance, in bits.

    Args:
        distance: Distance of their means in standard deviations.

    >>> [round(normal_divergence(distance), 3) for distance in (0, 0.5, 1, 4)]
    [0.0, 0.044, 0.161, 0.913]
    """
    # Both densities are integrated up to where they vanish. If the means are more than 40 standard
    # deviations apart, the densities do not overlap.
    half = min(distance, 40.0) / 2
    x = np.linspace(-half - 9, half + 9, 4001)
    densities = [np.exp(-((x - mean) ** 2) / 2) for mean in (-half, half)]
    return _divergence(*densities) or 0.0


def _divergence(first: _Floats, second: _Floats) -> float | None:
    if not (first.sum() > 0 and second.sum() > 0):
        return None
    p, q = first / first.sum(), second / second.sum()
    middle = (p + q) / 2
    # 0 log 0 counts as 0, so only values that occur are added.
    terms = [
        distribution[distribution > 0]
        * np.log2(distribution[distribution > 0] / middle[distribution > 0])
        for distribution in (p, q)
    ]
    return min(max(math.fsum(np.concatenate(terms).tolist()) / 2, 0.0), 1.0)


def l_infinity_distance(
    first_counts: Mapping[str, float],
    second_counts: Mapping[str, float],
    totals: tuple[float, float],
    unlisted: tuple[float, float] = (0.0, 0.0),
) -> tuple[str, float] | None:
    """Returns the largest difference between the shares of a value in two samples.

    The share of a value is its number of occurrences, divided by the number of all values.
    Statistics may list only the most frequent values. If only one sample lists a value, its share
    in the other sample is between 0 and `unlisted`. The smallest possible difference is then used.

    Args:
        first_counts: Number of occurrences of each listed value of the first sample.
        second_counts: The counts of the second sample, in the same form.
        totals: Number of all values of the first and of the second sample.
        unlisted: For each sample, the largest possible share of a value that is not listed. 0 means
            that all values are listed.

    Returns:
        (value with the largest difference, difference), or None if no value is listed.

    >>> l_infinity_distance({"a": 3, "b": 1}, {"a": 1, "b": 3}, (4, 4))
    ('a', 0.5)
    """

    def gap(value: str) -> float:
        # (smallest, largest) possible share of the value in each sample
        shares = [
            (counts[value] / max(total, 1.0),) * 2 if value in counts else (0.0, unlisted_share)
            for counts, total, unlisted_share in zip(
                (first_counts, second_counts), totals, unlisted, strict=True
            )
        ]
        return max(shares[0][0] - shares[1][1], shares[1][0] - shares[0][1], 0.0)

    gaps = {value: gap(value) for value in sorted({*first_counts, *second_counts})}
    return max(gaps.items(), key=lambda item: item[1], default=None)


def share_allowance(sample_sizes: tuple[float, float], num_figures: int = 1) -> float:
    """Returns the largest difference between two shares that chance explains.

    If both samples have the same distribution, a difference exceeds the result once in a million
    times. This is Hoeffding's bound for the difference of two means.

    Args:
        sample_sizes: Number of independent observations in each sample.
        num_figures: If the caller checks only the largest of several differences, their number.
    """
    inverse = _inverse_sum(sample_sizes)
    return math.sqrt(inverse * math.log(2 * max(num_figures, 1) / _FALSE_ALARM_PROBABILITY) / 2)


def divergence_allowance(
    sample_sizes: tuple[float, float], num_buckets: int, num_figures: int = 1
) -> float:
    """Returns the largest Jensen-Shannon divergence in bits that chance explains.

    If both samples have the same distribution, their divergence exceeds the result once in a
    million times. For large samples, 8 ln 2 times the divergence, divided by the sum of 1 / size,
    follows about a chi-square distribution. It has one degree of freedom less than there are
    buckets. Its tail is bounded as in Laurent and Massart, "Adaptive estimation of a quadratic
    functional", 2000.

    Args:
        sample_sizes: Number of independent observations in each sample.
        num_buckets: Number of compared buckets.
        num_figures: If the caller checks only the largest of several divergences, their number.
    """
    freedom = max(num_buckets - 1, 1)
    chance = math.log(max(num_figures, 1) / _FALSE_ALARM_PROBABILITY)
    quantile = freedom + 2 * math.sqrt(freedom * chance) + 2 * chance
    return quantile * _inverse_sum(sample_sizes) / (8 * math.log(2))


def estimate_unseen_share(counts: Iterable[float]) -> float:
    """Estimates the share of new values in a second sample of the same distribution.

    A value is new if the first sample does not contain it. The estimate is the share of values that
    occur exactly once in the first sample (Good, "The population frequencies of species", 1953).

    Args:
        counts: Number of occurrences of each different value in the first sample.

    >>> estimate_unseen_share([1, 1, 8])
    0.2
    """
    occurrences = list(counts)
    return sum(1 for count in occurrences if count == 1) / max(math.fsum(occurrences), 1.0)


def _inverse_sum(sample_sizes: tuple[float, float]) -> float:
    return sum(1 / max(size, 1.0) for size in sample_sizes)


DRIFT_CHECK, SKEW_CHECK = "drift", "skew"
# Integers with more different values are compared as numbers, unless they are the label.
_MAX_CATEGORIES = 100
# Number of groups if the statistics list all numbers. Histograms have the same number of buckets.
_NUM_GROUPS = 10
# Largest error of the rank of a quantile, as a share of the values. If the error is larger,
# histograms with buckets of equal widths are more accurate.
_MAX_QUANTILE_ERROR = 0.02

_REMEDIES = {
    DRIFT_CHECK: "compare both with `recordmill stats`; train again, fix the source, "
    "or allow it in the rules (drift)",
    SKEW_CHECK: Message(
        "compare both with `recordmill stats`; split at random ({splits}), or allow "
        "it in the rules (skew)",
        splits=option("splits"),
    ),
}


def find_drift(
    statistics: DatasetStatistics,
    base: DatasetStatistics,
    schema: Schema,
    rules: Rules,
    data_set_name: str,
) -> Iterator[Violation]:
    """Yields the differences between the splits of two data sets.

    Each split is compared with the split of the same name. If the other data set has no such split,
    its training split is used. Features that only one of the data sets has are skipped.

    Args:
        statistics: Statistics of the data set to check.
        base: Statistics of the other data set. Without splits, nothing is compared.
        schema: Schema of the data set to check.
        rules: The rules with the thresholds.
        data_set_name: Name of the other data set in messages.
    """
    # A data set without records has no splits, and nothing to compare with.
    for split in statistics if base else ():
        base_split = split if split in base else _training_split(base)
        base_name = f"split {base_split!r} of {data_set_name}" if base_split else data_set_name
        yield from _compare_features(
            DRIFT_CHECK,
            statistics[split],
            base[base_split],
            schema=schema,
            rules=rules,
            split=split,
            base_name=base_name,
        )


def find_skew(statistics: DatasetStatistics, schema: Schema, rules: Rules) -> Iterator[Violation]:
    """Yields the differences between the training split and the other splits.

    The training split is `train`, or the first split if there is no `train`. The thresholds are
    `skew` in the rules for the data set and for its features.
    """
    if len(statistics) > 1:
        base_split = _training_split(statistics)
        for split in (split for split in statistics if split != base_split):
            yield from _compare_features(
                SKEW_CHECK,
                statistics[split],
                statistics[base_split],
                schema=schema,
                rules=rules,
                split=split,
                base_name=f"split {base_split!r}",
            )


def _training_split(statistics: DatasetStatistics) -> str:
    return TRAIN_SPLIT if TRAIN_SPLIT in statistics else next(iter(statistics))


def _compare_features(
    check: str,
    features: Mapping[str, FeatureStatistics],
    base_features: Mapping[str, FeatureStatistics],
    schema: Schema,
    rules: Rules,
    split: str,
    base_name: str,
) -> Iterator[Violation]:
    """Compares all features that both samples have, and yields the violations.

    Args:
        check: DRIFT_CHECK or SKEW_CHECK. It selects the thresholds in the rules.
        features: Statistics of the sample to check, by feature.
        base_features: Statistics of the other sample, by feature.
        schema: Schema of the data set to check.
        split: Name of the split to check.
        base_name: Name of the other sample in messages.
    """
    limits = (
        rules.drift
        if check == DRIFT_CHECK
        else rules.skew
        if rules.skew is not None
        else Thresholds()
    )
    for name, sample in features.items():
        if name not in base_features or name not in schema:
            continue
        feature_rules = rules.for_feature(name)
        own_limit = feature_rules.drift if check == DRIFT_CHECK else feature_rules.skew
        if own_limit is None:
            continue
        distance = None if isinstance(own_limit, Inherited) else own_limit
        comparison = _FeatureComparison(
            check, sample, base_features[name], schema=schema, split=split, base_name=base_name
        )
        yield from comparison.compare_missing(limits.missing)
        if not sample.present or not base_features[name].present:
            continue
        # The records have the feature, but all lists are empty, so there is no distribution.
        if not sample.values or not base_features[name].values:
            yield from comparison.compare_empty_lists(limits.missing)
            continue
        if sample.type != base_features[name].type:
            yield comparison.make_violation(
                f"is of type {sample.type}, and in {base_name} {base_features[name].type}",
                sample.type,
            )
            continue
        if schema[name].ragged_rank:
            yield from comparison.compare_lengths(limits.jensen_shannon)
        if comparison.is_categorical:
            yield from comparison.compare_categories(distance or limits.l_infinity)
            yield from comparison.compare_new_values(limits.new_values)
            # Texts that the statistics do not list can only be compared by their sizes.
            if not comparison.both_list_all_values:
                yield from comparison.compare_sizes(limits.jensen_shannon)
        elif sample.type == "BYTES":
            yield from comparison.compare_sizes(distance or limits.jensen_shannon)
        else:
            yield from comparison.compare_numbers(distance or limits.jensen_shannon)
            yield from comparison.compare_elements(distance or limits.jensen_shannon)


class _FeatureComparison:
    """Comparison of one feature in two samples.

    Each `compare_...` method computes a figure, such as a difference of two shares. It yields a
    violation if the figure exceeds the limit. A limit of None disables the comparison.

    Attributes:
        sample: Statistics of the sample to check.
        base: Statistics of the sample that it is compared with.
        base_name: Name of `base` in messages.
        is_categorical: True if the shares of single values are compared. Otherwise distributions
            are compared.
        both_list_all_values: True if the statistics of both samples list all different values.
        sample_sizes: Number of independent observations in `sample` and `base`.
    """

    def __init__(
        self,
        check: str,
        sample: FeatureStatistics,
        base: FeatureStatistics,
        schema: Schema,
        split: str,
        base_name: str,
    ) -> None:
        self.check, self.split, self.base_name = check, split, base_name
        self.sample, self.base = sample, base
        self.feature: Feature = schema[sample.name]
        self.is_categorical = all(
            _is_category(statistics, sample.name == schema.label) for statistics in (sample, base)
        )
        self.both_list_all_values = sample.lists_all_values and base.lists_all_values
        self.sample_sizes = _sample_size(sample), _sample_size(base)

    def make_violation(
        self, message: str, figure: float | str, threshold: float | str | None = None
    ) -> Violation:
        return Violation(
            self.check,
            message,
            _REMEDIES[self.check],
            feature=self.sample.name,
            split=self.split,
            figure=figure,
            threshold=threshold,
        )

    def compare_missing(self, limit: Threshold | None) -> Iterator[Violation]:
        """Yields a violation if the share of records without the feature differs."""
        totals = [
            float(statistics.present + statistics.missing)
            for statistics in (self.sample, self.base)
        ]
        shares = [
            statistics.missing / max(total, 1)
            for statistics, total in zip((self.sample, self.base), totals, strict=True)
        ]
        gap = abs(shares[0] - shares[1])
        if limit is not None and gap > (
            max_gap := _max_figure(limit, share_allowance((totals[0], totals[1])))
        ):
            message = f"is missing in {format_percent(shares[0])} of the records, and in {self.base_name} in {format_percent(shares[1])}"
            yield self.make_violation(
                f"{message}: a difference above {format_percent(max_gap)}", gap, max_gap
            )

    def compare_empty_lists(self, limit: Threshold | None) -> Iterator[Violation]:
        """Yields a violation if all lists are empty in only one of the samples.

        The difference counts as 1, the largest possible one. So a limit of 1 never yields a
        violation.
        """
        max_gap = 1.0 if limit is None else _max_figure(limit, share_allowance(self.sample_sizes))
        if (self.sample.values > 0) != (self.base.values > 0) and max_gap < 1:
            message = f"has {self.sample.values:,} values in its lists, and in {self.base_name} {self.base.values:,}"
            yield self.make_violation(message, 1.0, max_gap)

    def compare_categories(self, limit: Threshold | None) -> Iterator[Violation]:
        """Yields a violation if the share of some value differs.

        All values are compared, and the violation names the value with the largest difference.
        """
        sample, base = self.sample, self.base
        sizes = float(sample.values), float(base.values)
        largest = l_infinity_distance(
            sample.top_values, base.top_values, sizes, (sample.unlisted, base.unlisted)
        )
        if limit is None or largest is None:
            return
        value, gap = largest
        max_gap = _max_figure(
            limit, share_allowance(self.sample_sizes, len({*sample.top_values, *base.top_values}))
        )
        if gap > max_gap:
            shares = [
                statistics.top_values.get(value, 0) / max(statistics.values, 1)
                for statistics in (sample, base)
            ]
            message = (
                f"{quote_counted_value(self.feature, value)} is {format_percent(shares[0])} of the values, and in {self.base_name} "
                f"{format_percent(shares[1])}: L-infinity distance {gap:.4g} above {max_gap:.4g}"
            )
            yield self.make_violation(message, gap, max_gap)

    def compare_new_values(self, limit: Threshold | None) -> Iterator[Violation]:
        """Yields a violation if too many values do not occur in `base`.

        Yields nothing unless the statistics of both samples list all values.
        """
        base_counts = self.base.top_values
        if limit is None or not self.both_list_all_values:
            return
        new_counts = {
            value: count
            for value, count in self.sample.top_values.items()
            if value not in base_counts
        }
        share = sum(new_counts.values()) / max(self.sample.values, 1)
        # Two samples of one distribution also have some rare values that the other one lacks.
        max_share = _max_figure(
            limit, estimate_unseen_share(base_counts.values()) + share_allowance(self.sample_sizes)
        )
        if share > max_share:
            message = (
                f"{format_percent(share)} of the values, {quote_counted_value(self.feature, next(iter(new_counts)))} among them, do not occur "
                f"in {self.base_name}: above {format_percent(max_share)}"
            )
            yield self.make_violation(message, share, max_share)

    def compare_numbers(self, limit: Threshold | None) -> Iterator[Violation]:
        """Yields a violation if the distributions of the numbers differ.

        If the statistics of both samples list all numbers, their counts are compared. Otherwise
        histograms are compared.
        """
        means = [statistics.mean for statistics in (self.sample, self.base)]
        details = "" if None in means else f" (mean {means[0]:.5g}, there {means[1]:.5g})"
        if self.both_list_all_values:
            divergence, groups = grouped_divergence(
                self.sample.top_values, self.base.top_values, _NUM_GROUPS
            )
            yield from self._compare_divergence(limit, "values", divergence, groups, details)
            return
        are_accurate = all(
            (statistics.quantile_error or 0) <= _MAX_QUANTILE_ERROR
            for statistics in (self.sample, self.base)
        )
        histogram, base_histogram = (
            _read_histogram(statistics, are_accurate) for statistics in (self.sample, self.base)
        )
        if are_accurate:
            histogram, base_histogram = (
                histogram.with_bounded_edges(),
                base_histogram.with_bounded_edges(),
            )
        yield from self._compare_histograms(limit, "values", histogram, base_histogram, details)

    def compare_elements(self, limit: Threshold | None) -> Iterator[Violation]:
        """Yields a violation for the element with the largest difference of means.

        Means are compared in standard deviations, as if both samples were normally distributed.
        Yields nothing unless both samples have statistics of the same elements.
        """
        sample, base = self.sample.elements, self.base.elements
        if limit is None or sample is None or base is None:
            return
        if sample.finite.shape != base.finite.shape:
            return
        deviation = np.sqrt((sample.variance + base.variance) / 2)
        with np.errstate(divide="ignore", invalid="ignore"):
            distances = np.abs(sample.mean - base.mean) / deviation
        # equal constants are 0 / 0, and so are elements without numbers
        distances = np.nan_to_num(distances, nan=0.0, posinf=np.inf)
        index = np.unravel_index(int(np.argmax(distances)), distances.shape)
        divergence = normal_divergence(float(distances[index]))
        max_divergence = _max_figure(
            limit, divergence_allowance(self.sample_sizes, 2, distances.size)
        )
        if divergence > max_divergence:
            element = ",".join(map(str, index))
            message = (
                f"the mean of element [{element}] is {sample.mean[index]:.5g}, and in {self.base_name} {base.mean[index]:.5g}, "
                f"which is {distances[index]:.3g} standard deviations away: Jensen-Shannon divergence {divergence:.4g} above "
                f"{max_divergence:.4g}"
            )
            yield self.make_violation(message, divergence, max_divergence)

    def compare_sizes(self, limit: Threshold | None) -> Iterator[Violation]:
        """Yields a violation if the sizes of texts or binary values are distributed differently.

        Yields nothing if the statistics of a sample have no sizes.
        """
        histogram, base_histogram = self.sample.size_histogram, self.base.size_histogram
        if histogram is not None and base_histogram is not None:
            yield from self._compare_integers(limit, "sizes in bytes", histogram, base_histogram)

    def compare_lengths(self, limit: Threshold | None) -> Iterator[Violation]:
        """Yields a violation if the lengths of lists are distributed differently."""
        yield from self._compare_integers(
            limit, "lengths of lists", self.sample.length_histogram, self.base.length_histogram
        )

    def _compare_integers(
        self, limit: Threshold | None, subject: str, *protos: Any
    ) -> Iterator[Violation]:
        histogram, base_histogram = (
            BucketHistogram.from_proto(proto).with_widths(1.0).with_bounded_edges()
            for proto in protos
        )
        yield from self._compare_histograms(limit, subject, histogram, base_histogram, "")

    def _compare_histograms(
        self,
        limit: Threshold | None,
        subject: str,
        histogram: BucketHistogram,
        base_histogram: BucketHistogram,
        details: str,
    ) -> Iterator[Violation]:
        buckets = sum(
            len(side.edges) + len(side.points) + 1 for side in (histogram, base_histogram)
        )
        yield from self._compare_divergence(
            limit, subject, jensen_shannon_divergence(histogram, base_histogram), buckets, details
        )

    def _compare_divergence(
        self,
        limit: Threshold | None,
        subject: str,
        divergence: float | None,
        buckets: int,
        details: str,
    ) -> Iterator[Violation]:
        if limit is None or divergence is None:
            return
        max_divergence = _max_figure(limit, divergence_allowance(self.sample_sizes, buckets))
        if divergence > max_divergence:
            message = (
                f"the {subject} are not distributed as in {self.base_name}: Jensen-Shannon divergence {divergence:.4g} "
                f"above {max_divergence:.4g}{details}"
            )
            yield self.make_violation(message, divergence, max_divergence)


def _read_histogram(statistics: FeatureStatistics, of_quantiles: bool) -> BucketHistogram:
    proto = statistics.quantile_histogram if of_quantiles else statistics.value_histogram
    histogram = BucketHistogram.from_proto(statistics_pb2.Histogram() if proto is None else proto)
    is_non_negative = of_quantiles and statistics.min is not None and statistics.min >= 0
    return histogram.with_infinities_and_zeros(
        statistics.infinities, float(statistics.zeros), is_non_negative
    )


def _is_category(statistics: FeatureStatistics, is_label: bool) -> bool:
    """Returns whether the values of a feature are compared one by one.

    Texts always are. Numbers are if the statistics list all values, and the feature is the label or
    has few different values.
    """
    if statistics.type == "STRING":
        return True
    return statistics.lists_all_values and (
        is_label or (statistics.distinct or 0) <= _MAX_CATEGORIES
    )


def _sample_size(statistics: FeatureStatistics) -> float:
    """Returns the number of independent observations of a feature.

    This is the number of records that have the feature, because values of one record depend on each
    other. If the values were counted in a sample, it is at most the size of this sample.
    """
    present = float(max(statistics.present, 1))
    return present if statistics.sampled is None else min(present, float(statistics.sampled))


def _max_figure(limit: Threshold, allowance: float) -> float:
    """Returns the largest figure that is not a violation.

    For a threshold from the user, this is the threshold. A default threshold is increased by the
    allowance for chance, but not above 1.
    """
    return min(limit.maximum + allowance, 1.0) if limit.is_default else limit.maximum
