"""Options of CSV files.

The rules follow Python's `csv` module. A quote opens a quoted field only at the start of the field,
so the quote in `5" disk` is an ordinary character. A doubled quote inside quotes is one quote. CR,
LF and CRLF end a row.

There are two differences. A field that continues after its closing quote (`"Foo" bar`) is an error,
unless `lenient_quotes` is set. Blank lines are not rows, but in a file with a single column they
are nulls.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.options.declare import declare
from recordmill.options.parsers import parse_character, parse_names
from recordmill.sources.common.options import EncodingOptions, LineOptions, TableOptions, as_tuple

# Value of the option `quote` that detects the quote from the content.
AUTO_QUOTE = "auto"
_CSV_HEADING = "CSV, and tables of labels and boxes of images"


class CsvDialect(EncodingOptions, heading=_CSV_HEADING, decides=True):
    """The notation of a CSV file.

    The file contains the data, or the labels or boxes of images.

    Attributes:
        delimiter: One ASCII character. If None, one of `, ; tab | :` and the blank is detected.
        quote: One ASCII character, None for no quoting, or AUTO_QUOTE. AUTO_QUOTE detects the
            double quote, the single quote, or no quoting. It selects no quoting if all rows have
            the same number of fields only without a quote.
        lenient_quotes: Whether a field may continue after its closing quote. Its value does not
            contain these two quotes.
        null_tokens: Texts that are nulls. Without quotes they are nulls in every column. In quotes
            they are nulls in a column of numbers, booleans or timestamps. In a text column, they
            are text: `""` is the empty string, and `"NA"` the text NA. So a missing value differs
            from an empty one.
        header: Whether the first row contains the column names. If None, this is detected, and it
            is an error if it is unclear.
        names: Column names. They replace the names in a header. If None, the names are in the
            header. Without a header, they are column_1, column_2, ...
        skip_lines: Number of lines before the header, or before the first row if there is no
            header.
    """

    delimiter: str | None = declare(
        "character between fields, or 'tab'",
        default=None,
        default_text="detected",
        parse=parse_character,
        metavar="C",
        common=True,
    )
    quote: str | None = declare(
        "character around quoted fields, or 'none'",
        default=AUTO_QUOTE,
        default_text="detected",
        parse=parse_character,
        metavar="C",
    )
    doubled_quote: bool = declare(
        "two quotes in a quoted field end it; by default they mean one quote", default=True
    )
    lenient_quotes: bool = declare(
        'read a field that continues after its closing quote ("Foo" bar) without its quotes, instead of rejecting it',
        default=False,
    )
    escape: str | None = declare(
        "character that makes the next one literal",
        default=None,
        parse=parse_character,
        metavar="C",
    )
    null_tokens: tuple[str, ...] = declare(
        "text that means a missing value; repeatable",
        default=("", "NA"),
        default_text="empty and NA",
        accepts="str | Sequence[str]",
        repeated=True,
        metavar="TOKEN",
        flag="--null",
    )
    header: bool | None = declare(
        "the first row names the columns, or is data; without a header, columns are named column_1, ... or by --names",
        default=None,
        default_text="detected; if it is unclear, the build stops",
        common=True,
    )
    names: tuple[str, ...] | None = declare(
        "names of the columns, instead of those in the header",
        default=None,
        parse=parse_names,
        metavar="A,B,...",
    )
    comment: str | None = declare(
        "skip lines that start with this character",
        default=None,
        parse=parse_character,
        metavar="C",
    )
    skip_lines: int = declare("number of lines to skip at the start of each file", default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "null_tokens", as_tuple(self.null_tokens))
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

    @property
    def dialect(self) -> dict[str, Any]:
        """The options of the notation that differ from the defaults, by name."""
        defaults = CsvDialect()
        return {
            name: value
            for name in CsvDialect.OPTIONS
            if (value := getattr(self, name)) != getattr(defaults, name)
        }


class CsvOptions(TableOptions, CsvDialect, LineOptions, heading=_CSV_HEADING, decides=True):
    """Options of CSV files: table options, the dialect, and limits.

    Attributes:
        trim: Whether blanks and tabs around a field are dropped, also those before an opening
            quote. Otherwise they are part of the value. If the delimiter is a blank, a run of
            blanks is one delimiter.
        max_line_bytes: Maximum length of a row in bytes. A longer row is a reject, and reading
            continues at its second line. This limits the damage of a quote that is never closed.
    """

    # 256 MiB: the arrays of fields store a length in 28 bits.
    _LONGEST_LINE_BYTES: ClassVar[int] = 256 << 20

    trim: bool = declare(
        "drop blanks around fields; with --delimiter ' ', a run of blanks is one delimiter",
        default=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
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
