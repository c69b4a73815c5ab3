"""More slices than one merge can take, to fewer: the smallest are merged into one that lies in a file, until they are
few enough. What is read and written twice is as little as possible.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from recordmill.building.merge import merge
from recordmill.building.run_file import ENTRY_DTYPE
from recordmill.building.slices import RunSlice
from recordmill.storage.files import create_file, write_all
from recordmill.storage.folders import remove_file


@contextmanager
def at_most(
    count: int, slices: Sequence[RunSlice], folder: Path, memory_bytes: int, step: Callable[[], None]
) -> Iterator[Sequence[RunSlice]]:
    """The slices' records in at most `count` slices; what is written into folder for that is removed at the end.

    step: called once a round, and may raise.
    """
    made: list[Path] = []
    left = sorted(slices, key=lambda piece: piece.frames_bytes)
    try:
        while len(left) > count:
            first = min(count, len(left) - count + 1)
            made.append(folder / f"level-{uuid.uuid4().hex}")
            left = [*left[first:], merged_into(left[:first], made[-1], memory_bytes, step)]
            left.sort(key=lambda piece: piece.frames_bytes)
        yield left
    finally:
        for path in made:
            remove_file(path, missing_ok=True)


def merged_into(slices: Sequence[RunSlice], path: Path, memory_bytes: int, step: Callable[[], None]) -> RunSlice:
    """One slice, in a file of its own, of all records of these."""
    records, frames_bytes = sum(piece.records for piece in slices), sum(piece.frames_bytes for piece in slices)
    frames_at, entries_at = 0, frames_bytes
    with create_file(path) as file:
        for merged in merge(slices, memory_bytes):
            step()
            ordered = merged.sorted()
            file.seek(frames_at)
            for frames, _ in ordered.frames(0, merged.records):
                frames_at += write_all(file, frames)
            file.seek(entries_at)
            entries_at += write_all(file, ordered.entries(0, merged.records).tobytes())
    assert (frames_at, entries_at) == (frames_bytes, frames_bytes + records * ENTRY_DTYPE.itemsize)
    return RunSlice(str(path), records, frames_bytes, 0, frames_bytes)
