"""Small pieces of work to units of the usual size: neighbouring whole files, or consecutive parts of one, together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from recordmill.sources.inputs.contract import Unit

UNIT_FILES = 4096  # so that many tiny files spread over threads too


def packed(
    units: Iterable[Unit], most_bytes: int, most_files: int = UNIT_FILES, *, parts: bool = False
) -> tuple[Unit, ...]:
    """The units in their order, neighbours as one as long as they hold no more than most_bytes and most_files.

    parts: parts of one file are put together too; else they stay, since memory was shared out by their size.
    """
    found: list[Unit] = []
    for unit in units:
        if found and _follows(found[-1], unit, parts) and found[-1].size_bytes + unit.size_bytes <= most_bytes:
            last = found[-1]
            rows = None if last.rows is None or unit.rows is None else last.rows + unit.rows
            size = last.size_bytes + unit.size_bytes
            joined = replace(last, last_file=unit.last_file, stop=unit.stop, rows=rows, size_bytes=size)
            if joined.last_file - joined.first_file <= most_files:
                found[-1] = joined
                continue
        found.append(unit)
    return tuple(found)


def packed_files(sizes: Iterable[int], most_bytes: int, most_files: int = UNIT_FILES) -> tuple[Unit, ...]:
    """Files that are a record each, of these sizes, as `packed` puts units of one file together."""
    found: list[Unit] = []
    first = size = 0
    at = -1
    for at, more in enumerate(sizes):
        if at > first and (size + more > most_bytes or at - first == most_files):
            found.append(Unit(first, at, rows=at - first, size_bytes=size))
            first, size = at, 0
        size += more
    return (*found, Unit(first, at + 1, rows=at + 1 - first, size_bytes=size)) if at >= 0 else ()


def _follows(last: Unit, unit: Unit, parts: bool) -> bool:
    if last.stop or unit.stop:
        return parts and last.first_file == unit.first_file and last.stop == unit.start
    return last.last_file == unit.first_file
