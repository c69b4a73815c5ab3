"""Rules from a `schema.pbtxt` of TensorFlow Metadata, and differences between two schemas."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from recordmill.base.errors import UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.checks.rules import FeatureRules, Rules, Threshold, Thresholds
from recordmill.checks.violations import Violation
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.tfmd import entries_in_use

# Features without a comparator are not compared.
_NO_LIMITS = Thresholds(None, None, None, None)


def rules_from_schema(text: str, names: Collection[str], source: str) -> Rules:
    """Converts a schema of TensorFlow Metadata to rules.

    The presence, the domain and the comparators of each feature become its rules. A feature without
    a comparator is not compared, as in TensorFlow Data Validation.

    Args:
        text: The content of a `schema.pbtxt` that `schemas.tfmd.from_pbtxt` has accepted.
        names: Names of the features to convert. Other features of the schema are ignored.
        source: Name of the file, for messages.

    Raises:
        UsageError: The threshold of a comparator is not between 0 and 1.
    """
    proto = text_format.Parse(text, schema_pb2.Schema())
    domains = {domain.name: tuple(domain.value) for domain in proto.string_domain}
    entries = [entry for entry in entries_in_use(proto.feature) if entry.name in names]
    features = {entry.name: _feature_rules(entry, domains, source) for entry in entries}
    return Rules(features=features, drift=_NO_LIMITS, skew=_NO_LIMITS, source=source)


def _feature_rules(entry: Any, domains: dict[str, tuple[str, ...]], source: str) -> FeatureRules:
    rules: dict[str, Any] = {}
    if entry.presence.min_fraction:
        rules["present"] = float(entry.presence.min_fraction)
    domain = entry.WhichOneof("domain_info")
    if domain in ("int_domain", "float_domain"):
        bounds = getattr(entry, domain)
        rules |= {name: getattr(bounds, name) for name in ("min", "max") if bounds.HasField(name)}
    elif domain == "string_domain":
        rules["values"] = tuple(entry.string_domain.value)
    elif domain == "domain" and entry.domain in domains:
        rules["values"] = domains[entry.domain]
    if "values" in rules and entry.distribution_constraints.HasField("min_domain_mass"):
        # `min_domain_mass` is the smallest share of expected values. `other_values` is the largest
        # share of the other ones.
        rules["other_values"] = 1 - float(entry.distribution_constraints.min_domain_mass)
    for name in ("drift", "skew"):
        if (
            limit := _comparator_threshold(getattr(entry, f"{name}_comparator"), entry.name, source)
        ) is not None:
            rules[name] = limit
    return FeatureRules(**rules)


def _comparator_threshold(comparator: Any, name: str, source: str) -> Threshold | None:
    """Returns the threshold in a comparator, or None if it contains no threshold.

    Args:
        comparator: The drift or skew comparator of a feature.
        name: Name of the feature, for messages.
        source: Name of the schema file, for messages.

    Raises:
        UsageError: The threshold is not between 0 and 1.
    """
    for measure in ("infinity_norm", "jensen_shannon_divergence"):
        if comparator.HasField(measure):
            maximum = float(getattr(comparator, measure).threshold)
            if not 0 <= maximum <= 1:
                raise UsageError(
                    f"{source}: feature {name!r}: {measure}: {maximum} is not a share from 0 to 1"
                )
            return Threshold(maximum)
    return None


def find_schema_changes(schema: Schema, base: Schema, base_name: str) -> Iterator[Violation]:
    """Yields the differences between the schema of a data set and a base schema.

    The features, their dtypes, shapes and classes, and the label are compared. An optional feature
    that was required in the base schema is a difference. The reverse is not.

    Args:
        schema: The schema of the data set.
        base: The schema to compare with.
        base_name: Name of `base` in messages.
    """
    for name in (name for name in base.names if name not in schema):
        yield _schema_violation(
            name,
            f"is in {base_name}, but not in the data set",
            "add it to the data set, or remove it there",
        )
    for feature in schema:
        if feature.name not in base:
            yield _schema_violation(
                feature.name,
                f"is new: {base_name} has no such feature",
                "add it there, or leave it out",
            )
        else:
            yield from _feature_changes(feature, base[feature.name], base_name)
    if schema.label != base.label and base.label is not None:
        yield _schema_violation(
            base.label,
            f"is the label in {base_name}, and here {schema.label!r} is",
            "name the same label",
        )


def _feature_changes(feature: Feature, base: Feature, base_name: str) -> Iterator[Violation]:
    if (feature.dtype, feature.shape) != (base.dtype, base.shape):
        message = f"is {feature.describe()}, and in {base_name} {base.describe()}"
        remedy = Message(
            "use the same dtype and shape, with {schema} or {dtypes}",
            schema=option("schema"),
            dtypes=option("dtypes"),
        )
        yield _schema_violation(feature.name, message, remedy)
    if feature.classes != base.classes and base.classes is not None:
        message = f"has the classes {_format_classes(feature.classes)}, and in {base_name} {_format_classes(base.classes)}"
        yield _schema_violation(
            feature.name, message, "build with the same classes: the numbers now mean other classes"
        )
    if base.required and not feature.required:
        message = f"may be missing, and is required in {base_name}"
        yield _schema_violation(
            feature.name, message, "build with that schema, or fix the records that lack it"
        )


def _schema_violation(name: str, message: str, remedy: str) -> Violation:
    return Violation("schema", message, remedy, feature=name)


def _format_classes(classes: tuple[str, ...] | None) -> str:
    if not classes:
        return "(none)"
    return ", ".join(classes[:5]) + (f", ... ({len(classes)})" if len(classes) > 5 else "")
