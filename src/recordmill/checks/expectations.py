"""Reads what a build is expected to give (`--expect`), and compares its statistics with that before it is committed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from recordmill.base.errors import RecordmillError, UsageError
from recordmill.base.option_names import option
from recordmill.checks.comparison import skew
from recordmill.checks.constraints import constraints
from recordmill.checks.rules import Rules, Thresholds, read_rules
from recordmill.checks.violations import Violation
from recordmill.schemas.feature import Schema
from recordmill.statistics.dataset_statistics import DatasetStatistics

_SHOWN = 20  # violations in the error


class ExpectationError(RecordmillError):
    """A build's records are not as they were expected to be; nothing was committed."""


def read_expectations(given: Mapping[str, Any] | str | os.PathLike[str]) -> Rules:
    """Reads the rules of `--expect`, all of which are about statistics.

    Raises:
        UsageError: as `read_rules` does, or records would have to be read for a rule, or another data set.
    """
    rules = read_rules(given, "expect")
    for name in ("leakage", "duplicates"):
        if getattr(rules, name):
            raise UsageError(
                f"{rules.source}: {name}: records are compared with each other once they are written; leave it out of "
                f"{option('expect')} and run recordmill check with {option('against', rules.source)} after the build"
            )
    if rules.drift != Thresholds() or any(own.drift is not None for own in rules.features.values()):
        raise UsageError(
            f"{rules.source}: drift: is of two data sets; leave it out of {option('expect')} and run recordmill check "
            f"with {option('against')} OTHER and {option('against', rules.source)} after the build"
        )
    return rules


def check_expectations(statistics: DatasetStatistics, schema: Schema, rules: Rules) -> None:
    """Compares what a build has counted with its rules, which are fitted to the schema.

    Raises:
        ExpectationError: Something is not as expected, or can't be judged; it names each feature, figure and threshold.
    """
    violations = list(_violations(statistics, schema, rules))
    if violations:
        more = f"\n... and {len(violations) - _SHOWN} more" if len(violations) > _SHOWN else ""
        count = "1 expectation is" if len(violations) == 1 else f"{len(violations)} expectations are"
        lines = "\n".join(map(str, violations[:_SHOWN]))
        raise ExpectationError(f"{count} not met; nothing was committed:\n{lines}{more}")


def _violations(statistics: DatasetStatistics, schema: Schema, rules: Rules) -> Iterator[Violation]:
    yield from constraints(statistics, schema, rules)
    if rules.skew is not None or any(own.skew is not None for own in rules.features.values()):
        yield from skew(statistics, schema, rules)
