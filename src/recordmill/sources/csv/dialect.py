"""Options of CSV files.

The rules follow Python's `csv` module. A quote opens a quoted field only at the start of the field,
so the quote in `5" disk` is an ordinary character. A doubled quote inside quotes is one quote. CR,
LF and CRLF end a row.

There are two differences. A field that continues after its closing quote (`"Foo" bar`) is an error,
unless `lenient_quotes` is set. Blank lines are not rows, but in a file with a single column they
are nulls.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import MAX_LINE_BYTES
from recordmill.sources.common.contract import TableOptions
from recordmill.sources.common.encoding import normalize_encoding
from recordmill.sources.csv.sniff_dialect import STRONG_DELIMITERS, WEAK_DELIMITERS

# The delimiters that can be detected, in order of preference.
DELIMITERS = (*STRONG_DELIMITERS, *WEAK_DELIMITERS)
# Value of the option `quote` that detects the quote from the content.
AUTO_QUOTE = "told"

# 256 MiB: the arrays of fields store a length in 28 bits.
_MAX_ROW_BYTES = 256 << 20


@dataclass(frozen=True)
class CsvDialect:
    """The notation of a CSV file.

    The file contains the data, or the labels or boxes of images.

    Attributes:
        delimiter: One ASCII character. None detects one of `, ; tab | :` and the blank.
        quote: One ASCII character, None for no quoting, or AUTO_QUOTE. AUTO_QUOTE detects the
            double quote, the single quote, or no quoting. It selects no quoting if all rows have
            the same number of fields only without a quote.
        doubled_quote: Whether `""` inside quotes is one quote.
        lenient_quotes: Whether a field may continue after its closing quote. Its value does not
            contain these two quotes.
        escape: One ASCII character that makes the next one literal, or None.
        encoding: Any encoding that Python knows. If it is `utf-8`, the default, a byte order mark
            of UTF-8, UTF-16 or UTF-32 overrides it.
        null_tokens: Texts that are nulls. Without quotes they are nulls in every column. In quotes
            they are nulls in a column of numbers, booleans or timestamps, but text in a text column
            (`""` is the empty string, `"NA"` the text NA). So a missing value differs from an empty
            one.
        header: Whether the first row contains the column names. None detects it, or reports an
            error if it is unclear.
        names: Column names. They replace the names in a header. None uses the header, or column_1,
            column_2, ... without one.
        comment: One ASCII character. A line that starts with it is ignored.
        skip_lines: Number of lines before the header, or before the first row if there is no
            header.
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

    def __post_init__(self) -> None:
        roles = {
            "delimiter": self.delimiter,
            "quote": self.quote,
            "escape": self.escape,
            "comment": self.comment,
        }
        for name, value in roles.items():
            # AUTO_QUOTE is not a character.
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
                raise UsageError(
                    "{first} and {second} are both {value}; they must differ",
                    first=option(name),
                    second=option(same_role),
                    value=repr(value),
                )
        if self.skip_lines < 0:
            raise UsageError(
                "{skip_lines}: it can't be negative",
                skip_lines=option("skip_lines", self.skip_lines),
            )
        _check_names(self.names)
        object.__setattr__(self, "encoding", normalize_encoding(self.encoding))

    @property
    def dialect(self) -> dict[str, Any]:
        """The options of the notation that differ from the defaults, by name."""
        return {
            field.name: value
            for field in fields(CsvDialect)
            if (value := getattr(self, field.name)) != field.default
        }


@dataclass(frozen=True)
class CsvOptions(TableOptions, CsvDialect):
    """Options of CSV files: table options, the dialect, and limits.

    Attributes:
        trim: Whether blanks and tabs around a field are dropped, also those before an opening
            quote. Otherwise they are part of the value. If the delimiter is a blank, a run of
            blanks is one delimiter.
        max_line_bytes: Maximum length of a row in bytes. A longer row is a reject, and reading
            continues at its second line. This limits the damage of a quote that is never closed.
    """

    trim: bool = False
    max_line_bytes: int = MAX_LINE_BYTES

    def __post_init__(self) -> None:
        TableOptions.__post_init__(self)
        CsvDialect.__post_init__(self)
        if self.trim and " " in (self.quote, self.escape, self.comment):
            raise UsageError(
                "{trim} drops blanks, so ' ' can't be the quote, escape or comment as well",
                trim=option("trim", True),
            )
        if self.trim and "\t" in (self.quote, self.escape, self.comment):
            raise UsageError(
                "{trim} drops tabs, so '\\t' can't be the quote, escape or comment as well",
                trim=option("trim", True),
            )
        if not 1 <= self.max_line_bytes <= _MAX_ROW_BYTES:
            raise UsageError(
                "{max_line_bytes}: it must be between 1 and {max_row_bytes}",
                max_line_bytes=option("max_line_bytes", self.max_line_bytes),
                max_row_bytes=_MAX_ROW_BYTES,
            )

    def with_dialect(self, delimiter: str, quote: str | None = '"') -> CsvOptions:
        """Returns the options with a detected delimiter and quote.

        A quote that the user has declared is kept.
        """
        return replace(
            self, delimiter=delimiter, quote=quote if self.quote == AUTO_QUOTE else self.quote
        )


def _check_character(name: str, value: str) -> None:
    if len(value) != 1 or not value.isascii() or value in "\r\n\0":
        raise UsageError(
            "{option} is {value}; it must be one ASCII character, no line end and not NUL",
            option=option(name),
            value=repr(value),
        )


def _check_names(names: tuple[str, ...] | None) -> None:
    if names is None:
        return
    if not names:
        raise UsageError("{names} is empty; give one name per column", names=option("names"))
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(
            "{names} holds {duplicates} twice; each column needs a name of its own",
            names=option("names"),
            duplicates=repr(duplicates[0]),
        )
    if "" in names:
        raise UsageError(
            "{names} holds an empty name, for column {index}; each column needs one",
            names=option("names"),
            index=names.index("") + 1,
        )
