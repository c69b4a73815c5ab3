"""Turns the expectations of a `schema.pbtxt` of TensorFlow Metadata into `Rules`: presence, domains, and the thresholds
of its comparators; and what differs between two schemas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.checks.rules import FeatureRules, Rules, Threshold, Thresholds
from recordmill.checks.violations import Violation
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.tfmd import entries_in_use

_NO_LIMITS = Thresholds(None, None, None, None)


def schema_rules(text: str, names: Collection[str], source: str) -> Rules:
    """Returns the rules of the schema's text, which `schemas.tfmd.from_pbtxt` has read before, for features of these
    names; UsageError for a threshold that is no share. A feature without a comparator is not compared, as TensorFlow
    Data Validation has it.
    """
    proto = text_format.Parse(text, schema_pb2.Schema())
    domains = {domain.name: tuple(domain.value) for domain in proto.string_domain}
    entries = [entry for entry in entries_in_use(proto.feature) if entry.name in names]
    features = {entry.name: _rules_of(entry, domains, source) for entry in entries}
    return Rules(features=features, drift=_NO_LIMITS, skew=_NO_LIMITS, source=source)


def _rules_of(entry: Any, domains: dict[str, tuple[str, ...]], source: str) -> FeatureRules:
    known: dict[str, Any] = {}
    if entry.presence.min_fraction:
        known["present"] = float(entry.presence.min_fraction)
    domain = entry.WhichOneof("domain_info")
    if domain in ("int_domain", "float_domain"):
        bounds = getattr(entry, domain)
        known |= {name: getattr(bounds, name) for name in ("min", "max") if bounds.HasField(name)}
    elif domain == "string_domain":
        known["values"] = tuple(entry.string_domain.value)
    elif domain == "domain" and entry.domain in domains:
        known["values"] = domains[entry.domain]
    if "values" in known and entry.distribution_constraints.HasField("min_domain_mass"):
        known["other_values"] = 1 - float(entry.distribution_constraints.min_domain_mass)
    for name in ("drift", "skew"):
        if (
            limit := _comparator(getattr(entry, f"{name}_comparator"), entry.name, source)
        ) is not None:
            known[name] = limit
    return FeatureRules(**known)


def _comparator(comparator: Any, name: str, source: str) -> Threshold | None:
    for measure in ("infinity_norm", "jensen_shannon_divergence"):
        if comparator.HasField(measure):
            most = float(getattr(comparator, measure).threshold)
            if not 0 <= most <= 1:
                raise UsageError(
                    f"{source}: feature {name!r}: {measure}: {most} is no share from 0 to 1"
                )
            return Threshold(most)
    return None


def schema_changes(schema: Schema, other: Schema, called: str) -> Iterator[Violation]:
    """Yields the differences of a schema from another one, which messages call by that name."""
    for name in (name for name in other.names if name not in schema):
        yield _change(
            name, f"{called} has it, and the data set has not", "build it in, or take it out there"
        )
    for feature in schema:
        if feature.name not in other:
            yield _change(
                feature.name,
                f"is new: {called} has no such feature",
                "add it there, or leave it out",
            )
        else:
            yield from _changes_of(feature, other[feature.name], called)
    if schema.label != other.label and other.label is not None:
        yield _change(
            other.label,
            f"is the label in {called}, and here {schema.label!r} is",
            "name the same label",
        )


def _changes_of(feature: Feature, other: Feature, called: str) -> Iterator[Violation]:
    if (feature.dtype, feature.shape) != (other.dtype, other.shape):
        what = f"is {feature.describe()}, and in {called} {other.describe()}"
        remedy = f"give the same dtype and shape, as by {option('schema')} or {option('dtypes')}"
        yield _change(feature.name, what, remedy)
    if feature.classes != other.classes and other.classes is not None:
        what = (
            f"has the classes {_listed(feature.classes)}, and in {called} {_listed(other.classes)}"
        )
        yield _change(
            feature.name, what, "build with the same classes: their numbers mean others now"
        )
    if other.required and not feature.required:
        what = f"may be missing, and is required in {called}"
        yield _change(
            feature.name, what, "build with that schema, or mend the records that lack it"
        )


def _change(name: str, what: str, remedy: str) -> Violation:
    return Violation("schema", what, remedy, feature=name)


def _listed(classes: tuple[str, ...] | None) -> str:
    if not classes:
        return "(none)"
    return ", ".join(classes[:5]) + (f", ... ({len(classes)})" if len(classes) > 5 else "")
