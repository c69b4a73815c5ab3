"""What a plan found in files, in few bytes each."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as some

from recordmill.sources.common.tables import Alike, ChunkDigests
from recordmill.storage.digest import combine


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


@given(some.lists(some.lists(some.binary(min_size=32, max_size=32), min_size=1, max_size=3), max_size=9))
def test_digests_of_files_are_those_of_their_chunks(files: list[list[bytes]]) -> None:
    chunks = ChunkDigests()
    for at, digests in enumerate(files):
        for digest in digests:
            chunks.add(at, [digest])
    table = chunks.table()
    assert dict(table) == dict(pickle.loads(pickle.dumps(table))) == {at: combine(one) for at, one in enumerate(files)}
    assert (table.get(len(files)), table.get(-1), len(table)) == (None, None, len(files))
