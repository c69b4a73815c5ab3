"""Guesses whether the first row of a CSV file is a header, by the rows below it (`HeaderGuess`), and brings the guesses
about several files that make one input to one answer, or the error that names the file that differs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from recordmill.base.errors import DataError
from recordmill.base.option_names import option
from recordmill.sources.csv.sniff_dialect import NULL_CELL, TEXT_CELL, classify_cell

HEADER_ROW, DATA_ROW, UNSURE_ROW = "header", "data", "unsure"

_USUAL_WORD_LIST = """
id ids uid uuid key code name names title text label labels class classes category categories type kind date time
datetime timestamp created updated year month day hour value values amount price cost count number num total sum score
rating rank index idx url link path file filename image email phone address street city state country region zip
postcode lat latitude lon lng long longitude description desc comment comments note notes message content body summary
author user username first last gender sex age height width weight length size status flag target feature features x y
z lang language source tag tags question answer sentence review sentiment split col column field abstract subject
version unit currency product item order quantity
"""
_USUAL_WORDS = frozenset(_USUAL_WORD_LIST.split())
_WORD_BREAK = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])")
_MAX_SHOWN_CHARACTERS = 100  # characters of a first row in a message
_MAX_NAME_CHARACTERS = 60  # characters
_MIN_TEXT_ROWS = (
    10  # rows below which the values of a column of text say nothing about the next one
)
_MIN_TYPED_COLUMNS = (
    2  # columns of numbers or times below text: no row of data has two strays of different texts
)
_MIN_TYPED_SHARE = 0.95  # of a column's values have a type: a few strays in many rows


@dataclass(frozen=True)
class HeaderGuess:
    """verdict: HEADER, DATA or UNSURE. reason: in words that follow on `the first row`."""

    verdict: str
    reason: str


@dataclass(frozen=True)
class _Vote:
    """weight: above 0 for a name, below 0 for data; 3 and more settles it. reason: why. is_repeat: it is one of the
    texts of its column, as names of columns may be, too.
    """

    weight: int
    reason: str = ""
    is_repeat: bool = False


def guess_header(first: Sequence[str], below: Sequence[Sequence[str]]) -> HeaderGuess:
    """Returns whether the first row names the columns. below: other rows, of as many fields."""
    if not any(name.strip() for name in first):
        return HeaderGuess(UNSURE_ROW, "is blank")
    if first[0].startswith("# ") or (first[0][:1] == "#" and below and below[0][0][:1] == "#"):
        return HeaderGuess(
            UNSURE_ROW, f"begins with '#' (is it a comment: {option('comment', '#')}?)"
        )
    if _is_title(first, below):
        return HeaderGuess(
            UNSURE_ROW,
            f"has one field that is not blank (is it a title: {option('skip_lines', 1)}?)",
        )
    if not below:
        return _guess_single_row(first)
    votes = [_vote_on_column(name, [row[at] for row in below]) for at, name in enumerate(first)]
    if sum(vote.weight >= 3 for vote in votes) >= _MIN_TYPED_COLUMNS:
        votes = [vote for vote in votes if not vote.is_repeat]
    votes += _vote_on_row(first)
    against = [vote for vote in votes if vote.weight < 0]
    total = sum(vote.weight for vote in votes)
    if against:
        worst = min(against, key=lambda vote: vote.weight)
        if worst.weight <= -3:
            return HeaderGuess(DATA_ROW, f"looks like data: {worst.reason}")
    settled = [vote for vote in votes if vote.weight >= 3]
    if settled and total >= 3:
        return HeaderGuess(HEADER_ROW, settled[0].reason)
    if total >= 3 or (total >= 2 and 2 * total >= len(first) and not against):
        return HeaderGuess(HEADER_ROW, max(votes, key=lambda vote: vote.weight).reason)
    return HeaderGuess(
        UNSURE_ROW, "may be a header or data: all of it is text, and so is what is below it"
    )


def _is_title(first: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Returns whether it is one text above a row that is all text."""
    filled = [text for text in first if text.strip()]
    return (
        len(filled) == 1 < len(first)
        and bool(below)
        and all(classify_cell(text) == TEXT_CELL for text in below[0])
    )


def _guess_single_row(first: Sequence[str]) -> HeaderGuess:
    typed = next(
        (text for text in first if classify_cell(text) not in (TEXT_CELL, NULL_CELL)), None
    )
    if typed is not None:
        return HeaderGuess(
            DATA_ROW, f"looks like data: it holds {typed!r}, and there is no other row"
        )
    return HeaderGuess(UNSURE_ROW, "may be a header or data: there is no other row")


def _vote_on_row(first: Sequence[str]) -> list[_Vote]:
    votes: list[_Vote] = []
    alphabet = "".join(first).lower()
    if len(alphabet) == len(first) > 1 and alphabet == "abcdefghijklmnopqrstuvwxyz"[: len(first)]:
        votes.append(_Vote(3, "it is the alphabet"))
    known = [text for text in first if _is_usual_name(text)]
    if len(known) * 2 >= len(first):
        votes.append(
            _Vote(3 if len(known) > 1 else 2, f"it holds usual names ({', '.join(known[:3])})")
        )
    elif known:
        votes.append(_Vote(1, f"it holds a usual name ({known[0]})"))
    named = [text for text in first if text]
    if twice := [text for text, count in Counter(named).items() if count > 1]:
        votes.append(_Vote(-3, f"it holds {twice[0][:_MAX_NAME_CHARACTERS]!r} twice"))
    return votes


def _is_usual_name(text: str) -> bool:
    words = [word.lower() for word in _WORD_BREAK.split(text.strip()) if word]
    return (
        0 < len(words) <= 3
        and len(text) <= _MAX_NAME_CHARACTERS
        and any(word in _USUAL_WORDS for word in words)
    )


def _vote_on_column(name: str, column: Sequence[str]) -> _Vote:
    values = [text.strip() for text in column if classify_cell(text) != NULL_CELL]
    name = name.strip()
    kind = classify_cell(name)
    if kind == NULL_CELL:
        return _Vote(0)
    classes = Counter(classify_cell(text) for text in values)
    typed = len(values) - classes[TEXT_CELL]
    if kind != TEXT_CELL:
        if 2 * typed >= len(values) and classes[kind]:
            return _Vote(-3, f"{name!r} is above {kind} like it")
        return _Vote(-2, f"{name!r} is {kind}")
    if name in values:
        return _Vote(-3, f"{name[:_MAX_NAME_CHARACTERS]!r} stands below it again", is_repeat=True)
    if values and (
        typed == len(values) or (typed >= _MIN_TYPED_SHARE * len(values) and len(values) >= 20)
    ):
        found = (classes - Counter({TEXT_CELL: classes[TEXT_CELL]})).most_common(1)[0][0]
        return _Vote(
            3, f"text ({name[:_MAX_NAME_CHARACTERS]!r}) is above {found.removeprefix('a ')}s"
        )
    return _vote_on_text_column(name, values)


def _vote_on_text_column(name: str, values: Sequence[str]) -> _Vote:
    """Judges text above text."""
    if len(name) > _MAX_NAME_CHARACTERS or name.endswith((".", "!")):
        return _Vote(-2, f"{name[:_MAX_NAME_CHARACTERS]!r} is a sentence")
    if len(values) < _MIN_TEXT_ROWS:
        return _Vote(0)
    lengths = {len(value) for value in values}
    counts = Counter(values)
    if min(counts.values()) > 1 and 3 * len(counts) <= len(values):
        return _Vote(
            2, f"{name!r} is none of the {len(counts)} values that stand below it again and again"
        )
    if len(lengths) == 1 and len(name) not in lengths and len(counts) > 1:
        return _Vote(2, f"all fields below {name!r} are {lengths.pop()} characters long")
    if min(lengths) > 2 * len(name):
        return _Vote(2, f"all fields below {name!r} are longer")
    shapes = {_character_pattern(value) for value in values}
    if len(shapes) == 1 and _character_pattern(name) not in shapes and len(counts) > 1:
        return _Vote(2, f"all fields below {name!r} are written in another way")
    if (
        all(any(c.isdigit() for c in value) for value in values)
        and name.replace("_", "").replace(" ", "").isalpha()
    ):
        return _Vote(2, f"all fields below {name!r} hold digits")
    return _Vote(0)


def _character_pattern(text: str) -> str:
    """Returns the kinds of characters, runs as one: `AB-12` is `A-9`."""
    kinds = (
        "A" if c.isupper() else "a" if c.isalpha() else "9" if c.isdigit() else c for c in text
    )
    shape = ""
    for kind in kinds:
        shape += kind if not shape.endswith(kind) else ""
    return shape


@dataclass(frozen=True)
class FirstRow:
    """The first row of one file. fields: the row. guess: what it seems to be. is_only_row: there is no other row."""

    file_name: str
    fields: tuple[str, ...]
    guess: HeaderGuess
    is_only_row: bool = False


def agree_on_header(
    rows: Sequence[FirstRow], given: tuple[str, ...] | None = None, used: Set[str] = frozenset()
) -> str:
    """Returns the reason why the first rows are headers. given: the names that the user gives for all columns; used:
    those of columns that the user speaks of.

    A first row that says little by itself is a header if its names are those of files whose header is clear; whatever
    it says, if the user uses one of its names. That other files begin with the same row says nothing: rows repeat.

    Raises:
        DataError: a first row looks like data, or may be data.
    """
    doubtful = [row for row in rows if row.guess.verdict != HEADER_ROW and row.fields != given]
    doubtful = [row for row in doubtful if used.isdisjoint(row.fields)]
    clear = [row for row in rows if row.guess.verdict == HEADER_ROW]
    known = {name for row in clear for name in row.fields} | set(given or ())
    for row in doubtful:
        if row.guess.verdict == DATA_ROW or not known.issuperset(row.fields):
            raise _header_error(
                row,
                clear,
                given,
                len(rows) == 1 and row.is_only_row and row.guess.verdict == UNSURE_ROW,
            )
    return clear[0].guess.reason if clear else "it holds names that are given"


def _header_error(
    row: FirstRow, clear: Sequence[FirstRow], given: tuple[str, ...] | None, alone: bool
) -> DataError:
    shown = ",".join(repr(field) for field in row.fields)
    shown = shown if len(shown) <= _MAX_SHOWN_CHARACTERS else f"{shown[:_MAX_SHOWN_CHARACTERS]}..."
    names = (
        "the names given stand for it, or for columns"
        if given
        else f"columns are then column_1, ... or {option('names')}"
    )
    differs = (
        f" (unlike that of {clear[0].file_name}, a header)"
        if clear and row.guess.verdict == DATA_ROW
        else ""
    )
    what = (
        "a header and no rows, or one row"
        if alone
        else f"the first row {row.guess.reason}{differs}"
    )
    return DataError(
        f"{what}: {shown}. Say {option('header', False)} if it is data ({names}), or {option('header', True)} if it "
        "names the columns",
        source=row.file_name,
    )
