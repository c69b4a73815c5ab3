"""Choice of the delimiter and the quote of CSV files.

The first rows of a file are split with several combinations of both (`DialectTrial`).
`choose_quote` and `choose_delimiter` pick the best one. For this, fields are classified more
loosely than in a build: decimal commas, percent signs and dates in any order also count as values.

The first rows may contain no quotes, so the scan also collects evidence from all rows
(`QuoteEvidence`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.sizes import format_count

NULL_CELL = "nothing"
NUMBER_CELL = "a number"
TIME_CELL = "a time"
BOOLEAN_CELL = "a truth value"
TEXT_CELL = "text"

_NULL_TEXTS = frozenset(
    (
        "",
        "na",
        "n/a",
        "#n/a",
        "nan",
        "null",
        "none",
        "nil",
        "\\n",
        "?",
        "-",
        "--",
        ".",
        "*",
        "missing",
        "unknown",
    )
)
_BOOLEAN_TEXTS = frozenset(("true", "false", "yes", "no"))
_NUMBER = re.compile(
    r"[-+(]?[$€£¥]? ?[-+]?(\d[\d,.'\u00a0]*|\.\d+)([eE][-+]?\d+)?\)? ?[%$€£¥]?|[-+]?inf(inity)?|0x[0-9a-f]+",
    re.I,
)
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY = rf"\d{{1,4}}([-/.])\d{{1,2}}\2\d{{1,4}}|\d{{4}}-\d\d|\d{{1,2}}[-/ .]{_MONTH}[-/ ,]*\d{{2,4}}"
_CLOCK = r"\d{1,2}:\d\d(:\d\d([.,]\d+)?)?( ?[ap]\.?m\.?)?( ?(z|utc|gmt|[-+]\d\d:?(\d\d)?))?"
_TIME = re.compile(
    rf"({_DAY}|{_MONTH}[-/ ]\d{{1,2}},?[-/ ]\d{{2,4}}|{_MONTH}[-/ ]\d{{2,4}})([ t,]+{_CLOCK})?|{_CLOCK}",
    re.I,
)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://\S+|\S+@\S+\.\S+|([0-9a-f]{2}:){5}[0-9a-f]{2}", re.I)
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+")
# Longest text that can be a number or a time.
_MAX_TYPED_CHARACTERS = 64


def classify_cell(text: str) -> str:
    """Returns the class of a field, one of the `..._CELL` constants.

    >>> [classify_cell(text) for text in ("1.234,5", "12:30", "5-Jan-97", "yes", "?", "x1")]
    ['a number', 'a time', 'a time', 'a truth value', 'nothing', 'text']
    """
    text = text.strip()
    lower = text.lower()
    if lower in _NULL_TEXTS:
        return NULL_CELL
    if len(text) <= _MAX_TYPED_CHARACTERS:
        if _NUMBER.fullmatch(text):
            return NUMBER_CELL
        if text[0].isdigit() or text[0].isalpha():
            if _TIME.fullmatch(text):
                return TIME_CELL
            if lower in _BOOLEAN_TEXTS:
                return BOOLEAN_CELL
    return TEXT_CELL


def is_single_value(text: str) -> bool:
    """Returns whether a text is one value, although it contains delimiters.

    A time, a date, a number or an address is one value.

    >>> is_single_value("2024-01-02 10:30"), is_single_value("name: Anna")
    (True, False)
    """
    return (
        classify_cell(text) in (NUMBER_CELL, TIME_CELL)
        or _ADDRESS.fullmatch(text.strip()) is not None
    )


# Strong delimiters rarely occur in each row of a text by accident.
STRONG_DELIMITERS = (",", ";", "\t", "|")
# Weak delimiters also occur in times and prose, so they need more evidence.
WEAK_DELIMITERS = (":", " ")
DELIMITER_BY_EXTENSION = {"tsv": "\t", "tab": "\t", "psv": "|"}
MAX_SNIFFED_COLUMNS = 512  # only the first 512 fields of a row are inspected
# With fewer rows, a quote that is never closed is an error rather than text.
_MIN_ROWS = 4
# Two delimiters with scores closer than this are equally good.
_MIN_SCORE_LEAD = 0.05


class Cell(NamedTuple):
    """One field of a row.

    Attributes:
        text: The value of the field, without quotes around it.
        is_quoted: Whether it was in quotes.
    """

    text: str
    is_quoted: bool


@dataclass(frozen=True)
class DialectTrial:
    """The first rows of a file, split with one delimiter and one quote.

    Attributes:
        delimiter: The delimiter.
        quote: The quote, or None.
        widths: The number of fields of each row.
        rows: The fields of the rows with the most common width. At most the first
            MAX_SNIFFED_COLUMNS fields of each.
        first_row: The fields of the first row, with any width.
    """

    delimiter: str
    quote: str | None
    widths: tuple[int, ...]
    rows: tuple[tuple[Cell, ...], ...]
    first_row: tuple[Cell, ...] = ()

    @cached_property
    def width(self) -> int:
        """The most common number of fields. If two are equally common, the larger one."""
        counts = Counter(self.widths)
        return max(counts, key=lambda width: (counts[width], width), default=0)

    @cached_property
    def share(self) -> float:
        """Share of the rows that have `width` fields."""
        return self.widths.count(self.width) / len(self.widths) if self.widths else 0.0

    @cached_property
    def has_short_header(self) -> bool:
        """Whether the first row has one field less than each other row.

        False if there are fewer than two other rows.
        """
        first_width, *other_widths = self.widths or (0,)
        return len(other_widths) > 1 and set(other_widths) == {first_width + 1}

    @cached_property
    def intact_share(self) -> float:
        """Average of `_intactness` over all fields, from -1 to 1."""
        cells = [self._intactness(cell) for row in self.rows for cell in row]
        return sum(cells) / len(cells) if cells else 0.0

    def _intactness(self, cell: Cell) -> float:
        """Returns how much a field looks like one complete value, from -1 to 1.

        Less than 1 means that it may be a part of a value, or several values.
        """
        text = cell.text
        other_delimiters = [
            mark for mark in STRONG_DELIMITERS if mark != self.delimiter and mark in cell.text
        ]
        if (
            self.quote is not None
            and other_delimiters
            and any(
                self.quote + mark in text or mark + self.quote in text for mark in other_delimiters
            )
        ):
            return -1.0  # the quotes enclose fields of another delimiter
        if cell.is_quoted or not text:
            return 1.0
        if other_delimiters:
            # A field that contains another delimiter may be several fields, unless it is one value
            # such as `1,5`.
            return 1.0 if classify_cell(text) in (NUMBER_CELL, TIME_CELL) else 0.25
        # An unmatched quote at one end: the delimiter may be inside a quoted field.
        if self.quote is not None and (text[0] == self.quote or text[-1] == self.quote):
            return 0.5
        # A text with a blank after the delimiter may be prose.
        return 0.75 if text[0] == " " and classify_cell(text) == TEXT_CELL else 1.0

    @property
    def score(self) -> float:
        return self.share * self.share * self.intact_share

    def column(self, index: int) -> list[Cell]:
        return [row[index] for row in self.rows if index < len(row)]


@dataclass(frozen=True)
class DialectChoice:
    """The dialect that was chosen for the rows of a sample.

    Attributes:
        trial: The rows, split with the dialect.
        reason: Why this dialect was chosen, for a note. "" if no note is needed.
        doubt: Why it is unclear which dialect is right, for an error. "" if the choice is clear.
    """

    trial: DialectTrial
    reason: str = ""
    doubt: str = field(default="")


def choose_quote(trials: Sequence[DialectTrial]) -> DialectChoice:
    """Chooses the quote for one delimiter.

    Args:
        trials: The rows, split with this delimiter and each possible quote. The first one has the
            double quote, and the last one may have none.
    """
    double_quoted = trials[0]
    for trial in trials[1:]:
        if trial.quote is None:
            if _works_without_quotes(double_quoted, trial):
                return DialectChoice(
                    trial, "quotes are text: no field ends with the quote that it begins with"
                )
        elif _both_quotes_work(double_quoted, trial):
            return DialectChoice(
                double_quoted,
                doubt=Message(
                    "fields are enclosed in {quote} or in {quote2}; choose with {quote3}",
                    quote=repr(double_quoted.quote),
                    quote2=repr(trial.quote),
                    quote3=option("quote"),
                ),
            )
        elif _works_with_single_quotes(double_quoted, trial):
            return DialectChoice(trial, f"fields are enclosed in {trial.quote!r}")
    return DialectChoice(double_quoted)


def _works_without_quotes(double_quoted: DialectTrial, unquoted: DialectTrial) -> bool:
    """Returns whether the rows only have equal widths if quotes are text.

    The result is False if some fields or rows have pairs of quotes. It is also False if a field
    with an opening quote is in a column of numbers.
    """
    if unquoted.share < 1.0 or double_quoted.share == 1.0 or len(unquoted.rows) < _MIN_ROWS:
        return False
    opened_columns = {
        column
        for row in unquoted.rows
        for column, cell in enumerate(row)
        if cell.text[:1] == double_quoted.quote
    }
    # A field in a pair of quotes is normal CSV. So is a row with an even number of quotes.
    is_closed = (
        len(cell.text) > 1 and cell.text[0] == double_quoted.quote == cell.text[-1]
        for row in unquoted.rows
        for cell in row
    )
    is_paired = (
        sum(cell.text.count('"') for cell in row) % 2 == 0
        for row in unquoted.rows
        if _has_opening_quote(row, '"')
    )
    return (
        not any(is_closed)
        and not any(is_paired)
        and not any(_are_mostly_numbers(unquoted.column(column)) for column in opened_columns)
    )


def _has_opening_quote(row: Sequence[Cell], quote: str) -> bool:
    return any(cell.text.startswith(quote) for cell in row)


def _are_mostly_numbers(column: Sequence[Cell]) -> bool:
    return 2 * sum(classify_cell(cell.text) == NUMBER_CELL for cell in column) > len(column)


def _both_quotes_work(double_quoted: DialectTrial, single_quoted: DialectTrial) -> bool:
    """Returns whether both quotes split all rows evenly, but into different numbers of fields.

    Each must also enclose some field.
    """
    has_quoted_cells = (
        any(cell.is_quoted for row in trial.rows for cell in row)
        for trial in (double_quoted, single_quoted)
    )
    return (
        double_quoted.share == single_quoted.share == 1.0
        and double_quoted.width != single_quoted.width
        and all(has_quoted_cells)
    )


def _works_with_single_quotes(double_quoted: DialectTrial, single_quoted: DialectTrial) -> bool:
    """Returns whether the single quote suits the rows better than the double quote.

    The single quote is better if more rows then have the same number of fields. It is also better
    if a text has single quotes that are doubled inside it, or if all fields of a column are in
    single quotes.
    """
    if single_quoted.share < double_quoted.share:
        return False
    # Fields in double quotes speak against the single quote, unless only that one explains all
    # rows.
    if (single_quoted.share < 1.0 or double_quoted.share == 1.0) and any(
        cell.is_quoted for row in double_quoted.rows for cell in row
    ):
        return False
    if any(
        single_quoted.quote is not None and single_quoted.quote in cell.text.strip()[:1]
        for row in single_quoted.rows
        for cell in row
    ):
        return False
    quoted_cells = [cell for row in single_quoted.rows for cell in row if cell.is_quoted]
    if single_quoted.share > double_quoted.share:
        return bool(quoted_cells)
    if any(_is_doubled(cell.text, "'") for row in double_quoted.rows for cell in row):
        return True
    columns = [
        single_quoted.column(column)[1:]
        for column in range(min(single_quoted.width, MAX_SNIFFED_COLUMNS))
    ]
    return any(
        len(cells) > 1
        and all(c.is_quoted or not c.text for c in cells)
        and any(c.text for c in cells)
        for cells in columns
    )


def _is_doubled(text: str, quote: str) -> bool:
    """Returns whether a text is in quotes and has only doubled quotes inside: `'O''Fallon'`."""
    inner = text[1:-1]
    return (
        len(text) > 3
        and text[0] == quote == text[-1]
        and 2 * quote in inner
        and quote not in inner.replace(2 * quote, "")
    )


@dataclass(frozen=True)
class QuoteEvidence:
    """Counts of rows for and against a detected quote.

    "Without quotes" means that the quote character is treated like any other one. A good row is a
    row that is not bad with quotes.

    Attributes:
        quoted_fields: Number of fields in quotes, in good rows.
        rows_needing_quotes: Number of good rows that would be bad without quotes.
        rows_across_lines: Number of good rows with several lines that would each be a good row
            without quotes.
        stray_quote_rows: Number of rows with a field that continues after its closing quote.
        rows_broken_by_quotes: Number of bad rows with lines that would all be good rows without
            quotes. Rows with stray quotes may be among them.
        unusable_rows: Number of rows that are bad with and without quotes.
        first_stray_quote: (line number, first line of the text) of the first stray quote, or None.
        first_across_line: Line number of the first row that `rows_across_lines` counts, or None.
    """

    quoted_fields: int = 0
    rows_needing_quotes: int = 0
    rows_across_lines: int = 0
    stray_quote_rows: int = 0
    rows_broken_by_quotes: int = 0
    unusable_rows: int = 0
    first_stray_quote: tuple[int, str] | None = None
    first_across_line: int | None = None

    def __add__(self, later: QuoteEvidence) -> QuoteEvidence:
        return QuoteEvidence(
            quoted_fields=self.quoted_fields + later.quoted_fields,
            rows_needing_quotes=self.rows_needing_quotes + later.rows_needing_quotes,
            rows_across_lines=self.rows_across_lines + later.rows_across_lines,
            stray_quote_rows=self.stray_quote_rows + later.stray_quote_rows,
            rows_broken_by_quotes=self.rows_broken_by_quotes + later.rows_broken_by_quotes,
            unusable_rows=self.unusable_rows + later.unusable_rows,
            first_stray_quote=self.first_stray_quote or later.first_stray_quote,
            first_across_line=self.first_across_line or later.first_across_line,
        )

    def shifted(self, lines: int) -> QuoteEvidence:
        """Returns the evidence with line numbers increased by `lines`."""
        stray_quote, across_line = self.first_stray_quote, self.first_across_line
        return replace(
            self,
            first_stray_quote=None
            if stray_quote is None
            else (stray_quote[0] + lines, stray_quote[1]),
            first_across_line=None if across_line is None else across_line + lines,
        )

    @property
    def quotes_are_text(self) -> bool:
        """Whether the rows are only correct if quotes are ordinary text.

        No row may need the quotes, and at least one row must have a stray quote. A quote that is
        never closed is not sufficient, because the file may be cut off. In addition, the fields
        that quotes enclose correctly must not outnumber the rows that quotes break.
        """
        evidence_against_quotes = self.rows_broken_by_quotes + self.rows_across_lines
        return (
            self.rows_needing_quotes + self.unusable_rows == 0 < self.stray_quote_rows
            and self.quoted_fields - self.rows_across_lines <= evidence_against_quotes
        )

    @property
    def quotes_are_doubtful(self) -> bool:
        """Whether quoted fields with line breaks may really be several rows.

        The result is True if the rows with such a field are at least as many as the rows that need
        the quotes for another reason.
        """
        return self.rows_needing_quotes <= self.rows_across_lines > 0


def choose_delimiter(choices: Sequence[DialectChoice], extension: str) -> DialectChoice:
    """Chooses the delimiter.

    Args:
        choices: For each candidate delimiter, the rows split with its best quote.
        extension: The extension of the file. The delimiter that is usual for it is preferred.

    Returns:
        One of `choices`, or a new one with a `doubt` if no delimiter is clearly right.
    """
    # A delimiter must yield at least two fields.
    strong_choices = [
        choice
        for choice in choices
        if choice.trial.delimiter in STRONG_DELIMITERS and choice.trial.width > 1
    ]
    hinted_delimiter = DELIMITER_BY_EXTENSION.get(extension)
    if strong_choices:
        best, *rivals = sorted(
            strong_choices,
            key=lambda choice: _rank_trial(choice.trial, hinted_delimiter),
            reverse=True,
        )
        for rival in rivals:
            if _is_as_good(best.trial, rival.trial, hinted_delimiter):
                doubt = Message(
                    "{delimiter}, and {delimiter2}; choose with {delimiter3}",
                    delimiter=describe_delimiter(best.trial),
                    delimiter2=describe_delimiter(rival.trial),
                    delimiter3=option("delimiter"),
                )
                return DialectChoice(
                    best.trial,
                    doubt=Message("the delimiter can't be detected: {doubt}", doubt=doubt),
                )
        return best
    for choice in choices:
        if (
            choice.trial.delimiter in WEAK_DELIMITERS
            and choice.trial.width > 1
            and (choice.trial.share == 1.0 or choice.trial.has_short_header)
            and len(choice.trial.widths) > 1
        ):
            if choice.doubt or _is_plausible_weak_delimiter(choice.trial):
                return choice
            if not _is_single_column(choice.trial):
                doubt = Message(
                    "there is one column, or {delimiter}; use {delimiter2}",
                    delimiter=describe_delimiter(choice.trial),
                    delimiter2=option("delimiter", choice.trial.delimiter),
                )
                return DialectChoice(
                    choice.trial, doubt=Message("{doubt}, or ',' for one column", doubt=doubt)
                )
    return choices[0]


def find_blank_runs_doubt(trial: DialectTrial, sample: bytes) -> str:
    """Returns the doubt if runs of blanks may separate fields, or "".

    Args:
        trial: The rows, split at runs of blanks.
        sample: The text of the rows.
    """
    lines = [line.strip() for line in sample.splitlines() if line.strip()]
    has_runs = 2 * sum(b"  " in line for line in lines) >= len(lines)
    is_split = trial.width > 1 and (trial.share == 1.0 or trial.has_short_header)
    if not (has_runs and is_split and len(trial.widths) > 1):
        return ""
    fields = describe_delimiter(trial).replace(repr(" "), "runs of blanks", 1)
    return Message(
        "there is one column, or {fields}; use {delimiter} and {trim}, or "
        "{delimiter2} for one column",
        fields=fields,
        delimiter=option("delimiter", " "),
        trim=option("trim", True),
        delimiter2=option("delimiter", ","),
    )


def _rank_trial(trial: DialectTrial, hinted_delimiter: str | None) -> tuple[float, int]:
    # The extension is worth a quarter of a perfect score.
    return trial.score + 0.25 * (trial.delimiter == hinted_delimiter), -STRONG_DELIMITERS.index(
        trial.delimiter
    )


def _is_as_good(best: DialectTrial, rival: DialectTrial, hinted_delimiter: str | None) -> bool:
    """Returns whether another delimiter splits the rows about as well as the best one.

    The extension of the file decides if it belongs to one of the two.
    """
    return (
        best.share == rival.share == 1.0
        and len(rival.widths) > 1
        and hinted_delimiter not in (best.delimiter, rival.delimiter)
        and rival.score > best.score - _MIN_SCORE_LEAD
    )


def _is_plausible_weak_delimiter(trial: DialectTrial) -> bool:
    """Returns whether a colon or a blank really separates fields.

    Some fields in quotes are sufficient evidence. Otherwise columns must have types, and must not
    be parts of times or of sentences.
    """
    cells = [cell for row in trial.rows[1:] for cell in row]
    if any(cell.is_quoted for cell in cells):
        return True
    if any(
        # A blank after a colon is typical of prose, and `//` of URLs.
        cell.text.startswith((" ", "//")) or (trial.delimiter == " " and not cell.text)
        for cell in cells
    ):
        return False
    num_typed = sum(
        _is_typed(trial.column(column)[1:])
        for column in range(min(trial.width, MAX_SNIFFED_COLUMNS))
    )
    if trial.delimiter == ":":
        return num_typed > 0 and not _splits_times(trial)
    return (
        len(trial.rows) > 2
        and trial.width > 2
        and 2 * num_typed >= trial.width
        and not _is_single_column(trial)
    )


def _is_single_column(trial: DialectTrial) -> bool:
    """Returns whether each row is a single value if it is not split.

    The first row does not count.
    """
    joined_rows = (trial.delimiter.join(cell.text for cell in row) for row in trial.rows[1:])
    return all(map(is_single_value, joined_rows))


def _splits_times(trial: DialectTrial) -> bool:
    """Returns whether adjacent fields look like parts of a time, such as `10:30`."""
    looks_like_time = [
        all(
            row[column].text[-2:].isdigit()
            and row[column + 1].text[:2].isdigit()
            and len(row[column + 1].text) >= 2
            and row[column + 1].text[:2] < "60"
            for row in trial.rows[1:]
        )
        for column in range(min(trial.width, MAX_SNIFFED_COLUMNS) - 1)
    ]
    return any(looks_like_time)


def _is_typed(column: Sequence[Cell]) -> bool:
    classes = [classify_cell(cell.text) for cell in column]
    return any(cell_class != NULL_CELL for cell_class in classes) and TEXT_CELL not in classes


def describe_delimiter(trial: DialectTrial) -> str:
    """Describes the effect of a delimiter, for messages.

    >>> describe_delimiter(DialectTrial(";", '"', (2, 2, 3), ()))
    "2 columns in 2 of 3 rows, separated by ';'"
    """
    count, num_rows = trial.widths.count(trial.width), len(trial.widths)
    share = "" if count == num_rows else f" in {count:,} of {num_rows:,} rows"
    return f"{format_count(trial.width, 'column')}{share}, separated by {trial.delimiter!r}"


def describe_thousands(trial: DialectTrial) -> str:
    """Returns a note if numbers may have points as thousands separators, else "".

    Files with `;` between fields often have such numbers. They are read with a decimal point.
    """
    if trial.delimiter != ";":
        return ""
    for column in range(min(trial.width, MAX_SNIFFED_COLUMNS)):
        texts = [
            cell.text for cell in trial.column(column)[1:] if classify_cell(cell.text) != NULL_CELL
        ]
        if len(texts) >= _MIN_ROWS and all(map(_THOUSANDS.fullmatch, texts)):
            name = trial.column(column)[0].text
            value = texts[0].replace(".", "", texts[0].count(".") - 1)
            return Message(
                "values such as {text} are read as {value}. If the point separates thousands: {parse}",
                text=repr(texts[0]),
                value=float(value),
                parse=option("parse", f'{name}=decimal(",", thousands=".")'),
            )
    return ""
