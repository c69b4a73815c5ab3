"""What a plan found in files, in few bytes each."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as some

from recordmill.sources.common.tables import Alike


@dataclass(frozen=True)
class Row:
    """As a table has them."""

    name: str
    at: int
    size: int


@given(some.lists(some.builds(Row, some.sampled_from("abc"), some.integers(-(2**63), 2**63 - 1), some.integers(0, 9))))
def test_items_that_are_alike_are_there_again(rows: list[Row]) -> None:
    table = Alike.of(iter(rows), ("at", "size"))
    assert list(table) == list(pickle.loads(pickle.dumps(table))) == rows
    assert table[1:] == tuple(rows[1:])
