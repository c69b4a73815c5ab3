"""Sizes, counts, shares and durations as text, and the parsers of options with numbers."""

from __future__ import annotations

import contextlib
import operator
import re
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option

# 128 MiB: TensorFlow recommends 100 to 200 MB, which is enough for efficient sequential reads.
DEFAULT_SHARD_BYTES = 128 << 20
# Larger inputs get larger shards instead of more. The number is half the largest number of key
# buckets, so the slices of a shard contain about 1.5 times its size.
MAX_DEFAULT_SHARDS = 1 << 15
# 16 MiB: longer than any intended row or line, and short enough to hold several in memory.
MAX_LINE_BYTES = 16 << 20
# 4 EiB: an int64 holds twice as much.
MAX_SIZE_BYTES = 1 << 62
# Largest number of rows of a batch, and of hosts: TensorFlow and PyTorch count them in 32 bits.
MAX_ROWS = (1 << 31) - 1
_SIZE_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str | int, name: str) -> int:
    """Returns the number of bytes of a size such as `128MiB`, `64kB` or `1000`.

    A unit with `i` is a power of 1,024. A unit without it is a power of 1,000.

    >>> parse_size("128MiB", "shard_size"), parse_size("1.5kB", "shard_size")
    (134217728, 1500)

    Args:
        text: The size.
        name: The option, for the error message.

    Raises:
        UsageError: The text is not a size, or it exceeds MAX_SIZE_BYTES.
    """
    match = _SIZE_PATTERN.fullmatch(str(text).strip())
    if match is None or (match[3] and not match[2]):
        raise UsageError(
            "{option}: give a size such as 128MiB, 2GiB or 500kB", option=option(name, text)
        )
    size_bytes = float(match[1]) * (1024 if match[3] else 1000) ** _EXPONENTS[match[2].lower()]
    if size_bytes > MAX_SIZE_BYTES:
        raise UsageError(
            "{option}: give at most {max_size_bytes}TiB",
            option=option(name, text),
            max_size_bytes=MAX_SIZE_BYTES >> 40,
        )
    return int(size_bytes)


def parse_image_size(size: Any, name: str = "resize") -> tuple[int, int]:
    """Returns (height, width) of an option that takes the size of an image.

    >>> parse_image_size("224x192"), parse_image_size([224, 192])
    ((224, 192), (224, 192))

    Args:
        size: The size in pixels: a text, or a pair of whole numbers.
        name: The option, for the error message.

    Raises:
        UsageError: The value is not a size.
    """
    # TypeError: it is not a pair, or not of whole numbers. ValueError: there are more or fewer than
    # two, or one has too many digits for Python.
    with contextlib.suppress(TypeError, ValueError):
        if isinstance(size, str):
            match = re.fullmatch(r"(\d+)[xX×](\d+)", size.strip())
            height, width = map(int, match.groups() if match is not None else ())
        else:
            height, width = map(operator.index, size)
        return height, width
    raise UsageError(
        "{option}: write HEIGHTxWIDTH in pixels, as in 224x224", option=option(name, size)
    )


def size_in_bytes(size: str | int, name: str) -> int:
    """Returns the number of bytes of an option that takes a size.

    Args:
        size: A text as in `parse_size`, or a number of bytes.
        name: The option, for the error message.

    Raises:
        UsageError: The size is not valid, or it is less than 1.

    >>> size_in_bytes("512MiB", "memory_bytes"), size_in_bytes(1000, "memory_bytes")
    (536870912, 1000)
    """
    return to_whole_number(
        parse_size(size, name) if isinstance(size, str) else size, name, 1, MAX_SIZE_BYTES
    )


def to_whole_number(
    number: Any, name: str, min_value: int | None = None, max_value: int | None = None
) -> int:
    """Returns a whole number as an `int`.

    Scalars of NumPy and tensors are accepted, too.

    Args:
        number: The value to convert.
        name: The option, for the error message.
        min_value: The smallest allowed number. None means no limit.
        max_value: The largest allowed number. None means no limit.

    Raises:
        UsageError: The value is not a whole number, or it is out of range.
    """
    integer = None
    if not isinstance(number, bool):
        with contextlib.suppress(TypeError):  # raised for floats, texts and arrays
            integer = operator.index(number)
    if integer is None:
        raise UsageError(f"{name} is a whole number, not {number!r:.99}")
    if min_value is not None and integer < min_value:
        raise UsageError(f"{name} must be at least {min_value}, not {integer}")
    if max_value is not None and integer > max_value:
        raise UsageError(f"{name} must be at most {max_value}, not {integer}")
    return integer


def format_size(size_bytes: float) -> str:
    """Returns a size with a unit.

    >>> format_size(134217728), format_size(999)
    ('128.0 MiB', '999 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def format_size_range(minimum: int, maximum: int) -> str:
    """Returns the sizes of the values of a feature as text. Equal sizes are exact.

    >>> format_size_range(784, 784), format_size_range(0, 20), format_size_range(10, 2048)
    ('784 bytes', '0 to 20 bytes', '10 B to 2.0 KiB')
    """
    if minimum == maximum:
        return format_count(minimum, "byte")
    if maximum < 1024:
        return f"{minimum} to {maximum} bytes"
    return f"{format_size(minimum)} to {format_size(maximum)}"


def format_size_option(size_bytes: int) -> str:
    """Returns a size in the form that options take, rounded down to a MiB.

    >>> format_size_option(134217728), format_size_option(2 << 30)
    ('128MiB', '2GiB')
    """
    return f"{size_bytes >> 30}GiB" if size_bytes % (1 << 30) == 0 else f"{size_bytes >> 20}MiB"


def format_percent(share: float) -> str:
    """Returns a share as a percentage with four significant digits.

    >>> format_percent(0.0312)
    '3.12 %'
    """
    return f"{100 * share:.4g} %"


def format_count(count: int, noun: str) -> str:
    """Returns a count with its noun, in the plural if needed.

    >>> format_count(1, "record"), format_count(12345, "record")
    ('1 record', '12,345 records')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """Returns a duration in seconds, minutes or hours.

    >>> format_duration(12), format_duration(900), format_duration(10800)
    ('12 s', '15 min', '3.0 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
