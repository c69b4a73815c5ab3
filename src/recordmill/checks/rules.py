"""Rules for the records of a data set, from YAML or a mapping.

Rules limit figures of features, such as the share of zeros. They also contain the thresholds for
comparisons with other statistics. A threshold from the user holds exactly. A default threshold is
increased by an allowance for chance, so that two samples of the same distribution pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Annotated, Any

from recordmill.base.documents import (
    INTERNAL,
    Check,
    Number,
    Parse,
    Share,
    convert,
    describe_value,
)
from recordmill.base.errors import UsageError
from recordmill.base.option_names import available_names, option
from recordmill.schemas.feature import Feature, Schema
from recordmill.storage.yaml_file import check_nesting, read_yaml

Bounds = tuple[float | None, float | None]  # (lower, upper), both inclusive. None means no bound.
_NUMBER_RULES = ("min", "max", "mean", "zeros", "nan")  # they make no sense for texts and bytes
# The rules may contain a boolean as text or number. Statistics count it as "0" or "1".
_TRUTH_VALUES = {"true": "1", "false": "0", "1": "1", "0": "0"}


@dataclass(frozen=True)
class Threshold:
    """Limit of a compared figure, such as a difference of two shares.

    Attributes:
        maximum: The largest figure that passes.
        is_default: True for a threshold of recordmill, and False for one from the user. Comparisons
            increase a default threshold by the difference that chance may cause.
    """

    maximum: float
    is_default: bool = False


class Inherited(Enum):
    """Marker for a threshold of a feature that the rules do not contain."""

    FROM_DATA_SET = "from data set"


def _parse_threshold(value: Any) -> Threshold | None:
    return None if value is None else Threshold(convert(Share, value))


def _parse_category(value: Any) -> str:
    """Returns a category as statistics write it: true as "1", and 5 as "5"."""
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, str | int):
        raise ValueError(f"is {describe_value(value)}, neither a text nor a whole number; quote it")
    return str(value)


def _parse_keys(keys: Any) -> dict[str, float]:
    """Returns a mapping of features to shares. A list of features allows no repeats."""
    if isinstance(keys, list | tuple):
        return dict.fromkeys(convert(tuple[_Category, ...], keys), 0.0)
    return dict(convert(Mapping[_Category, Share], keys))


def _is_ascending(bounds: Bounds) -> bool:
    low, high = bounds
    return low is None or high is None or low <= high


_ASCENDING = Check(_is_ascending, "a pair with the smaller number first, as in [0, 10]")
_NonNegative = Annotated[Number, Check(lambda value: value >= 0, "0 or more")]
_NumberBounds = Annotated[tuple[Number | None, Number | None], _ASCENDING]
_ShareBounds = Annotated[tuple[Share | None, Share | None], _ASCENDING]
_CountBounds = Annotated[tuple[_NonNegative | None, _NonNegative | None], _ASCENDING]
_Limit = Annotated[Threshold | None, Parse(_parse_threshold)]
_OwnLimit = Annotated[Threshold | Inherited | None, Parse(_parse_threshold)]
_Category = Annotated[str, Parse(_parse_category)]


@dataclass(frozen=True)
class Thresholds:
    """Thresholds for the comparison of two samples. A comparison with None is disabled.

    Attributes:
        jensen_shannon: Limit of the Jensen-Shannon divergence of numbers, sizes or lengths. In
            bits, from 0 to 1.
        l_infinity: Limit of the largest difference between the shares of a value.
        missing: Limit of the difference between the shares of records without the feature.
        new_values: Limit of the share of values that occur only in the checked sample.
    """

    jensen_shannon: _Limit = Threshold(0.1, is_default=True)
    l_infinity: _Limit = Threshold(0.1, is_default=True)
    missing: _Limit = Threshold(0.05, is_default=True)
    new_values: _Limit = Threshold(0.01, is_default=True)


@dataclass(frozen=True)
class FeatureRules:
    """Rules for one feature, in each split. None means no limit.

    Attributes:
        present: Smallest share of records that must have the feature.
        min: Smallest number that may occur.
        max: Largest number that may occur.
        mean: Bounds of the mean of the numbers.
        zeros: Largest share of zeros among the values.
        nan: Largest share of NaN among the values.
        distinct: Bounds of the number of different values.
        values: The expected values, as text. Statistics use the same text for a value, see
            `_parse_category`.
        other_values: Largest share of values that are not in `values`.
        shares: Bounds of the share of some values, by value.
        drift: Threshold of the divergence or distance from another data set. It replaces
            `jensen_shannon` or `l_infinity` of `Rules.drift`. If None, the comparison is disabled.
        skew: Threshold of the divergence or distance from the training split. It replaces
            `jensen_shannon` or `l_infinity` of `Rules.skew`. If None, the comparison is disabled.
    """

    present: Share | None = None
    min: Number | None = None
    max: Number | None = None
    mean: _NumberBounds | None = None
    zeros: Share | None = None
    nan: Share | None = None
    distinct: _CountBounds | None = None
    values: tuple[_Category, ...] | None = None
    other_values: Share = 0.0
    shares: Mapping[_Category, _ShareBounds] = field(default_factory=dict)
    drift: _OwnLimit = Inherited.FROM_DATA_SET
    skew: _OwnLimit = Inherited.FROM_DATA_SET

    def __post_init__(self) -> None:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min: {self.min} is above max")


@dataclass(frozen=True)
class ClassRules:
    """Rules for the classes of the label, in each split. None means no limit.

    Attributes:
        min_share: Smallest share of the records for each class.
        max_ratio: Largest ratio of the count of the most frequent class to the count of any class.
        min_records: Smallest number of records of each class.
    """

    min_share: Share | None = None
    max_ratio: _NonNegative | None = None
    min_records: _NonNegative | None = None


@dataclass(frozen=True)
class RepeatLimits:
    """Largest shares of repeated records, either within a split or between splits.

    A search with None is disabled. `bool` of an object is False if it has no limits.

    Attributes:
        records: Largest share of records with equal bytes.
        images: Largest share of images with equal bytes.
        near_images: Largest share of images that look alike.
        keys: For some features, such as a user id, the largest share of records with a value that
            occurs in another record.
    """

    records: Share | None = None
    images: Share | None = None
    near_images: Share | None = None
    keys: Annotated[Mapping[str, float], Parse(_parse_keys)] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.keys) or any(
            limit is not None for limit in (self.records, self.images, self.near_images)
        )


# The limits of `recordmill check` without rules: each repeat is a violation.
NO_REPEATS = RepeatLimits(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Rules:
    """All rules for a data set.

    Attributes:
        features: Rules for features, by name.
        records: Bounds of the number of records of each split.
        splits: Bounds of the share of all records that a split has, by split.
        classes: Rules for the classes of the label.
        drift: Thresholds for comparisons with another data set.
        skew: Thresholds for comparisons with the training split. None means the default thresholds.
            A build then compares the splits only if a feature has a rule for skew.
        leakage: Limits of records that are repeated in another split.
        duplicates: Limits of records that are repeated within their split.
        source: Name of the rules in messages, such as the path of their file.
    """

    features: Mapping[str, FeatureRules] = field(default_factory=dict)
    records: _CountBounds | None = None
    splits: Mapping[str, _ShareBounds] = field(default_factory=dict)
    classes: ClassRules | None = None
    drift: Thresholds = field(default_factory=Thresholds)
    skew: Thresholds | None = None
    leakage: RepeatLimits = field(default_factory=RepeatLimits)
    duplicates: RepeatLimits = field(default_factory=RepeatLimits)
    source: Annotated[str, INTERNAL] = "rules"

    def for_feature(self, name: str) -> FeatureRules:
        """Returns the rules of a feature. A feature without rules has no limits."""
        return self.features.get(name, FeatureRules())

    @property
    def compares_data_sets(self) -> bool:
        """Whether the user has set a threshold for the comparison with another data set."""
        thresholds = [
            *(getattr(self.drift, limit.name) for limit in fields(self.drift)),
            *(rules.drift for rules in self.features.values()),
        ]
        return any(
            isinstance(threshold, Threshold) and not threshold.is_default
            for threshold in thresholds
        )

    def fit_to_schema(self, schema: Schema, splits: tuple[str, ...] | None = None) -> Rules:
        """Checks the rules against a schema, and returns rules for its statistics.

        Statistics contain each value as a text. So in `values` and `shares`, names of classes
        become class numbers, and true and false become "1" and "0".

        Args:
            schema: The schema of the data set.
            splits: The names of its splits. If None, the rules may name any split.

        Raises:
            UsageError: The data set has no such feature, class, split or label. Or a rule does not
                suit the dtype of its feature.
        """
        features = {
            name: _fit_feature_rules(rules, _find_feature(schema, name, self.source), self.source)
            for name, rules in self.features.items()
        }
        if self.classes is not None and schema.label is None:
            raise UsageError(f"{self.source}: classes: the data set has no label")
        for repeats in (self.leakage, self.duplicates):
            for name in repeats.keys:
                if _find_feature(schema, name, self.source).shape:
                    raise UsageError(
                        f"{self.source}: keys: {name!r} holds {schema[name].describe()}; name a feature of single "
                        "values"
                    )
        for split in self.splits:
            if splits is not None and split not in splits:
                raise UsageError(
                    f"{self.source}: splits: no split {split!r}; {available_names(split, splits)}"
                )
        return replace(self, features=features)


def read_rules(
    file_or_mapping: Mapping[str, Any] | str | os.PathLike[str], keyword: str = "against"
) -> Rules:
    """Reads rules from a YAML file or a mapping.

    Args:
        file_or_mapping: Path of a YAML file, or its content.
        keyword: Name of the option that the user set, for messages.

    Raises:
        UsageError: The file can't be read, or a key or value is invalid. The message contains the
            key and the allowed form.
    """
    source = "rules"
    if not isinstance(file_or_mapping, Mapping | str | os.PathLike):
        raise UsageError(
            "{rules}: rules are the path of a YAML file or a dict, as in {{'features': {{'age': {{'min': 0}}}}}}",
            rules=option(keyword, file_or_mapping),
        )
    if not isinstance(file_or_mapping, Mapping):
        source = os.fspath(file_or_mapping)
        file_or_mapping = read_yaml(
            source, option(keyword, source), "rules, as in `features: {age: {present: 0.9}}`"
        )
    try:
        check_nesting(file_or_mapping)
        rules: Rules = convert(Rules, file_or_mapping, is_closed=True)
    except ValueError as error:
        raise UsageError("{file}: {error}", file=source, error=error) from None
    return replace(rules, source=source)


def _find_feature(schema: Schema, name: str, source: str) -> Feature:
    if name not in schema:
        raise UsageError(f"{source}: no feature {name!r}; {available_names(name, schema.names)}")
    return schema[name]


def _fit_feature_rules(rules: FeatureRules, feature: Feature, source: str) -> FeatureRules:
    """Checks the rules of one feature against its dtype and classes.

    Returns:
        The rules, in which values have the form of statistics. `Rules.fit_to_schema` describes it.

    Raises:
        UsageError: A rule does not suit the dtype of the feature, or a class does not exist.
    """
    place = f"{source}: features: {feature.name}"
    is_bytes = feature.dtype in ("string", "bytes")
    for name in _NUMBER_RULES if is_bytes else ():
        if getattr(rules, name) is not None:
            raise UsageError(
                f"{place}: {name}: is only for numbers, and the feature holds {feature.describe()}"
            )
    if (
        (rules.values is not None or rules.shares)
        and feature.dtype != "string"
        and feature.kind != "int64"
    ):
        raise UsageError(
            f"{place}: {'shares' if rules.values is None else 'values'}: is only for "
            f"texts and integers, and the feature holds {feature.describe()}"
        )
    if feature.dtype == "bool":
        return _rename_values(rules, lambda value: _parse_truth_value(value, place))
    if feature.classes is None:
        return rules
    numbers = {name: str(class_number) for class_number, name in enumerate(feature.classes)}

    def parse_class(value: str) -> str:
        # A class may also be given by its number. A class name of digits takes precedence.
        if value not in numbers and not value.isdigit():
            raise UsageError(
                f"{place}: no class {value!r}; {available_names(value, feature.classes or ())}"
            )
        return numbers.get(value, value)

    return _rename_values(rules, parse_class)


def _rename_values(rules: FeatureRules, rename: Callable[[str], str]) -> FeatureRules:
    """Returns the rules with `rename` applied to each value in `values` and `shares`."""
    values = None if rules.values is None else tuple(map(rename, rules.values))
    return replace(
        rules,
        values=values,
        shares={rename(value): bounds for value, bounds in rules.shares.items()},
    )


def _parse_truth_value(value: str, place: str) -> str:
    """Returns "1" or "0", which statistics use for true and false.

    Args:
        value: The value in the rules.
        place: Name of the rules and the feature, for messages.
    """
    if value.lower() not in _TRUTH_VALUES:
        raise UsageError(f"{place}: {value!r} is neither true nor false")
    return _TRUTH_VALUES[value.lower()]
