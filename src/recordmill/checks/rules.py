"""`Rules`: what is expected of a data set, of a YAML file or of a mapping: figures of features with the bounds that
they must keep, and thresholds for what compares.

A threshold that is given holds as it is. A default leaves room for chance: two samples of one distribution pass.
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

Bounds = tuple[float | None, float | None]  # least and most; None: any
_NUMBER_RULES = ("min", "max", "mean", "zeros", "nan")
_TRUTH_VALUES = {"true": "1", "false": "0", "1": "1", "0": "0"}


@dataclass(frozen=True)
class Threshold:
    """A threshold. most: the largest figure that passes. is_default: what chance may do is allowed beside it."""

    maximum: float
    is_default: bool = False


@dataclass(frozen=True)
class Thresholds:
    """Thresholds for what compares two samples; None: it is not looked at.

    Attributes:
        jensen_shannon: In bits, of numbers.
        l_infinity: Of categories, the largest difference of a value's shares.
        missing: The difference of the shares of records that lack the feature.
        new_values: The share of values that the other sample has not.
    """

    jensen_shannon: Threshold | None = Threshold(0.1, True)
    l_infinity: Threshold | None = Threshold(0.1, True)
    missing: Threshold | None = Threshold(0.05, True)
    new_values: Threshold | None = Threshold(0.01, True)


@dataclass(frozen=True)
class FeatureRules:
    """Expectations of one feature, in each split.

    Attributes:
        present: The least share of records that have it.
        min, max: The least and the greatest number that may occur.
        mean: The bounds of the mean.
        zeros, nan: The largest shares of values.
        distinct: The bounds of the number of different values.
        values: The only values, as texts, but for a share of other_values.
        shares: Value to the bounds of its share.
        drift, skew: The threshold of this feature's distance, in place of `Thresholds`; "off": none.
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
    """Expectations of the label's classes, in each split: the least share and the fewest records of each class, and the
    largest ratio of the most frequent class to the least frequent one.
    """

    min_share: float | None = None
    max_ratio: float | None = None
    min_records: float | None = None


@dataclass(frozen=True)
class RepeatLimits:
    """The largest shares of records that may stand there twice, of a split in another, or in one; None: they are not
    looked for.

    Attributes:
        records: Of records that are equal.
        images: Of images of equal bytes; None where there are no images.
        near_images: Of images that look alike; None where there are no images.
        keys: Feature to the share of records whose value of it another record has.
    """

    records: float | None = None
    images: float | None = None
    near_images: float | None = None
    keys: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.keys) or any(
            limit is not None for limit in (self.records, self.images, self.near_images)
        )


NO_REPEATS = RepeatLimits(0.0, 0.0, 0.0)  # what is looked for where no rules say it


@dataclass(frozen=True)
class Rules:
    """All expectations.

    Attributes:
        records: The bounds of the number of records of each split.
        splits: Split to the bounds of its share of all records.
        drift: Thresholds against another data set.
        skew: Thresholds against the split `train`.
        source: What messages call them.
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
        """Returns the rules of a feature."""
        return self.features.get(name, FeatureRules())

    def fit_to_schema(self, schema: Schema, splits: tuple[str, ...] | None = None) -> Rules:
        """Returns the rules for a data set of this schema and these splits, with classes by their numbers; UsageError
        where a feature, class or split is not there, or holds what a rule can't be of.
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
    """Returns the rules of a YAML file, which the option `keyword` names, or of what such a file would hold; UsageError
    says which key or value can't be and what to write.
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
    numbers = {name: str(number) for number, name in enumerate(feature.classes)}

    def number(value: str) -> str:
        if value not in numbers and not value.isdigit():
            raise UsageError(
                f"{place}: no class {value!r}; {available_names(value, feature.classes or ())}"
            )
        return numbers.get(value, value)

    return _rename_values(rules, number)


def _rename_values(rules: FeatureRules, name: Callable[[str], str]) -> FeatureRules:
    values = None if rules.values is None else tuple(map(name, rules.values))
    return replace(
        rules, values=values, shares={name(value): bounds for value, bounds in rules.shares.items()}
    )


def _parse_truth_value(value: str, place: str) -> str:
    """Returns the name that statistics give to a truth value."""
    if value.lower() not in _TRUTH_VALUES:
        raise UsageError(f"{place}: {value!r} is neither true nor false")
    return _TRUTH_VALUES[value.lower()]


_Parser = Callable[[Any], Any]


def _parse_entries(mapping: Any, parsers: Mapping[str, _Parser]) -> dict[str, Any]:
    """Returns each value as its check gives it; ValueError names the key."""
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


def _mapping_of(check: _Parser, description: str) -> _Parser:
    """Returns a check of a mapping of any names, each of whose values it checks."""

    def check_all(mapping: Any) -> dict[str, Any]:
        if not isinstance(mapping, Mapping):
            raise ValueError(f"{_quote(mapping)} is no mapping of {description}")
        entries = {}
        for name, value in mapping.items():
            try:
                entries[_parse_value(name)] = check(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return entries

    return check_all


def _quote(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _parse_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{_quote(value)} is no number")
    try:
        is_nan = math.isnan(value)
    except OverflowError:
        raise ValueError(f"{_quote(value)} is larger than any number of a data set") from None
    if is_nan:
        raise ValueError(f"{_quote(value)} is no number")
    return value  # an int as it is, since no float holds all of them


def _parse_finite(value: Any) -> float:
    if not math.isfinite(number := _parse_number(value)):
        raise ValueError(f"{_quote(value)} is no finite number")
    return number


def _parse_share(value: Any) -> float:
    if not 0 <= _parse_number(value) <= 1:
        raise ValueError(f"{_quote(value)} is no share from 0 to 1")
    return float(value)


def _parse_positive(value: Any) -> float:
    if (number := _parse_finite(value)) < 0:
        raise ValueError(f"{_quote(value)} is below 0")
    return number


def _pair_of(check: _Parser) -> _Parser:
    def check_pair(value: Any) -> Bounds:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ValueError(
                f"{_quote(value)} is no pair of a least and a greatest number, as in [0, 10]; null is any"
            )
        low, high = (None if bound is None else check(bound) for bound in value)
        if low is not None and high is not None and low > high:
            raise ValueError(f"{low} is above {high}")
        return low, high

    return check_pair


def _parse_threshold(value: Any) -> Threshold | None:
    return None if value is None else Threshold(_parse_share(value))


def _optional(check: _Parser) -> _Parser:
    return lambda value: None if value is None else check(value)


def _parse_value(value: Any) -> str:
    """Returns a value as statistics name it."""
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
    "mean": _pair_of(_parse_finite),
    "zeros": _parse_share,
    "nan": _parse_share,
    "distinct": _pair_of(_parse_positive),
    "values": _parse_values,
    "other_values": _parse_share,
    "shares": _mapping_of(_pair_of(_parse_share), "values to pairs of shares"),
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
    disabled_checks = frozenset(
        name for name in ("drift", "skew") if name in entries and entries[name] is None
    )
    return FeatureRules(**entries, disabled_checks=disabled_checks)


def _parse_thresholds(mapping: Any) -> Thresholds:
    return Thresholds(
        **_parse_entries(mapping, dict.fromkeys(Thresholds.__dataclass_fields__, _parse_threshold))
    )


def _parse_repeat_limits(mapping: Any) -> RepeatLimits:
    checks = {
        "records": _optional(_parse_share),
        "images": _optional(_parse_share),
        "near_images": _optional(_parse_share),
    }
    return RepeatLimits(**_parse_entries(mapping, {**checks, "keys": _parse_keys}))


def _parse_keys(keys: Any) -> dict[str, float]:
    if isinstance(keys, list | tuple):
        return {_parse_value(name): 0.0 for name in keys}
    return dict(_mapping_of(_parse_share, "features to shares")(keys))


_RULE_PARSERS: Mapping[str, _Parser] = {
    "features": _mapping_of(_parse_feature_rules, "features to their rules"),
    "records": _pair_of(_parse_positive),
    "splits": _mapping_of(_pair_of(_parse_share), "splits to pairs of shares"),
    "classes": lambda mapping: ClassRules(
        **_parse_entries(
            mapping,
            {
                "min_share": _parse_share,
                "max_ratio": _parse_positive,
                "min_records": _parse_positive,
            },
        )
    ),
    "drift": _parse_thresholds,
    "skew": _parse_thresholds,
    "leakage": _parse_repeat_limits,
    "duplicates": _parse_repeat_limits,
}
