"""The guesses about the first rows of several files that make one input to one answer for all of them, or the error
that names the file that differs and what to type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from recordmill.base.errors import DataError
from recordmill.base.option_names import option
from recordmill.sources.csv.sniff.header import DATA, HEADER, UNSURE, Guess

_SHOWN = 100  # characters of a first row in a message


@dataclass(frozen=True)
class FirstRow:
    """Of one file. fields: its first row. guess: what it seems to be. alone: there is no other row."""

    file: str
    fields: tuple[str, ...]
    guess: Guess
    alone: bool = False


class FirstRows:
    """Of very many files the first rows that decide, and no more than two that are the same and seem to be the same."""

    def __init__(self) -> None:
        self.rows, self._counts = list[FirstRow](), Counter[tuple[tuple[str, ...], str]]()

    def add(self, row: FirstRow) -> None:
        key = row.fields, row.guess.verdict
        self._counts[key] += 1
        if self._counts[key] <= 2:
            self.rows.append(row)


def agree_on_header(
    rows: Sequence[FirstRow], given: tuple[str, ...] | None = None, used: Set[str] = frozenset()
) -> str:
    """The reason why the first rows are headers. given: the names that the user gives for all columns; used: those of
    columns that the user speaks of.

    A first row that says little by itself is a header if it is the same as that of another file, or its names are those
    of files whose header is clear; whatever it says, if the user uses one of its names.

    Raises:
        DataError: a first row looks like data, or may be data.
    """
    doubtful = [row for row in rows if row.guess.verdict != HEADER and row.fields != given]
    doubtful = [row for row in doubtful if used.isdisjoint(row.fields)]
    clear = [row for row in rows if row.guess.verdict == HEADER]
    known = {name for row in clear for name in row.fields} | set(given or ())
    counts = Counter(row.fields for row in rows if row.guess.verdict != DATA)
    for row in doubtful:
        if row.guess.verdict == DATA or not (known.issuperset(row.fields) or counts[row.fields] > 1):
            raise _refusal(row, clear, given, len(rows) == 1 and row.alone and row.guess.verdict == UNSURE)
    if clear:
        return clear[0].guess.reason
    return "it is the same in all files" if doubtful else "it holds names that are given"


def _refusal(row: FirstRow, clear: Sequence[FirstRow], given: tuple[str, ...] | None, alone: bool) -> DataError:
    shown = ",".join(repr(field) for field in row.fields)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    names = (
        "the names given stand for it, or for columns"
        if given
        else f"columns are then column_1, ... or {option('names')}"
    )
    differs = f" (unlike that of {clear[0].file}, a header)" if clear and row.guess.verdict == DATA else ""
    what = "a header and no rows, or one row" if alone else f"the first row {row.guess.reason}{differs}"
    return DataError(
        f"{what}: {shown}. Say {option('header', False)} if it is data ({names}), or {option('header', True)} if it "
        "names the columns",
        source=row.file,
    )
