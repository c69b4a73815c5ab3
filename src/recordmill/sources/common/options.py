"""Options that several kinds of input share.

The command line imports this module for its help, so it imports neither NumPy nor pyarrow.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import ClassVar, Literal

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import MAX_LINE_BYTES, format_size_option, parse_size
from recordmill.options.declare import Options, declare, redeclare
from recordmill.options.order import BuildOrder
from recordmill.options.parsers import parse_names
from recordmill.options.shared import Shared

_ENCODING_EXAMPLES = "for example utf-8, latin-1, cp1252, utf-16, shift_jis"
# Python lists these as text encodings, but they encode host names and source code.
_NON_FILE_CODECS = frozenset(
    ("punycode", "idna", "undefined", "unicode-escape", "raw-unicode-escape")
)


class InputOptions(Options):
    """Options of every kind of input."""

    split_from: Literal["auto", "folders", "names", "none"] = redeclare(BuildOrder)


class ClassOptions(InputOptions, heading="classes of images and text", decides=True):
    """Options of the classes of files. `sources.common.layout` describes the values."""

    class_from: Literal["auto", "folders", "none"] = declare(
        "what determines the class", default="auto"
    )
    label_regex: str | None = declare(
        "regular expression for the path of a file; its first group, or the group named label, is the class: 'class_(\\d+)_'",
        default=None,
        metavar="REGEX",
        excludes=tuple((name, None) for name in ("class_from", "labels", "boxes")),
    )
    unlabelled: Literal["leave", "keep"] = declare(
        "files outside class folders: leave them out, or keep them without a label",
        default="leave",
        excludes=(("labels", None),),
    )


class EncodingOptions(Options, heading="text, JSONL, CSV and tables of images", decides=True):
    """The option of files of text.

    Attributes:
        encoding: Python's name of the encoding. If it is `utf-8`, the default, a byte order mark of
            UTF-8, UTF-16 or UTF-32 overrides it.
    """

    encoding: str = declare(
        "encoding of the text; any that Python knows", default="utf-8", metavar="NAME"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "encoding", normalize_encoding(self.encoding))


class LineOptions(EncodingOptions, heading="text, JSONL, CSV and tables of images", decides=True):
    """Options of files with a record in each line.

    Attributes:
        max_line_bytes: A longer line, row or document is a reject, so that none exhausts the
            memory.
    """

    _LONGEST_LINE_BYTES: ClassVar[int] = 1 << 30

    max_line_bytes: int = declare(
        "reject longer lines, rows and text documents; this limits the damage of an unclosed quote",
        default=MAX_LINE_BYTES,
        parse=parse_size,
        default_text=format_size_option(MAX_LINE_BYTES),
        metavar="SIZE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.max_line_bytes <= self._LONGEST_LINE_BYTES:
            raise UsageError(
                "{max_line_bytes}: it must be between 1 and {longest_line_bytes}",
                max_line_bytes=option("max_line_bytes", self.max_line_bytes),
                longest_line_bytes=self._LONGEST_LINE_BYTES,
            )


class TableOptions(InputOptions, heading="CSV, JSONL, Parquet and Arrow", decides=True):
    """Options of CSV, JSON Lines, Parquet and Arrow.

    Attributes:
        columns: The columns to read, by their names in the files. None means all columns.
        parse: Columns with a special notation, such as `price=decimal(",")`. See
            `sources.values.text_formats`.
        file_columns: Columns that contain file names, such as `photo=image`. See
            `sources.images.file_columns`.
    """

    columns: tuple[str, ...] | None = redeclare(
        Shared,
        parse=parse_names,
        heading="CSV, JSONL, Parquet, Arrow and NumPy",
        common=False,
        help="read only these columns, members of JSON objects, or arrays",
    )
    parse: tuple[str, ...] = declare(
        'how the values of a column are written: decimal(",", thousands="."), percent, currency, date("%d.%m.%Y"), datetime("%d.%m.%Y %H:%M"), list("|"), list("|", "int64")',
        default=(),
        default_text="none",
        accepts="str | Sequence[str]",
        repeated=True,
        metavar="COLUMN=SPELLING",
    )
    file_columns: tuple[str, ...] = declare(
        "column with the paths of files next to the table; their contents become features, as image, mask, npy, bytes or text; repeatable",
        default=(),
        default_text="image",
        accepts="str | Sequence[str]",
        repeated=True,
        metavar="COLUMN[=FORM]",
        flag="--file-column",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("columns", "parse", "file_columns"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, as_tuple(value))


def as_tuple(value: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the items of an option that may be set several times. A text is one item."""
    return (value,) if isinstance(value, str) else tuple(value)


def normalize_encoding(encoding: str) -> str:
    """Returns Python's name of an encoding.

    >>> normalize_encoding("UTF8"), normalize_encoding("latin-1")
    ('utf-8', 'iso8859-1')

    Raises:
        UsageError: The encoding is unknown, or it is not an encoding of text.
    """
    try:
        codec = codecs.lookup(encoding)
    except (LookupError, ValueError):
        raise UsageError(f"encoding {encoding!r} is unknown; {_ENCODING_EXAMPLES}") from None
    if not codec._is_text_encoding or codec.name in _NON_FILE_CODECS:
        raise UsageError(f"encoding {encoding!r} is not an encoding of text; {_ENCODING_EXAMPLES}")
    return codec.name
