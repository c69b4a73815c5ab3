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
BOOL_CLASS, INT64_CLASS, FLOAT32_CLASS, TEXT_CLASS = (
    native.BOOL_CLASS,
    native.INT64_CLASS,
    native.FLOAT32_CLASS,
    native.TEXT_CLASS,
)
SECONDS_CLASS, MILLIS_CLASS, MICROS_CLASS, NANOS_CLASS = (
    native.SECONDS_CLASS,
    native.MILLIS_CLASS,
    native.MICROS_CLASS,
    native.NANOS_CLASS,
)
NAIVE_CLASS, AWARE_CLASS, BEYOND_NANOS_CLASS = (
    native.NAIVE_CLASS,
    native.AWARE_CLASS,
    native.BEYOND_NANOS_CLASS,
)

_NUMBER_CLASSES = INT64_CLASS | FLOAT32_CLASS
_TIME_CLASSES = (
    SECONDS_CLASS
    | MILLIS_CLASS
    | MICROS_CLASS
    | NANOS_CLASS
    | NAIVE_CLASS
    | AWARE_CLASS
    | BEYOND_NANOS_CLASS
)
_TIME_CLASS_UNITS = (
    (NANOS_CLASS, "ns"),
    (MICROS_CLASS, "us"),
    (MILLIS_CLASS, "ms"),
    (SECONDS_CLASS, "s"),
)


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

    def __add__(self, addend: TextCounts) -> TextCounts:
        return TextCounts(
            classes=self.classes | addend.classes,
            values=self.values + addend.values,
            nulls={
                name: self.nulls.get(name, 0) + addend.nulls.get(name, 0)
                for name in dict.fromkeys((*self.nulls, *addend.nulls))
            },
            soft_nulls=self.soft_nulls + addend.soft_nulls,
            inexact_decimals=self.inexact_decimals + addend.inexact_decimals,
            inexact_integers=self.inexact_integers + addend.inexact_integers,
            overflows=self.overflows + addend.overflows,
        )

    @property
    def dtype(self) -> str:
        """The dtype (of schemas.feature) that holds every value seen.

        >>> (TextCounts(INT64_CLASS) + TextCounts(FLOAT32_CLASS)).dtype, TextCounts(BOOL_CLASS | INT64_CLASS).dtype
        ('float32', 'string')
        >>> TextCounts(SECONDS_CLASS | MICROS_CLASS | AWARE_CLASS).dtype, TextCounts().dtype
        ('timestamp[us, UTC]', 'string')
        """
        return resolve_dtype(self.classes)

    def null_count(self, dtype: str) -> int:
        """Returns how many nulls the column has if it is read as that dtype."""
        return sum(self.nulls.values()) + (0 if dtype in ("string", "bytes") else self.soft_nulls)


def resolve_dtype(classes: int) -> str:
    """The dtype that holds texts of all these classes; the module's docstring states the rule."""
    kinds = [kind for kind in (BOOL_CLASS, _NUMBER_CLASSES, _TIME_CLASSES) if classes & kind]
    if classes & TEXT_CLASS or len(kinds) != 1:
        return "string"
    if classes & BOOL_CLASS:
        return "bool"
    if classes & _NUMBER_CLASSES:
        return "float32" if classes & FLOAT32_CLASS else "int64"
    if (classes & NAIVE_CLASS and classes & AWARE_CLASS) or (
        classes & NANOS_CLASS and classes & BEYOND_NANOS_CLASS
    ):
        return "string"
    unit = next(name for bit, name in _TIME_CLASS_UNITS if classes & bit)
    return f"timestamp[{unit}, UTC]" if classes & AWARE_CLASS else f"timestamp[{unit}]"
