"""Messages about rejected CSV rows: the reason, the column, the value and the remedy."""

from __future__ import annotations

import math

from recordmill.base import native
from recordmill.base.buffers import Bytes
from recordmill.base.errors import Fault
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.schemas.feature import Feature
from recordmill.sources.values.casting import EXAMPLE_LIMIT

# Enough of a value to find it in the file, short enough for one line.
_MAX_SHOWN_CHARACTERS = 60


def quote_bytes(value: bytes) -> str:
    r"""Formats a value for a message: in quotes, and cut to 60 characters.

    Bytes that are not UTF-8 appear as \xNN.

    >>> quote_bytes(b"caf\xc3\xa9"), quote_bytes(b"caf\xe9")
    ("'café'", "'caf\\xe9'")
    """
    # A character of UTF-8 has at most four bytes.
    text = value[: 4 * _MAX_SHOWN_CHARACTERS + 4].decode("utf-8", "backslashreplace")
    escaped = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
    return (
        f"'{escaped}'"
        if len(escaped) <= _MAX_SHOWN_CHARACTERS
        else f"'{escaped[:_MAX_SHOWN_CHARACTERS]}...'"
    )


def explain_field(feature: Feature, fault_code: int, value: bytes) -> Fault:
    """Returns the fault of a field that doesn't fit its column.

    Args:
        feature: The feature of the column.
        fault_code: A native.FieldFault.
        value: The bytes of the field.
    """
    dtype = feature.dtype
    # Templates of the problems. Only some of them contain a remedy.
    zone_problem = (
        "has {article} time zone, but the column is {dtype}; use {remedy} if all are like this one, "
        "else string"
    )
    reason, problem = {
        native.FieldFault.WRONG_TYPE: (
            "type",
            "is not a valid {dtype}; fix it, add it to the null tokens, or use {remedy}",
        ),
        native.FieldFault.OUT_OF_RANGE: (
            "range",
            "is out of range for {dtype}{limit}; use {remedy}",
        ),
        native.FieldFault.INEXACT: (
            "inexact",
            "is a whole number that {dtype} can't hold exactly; use {remedy}",
        ),
        native.FieldFault.NO_ZONE: ("type", zone_problem),
        native.FieldFault.HAS_ZONE: ("type", zone_problem),
        native.FieldFault.TOO_FINE: ("range", "is finer than {dtype}; use {remedy}"),
        native.FieldFault.NOT_UTF8: (
            "encoding",
            "is not UTF-8; use {remedy}, or declare the file's {encoding}",
        ),
        native.FieldFault.NOT_A_CLASS: (
            "class",
            "is not one of the {classes} classes of the schema",
        ),
        native.FieldFault.MISSING: ("null", "is a null, but the schema requires a value"),
    }[native.FieldFault(fault_code)]
    return Fault(
        reason,
        Message(
            "column {column}: {value} {problem}",
            column=repr(feature.name),
            value=quote_bytes(value),
            problem=Message(
                problem,
                dtype=dtype,
                article="no" if ", UTC" in dtype else "a",
                limit=EXAMPLE_LIMIT if dtype == "uint64" else "",
                remedy=dtype_remedy(feature.name, _suggest_dtype(feature, fault_code, value)),
                encoding=option("encoding"),
                classes=f"{len(feature.classes or ()):,}",
            ),
        ),
    )


def _suggest_dtype(feature: Feature, fault: int, value: bytes) -> str:
    """Returns a dtype that can represent the value."""
    dtype, unit = feature.dtype, feature.timestamp[0] if feature.timestamp else ""
    if fault in (native.FieldFault.NO_ZONE, native.FieldFault.HAS_ZONE):
        # The values have the opposite of the column's time zone setting.
        return dtype.replace(", UTC", "") if ", UTC" in dtype else dtype.replace("]", ", UTC]")
    if fault == native.FieldFault.TOO_FINE:
        return dtype.replace(f"[{unit}", "[ns")
    if fault == native.FieldFault.NOT_UTF8:
        return "bytes"
    if fault == native.FieldFault.INEXACT:
        return "string" if dtype == "float64" else "float64"
    if fault != native.FieldFault.OUT_OF_RANGE:
        return "string"
    # Microseconds cover a longer range of years.
    if unit == "ns":
        return dtype.replace("ns", "us")
    if dtype in ("float16", "bfloat16", "float32"):
        return "float64" if math.isfinite(float(value)) else "string"
    return "string" if unit or dtype in ("float64", "int64", "uint64") else "int64"


def quote_first_line(data: Bytes) -> str:
    """Returns the first line of the data in quotes, for a message."""
    return quote_bytes(
        data[: 4 * _MAX_SHOWN_CHARACTERS + 5].tobytes().replace(b"\r", b"\n").split(b"\n")[0]
    )


def explain_row(width: int, num_columns: int, quoted_line: str, max_line_bytes: int) -> Fault:
    """Returns the fault of a bad row.

    A bad row is too long, has a field that continues after its closing quote, or has the wrong
    number of fields.

    Args:
        width: The number of fields, or a CsvRowFault.
        num_columns: The number of columns of the file.
        quoted_line: The first line of the bad part of the row, from `quote_first_line`.
        max_line_bytes: Maximum length of a row.
    """
    if width == native.CsvRowFault.TOO_LONG:
        problem = (
            f"the row is longer than {max_line_bytes:,} bytes, or its quote is never closed; its "
            f"first line is {quoted_line}"
        )
        return Fault(
            "row-bytes",
            Message(
                "{problem}; reading continues at the next line; fix the quote, or "
                "use {quote} if quotes are text, or a larger {max_line_bytes} if the row is longer",
                problem=problem,
                quote=option("quote", "none"),
                max_line_bytes=option("max_line_bytes"),
            ),
        )
    if width == native.CsvRowFault.STRAY_QUOTE:
        return Fault(
            "quotes",
            Message(
                "{problem} {line}; fix it, or use {remedies}",
                problem=STRAY_QUOTE_PROBLEM,
                line=quoted_line,
                remedies=STRAY_QUOTE_REMEDIES,
            ),
        )
    problem = (
        f"{width:,} field{'s' * (width != 1)}, {'more' if width > num_columns else 'fewer'} than the {num_columns:,} "
        f"column{'s' * (num_columns != 1)}"
    )
    trim_remedy = (
        Message("use {trim}, since a quote after a blank is text, or ", trim=option("trim", True))
        if ' "' in quoted_line
        else ""
    )
    return Fault(
        "columns",
        Message(
            "{problem}; the row starts with {quoted_line}; {trim_remedy}check the "
            "{delimiter}, {quote}, {escape} and {skip_lines}",
            problem=problem,
            quoted_line=quoted_line,
            trim_remedy=trim_remedy,
            delimiter=option("delimiter"),
            quote=option("quote"),
            escape=option("escape"),
            skip_lines=option("skip_lines"),
        ),
    )


STRAY_QUOTE_PROBLEM = "a field continues after its closing quote:"
STRAY_QUOTE_REMEDIES = Message(
    "{quote} if quotes are text, or {lenient_quotes} to drop these quotes",
    quote=option("quote", "none"),
    lenient_quotes=option("lenient_quotes", True),
)


def dtype_remedy(name: str, dtype: str) -> str:
    """Returns the option, for a message, that reads a column with another dtype."""
    return option("dtypes", {name: dtype})
