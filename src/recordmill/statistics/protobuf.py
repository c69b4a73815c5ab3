"""Conversion of a sketch to the statistics message of TensorFlow Metadata.

TensorFlow Data Validation writes, shows and compares a `DatasetFeatureStatisticsList`. It has one
`DatasetFeatureStatistics` per split. Equal sketches become equal bytes.

Some figures have no field in this message. They are in `custom_stats`, by these names:

* `variance`: The population variance of numbers.
* `distinct`: The number of different numbers.
* `distinct_error`: The relative standard error of the number of different values. 0 means that it
  is exact.
* `quantile_error`: The largest error of the rank of a quantile, as a share of the values.
* `top_values`: The most frequent numbers, with their counts.
* `top_values_are_estimates`: Present if the counts of the most frequent texts are estimates.
* `plus_infinities`, `minus_infinities`: The number of these values, unless it is 0.
* `min`, `max`: The exact minimum and maximum as text, if they are integers that float64 can't
  represent.
* `lengths`: A histogram of the lengths of lists, with more buckets than `num_values_histogram`.
* `min_bytes`, `max_bytes`, `bytes`: The smallest and largest size of texts or binary values, and a
  histogram of the sizes.
* `decoded_images`, `decoded_pixels`: The number of decoded images, and of their pixels.
* `mean_red`, `std_dev_red` and so on: The mean and the standard deviation of each colour.
* `elements`: The figures of each element of arrays, as JSON. Each of `finite`, `mean`, `variance`,
  `min`, `max`, `q01`, `q50` and `q99` is a list with one number per element, and `sampled` is the
  number of arrays that determine the quantiles.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow_metadata.proto.v0 import statistics_pb2

from recordmill.records.images.pixels import COLOUR_CHANNELS
from recordmill.statistics.dataset_sketch import DatasetSketch, FeatureSketch
from recordmill.statistics.element_sketch import ElementSketch
from recordmill.statistics.number_sketch import NumberSketch
from recordmill.statistics.pixel_sketch import PixelTotal
from recordmill.statistics.value_sketch import MAX_TEXT_BYTES, ValueSketch, unhash_numbers

# Number of buckets of a histogram.
_BUCKET_COUNT = 10
# Number of buckets of the histogram `lengths`. It has many divisors, so the buckets can be joined
# to 6, 8, 10, 12, 15 or 20 larger ones of equal counts.
_LENGTH_BUCKET_COUNT = 120
# Largest number of values in the field `top_values` of texts. `rank_histogram` may have more.
_MAX_TOP_VALUES = 20
# Smallest number of sampled occurrences for the estimate of a count. The standard error of the
# count is then at most a quarter of it.
MIN_SAMPLED_OCCURRENCES = 16
# The values of a float feature are listed if there are at most 256 different ones. If there are
# more, hardly any value is frequent.
_MAX_LISTED_FLOATS = 256
# One quarter of the kept values is listed in `rank_histogram`, but all values of a label are.
_RANKED_DIVISOR = 4

_INT, _FLOAT, _STRING, _BYTES = (
    getattr(statistics_pb2.FeatureNameStatistics, name)
    for name in ("INT", "FLOAT", "STRING", "BYTES")
)


def to_proto(sketch: DatasetSketch) -> Any:
    """Converts a sketch to a `DatasetFeatureStatisticsList` message.

    Splits without records are left out.
    """
    statistics = statistics_pb2.DatasetFeatureStatisticsList()
    for number, features in enumerate(sketch.features):
        if not sketch.records[number]:
            continue
        dataset = statistics.datasets.add(
            name=sketch.splits[number], num_examples=sketch.records[number]
        )
        for feature in features:
            _put_feature(
                dataset.features.add(), feature, feature.feature.name == sketch.schema.label
            )
    return statistics


def to_bytes(proto: Any) -> bytes:
    """Serializes a message. Equal messages become equal bytes."""
    return proto.SerializeToString(deterministic=True)


def _put_feature(proto: Any, feature: FeatureSketch, is_label: bool) -> None:
    proto.path.step.append(feature.feature.name)
    if feature.numbers is not None:
        proto.type = _INT if feature.numbers.is_int else _FLOAT
        _put_numbers(proto, feature, feature.numbers, is_label)
        if feature.elements is not None and feature.elements.rows:
            _put_elements(proto, feature.elements)
    elif feature.feature.dtype == "string":
        proto.type = _STRING
        _put_texts(proto, feature, is_label)
    else:
        proto.type = _BYTES
        _put_sizes(proto, feature)


def _put_common(proto: Any, common: Any, feature: FeatureSketch) -> None:
    common.num_non_missing, common.num_missing = feature.present, feature.missing
    if feature.lengths is None:
        length = feature.feature.inner_size
        common.min_num_values = common.max_num_values = length
        common.avg_num_values, common.tot_num_values = length, length * feature.present
    elif feature.present:
        common.min_num_values, common.max_num_values = (
            int(feature.lengths.minimum or 0),
            int(feature.lengths.maximum or 0),
        )
        common.avg_num_values, common.tot_num_values = feature.lengths.mean, feature.lengths.total
    if feature.present and feature.lengths is not None:
        _put_quantiles(common.num_values_histogram, feature.lengths)
        _put_quantiles(
            proto.custom_stats.add(name="lengths").histogram, feature.lengths, _LENGTH_BUCKET_COUNT
        )


def _put_numbers(proto: Any, feature: FeatureSketch, numbers: NumberSketch, is_label: bool) -> None:
    stats = proto.num_stats
    _put_common(proto, stats.common_stats, feature)
    if numbers.minimum is not None and numbers.maximum is not None:
        stats.mean, stats.std_dev, stats.num_zeros = (
            numbers.mean,
            numbers.standard_deviation,
            numbers.zeros,
        )
        stats.min, stats.median, stats.max = (
            float(numbers.minimum),
            numbers.quantile(0.5),
            float(numbers.maximum),
        )
        _put_equal_widths(stats.histograms.add(num_nan=numbers.nans), numbers)
        _put_quantiles(stats.histograms.add(num_nan=numbers.nans), numbers)
        _put_custom_stat(proto, "variance", numbers.variance)
        _put_custom_stat(proto, "quantile_error", numbers.quantile_error)
        for name, exact, stored in (
            ("min", numbers.minimum, stats.min),
            ("max", numbers.maximum, stats.max),
        ):
            # The field is a double, which can't represent all integers of 64 bits.
            if exact != stored:
                proto.custom_stats.add(name=name, str=str(exact))
    elif numbers.nans:
        # The message counts NaN in histograms only, so this one has no buckets.
        stats.histograms.add(num_nan=numbers.nans)
    for name, count in (
        ("plus_infinities", numbers.plus_infinities),
        ("minus_infinities", numbers.minus_infinities),
    ):
        if count:
            _put_custom_stat(proto, name, count)
    if feature.values is not None:
        distinct = _count_distinct(feature.values, stats.common_stats)
        _put_custom_stat(proto, "distinct", distinct)
        _put_custom_stat(proto, "distinct_error", _distinct_error(feature.values))
        if feature.values.is_complete and (numbers.is_int or distinct <= _MAX_LISTED_FLOATS):
            ranks = proto.custom_stats.add(name="top_values").rank_histogram
            number_counts = _number_counts(feature.values, numbers.is_int)
            _put_rank_histogram(
                ranks,
                number_counts,
                None if is_label else feature.values.max_values // _RANKED_DIVISOR,
            )


def _put_elements(proto: Any, elements: ElementSketch) -> None:
    mean, variance = elements.moments()
    q01, q50, q99 = elements.quantiles()
    figures = {
        "mean": mean,
        "variance": variance,
        "min": elements.minima,
        "max": elements.maxima,
        "q01": q01,
        "q50": q50,
        "q99": q99,
    }
    document: dict[str, Any] = {
        "finite": elements.finite.tolist(),
        **{name: finite_or_none(values) for name, values in figures.items()},
        "sampled": elements.sampled,
    }
    proto.custom_stats.add(name="elements", str=json.dumps(document))


def finite_or_none(values: npt.NDArray[np.float64]) -> Any:
    """Returns an array as nested lists for JSON.

    NaN and infinite numbers become None.

    >>> finite_or_none(np.array([0.5, np.nan]))
    [0.5, None]
    """
    # Adding 0.0 makes -0.0 positive. Otherwise, the order of the records would determine which of
    # both is the minimum.
    numbers = (values + 0.0).astype(object)
    numbers[~np.isfinite(values)] = None
    return numbers.tolist()


def _number_counts(values: ValueSketch, are_ints: bool) -> Iterator[tuple[str, int]]:
    hashes, counts = values.smallest()
    numbers: npt.NDArray[Any] = (
        unhash_numbers(hashes) if are_ints else unhash_numbers(hashes).view(np.float64)
    )
    order = np.lexsort((numbers, -counts))
    for number, count in zip(numbers[order].tolist(), counts[order].tolist(), strict=True):
        yield str(number), count


def _put_texts(proto: Any, feature: FeatureSketch, is_label: bool) -> None:
    assert feature.sizes is not None
    assert feature.values is not None
    ranked = (
        None if is_label else max(feature.values.max_values // _RANKED_DIVISOR, _MAX_TOP_VALUES)
    )
    stats, top = (
        proto.string_stats,
        [(_text_label(text), count) for text, count in _top_texts(feature)[:ranked]],
    )
    _put_common(proto, stats.common_stats, feature)
    stats.unique = _count_distinct(feature.values, stats.common_stats)
    if feature.sizes.count:
        stats.avg_length = feature.sizes.mean
    for value, count in top[:_MAX_TOP_VALUES]:
        stats.top_values.add(value=value, frequency=count)
    _put_rank_histogram(stats.rank_histogram, top, ranked)
    _put_custom_stat(proto, "distinct_error", _distinct_error(feature.values))
    if not feature.values.is_complete:
        _put_custom_stat(proto, "top_values_are_estimates", 1)
    _put_size_range(proto, feature.sizes)


def _put_sizes(proto: Any, feature: FeatureSketch) -> None:
    assert feature.sizes is not None
    assert feature.values is not None
    stats, sizes = proto.bytes_stats, feature.sizes
    _put_common(proto, stats.common_stats, feature)
    stats.unique = _count_distinct(feature.values, stats.common_stats)
    if sizes.count:
        stats.avg_num_bytes, stats.max_num_bytes_int = sizes.mean, int(sizes.maximum or 0)
        stats.min_num_bytes, stats.max_num_bytes = (
            float(sizes.minimum or 0),
            float(sizes.maximum or 0),
        )
    _put_custom_stat(proto, "distinct_error", _distinct_error(feature.values))
    _put_size_range(proto, sizes)
    if feature.pixels is not None and (total := feature.pixels.total()) is not None:
        _put_pixels(proto, total)


def _put_pixels(proto: Any, total: PixelTotal) -> None:
    _put_custom_stat(proto, "decoded_images", total.images)
    _put_custom_stat(proto, "decoded_pixels", total.pixels)
    for name, channel_sum, squares in zip(COLOUR_CHANNELS, total.sums, total.squares, strict=True):
        mean = Fraction(channel_sum, total.pixels)
        _put_custom_stat(proto, f"mean_{name}", float(mean))
        _put_custom_stat(
            proto, f"std_dev_{name}", math.sqrt(Fraction(squares, total.pixels) - mean**2)
        )


def _put_size_range(proto: Any, sizes: NumberSketch) -> None:
    """Adds the smallest size, the largest size and a histogram of the sizes."""
    if sizes.minimum is not None and sizes.maximum is not None:
        _put_custom_stat(proto, "min_bytes", sizes.minimum)
        _put_custom_stat(proto, "max_bytes", sizes.maximum)
        _put_quantiles(proto.custom_stats.add(name="bytes").histogram, sizes)


def _top_texts(feature: FeatureSketch) -> list[tuple[bytes, int]]:
    """Returns (text, count) of the most frequent texts, the most frequent first.

    If the sketch contains all different texts, the result lists all of them with exact counts.
    Otherwise, the counts of texts outside the sketch are estimated from a sample of the
    occurrences. Rare texts are then left out, because chance would determine their order.
    """
    assert feature.values is not None
    assert feature.sizes is not None
    assert feature.sample is not None
    texts = feature.texts("values")
    exact = {texts[hash_]: count for hash_, count in feature.values.most_frequent()}
    # A kept text has an exact count, and other texts have estimates. Both must have a minimum
    # count, so that no rare text is listed although more frequent ones are missing.
    if not feature.values.is_complete:
        sampled, texts = Counter[bytes](), feature.texts("sample")
        for hash_, count in feature.sample.most_frequent():
            sampled[texts[hash_]] += count
        scale = feature.sizes.count / max(sampled.total(), 1)
        estimates = {
            text: count * scale
            for text, count in sampled.items()
            if count >= MIN_SAMPLED_OCCURRENCES
        } | exact
        exact = {
            text: round(count)
            for text, count in estimates.items()
            if count >= MIN_SAMPLED_OCCURRENCES * scale
        }
    return sorted(exact.items(), key=lambda item: (-item[1], item[0]))


def _text_label(text: bytes) -> str:
    cut = text[:MAX_TEXT_BYTES]
    return (
        cut.decode("utf-8", "replace")
        if len(text) <= MAX_TEXT_BYTES
        else cut.decode("utf-8", "ignore") + "…"
    )


def _put_rank_histogram(
    ranks: Any, values: Iterable[tuple[str, float]], max_ranks: int | None
) -> None:
    for rank, (value, count) in enumerate(values):
        if max_ranks is not None and rank == max_ranks:
            break
        ranks.buckets.add(low_rank=rank, high_rank=rank, label=value, sample_count=count)


def _put_custom_stat(proto: Any, name: str, value: float) -> None:
    proto.custom_stats.add(name=name, num=value)


def _count_distinct(values: ValueSketch, common: Any) -> int:
    """Returns the number of different values. An estimate is at most the number of values."""
    return int(min(values.distinct(), common.tot_num_values))


def _distinct_error(values: ValueSketch) -> float:
    return 0.0 if values.is_complete else 1 / math.sqrt(values.max_values)


def _put_quantiles(histogram: Any, numbers: NumberSketch, count: int = _BUCKET_COUNT) -> None:
    """Fills a histogram with buckets that contain equally many values.

    Args:
        histogram: The `Histogram` message to fill.
        numbers: The values.
        count: The number of buckets.
    """
    histogram.type = statistics_pb2.Histogram.QUANTILES
    edges = numbers.quantiles([Fraction(number, count) for number in range(count + 1)])
    _put_buckets(histogram, edges, [numbers.finite / count] * count)


def _put_equal_widths(histogram: Any, numbers: NumberSketch) -> None:
    """Fills a histogram with buckets of equal widths.

    The values in a bin of the sketch are assumed to be spread evenly. The histogram stays empty if
    the difference between the maximum and the minimum is infinite in float64.
    """
    histogram.type = statistics_pb2.Histogram.STANDARD
    assert numbers.minimum is not None
    assert numbers.maximum is not None
    minimum, maximum = float(numbers.minimum), float(numbers.maximum)
    if not math.isfinite(maximum - minimum):
        return  # the width of a bucket would be infinite
    edges = [
        minimum + (maximum - minimum) * number / _BUCKET_COUNT for number in range(_BUCKET_COUNT)
    ] + [maximum]
    low, high = numbers.edges()
    # A very narrow bin is treated as one value. Dividing by its width would be inaccurate.
    widths = np.where(high - low > (maximum - minimum) / 2**40, high - low, 0)
    cumulative_counts = [0.0]
    for edge in edges[1:-1]:
        shares_below = np.where(
            widths > 0, (edge - low) / np.where(widths > 0, widths, 1), low < edge
        )
        divided = (shares_below > 0) & (shares_below < 1)  # the bins that the edge divides
        divided_counts = (numbers.counts[divided] * shares_below[divided]).tolist()
        cumulative_counts.append(
            math.fsum([int(numbers.counts[shares_below >= 1].sum()), *divided_counts])
        )
    cumulative_counts.append(float(numbers.finite))
    _put_buckets(
        histogram, edges, [upper - lower for lower, upper in itertools.pairwise(cumulative_counts)]
    )


def _put_buckets(histogram: Any, edges: Sequence[float], counts: Sequence[float]) -> None:
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        histogram.buckets.add(low_value=low, high_value=high, sample_count=count)
