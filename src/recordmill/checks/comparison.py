"""Two samples of statistics, to the `Violation`s of the thresholds between them: `drift`, a data set against another
one, and `skew`, its splits against that for training.

Categories, which are texts and numbers of few values, are compared by the shares of their values, other numbers by the
histograms of their quantiles, whatever their tails are, or, where quantiles are not known well, by those of equal
widths; binary values by those of their sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tensorflow_metadata.proto.v0 import statistics_pb2

from recordmill.base.option_names import option
from recordmill.checks.distance import (
    BucketHistogram,
    divergence_allowance,
    grouped_divergence,
    jensen_shannon,
    l_infinity,
    share_allowance,
    unseen_share,
)
from recordmill.checks.rules import QUANTILE_BUCKETS, Rules, Threshold, Thresholds
from recordmill.checks.violations import Violation, percent, value_name
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.splits import TRAIN
from recordmill.statistics.dataset_statistics import DatasetStatistics, FeatureStatistics

DRIFT, SKEW = "drift", "skew"
_CATEGORIES = 100  # distinct integers that are compared one by one; a label's always are
_GROUPS = 10  # of about as many numbers each, where all are listed
_FINE = 0.02  # the error of quantiles' ranks, with which they are compared

_REMEDIES = {
    DRIFT: "look at both by `recordmill stats`; train anew, mend the source, or allow it in the rules (drift)",
    SKEW: f"look at both by `recordmill stats`; split by chance ({option('splits')}), or allow it in the rules (skew)",
}


def drift(
    statistics: DatasetStatistics, other: DatasetStatistics, schema: Schema, rules: Rules, called: str
) -> Iterator[Violation]:
    """What of each split differs from that of the other data set, which messages call by that name: the split of the
    same name or, where it has none, that for training.
    """
    for split in statistics if other else ():
        base = split if split in other else _for_training(other)
        named = f"split {base!r} of {called}" if base else called
        yield from _compare(DRIFT, statistics[split], other[base], schema, rules, split, named)


def skew(statistics: DatasetStatistics, schema: Schema, rules: Rules) -> Iterator[Violation]:
    """What of each split differs from that for training."""
    if len(statistics) > 1:
        base = _for_training(statistics)
        for split in (split for split in statistics if split != base):
            yield from _compare(SKEW, statistics[split], statistics[base], schema, rules, split, f"split {base!r}")


def _for_training(statistics: DatasetStatistics) -> str:
    return TRAIN if TRAIN in statistics else next(iter(statistics))


def _compare(
    check: str,
    features: Mapping[str, FeatureStatistics],
    others: Mapping[str, FeatureStatistics],
    schema: Schema,
    rules: Rules,
    split: str,
    called: str,
) -> Iterator[Violation]:
    known = rules.drift if check == DRIFT else rules.skew if rules.skew is not None else Thresholds()
    for name, one in features.items():
        if name not in others or name not in schema:
            continue
        own = rules.of(name)
        pair = _Pair(check, one, others[name], schema, split, called)
        if check in own.off:
            continue
        distance = own.drift if check == DRIFT else own.skew
        yield from pair.missing(known.missing)
        if not one.present or not others[name].present:
            continue
        if not one.values or not others[name].values:
            yield from pair.no_values(known.missing)
            continue
        if one.type != others[name].type:
            yield pair.violation(f"is of type {one.type}, and in {called} {others[name].type}", one.type)
        elif pair.are_categories:
            yield from pair.categories(distance or known.l_infinity)
            yield from pair.new_values(known.new_values)
        else:
            yield from pair.histograms(distance or known.jensen_shannon, rules.histogram)


class _Pair:
    """A feature in two samples, of which the other one is what it is compared with."""

    def __init__(
        self, check: str, one: FeatureStatistics, other: FeatureStatistics, schema: Schema, split: str, called: str
    ) -> None:
        self.check, self.one, self.other, self.split, self.called = check, one, other, split, called
        self.feature: Feature = schema[one.name]
        self.are_categories = all(_is_category(each, one.name == schema.label) for each in (one, other))
        self.counts = _size(one), _size(other)

    def violation(self, what: str, figure: float | str, threshold: float | str | None = None) -> Violation:
        return Violation(self.check, what, _REMEDIES[self.check], self.one.name, self.split, figure, threshold)

    def missing(self, limit: Threshold | None) -> Iterator[Violation]:
        shares = [each.missing / max(each.present + each.missing, 1) for each in (self.one, self.other)]
        gap = abs(shares[0] - shares[1])
        if limit is not None:
            totals = tuple(float(each.present + each.missing) for each in (self.one, self.other))
            most = _most(limit, share_allowance((totals[0], totals[1])))
            if gap > most:
                what = (
                    f"is missing in {percent(shares[0])} of the records, and in {self.called} in {percent(shares[1])}"
                )
                yield self.violation(f"{what}: a difference above {percent(most)}", gap, most)

    def no_values(self, limit: Threshold | None) -> Iterator[Violation]:
        """All lists are empty in one of the samples alone."""
        most = 1.0 if limit is None else _most(limit, share_allowance(self.counts))
        if (self.one.values > 0) != (self.other.values > 0) and most < 1:
            what = f"has {self.one.values:,} values in its lists, and in {self.called} {self.other.values:,}"
            yield self.violation(what, 1.0, most)

    def categories(self, limit: Threshold | None) -> Iterator[Violation]:
        one, other = self.one, self.other
        sizes = float(one.values), float(other.values)
        found = l_infinity(one.top_values, other.top_values, sizes, (one.unlisted, other.unlisted))
        if limit is None or found is None:
            return
        figures = len({*self.one.top_values, *self.other.top_values})
        most = _most(limit, share_allowance(self.counts, figures))
        if found[1] > most:
            shares = [each.top_values.get(found[0], 0) / max(each.values, 1) for each in (one, other)]
            what = (
                f"{value_name(self.feature, found[0])} is {percent(shares[0])} of the values, and in {self.called} "
                f"{percent(shares[1])}: L-infinity distance {found[1]:.4g} above {most:.4g}"
            )
            yield self.violation(what, found[1], most)

    def new_values(self, limit: Threshold | None) -> Iterator[Violation]:
        base = self.other.top_values
        if limit is None or not (_is_whole(self.one) and _is_whole(self.other)):
            return
        new = {value: count for value, count in self.one.top_values.items() if value not in base}
        share = sum(new.values()) / max(self.one.values, 1)
        most = _most(limit, unseen_share(base.values()) + share_allowance(self.counts))
        if share > most:
            what = (
                f"{percent(share)} of the values, {value_name(self.feature, next(iter(new)))} among them, do not occur "
                f"in {self.called}: above {percent(most)}"
            )
            yield self.violation(what, share, most)

    def histograms(self, limit: Threshold | None, wanted: str | None) -> Iterator[Violation]:
        """wanted: as `Rules.histogram`."""
        are_fine = all(map(_has_fine_quantiles, (self.one, self.other)))
        of_quantiles = are_fine if wanted is None else wanted == QUANTILE_BUCKETS
        if limit is None:
            return
        if wanted is None and all(map(_is_whole, (self.one, self.other))):
            found: float | None
            found, buckets = grouped_divergence(self.one.top_values, self.other.top_values, _GROUPS)
        else:
            one, other = (_histogram(each, of_quantiles) for each in (self.one, self.other))
            if wanted is None and of_quantiles:
                one, other = one.bounded(), other.bounded()
            found = jensen_shannon(one, other)
            buckets = sum(len(each.edges) + len(each.points) + 1 for each in (one, other))
        most = _most(limit, divergence_allowance(self.counts, buckets))
        if found is not None and found > most:
            of = "sizes in bytes" if self.one.type == "BYTES" else "values"
            what = (
                f"the {of} are not distributed as in {self.called}: Jensen-Shannon divergence {found:.4g} above "
                f"{most:.4g}{self._means()}"
            )
            yield self.violation(what, found, most)

    def _means(self) -> str:
        means = [each.mean for each in (self.one, self.other)]
        return "" if None in means else f" (mean {means[0]:.5g}, there {means[1]:.5g})"


def _histogram(one: FeatureStatistics, of_quantiles: bool) -> BucketHistogram:
    proto = one.histogram(of_quantiles)
    found = BucketHistogram.of_proto(statistics_pb2.Histogram() if proto is None else proto)
    are_positive = of_quantiles and one.type != "BYTES" and one.min is not None and one.min >= 0
    return found.with_points(one.infinities, float(one.zeros), are_positive)


def _is_category(one: FeatureStatistics, is_label: bool) -> bool:
    if one.type == "STRING":
        return True
    return _is_whole(one) and (is_label or (one.distinct or 0) <= _CATEGORIES)


def _is_whole(one: FeatureStatistics) -> bool:
    """Whether all values are listed, with their counts."""
    return one.top_values_are_exact and bool(one.top_values) and sum(one.top_values.values()) == one.values


def _has_fine_quantiles(one: FeatureStatistics) -> bool:
    """Whether quantiles are known well enough; else histograms of equal widths tell more."""
    return (one.quantile_error or 0) <= _FINE


def _size(one: FeatureStatistics) -> float:
    """How many records the figures are of: values of one record are not independent."""
    present = float(max(one.present, 1))
    return present if one.sampled is None else min(present, float(one.sampled))


def _most(limit: Threshold, by_chance: float) -> float:
    return min(limit.most + by_chance, 1.0) if limit.is_default else limit.most
