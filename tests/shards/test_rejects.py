"""Rejects are listed in files, counted over all tasks, and limited by `max_rejects`."""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.shards.rejects import (
    REJECTS_BEYOND_BUDGET,
    RejectBudget,
    RejectSummary,
    RejectWriter,
    TooManyRejects,
    describe_reasons,
    is_record_error,
    with_remedy,
)


def rejects_of(count: int, reason: str = "parse") -> list[Reject]:
    return [Reject("a.csv", f"line {number}", reason, "bad") for number in range(count)]


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        (0, RejectBudget(0)),
        (" 17 ", RejectBudget(17)),
        ("0.5%", RejectBudget(percent=0.5)),
        ("100%", RejectBudget(percent=100.0)),
    ],
)
def test_limit_is_a_number_or_a_share(text: str | int, budget: RejectBudget) -> None:
    assert RejectBudget.parse(text) == budget
    assert RejectBudget.parse(budget.option_value) == budget


@pytest.mark.parametrize("text", ["", "-1", "1.5", "101%", "x", "%", "1e3", True])
def test_invalid_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="give a number of records, as in 100, or a share of them"):
        RejectBudget.parse(text)


@given(st.integers(0, 2000), st.floats(0, 100))
def test_percent_budget_allows_max_rejects_and_not_one_more(
    records_read: int, percent: float
) -> None:
    budget = RejectBudget(percent=percent)
    limit = budget.max_rejects(records_read)
    assert limit is not None
    assert budget.allows(limit, records_read)
    assert not budget.allows(limit + 1, records_read)
    assert budget.max_rejects(None) is None


def test_summaries_add_counts_and_keep_the_first_ten_rejects() -> None:
    first = RejectSummary({"parse": 8}, tuple(rejects_of(8)), ("a",))
    second = RejectSummary({"parse": 4, "crc": 1}, tuple(rejects_of(5, "crc")), ("b",))
    total = first + second
    assert total.counts == {"parse": 12, "crc": 1}
    assert total.total == 13
    assert total.files == ("a", "b")
    assert total.first == (*first.first, *second.first[:2])
    assert RejectSummary.empty() + first == first


def test_error_over_the_limit_lists_rejects_and_the_limit_that_allows_them() -> None:
    summary = RejectSummary({"parse": 12}, tuple(rejects_of(10)))
    summary.check_budget(RejectBudget(12), 100)
    with pytest.raises(TooManyRejects) as error:
        summary.check_budget(RejectBudget(11), 100)
    text = str(error.value)
    assert text.startswith(
        "12 of 100 records were rejected (reason: not a valid record); max_rejects=11 allows fewer"
    )
    assert "a.csv: line 0: bad" in text
    assert "... and 2 more" in text
    assert "max_rejects=12" in text
    copy = pickle.loads(pickle.dumps(error.value))
    assert (str(copy), copy.rejects, copy.counts) == (text, summary.first, summary.counts)


def test_build_without_any_good_record_is_an_error() -> None:
    summary = RejectSummary({"parse": 2}, tuple(rejects_of(2)))
    summary.check_any_left(3)
    with pytest.raises(TooManyRejects, match="all 2 were rejected"):
        summary.check_any_left(2)
    with pytest.raises(TooManyRejects, match="the inputs hold none"):
        RejectSummary.empty().check_any_left(0)


def test_writer_lists_all_rejects_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rejects.jsonl"
    writer = RejectWriter(path, max_rejects=None, task_name="0")
    assert writer.write([]) == 0
    assert not path.exists()  # a task without rejects has no file
    assert writer.write(rejects_of(3)) == 3
    assert writer.write(iter(rejects_of(2, "crc"))) == 2
    summary = writer.close()
    assert (summary.counts, summary.files) == ({"parse": 3, "crc": 2}, (str(path),))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["reason"] for line in lines] == ["parse"] * 3 + ["crc"] * 2
    assert lines[1] == {
        "source": "a.csv",
        "place": "line 1",
        "reason": "parse",
        "message": "bad",
    }


def test_writer_ends_the_run_after_the_limit_and_writes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "rejects.jsonl"
    writer = RejectWriter(path, max_rejects=5, task_name="over the limit")
    writer.write(rejects_of(5 + REJECTS_BEYOND_BUDGET))
    with pytest.raises(TooManyRejects, match="at least 1015 records were rejected"):
        writer.write(rejects_of(10))
    writer.close()
    assert len(path.read_text().splitlines()) == 5 + REJECTS_BEYOND_BUDGET
    # Another task of this process fails at once, because the counts of all tasks are added up.
    second_writer = RejectWriter(tmp_path / "other.jsonl", max_rejects=5, task_name="another task")
    with pytest.raises(TooManyRejects, match="and of other files"):
        second_writer.write(rejects_of(1))
    # New attempts of the tasks count from 0 again.
    for name in ("over the limit", "another task"):
        RejectWriter(path, max_rejects=5, task_name=name)


def test_reasons_are_described_in_readable_words() -> None:
    assert describe_reasons({"crc": 3}) == "reason: wrong checksum"
    assert describe_reasons({"parse": 1, "crc": 3, "mine": 2}) == (
        "reasons: 3 wrong checksum, 2 mine, 1 not a valid record"
    )


def test_error_about_a_record_suggests_to_leave_it_out() -> None:
    error = DataError("is cut", source="a", place="record 3, byte 7")
    assert is_record_error(error)
    assert not is_record_error(DataError("is cut", source="a", place="byte 7"))
    assert str(with_remedy(error)) == (
        'a: record 3, byte 7: is cut; to leave out such records: max_rejects="1%"'
    )
