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
from recordmill.checks.violations import Violation, value_name
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.splits import TRAIN_SPLIT
from recordmill.statistics.dataset_statistics import DatasetStatistics, FeatureStatistics

_Floats = npt.NDArray[np.float64]
_LARGE = 1e300
_CHANCE = (
    1e-6  # of one figure that it passes its allowance though both samples are of one distribution
)


@dataclass(frozen=True)
class BucketHistogram:
    """Buckets of values.

    Attributes:
        edges: [buckets, 2] low and high, finite and apart.
        counts: [buckets].
        points: Value to count of buckets without width.
        infinite: The count of buckets with an infinite edge.
        nans: How many values are none.
    """

    edges: _Floats
    counts: _Floats
    points: Mapping[float, float]
    infinite: float = 0.0
    nans: float = 0.0

    @classmethod
    def of_proto(cls, proto: Any) -> BucketHistogram:
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
        return math.fsum([*self.counts.tolist(), *self.points.values(), self.infinite, self.nans])

    def bounded(self) -> BucketHistogram:
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
            at: float(count)
            for at, count in zip((-math.inf, math.inf), infinities, strict=True)
            if count
        }
        return replace(self, points=points, counts=np.maximum(counts, 0.0))

    def with_widths(self, least: float) -> BucketHistogram:
        """Returns whole numbers' buckets, each as wide as `least`: none is a point, and a shared edge is one number."""
        points = np.array(list(self.points.items()), np.float64).reshape(-1, 2)
        edges = np.concatenate([self.edges, points[:, :1].repeat(2, 1)]) + np.array(
            [-least / 2, least / 2]
        )
        order = np.argsort(edges[:, 0], kind="stable")
        return replace(
            self,
            edges=edges[order],
            counts=np.concatenate([self.counts, points[:, 1]])[order],
            points={},
        )

    def spread(self, edges: _Floats) -> _Floats:
        """Returns the counts between each edge and the next, [edges - 1], with buckets' values spread evenly."""
        scale = (
            2.0**-2 if len(edges) and np.abs(edges).max() > _LARGE else 1.0
        )  # so that no difference is infinite
        edges = edges * scale
        low, high = self.edges[:, :1] * scale, self.edges[:, 1:] * scale
        overlap = np.clip(np.minimum(high, edges[1:]) - np.maximum(low, edges[:-1]), 0, None)
        return np.asarray((overlap / (high - low) * self.counts[:, None]).sum(0))


def jensen_shannon(one: BucketHistogram, other: BucketHistogram) -> float | None:
    """Returns the Jensen-Shannon divergence in bits, in [0, 1]: over the edges of both; NaN, each point and what is
    infinite apart, of which the last is never alike. None: one of them is empty.

    In TensorFlow Data Validation NaN are left out where edges differ, and never alike where they do not: two equal data
    sets of which half is NaN are 0.5 apart. Here they are alike.
    """
    edges = np.unique(np.concatenate([one.edges.ravel(), other.edges.ravel()]))
    points = sorted({*one.points, *other.points})
    first, second = (
        np.concatenate([each.spread(edges), [each.points.get(point, 0.0) for point in points]])
        for each in (one, other)
    )
    first = np.concatenate([first, [one.infinite, 0.0, one.nans]])
    second = np.concatenate([second, [0.0, other.infinite, other.nans]])
    return _divergence(first, second)


def grouped_divergence(
    one: Mapping[str, float], other: Mapping[str, float], groups: int
) -> tuple[float, int]:
    """Returns the Jensen-Shannon divergence in bits of two samples of numbers that are all listed, as texts with how
    often each occurs, and how many groups there are: the numbers of both are cut, in their order, into so many groups
    of about as many values each.
    """
    values = sorted({*one, *other}, key=float)
    counts = np.array(
        [[each.get(value, 0.0) for value in values] for each in (one, other)], np.float64
    )
    shares = (counts / counts.sum(1, keepdims=True)).mean(0)
    group = np.minimum(groups * (np.cumsum(shares) - shares / 2), groups - 1).astype(np.int64)
    first, second = (np.asarray(np.bincount(group, each), np.float64) for each in counts)
    return _divergence(first, second) or 0.0, len(np.unique(group))


def _divergence(first: _Floats, second: _Floats) -> float | None:
    if not (first.sum() > 0 and second.sum() > 0):
        return None
    p, q = first / first.sum(), second / second.sum()
    middle = (p + q) / 2
    terms = [each[each > 0] * np.log2(each[each > 0] / middle[each > 0]) for each in (p, q)]
    return min(max(math.fsum(np.concatenate(terms).tolist()) / 2, 0.0), 1.0)


def l_infinity(
    one: Mapping[str, float],
    other: Mapping[str, float],
    totals: tuple[float, float],
    unlisted: tuple[float, float] = (0.0, 0.0),
) -> tuple[str, float] | None:
    """Returns the value, of those listed with how often each occurs, whose shares differ most, and by how much at
    least; None: none is listed. totals: how many values each sample has; unlisted: the most that the share of a value
    can be that it doesn't list.
    """

    def gap(value: str) -> float:
        shares = [
            (each[value] / max(total, 1.0),) * 2 if value in each else (0.0, most)
            for each, total, most in zip((one, other), totals, unlisted, strict=True)
        ]
        return max(shares[0][0] - shares[1][1], shares[1][0] - shares[0][1], 0.0)

    gaps = {value: gap(value) for value in sorted({*one, *other})}
    return max(gaps.items(), key=lambda item: item[1], default=None)


def share_allowance(counts: tuple[float, float], figures: int = 1) -> float:
    """Returns by how much shares in two samples of so many values may differ by chance, of so many figures the largest
    one: once in a million (Hoeffding's bound for the difference of two means).
    """
    inverse = _inverse_sum(counts)
    return math.sqrt(inverse * math.log(2 * max(figures, 1) / _CHANCE) / 2)


def divergence_allowance(counts: tuple[float, float], buckets: int) -> float:
    """Returns how large the Jensen-Shannon divergence of two such samples may be by chance: 2 ln 2 times it, scaled by
    the sizes, is close to chi-square with a degree of freedom for each bucket but one; the bound is that of Laurent and
    Massart ("Adaptive estimation of a quadratic functional", 2000).
    """
    freedom, chance = max(buckets - 1, 1), math.log(1 / _CHANCE)
    most = freedom + 2 * math.sqrt(freedom * chance) + 2 * chance
    return most * _inverse_sum(counts) / (8 * math.log(2))


def unseen_share(counts: Iterable[float]) -> float:
    """Returns the share of values that a further sample of the same distribution has and this one not: that of the
    values that stand in it once (Good, "The population frequencies of species", 1953).
    """
    known = list(counts)
    return sum(1 for count in known if count == 1) / max(math.fsum(known), 1.0)


def _inverse_sum(counts: tuple[float, float]) -> float:
    return sum(1 / max(count, 1.0) for count in counts)


DRIFT, SKEW = "drift", "skew"
_CATEGORIES = 100  # distinct integers that are compared one by one; a label's always are
_GROUPS = 10  # of about as many numbers each, where all are listed
_FINE = (
    0.02  # the error of quantiles' ranks, with which they are compared; else equal widths say more
)

_REMEDIES = {
    DRIFT: "look at both by `recordmill stats`; train anew, mend the source, or allow it in the rules (drift)",
    SKEW: f"look at both by `recordmill stats`; split by chance ({option('splits')}), or allow it in the rules (skew)",
}


def drift(
    statistics: DatasetStatistics, other: DatasetStatistics, schema: Schema, rules: Rules, name: str
) -> Iterator[Violation]:
    """Compares each split with that of the same name in another data set, which messages call by that name, or, where
    there is none, with its split for training.
    """
    for split in statistics if other else ():
        base = split if split in other else _for_training(other)
        base_name = f"split {base!r} of {name}" if base else name
        yield from _compare(DRIFT, statistics[split], other[base], schema, rules, split, base_name)


def skew(statistics: DatasetStatistics, schema: Schema, rules: Rules) -> Iterator[Violation]:
    """Compares each split with the one for training."""
    if len(statistics) > 1:
        base = _for_training(statistics)
        for split in (split for split in statistics if split != base):
            yield from _compare(
                SKEW, statistics[split], statistics[base], schema, rules, split, f"split {base!r}"
            )


def _for_training(statistics: DatasetStatistics) -> str:
    return TRAIN_SPLIT if TRAIN_SPLIT in statistics else next(iter(statistics))


def _compare(
    check: str,
    features: Mapping[str, FeatureStatistics],
    others: Mapping[str, FeatureStatistics],
    schema: Schema,
    rules: Rules,
    split: str,
    base_name: str,
) -> Iterator[Violation]:
    limits = (
        rules.drift if check == DRIFT else rules.skew if rules.skew is not None else Thresholds()
    )
    for name, one in features.items():
        if name not in others or name not in schema:
            continue
        own = rules.of(name)
        if check in own.off:
            continue
        pair = _Pair(check, one, others[name], schema, split, base_name)
        distance = own.drift if check == DRIFT else own.skew
        yield from pair.missing(limits.missing)
        if not one.present or not others[name].present:
            continue
        if not one.values or not others[name].values:
            yield from pair.empty_lists(limits.missing)
            continue
        if one.type != others[name].type:
            yield pair.violation(
                f"is of type {one.type}, and in {base_name} {others[name].type}", one.type
            )
            continue
        if schema[name].ragged_rank:
            yield from pair.lengths(limits.jensen_shannon)
        if pair.are_categories:
            yield from pair.categories(distance or limits.l_infinity)
            yield from pair.new_values(limits.new_values)
            if not pair.are_listed:
                yield from pair.sizes(limits.jensen_shannon)
        elif one.type == "BYTES":
            yield from pair.sizes(distance or limits.jensen_shannon)
        else:
            yield from pair.numbers(distance or limits.jensen_shannon)


class _Pair:
    """One feature in two samples.

    Attributes:
        one: The sample that is checked.
        other: The sample that it is compared with.
        base_name: The name of the other sample in messages.
        are_categories: Whether the shares of values are compared.
        are_listed: Whether both samples list all values.
    """

    def __init__(
        self,
        check: str,
        one: FeatureStatistics,
        other: FeatureStatistics,
        schema: Schema,
        split: str,
        base_name: str,
    ) -> None:
        self.check, self.one, self.other, self.split, self.base_name = (
            check,
            one,
            other,
            split,
            base_name,
        )
        self.feature: Feature = schema[one.name]
        self.are_categories = all(
            _is_category(each, one.name == schema.label) for each in (one, other)
        )
        self.are_listed = one.lists_all_values and other.lists_all_values
        self.counts = _size(one), _size(other)

    def violation(
        self, what: str, figure: float | str, threshold: float | str | None = None
    ) -> Violation:
        return Violation(
            self.check, what, _REMEDIES[self.check], self.one.name, self.split, figure, threshold
        )

    def missing(self, limit: Threshold | None) -> Iterator[Violation]:
        """Compares the shares of records that lack the feature."""
        totals = [float(each.present + each.missing) for each in (self.one, self.other)]
        shares = [
            each.missing / max(total, 1)
            for each, total in zip((self.one, self.other), totals, strict=True)
        ]
        gap = abs(shares[0] - shares[1])
        if limit is not None and gap > (
            most := _most(limit, share_allowance((totals[0], totals[1])))
        ):
            what = f"is missing in {format_percent(shares[0])} of the records, and in {self.base_name} in {format_percent(shares[1])}"
            yield self.violation(f"{what}: a difference above {format_percent(most)}", gap, most)

    def empty_lists(self, limit: Threshold | None) -> Iterator[Violation]:
        """Finds lists that are all empty in one of the samples alone."""
        most = 1.0 if limit is None else _most(limit, share_allowance(self.counts))
        if (self.one.values > 0) != (self.other.values > 0) and most < 1:
            what = f"has {self.one.values:,} values in its lists, and in {self.base_name} {self.other.values:,}"
            yield self.violation(what, 1.0, most)

    def categories(self, limit: Threshold | None) -> Iterator[Violation]:
        """Compares the shares of values, by the value whose shares differ most."""
        one, other = self.one, self.other
        sizes = float(one.values), float(other.values)
        largest = l_infinity(
            one.top_values, other.top_values, sizes, (one.unlisted, other.unlisted)
        )
        if limit is None or largest is None:
            return
        value, gap = largest
        most = _most(limit, share_allowance(self.counts, len({*one.top_values, *other.top_values})))
        if gap > most:
            shares = [each.top_values.get(value, 0) / max(each.values, 1) for each in (one, other)]
            what = (
                f"{value_name(self.feature, value)} is {format_percent(shares[0])} of the values, and in {self.base_name} "
                f"{format_percent(shares[1])}: L-infinity distance {gap:.4g} above {most:.4g}"
            )
            yield self.violation(what, gap, most)

    def new_values(self, limit: Threshold | None) -> Iterator[Violation]:
        """Compares the share of values that the other sample has not."""
        base = self.other.top_values
        if limit is None or not self.are_listed:
            return
        new = {value: count for value, count in self.one.top_values.items() if value not in base}
        share = sum(new.values()) / max(self.one.values, 1)
        most = _most(limit, unseen_share(base.values()) + share_allowance(self.counts))
        if share > most:
            what = (
                f"{format_percent(share)} of the values, {value_name(self.feature, next(iter(new)))} among them, do not occur "
                f"in {self.base_name}: above {format_percent(most)}"
            )
            yield self.violation(what, share, most)

    def numbers(self, limit: Threshold | None) -> Iterator[Violation]:
        """Compares the distributions of numbers."""
        means = [each.mean for each in (self.one, self.other)]
        more = "" if None in means else f" (mean {means[0]:.5g}, there {means[1]:.5g})"
        if self.are_listed:
            divergence, groups = grouped_divergence(
                self.one.top_values, self.other.top_values, _GROUPS
            )
            yield from self._divergence(limit, "values", divergence, groups, more)
            return
        are_fine = all((each.quantile_error or 0) <= _FINE for each in (self.one, self.other))
        one, other = (_histogram(each, are_fine) for each in (self.one, self.other))
        if are_fine:
            one, other = one.bounded(), other.bounded()
        yield from self._histograms(limit, "values", one, other, more)

    def sizes(self, limit: Threshold | None) -> Iterator[Violation]:
        """Compares the bytes of texts or of binary values."""
        one, other = self.one.size_histogram, self.other.size_histogram
        if one is not None and other is not None:
            yield from self._whole_numbers(limit, "sizes in bytes", one, other)

    def lengths(self, limit: Threshold | None) -> Iterator[Violation]:
        """Compares how many values the lists hold."""
        yield from self._whole_numbers(
            limit, "lengths of lists", self.one.length_histogram, self.other.length_histogram
        )

    def _whole_numbers(self, limit: Threshold | None, of: str, *protos: Any) -> Iterator[Violation]:
        one, other = (BucketHistogram.of_proto(each).with_widths(1.0).bounded() for each in protos)
        yield from self._histograms(limit, of, one, other, "")

    def _histograms(
        self,
        limit: Threshold | None,
        of: str,
        one: BucketHistogram,
        other: BucketHistogram,
        more: str,
    ) -> Iterator[Violation]:
        buckets = sum(len(each.edges) + len(each.points) + 1 for each in (one, other))
        yield from self._divergence(limit, of, jensen_shannon(one, other), buckets, more)

    def _divergence(
        self, limit: Threshold | None, of: str, divergence: float | None, buckets: int, more: str
    ) -> Iterator[Violation]:
        if limit is None or divergence is None:
            return
        most = _most(limit, divergence_allowance(self.counts, buckets))
        if divergence > most:
            what = (
                f"the {of} are not distributed as in {self.base_name}: Jensen-Shannon divergence {divergence:.4g} "
                f"above {most:.4g}{more}"
            )
            yield self.violation(what, divergence, most)


def _histogram(one: FeatureStatistics, of_quantiles: bool) -> BucketHistogram:
    proto = one.histogram(of_quantiles)
    histogram = BucketHistogram.of_proto(statistics_pb2.Histogram() if proto is None else proto)
    are_positive = of_quantiles and one.min is not None and one.min >= 0
    return histogram.with_points(one.infinities, float(one.zeros), are_positive)


def _is_category(one: FeatureStatistics, is_label: bool) -> bool:
    if one.type == "STRING":
        return True
    return one.lists_all_values and (is_label or (one.distinct or 0) <= _CATEGORIES)


def _size(one: FeatureStatistics) -> float:
    """Returns how many records the figures are of: values of one record are not independent."""
    present = float(max(one.present, 1))
    return present if one.sampled is None else min(present, float(one.sampled))


def _most(limit: Threshold, by_chance: float) -> float:
    return min(limit.most + by_chance, 1.0) if limit.is_default else limit.most
