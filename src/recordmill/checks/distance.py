"""Measures the distance of two distributions as TensorFlow Data Validation does, and the distance that chance may make
between two samples of one distribution.

After `anomalies/metrics.cc` of TensorFlow Data Validation 1.16 (https://github.com/tensorflow/data-validation).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]
_LARGE = 1e300
_CHANCE = 1e-6  # of one figure that it passes its allowance though both samples are of one distribution


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
        rows = np.array([(b.low_value, b.high_value, b.sample_count) for b in proto.buckets], np.float64).reshape(-1, 3)
        is_finite = np.isfinite(rows[:, :2]).all(1)
        is_point = is_finite & (rows[:, 0] == rows[:, 1])
        wide = rows[is_finite & ~is_point]
        points: dict[float, float] = {}
        for value, _, count in rows[is_point].tolist():
            points[value] = points.get(value, 0.0) + count
        return cls(wide[:, :2], wide[:, 2], points, float(rows[~is_finite, 2].sum()), float(proto.num_nan))

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

    def with_points(self, infinities: tuple[int, int], zeros: float, are_positive: bool) -> BucketHistogram:
        """Returns the histogram with infinite values as points, as these are alike, and the zeros of numbers from 0 on
        as well.

        Buckets of quantiles have a tenth of the values each, so that nearly as many zeros as in another sample may be
        one point fewer.
        """
        points, counts = dict(self.points), self.counts.copy()
        if are_positive and zeros:
            counts[self.edges[:, 0] == 0] -= zeros - points.get(0.0, 0.0)
            points[0.0] = zeros
        points |= {at: float(count) for at, count in zip((-math.inf, math.inf), infinities, strict=True) if count}
        return replace(self, points=points, counts=np.maximum(counts, 0.0))

    def with_widths(self, least: float) -> BucketHistogram:
        """Returns the histogram of whole numbers, each as wide as `least`, so that none is a point and buckets that
        share an edge share that number.
        """
        points = np.array(list(self.points.items()), np.float64).reshape(-1, 2)
        edges = np.concatenate([self.edges, points[:, :1].repeat(2, 1)]) + np.array([-least / 2, least / 2])
        order = np.argsort(edges[:, 0], kind="stable")
        return replace(self, edges=edges[order], counts=np.concatenate([self.counts, points[:, 1]])[order], points={})

    def spread(self, edges: _Floats) -> _Floats:
        """Returns the counts between each edge and the next one, [edges - 1], as if each bucket's values were spread
        evenly.
        """
        scale = 2.0**-2 if len(edges) and np.abs(edges).max() > _LARGE else 1.0  # so that no difference is infinite
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
        np.concatenate([each.spread(edges), [each.points.get(point, 0.0) for point in points]]) for each in (one, other)
    )
    first = np.concatenate([first, [one.infinite, 0.0, one.nans]])
    second = np.concatenate([second, [0.0, other.infinite, other.nans]])
    return _divergence(first, second)


def grouped_divergence(one: Mapping[str, float], other: Mapping[str, float], groups: int) -> tuple[float, int]:
    """Compares numbers of which all are listed.

    Args:
        one: Number, as text, to how often it occurs.
        other: The same of the other sample.
        groups: Into how many groups of about as many values each the numbers of both are cut, in their order.

    Returns:
        The Jensen-Shannon divergence in bits of what the samples have in each group, and how many groups there are.
    """
    values = sorted({*one, *other}, key=float)
    counts = np.array([[each.get(value, 0.0) for value in values] for each in (one, other)], np.float64)
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
    """Finds the value whose shares differ most.

    Args:
        one: Value to how often it occurs, of the values that are listed.
        other: The same of the other sample.
        totals: How many values each sample has, listed or not.
        unlisted: The most that the share of a value can be that each doesn't list.

    Returns:
        The value, and by how much its shares differ at least. None: no value is listed.
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
