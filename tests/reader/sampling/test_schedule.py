"""Hosts and workers share the steps of an epoch, and other hosts can resume."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kit.samplers import make_sampler

from recordmill.base.errors import UsageError
from recordmill.options.parsers import SHUFFLE_MODES
from recordmill.reader.sampling.sampler import FileExtent
from recordmill.reader.sampling.schedule import EpochSteps, Schedule

SCHEDULES: dict[str, st.SearchStrategy[Any]] = {
    "mode": st.sampled_from(SHUFFLE_MODES),
    "batch": st.integers(1, 9),
    "end": st.sampled_from(["short", "drop", "pad"]),
    "at_once": st.integers(1, 4),
}


def flat(parts: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


@given(
    files=st.lists(
        st.builds(FileExtent, st.integers(0, 25), st.integers(1, 500)),
        min_size=1,
        max_size=4,
    ),
    hosts=st.integers(1, 5),
    later_hosts=st.integers(1, 5),
    done_steps=st.integers(0, 40),
    **SCHEDULES,
)
def test_hosts_share_every_epoch_and_other_hosts_resume(
    files: list[FileExtent],
    mode: object,
    batch: int,
    hosts: int,
    later_hosts: int,
    end: str,
    done_steps: int,
    at_once: int,
) -> None:
    records = sum(file.records for file in files)

    def run(schedules: list[Schedule]) -> list[list[int]]:
        """Returns the unmasked records of each step of all hosts, in order."""
        per_host = []
        for schedule in schedules:
            steps: list[list[int]] = []
            for step_range in schedule.step_ranges(at_once):
                numbers, mask = schedule.record_numbers(step_range), schedule.mask(step_range)
                for i in range(step_range.num_steps):
                    rows = slice(i * batch, (i + 1) * batch)
                    steps.append(numbers[rows][mask[rows]].tolist())
            assert schedule.remaining_steps == len(steps)
            per_host.append(steps)
        assert len({len(steps) for steps in per_host}) == 1
        return [flat(step) for step in zip(*per_host, strict=True)]

    def schedules(count: int) -> list[Schedule]:
        sampler = make_sampler(mode, files, 5)
        return [
            Schedule(sampler, EpochSteps(records, batch, end, count, i), end_epoch=2)
            for i in range(count)
        ]  # type: ignore[arg-type]

    try:
        expected = run(schedules(hosts))
        later_schedules = schedules(later_hosts)
    except UsageError:
        assert end == "short"
        return
    if end != "drop":
        assert sorted(flat(expected)) == sorted([*range(records)] * 2)
    elif records:
        assert max(Counter(flat(expected)).values(), default=0) <= 2
    done_steps = min(done_steps, len(expected))
    state = schedules(hosts)[0].skip_steps(done_steps).state()
    assert (
        run([host_schedule.resume(state) for host_schedule in schedules(hosts)])
        == expected[done_steps:]
    )
    try:
        rest = run([host_schedule.resume(state) for host_schedule in later_schedules])
    except UsageError:
        assert end == "short"
        return
    first_part = expected[:done_steps]
    if end != "drop":
        assert sorted(flat(first_part) + flat(rest)) == sorted([*range(records)] * 2)
    else:
        assert max(Counter(flat(first_part) + flat(rest)).values(), default=0) <= 2


@given(
    records=st.integers(1, 200),
    workers=st.integers(1, 5),
    done_steps=st.integers(0, 50),
    **SCHEDULES,
)
def test_workers_take_the_steps_in_turn(
    mode: object, records: int, batch: int, workers: int, end: str, done_steps: int, at_once: int
) -> None:
    sampler = make_sampler(mode, [FileExtent(records, 10 * records)], 5)
    full_schedule = Schedule(sampler, EpochSteps(records, batch, end), end_epoch=3)  # type: ignore[arg-type]
    assert full_schedule.remaining_steps is not None
    schedule = full_schedule.skip_steps(min(done_steps, full_schedule.remaining_steps))

    def steps(schedule: Schedule, stride: int, by_windows: bool) -> list[list[int]]:
        result = []
        for step_range in schedule.step_ranges(
            at_once, stop_at_windows=by_windows, step_stride=stride
        ):
            numbers = schedule.record_numbers(step_range).tolist()
            result += [numbers[i * batch : (i + 1) * batch] for i in range(step_range.num_steps)]
        return result

    expected = steps(schedule, 1, False)
    for worker in range(min(workers, len(expected))):
        for by_windows in (False, True):
            assert (
                steps(schedule.skip_steps(worker), workers, by_windows) == expected[worker::workers]
            )
