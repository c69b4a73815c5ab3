"""Why a row of a CSV file is rejected, in words: the reason by which it is counted, and the message that names column, value and remedy."""

from __future__ import annotations

from recordmill.schemas.feature import Feature
from recordmill.sources import csv_kernels as kernels
from recordmill.sources.csv_fields import TOO_LONG

_SHOWN_CHARACTERS = 60  # of a value: enough to find it, short enough for a line


def quote(value: bytes) -> str:
    """The value as people can read it, cut to 60 characters; bytes that are no UTF-8 as \\xNN.

    >>> quote(b"caf\\xc3\\xa9"), quote(b"caf\\xe9")
    ("'café'", "'caf\\\\xe9'")
    """
    text = value[: 4 * _SHOWN_CHARACTERS + 4].decode("utf-8", "backslashreplace")
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f"'{shown}'" if len(shown) <= _SHOWN_CHARACTERS else f"'{shown[:_SHOWN_CHARACTERS]}...'"


def explain(feature: Feature, fault: int, value: bytes) -> tuple[str, str]:
    """(reason, message) of a field that doesn't fit its column."""
    name, dtype, shown = _cut(feature.name), feature.dtype, quote(value)
    if fault == kernels.NO_VALUE:
        return "null", f"column {name}: {shown} is a null, but the schema requires a value"
    if fault == kernels.NOT_UTF8:
        return "encoding", f"column {name}: {shown} is no UTF-8; declare the file's --encoding (latin-1, cp1252, ...), or --dtype {feature.name}=bytes"
    if fault == kernels.NO_CLASS:
        return "class", f"column {name}: {shown} is none of its {len(feature.classes or ())} classes"
    if fault == kernels.INEXACT:
        better = "float64" if dtype != "float64" else "string"
        return "inexact", f"column {name}: the whole number {shown} can't be held exactly as {dtype}; use --dtype {feature.name}={better}"
    if fault == kernels.BEYOND_RANGE:
        return "range", f"column {name}: {shown} is out of range for {dtype}{_wider(feature)}"
    if fault == kernels.NO_ZONE:
        return (
            "type",
            f"column {name}: {shown} has no time zone, but the column is {dtype}; use --dtype '{feature.name}={dtype.replace(', UTC', '')}' or =string",
        )
    if fault == kernels.HAS_ZONE:
        return "type", f"column {name}: {shown} has a time zone, but the column is {dtype}; use --dtype '{feature.name}={dtype[:-1]}, UTC]' or =string"
    if fault == kernels.TOO_FINE:
        return (
            "range",
            f"column {name}: {shown} is finer than {dtype}; use --dtype '{feature.name}={dtype.replace(dtype[10:].split(']')[0].split(',')[0], 'ns')}'",
        )
    return "type", f"column {name}: {shown} is no {dtype}; use --dtype {feature.name}=string, or mend the value, or name it a null token"


def _wider(feature: Feature) -> str:
    dtype = feature.dtype
    if dtype == "uint64":
        return ", since tf.train.Example holds integers up to 2^63 - 1; use --dtype " + feature.name + "=string"
    if dtype in ("float16", "bfloat16", "float32"):
        return f"; use --dtype {feature.name}=float64"
    if dtype in ("float64", "int64") or dtype.startswith(("timestamp[s", "timestamp[ms")):
        return f"; use --dtype {feature.name}=string"
    if dtype.startswith("timestamp"):
        return f"; use --dtype '{feature.name}={dtype.replace('[ns', '[us')}'"
    return f"; use --dtype {feature.name}=int64"


def explain_row(width: int, columns: int, first: bytes, max_row_bytes: int) -> tuple[str, str]:
    """(reason, message) of a row that is none: too long, or with another number of fields than the file has columns."""
    if width == TOO_LONG:
        return "row-bytes", (
            f"the row is longer than {max_row_bytes:,} bytes, or a quote that it opens is never closed; it starts with {quote(first)}; "
            "reading goes on at the next line; mend the quote, or use --max-row-bytes"
        )
    more = "more" if width > columns else "fewer"
    return "columns", f"{width} fields, {more} than the {columns} columns; it starts with {quote(first)}; check the --delimiter, --quote and --escape"


def _cut(name: str) -> str:
    return repr(name if len(name) <= _SHOWN_CHARACTERS else name[:_SHOWN_CHARACTERS] + "...")
