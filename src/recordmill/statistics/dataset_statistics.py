"""Statistics of a data set (`DatasetStatistics`), from a `DatasetFeatureStatisticsList`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from google.protobuf.message import DecodeError
from tensorflow_metadata.proto.v0 import statistics_pb2

from recordmill.base import html
from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import available_names, option
from recordmill.base.sizes import format_percent
from recordmill.base.tables import table_lines
from recordmill.records.images.pixels import COLOUR_CHANNELS
from recordmill.schemas.arrow import format_ticks
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_sketch import MAX_VALUES, DatasetSketch
from recordmill.statistics.protobuf import MIN_SAMPLED_OCCURRENCES, to_bytes, to_proto

_NUMBER_STATS, _TEXT_STATS, _BINARY_STATS = "num_stats", "string_stats", "bytes_stats"
_MAX_SHOWN_VALUES, _MAX_SHOWN_CLASSES, _MAX_TEXT_WIDTH, _MAX_JSON_VALUES = 3, 10, 24, 20


@dataclass(frozen=True)
class ColourStatistics:
    """The colours of all images of a feature.

    The pixels are as `decode_images` returns them: red, green and blue, from 0 to 255.

    Attributes:
        images: The number of decoded images, a sample or all.
        pixels: The number of their pixels.
        mean: [3] The mean of each colour.
        std_dev: [3] The population standard deviation of each colour.
    """

    images: int
    pixels: int
    mean: tuple[float, ...]
    std_dev: tuple[float, ...]


@dataclass(frozen=True)
class FeatureStatistics:
    """Statistics of one feature in one split.

    The value None means that the type of the feature does not have this figure.

    Attributes:
        proto: The `FeatureNameStatistics` message.
    """

    proto: Any

    @property
    def name(self) -> str:
        return self.proto.path.step[-1] if self.proto.path.step else str(self.proto.name)

    @property
    def type(self) -> str:
        """INT, FLOAT, STRING or BYTES."""
        return str(statistics_pb2.FeatureNameStatistics.Type.Name(self.proto.type))

    @property
    def _kind(self) -> str:
        return self.proto.WhichOneof("stats") or _NUMBER_STATS

    @property
    def _stats(self) -> Any:
        return getattr(self.proto, self._kind)

    @cached_property
    def _custom(self) -> dict[str, Any]:
        return {
            stat.name: getattr(stat, kind)
            for stat in self.proto.custom_stats
            if (kind := stat.WhichOneof("val"))
        }

    @property
    def present(self) -> int:
        """Number of records that have the feature."""
        return int(self._stats.common_stats.num_non_missing)

    @property
    def missing(self) -> int:
        """Number of records without the feature."""
        return int(self._stats.common_stats.num_missing)

    @property
    def values(self) -> int:
        """Number of values of all records."""
        return int(self._stats.common_stats.tot_num_values)

    @property
    def finite(self) -> int:
        """Number of values that are neither NaN nor infinite."""
        return self.values - self.nans - sum(self.infinities)

    @property
    def infinities(self) -> tuple[int, int]:
        """Numbers of values that are minus infinity and plus infinity."""
        return int(self._custom.get("minus_infinities", 0)), int(
            self._custom.get("plus_infinities", 0)
        )

    @property
    def lengths(self) -> tuple[int, float, int]:
        """Smallest, mean and largest number of values of a record that has the feature."""
        common = self._stats.common_stats
        return int(common.min_num_values), float(common.avg_num_values), int(common.max_num_values)

    @property
    def length_counts(self) -> tuple[list[int], list[float]]:
        """Lengths in ascending order, and the number of records for each.

        A count includes the records that are longer than the previous length and not longer than
        this one. The lengths are quantiles of the number of values of a record.
        """
        histogram = self._custom.get("lengths", self._stats.common_stats.num_values_histogram)
        return [round(bucket.high_value) for bucket in histogram.buckets], [
            bucket.sample_count for bucket in histogram.buckets
        ]

    @property
    def sizes(self) -> tuple[int, float, int] | None:
        """Smallest, mean and largest size of a text or binary value in bytes."""
        if "max_bytes" not in self._custom:
            return None
        mean = self._stats.avg_length if self._kind == _TEXT_STATS else self._stats.avg_num_bytes
        return int(self._custom["min_bytes"]), float(mean), int(self._custom["max_bytes"])

    def _number(self, name: str) -> float | int | None:
        if self._kind != _NUMBER_STATS or not any(
            histogram.buckets for histogram in self._stats.histograms
        ):
            return None
        if name in self._custom:
            return int(self._custom[name]) if self.type == "INT" else float(self._custom[name])
        value = float(getattr(self._stats, name))
        return int(value) if self.type == "INT" and name in ("min", "max") else value

    @property
    def min(self) -> float | int | None:
        """The smallest finite number."""
        return self._number("min")

    @property
    def max(self) -> float | int | None:
        """The largest finite number."""
        return self._number("max")

    @property
    def mean(self) -> float | None:
        """Mean of the finite numbers."""
        return self._number("mean")

    @property
    def std_dev(self) -> float | None:
        """Population standard deviation of the finite numbers."""
        return self._number("std_dev")

    @property
    def variance(self) -> float | None:
        """Population variance of the finite numbers."""
        std_dev = self.std_dev
        return None if std_dev is None else float(self._custom.get("variance", std_dev * std_dev))

    @property
    def zeros(self) -> int:
        return int(self._stats.num_zeros) if self._kind == _NUMBER_STATS else 0

    @property
    def nans(self) -> int:
        return (
            max((int(histogram.num_nan) for histogram in self._stats.histograms), default=0)
            if self._kind == _NUMBER_STATS
            else 0
        )

    @property
    def quantiles(self) -> tuple[float, ...]:
        """The finite numbers at the shares 0, 1/10, ... and 1.

        The error of their ranks is at most `quantile_error`.
        """
        return _quantiles(self._stats.histograms) if self._kind == _NUMBER_STATS else ()

    @property
    def length_histogram(self) -> Any:
        """`Histogram` of the number of values of a record.

        Each bucket has equally many records.
        """
        return self._stats.common_stats.num_values_histogram

    @property
    def size_histogram(self) -> Any | None:
        """`Histogram` of the sizes of texts or binary values.

        Each bucket has equally many values.
        """
        return self._custom.get("bytes")

    def histogram(self, of_quantiles: bool) -> Any | None:
        """Returns a `Histogram` of the numbers.

        Args:
            of_quantiles: The buckets have equally many values. Otherwise they have equal widths.
        """
        if self._kind != _NUMBER_STATS:
            return None
        kind = (
            statistics_pb2.Histogram.QUANTILES
            if of_quantiles
            else statistics_pb2.Histogram.STANDARD
        )
        histograms = list(self._stats.histograms)
        matching = [histogram for histogram in histograms if histogram.type == kind]
        # If all values are NaN, there is one histogram without buckets.
        return (
            matching or [histogram for histogram in histograms if not histogram.buckets] or [None]
        )[0]

    @property
    def quantile_error(self) -> float | None:
        """Largest error of the rank of a quantile, as a share of the values."""
        return self._custom.get("quantile_error")

    @property
    def distinct(self) -> int | None:
        """Number of different values. It is exact if `distinct_error` is 0."""
        if self._kind != _NUMBER_STATS:
            return int(self._stats.unique)
        return int(self._custom["distinct"]) if "distinct" in self._custom else None

    @property
    def distinct_error(self) -> float | None:
        """Relative standard error of `distinct`."""
        return self._custom.get("distinct_error")

    @property
    def top_values(self) -> Mapping[str, int]:
        """Value as text to its number of occurrences, the most frequent first.

        Integers, texts and floats with few different values have top values. If they are estimates,
        only values are listed that are frequent enough in the sample.
        """
        if self._kind == _TEXT_STATS:
            ranks: Any = self._stats.rank_histogram
        else:
            ranks = self._custom.get("top_values")
        return (
            {}
            if ranks is None
            else {bucket.label: int(bucket.sample_count) for bucket in ranks.buckets}
        )

    @property
    def top_values_are_exact(self) -> bool:
        """False if `top_values` are estimated from a sample of the occurrences."""
        return "top_values_are_estimates" not in self._custom

    @property
    def lists_all_values(self) -> bool:
        """True if `top_values` contains all values, with exact counts."""
        return (
            self.top_values_are_exact
            and bool(self.top_values)
            and sum(self.top_values.values()) == self.values
        )

    @property
    def unlisted(self) -> float:
        """Largest possible share of a value that is not in `top_values`.

        It is 0 if all values are listed.
        """
        top_values = self.top_values
        if self.sampled is not None:
            return min(MIN_SAMPLED_OCCURRENCES / self.sampled, 1.0)
        if sum(top_values.values()) == self.values:
            return 0.0
        return min(top_values.values(), default=self.values) / max(self.values, 1)

    @property
    def sampled(self) -> int | None:
        """Number of sampled occurrences of texts for `top_values`; None if they are exact."""
        if self.top_values_are_exact:
            return None
        return min(round(1 / (self.distinct_error or 1) ** 2), MAX_VALUES) // 2

    @property
    def colours(self) -> ColourStatistics | None:
        """Colours of encoded images; None for other features."""
        if "decoded_images" not in self._custom:
            return None
        images, pixels = (int(self._custom[f"decoded_{name}"]) for name in ("images", "pixels"))
        mean, std_dev = (
            tuple(self._custom[f"{figure}_{channel}"] for channel in COLOUR_CHANNELS)
            for figure in ("mean", "std_dev")
        )
        return ColourStatistics(images, pixels, mean, std_dev)

    def to_json(self) -> dict[str, Any]:
        """Returns all figures, for `--json`."""
        colours = {} if self.colours is None else {"colours": asdict(self.colours)}
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
            **colours,
        }

    def summary(self) -> dict[str, Any]:
        """Returns the figures that a manifest contains."""
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
        """Returns the cells of the feature in a table.

        Args:
            feature: The feature, if it is known. Then classes are shown by name and timestamps as
                times.
        """
        total = self.present + self.missing
        distinct_prefix = "" if self.distinct_error in (0, None) else "~"
        sizes, lengths = self.sizes, self.lengths
        colours = self.colours
        classes = None if feature is None else feature.classes
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
            "" if lengths[0] == lengths[2] else _format_range(lengths[0], lengths[2], "values"),
            "" if sizes is None else _format_range(sizes[0], sizes[2], "bytes"),
            f"{self.nans:,} NaN" if self.nans else "",
            "" if colours is None else f"colours of {colours.images:,} decoded",
        ]
        max_shown = _MAX_SHOWN_VALUES if classes is None else _MAX_SHOWN_CLASSES
        estimate = "" if self.top_values_are_exact else "~"
        top = [
            f"{_shorten(_format_value(value, feature))} ({estimate}{count:,}, {format_percent(count / max(self.values, 1))})"
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


_UNBROKEN_COLUMNS = ("MISSING", "DISTINCT", "MEAN", "STD")
_COLUMNS = (
    "FEATURE",
    "TYPE",
    *_UNBROKEN_COLUMNS[:2],
    "MIN",
    *_UNBROKEN_COLUMNS[2:],
    "MAX",
    "SIZE",
    "MOST FREQUENT",
)


def _format_value(value: str, feature: Feature | None) -> str:
    if feature is not None and feature.timestamp:
        return format_ticks(int(value), feature)
    return format_class_value(value, None if feature is None else feature.classes)


def format_class_value(value: str, classes: Sequence[str] | None) -> str:
    """Returns a value of the statistics as text, and a class as its name.

    >>> format_class_value("1", ("cat", "dog")), format_class_value("7", ("cat", "dog"))
    ('dog', '7')
    """
    if not value:
        return "''"
    if classes is None or not value.isdigit() or int(value) >= len(classes):
        return value
    return classes[int(value)]


def _quantiles(histograms: Iterable[Any]) -> tuple[float, ...]:
    for histogram in histograms:
        if histogram.type == statistics_pb2.Histogram.QUANTILES and histogram.buckets:
            return (
                *(bucket.low_value for bucket in histogram.buckets),
                histogram.buckets[-1].high_value,
            )
    return ()


def _format_number(value: float | int | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.5g}"


def _format_range(minimum: int, maximum: int, unit: str) -> str:
    if minimum == maximum:
        return f"{minimum} {unit.removesuffix('s') if minimum == 1 else unit}"
    return f"{minimum}..{maximum} {unit}"


def _shorten(text: str) -> str:
    line = repr(text)[1:-1]
    return line if len(line) <= _MAX_TEXT_WIDTH else line[: _MAX_TEXT_WIDTH - 1] + "…"


class DatasetStatistics(Mapping[str, Mapping[str, FeatureStatistics]]):
    """Statistics by split and feature, as in `statistics["train"]["fare"].mean`.

    >>> DatasetStatistics.from_bytes(b"")
    <statistics of 0 records>
    """

    def __init__(self, proto: Any, schema: Schema | None = None) -> None:
        self._proto, self._schema = proto, schema

    @classmethod
    def from_bytes(
        cls, data: bytes, source: str = "statistics.pb", schema: Schema | None = None
    ) -> DatasetStatistics:
        """Returns the statistics in the contents of a file.

        Args:
            data: The contents of the file.
            source: The name of the file, for messages.
            schema: If it is passed, classes are shown by name and timestamps as times.

        Raises:
            DataError: The contents are not statistics.
        """
        try:
            return cls(statistics_pb2.DatasetFeatureStatisticsList.FromString(data), schema)
        except DecodeError:
            raise DataError(
                "is no DatasetFeatureStatisticsList of TensorFlow Metadata", source=source
            ) from None

    @classmethod
    def from_sketch(cls, sketch: DatasetSketch) -> DatasetStatistics:
        """Returns the statistics of a sketch."""
        return cls(to_proto(sketch), sketch.schema)

    def to_proto(self) -> Any:
        """Returns the `DatasetFeatureStatisticsList`, for `tensorflow_data_validation`."""
        return self._proto

    def to_bytes(self) -> bytes:
        """Returns the contents of a statistics file, equal for equal statistics."""
        return to_bytes(self._proto)

    @cached_property
    def _splits(self) -> dict[str, dict[str, FeatureStatistics]]:
        return {
            dataset.name: {
                feature.name: feature for feature in map(FeatureStatistics, dataset.features)
            }
            for dataset in self._proto.datasets
        }

    @property
    def records(self) -> dict[str, int]:
        """Split to its number of records."""
        return {dataset.name: int(dataset.num_examples) for dataset in self._proto.datasets}

    def select(
        self, splits: Sequence[str], features: Sequence[str] | None = None
    ) -> DatasetStatistics:
        """Returns the statistics of some splits and features.

        Args:
            splits: The splits to keep.
            features: The features to keep, in this order. None keeps all.
        """
        proto = statistics_pb2.DatasetFeatureStatisticsList()
        proto.datasets.extend(dataset for dataset in self._proto.datasets if dataset.name in splits)
        for dataset in proto.datasets if features is not None else ():
            feature_statistics = self._splits[dataset.name]
            del dataset.features[:]
            dataset.features.extend(feature_statistics[name].proto for name in features or ())
        return DatasetStatistics(proto, self._schema)

    def select_checked(
        self, split: str | None, columns: Sequence[str] | str | None
    ) -> DatasetStatistics:
        """Returns the statistics of one split and some features, as options select them.

        Args:
            split: The split; None selects all.
            columns: The features, also as a text with commas; None selects all.

        Raises:
            UsageError: The split or a feature does not exist.
        """
        if split is not None and split not in self:
            raise UsageError(f"{option('split', split)}: there are {', '.join(self)}")
        names = (
            [name.strip() for name in columns.split(",")] if isinstance(columns, str) else columns
        )
        feature_names = list(next(iter(self.values()), ()))
        for name in names or ():
            if name not in feature_names:
                raise UsageError(f"no feature {name!r}; {available_names(name, feature_names)}")
        return self.select(list(self) if split is None else [split], names)

    def __getitem__(self, split: str) -> Mapping[str, FeatureStatistics]:
        return self._splits[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)

    def to_json(self) -> dict[str, Any]:
        """Returns all figures by split."""
        return {
            split: {
                "records": self.records[split],
                "features": [feature.to_json() for feature in features.values()],
            }
            for split, features in self.items()
        }

    def summary(self) -> dict[str, Any]:
        """Returns the figures that a manifest contains."""
        return {
            split: {name: feature.summary() for name, feature in features.items()}
            for split, features in self.items()
        }

    def lines(self) -> Iterator[str]:
        """Yields the lines of two tables for each split: figures and most frequent values."""
        for split_index, (split, features) in enumerate(self.items()):
            yield from [""] * (split_index > 0)
            yield f"{split}: {self.records[split]:,} records"
            rows = self._rows(features)
            yield from table_lines(_COLUMNS[:-1], [row[:-1] for row in rows], _UNBROKEN_COLUMNS)
            if frequent := [(row[0], row[-1]) for row in rows if row[-1]]:
                yield ""
                yield from table_lines((_COLUMNS[0], _COLUMNS[-1]), frequent)

    def _rows(self, features: Mapping[str, FeatureStatistics]) -> list[tuple[str, ...]]:
        schema = self._schema
        return [
            feature.row(schema[name] if schema is not None and name in schema else None)
            for name, feature in features.items()
        ]

    def __repr__(self) -> str:
        if not self:
            return "<statistics of 0 records>"
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        parts = []
        for split, features in self.items():
            of_split = [html.table(list(_COLUMNS), self._rows(features))]
            parts.append(html.section(f"{split}: {self.records[split]:,} records", *of_split))
        return html.section("statistics", *parts)
