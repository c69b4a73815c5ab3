"""Values of options as people write them: `128MiB`, `train=0.9,validation=0.1`, `x=float64`.
Text in, numbers out, or what was wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from recordmill.base.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str | int, option: str) -> int:
    """Bytes of `128MiB`, `2GiB`, `64kB`, `1000`: with `i` powers of 1,024, without powers of 1,000.

    >>> parse_size("128MiB", "--shard-size"), parse_size("1.5kB", "--shard-size")
    (134217728, 1500)
    """
    match = _SIZE.fullmatch(str(text).strip())
    if match is None or (match[3] and not match[2]):
        raise UsageError(f"{option} {text}: give a size such as 128MiB, 2GiB or 500kB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()])


def show_size(size_bytes: float) -> str:
    """A size for people.

    >>> show_size(134217728), show_size(999)
    ('128.0 MiB', '999 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def parse_splits(value: str | Mapping[str, float] | None) -> tuple[tuple[str, float], ...]:
    """(name, fraction) pairs of `train=0.9,validation=0.1`, or of a mapping.

    >>> parse_splits("train=0.9, validation=0.1")
    (('train', 0.9), ('validation', 0.1))
    """
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return tuple((name, float(fraction)) for name, fraction in value.items())
    pairs = []
    for item in value.split(","):
        name, equals, fraction = item.partition("=")
        try:
            pairs.append((name.strip(), float(fraction)))
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise UsageError(f"--splits {value}: {item.strip()!r} is not NAME=FRACTION, as in train=0.9,validation=0.1")
    return tuple(pairs)


def parse_dtypes(items: Iterable[str]) -> dict[str, str]:
    """Feature to dtype of `x=float64` items; the last `=` divides, since names may hold one.

    >>> parse_dtypes(["x=float64", "a=b=int32"])
    {'x': 'float64', 'a=b': 'int32'}
    """
    result = {}
    for item in items:
        name, equals, dtype = item.rpartition("=")
        if not equals or not name or not dtype:
            raise UsageError(f"--dtype {item}: give FEATURE=DTYPE, as in price=float64")
        result[name] = dtype
    return result
