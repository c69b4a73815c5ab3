"""Guess whether the first row of a CSV file is a header.

`guess_header` compares the first row with the rows after it. `agree_on_header` combines the guesses
for several files into one answer, or an error that names the file that differs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

from recordmill.base.errors import DataError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.sources.csv.sniff_dialect import NULL_CELL, TEXT_CELL, TIME_CELL, classify_cell

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
# Splits at other characters than letters, and between the words of camelCase.
_WORD_BREAK = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])")
_MAX_SHOWN_CHARACTERS = 100  # of a first row in a message
_MAX_NAME_CHARACTERS = 60  # a longer text is not the name of a column
# 10 values: fewer values of a text column do not show how the next one would look.
_MIN_TEXT_ROWS = 10
# A text above at least 3 rows of numbers or times is strong evidence of a header. With fewer rows,
# a field of the first row that occurs again in its column may be a value.
_MIN_TYPED_ROWS = 3
# Columns may be named by years. These are in this range, and at least 3 of them are in order.
_YEARS, _MIN_YEARS = range(1800, 2200), 3
# The start of an object or of a nested list as JSON and Python write them, or a list of numbers.
_JSON_VALUE = re.compile(r"\s*(\{\s*[\"']|\[\s*[\[{\"']|\{\s*\}\s*$|\[[\s\d.,eE+-]*\]\s*$)")
# 95 % of the values of a column: among many rows there may be a few misfits.
_MIN_TYPED_SHARE = 0.95


@dataclass(frozen=True)
class HeaderGuess:
    """A guess about the first row.

    Attributes:
        verdict: HEADER_ROW, DATA_ROW or UNSURE_ROW.
        reason: The rest of a sentence that begins with `the first row`.
    """

    verdict: str
    reason: str


@dataclass(frozen=True)
class _Vote:
    """Evidence for or against a header.

    The evidence is about one column, or about the complete first row.

    Attributes:
        weight: Above 0 for a header, below 0 for data. A weight of 3 or more, or -3 or less, can
            decide alone.
        reason: The evidence in words, for a note or an error.
        is_repeat: Whether the only evidence is that the text occurs in its column again. Column
            names can do this, too.
    """

    weight: int
    reason: str = ""
    is_repeat: bool = False


def guess_header(first_row: Sequence[str], other_rows: Sequence[Sequence[str]]) -> HeaderGuess:
    """Guesses whether the first row contains the column names.

    Args:
        first_row: The fields of the first row.
        other_rows: The fields of other rows, as many in each.
    """
    if not any(name.strip() for name in first_row):
        return HeaderGuess(UNSURE_ROW, "is blank")
    if first_row[0].startswith("# ") or (
        first_row[0][:1] == "#" and other_rows and other_rows[0][0][:1] == "#"
    ):
        return HeaderGuess(
            UNSURE_ROW,
            Message(
                "begins with '#' (is it a comment: {comment}?)", comment=option("comment", "#")
            ),
        )
    if _is_title(first_row, other_rows):
        return HeaderGuess(
            UNSURE_ROW,
            Message(
                "has one field that is not blank (is it a title: {skip_lines}?)",
                skip_lines=option("skip_lines", 1),
            ),
        )
    if not other_rows:
        return _guess_single_row(first_row)
    votes = [
        _vote_on_column(name, [row[column] for row in other_rows])
        for column, name in enumerate(first_row)
    ]
    if len(other_rows) >= _MIN_TYPED_ROWS and any(vote.weight >= 3 for vote in votes):
        # The text above numbers makes the row a header, even if one of its names occurs as a value.
        votes = [vote for vote in votes if not vote.is_repeat]
    if year_columns := _find_year_columns(first_row, other_rows):
        votes = [vote for column, vote in enumerate(votes) if column not in year_columns]
        votes.append(_Vote(3, f"{first_row[year_columns[0]]!r} is the first of years in order"))
    votes += _vote_on_row(first_row)
    negative_votes = [vote for vote in votes if vote.weight < 0]
    total_weight = sum(vote.weight for vote in votes)
    if negative_votes:
        strongest = min(negative_votes, key=lambda vote: vote.weight)
        # Strong evidence of data outweighs everything else.
        if strongest.weight <= -3:
            return HeaderGuess(DATA_ROW, f"looks like data: {strongest.reason}")
    strong_votes = [vote for vote in votes if vote.weight >= 3]
    if strong_votes and total_weight >= 3:
        return HeaderGuess(HEADER_ROW, strong_votes[0].reason)
    if total_weight >= 3 or (
        # Weaker evidence must come from a large part of the columns, without any evidence of data.
        total_weight >= 2 and 2 * total_weight >= len(first_row) and not negative_votes
    ):
        return HeaderGuess(HEADER_ROW, max(votes, key=lambda vote: vote.weight).reason)
    return HeaderGuess(
        UNSURE_ROW, ("may be a header or data: this row and the rows below are all text")
    )


def _find_year_columns(first_row: Sequence[str], other_rows: Sequence[Sequence[str]]) -> range:
    """Returns the adjacent columns with years in order above other values.

    The other values are not years. The range is empty if no columns are like this.
    """
    years = [_to_year(text) for text in first_row]
    start = next((column for column, year in enumerate(years) if year), len(years))
    stop = next((column for column in range(start, len(years)) if not years[column]), len(years))
    steps = {later - earlier for earlier, later in pairwise(years[start:stop])}
    if stop - start < _MIN_YEARS or len(steps) != 1 or not -10 <= min(steps) <= 10 or 0 in steps:
        return range(0)
    is_like_them = any(
        all(_to_year(text) for text in row[start:stop] if classify_cell(text) != NULL_CELL)
        for row in other_rows
        if any(classify_cell(text) != NULL_CELL for text in row[start:stop])
    )
    return range(0) if is_like_them else range(start, stop)


def _to_year(text: str) -> int:
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) == 4 and int(text) in _YEARS else 0


def _is_title(first_row: Sequence[str], other_rows: Sequence[Sequence[str]]) -> bool:
    """Returns whether only one field is filled, above a row of texts."""
    filled_texts = [text for text in first_row if text.strip()]
    return (
        len(filled_texts) == 1 < len(first_row)
        and bool(other_rows)
        and all(classify_cell(text) == TEXT_CELL for text in other_rows[0])
    )


def _guess_single_row(first_row: Sequence[str]) -> HeaderGuess:
    typed_text = next(
        (text for text in first_row if classify_cell(text) not in (TEXT_CELL, NULL_CELL)), None
    )
    if typed_text is not None:
        return HeaderGuess(
            DATA_ROW, f"looks like data: it holds {typed_text!r}, and there is no other row"
        )
    return HeaderGuess(UNSURE_ROW, "may be a header or data: there is no other row")


def _vote_on_row(first_row: Sequence[str]) -> list[_Vote]:
    votes: list[_Vote] = []
    alphabet = "".join(first_row).lower()
    if (
        len(alphabet) == len(first_row) > 1
        and alphabet == "abcdefghijklmnopqrstuvwxyz"[: len(first_row)]
    ):
        votes.append(_Vote(3, "it is the alphabet"))
    usual_names = [text for text in first_row if _is_usual_name(text)]
    if len(usual_names) * 2 >= len(first_row):
        votes.append(
            _Vote(
                3 if len(usual_names) > 1 else 2,
                f"it holds usual names ({', '.join(usual_names[:3])})",
            )
        )
    elif usual_names:
        votes.append(_Vote(1, f"it holds a usual name ({usual_names[0]})"))
    filled_texts = [text for text in first_row if text]
    if duplicates := [text for text, count in Counter(filled_texts).items() if count > 1]:
        votes.append(_Vote(-3, f"it holds {duplicates[0][:_MAX_NAME_CHARACTERS]!r} twice"))
    return votes


def _is_usual_name(text: str) -> bool:
    words = [word.lower() for word in _WORD_BREAK.split(text.strip()) if word]
    return (
        0 < len(words) <= 3
        and len(text) <= _MAX_NAME_CHARACTERS
        and any(word in _USUAL_WORDS for word in words)
    )


def _vote_on_column(name: str, texts: Sequence[str]) -> _Vote:
    values = [text.strip() for text in texts if classify_cell(text) != NULL_CELL]
    name = name.strip()
    name_class = classify_cell(name)
    if name_class == NULL_CELL:
        return _Vote(0)
    class_counts = Counter(classify_cell(text) for text in values)
    num_typed = len(values) - class_counts[TEXT_CELL]
    typed_counts = class_counts - Counter({TEXT_CELL: class_counts[TEXT_CELL]})
    is_typed_column = bool(values) and (
        num_typed == len(values)
        or (num_typed >= _MIN_TYPED_SHARE * len(values) and len(values) >= 20)
    )
    if name_class == TIME_CELL and is_typed_column and not class_counts[TIME_CELL]:
        common_class = typed_counts.most_common(1)[0][0].removeprefix("a ")
        return _Vote(3, f"a time ({name!r}) is above {common_class}s")
    if name_class != TEXT_CELL:
        if 2 * num_typed >= len(values) and class_counts[name_class]:
            return _Vote(-3, f"{name!r} is above {name_class} like it")
        return _Vote(-2, f"{name!r} is {name_class}")
    if _JSON_VALUE.match(name):
        return _Vote(-3, f"{name[:_MAX_NAME_CHARACTERS]!r} is JSON, and not a name")
    if name in values:
        return _Vote(-3, f"{name[:_MAX_NAME_CHARACTERS]!r} occurs again below it", is_repeat=True)
    if is_typed_column:
        common_class = typed_counts.most_common(1)[0][0].removeprefix("a ")
        return _Vote(3, f"text ({name[:_MAX_NAME_CHARACTERS]!r}) is above {common_class}s")
    return _vote_on_text_column(name, values)


def _vote_on_text_column(name: str, values: Sequence[str]) -> _Vote:
    """Compares a text with the texts below it.

    A name usually differs from values in length, in the kinds of its characters, or in that it
    occurs once.
    """
    if len(name) > _MAX_NAME_CHARACTERS or name.endswith((".", "!")):
        return _Vote(-2, f"{name[:_MAX_NAME_CHARACTERS]!r} is a sentence")
    if len(values) < _MIN_TEXT_ROWS:
        return _Vote(0)
    lengths = {len(value) for value in values}
    value_counts = Counter(values)
    if min(value_counts.values()) > 1 and 3 * len(value_counts) <= len(values):
        return _Vote(
            2,
            (f"{name!r} is not one of the {len(value_counts)} values that occur repeatedly below"),
        )
    if len(lengths) == 1 and len(name) not in lengths and len(value_counts) > 1:
        return _Vote(2, f"all fields below {name!r} are {lengths.pop()} characters long")
    if min(lengths) > 2 * len(name):
        return _Vote(2, f"all fields below {name!r} are longer")
    patterns = {_character_pattern(value) for value in values}
    if len(patterns) == 1 and _character_pattern(name) not in patterns and len(value_counts) > 1:
        return _Vote(2, f"all fields below {name!r} are written in another way")
    if (
        all(any(character.isdigit() for character in value) for value in values)
        and name.replace("_", "").replace(" ", "").isalpha()
    ):
        return _Vote(2, f"all fields below {name!r} hold digits")
    return _Vote(0)


def _character_pattern(text: str) -> str:
    """Returns the kinds of characters in a text. Equal neighbours count once.

    >>> _character_pattern("AB-12")
    'A-9'
    """
    kinds = (
        "A"
        if character.isupper()
        else "a"
        if character.isalpha()
        else "9"
        if character.isdigit()
        else character
        for character in text
    )
    pattern = ""
    for kind in kinds:
        pattern += kind if not pattern.endswith(kind) else ""
    return pattern


@dataclass(frozen=True)
class FirstRow:
    """The first row of one file, which may be a header.

    Objects of this class are only needed if no option of the user determines whether files have a
    header.

    Attributes:
        file_name: The name of the file.
        fields: The fields of the row.
        guess: Whether the row looks like a header.
        is_only_row: Whether the file has no other row.
        width: Number of columns of the file.
        start: Offset of the row, counted as in `CsvHead.start`.
        line: Line number at `start`.
        name_error: Why the fields can't be names, or None if they can.
    """

    file_name: str
    fields: tuple[str, ...]
    guess: HeaderGuess
    is_only_row: bool = False
    width: int = 0
    start: int = 0
    line: int = 1
    name_error: DataError | None = None

    def is_data(self, user_names: tuple[str, ...] | None, option_names: Set[str]) -> bool:
        """Returns whether the row looks like data, and no option contradicts this."""
        return (
            self.guess.verdict == DATA_ROW
            and self.fields != user_names
            and option_names.isdisjoint(self.fields)
        )


def agree_on_header(
    first_rows: Sequence[FirstRow],
    user_names: tuple[str, ...] | None = None,
    option_names: Set[str] = frozenset(),
) -> str:
    """Returns the reason why the first rows are headers, for a note.

    A row with an unsure guess counts as a header if all its names occur in clear headers of other
    files, or in `user_names`. Any row counts as a header if it contains a name of `option_names`.
    An equal first row of another file is not evidence, because rows may repeat. A row of data is
    permitted if its file is a later part of the same table. So the first file must have a header
    with as many columns, and no file may have another header.

    Args:
        first_rows: The first row of each file.
        user_names: The column names that the user has declared.
        option_names: The columns in other options of the user.

    Raises:
        DataError: A first row is data, or it is unclear.
    """
    doubtful_rows = [
        row for row in first_rows if row.guess.verdict != HEADER_ROW and row.fields != user_names
    ]
    # The user has named a column of this header, so it is one.
    doubtful_rows = [row for row in doubtful_rows if option_names.isdisjoint(row.fields)]
    clear_headers = [row for row in first_rows if row.guess.verdict == HEADER_ROW]
    known_names = {name for row in clear_headers for name in row.fields} | set(user_names or ())
    headers = {row.fields for row in first_rows if row.guess.verdict != DATA_ROW}
    has_parts = user_names is None and len(headers) == 1 and first_rows[0] in clear_headers
    for row in doubtful_rows:
        if row.guess.verdict == DATA_ROW:
            is_part = has_parts and row.width == first_rows[0].width
            if not is_part and row.name_error is not None:
                raise row.name_error
        else:
            is_part = known_names.issuperset(row.fields)
        if not is_part:
            raise _header_error(
                row,
                clear_headers,
                user_names,
                len(first_rows) == 1 and row.is_only_row and row.guess.verdict == UNSURE_ROW,
            )
    return (
        clear_headers[0].guess.reason
        if clear_headers
        else ("it contains the names that were given")
    )


def _header_error(
    first_row: FirstRow,
    clear_headers: Sequence[FirstRow],
    user_names: tuple[str, ...] | None,
    is_only_row: bool,
) -> DataError:
    row_text = ",".join(repr(field) for field in first_row.fields)
    row_text = (
        row_text
        if len(row_text) <= _MAX_SHOWN_CHARACTERS
        else f"{row_text[:_MAX_SHOWN_CHARACTERS]}..."
    )
    names_remedy = (
        "the given names replace it, or name the columns"
        if user_names
        else Message("columns are then column_1, ... or {names}", names=option("names"))
    )
    difference = (
        f" (unlike that of {clear_headers[0].file_name}, a header)"
        if clear_headers and first_row.guess.verdict == DATA_ROW
        else ""
    )
    problem = (
        "a header and no rows, or one row"
        if is_only_row
        else Message(
            "the first row {reason}{difference}",
            reason=first_row.guess.reason,
            difference=difference,
        )
    )
    return DataError(
        "{problem}: {row_text}. Use {header} if it is data ({names_remedy}), or "
        "{header2} if it names the columns",
        problem=problem,
        row_text=row_text,
        header=option("header", False),
        names_remedy=names_remedy,
        header2=option("header", True),
        source=first_row.file_name,
    )
