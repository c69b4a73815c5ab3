"""Statistics of a data set, class weights and normalization."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from recordmill.base.arguments import suggest_fields
from recordmill.base.errors import UsageError
from recordmill.base.option_names import available_names
from recordmill.base.threads import thread_map
from recordmill.schemas.splits import TRAIN_SPLIT
from recordmill.shards.manifest import STATISTICS_NAME, read_statistics
from recordmill.shards.pieces import FrameCall

if TYPE_CHECKING:  # what most commands have no need of
    from recordmill.reader.scanner import Scanner
    from recordmill.statistics.dataset_sketch import DatasetSketch
    from recordmill.statistics.dataset_statistics import DatasetStatistics
    from recordmill.statistics.feature_statistics import (
        ColourStatistics,
        ElementStatistics,
        FeatureStatistics,
    )


def stored_statistics(dataset: Scanner) -> DatasetStatistics | None:
    """Returns the statistics that the build has stored.

    None if there are none, or if the view selects records or changes names or values.
    """
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
    """Returns the stored statistics of all records and features."""
    from recordmill.statistics.dataset_statistics import DatasetStatistics

    manifest, root = dataset.catalog.manifest, dataset.catalog.root
    data = None if manifest is None or root is None else read_statistics(manifest, root)
    return (
        None
        if data is None
        else DatasetStatistics.from_bytes(data, STATISTICS_NAME, dataset.full_schema)
    )


def may_lack(dataset: Any, name: str) -> bool:
    """Returns whether a record may lack a feature. Reads no records.

    The answer comes from the schema, and from the statistics of the build, which count each split
    by itself. If a condition of the view uses the feature, the answer is False, because readers
    check each record anyway.

    Args:
        dataset: A data set, a mixture or a zip.
        name: Name of the feature in the data set.
    """
    feature = dataset.schema[name]
    if feature.required or feature.ragged_rank:
        return False
    parts = dataset.zip_parts or (dataset.mixture_parts and dataset.mixture_parts.datasets)
    if parts:
        return any(name in part.schema and may_lack(part, name) for part in parts)
    stored_name = dataset.view.names.get(name, name)
    if stored_name in dataset.condition_names:
        return False
    statistics = _load_build_statistics(dataset)
    return statistics is None or any(
        statistics[split][stored_name].missing for split in dataset.splits
    )


def expected_records(dataset: Scanner) -> int | None:
    """Returns the number of records according to the manifest. None without a manifest."""
    manifest = dataset.catalog.manifest
    return None if manifest is None else sum(manifest.records[split] for split in dataset.splits)


def count_statistics(
    dataset: Scanner, progress: Callable[[int], None] | None = None
) -> DatasetSketch:
    """Counts the values of a data set by reading all its records.

    Encoded images are counted as stored.

    Args:
        progress: Called with the number of records of each part that was read.

    Raises:
        DataError: A record is damaged or does not fit the schema.
    """
    from recordmill.statistics.dataset_sketch import SketchPool

    encoded = dataset.encoded_view
    sketches = SketchPool(encoded.schema, encoded.splits)
    split_ids = {split: number for number, split in enumerate(encoded.splits)}

    def count(call: FrameCall) -> int:
        frames = call()
        batch, file = encoded.decode(frames), encoded.catalog.files[frames.file]
        # keys are record numbers, so the result does not depend on threads
        keys = encoded.number_records(frames)[: batch.num_rows].astype(np.uint64)
        with sketches.borrow() as sketch:
            sketch.add(batch, keys, np.full(batch.num_rows, split_ids[file.split]))
        return int(batch.num_rows)

    for rows in thread_map(count, encoded.calls(), encoded.threads):
        if progress is not None:
            progress(rows)
    return sketches.total()


@suggest_fields
class StatisticsMixin:
    """Mixin that adds statistics to a `Scanner`."""

    @cached_property
    def statistics(self: Any) -> DatasetStatistics:
        """Statistics by split and feature, for example `ds.statistics["train"]["fare"].mean`.

        They come from the build if possible. All records are read if the build has stored none, or
        if this view selects records or changes names or values.
        """
        from recordmill.statistics.dataset_statistics import DatasetStatistics

        return stored_statistics(self) or DatasetStatistics.from_sketch(count_statistics(self))

    def class_weights(self: Any, label: str | None = None) -> dict[Any, float]:
        """Returns weights that give all classes the same total weight.

        The weight of a class is records / (classes * records of the class), as "balanced" in
        scikit-learn. Only the split `train` counts, or all splits if there is no such split.

        Args:
            label: The feature with the classes. None uses the label of the data set.

        Returns:
            The weight of each class. Keys are class numbers, as `class_weight` of Keras takes them,
            or texts.

        Raises:
            UsageError: The feature is unknown, or its values are not classes.

        Examples:
            >>> recordmill.open("shards").class_weights()
            {0: 0.9, 1: 1.125}
        """
        name = self.schema.label if label is None else label
        if name is None:
            raise UsageError("the data set has no label: name the feature that holds the classes")
        counts, records = Counter[str](), 0
        for figures in _training_statistics(self, name):
            counts.update(figures.top_values)
            records += figures.values
            # weights need the exact count of every value, not only of the most frequent ones
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

    def normalization(
        self: Any, feature: str | None = None, *, by: Literal["moments", "quantiles"] = "moments"
    ) -> dict[str, Any]:
        """Returns keywords for the Keras layer `Normalization`.

        `keras.layers.Normalization(**ds.normalization("fare"))` changes the mean of a feature to 0
        and its variance to 1. The values are the finite numbers of the split `train`, or of all
        splits if there is no such split.

        A feature with vectors of a fixed length, such as `float32 [14]` or lists of them, is
        normalized element by element: `mean` and `variance` are arrays, and `axis` is -1. The
        values of a feature with encoded images are the pixels of each channel, as `decode_images`
        returns them. They come from the images that were decoded for the statistics.

        Args:
            feature: The feature. None returns the keywords of each numeric feature, by name, except
                the label and classes.
            by: "quantiles" changes the quantiles at 1 % and at 99 % of each element to -1 and 1,
                which robot policies use because outliers have no influence. It is for vectors only.

        Raises:
            UsageError: The feature is unknown, has no numbers, or its numbers are too large. Or
                quantiles of each element are not known.

        Examples:
            >>> recordmill.open("shards").normalization("size")["mean"]
            2.2222222222222223
        """
        if by not in ("moments", "quantiles"):
            raise UsageError(f"by={by!r}: one of moments, quantiles")
        if feature is None:
            kinds = ("int", "uint", "float", "bfloat")
            numbers = (f for f in self.schema if f.dtype.startswith(kinds) and f.classes is None)
            names = [f.name for f in numbers if f.name != self.schema.label]
            return {
                name: self.normalization(name, by=by)
                for name in names
                if any(figures.finite for figures in _training_statistics(self, name))
                and (by == "moments" or _training_elements(self, name))
            }
        by_split = _training_statistics(self, feature)
        if colours := [figures.colours for figures in by_split if figures.colours is not None]:
            return _colour_normalization(colours)
        elements = _training_elements(self, feature)
        if by == "quantiles":
            return _quantile_normalization(feature, elements)
        if elements:
            return _element_normalization(feature, elements)
        # sums of fractions are exact, so the order of the splits does not matter
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


def _element_normalization(name: str, elements: list[ElementStatistics]) -> dict[str, Any]:
    """Returns the mean and the variance of each element over all splits."""
    counts = np.stack([part.finite for part in elements]).astype(np.float64)
    total = counts.sum(0)
    if not total.all():
        raise UsageError(
            f"feature {name!r}: element {int(np.argmin(total))} holds no finite number"
        )
    # An element may have no finite number in one of the splits, which then does not count.
    means = np.nan_to_num(np.stack([part.mean for part in elements]))
    variances = np.nan_to_num(np.stack([part.variance for part in elements]))
    mean = (counts * means).sum(0) / total
    variance = (counts * (variances + (means - mean) ** 2)).sum(0) / total
    if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
        raise UsageError(f"feature {name!r}: its values are too large to be normalized")
    return {"axis": -1, "mean": mean, "variance": variance}


def _quantile_normalization(name: str, elements: list[ElementStatistics]) -> dict[str, Any]:
    """Returns keywords that change the quantiles at 1 % and 99 % of each element to -1 and 1."""
    if not elements:
        raise UsageError(
            f"feature {name!r} has no quantiles of each element: it must hold vectors of one length, "
            "of at most 4,096 numbers"
        )
    if len(elements) > 1:
        raise UsageError(
            f"feature {name!r}: quantiles of several splits can't be added, and there is no split "
            f"{TRAIN_SPLIT!r}; open the one split to train on"
        )
    low, high = elements[0].q01, elements[0].q99
    return {"axis": -1, "mean": (low + high) / 2, "variance": ((high - low) / 2) ** 2}


def _training_elements(dataset: Any, name: str) -> list[ElementStatistics]:
    """Returns the statistics of the elements of a feature with vectors, by split.

    The result is empty for features without elements, and for arrays with several axes, such as
    images, which are normalized as a whole.
    """
    elements = [
        figures.elements for figures in _training_statistics(dataset, name) if figures.present
    ]
    vectors = [part for part in elements if part is not None and part.finite.ndim == 1]
    sizes = {part.finite.size for part in vectors}
    return vectors if len(vectors) == len(elements) and len(sizes) == 1 else []


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
    """Returns the statistics of a feature, by split.

    Only the split `train` is included if the data set has it.
    """
    if not isinstance(name, str):
        raise UsageError(f"give the name of one feature, not {name!r}")
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
