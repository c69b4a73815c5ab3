"""Explains why a row of a CSV file is rejected: the reason, and the message with column, value and remedy."""

from __future__ import annotations

from collections.abc import Callable

from recordmill.base import native
from recordmill.base.buffers import Bytes
from recordmill.base.option_names import option
from recordmill.schemas.feature import Feature
from recordmill.sources.values.casting import EXAMPLE_LIMIT

_SHOWN_CHARACTERS = 60  # of a value: enough to find it, short enough for a line


def quoted_bytes(value: bytes) -> str:
    """Returns the value as people can read it, cut to 60 characters; bytes that are no UTF-8 as \\xNN.

    >>> quoted_bytes(b"caf\\xc3\\xa9"), quoted_bytes(b"caf\\xe9")
    ("'café'", "'caf\\\\xe9'")
    """
    text = value[: 4 * _SHOWN_CHARACTERS + 4].decode("utf-8", "backslashreplace")
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f"'{shown}'" if len(shown) <= _SHOWN_CHARACTERS else f"'{shown[:_SHOWN_CHARACTERS]}...'"


def explain_fields(feature: Feature, fault: int, value: bytes) -> tuple[str, str]:
    """Returns (reason, message) of a field that doesn't fit its column."""
    reason, what = _FAULTS[fault](feature)
    return reason, f"column {feature.name!r}: {quoted_bytes(value)} {what}"


def first_line(data: Bytes) -> str:
    """Returns the line that data begins with, as people can read it."""
    return quoted_bytes(data[: 4 * _SHOWN_CHARACTERS + 5].tobytes().replace(b"\r", b"\n").split(b"\n")[0])


def explain_row(width: int, columns: int, shown: str, max_row_bytes: int) -> tuple[str, str]:
    """Returns (reason, message) of a row that is none: too long, with a field that goes on after its closing quote, or
    with another number of fields than the file has columns.

    shown: the first line of what is wrong, as `first_line` gives it.
    """
    if width == native.CSV_TOO_LONG:
        what = (
            f"the row is longer than {max_row_bytes:,} bytes, or a quote that it opens is never closed; its "
            f"first line is {shown}"
        )
        return (
            "row-bytes",
            f"{what}; reading goes on at the next line; mend the quote, or use {option('quote', 'none')} if quotes are "
            f"text, or {option('max_row_bytes')}",
        )
    if width == native.CSV_STRAY_QUOTE:
        return "quotes", f"{STRAY_FIELD} {shown}; mend it, or use {STRAY_REMEDIES}"
    what = (
        f"{width:,} field{'s' * (width != 1)}, {'more' if width > columns else 'fewer'} than the {columns:,} "
        f"column{'s' * (columns != 1)}"
    )
    trim = f"use {option('trim', True)}, since a quote after a blank is text, or " if ' "' in shown else ""
    return (
        "columns",
        f"{what}; the row starts with {shown}; {trim}check the {option('delimiter')}, {option('quote')}, "
        f"{option('escape')} and {option('skip_lines')}",
    )


STRAY_FIELD = "a field goes on behind its closing quote:"
STRAY_REMEDIES = (
    f"{option('quote', 'none')} if quotes are text, or {option('lenient_quotes', True)} to drop these quotes"
)


def declare_remedy(name: str, dtype: str) -> str:
    """Returns the option that reads a column as that dtype."""
    return option("dtypes", {name: dtype})


def _wrong_type(feature: Feature) -> tuple[str, str]:
    return (
        "type",
        f"is no {feature.dtype}; mend it, add it to the null tokens, or use {declare_remedy(feature.name, 'string')}",
    )


def _beyond_range(feature: Feature) -> tuple[str, str]:
    why = EXAMPLE_LIMIT if feature.dtype == "uint64" else ""
    return "range", f"is out of range for {feature.dtype}{why}; use {declare_remedy(feature.name, _wider(feature))}"


def _wider(feature: Feature) -> str:
    if feature.timestamp and feature.timestamp[0] == "ns":
        return feature.dtype.replace("ns", "us")
    if feature.dtype in ("float16", "bfloat16", "float32"):
        return "float64"
    return "string" if feature.timestamp or feature.dtype in ("float64", "int64", "uint64") else "int64"


def _inexact(feature: Feature) -> tuple[str, str]:
    better = "string" if feature.dtype == "float64" else "float64"
    return (
        "inexact",
        f"is a whole number that {feature.dtype} can't hold exactly; use {declare_remedy(feature.name, better)}",
    )


def _zone(feature: Feature) -> tuple[str, str]:
    wrong, other = (
        ("no", feature.dtype.replace(", UTC", ""))
        if ", UTC" in feature.dtype
        else ("a", feature.dtype.replace("]", ", UTC]"))
    )
    hint = f"use {declare_remedy(feature.name, other)} if all are like this one, else string"
    return "type", f"has {wrong} time zone, but the column is {feature.dtype}; {hint}"


def _too_fine(feature: Feature) -> tuple[str, str]:
    assert feature.timestamp is not None
    return (
        "range",
        f"is finer than {feature.dtype}; use "
        f"{declare_remedy(feature.name, feature.dtype.replace('[' + feature.timestamp[0], '[ns'))}",
    )


def _not_utf8(feature: Feature) -> tuple[str, str]:
    return (
        "encoding",
        f"is no UTF-8; use {declare_remedy(feature.name, 'bytes')}, or declare the file's {option('encoding')}",
    )


def _no_class(feature: Feature) -> tuple[str, str]:
    return "class", f"is none of the {len(feature.classes or ()):,} classes that the schema names"


def _no_value(feature: Feature) -> tuple[str, str]:
    return "null", "is a null, but the schema requires a value"


_FAULTS: dict[int, Callable[[Feature], tuple[str, str]]] = {
    native.WRONG_TYPE: _wrong_type,
    native.BEYOND_RANGE: _beyond_range,
    native.INEXACT: _inexact,
    native.NO_ZONE: _zone,
    native.HAS_ZONE: _zone,
    native.TOO_FINE: _too_fine,
    native.FIELD_NOT_UTF8: _not_utf8,
    native.NO_CLASS: _no_class,
    native.NO_VALUE: _no_value,
}
