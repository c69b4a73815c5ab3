"""Units to groups: every unit once and in order, as many groups for each thread, and about equal."""

from __future__ import annotations

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
def test_every_unit_is_in_one_group_in_order(sizes: list[int], arena_bytes: int, threads: int) -> None:
    groups = group_units(source(*sizes), arena_bytes, threads)
    assert [number for group in groups for number in group] == list(range(len(sizes)))
    assert all(groups)


def test_threads_get_the_same_number_of_groups_of_about_the_same_size() -> None:
    assert group_units(source(*[8 * MIB] * 28), 128 * MIB, 2) == (range(7), range(7, 14), range(14, 21), range(21, 28))
    assert [len(group) for group in group_units(source(*[8 * MIB] * 100), 128 * MIB, 2)] == [
        12, 13, 12, 13, 12, 13, 12, 13,
    ]  # fmt: skip
    assert group_units(source(3 * MIB, 3 * MIB, 3 * MIB), 128 * MIB, 3) == (range(1), range(1, 2), range(2, 3))


def test_a_group_is_about_an_arena_at_most() -> None:
    groups = group_units(source(*[MIB] * 1000), 8 * MIB, 4)
    assert len(groups) == 128
    assert max(map(len, groups)) <= 8
