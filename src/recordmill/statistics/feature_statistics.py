"""Statistics of one feature, from a `FeatureNameStatistics` message."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow_metadata.proto.v0 import statistics_pb2

from recordmill.base.sizes import format_percent, format_size_range
from recordmill.records.images.pixels import COLOUR_CHANNELS
from recordmill.schemas.arrow import format_float, format_ticks
from recordmill.schemas.feature import Feature
from recordmill.statistics.dataset_sketch import MAX_VALUES
from recordmill.statistics.protobuf import MIN_SAMPLED_OCCURRENCES, finite_or_none

_MAX_SHOWN_VALUES, _MAX_SHOWN_CLASSES, _MAX_TEXT_WIDTH, _MAX_JSON_VALUES = 3, 10, 24, 20
# The columns of a table that are never broken into several lines.
UNBROKEN_COLUMNS = ("MISSING", "DISTINCT", "MEAN", "STD")
# The columns of `FeatureStatistics.row`.
COLUMNS = (
    "FEATURE",
    "TYPE",
    *UNBROKEN_COLUMNS[:2],
    "MIN",
    *UNBROKEN_COLUMNS[2:],
    "MAX",
    "SIZE",
    "MOST FREQUENT",
)
# Tables show the elements of arrays with at most this many. JSON has all of them.
MAX_SHOWN_ELEMENTS = 32
# The columns of `ElementStatistics.rows`.
ELEMENT_COLUMNS = ("ELEMENT", "MEAN", "STD", "MIN", "1%", "50%", "99%", "MAX")


@dataclass(frozen=True)
class ColourStatistics:
    """Colours of the images in a bytes feature.

    Pixels are red, green and blue values from 0 to 255, as `decode_images` returns them.

    Attributes:
        images: Number of decoded images. They are all images of the feature, or a sample.
        pixels: Number of pixels of these images.
        mean: [3] Mean of the red, the green and the blue values.
        std_dev: [3] Population standard deviation of the red, the green and the blue values.
    """

    images: int
    pixels: int
    mean: tuple[float, ...]
    std_dev: tuple[float, ...]


@dataclass(frozen=True)
class ElementStatistics:
    """Statistics of each element of arrays, such as each joint of a robot.

    All arrays have the shape of the feature, for example [14]. If records have lists of arrays, all
    arrays of all records count. A figure is NaN if an element has no finite number.

    Attributes:
        finite: Number of values that are neither NaN nor infinite.
        mean: Mean of the finite numbers.
        variance: Population variance of the finite numbers.
        min: Smallest finite number.
        max: Largest finite number.
        q01: Quantile at 1 %. One percent of the numbers are at most this large.
        q50: Quantile at 50 %, which is the median.
        q99: Quantile at 99 %.
        sampled: Number of arrays that determine the quantiles. If there are more arrays, they are a
            random sample. The share of numbers below a quantile at p then has the standard error
            sqrt(p * (1 - p) / sampled).
    """

    finite: npt.NDArray[np.int64]
    mean: npt.NDArray[np.float64]
    variance: npt.NDArray[np.float64]
    min: npt.NDArray[np.float64]
    max: npt.NDArray[np.float64]
    q01: npt.NDArray[np.float64]
    q50: npt.NDArray[np.float64]
    q99: npt.NDArray[np.float64]
    sampled: int

    @property
    def std_dev(self) -> npt.NDArray[np.float64]:
        """Population standard deviation of the finite numbers."""
        return np.sqrt(self.variance)

    @classmethod
    def from_json(cls, text: str, shape: Sequence[int] = ()) -> ElementStatistics | None:
        """Parses the custom statistic `elements`.

        Args:
            text: The JSON object.
            shape: Shape of the arrays. If they have another number of elements, the result has one
                axis.

        Returns:
            The statistics. None if the text has another form, because any program may have written
            it.
        """
        try:
            figures = json.loads(text)
            sampled, finite = int(figures.pop("sampled")), np.array(figures.pop("finite"), np.int64)
            arrays = {name: np.array(values, np.float64) for name, values in figures.items()}
            if any(values.shape != (len(finite),) for values in arrays.values()):
                return None
            if math.prod(shape) == len(finite):
                finite = finite.reshape(shape)
                arrays = {name: values.reshape(shape) for name, values in arrays.items()}
            return cls(finite=finite, **arrays, sampled=sampled)
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError, RecursionError):
            return None

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as nested lists. NaN and infinite numbers become None."""
        return {
            "finite": self.finite.tolist(),
            "mean": finite_or_none(self.mean),
            "std_dev": finite_or_none(self.std_dev),
            "min": finite_or_none(self.min),
            "q01": finite_or_none(self.q01),
            "q50": finite_or_none(self.q50),
            "q99": finite_or_none(self.q99),
            "max": finite_or_none(self.max),
            "sampled": self.sampled,
        }

    def rows(self, name: str) -> list[tuple[str, ...]]:
        """Returns the cells of each element in the table with the columns `ELEMENT_COLUMNS`.

        Args:
            name: Name of the feature. The row of an element begins with it, as in `action[3]`.
        """
        columns = (self.mean, self.std_dev, self.min, self.q01, self.q50, self.q99, self.max)
        return [
            (
                f"{name}[{','.join(map(str, index))}]",
                *(f"{column[index]:.5g}" for column in columns),
            )
            for index in np.ndindex(self.finite.shape)
        ]


@dataclass(frozen=True)
class FeatureStatistics:
    """Statistics of one feature in one split.

    A figure is None if the type of the feature has no such figure, or if the statistics lack it.
    Histograms are `Histogram` messages of TensorFlow Metadata.

    Attributes:
        name: Name of the feature.
        type: INT, FLOAT, STRING or BYTES.
        present: Number of records that have the feature.
        missing: Number of records without the feature.
        values: Number of values in all records.
        lengths: Smallest, mean and largest number of values per record that has the feature.
        length_histogram: Number of values per record, in buckets of equally many records.
        length_counts: (lengths, counts), a finer histogram of the number of values per record. The
            lengths ascend. `counts[i]` is the number of records that are longer than `lengths[i -
            1]` and at most as long as `lengths[i]`.
        sizes: Smallest, mean and largest size of a text or binary value, in bytes.
        size_histogram: Sizes of texts or binary values, in buckets of equally many values.
        min: Smallest finite number.
        max: Largest finite number.
        mean: Mean of the finite numbers.
        std_dev: Population standard deviation of the finite numbers.
        variance: Population variance of the finite numbers.
        zeros: Number of zeros.
        nans: Number of NaN values.
        infinities: Number of -inf values, and number of inf values.
        quantiles: The finite numbers at the shares 0, 0.1, 0.2 and so on up to 1. Empty without
            finite numbers.
        quantile_error: Largest error of the rank of a quantile, as a share of the values.
        value_histogram: Finite numbers, in buckets of equal widths.
        quantile_histogram: Finite numbers, in buckets of equally many values.
        distinct: Number of different values. It is exact if `distinct_error` is 0.
        distinct_error: Relative standard error of `distinct`.
        top_values: Most frequent values, as text, and the number of their occurrences. The most
            frequent value is the first one. Empty for floats with many different values and for
            binary values.
        top_values_are_exact: False if the counts in `top_values` were estimated from a sample.
        colours: Colours of encoded images. None for other features.
        elements: Statistics of each element of numeric arrays with at most 4,096 elements, and of
            lists that always have the same length. None for other features.
    """

    name: str
    type: str
    present: int
    missing: int
    values: int
    lengths: tuple[int, float, int]
    length_histogram: Any
    length_counts: tuple[list[int], list[float]]
    sizes: tuple[int, float, int] | None
    size_histogram: Any | None
    distinct: int | None
    distinct_error: float | None
    top_values: Mapping[str, int]
    top_values_are_exact: bool
    colours: ColourStatistics | None
    # The following figures exist for numbers only.
    min: float | int | None = None
    max: float | int | None = None
    mean: float | None = None
    std_dev: float | None = None
    variance: float | None = None
    zeros: int = 0
    nans: int = 0
    infinities: tuple[int, int] = (0, 0)
    quantiles: tuple[float, ...] = ()
    quantile_error: float | None = None
    value_histogram: Any | None = None
    quantile_histogram: Any | None = None
    elements: ElementStatistics | None = None

    @classmethod
    def from_proto(cls, proto: Any, feature: Feature | None = None) -> FeatureStatistics:
        """Converts a `FeatureNameStatistics` message. Any program may have written it.

        Args:
            proto: The message.
            feature: The feature, which determines the shape of `elements`. None means one axis.
        """
        kind = proto.WhichOneof("stats") or "num_stats"
        stats = getattr(proto, kind)
        common = stats.common_stats
        custom = {
            stat.name: getattr(stat, value_kind)
            for stat in proto.custom_stats
            if (value_kind := stat.WhichOneof("val"))
        }
        # Only recordmill writes `lengths`, which has more buckets.
        length_histogram = custom.get("lengths", common.num_values_histogram)
        top_values = stats.rank_histogram if kind == "string_stats" else custom.get("top_values")
        sizes = None
        if "max_bytes" in custom:
            mean_size = stats.avg_length if kind == "string_stats" else stats.avg_num_bytes
            sizes = int(custom["min_bytes"]), float(mean_size), int(custom["max_bytes"])
        return cls(
            name=feature_name(proto),
            type=str(statistics_pb2.FeatureNameStatistics.Type.Name(proto.type)),
            present=int(common.num_non_missing),
            missing=int(common.num_missing),
            values=int(common.tot_num_values),
            lengths=(
                int(common.min_num_values),
                float(common.avg_num_values),
                int(common.max_num_values),
            ),
            length_histogram=common.num_values_histogram,
            length_counts=(
                [round(bucket.high_value) for bucket in length_histogram.buckets],
                [bucket.sample_count for bucket in length_histogram.buckets],
            ),
            sizes=sizes,
            size_histogram=custom.get("bytes"),
            distinct=(
                _read_integer(custom, "distinct") if kind == "num_stats" else int(stats.unique)
            ),
            distinct_error=custom.get("distinct_error"),
            top_values=(
                {}
                if top_values is None
                else {bucket.label: int(bucket.sample_count) for bucket in top_values.buckets}
            ),
            top_values_are_exact="top_values_are_estimates" not in custom,
            colours=_read_colours(custom),
            elements=(
                ElementStatistics.from_json(
                    custom["elements"], () if feature is None else feature.inner_shape
                )
                if "elements" in custom
                else None
            ),
            **(_read_numbers(proto, custom) if kind == "num_stats" else {}),
        )

    @property
    def finite(self) -> int:
        """Number of values that are neither NaN nor infinite."""
        return self.values - self.nans - sum(self.infinities)

    @property
    def lists_all_values(self) -> bool:
        """True if `top_values` contains all different values, with exact counts."""
        return (
            self.top_values_are_exact
            and bool(self.top_values)
            and sum(self.top_values.values()) == self.values
        )

    @property
    def unlisted(self) -> float:
        """Largest possible share of a value that is not in `top_values`.

        The share is 0 if all different values are listed.
        """
        top_values = self.top_values
        if self.sampled is not None:
            return min(MIN_SAMPLED_OCCURRENCES / self.sampled, 1.0)
        if sum(top_values.values()) == self.values:
            return 0.0
        return min(top_values.values(), default=self.values) / max(self.values, 1)

    @property
    def sampled(self) -> int | None:
        """Number of sampled text occurrences, if `top_values` were estimated from a sample.

        None if the counts are exact.
        """
        if self.top_values_are_exact:
            return None
        return min(round(1 / (self.distinct_error or 1) ** 2), MAX_VALUES) // 2

    def to_json(self) -> dict[str, Any]:
        """Returns the figures in the form that `--json` prints.

        Only the first 20 of `top_values` are included.
        """
        optional: dict[str, Any] = {}
        if self.colours is not None:
            optional["colours"] = asdict(self.colours)
        if self.elements is not None:
            optional["elements"] = self.elements.to_json()
        return {
            "name": self.name,
            "type": self.type,
            "present": self.present,
            "missing": self.missing,
            "lengths": self.lengths,
            "sizes": self.sizes,
            "min": self.min,
            "max": self.max,
            "mean": self.mean,
            "std_dev": self.std_dev,
            "zeros": self.zeros,
            "nans": self.nans,
            "quantiles": list(self.quantiles),
            "quantile_error": self.quantile_error,
            "distinct": self.distinct,
            "distinct_error": self.distinct_error,
            "top_values": dict(list(self.top_values.items())[:_MAX_JSON_VALUES]),
            "top_values_are_exact": self.top_values_are_exact,
            **optional,
        }

    def summary(self) -> dict[str, Any]:
        """Returns the figures that a manifest contains, as JSON values.

        Figures that do not exist or are not finite are left out.
        """
        figures: dict[str, Any] = {
            "missing": self.missing,
            "min": self.min,
            "max": self.max,
            "mean": self.mean,
            "std_dev": self.std_dev,
            "distinct": self.distinct,
        }
        if (colours := self.colours) is not None:
            figures |= {
                "decoded_images": colours.images,
                "mean": list(colours.mean),
                "std_dev": list(colours.std_dev),
            }
        return {
            name: value
            for name, value in figures.items()
            if value is not None and not (isinstance(value, float) and not math.isfinite(value))
        }

    def row(self, feature: Feature | None = None) -> tuple[str, ...]:
        """Returns the cells of the feature in the table with the columns `COLUMNS`.

        Args:
            feature: The feature, or None. If it is passed, class names replace class numbers, and
                timestamps are shown as times.
        """
        total = self.present + self.missing
        distinct_prefix = "" if self.distinct_error in (0, None) else "~"
        sizes, lengths = self.sizes, self.lengths
        colours = self.colours
        classes = None if feature is None else feature.classes
        # The columns MIN, MEAN, STD and MAX. They make no sense for class numbers.
        figures = [_format_number(value) for value in (self.min, self.mean, self.std_dev, self.max)]
        if classes is not None:
            figures = [""] * 4
        elif feature is not None and feature.timestamp:
            ends = (
                "" if value is None else format_ticks(value, feature)
                for value in (self.min, self.max)
            )
            figures = [next(ends), "", "", next(ends)]
        if colours is not None:
            figures[1:3] = (
                " ".join(f"{value:.1f}" for value in values)
                for values in (colours.mean, colours.std_dev)
            )
        spans = [
            "" if lengths[0] == lengths[2] else f"{lengths[0]:,} to {lengths[2]:,} values",
            "" if sizes is None else format_size_range(sizes[0], sizes[2]),
            f"{self.nans:,} NaN" if self.nans else "",
            "" if colours is None else f"colours of {colours.images:,} decoded",
        ]
        max_shown = _MAX_SHOWN_VALUES if classes is None else _MAX_SHOWN_CLASSES
        estimate = "" if self.top_values_are_exact else "~"
        top = [
            f"{_shorten(format_value(value, feature))} ({estimate}{count:,}, {format_percent(count / max(self.values, 1))})"
            for value, count in list(self.top_values.items())[:max_shown]
            if count > 1 or self.values <= max_shown
        ]
        return (
            self.name,
            self.type.lower(),
            format_percent(self.missing / total) if self.missing else "",
            "" if self.distinct is None else f"{distinct_prefix}{self.distinct:,}",
            *figures,
            ", ".join(filter(None, spans)),
            ", ".join(top) or ("each once" if self.top_values else ""),
        )


def feature_name(proto: Any) -> str:
    """Returns the name of the feature in a `FeatureNameStatistics` message."""
    return proto.path.step[-1] if proto.path.step else str(proto.name)


def _read_integer(custom: Mapping[str, Any], name: str) -> int | None:
    return int(custom[name]) if name in custom else None


def _read_numbers(proto: Any, custom: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `FeatureStatistics` that only numeric features have."""
    stats = proto.num_stats
    figures: dict[str, Any] = {
        "zeros": int(stats.num_zeros),
        "nans": max((int(histogram.num_nan) for histogram in stats.histograms), default=0),
        "infinities": (
            int(custom.get("minus_infinities", 0)),
            int(custom.get("plus_infinities", 0)),
        ),
        "quantile_error": custom.get("quantile_error"),
        "value_histogram": _find_histogram(stats.histograms, statistics_pb2.Histogram.STANDARD),
        "quantile_histogram": _find_histogram(stats.histograms, statistics_pb2.Histogram.QUANTILES),
    }
    # Without finite numbers, the message has 0 as their minimum, mean and maximum.
    if not any(histogram.buckets for histogram in stats.histograms):
        return figures
    number = int if proto.type == statistics_pb2.FeatureNameStatistics.INT else float
    std_dev = float(stats.std_dev)
    return figures | {
        # `custom` has the exact numbers that the message's doubles can't represent, as text.
        "min": number(custom.get("min", stats.min)),
        "max": number(custom.get("max", stats.max)),
        "mean": float(stats.mean),
        "std_dev": std_dev,
        "variance": float(custom.get("variance", std_dev * std_dev)),
        "quantiles": _read_quantiles(figures["quantile_histogram"]),
    }


def _find_histogram(histograms: Iterable[Any], kind: int) -> Any | None:
    """Returns the first histogram of a type.

    If there is none, the result is a histogram without buckets, which counts NaN. None if there is
    no such histogram either.
    """
    matching = [histogram for histogram in histograms if histogram.type == kind]
    return (matching or [histogram for histogram in histograms if not histogram.buckets] or [None])[
        0
    ]


def _read_quantiles(histogram: Any | None) -> tuple[float, ...]:
    if histogram is None or not histogram.buckets:
        return ()
    return (
        *(bucket.low_value for bucket in histogram.buckets),
        histogram.buckets[-1].high_value,
    )


def _read_colours(custom: Mapping[str, Any]) -> ColourStatistics | None:
    if "decoded_images" not in custom:
        return None
    mean, std_dev = (
        tuple(custom[f"{figure}_{channel}"] for channel in COLOUR_CHANNELS)
        for figure in ("mean", "std_dev")
    )
    return ColourStatistics(
        images=int(custom["decoded_images"]),
        pixels=int(custom["decoded_pixels"]),
        mean=mean,
        std_dev=std_dev,
    )


def format_value(value: str, feature: Feature | None) -> str:
    """Returns a value of statistics as text for a table.

    A class number becomes a name, and ticks become a time. A float has the digits of its dtype.

    Args:
        value: The value as text, in the form that statistics contain.
        feature: The feature of the value. None if it is unknown.

    >>> pets = Feature("pet", "int64", classes=("cat", "dog"))
    >>> format_value("1", pets), format_value("7", pets)
    ('dog', '7')
    >>> format_value("0.41999998688697815", Feature("fare", "float32"))
    '0.42'
    """
    if not value:
        return "''"
    if feature is None:
        return value
    if feature.timestamp:
        return format_ticks(int(value), feature)
    if feature.classes is not None and value.isdigit() and int(value) < len(feature.classes):
        return feature.classes[int(value)]
    return format_float(float(value), feature.dtype) if "float" in feature.dtype else value


def _format_number(value: float | int | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.5g}"


def _shorten(text: str) -> str:
    line = repr(text)[1:-1]
    return line if len(line) <= _MAX_TEXT_WIDTH else line[: _MAX_TEXT_WIDTH - 1] + "…"
