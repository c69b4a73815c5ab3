"""Dtypes of columns of texts: the classes of their texts, merged over rows, files and threads, and the dtype that
holds all.

`TextCounts` is a monoid: `TextCounts()` is its zero, `+` joins the counts of two threads, in any order.
native/numbers.cpp classifies a single text (a class is one bit); the rule that turns classes into a dtype stands here
and serves CSV and JSONL alike:

* nothing but nulls: `string`, nullable.
* only `true` and `false`: `bool`; together with anything else: `string`.
* only whole numbers that fit: `int64`. Whole numbers and decimals: `float32`. Whole numbers beyond int64 are text.
* only timestamps: `timestamp[UNIT]` or `timestamp[UNIT, UTC]` with the finest unit seen; with and without time zone
  mixed: `string`; nanoseconds together with a date that nanoseconds since 1970 can't hold in int64: `string`.
* any other mixture, and any other text: `string`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recordmill.base import native

# the classes, which native/recordmill.h explains
BOOL, INT64_TYPE, FLOAT32, TEXT_TYPE = (
    native.BOOL_CLASS,
    native.INT64_CLASS,
    native.FLOAT32_CLASS,
    native.TEXT_CLASS,
)
SECONDS, MILLIS, MICROS, NANO_TIME = (
    native.SECONDS_CLASS,
    native.MILLIS_CLASS,
    native.MICROS_CLASS,
    native.NANOS_CLASS,
)
NAIVE, AWARE, BEYOND_NANOS = native.NAIVE_CLASS, native.AWARE_CLASS, native.BEYOND_NANOS_CLASS

_NUMBER = INT64_TYPE | FLOAT32
_TIME = SECONDS | MILLIS | MICROS | NANO_TIME | NAIVE | AWARE | BEYOND_NANOS
_UNITS = ((NANO_TIME, "ns"), (MICROS, "us"), (MILLIS, "ms"), (SECONDS, "s"))


@dataclass(frozen=True)
class TextCounts:
    """Counts of the texts of one column.

    Attributes:
        classes: the bits above, joined.
        values: how many values; a null is none.
        nulls: how often each way to write a null occurred, by its name.
        soft_nulls: those among the values that are text in a text column and null in any other (a quoted null token);
            they have no class.
        inexact_decimals: values with a point or an exponent that lose digits as float32, as native/numbers.cpp
            defines it.
        inexact_integers: whole numbers that float32 can't hold exactly.
        overflows: values above the largest float32.
    """

    classes: int = 0
    values: int = 0
    nulls: Mapping[str, int] = field(default_factory=dict)
    soft_nulls: int = 0
    inexact_decimals: int = 0
    inexact_integers: int = 0
    overflows: int = 0

    def __add__(self, other: TextCounts) -> TextCounts:
        return TextCounts(
            self.classes | other.classes,
            self.values + other.values,
            {
                name: self.nulls.get(name, 0) + other.nulls.get(name, 0)
                for name in dict.fromkeys((*self.nulls, *other.nulls))
            },
            self.soft_nulls + other.soft_nulls,
            self.inexact_decimals + other.inexact_decimals,
            self.inexact_integers + other.inexact_integers,
            self.overflows + other.overflows,
        )

    @property
    def dtype(self) -> str:
        """The dtype (of schemas.feature) that holds every value seen.

        >>> (TextCounts(INT64_TYPE) + TextCounts(FLOAT32)).dtype, TextCounts(BOOL | INT64_TYPE).dtype
        ('float32', 'string')
        >>> TextCounts(SECONDS | MICROS | AWARE).dtype, TextCounts().dtype
        ('timestamp[us, UTC]', 'string')
        """
        return resolve_dtype(self.classes)

    def null_count(self, dtype: str) -> int:
        """Returns how many nulls the column has if it is read as that dtype."""
        return sum(self.nulls.values()) + (0 if dtype in ("string", "bytes") else self.soft_nulls)


def resolve_dtype(classes: int) -> str:
    """The dtype that holds texts of all these classes; the module's docstring states the rule."""
    kinds = [kind for kind in (BOOL, _NUMBER, _TIME) if classes & kind]
    if classes & TEXT_TYPE or len(kinds) != 1:
        return "string"
    if classes & BOOL:
        return "bool"
    if classes & _NUMBER:
        return "float32" if classes & FLOAT32 else "int64"
    if (classes & NAIVE and classes & AWARE) or (classes & NANO_TIME and classes & BEYOND_NANOS):
        return "string"
    unit = next(name for bit, name in _UNITS if classes & bit)
    return f"timestamp[{unit}, UTC]" if classes & AWARE else f"timestamp[{unit}]"
