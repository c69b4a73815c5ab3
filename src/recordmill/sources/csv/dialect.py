"""Options of CSV files (`CsvOptions`), with the reason for each default.

The rules are those of Python's `csv` module: a quote opens only at the start of a field (`5" disk` is literal), a
doubled quote inside quotes is one quote, CR, LF and CRLF end a row. A field that goes on after its closing quote
(`"Foo" bar`) is none, unless quotes are lenient, as that module's are in its default, non-strict mode. Blank lines are
no rows, but nulls where there is one column.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import MAX_LINE_BYTES
from recordmill.sources.common.contract import TableOptions
from recordmill.sources.common.encoding import normalize_encoding
from recordmill.sources.csv.sniff_dialect import STRONG_DELIMITERS, WEAK_DELIMITERS

DELIMITERS = (
    *STRONG_DELIMITERS,
    *WEAK_DELIMITERS,
)  # what is detected from the content, in order of preference
AUTO_QUOTE = "told"  # instead of a quote: it is detected

_MAX_ROW_BYTES = 256 << 20  # 256 MiB: a field's length has 28 bits in the arrays that hold it


@dataclass(frozen=True)
class CsvOptions(TableOptions):
    """Options of CSV files, beside those of all tables.

    Attributes:
        delimiter: One ASCII character, or None: detected among `, ; tab | :` and the blank.
        quote: One ASCII character; None: no quoting at all; AUTO_QUOTE: detected among the double quote, the single one
            and none. None is right if all rows are whole without a quote, and some are not with it.
        doubled_quote: `""` inside quotes is one quote.
        lenient_quotes: A field that goes on after its closing quote is read without these two quotes.
        escape: One ASCII character that makes the next one literal, or None.
        encoding: Any that Python knows. A byte order mark of UTF-8, UTF-16 or UTF-32 wins over the default `utf-8`.
        null_tokens: Texts that are nulls. Unquoted they are nulls in every column; *quoted* they are text in a text
            column (`""` is the empty string, `"NA"` the text NA), and nulls in a column of numbers, truth values or
            timestamps. Missing is not empty.
        header: Whether the first row holds the columns' names; None: detected, or refused.
        names: Names of the columns, instead of the header's or where there is none.
        comment: One ASCII character; a line that starts with it is no row.
        skip_lines: Lines before the header or the first row.
        trim: Blanks and tabs around a field are dropped, before quotes too. Off: they are part of the value.
        max_line_bytes: A longer row is a reject, and reading goes on at its next line: it bounds what a quote that is
            never closed takes in.
    """

    delimiter: str | None = None
    quote: str | None = AUTO_QUOTE
    doubled_quote: bool = True
    lenient_quotes: bool = False
    escape: str | None = None
    encoding: str = "utf-8"
    null_tokens: tuple[str, ...] = ("", "NA")
    header: bool | None = None
    names: tuple[str, ...] | None = None
    comment: str | None = None
    skip_lines: int = 0
    trim: bool = False
    max_line_bytes: int = MAX_LINE_BYTES

    def __post_init__(self) -> None:
        super().__post_init__()
        roles = {
            "delimiter": self.delimiter,
            "quote": self.quote,
            "escape": self.escape,
            "comment": self.comment,
        }
        for name, value in roles.items():
            if value is not None and not (name == "quote" and value == AUTO_QUOTE):
                _check_character(name, value)
        for name, value in roles.items():
            same_role = next(
                (
                    other_name
                    for other_name, other_value in roles.items()
                    if other_name != name and other_value == value and value is not None
                ),
                None,
            )
            if same_role:
                raise UsageError(f"--{name} and --{same_role} are both {value!r}; they must differ")
        if self.trim and " " in roles.values():
            raise UsageError(
                f"{option('trim', True)} drops blanks, so ' ' can't be the delimiter, quote, escape or comment as well"
            )
        if self.trim and "\t" in (self.quote, self.escape, self.comment):
            raise UsageError(
                f"{option('trim', True)} drops tabs, so '\\t' can't be the quote, escape or comment as well"
            )
        if self.skip_lines < 0:
            raise UsageError(f"{option('skip_lines', self.skip_lines)}: it can't be negative")
        if not 1 <= self.max_line_bytes <= _MAX_ROW_BYTES:
            raise UsageError(
                f"{option('max_line_bytes', self.max_line_bytes)}: it lies between 1 and {_MAX_ROW_BYTES}"
            )
        _check_names(self.names)
        object.__setattr__(self, "encoding", normalize_encoding(self.encoding))

    def with_dialect(self, delimiter: str, quote: str | None = '"') -> CsvOptions:
        """Returns the options with that delimiter, and with that quote if none was declared."""
        return replace(
            self, delimiter=delimiter, quote=quote if self.quote == AUTO_QUOTE else self.quote
        )


def _check_character(name: str, value: str) -> None:
    if len(value) != 1 or not value.isascii() or value in "\r\n\0":
        raise UsageError(
            f"--{name} is {value!r}; it must be one ASCII character, no line end and not NUL"
        )


def _check_names(names: tuple[str, ...] | None) -> None:
    if names is None:
        return
    if not names:
        raise UsageError(f"{option('names')} is empty; give one name per column")
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(
            f"{option('names')} holds {duplicates[0]!r} twice; each column needs a name of its own"
        )
    if "" in names:
        raise UsageError(
            f"{option('names')} holds an empty name, for column {names.index('') + 1}; each column needs one"
        )
