"""Clocks sum the seconds of stages over threads, and measure only inside their block."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from recordmill.base import stages
from recordmill.base.stages import STAGES, StageClock, measure_stages, time_stage


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times that the clock returns, in order."""
    times: list[float] = []
    monkeypatch.setattr(stages, "time", SimpleNamespace(perf_counter=lambda: times.pop(0)))
    return times


def test_seconds_of_a_stage_are_summed_for_all_active_clocks(seconds: list[float]) -> None:
    seconds += [10.0, 11.0, 20.0, 22.0, 22.0]
    with measure_stages() as outer:
        with time_stage("decode"):
            pass
        with measure_stages() as inner, time_stage("decode"):
            pass
    assert (outer.seconds["decode"], inner.seconds["decode"]) == (3.0, 2.0)
    assert set(outer.seconds) == set(STAGES)


def test_failed_stage_is_counted_and_unmeasured_stages_read_no_time(seconds: list[float]) -> None:
    with time_stage("read"):
        pass
    seconds += [1.0, 5.0]
    with measure_stages() as clock:
        with pytest.raises(OSError, match="bad"), time_stage("read"):
            raise OSError("bad")
        assert clock.seconds["read"] == 4.0
    with time_stage("read"):
        pass
    assert clock.seconds["read"] == 4.0


def test_seconds_of_threads_are_summed() -> None:
    clock = StageClock()
    with ThreadPoolExecutor(8) as threads:
        for _ in range(8):
            threads.submit(lambda: [clock.add("check", 1) for _ in range(500)])
    assert clock.seconds["check"] == 4000
