"""`Accounts`: what became of the records of a read. Its jobs' results in; what is refused, and what is told, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recordmill.base.errors import RecordmillError
from recordmill.exporting.job import JobResult
from recordmill.exporting.plan import ReadPlan
from recordmill.shards.rejects import RejectBudget, Rejected


@dataclass(frozen=True)
class Accounts:
    """What became of the records: read = written + rejected + filtered. records: split to rows written."""

    read: int
    records: Mapping[str, int]
    filtered: int
    rejected: Rejected

    @classmethod
    def of(cls, results: Sequence[JobResult]) -> Accounts:
        splits = dict.fromkeys(result.split for result in results)
        return cls(
            sum(result.read for result in results),
            {split: sum(result.written for result in results if result.split == split) for split in splits},
            sum(result.filtered for result in results),
            sum((result.rejected for result in results), Rejected.zero()),
        )

    def check(self, plan: ReadPlan, budget: RejectBudget) -> None:
        """Hold them against the plan and against each other.

        Raises:
            RecordmillError: they do not add up. TooManyRejects: more than the budget allows, or nothing else.
        """
        written, rejected = sum(self.records.values()), self.rejected.total
        if plan.records not in (None, self.read) or self.read != written + rejected + self.filtered:
            raise RecordmillError(
                f"{self.read} records were read of {plan.records} planned, {written} written, {rejected} "
                f"rejected, {self.filtered} filtered; nothing was kept"
            )
        self.rejected.check(budget, self.read)
        if rejected:
            self.rejected.check_some_left(self.read)

    def summary(self, plan: ReadPlan) -> dict[str, Any]:
        """What is written beside the outputs."""
        return {
            "to": plan.options.to,
            "records": dict(self.records),
            "read": self.read,
            "rejected": self.rejected.total,
            "filtered": self.filtered,
            "reject_reasons": dict(sorted(self.rejected.counts.items())),
            "features": {feature.name: feature.describe() for feature in plan.schema},
        }
