"""The first row of a CSV file and the rows below it to a `Guess`: is it their header, or one of them?

Every column has a vote. Text above a column of numbers, times or truth values is a name; a number above numbers, and a
text that the column holds again, are data. Where all is text, a name differs from what is below it: in its length or
letters, or because the column holds a few values over and over, and not this one.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from recordmill.sources.csv.sniff.cells import NULL, TEXT, cell_class

HEADER, DATA, UNSURE = "header", "data", "unsure"

_USUAL_NAMES = """
id ids uid uuid key code name names title text label labels class classes category categories type kind date time
datetime timestamp created updated year month day hour value values amount price cost count number num total sum score
rating rank index idx url link path file filename image email phone address street city state country region zip
postcode lat latitude lon lng long longitude description desc comment comments note notes message content body summary
author user username first last gender sex age height width weight length size status flag target feature features x y
z lang language source tag tags question answer sentence review sentiment split col column field abstract subject
version unit currency product item order quantity
"""
_WORDS = frozenset(_USUAL_NAMES.split())
_SPLIT = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])")
_NUMBERED = re.compile(r"([A-Za-z][A-Za-z _-]*)(\d{1,6})")
_LONGEST_NAME = 60  # characters
_FEW = 10  # rows below which the values of a column of text say nothing about the next one
_SURE = 0.95  # of a column's values have a type: a few strays in many rows


@dataclass(frozen=True)
class Guess:
    """verdict: HEADER, DATA or UNSURE. reason: in words that follow on `the first row`."""

    verdict: str
    reason: str


@dataclass(frozen=True)
class _Vote:
    """weight: above 0 for a name, below 0 for data; 3 and more settles it. reason: why."""

    weight: int
    reason: str = ""


def guess_header(first: Sequence[str], below: Sequence[Sequence[str]]) -> Guess:
    """Whether the first row names the columns. below: other rows, of as many fields."""
    if not any(name.strip() for name in first):
        return Guess(UNSURE, "is blank")
    if not below:
        return _alone(first)
    votes = [_column_vote(name, [row[at] for row in below]) for at, name in enumerate(first)]
    votes += _row_votes(first)
    against = [vote for vote in votes if vote.weight < 0]
    total = sum(vote.weight for vote in votes)
    if against:
        worst = min(against, key=lambda vote: vote.weight)
        if worst.weight <= -3:
            return Guess(DATA, f"looks like data: {worst.reason}")
    settled = [vote for vote in votes if vote.weight >= 3]
    if settled and total >= 3:
        return Guess(HEADER, settled[0].reason)
    if total >= 3 or (total >= 2 and 2 * total >= len(first) and not against):
        return Guess(HEADER, max(votes, key=lambda vote: vote.weight).reason)
    return Guess(UNSURE, "may be a header or data: all of it is text, and so is what is below it")


def _alone(first: Sequence[str]) -> Guess:
    typed = next((text for text in first if cell_class(text) not in (TEXT, NULL)), None)
    if typed is not None:
        return Guess(DATA, f"looks like data: it holds {typed!r}, and there is no other row")
    return Guess(UNSURE, "may be a header or data: there is no other row")


def _row_votes(first: Sequence[str]) -> list[_Vote]:
    votes: list[_Vote] = []
    alphabet = "".join(first).lower()
    if len(alphabet) == len(first) > 1 and alphabet == "abcdefghijklmnopqrstuvwxyz"[: len(first)]:
        votes.append(_Vote(3, "it is the alphabet"))
    if _is_numbered(first):
        votes.append(_Vote(3, f"it is numbered: {first[0][:_LONGEST_NAME]!r}, {first[1][:_LONGEST_NAME]!r}, ..."))
    known = [text for text in first if _is_word(text)]
    if len(known) * 2 >= len(first):
        votes.append(_Vote(3 if len(known) > 1 else 2, f"it holds usual names ({', '.join(known[:3])})"))
    elif known:
        votes.append(_Vote(1, f"it holds a usual name ({known[0]})"))
    named = [text for text in first if text]
    if twice := [text for text, count in Counter(named).items() if count > 1]:
        votes.append(_Vote(-3, f"it holds {twice[0][:_LONGEST_NAME]!r} twice"))
    return votes


def _is_numbered(first: Sequence[str]) -> bool:
    """Whether it is one word with numbers that count up: `f0,f1,f2`."""
    parts = [_NUMBERED.fullmatch(text.strip()) for text in first]
    found = [(part[1], int(part[2])) for part in parts if part is not None]
    return 1 < len(found) == len(first) and all(
        one[0] == other[0] and one[1] + 1 == other[1] for one, other in itertools.pairwise(found)
    )


def _is_word(text: str) -> bool:
    words = [word.lower() for word in _SPLIT.split(text.strip()) if word]
    return 0 < len(words) <= 3 and len(text) <= _LONGEST_NAME and any(word in _WORDS for word in words)


def _column_vote(name: str, column: Sequence[str]) -> _Vote:
    values = [text.strip() for text in column if cell_class(text) != NULL]
    name = name.strip()
    kind = cell_class(name)
    if kind == NULL:
        return _Vote(0)
    classes = Counter(cell_class(text) for text in values)
    typed = len(values) - classes[TEXT]
    if kind != TEXT:
        if 2 * typed >= len(values) and classes[kind]:
            return _Vote(-3, f"{name!r} stands above {kind} like it")
        return _Vote(-2, f"{name!r} is {kind}")
    if name in values:
        return _Vote(-3, f"{name[:_LONGEST_NAME]!r} stands below it again")
    if values and (typed == len(values) or (typed >= _SURE * len(values) and len(values) >= 20)):
        found = (classes - Counter({TEXT: classes[TEXT]})).most_common(1)[0][0]
        return _Vote(3, f"text ({name[:_LONGEST_NAME]!r}) stands above {found.removeprefix('a ')}s")
    return _text_vote(name, values)


def _text_vote(name: str, values: Sequence[str]) -> _Vote:
    """Text above text."""
    if len(name) > _LONGEST_NAME or name.endswith((".", "!")):
        return _Vote(-2, f"{name[:_LONGEST_NAME]!r} is a sentence")
    if len(values) < _FEW:
        return _Vote(0)
    lengths = {len(value) for value in values}
    counts = Counter(values)
    if min(counts.values()) > 1 and 3 * len(counts) <= len(values):
        return _Vote(2, f"{name!r} is none of the {len(counts)} values that stand below it again and again")
    if len(lengths) == 1 and len(name) not in lengths and len(counts) > 1:
        return _Vote(2, f"all fields below {name!r} are {lengths.pop()} characters long")
    if min(lengths) > 2 * len(name):
        return _Vote(2, f"all fields below {name!r} are longer")
    shapes = {_shape(value) for value in values}
    if len(shapes) == 1 and _shape(name) not in shapes and len(counts) > 1:
        return _Vote(2, f"all fields below {name!r} are written in another way")
    if all(any(c.isdigit() for c in value) for value in values) and name.replace("_", "").replace(" ", "").isalpha():
        return _Vote(2, f"all fields below {name!r} hold digits")
    return _Vote(0)


def _shape(text: str) -> str:
    """The kinds of characters, runs as one: `AB-12` is `A-9`."""
    kinds = ("A" if c.isupper() else "a" if c.isalpha() else "9" if c.isdigit() else c for c in text)
    shape = ""
    for kind in kinds:
        shape += kind if not shape.endswith(kind) else ""
    return shape
