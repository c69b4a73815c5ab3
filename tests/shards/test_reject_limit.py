"""A job whose rejects are more than its budget can allow ends then, and not when it has written all of them."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from recordmill.base.errors import Reject
from recordmill.shards.rejects import COUNTED_ON, RejectBudget, Rejected, RejectWriter, TooManyRejects


def rejects(count: int, reason: str = "columns") -> list[Reject]:
    return [Reject("a.csv", f"line {number}", reason, "too many columns") for number in range(count)]


def lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.iterdir())


def test_one_writer_stops_and_says_at_least_how_many(tmp_path: Path) -> None:
    writer = RejectWriter(tmp_path / "one.jsonl", most=5, work="1")
    assert writer.write(rejects(COUNTED_ON + 5)) == COUNTED_ON + 5
    with pytest.raises(TooManyRejects, match=rf"at least {COUNTED_ON + 100_005} .*\(.*columns.*\).*allows 5,") as error:
        writer.write(rejects(100_000))
    writer.close()
    assert lines(tmp_path) == COUNTED_ON + 5
    assert sum(error.value.counts.values()) == COUNTED_ON + 100_005
    assert len(error.value.rejects) == 10


def test_without_a_known_limit_all_are_written(tmp_path: Path) -> None:
    writer = RejectWriter(tmp_path / "one.jsonl", most=RejectBudget.parse("10%").most(None), work="1")
    writer.write(rejects(3 * COUNTED_ON))
    assert writer.close().total == lines(tmp_path) == 3 * COUNTED_ON


def test_the_writers_of_a_job_are_counted_together(tmp_path: Path) -> None:
    stopped = []

    def work(number: int) -> None:
        writer = RejectWriter(tmp_path / f"{number}.jsonl", most=100, work=str(number))
        try:
            for _ in range(1000):
                writer.write(rejects(7))
        except TooManyRejects:
            stopped.append(number)
        finally:
            writer.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stopped) == list(range(8))
    assert lines(tmp_path) <= COUNTED_ON + 100 + 8 * 7


def test_a_repeated_attempt_takes_the_place_of_the_first(tmp_path: Path) -> None:
    for attempt in range(20):
        writer = RejectWriter(tmp_path / f"{attempt}.jsonl", most=0, work="7")
        writer.write(rejects(COUNTED_ON // 2))
        writer.close()
    other = RejectWriter(tmp_path / "other.jsonl", most=0, work="8")
    other.write(rejects(COUNTED_ON // 2))
    with pytest.raises(TooManyRejects, match="of other files"):
        other.write(rejects(1))
    other.close()


def test_a_small_excess_is_told_at_the_end_with_exact_numbers() -> None:
    few = Rejected.zero()
    for reject in rejects(3):
        few += Rejected(Counter([reject.reason]), (reject,))
    few.check_so_far(0)
    with pytest.raises(TooManyRejects, match=r"^3 of 10 records were rejected"):
        few.check(RejectBudget(), 10)
