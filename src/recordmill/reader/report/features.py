"""Table of the features in a report.

The table shows types, missing values, ranges, distributions and frequent values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from recordmill.base.sizes import format_count, format_percent, format_size
from recordmill.reader.report.markup import (
    NUM_COLOURS,
    HistogramBuckets,
    format_number,
    format_plain_number,
    format_range,
    render_bar,
    render_frequent_value,
    render_histogram,
    render_table,
    render_text,
)
from recordmill.schemas.arrow import format_ticks
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_statistics import DatasetStatistics
from recordmill.statistics.feature_statistics import (
    MAX_SHOWN_ELEMENTS,
    FeatureStatistics,
    format_value,
)

MAX_REPORT_FEATURES = 2000  # number of rows of the table
_MAX_FREQUENT = 3  # number of values that are listed per feature
_MAX_BUCKETS = 40  # number of buckets of a histogram of integers


def render_features(schema: Schema, statistics: DatasetStatistics) -> str:
    """Returns the HTML of the table of features, with one row per feature."""
    splits = list(statistics)
    keys = " ".join(
        f"{render_bar(0.05, i)} {render_text(split)}"
        for i, split in enumerate(splits[:NUM_COLOURS])
    )
    rows = []
    for feature in list(schema)[:MAX_REPORT_FEATURES]:
        figures = [
            statistics[split][feature.name] for split in splits if feature.name in statistics[split]
        ]
        rows.append(_feature_row(feature, figures))
    num_omitted = len(schema) - len(rows)
    first = (
        f'<p class="pale">The figures are those of {render_text(splits[0])}; missing is of all splits.</p>'
        if splits[1:]
        else ""
    )
    return (
        f"<p>{keys}</p>{first}"
        + render_table(
            (
                "feature",
                "type",
                "missing",
                "distinct",
                "least",
                "mean",
                "deviation",
                "greatest",
                "values",
                "most frequent",
            ),
            rows,
            (2, 3, 4, 5, 6, 7),
        )
        + (f"<p>{num_omitted:,} more features</p>" if num_omitted else "")
        + _render_elements(list(schema)[:MAX_REPORT_FEATURES], statistics)
    )


def _render_elements(features: Sequence[Feature], statistics: DatasetStatistics) -> str:
    """Returns a table with statistics of each element of small arrays.

    The table covers the first split. Without such statistics, the result is "".
    """
    first_split = next(iter(statistics.values()), {})
    rows = [
        tuple(map(render_text, row))
        for feature in features
        if feature.name in first_split
        and (elements := first_split[feature.name].elements) is not None
        and elements.finite.size <= MAX_SHOWN_ELEMENTS
        for row in elements.rows(feature.name)
    ]
    header = ("element", "mean", "deviation", "least", "1 %", "50 %", "99 %", "greatest")
    return render_table(header, rows, range(1, len(header))) if rows else ""


def _feature_row(feature: Feature, figures: Sequence[FeatureStatistics]) -> tuple[str, ...]:
    first = figures[0] if figures else None
    if first is None:
        return (render_text(feature.name), render_text(feature.describe()), *[""] * 8)
    records = sum(statistics.present + statistics.missing for statistics in figures)
    missing = sum(statistics.missing for statistics in figures)
    return (
        render_text(feature.name),
        render_text(feature.describe()),
        format_percent(missing / records) if missing else "",
        f"{'~' if first.distinct_error else ''}{format_number(first.distinct)}",
        *_number_cells(feature, first),
        "".join(
            f'{histogram}<p class="pale">{note}</p>' if note else histogram
            for histogram, note in _render_distributions(feature, figures)
        ),
        _frequent_values(feature, first),
    )


def _number_cells(feature: Feature, statistics: FeatureStatistics) -> tuple[str, ...]:
    """Returns the cells for minimum, mean, deviation and maximum.

    For classes, the cells are empty.
    """
    if feature.classes is not None:
        return ("",) * 4
    if feature.timestamp:
        minimum, maximum = (
            render_text(_format_time(feature, value)).replace(" ", "<br>", 1)
            for value in (statistics.min, statistics.max)
        )
        return minimum, "", "", maximum
    if (colours := statistics.colours) is not None:
        mean, deviation = (
            "<br>".join(map(format_number, values)) for values in (colours.mean, colours.std_dev)
        )
        return "", mean, deviation, ""
    return (
        format_plain_number(statistics.min),
        format_number(statistics.mean),
        format_number(statistics.std_dev),
        format_plain_number(statistics.max),
    )


def _format_time(feature: Feature, value: float | None) -> str:
    """Returns a point in time as the records show it, or "" for None.

    Args:
        feature: The feature, which determines the unit.
        value: Ticks of that unit.
    """
    return "" if value is None else format_ticks(value, feature)


def _format_value(feature: Feature, value: float) -> str:
    return format_plain_number(value)


def _frequent_values(feature: Feature, statistics: FeatureStatistics) -> str:
    if statistics.distinct == statistics.values > _MAX_FREQUENT and not statistics.distinct_error:
        return '<p class="pale">each once</p>' if statistics.top_values else ""
    approximate = "" if statistics.top_values_are_exact else "~"
    return "".join(
        render_frequent_value(
            render_text(format_value(value, feature)),
            count / max(statistics.values, 1),
            f"{approximate}{count:,}",
        )
        for value, count in list(statistics.top_values.items())[:_MAX_FREQUENT]
    )


def _render_distributions(
    feature: Feature, figures: Sequence[FeatureStatistics]
) -> Iterator[tuple[str, str]]:
    """Yields (histogram, note) for each histogram of a feature, as HTML.

    There are histograms of the values, of the number of values per record, and of the sizes of
    texts and binary values.
    """
    first = figures[0]
    if feature.classes is None:
        ends = [
            value
            for statistics in figures
            for value in (statistics.min, statistics.max)
            if value is not None
        ]
        format_end = _format_time if feature.timestamp else _format_value
        axis = (
            (format_end(feature, min(ends)), format_end(feature, max(ends))) if ends else ("", "")
        )
        yield render_histogram(_value_buckets(figures), " to ".join(axis), axis), ""
    minimum, mean, maximum = first.lengths
    if minimum != maximum:
        lengths = [_length_buckets(statistics) for statistics in figures]
        yield (
            render_histogram(
                lengths, "values of a record", _find_axis_ends(figures, "lengths", "{:,}".format)
            ),
            f"{format_range(minimum, maximum, 'values')}, {format_number(mean)} on average",
        )
    if (sizes := first.sizes) is not None:
        span = " to ".join(dict.fromkeys(map(format_size, (sizes[0], sizes[2]))))
        mean_text = f"{format_number(sizes[1])} B" if sizes[1] < 1024 else format_size(sizes[1])
        average = "" if sizes[0] == sizes[2] else f", {mean_text} on average"
        yield (
            render_histogram(
                [_size_buckets(statistics) for statistics in figures],
                "bytes of a value",
                _find_axis_ends(figures, "sizes", format_size),
            ),
            span + average,
        )
    notes = [
        f"{first.nans:,} NaN" if first.nans else "",
        f"{infinite:,} infinite" if (infinite := _count_infinite(first)) else "",
        format_count(first.zeros, "zero") if first.zeros and feature.classes is None else "",
        ""
        if first.colours is None
        else f"red, green, blue of {_images_text(first, first.colours.images)}",
    ]
    yield from (("", note) for note in notes if note)


def _find_axis_ends(
    figures: Sequence[FeatureStatistics], name: str, format_end: Callable[[int], str]
) -> tuple[str, str]:
    """Returns the labels at both ends of the axis of a histogram.

    The axis covers the values of all splits.

    Args:
        figures: The statistics of each split.
        name: "lengths" or "sizes", a property that is (minimum, mean, maximum) or None.
        format_end: Converts an end to text.
    """
    spans = [span for statistics in figures if (span := getattr(statistics, name)) is not None]
    return format_end(min(span[0] for span in spans)), format_end(max(span[2] for span in spans))


def _images_text(statistics: FeatureStatistics, images: int) -> str:
    return (
        f"all {images:,} images"
        if images == statistics.values
        else f"a sample of {images:,} of {statistics.values:,} images"
    )


def _count_infinite(statistics: FeatureStatistics) -> int:
    return statistics.values - statistics.finite - statistics.nans


def _value_buckets(figures: Sequence[FeatureStatistics]) -> list[HistogramBuckets]:
    """Returns a histogram of the finite numbers for each split.

    If the statistics contain all distinct values of an integer feature, the buckets are computed
    here: they have one width, and are the same in all splits. Otherwise the stored buckets are
    returned.
    """
    counts_by_split = [
        {int(value): count for value, count in statistics.top_values.items()}
        for statistics in figures
        if statistics.type == "INT"
    ]
    # With equally wide buckets, splits and neighbouring bars can be compared.
    if len(counts_by_split) == len(figures) and all(
        sum(counts.values()) == statistics.values
        for counts, statistics in zip(counts_by_split, figures, strict=True)
    ):
        values = sorted({value for counts in counts_by_split for value in counts})
        if not values:
            return []
        width = -(-(values[-1] - values[0] + 1) // _MAX_BUCKETS)
        num_buckets = -(-(values[-1] - values[0] + 1) // width)
        return [
            _listed_buckets(counts, values[0], width, num_buckets) for counts in counts_by_split
        ]
    return [_histogram_buckets(statistics) for statistics in figures]


def _listed_buckets(
    counts_by_value: Mapping[int, int], minimum: int, width: int, num_buckets: int
) -> HistogramBuckets:
    bucket_counts = [0] * num_buckets
    for value, count in counts_by_value.items():
        bucket_counts[(value - minimum) // width] += count
    edges = [float(minimum + width * i) - 0.5 for i in range(num_buckets + 1)]
    return list(zip(edges, edges[1:], bucket_counts, strict=False))


def _histogram_buckets(statistics: FeatureStatistics) -> HistogramBuckets:
    """Returns the stored histogram. Buckets with an infinite edge are left out."""
    proto = statistics.value_histogram
    return [
        (bucket.low_value, bucket.high_value, bucket.sample_count)
        for bucket in (() if proto is None else proto.buckets)
        if np.isfinite([bucket.low_value, bucket.high_value]).all()
    ]


def _length_buckets(statistics: FeatureStatistics) -> HistogramBuckets:
    return _integer_buckets(statistics.lengths[0], *statistics.length_counts)


def _size_buckets(statistics: FeatureStatistics) -> HistogramBuckets:
    proto, sizes = statistics.size_histogram, statistics.sizes
    if proto is None or sizes is None:
        return []
    return _integer_buckets(
        sizes[0],
        [bucket.high_value for bucket in proto.buckets],
        [bucket.sample_count for bucket in proto.buckets],
    )


def _integer_buckets(
    minimum: int, ends: Sequence[float], counts: Sequence[float]
) -> HistogramBuckets:
    """Returns a histogram of integers.

    The edges of a bucket are halfway between integers. Buckets with the same last value are merged.

    Args:
        minimum: The smallest value.
        ends: The last value of each bucket, ascending.
        counts: Number of values in each bucket.

    >>> _integer_buckets(1, [2, 4], [10, 5])
    [(0.5, 2.5, 10.0), (2.5, 4.5, 5.0)]
    """
    merged: dict[float, float] = {}
    for end, count in zip(ends, counts, strict=True):
        merged[end + 0.5] = merged.get(end + 0.5, 0.0) + count
    return list(zip([minimum - 0.5, *merged], merged, merged.values(), strict=False))
