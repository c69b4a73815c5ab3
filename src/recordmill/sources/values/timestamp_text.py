"""Times in text for the kernels of JSON, which still are Numba's: the grammar of native/numbers.h, which is the one to
change. It goes with the last of them.
"""

# mypy: disable-error-code="arg-type,assignment,return-value,no-any-return"
# In compiled code NumPy's scalars and Python's are the same.

from __future__ import annotations

import numpy as np

from recordmill.base.arrays import Bytes
from recordmill.base.kernels import kernel
from recordmill.schemas.type_lattice import AWARE, BEYOND_NANOS, MICROS, MILLIS, NAIVE, NANO_TIME, SECONDS

_NANOS_FIRST, _NANOS_LAST = -9_223_372_036, 9_223_372_036  # whole seconds: a bit inside what int64 nanoseconds reach
_MONTH_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


@kernel
def two_digits(data: Bytes, at: int) -> int:
    """The number that two digits make; a number above 1000 if they are none."""
    tens, ones = np.uint8(data[at] - 48), np.uint8(data[at + 1] - 48)
    return np.int64(tens) * 10 + np.int64(ones) if tens <= 9 and ones <= 9 else 9999


@kernel
def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 (Howard Hinnant, "chrono-compatible low-level date algorithms")."""
    if month <= 2:
        year -= 1
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@kernel
def scan_timestamp(data: Bytes, start: int, stop: int) -> tuple[int, bool, int, int]:
    """(unit bit of schemas.lattice or 0 if it is no timestamp, has a time zone, seconds since 1970 in UTC,
    nanoseconds).
    """
    nothing = (0, False, 0, 0)
    size = stop - start
    if size < 10 or data[start + 4] != 45 or data[start + 7] != 45:
        return nothing
    year = two_digits(data, start) * 100 + two_digits(data, start + 2)
    month, day = two_digits(data, start + 5), two_digits(data, start + 8)
    if not (1 <= year <= 9999 and 1 <= month <= 12 and day >= 1):
        return nothing
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > _MONTH_DAYS[month - 1] + (1 if leap else 0):
        return nothing
    seconds = _days(year, month, day) * 86_400
    if size == 10:
        return SECONDS, False, seconds, 0
    at = start + 10
    if size < 16 or (data[at] != 84 and data[at] != 32) or data[at + 3] != 58:
        return nothing
    hour, minute = two_digits(data, at + 1), two_digits(data, at + 4)
    if hour > 23 or minute > 59:
        return nothing
    seconds += hour * 3600 + minute * 60
    at += 6
    nanos, unit = 0, SECONDS
    if at < stop and data[at] == 58:
        if stop - at < 3 or two_digits(data, at + 1) > 59:
            return nothing
        seconds += two_digits(data, at + 1)
        at += 3
        if at < stop and data[at] == 46:
            first = at + 1
            at = first
            while at < stop and np.uint8(data[at] - 48) <= 9 and at - first < 9:
                nanos = nanos * 10 + np.int64(data[at] - 48)
                at += 1
            if at == first:
                return nothing
            for _ in range(9 - (at - first)):
                nanos *= 10
            unit = MILLIS if at - first <= 3 else MICROS if at - first <= 6 else NANO_TIME
    if at == stop:
        return unit, False, seconds, nanos
    if stop - at == 1 and data[at] == 90:
        return unit, True, seconds, nanos
    if stop - at != 6 or (data[at] != 43 and data[at] != 45) or data[at + 3] != 58:
        return nothing
    hour, minute = two_digits(data, at + 1), two_digits(data, at + 4)
    if hour > 23 or minute > 59:
        return nothing
    offset = hour * 3600 + minute * 60
    return unit, True, (seconds - offset if data[at] == 43 else seconds + offset), nanos


@kernel
def classify_timestamp(data: Bytes, start: int, stop: int) -> int:
    """The class bits of schemas.lattice; 0 if the text is no timestamp."""
    unit, aware, seconds, _ = scan_timestamp(data, start, stop)
    if unit == 0:
        return 0
    return unit | (AWARE if aware else NAIVE) | (0 if _NANOS_FIRST <= seconds < _NANOS_LAST else BEYOND_NANOS)
