"""What is known of each file beside it: the same columns, wherever they lie and however files were chosen; and what a
plan found in files, in few bytes each.
"""

from __future__ import annotations

import pickle
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as some

from recordmill.building.spread.place import Place
from recordmill.building.spread.tables import share_table
from recordmill.sources.inputs.beside import Beside, Part, block_of, narrow
from recordmill.sources.inputs.tables import Alike, ChunkDigests
from recordmill.storage.digest import combine

NAMES = ["ant", None, "bee", "cat"]


@given(some.lists(some.integers(0, 3), min_size=1, max_size=30), some.data())
def test_rows_are_those_of_the_files_that_are_asked_for(said: list[int], draw: some.DataObject) -> None:
    numbers, own = narrow(np.array(said)), [f"row {at}" for at in range(len(said))]
    assert numbers.dtype == np.uint8
    shared = Part(pa.RecordBatch.from_pydict({"name": NAMES}), numbers)
    beside = Beside((shared, Part(pa.RecordBatch.from_pydict({"own": own, "at": range(len(own))}))))
    keep = np.array(draw.draw(some.lists(some.booleans(), min_size=len(said), max_size=len(said))))
    left = beside.filter(keep)
    names, rest = ([value for value, kept in zip(each, keep, strict=True) if kept] for each in (said, own))
    assert dict(left.columns())["name"].to_pylist() == [NAMES[at] for at in sorted(set(names))]
    asked = draw.draw(some.lists(some.integers(0, len(rest) - 1), max_size=20)) if rest else []
    with tempfile.TemporaryDirectory() as out:
        place = Place(out, "0" * 12)
        (Path(out) / f"_run-{place.id}" / "shared").mkdir(parents=True)
        far = left.shared(lambda items: share_table(place, "side", block_of, items, 4)) if rest else left
        for one in (left, pickle.loads(pickle.dumps(left)), pickle.loads(pickle.dumps(far))):
            found = {name: column.to_pylist() for name, column in one.take(asked).items()}
            assert found["name"] == [NAMES[names[at]] for at in asked]
            assert found["own"] == [rest[at] for at in asked]
            assert found["at"] == [int(rest[at].removeprefix("row ")) for at in asked]


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
