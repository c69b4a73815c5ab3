"""Inference of the dtype of a column of text from its values.

The native library (native/numbers.cpp) determines for each text the classes that it belongs to,
such as bool, int64 or a timestamp in seconds. A class is one bit. Counts from all rows, files and
threads are added up, and `resolve_dtype` turns the classes of a column into its dtype. The rules
are the same for CSV and JSON Lines:

* A column of nulls is `string`.
* A column of `true` and `false` is `bool`.
* A column of whole numbers is `int64`. If one of them does not fit, it is `string`.
* A column of whole numbers and decimals is `float32`.
* A column of timestamps is `timestamp[UNIT]`, or `timestamp[UNIT, UTC]` if they have a time zone.
  The unit is the finest one of all values. The column is `string` if only some of them have a time
  zone. It is also `string` if some have nanoseconds, and others can't be represented as an int64 of
  nanoseconds since 1970.
* Any other column is `string`.
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

    Each thread counts separately, and the results are added with `+`, in any order. `TextCounts()`
    is the result for no values.

    Attributes:
        classes: The classes of all values, joined by bitwise or.
        values: The number of values that are not null.
        nulls: The number of nulls for each way to write them, such as an empty cell or `NA`.
        soft_nulls: The number of values that are null unless the column is text, such as a quoted
            "NA". They are counted in `values`, but have no class.
        inexact_decimals: The number of values with a point or an exponent that lose digits as
            float32. See native/numbers.cpp.
        inexact_integers: The number of whole numbers that float32 can't represent exactly.
        overflows: The number of values that are too large for float32.
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
        """The dtype that can hold every value of the column.

        >>> (TextCounts(INT64_CLASS) + TextCounts(FLOAT32_CLASS)).dtype
        'float32'
        >>> TextCounts(BOOL_CLASS | INT64_CLASS).dtype
        'string'
        >>> TextCounts(SECONDS_CLASS | MICROS_CLASS | AWARE_CLASS).dtype, TextCounts().dtype
        ('timestamp[us, UTC]', 'string')
        """
        return resolve_dtype(self.classes)

    def null_count(self, dtype: str) -> int:
        """Returns the number of nulls if the column is read as this dtype.

        The number includes `soft_nulls`, unless the dtype is `string` or `bytes`.
        """
        return sum(self.nulls.values()) + (0 if dtype in ("string", "bytes") else self.soft_nulls)


def resolve_dtype(classes: int) -> str:
    """Returns the dtype of a column from the classes of its texts.

    The docstring of this module lists the rules.

    Args:
        classes: Bits of the classes that occur in the column, joined by bitwise or.
    """
    # A column of two kinds of values, such as numbers and times, is text.
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
