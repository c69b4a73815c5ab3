"""Lists that are too long for every worker to hold, of a plan's files and units: each a file in OUT that they read by
slice.

It holds blocks of so many items each, one behind the other; where a block begins, and its digest, travel with the plan.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError
from recordmill.building.spread.digests import FarDigests, Told
from recordmill.building.spread.place import SHARED, NotSharedError, Place
from recordmill.sources.inputs.beside import Beside, block_of
from recordmill.sources.inputs.contract import Source
from recordmill.sources.inputs.tables import FileTable, UnitTable
from recordmill.storage.files import create_file, read_range, write_all
from recordmill.storage.folders import make_scratch, remove_tree
from recordmill.storage.listed.files import StoredFiles
from recordmill.storage.listed.table import Table

PER_FILE = ("heads", "columns", "shards", "classes")  # what some kinds know of each file, beside what it is
ROWS = 4096  # files are 300 KiB or so, a request's worth
KEPT = 8  # blocks in each process: its threads read neighbours

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class FarTable(Table[Item]):
    """A list in OUT, of blocks of so many rows. starts: [blocks + 1] where each block begins; digests: [blocks, 32]
    SHA-256.
    """

    place: Place
    name: str
    length: int
    rows: int
    starts: npt.NDArray[np.int64]
    digests: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return self.length

    def _item(self, at: int) -> Item:
        number = at // self.rows
        item: Item = self.block(number)[at - number * self.rows]
        return item

    def block(self, number: int) -> Any:
        """That block, from item number * rows on."""
        path = self.place.run(SHARED, self.name)
        start, stop = self.starts[number : number + 2].tolist()
        try:
            return _block(path, start, stop, self.digests[number].tobytes())
        except FileNotFoundError:
            raise NotSharedError(path, self.place.out) from None


@functools.lru_cache(maxsize=KEPT)
def _block(path: str, start: int, stop: int, digest: bytes) -> Any:
    data = read_range(path, start, stop).tobytes()
    if hashlib.sha256(data).digest() != digest:
        raise DataError("is not what this build has written there", source=path)
    return pickle.loads(data)


def share_table(
    place: Place, what: str, kind: Callable[[Any], Any], items: Sequence[Any], rows: int | None = None
) -> FarTable[Any]:
    """Put the list where every worker can read it; gives it as it travels. what: for people who look there. kind:
    as what a block of it is kept; rows: of a block, None for ROWS.
    """
    rows = rows or ROWS
    starts, digests = [0], []
    folder = make_scratch("table-", None if place.is_remote else place.run())
    try:
        path = str(Path(folder, what))
        with create_file(path) as file:
            for first in range(0, len(items), rows):
                data = pickle.dumps(kind(items[first : first + rows]))
                starts.append(starts[-1] + len(data))
                digests.append(hashlib.sha256(data).digest())
                write_all(file, data)
        name = Path(place.hand_over(path, SHARED)).name
    finally:
        remove_tree(folder, ignore_errors=True)
    known = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
    return FarTable(place, name, len(items), rows, np.array(starts, np.int64), known)


def with_far_tables(source: Source, place: Place) -> Source:
    """The source with its files and units in OUT, and what it knows of each file, where they are lists as
    `sources.inputs.tables` has them.
    """
    if not (isinstance(source.files, FileTable | StoredFiles) and isinstance(source.units, UnitTable)):
        return source
    lists: dict[str, Any] = {"files": share_table(place, "files", FileTable.of, source.files)}
    lists["units"] = share_table(place, "units", UnitTable.of, source.units)
    for name in PER_FILE:
        value = getattr(source, name, None)
        if isinstance(value, tuple | Table) and len(value) == len(source.files):
            lists[name] = share_table(place, name, tuple, value)
    if isinstance(side := getattr(source, "side", None), Beside):
        lists["side"] = side.shared(lambda items: share_table(place, "side", block_of, items))
    if source.digests:
        told = share_table(place, "digests", tuple, Told(source.digests, len(source.files)))
        lists["digests"] = FarDigests(told, len(source.digests))
    far: Source = replace(source, **lists)  # type: ignore[type-var]
    return far
