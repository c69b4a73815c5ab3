"""Inference of the dtype of a column of text from its values.

The values come from all rows, files and threads. The native library (native/numbers.cpp) assigns
classes to each text, such as bool, int64 or a timestamp in seconds. A class is one bit.
`resolve_dtype` turns the classes of a column into a dtype, for CSV and JSON Lines alike:

* Only nulls are `string`.
* Only `true` and `false` are `bool`.
* Only whole numbers that fit are `int64`. Whole numbers beyond int64 are text.
* Whole numbers mixed with decimals are `float32`.
* Only timestamps are `timestamp[UNIT]` or `timestamp[UNIT, UTC]`, with the finest unit of all
  values. Timestamps with and without a time zone together are `string`. So are nanoseconds together
  with a date that an int64 of nanoseconds since 1970 can't represent.
* Any other mixture, and any other text, is `string`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recordmill.base import native

# native/recordmill.h explains these classes.
BOOL_CLASS, INT64_CLASS, FLOAT32_CLASS, TEXT_CLASS = (
    native.TextClass.BOOL,
    native.TextClass.INT64,
    native.TextClass.FLOAT32,
    native.TextClass.TEXT,
)
SECONDS_CLASS, MILLIS_CLASS, MICROS_CLASS, NANOS_CLASS = (
    native.TextClass.SECONDS,
    native.TextClass.MILLIS,
    native.TextClass.MICROS,
    native.TextClass.NANOS,
)
NAIVE_CLASS, AWARE_CLASS, BEYOND_NANOS_CLASS = (
    native.TextClass.NAIVE,
    native.TextClass.AWARE,
    native.TextClass.BEYOND_NANOS,
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
    """Classes and counts of the texts of one column.

    The sum `a + b` has the counts of both, in any order, and `TextCounts()` is the zero of this
    sum. Threads count separately and add up their results.

    Attributes:
        classes: The classes of all values, joined by bitwise or.
        values: The number of values, without nulls.
        nulls: The number of nulls for each way to write a null, by the name of that way.
        soft_nulls: The number of values that are text in a text column and null in any other
            column: quoted null tokens. They have no class.
        inexact_decimals: The number of values with a point or an exponent that lose digits as
            float32. See native/numbers.cpp.
        inexact_integers: The number of whole numbers that float32 can't represent exactly.
        overflows: The number of values above the largest float32.
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
                # `dict.fromkeys` is a set that keeps the order.
                for name in dict.fromkeys((*self.nulls, *addend.nulls))
            },
            soft_nulls=self.soft_nulls + addend.soft_nulls,
            inexact_decimals=self.inexact_decimals + addend.inexact_decimals,
            inexact_integers=self.inexact_integers + addend.inexact_integers,
            overflows=self.overflows + addend.overflows,
        )

    @property
    def dtype(self) -> str:
        """The dtype that can hold every value.

        >>> (TextCounts(INT64_CLASS) + TextCounts(FLOAT32_CLASS)).dtype
        'float32'
        >>> TextCounts(BOOL_CLASS | INT64_CLASS).dtype
        'string'
        >>> TextCounts(SECONDS_CLASS | MICROS_CLASS | AWARE_CLASS).dtype, TextCounts().dtype
        ('timestamp[us, UTC]', 'string')
        """
        return resolve_dtype(self.classes)

    def null_count(self, dtype: str) -> int:
        """Returns the number of nulls of the column if read as this dtype."""
        return sum(self.nulls.values()) + (0 if dtype in ("string", "bytes") else self.soft_nulls)


def resolve_dtype(classes: int) -> str:
    """Returns the dtype that can hold texts of all these classes.

    The docstring of the module lists the rules.
    """
    # Kinds of values never mix: a column has one dtype only if it has one kind.
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
