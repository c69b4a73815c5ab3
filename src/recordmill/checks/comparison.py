"""Compares two samples of statistics and yields the `Violation`s of the thresholds between them: `drift` compares a
data set with another one, and `skew` its splits with that for training.

Categories, which are texts and numbers of few values, are compared by the shares of their values. Other numbers are
compared by histograms of their quantiles, or by those of equal widths where quantiles are not known well. Binary
values, and texts that are not all listed, are compared by histograms of their sizes, and lists also by those of their
lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow_metadata.proto.v0 import statistics_pb2

from recordmill.base.option_names import option
from recordmill.base.sizes import format_percent
from recordmill.checks.rules import Rules, Threshold, Thresholds
from recordmill.checks.violations import Violation, format_value
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.splits import TRAIN_SPLIT
from recordmill.statistics.dataset_statistics import DatasetStatistics, FeatureStatistics

_Floats = npt.NDArray[np.float64]
_SCALE_THRESHOLD = 1e300
_FALSE_ALARM_PROBABILITY = (
    1e-6  # of one figure that it passes its allowance though both samples are of one distribution
)


@dataclass(frozen=True)
class BucketHistogram:
    """Buckets of values.

    Attributes:
        edges: [buckets, 2] low and high, finite and apart.
        counts: [buckets].
        points: Value to count of buckets without width.
        infinite_count: The count of buckets with an infinite edge.
        nan_count: How many values are none.
    """

    edges: _Floats
    counts: _Floats
    points: Mapping[float, float]
    infinite_count: float = 0.0
    nan_count: float = 0.0

    @classmethod
    def from_proto(cls, proto: Any) -> BucketHistogram:
        """Returns the buckets of a `tensorflow.metadata.v0.Histogram`."""
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
        return math.fsum(
            [*self.counts.tolist(), *self.points.values(), self.infinite_count, self.nan_count]
        )

    def with_bounded_edges(self) -> BucketHistogram:
        """Returns the histogram with outer buckets that reach at most as far out as the inner ones do together: how far
        the least and the greatest value of a sample lie is chance where tails are heavy, and most of such a bucket is
        empty.
        """
        if len(self.edges) < 3 or self.edges[0, 1] >= self.edges[-1, 0]:
            return self
        low, high = float(self.edges[0, 1]), float(self.edges[-1, 0])
        edges = self.edges.copy()
        edges[0, 0] = max(edges[0, 0], low - (high - low))
        edges[-1, 1] = min(edges[-1, 1], high + (high - low))
        return replace(self, edges=edges)

    def with_points(
        self, infinities: tuple[int, int], zeros: float, are_positive: bool
    ) -> BucketHistogram:
        """Returns the histogram with infinite values as points, as these are alike, and the zeros of numbers from 0 on
        as well.

        Buckets of quantiles have a tenth of the values each, so that nearly as many zeros as in another sample may be
        one point fewer.
        """
        points, counts = dict(self.points), self.counts.copy()
        if are_positive and zeros:
            counts[self.edges[:, 0] == 0] -= zeros - points.get(0.0, 0.0)
            points[0.0] = zeros
        points |= {
            value: float(count)
            for value, count in zip((-math.inf, math.inf), infinities, strict=True)
            if count
        }
        return replace(self, points=points, counts=np.maximum(counts, 0.0))

    def with_widths(self, width: float) -> BucketHistogram:
        """Returns whole numbers' buckets, each as wide as `least`: none is a point, and a shared edge is one number."""
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
        """Returns the counts between each edge and the next, [edges - 1], with buckets' values spread evenly."""
        scale = (
            2.0**-2 if len(edges) and np.abs(edges).max() > _SCALE_THRESHOLD else 1.0
        )  # so that no difference is infinite
        edges = edges * scale
        low, high = self.edges[:, :1] * scale, self.edges[:, 1:] * scale
        overlap = np.clip(np.minimum(high, edges[1:]) - np.maximum(low, edges[:-1]), 0, None)
        return np.asarray((overlap / (high - low) * self.counts[:, None]).sum(0))


def jensen_shannon_divergence(
    first_histogram: BucketHistogram, second_histogram: BucketHistogram
) -> float | None:
    """Returns the Jensen-Shannon divergence in bits, in [0, 1]: over the edges of both; NaN, each point and what is
    infinite apart, of which the last is never alike. None: one of them is empty.

    In TensorFlow Data Validation NaN are left out where edges differ, and never alike where they do not: two equal data
    sets of which half is NaN are 0.5 apart. Here they are alike.
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
    first = np.concatenate(
        [first, [first_histogram.infinite_count, 0.0, first_histogram.nan_count]]
    )
    second = np.concatenate(
        [second, [0.0, second_histogram.infinite_count, second_histogram.nan_count]]
    )
    return _divergence(first, second)


def grouped_divergence(
    first_counts: Mapping[str, float], second_counts: Mapping[str, float], groups: int
) -> tuple[float, int]:
    """Returns the Jensen-Shannon divergence in bits of two samples of numbers that are all listed, as texts with how
    often each occurs, and how many groups there are: the numbers of both are cut, in their order, into so many groups
    of about as many values each.
    """
    values = sorted({*first_counts, *second_counts}, key=float)
    counts = np.array(
        [[row.get(value, 0.0) for value in values] for row in (first_counts, second_counts)],
        np.float64,
    )
    shares = (counts / counts.sum(1, keepdims=True)).mean(0)
    group = np.minimum(groups * (np.cumsum(shares) - shares / 2), groups - 1).astype(np.int64)
    first, second = (np.asarray(np.bincount(group, row), np.float64) for row in counts)
    return _divergence(first, second) or 0.0, len(np.unique(group))


def _divergence(first: _Floats, second: _Floats) -> float | None:
    if not (first.sum() > 0 and second.sum() > 0):
        return None
    p, q = first / first.sum(), second / second.sum()
    middle = (p + q) / 2
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
    """Returns the value, of those listed with how often each occurs, whose shares differ most, and by how much at
    least; None: none is listed. totals: how many values each sample has; unlisted: the most that the share of a value
    can be that it doesn't list.
    """

    def gap(value: str) -> float:
        shares = [
            (counts[value] / max(total, 1.0),) * 2 if value in counts else (0.0, unlisted_share)
            for counts, total, unlisted_share in zip(
                (first_counts, second_counts), totals, unlisted, strict=True
            )
        ]
        return max(shares[0][0] - shares[1][1], shares[1][0] - shares[0][1], 0.0)

    gaps = {value: gap(value) for value in sorted({*first_counts, *second_counts})}
    return max(gaps.items(), key=lambda item: item[1], default=None)


def share_allowance(counts: tuple[float, float], figures: int = 1) -> float:
    """Returns by how much shares in two samples of so many values may differ by chance, of so many figures the largest
    one: once in a million (Hoeffding's bound for the difference of two means).
    """
    inverse = _inverse_sum(counts)
    return math.sqrt(inverse * math.log(2 * max(figures, 1) / _FALSE_ALARM_PROBABILITY) / 2)


def divergence_allowance(counts: tuple[float, float], buckets: int) -> float:
    """Returns how large the Jensen-Shannon divergence of two such samples may be by chance: 2 ln 2 times it, scaled by
    the sizes, is close to chi-square with a degree of freedom for each bucket but one; the bound is that of Laurent and
    Massart ("Adaptive estimation of a quadratic functional", 2000).
    """
    freedom, chance = max(buckets - 1, 1), math.log(1 / _FALSE_ALARM_PROBABILITY)
    quantile = freedom + 2 * math.sqrt(freedom * chance) + 2 * chance
    return quantile * _inverse_sum(counts) / (8 * math.log(2))


def unseen_share(counts: Iterable[float]) -> float:
    """Returns the share of values that a further sample of the same distribution has and this one not: that of the
    values that stand in it once (Good, "The population frequencies of species", 1953).
    """
    occurrences = list(counts)
    return sum(1 for count in occurrences if count == 1) / max(math.fsum(occurrences), 1.0)


def _inverse_sum(counts: tuple[float, float]) -> float:
    return sum(1 / max(count, 1.0) for count in counts)


DRIFT_CHECK, SKEW_CHECK = "drift", "skew"
_MAX_CATEGORIES = 100  # distinct integers that are compared one by one; a label's always are
_NUM_GROUPS = 10  # of about as many numbers each, where all are listed
_MAX_QUANTILE_ERROR = (
    0.02  # the error of quantiles' ranks, with which they are compared; else equal widths say more
)

_REMEDIES = {
    DRIFT_CHECK: "look at both by `recordmill stats`; train anew, mend the source, or allow it in the rules (drift)",
    SKEW_CHECK: f"look at both by `recordmill stats`; split by chance ({option('splits')}), or allow it in the rules (skew)",
}


def find_drift(
    statistics: DatasetStatistics, base: DatasetStatistics, schema: Schema, rules: Rules, name: str
) -> Iterator[Violation]:
    """Compares each split with that of the same name in another data set, which messages call by that name, or, where
    there is none, with its split for training.
    """
    for split in statistics if base else ():
        base_split = split if split in base else _training_split(base)
        base_name = f"split {base_split!r} of {name}" if base_split else name
        yield from _compare(
            DRIFT_CHECK,
            statistics[split],
            base[base_split],
            schema=schema,
            rules=rules,
            split=split,
            base_name=base_name,
        )


def find_skew(statistics: DatasetStatistics, schema: Schema, rules: Rules) -> Iterator[Violation]:
    """Compares each split with the one for training."""
    if len(statistics) > 1:
        base_split = _training_split(statistics)
        for split in (split for split in statistics if split != base_split):
            yield from _compare(
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


def _compare(
    check: str,
    features: Mapping[str, FeatureStatistics],
    base_features: Mapping[str, FeatureStatistics],
    schema: Schema,
    rules: Rules,
    split: str,
    base_name: str,
) -> Iterator[Violation]:
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
        if check in feature_rules.disabled_checks:
            continue
        pair = _FeaturePair(
            check, sample, base_features[name], schema=schema, split=split, base_name=base_name
        )
        distance = feature_rules.drift if check == DRIFT_CHECK else feature_rules.skew
        yield from pair.compare_missing(limits.missing)
        if not sample.present or not base_features[name].present:
            continue
        if not sample.values or not base_features[name].values:
            yield from pair.compare_empty_lists(limits.missing)
            continue
        if sample.type != base_features[name].type:
            yield pair.make_violation(
                f"is of type {sample.type}, and in {base_name} {base_features[name].type}",
                sample.type,
            )
            continue
        if schema[name].ragged_rank:
            yield from pair.compare_lengths(limits.jensen_shannon)
        if pair.are_categories:
            yield from pair.compare_categories(distance or limits.l_infinity)
            yield from pair.compare_new_values(limits.new_values)
            if not pair.are_listed:
                yield from pair.compare_sizes(limits.jensen_shannon)
        elif sample.type == "BYTES":
            yield from pair.compare_sizes(distance or limits.jensen_shannon)
        else:
            yield from pair.compare_numbers(distance or limits.jensen_shannon)


class _FeaturePair:
    """One feature in two samples.

    Attributes:
        sample: The sample that is checked.
        base: The sample that it is compared with.
        base_name: The name of the other sample in messages.
        are_categories: Whether the shares of values are compared.
        are_listed: Whether both samples list all values.
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
        self.are_categories = all(
            _is_category(statistics, sample.name == schema.label) for statistics in (sample, base)
        )
        self.are_listed = sample.lists_all_values and base.lists_all_values
        self.counts = _sample_size(sample), _sample_size(base)

    def make_violation(
        self, message: str, figure: float | str, threshold: float | str | None = None
    ) -> Violation:
        return Violation(
            self.check,
            message,
            _REMEDIES[self.check],
            self.sample.name,
            self.split,
            figure,
            threshold,
        )

    def compare_missing(self, limit: Threshold | None) -> Iterator[Violation]:
        """Compares the shares of records that lack the feature."""
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
        """Finds lists that are all empty in one of the samples alone."""
        max_gap = 1.0 if limit is None else _max_figure(limit, share_allowance(self.counts))
        if (self.sample.values > 0) != (self.base.values > 0) and max_gap < 1:
            message = f"has {self.sample.values:,} values in its lists, and in {self.base_name} {self.base.values:,}"
            yield self.make_violation(message, 1.0, max_gap)

    def compare_categories(self, limit: Threshold | None) -> Iterator[Violation]:
        """Compares the shares of values, by the value whose shares differ most."""
        sample, base = self.sample, self.base
        sizes = float(sample.values), float(base.values)
        largest = l_infinity_distance(
            sample.top_values, base.top_values, sizes, (sample.unlisted, base.unlisted)
        )
        if limit is None or largest is None:
            return
        value, gap = largest
        max_gap = _max_figure(
            limit, share_allowance(self.counts, len({*sample.top_values, *base.top_values}))
        )
        if gap > max_gap:
            shares = [
                statistics.top_values.get(value, 0) / max(statistics.values, 1)
                for statistics in (sample, base)
            ]
            message = (
                f"{format_value(self.feature, value)} is {format_percent(shares[0])} of the values, and in {self.base_name} "
                f"{format_percent(shares[1])}: L-infinity distance {gap:.4g} above {max_gap:.4g}"
            )
            yield self.make_violation(message, gap, max_gap)

    def compare_new_values(self, limit: Threshold | None) -> Iterator[Violation]:
        """Compares the share of values that the other sample has not."""
        base_counts = self.base.top_values
        if limit is None or not self.are_listed:
            return
        new = {
            value: count
            for value, count in self.sample.top_values.items()
            if value not in base_counts
        }
        share = sum(new.values()) / max(self.sample.values, 1)
        max_share = _max_figure(
            limit, unseen_share(base_counts.values()) + share_allowance(self.counts)
        )
        if share > max_share:
            message = (
                f"{format_percent(share)} of the values, {format_value(self.feature, next(iter(new)))} among them, do not occur "
                f"in {self.base_name}: above {format_percent(max_share)}"
            )
            yield self.make_violation(message, share, max_share)

    def compare_numbers(self, limit: Threshold | None) -> Iterator[Violation]:
        """Compares the distributions of numbers."""
        means = [statistics.mean for statistics in (self.sample, self.base)]
        details = "" if None in means else f" (mean {means[0]:.5g}, there {means[1]:.5g})"
        if self.are_listed:
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

    def compare_sizes(self, limit: Threshold | None) -> Iterator[Violation]:
        """Compares the bytes of texts or of binary values."""
        histogram, base_histogram = self.sample.size_histogram, self.base.size_histogram
        if histogram is not None and base_histogram is not None:
            yield from self._compare_integers(limit, "sizes in bytes", histogram, base_histogram)

    def compare_lengths(self, limit: Threshold | None) -> Iterator[Violation]:
        """Compares how many values the lists hold."""
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
        max_divergence = _max_figure(limit, divergence_allowance(self.counts, buckets))
        if divergence > max_divergence:
            message = (
                f"the {subject} are not distributed as in {self.base_name}: Jensen-Shannon divergence {divergence:.4g} "
                f"above {max_divergence:.4g}{details}"
            )
            yield self.make_violation(message, divergence, max_divergence)


def _read_histogram(statistics: FeatureStatistics, of_quantiles: bool) -> BucketHistogram:
    proto = statistics.histogram(of_quantiles)
    histogram = BucketHistogram.from_proto(statistics_pb2.Histogram() if proto is None else proto)
    are_positive = of_quantiles and statistics.min is not None and statistics.min >= 0
    return histogram.with_points(statistics.infinities, float(statistics.zeros), are_positive)


def _is_category(statistics: FeatureStatistics, is_label: bool) -> bool:
    if statistics.type == "STRING":
        return True
    return statistics.lists_all_values and (
        is_label or (statistics.distinct or 0) <= _MAX_CATEGORIES
    )


def _sample_size(statistics: FeatureStatistics) -> float:
    """Returns how many records the figures are of: values of one record are not independent."""
    present = float(max(statistics.present, 1))
    return present if statistics.sampled is None else min(present, float(statistics.sampled))


def _max_figure(limit: Threshold, by_chance: float) -> float:
    return min(limit.maximum + by_chance, 1.0) if limit.is_default else limit.maximum
