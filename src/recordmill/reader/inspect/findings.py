"""Differences from record to record, as `Finding`s with file and record: kinds, lengths, places in the message,
presence, records of other types.

Those that keep any schema from fitting all records are conflicts; the rest is worth knowing before one reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from recordmill.records.inference.infer import FeatureCounts, FeatureLocation, Inference
from recordmill.schemas.feature import PAYLOAD

FINDING_KINDS, MESSAGE, LENGTHS, PRESENCE = "kinds", "message", "lengths", "presence"


@dataclass(frozen=True)
class Finding:
    """Difference between records.

    Attributes:
        feature: its name, empty for whole records.
        what: one of the constants above.
        conflict: no schema fits all records because of it.
        text: in words.
        places: (file, record number) of the first record of each sort.
    """

    feature: str
    what: str
    text: str
    places: tuple[FeatureLocation, ...]
    conflict: bool = False

    def to_json(self) -> dict[str, Any]:
        places = [{"file": file, "record": record} for file, record in self.places]
        return {
            "feature": self.feature,
            "what": self.what,
            "conflict": self.conflict,
            "text": self.text,
            "places": places,
        }

    def __str__(self) -> str:
        return f"{self.feature}: {self.text}" if self.feature else self.text


def location_text(place: FeatureLocation) -> str:
    """`a.tfrecord record 3`."""
    return f"{place[0]} record {place[1]}" if place[0] else f"record {place[1]}"


def findings(inference: Inference) -> list[Finding]:
    """Conflicts first, then lengths, by feature."""
    if inference.message == PAYLOAD:
        return []
    return [*_others(inference), *_conflicts(inference), *_lengths(inference)]


def conflicting_features(inference: Inference) -> frozenset[str]:
    """The features that no schema fits in all records."""
    return (
        frozenset(finding.feature for finding in _conflicts(inference)) if inference.message != PAYLOAD else frozenset()
    )


def without_conflicts(inference: Inference) -> Inference:
    """The counts without the features that conflict."""
    bad = conflicting_features(inference)
    return replace(
        inference,
        features={key: counts for key, counts in inference.features.items() if inference.feature_name(*key) not in bad},
    )


def _others(inference: Inference) -> Iterator[Finding]:
    if inference.others and inference.first_other is not None:
        text = (
            f"{inference.others:,} of {inference.records:,} records are neither Example nor SequenceExample, "
            f"first {location_text(inference.first_other)}"
        )
        yield Finding("", MESSAGE, text, (inference.first_other,), conflict=True)


def _conflicts(inference: Inference) -> Iterator[Finding]:
    for key, counts in sorted(inference.features.items()):
        name = inference.feature_name(*key)
        if len(counts.kinds) > 1:
            parts = (
                f"{kind} in {count:,} {_unit(counts, count)}, first {location_text(counts.first[kind])}"
                for kind, count in counts.kinds.items()
            )
            yield Finding(
                name, FINDING_KINDS, "; ".join(parts), tuple(counts.first[kind] for kind in counts.kinds), conflict=True
            )


def _lengths(inference: Inference) -> Iterator[Finding]:
    for key, counts in sorted(inference.features.items()):
        name = inference.feature_name(*key)
        if counts.length is None and counts.fewest_at is not None and counts.most_at is not None:
            text = (
                f"{_values(counts.least_values)} in {location_text(counts.fewest_at)}, "
                f"{_values(counts.most_values)} in {location_text(counts.most_at)}"
            )
            yield Finding(name, LENGTHS, text, (counts.fewest_at, counts.most_at))


def _values(count: int | None) -> str:
    return f"{count:,} value{'' if count == 1 else 's'}"


def _unit(counts: FeatureCounts, count: int) -> str:
    return ("step" if counts.per_step else "record") + ("" if count == 1 else "s")
