"""Rules for the records of a data set, from YAML or a mapping.

Rules limit figures of features, such as the share of zeros. They also contain the thresholds for
comparisons with other statistics. A threshold from the user holds exactly. A default threshold is
increased by an allowance for chance, so that two samples of the same distribution pass.
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


@dataclass(frozen=True)
class Thresholds:
    """Thresholds for the comparison of two samples. None disables a comparison.

    Attributes:
        jensen_shannon: Limit of the Jensen-Shannon divergence of numbers, sizes or lengths. In
            bits, from 0 to 1.
        l_infinity: Limit of the largest difference between the shares of a value.
        missing: Limit of the difference between the shares of records without the feature.
        new_values: Limit of the share of values that occur only in the checked sample.
    """

    jensen_shannon: Threshold | None = Threshold(0.1, is_default=True)
    l_infinity: Threshold | None = Threshold(0.1, is_default=True)
    missing: Threshold | None = Threshold(0.05, is_default=True)
    new_values: Threshold | None = Threshold(0.01, is_default=True)


@dataclass(frozen=True)
class FeatureRules:
    """Rules for one feature. They apply to each split. None means no limit.

    Attributes:
        present: Smallest share of records that must have the feature.
        min: Smallest number that may occur.
        max: Largest number that may occur.
        mean: Bounds of the mean of the numbers.
        zeros: Largest share of zeros among the values.
        nan: Largest share of NaN among the values.
        distinct: Bounds of the number of different values.
        values: The expected values, as text. Statistics use the same text for a value, see
            `_parse_value`.
        other_values: Largest share of values that are not in `values`.
        shares: Bounds of the share of some values, by value.
        drift: Threshold of the divergence or distance from another data set. It replaces
            `jensen_shannon` or `l_infinity` of `Rules.drift`.
        skew: Threshold of the divergence or distance from the training split. It replaces
            `jensen_shannon` or `l_infinity` of `Rules.skew`.
        disabled_checks: Contains "drift" if the rules set `drift: null` for this feature, and
            "skew" if they set `skew: null`.
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
    """Rules for the classes of the label. They apply to each split. None means no limit.

    Attributes:
        min_share: Smallest share of the records for each class.
        max_ratio: Largest ratio of the count of the most frequent class to the count of any class.
        min_records: Smallest number of records of each class.
    """

    min_share: float | None = None
    max_ratio: float | None = None
    min_records: float | None = None


@dataclass(frozen=True)
class RepeatLimits:
    """Largest shares of repeated records, either within a split or between splits.

    None disables a search, and an object without limits is False.

    Attributes:
        records: Largest share of records with equal bytes.
        images: Largest share of images with equal bytes.
        near_images: Largest share of images that look alike.
        keys: For some features, such as a user id, the largest share of records with a value that
            occurs in another record.
    """

    records: float | None = None
    images: float | None = None
    near_images: float | None = None
    keys: Mapping[str, float] = field(default_factory=dict)

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
    records: Bounds | None = None
    splits: Mapping[str, Bounds] = field(default_factory=dict)
    classes: ClassRules | None = None
    drift: Thresholds = field(default_factory=Thresholds)
    skew: Thresholds | None = None
    leakage: RepeatLimits = field(default_factory=RepeatLimits)
    duplicates: RepeatLimits = field(default_factory=RepeatLimits)
    source: str = "rules"

    def for_feature(self, name: str) -> FeatureRules:
        """Returns the rules of a feature. A feature without rules has no limits."""
        return self.features.get(name, FeatureRules())

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


_Parser = Callable[[Any], Any]


def _parse_entries(mapping: Any, parsers: Mapping[str, _Parser]) -> dict[str, Any]:
    """Parses each value of a mapping with the parser of its key.

    Args:
        mapping: The mapping. Any other value is an error.
        parsers: The parser of each allowed key.

    Raises:
        ValueError: A key is unknown or its value is invalid. The message contains the key.
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
    """Returns a parser for mappings with any keys, which parses each value with `parser`.

    Args:
        parser: The parser of the values.
        description: The contents of the mapping for messages, such as "features to shares".
    """

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
    # `True` is an int in Python, but `min: true` is a mistake.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{_quote(value)} is no number")
    try:
        is_nan = math.isnan(value)
    except OverflowError:
        raise ValueError(f"{_quote(value)} is larger than any number of a data set") from None
    if is_nan:
        raise ValueError(f"{_quote(value)} is no number")
    return value  # an int stays an int, because a float can't represent every int64


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
    """Returns a parser for bounds such as `[0, 10]`, in which null means no bound."""

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
    """Returns a value of a rule in the form of statistics, which is text.

    For example, true becomes "1", and 5 becomes "5".

    Raises:
        ValueError: The value is not a text, an integer or a truth value.
    """
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
    # `drift: null` disables the comparison of a feature. Without the key, the thresholds of the
    # data set apply.
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
