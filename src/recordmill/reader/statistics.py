"""Statistics of a data set, class weights and normalization."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from recordmill.base.errors import UsageError
from recordmill.base.option_names import available_names
from recordmill.base.threads import thread_map
from recordmill.schemas.feature import Schema
from recordmill.schemas.splits import TRAIN_SPLIT
from recordmill.shards.catalog import Catalog
from recordmill.shards.pieces import FrameRead

if TYPE_CHECKING:  # not imported at run time, because most commands do not need these modules
    from recordmill.reader.records import Records
    from recordmill.statistics.dataset_sketch import DatasetSketch
    from recordmill.statistics.dataset_statistics import DatasetStatistics
    from recordmill.statistics.feature_statistics import (
        ColourStatistics,
        ElementStatistics,
        FeatureStatistics,
    )

NormalizedBy = Literal["moments", "quantiles"]


class _Counted(Protocol):
    """A data set with statistics. The first access to them may read all records."""

    @property
    def schema(self) -> Schema: ...

    @property
    def statistics(self) -> DatasetStatistics: ...


def read_stored_statistics(records: Records) -> DatasetStatistics | None:
    """Returns the statistics that the build has stored.

    None if there are none, or if the view selects records or changes names or values.
    """
    files = records.open_files
    if (
        records.filter.is_active
        or files.steps
        or records.names
        or files.class_names
        or (statistics := files.read_statistics()) is None
    ):
        return None
    return statistics.select(
        files.catalog.splits, None if records.schema == files.schema else records.schema.names
    )


def count_expected_records(catalog: Catalog) -> int | None:
    """Returns the number of records according to the manifest. None without a manifest."""
    manifest = catalog.manifest
    return None if manifest is None else sum(manifest.records[split] for split in catalog.splits)


def count_statistics(
    records: Records, progress: Callable[[int], None] | None = None
) -> DatasetSketch:
    """Counts the values of a data set by reading all its records.

    Encoded images are counted as stored.

    Args:
        progress: Called with the number of records of each part that was read.

    Raises:
        DataError: A record is damaged or does not fit the schema.
    """
    from recordmill.statistics.dataset_sketch import SketchPool

    encoded = records.encoded_view
    files = encoded.open_files
    sketches = SketchPool(encoded.schema, files.catalog.splits)
    split_ids = {split: number for number, split in enumerate(files.catalog.splits)}

    def count(read: FrameRead) -> int:
        frames = read()
        batch, file = encoded.decode(frames), files.catalog.files[frames.file]
        # keys are record numbers, so the result does not depend on threads
        keys = files.number_records(frames)[: batch.num_rows].astype(np.uint64)
        with sketches.borrow() as sketch:
            sketch.add(batch, keys, np.full(batch.num_rows, split_ids[file.split]))
        return int(batch.num_rows)

    for rows in thread_map(count, encoded.iter_reads(), encoded.threads):
        if progress is not None:
            progress(rows)
    return sketches.total()


def load_statistics(records: Records) -> DatasetStatistics:
    """Returns the stored statistics of the build, or counts them by reading all records."""
    from recordmill.statistics.dataset_statistics import DatasetStatistics

    return read_stored_statistics(records) or DatasetStatistics.from_sketch(
        count_statistics(records)
    )


def weigh_classes(dataset: _Counted, label: str | None) -> dict[Any, float]:
    """Returns weights that give all classes the same total weight.

    Raises:
        UsageError: The feature is unknown, or its values are not classes.
    """
    name = dataset.schema.label if label is None else label
    if name is None:
        raise UsageError("the data set has no label: name the feature that holds the classes")
    counts, records = Counter[str](), 0
    for figures in _training_statistics(dataset, name):
        counts.update(figures.top_values)
        records += figures.values
        # weights need the exact count of every value, not only of the most frequent ones
        if not figures.top_values_are_exact or sum(figures.top_values.values()) != figures.values:
            raise UsageError(f"feature {name!r} holds no classes: {_no_classes_reason(figures)}")
    is_int = dataset.schema[name].kind == "int64"
    weights = {
        (int(value) if is_int else value): records / (len(counts) * count)
        for value, count in counts.items()
    }
    return dict(sorted(weights.items()))


def normalize_all(dataset: _Counted, by: NormalizedBy) -> dict[str, dict[str, Any]]:
    """Returns `normalize` of each numeric feature, by name, except the label and classes."""
    kinds = ("int", "uint", "float", "bfloat")
    numbers = (f for f in dataset.schema if f.dtype.startswith(kinds) and f.classes is None)
    names = [f.name for f in numbers if f.name != dataset.schema.label]
    return {
        name: normalize(dataset, name, by)
        for name in names
        if any(figures.finite for figures in _training_statistics(dataset, name))
        and (by == "moments" or _training_elements(dataset, name))
    }


def normalize(dataset: _Counted, feature: str, by: NormalizedBy) -> dict[str, Any]:
    """Returns the keywords of the Keras layer `Normalization` for a feature.

    Raises:
        UsageError: The feature is unknown, has no numbers, or its numbers are too large. Or
            quantiles of each element are not known.
    """
    by_split = _training_statistics(dataset, feature)
    if colours := [figures.colours for figures in by_split if figures.colours is not None]:
        return _colour_normalization(colours)
    elements = _training_elements(dataset, feature)
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
    # If an element has no finite number in a split, its mean there is NaN, and its count is 0.
    means = np.nan_to_num(np.stack([part.mean for part in elements]))
    variances = np.nan_to_num(np.stack([part.variance for part in elements]))
    mean = (counts * means).sum(0) / total
    variance = (counts * (variances + (means - mean) ** 2)).sum(0) / total
    if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
        raise UsageError(f"feature {name!r}: its values are too large to be normalized")
    return {"axis": -1, "mean": mean, "variance": variance}


def _quantile_normalization(name: str, elements: list[ElementStatistics]) -> dict[str, Any]:
    """Returns keywords of `Normalization` that use quantiles.

    The layer changes the quantile at 1 % of each element to -1, and the one at 99 % to 1.
    """
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


def _training_elements(dataset: _Counted, name: str) -> list[ElementStatistics]:
    """Returns the statistics of each element of a vector feature, one entry per split.

    The list is empty if the build has stored no such statistics, or if the feature has several
    axes, such as an image. Such a feature is normalized as a whole.
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


def _training_statistics(dataset: _Counted, name: str) -> list[FeatureStatistics]:
    """Returns the statistics of a feature in the split `train`.

    If there is no such split, the list has an entry for each split.
    """
    if not isinstance(name, str):
        raise UsageError(f"give the name of one feature, not {name!r}")
    if name not in dataset.schema:
        raise UsageError(f"no feature {name!r}; {available_names(name, dataset.schema.names)}")
    splits = dataset.statistics
    features_by_split = [splits[TRAIN_SPLIT]] if TRAIN_SPLIT in splits else list(splits.values())
    return [features[name] for features in features_by_split]


def _no_classes_reason(statistics: FeatureStatistics) -> str:
    if statistics.type in ("FLOAT", "BYTES"):
        return f"its values are {statistics.type.lower()}s"
    qualifier = "about " if statistics.distinct_error else ""
    return f"it has {qualifier}{statistics.distinct or 0:,} distinct values, and only the most frequent ones are listed"
