"""Rules for a data set, from a YAML file or a mapping.

Rules limit figures of features, and set thresholds for comparisons. A threshold from the user holds
exactly. A default threshold leaves room for chance, so that two samples of one distribution pass.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import available_names, did_you_mean, option
from recordmill.schemas.feature import Feature, Schema
from recordmill.storage.yaml_file import check_nesting, read_yaml

Bounds = tuple[float | None, float | None]  # lower and upper; None means no bound
_NUMBER_RULES = ("min", "max", "mean", "zeros", "nan")
_TRUTH_VALUES = {"true": "1", "false": "0", "1": "1", "0": "0"}


@dataclass(frozen=True)
class Threshold:
    """Limit of a figure in a comparison.

    Attributes:
        maximum: The largest figure that passes.
        is_default: The figure may exceed `maximum` by an amount that chance explains.
    """

    maximum: float
    is_default: bool = False


@dataclass(frozen=True)
class Thresholds:
    """Thresholds for the comparison of two samples. None disables a comparison.

    Attributes:
        jensen_shannon: Divergence of numbers, in bits.
        l_infinity: Largest difference between the shares of a category.
        missing: Difference between the shares of records that lack the feature.
        new_values: Share of values that the other sample does not contain.
    """

    jensen_shannon: Threshold | None = Threshold(0.1, is_default=True)
    l_infinity: Threshold | None = Threshold(0.1, is_default=True)
    missing: Threshold | None = Threshold(0.05, is_default=True)
    new_values: Threshold | None = Threshold(0.01, is_default=True)


@dataclass(frozen=True)
class FeatureRules:
    """Rules for one feature, in each split. None means no limit.

    Attributes:
        present: Smallest share of records that have the feature.
        min: Smallest number that may occur.
        max: Largest number that may occur.
        mean: Bounds of the mean.
        zeros: Largest share of zeros among the values.
        nan: Largest share of NaN among the values.
        distinct: Bounds of the number of different values.
        values: All allowed values, as texts.
        other_values: Largest share of other values than `values`.
        shares: Bounds of the share of a value, by value.
        drift: Threshold of the distance to another data set. None uses `Rules.drift`.
        skew: Threshold of the distance to the training split. None uses `Rules.skew`.
        disabled_checks: "drift" and "skew" if the rules disable them for this feature.
    """

    present: float | None = None
    min: float | None = None
    max: float | None = None
    mean: Bounds | None = None
    zeros: float | None = None
    nan: float | None = None
    distinct: Bounds | None = None
    values: tuple[str, ...] | None = None
    other_values: float = 0.0
    shares: Mapping[str, Bounds] = field(default_factory=dict)
    drift: Threshold | None = None
    skew: Threshold | None = None
    disabled_checks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ClassRules:
    """Rules for the classes of the label, in each split. None means no limit.

    Attributes:
        min_share: Smallest share of records of a class.
        max_ratio: Largest ratio between the counts of the most frequent and another class.
        min_records: Smallest number of records of a class.
    """

    min_share: float | None = None
    max_ratio: float | None = None
    min_records: float | None = None


@dataclass(frozen=True)
class RepeatLimits:
    """Largest shares of repeated records, within a split or between splits.

    None disables a search.

    Attributes:
        records: Share of equal records.
        images: Share of images with equal bytes.
        near_images: Share of similar images.
        keys: Largest share of records with a repeated value, by feature.
    """

    records: float | None = None
    images: float | None = None
    near_images: float | None = None
    keys: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.keys) or any(
            limit is not None for limit in (self.records, self.images, self.near_images)
        )


NO_REPEATS = RepeatLimits(0.0, 0.0, 0.0)  # default without rules: any repeat is a violation


@dataclass(frozen=True)
class Rules:
    """All rules for a data set.

    Attributes:
        records: Bounds of the number of records of each split.
        splits: Bounds of the share of all records, by split.
        classes: Rules for the classes of the label.
        drift: Thresholds against another data set.
        skew: Thresholds against the training split. None disables the comparison.
        leakage: Limits of repeated records between splits.
        duplicates: Limits of repeated records within a split.
        source: Name of the rules in messages.
    """

    features: Mapping[str, FeatureRules] = field(default_factory=dict)
    records: Bounds | None = None
    splits: Mapping[str, Bounds] = field(default_factory=dict)
    classes: ClassRules | None = None
    drift: Thresholds = field(default_factory=Thresholds)
    skew: Thresholds | None = None
    leakage: RepeatLimits = field(default_factory=RepeatLimits)
    duplicates: RepeatLimits = field(default_factory=RepeatLimits)
    source: str = "rules"

    def for_feature(self, name: str) -> FeatureRules:
        """Returns the rules of a feature, which may be empty."""
        return self.features.get(name, FeatureRules())

    def fit_to_schema(self, schema: Schema, splits: tuple[str, ...] | None = None) -> Rules:
        """Returns the rules for a data set, with classes by number.

        Args:
            schema: The schema of the data set.
            splits: Its splits. None skips the check of split names.

        Raises:
            UsageError: A feature, class or split does not exist. Or a rule does not suit the values
                of its feature.
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
        file_or_mapping: Path of the file, or its content.
        keyword: Name of the option with the path, for messages.

    Raises:
        UsageError: A key or value is invalid. The message has the allowed form.
    """
    source = "rules"
    if not isinstance(file_or_mapping, Mapping):
        source = os.fspath(file_or_mapping)
        file_or_mapping = read_yaml(
            source, option(keyword, source), "rules, as in `features: {age: {present: 0.9}}`"
        )
    try:
        check_nesting(file_or_mapping)
        rules = Rules(**_parse_entries(file_or_mapping, _RULE_PARSERS))
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    return replace(rules, source=source)


def _find_feature(schema: Schema, name: str, source: str) -> Feature:
    if name not in schema:
        raise UsageError(f"{source}: no feature {name!r}; {available_names(name, schema.names)}")
    return schema[name]


def _fit_feature_rules(rules: FeatureRules, feature: Feature, source: str) -> FeatureRules:
    place = f"{source}: features: {feature.name}"
    is_bytes = feature.dtype in ("string", "bytes")
    for name in _NUMBER_RULES if is_bytes else ():
        if getattr(rules, name) is not None:
            raise UsageError(f"{place}: {name}: is for numbers, and it holds {feature.describe()}")
    if (
        (rules.values is not None or rules.shares)
        and feature.dtype != "string"
        and feature.kind != "int64"
    ):
        raise UsageError(
            f"{place}: {'shares' if rules.values is None else 'values'}: is for texts and integers, and it holds "
            f"{feature.describe()}"
        )
    if feature.dtype == "bool":
        return _rename_values(rules, lambda value: _parse_truth_value(value, place))
    if feature.classes is None:
        return rules
    numbers = {name: str(class_number) for class_number, name in enumerate(feature.classes)}

    def parse_class(value: str) -> str:
        # digits are accepted as a class number
        if value not in numbers and not value.isdigit():
            raise UsageError(
                f"{place}: no class {value!r}; {available_names(value, feature.classes or ())}"
            )
        return numbers.get(value, value)

    return _rename_values(rules, parse_class)


def _rename_values(rules: FeatureRules, rename: Callable[[str], str]) -> FeatureRules:
    values = None if rules.values is None else tuple(map(rename, rules.values))
    return replace(
        rules,
        values=values,
        shares={rename(value): bounds for value, bounds in rules.shares.items()},
    )


def _parse_truth_value(value: str, place: str) -> str:
    """Returns the text that statistics use for a boolean."""
    if value.lower() not in _TRUTH_VALUES:
        raise UsageError(f"{place}: {value!r} is neither true nor false")
    return _TRUTH_VALUES[value.lower()]


_Parser = Callable[[Any], Any]


def _parse_entries(mapping: Any, parsers: Mapping[str, _Parser]) -> dict[str, Any]:
    """Returns the parsed value of each key.

    Raises:
        ValueError: A key is unknown or its value is invalid. The message names the key.
    """
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{_quote(mapping)} is no mapping of {', '.join(parsers)}")
    entries = {}
    for name, value in mapping.items():
        if name not in parsers:
            raise ValueError(
                f"no rule {_quote(name)}: one of {', '.join(parsers)}{did_you_mean(str(name), parsers)}"
            )
        try:
            entries[name] = parsers[name](value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return entries


def _mapping_parser(parser: _Parser, description: str) -> _Parser:
    """Returns a parser of mappings that parses each value with `parser`."""

    def parse_mapping(mapping: Any) -> dict[str, Any]:
        if not isinstance(mapping, Mapping):
            raise ValueError(f"{_quote(mapping)} is no mapping of {description}")
        entries = {}
        for name, value in mapping.items():
            try:
                entries[_parse_value(name)] = parser(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return entries

    return parse_mapping


def _quote(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _parse_number(value: Any) -> float:
    # a bool is an int in Python, but not a number in rules
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{_quote(value)} is no number")
    try:
        is_nan = math.isnan(value)
    except OverflowError:
        raise ValueError(f"{_quote(value)} is larger than any number of a data set") from None
    if is_nan:
        raise ValueError(f"{_quote(value)} is no number")
    return value  # an int stays an int, since a float can't hold all of them


def _parse_finite(value: Any) -> float:
    if not math.isfinite(number := _parse_number(value)):
        raise ValueError(f"{_quote(value)} is no finite number")
    return number


def _parse_share(value: Any) -> float:
    if not 0 <= _parse_number(value) <= 1:
        raise ValueError(f"{_quote(value)} is no share from 0 to 1")
    return float(value)


def _parse_non_negative(value: Any) -> float:
    if (number := _parse_finite(value)) < 0:
        raise ValueError(f"{_quote(value)} is below 0")
    return number


def _pair_parser(parser: _Parser) -> _Parser:
    def parse_pair(value: Any) -> Bounds:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ValueError(
                f"{_quote(value)} is no pair of a least and a greatest number, as in [0, 10]; null is any"
            )
        low, high = (None if bound is None else parser(bound) for bound in value)
        if low is not None and high is not None and low > high:
            raise ValueError(f"{low} is above {high}")
        return low, high

    return parse_pair


def _parse_threshold(value: Any) -> Threshold | None:
    return None if value is None else Threshold(_parse_share(value))


def _optional_parser(parser: _Parser) -> _Parser:
    return lambda value: None if value is None else parser(value)


def _parse_value(value: Any) -> str:
    """Returns a value as the text that statistics use."""
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, str | int):
        raise ValueError(f"{_quote(value)} is neither a text nor a whole number; quote it")
    return str(value)


def _parse_values(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list | tuple):
        raise ValueError(f"{_quote(values)} is no list of values")
    return tuple(map(_parse_value, values))


_FEATURE_PARSERS: Mapping[str, _Parser] = {
    "present": _parse_share,
    "min": _parse_finite,
    "max": _parse_finite,
    "mean": _pair_parser(_parse_finite),
    "zeros": _parse_share,
    "nan": _parse_share,
    "distinct": _pair_parser(_parse_non_negative),
    "values": _parse_values,
    "other_values": _parse_share,
    "shares": _mapping_parser(_pair_parser(_parse_share), "values to pairs of shares"),
    "drift": _parse_threshold,
    "skew": _parse_threshold,
}


def _parse_feature_rules(mapping: Any) -> FeatureRules:
    entries = _parse_entries(mapping, _FEATURE_PARSERS)
    if (
        entries.get("min") is not None
        and entries.get("max") is not None
        and entries["min"] > entries["max"]
    ):
        raise ValueError(f"min: {entries['min']} is above max")
    # null disables a check, but an absent key uses the thresholds of all features
    disabled_checks = frozenset(
        name for name in ("drift", "skew") if name in entries and entries[name] is None
    )
    return FeatureRules(**entries, disabled_checks=disabled_checks)


def _parse_thresholds(mapping: Any) -> Thresholds:
    return Thresholds(
        **_parse_entries(mapping, dict.fromkeys(Thresholds.__dataclass_fields__, _parse_threshold))
    )


def _parse_repeat_limits(mapping: Any) -> RepeatLimits:
    parsers = {
        "records": _optional_parser(_parse_share),
        "images": _optional_parser(_parse_share),
        "near_images": _optional_parser(_parse_share),
    }
    return RepeatLimits(**_parse_entries(mapping, {**parsers, "keys": _parse_keys}))


def _parse_keys(keys: Any) -> dict[str, float]:
    if isinstance(keys, list | tuple):
        return {_parse_value(name): 0.0 for name in keys}
    return dict(_mapping_parser(_parse_share, "features to shares")(keys))


_RULE_PARSERS: Mapping[str, _Parser] = {
    "features": _mapping_parser(_parse_feature_rules, "features to their rules"),
    "records": _pair_parser(_parse_non_negative),
    "splits": _mapping_parser(_pair_parser(_parse_share), "splits to pairs of shares"),
    "classes": lambda mapping: ClassRules(
        **_parse_entries(
            mapping,
            {
                "min_share": _parse_share,
                "max_ratio": _parse_non_negative,
                "min_records": _parse_non_negative,
            },
        )
    ),
    "drift": _parse_thresholds,
    "skew": _parse_thresholds,
    "leakage": _parse_repeat_limits,
    "duplicates": _parse_repeat_limits,
}
