"""A table contains its names in the order of insertion, within its limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.base.names import make_name_table, names_in_table

NAMES = st.lists(st.tuples(st.binary(max_size=8), st.integers(0, 3)), max_size=30, unique=True)


@given(NAMES)
def test_table_contains_its_names_in_the_order_of_insertion(names: list[tuple[bytes, int]]) -> None:
    table = make_name_table(40, 400, names)
    assert names_in_table(table) == names
    assert names_in_table(table, 1 + len(names) // 2) == names[len(names) // 2 :]


def test_equal_names_of_different_parts_are_two_names() -> None:
    names = [(b"a", 0), (b"a", 1), (b"", 0)]
    assert names_in_table(make_name_table(3, 2, names)) == names


def test_table_is_as_large_as_its_limits_allow() -> None:
    small, large = make_name_table(10, 100), make_name_table(1000, 100)
    assert len(small) < len(large)
    assert len(make_name_table(10, 10_000)) > len(small)
    assert names_in_table(small) == []


def test_more_names_than_the_limit_are_an_error() -> None:
    with pytest.raises(IndexError, match="make_names"):
        make_name_table(1, 100, [(b"a", 0), (b"b", 0), (b"c", 0)])
