"""The counts of all outputs are added up. If a sum is wrong, no output is kept."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from recordmill.base.errors import RecordmillError, Reject
from recordmill.exporting.task import OutputCounts, ReadCounts, format_summary
from recordmill.shards.rejects import RejectBudget, RejectSummary, TooManyRejects

REJECTED = RejectSummary({"crc": 1}, (Reject("a", "record 3", "crc", "bad"),))


def counts(*outputs: OutputCounts) -> ReadCounts:
    return ReadCounts.from_outputs(outputs)


def make_plan(records: int | None) -> Any:
    return SimpleNamespace(records=records)


def test_counts_are_added_up_by_split() -> None:
    total = counts(
        OutputCounts("train", "a", 10, 7, REJECTED, 2),
        OutputCounts("train", "b", 5, 5, RejectSummary.empty(), 0),
        OutputCounts("test", "c", 1, 1, RejectSummary.empty(), 0),
    )
    assert (total.read, total.filtered) == (16, 2)
    assert total.records == {"train": 12, "test": 1}
    assert total.rejected.counts == {"crc": 1}
    total.check(make_plan(16), RejectBudget(1))
    total.check(make_plan(None), RejectBudget(1))


@pytest.mark.parametrize("num_written", [6, 8])
def test_record_that_is_lost_or_doubled_is_an_error(num_written: int) -> None:
    total = counts(OutputCounts("train", "a", 10, num_written, REJECTED, 2))
    with pytest.raises(
        RecordmillError, match=r"10 records were read of 10 planned.*nothing was kept"
    ):
        total.check(make_plan(10), RejectBudget(1))


def test_record_count_that_differs_from_the_plan_is_an_error() -> None:
    total = counts(OutputCounts("train", "a", 10, 7, REJECTED, 2))
    with pytest.raises(RecordmillError, match="10 records were read of 11 planned"):
        total.check(make_plan(11), RejectBudget(1))


def test_rejects_above_the_limit_or_of_all_records_are_an_error() -> None:
    with pytest.raises(TooManyRejects, match="max_rejects=0 allows fewer"):
        counts(OutputCounts("train", "a", 10, 9, REJECTED, 0)).check(make_plan(10), RejectBudget())
    with pytest.raises(TooManyRejects, match="all 1 were rejected"):
        counts(OutputCounts("train", "a", 1, 0, REJECTED, 0)).check(make_plan(1), RejectBudget(1))


def test_summary_with_unusual_names_is_json() -> None:
    data = format_summary({"to": "npy", "outputs": ["kätzchen", "\udc80"]})
    assert data.endswith(b"\n")
    document = json.loads(data)
    assert (document["format"], document["to"]) == ("recordmill read", "npy")
    assert "kätzchen".encode() in data
