"""Unit groups are in order, similar in size, and fit into the run buffer."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from recordmill.building.plan import group_units

MIB = 1 << 20


def source(*sizes: int) -> Any:
    return SimpleNamespace(units=[SimpleNamespace(size_bytes=size) for size in sizes])


@given(
    st.lists(st.one_of(st.sampled_from([0, 1, MIB]), st.integers(0, 1 << 40)), max_size=40),
    st.integers(8 * MIB, 128 * MIB),
    st.integers(1, 70),
)
def test_every_unit_is_in_one_group_in_order(
    sizes: list[int], max_run_buffer_bytes: int, threads: int
) -> None:
    groups = group_units(source(*sizes), max_run_buffer_bytes, threads)
    assert [number for group in groups for number in group] == list(range(len(sizes)))
    assert all(groups)


def test_groups_are_of_similar_size_and_a_multiple_of_the_threads() -> None:
    assert group_units(source(*[8 * MIB] * 28), 128 * MIB, 2) == [
        range(7),
        range(7, 14),
        range(14, 21),
        range(21, 28),
    ]
    assert [len(group) for group in group_units(source(*[8 * MIB] * 100), 128 * MIB, 2)] == [
        12,
        13,
        12,
        13,
        12,
        13,
        12,
        13,
    ]
    assert group_units(source(3 * MIB, 3 * MIB, 3 * MIB), 128 * MIB, 3) == [
        range(1),
        range(1, 2),
        range(2, 3),
    ]


def test_group_is_no_larger_than_the_run_buffer() -> None:
    groups = group_units(source(*[MIB] * 1000), 8 * MIB, 4)
    assert len(groups) == 128
    assert max(map(len, groups)) <= 8
