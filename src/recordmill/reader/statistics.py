"""Statistics of a data set's values: as its build has counted them, or by reading its records; and weights of classes
and the figures of a normalization, which training makes of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from recordmill.base.errors import UsageError
from recordmill.base.option_names import available_names
from recordmill.base.threads import thread_map
from recordmill.schemas.splits import TRAIN_SPLIT
from recordmill.shards.loading.batches import Load
from recordmill.shards.manifest import STATISTICS_NAME, read_statistics

if TYPE_CHECKING:  # what most commands have no need of
    from recordmill.reader.scanner import Scanner
    from recordmill.statistics.dataset_sketch import DatasetSketch
    from recordmill.statistics.dataset_statistics import (
        ColourStatistics,
        DatasetStatistics,
        FeatureStatistics,
    )


def stored_statistics(dataset: Scanner) -> DatasetStatistics | None:
    """Returns the statistics of the build; None where it counted none, or the view has other records or features."""
    view = dataset.view
    if (
        view.is_filtered
        or view.steps
        or view.names
        or view.class_names
        or (statistics := _load_build_statistics(dataset)) is None
    ):
        return None
    return statistics.select(
        dataset.splits, None if dataset.schema == dataset.full_schema else dataset.schema.names
    )


def _load_build_statistics(dataset: Scanner) -> DatasetStatistics | None:
    """Returns the statistics of all records and features."""
    from recordmill.statistics.dataset_statistics import DatasetStatistics

    manifest, root = dataset.catalog.manifest, dataset.catalog.root
    data = None if manifest is None or root is None else read_statistics(manifest, root)
    return (
        None
        if data is None
        else DatasetStatistics.from_bytes(data, STATISTICS_NAME, dataset.full_schema)
    )


def expected_records(dataset: Scanner) -> int | None:
    """Returns how many records reading all of a data set gives, by its manifest; None of other files."""
    manifest = dataset.catalog.manifest
    return None if manifest is None else sum(manifest.records[split] for split in dataset.splits)


def count_statistics(
    dataset: Scanner, progress: Callable[[int], None] | None = None
) -> DatasetSketch:
    """Counts the records of a data set, or of any TFRecord files, by reading all of them; encoded images as stored."""
    from recordmill.statistics.dataset_sketch import SketchPool

    encoded = dataset.encoded
    sketches = SketchPool(encoded.schema, encoded.splits)
    split_ids = {split: number for number, split in enumerate(encoded.splits)}

    def count(load: Load) -> int:
        rows, first = 0, encoded._first_record_number(load)
        for batch in encoded.decode(load):
            keys = np.arange(first + rows, first + rows + batch.num_rows).astype(np.uint64)
            with sketches.borrow() as sketch:
                sketch.add(batch, keys, np.full(batch.num_rows, split_ids[load.file.split]))
            rows += batch.num_rows
        return rows

    for rows in thread_map(count, encoded.loads(), encoded.threads):
        if progress is not None:
            progress(rows)
    return sketches.total()


class StatisticsMixin:
    """Mixin of a `Scanner`: statistics of its values."""

    @cached_property
    def statistics(self: Any) -> DatasetStatistics:
        """Returns the statistics by split and feature: `ds.statistics["train"]["fare"].mean`.

        They are those of the build; where there are none, or where records were chosen or features renamed, all records
        are read.
        """
        from recordmill.statistics.dataset_statistics import DatasetStatistics

        return stored_statistics(self) or DatasetStatistics.from_sketch(count_statistics(self))

    def class_weights(self: Any, label: str | None = None) -> dict[Any, float]:
        """Returns the weight of a record of each class by which all classes weigh the same, as scikit-learn's
        "balanced" has it.

        It is records / (classes * records of the class), of the split `train`, or of all where there is none. Keys are
        the numbers of classes, as Keras's `class_weight` takes them, or texts.

        Args:
            label: the feature; None: the label of the data set.

        Raises:
            UsageError: no such feature, or its values are no classes.
        """
        name = self.schema.label if label is None else label
        if name is None:
            raise UsageError("the data set has no label: name the feature that holds the classes")
        counts, records = Counter[str](), 0
        for figures in _training_statistics(self, name):
            counts.update(figures.top_values)
            records += figures.values
            if (
                not figures.top_values_are_exact
                or sum(figures.top_values.values()) != figures.values
            ):
                raise UsageError(
                    f"feature {name!r} holds no classes: {_no_classes_reason(figures)}"
                )
        is_int = self.schema[name].kind == "int64"
        weights = {
            (int(value) if is_int else value): records / (len(counts) * count)
            for value, count in counts.items()
        }
        return dict(sorted(weights.items()))

    def normalization(self: Any, feature: str | None = None) -> dict[str, Any]:
        """The keywords of a Keras layer that gives the feature mean 0 and variance 1:
        `keras.layers.Normalization(**ds.normalization("fare"))`. Of the finite values of the split `train`, or of all
        where there is none. Of a feature of encoded images: of each channel of what `decode_images` gives, over the
        images that were decoded for the statistics. None: by name of all numbers but the label and classes.

        Raises:
            UsageError: no such feature, or it holds no numbers.
        """
        if feature is None:
            kinds = ("int", "uint", "float", "bfloat")
            numbers = (f for f in self.schema if f.dtype.startswith(kinds) and f.classes is None)
            names = [f.name for f in numbers if f.name != self.schema.label]
            return {
                name: self.normalization(name)
                for name in names
                if any(figures.finite for figures in _training_statistics(self, name))
            }
        by_split = _training_statistics(self, feature)
        if colours := [figures.colours for figures in by_split if figures.colours is not None]:
            return _colour_normalization(colours)
        count, total, squares = 0, Fraction(0), Fraction(0)
        for figures in by_split:
            if figures.mean is None or figures.variance is None:
                continue
            mean, variance = figures.mean, figures.variance
            if not (math.isfinite(mean) and math.isfinite(variance)):
                raise UsageError(f"feature {feature!r}: its values are too large to be normalized")
            count += figures.finite
            total += figures.finite * Fraction(mean)
            squares += figures.finite * (Fraction(variance) + Fraction(mean) ** 2)
        if not count:
            raise UsageError(f"feature {feature!r} holds no numbers that could be normalized")
        return {
            "axis": None,
            "mean": float(total / count),
            "variance": float(squares / count - (total / count) ** 2),
        }


def _colour_normalization(statistics: list[ColourStatistics]) -> dict[str, Any]:
    pixels = sum(colours.pixels for colours in statistics)
    means, variances = [], []
    for channel in range(len(statistics[0].mean)):
        mean = (
            sum(colours.pixels * Fraction(colours.mean[channel]) for colours in statistics) / pixels
        )
        squares = sum(
            colours.pixels
            * (Fraction(colours.std_dev[channel]) ** 2 + Fraction(colours.mean[channel]) ** 2)
            for colours in statistics
        )
        means.append(float(mean))
        variances.append(float(squares / pixels - mean**2))
    return {"axis": -1, "mean": means, "variance": variances}


def _training_statistics(dataset: Any, name: str) -> list[FeatureStatistics]:
    if name not in dataset.schema:
        raise UsageError(f"no feature {name!r}; {available_names(name, dataset.schema.names)}")
    splits: Mapping[str, Mapping[str, FeatureStatistics]] = dataset.statistics
    features_by_split = [splits[TRAIN_SPLIT]] if TRAIN_SPLIT in splits else list(splits.values())
    return [features[name] for features in features_by_split]


def _no_classes_reason(statistics: FeatureStatistics) -> str:
    if statistics.type in ("FLOAT", "BYTES"):
        return f"its values are {statistics.type.lower()}s"
    qualifier = "about " if statistics.distinct_error else ""
    return f"it has {qualifier}{statistics.distinct or 0:,} distinct values, and only the most frequent ones are listed"
